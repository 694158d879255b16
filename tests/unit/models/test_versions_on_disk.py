"""Model versions as files: whole or not at all, verified when loaded, with lineage."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import WeightsError
from models import versions
from models.detector import DetectorSpec
from models.versions import (
    MANIFEST_FILE,
    MODEL_FILE,
    Manifest,
    load_version,
    manifest_of,
    not_finite,
    note_quality,
    read_manifest,
    save_version,
    version_id,
)
from scheduler.types import RetrainConfig, Signature, Traits

STATE = {"layer.weight": torch.arange(6.0).reshape(2, 3), "layer.n": torch.tensor(4)}


def manifest(id: str = "cam1-000001", parent: str | None = None) -> Manifest:
    return Manifest(
        id=id,
        stream="cam1",
        parent=parent,
        spec=DetectorSpec(arch="yolov8n", input_px=320),
        config=RetrainConfig(name="fast", epochs=3) if parent else None,
        window=7 if parent else None,
        created_utc=1_700_000_000.5,
        samples=("a", "b") if parent else (),
        quality={"f1": 0.61} if parent else {},
    )


def write_version(root: Path, manifest: Manifest, state: dict[str, torch.Tensor]) -> Path:
    folder = root / manifest.stream / manifest.id
    folder.mkdir(parents=True)
    save_version(folder, manifest, state)
    return folder


def test_round_trip(tmp_path: Path) -> None:
    written = manifest("cam1-000002", parent="cam1-000001")
    folder = write_version(tmp_path, written, STATE)
    assert folder == tmp_path / "cam1" / "cam1-000002"
    loaded = load_version(folder)
    assert loaded.manifest == replace(written, sha256=loaded.manifest.sha256)
    assert len(loaded.manifest.sha256) == 64
    assert loaded.state.keys() == STATE.keys()
    assert all(torch.equal(loaded.state[k], STATE[k]) for k in STATE)


def test_the_manifest_is_flat_json_for_others(tmp_path: Path) -> None:
    digest = save_version(tmp_path, manifest(), STATE)
    data = json.loads((tmp_path / MANIFEST_FILE).read_text())
    assert (data["arch"], data["input_px"], data["parent"], data["sha256"]) == ("yolov8n", 320, None, digest)


@pytest.mark.parametrize("position", [0, 40, -1])
def test_one_changed_byte_is_noticed(position: int, tmp_path: Path) -> None:
    folder = write_version(tmp_path, manifest(), STATE)
    data = bytearray((folder / MODEL_FILE).read_bytes())
    data[position] ^= 1
    (folder / MODEL_FILE).write_bytes(data)
    with pytest.raises(WeightsError, match="cam1-000001 is damaged") as caught:
        load_version(folder)
    assert "rollback" in caught.value.remedy


@pytest.mark.parametrize("missing", [MODEL_FILE, MANIFEST_FILE])
def test_a_missing_file_is_an_error_and_not_listed(missing: str, tmp_path: Path) -> None:
    folder = write_version(tmp_path, manifest(), STATE)
    (folder / missing).unlink()
    with pytest.raises(WeightsError, match="damaged"):
        load_version(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1}', "null"])
def test_an_unreadable_manifest_is_an_error(text: str, tmp_path: Path) -> None:
    folder = write_version(tmp_path, manifest(), STATE)
    (folder / MANIFEST_FILE).write_text(text)
    with pytest.raises(WeightsError, match="manifest is not readable"):
        read_manifest(folder)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    folder = write_version(tmp_path, manifest(), STATE)
    data = json.loads((folder / MANIFEST_FILE).read_text())
    (folder / MANIFEST_FILE).write_text(json.dumps({**data, "schema": versions.SCHEMA + 1}))
    with pytest.raises(WeightsError):
        read_manifest(folder)


def test_what_is_known_of_the_window_and_the_cost_comes_back(tmp_path: Path) -> None:
    known = replace(
        manifest(parent="cam1-000000"),
        gpu_s=12.5,
        traits=Traits(class_frac=(0.25, 0.75), objects_per_frame=2.0, daypart="night", place="gate"),
        signature=Signature(values=(0.5, -1.25)),
        origin={"kind": "group", "cameras": "cam1, cam2"},
    )
    read = read_manifest(write_version(tmp_path, known, STATE))
    assert replace(read, sha256="") == known


def test_a_view_of_the_camera_is_no_part_of_a_manifest(tmp_path: Path) -> None:
    """Older boxes read manifests too, and only the box that looked compares views."""
    seen = replace(manifest(), signature=Signature(values=(0.5, -1.25), view=(0.6, 0.8)))
    folder = write_version(tmp_path, seen, STATE)
    assert json.loads((folder / MANIFEST_FILE).read_text())["signature"] == {"values": [0.5, -1.25]}
    assert read_manifest(folder).signature == Signature(values=(0.5, -1.25))


def test_loading_again_and_again_leaves_nothing_behind(tmp_path: Path) -> None:
    """safetensors' own `load_file` leaves 57 bytes per tensor and call."""
    folder = write_version(tmp_path, manifest(), {f"layers.{n}.weight": torch.ones(2) for n in range(100)})
    for _ in range(3):
        load_version(folder)
    # The least of some: threads that other tests have left behind allocate, too.
    left = min(_left_by(lambda: load_version(folder)) for _ in range(3))
    assert left < 20 * 1000, left


def _left_by(call: Callable[[], object]) -> int:
    """Bytes that twenty calls leave allocated."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            call()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_a_manifest_of_an_older_release_is_read(tmp_path: Path) -> None:
    folder = write_version(tmp_path, manifest(parent="cam1-000000"), STATE)
    data = json.loads((folder / MANIFEST_FILE).read_text())
    for late in ("gpu_s", "traits", "signature", "origin"):
        data.pop(late)
    (folder / MANIFEST_FILE).write_text(json.dumps(data))
    assert read_manifest(folder).signature is None


def test_quality_is_noted_when_it_is_known_and_the_weights_stay_whole(tmp_path: Path) -> None:
    folder = write_version(tmp_path, manifest(parent="cam1-000000"), STATE)
    before = read_manifest(folder)
    note_quality(folder, {"f1": 0.72, "holdout": 0.7})
    assert load_version(folder).manifest == replace(before, quality={"f1": 0.72, "holdout": 0.7})
    assert sorted(p.name for p in folder.iterdir()) == [MANIFEST_FILE, MODEL_FILE]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_number_that_is_none_is_found(value: float) -> None:
    bad = {"a": torch.ones(3), "b": torch.tensor([1.0, value], dtype=torch.float16), "c": torch.tensor(3)}
    assert not_finite(bad) == "b"
    assert not_finite(STATE) is None
    assert not_finite({"large": torch.full((4,), 3e38)}) is None, "a sum that overflows is not a weight that does"


def test_a_manifest_of_a_newer_driftbox_says_so() -> None:
    with pytest.raises(ValueError, match="newer Driftbox"):
        manifest_of(json.dumps({"schema": versions.SCHEMA + 1}).encode())


def test_ids_count_up_per_stream() -> None:
    assert version_id("cam1", []) == "cam1-000001"
    assert version_id("cam1", ["cam1-000002", "cam1-000009", "cam1-x", "cam10-000050", "other-000070"]) == "cam1-000010"
    assert version_id("cam", ["cam-1-000004"]) == "cam-000001", "a camera whose name begins like another's"
    assert version_id("cam", ["cam-000004", "cam-x000002"], kind="x") == "cam-x000003"
    assert version_id("cam", ["cam-000004", "cam-x000009"]) == "cam-000005", "kinds are counted apart"


@given(st.lists(st.integers(1, 10**7), max_size=20))
def test_an_id_is_always_new_and_sorts_last(numbers: list[int]) -> None:
    existing = [f"c-{n:06d}" for n in numbers]
    new = version_id("c", existing)
    assert new not in existing
    assert all(int(new[2:]) > n for n in numbers)
