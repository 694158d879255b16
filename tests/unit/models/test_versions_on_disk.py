"""Model versions as files: whole or not at all, verified when loaded, with lineage."""

from __future__ import annotations

import json
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
    lineage,
    list_versions,
    load_version,
    read_manifest,
    save_version,
    version_id,
    write_version,
)
from scheduler.types import RetrainConfig

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
    assert list_versions(tmp_path, "cam1") == []


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


@pytest.mark.parametrize("stop_at", ["weights", "manifest", "rename"])
def test_a_write_that_dies_leaves_no_version(stop_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    target = {"weights": (Path, "write_bytes"), "manifest": (Path, "write_text"), "rename": (Path, "rename")}[stop_at]
    with monkeypatch.context() as patch:
        patch.setattr(*target, die)
        with pytest.raises(OSError, match="No space left"):
            write_version(tmp_path, manifest(), STATE)
    assert list((tmp_path / "cam1").iterdir()) == []
    assert list_versions(tmp_path, "cam1") == []
    write_version(tmp_path, manifest(), STATE)


def test_leftovers_of_a_kill_are_not_listed(tmp_path: Path) -> None:
    write_version(tmp_path, manifest(), STATE)
    half = tmp_path / "cam1" / ".part-17-cam1-000002"
    half.mkdir()
    save_version(half, manifest("cam1-000002"), STATE)
    assert [m.id for m in list_versions(tmp_path, "cam1")] == ["cam1-000001"]
    assert list_versions(tmp_path, "cam2") == []


def test_a_version_is_never_overwritten(tmp_path: Path) -> None:
    write_version(tmp_path, manifest(), STATE)
    with pytest.raises(ValueError, match="exists already"):
        write_version(tmp_path, manifest(), {})


def test_lineage_goes_back_to_the_first_known() -> None:
    a, b, c = manifest("cam1-000001"), manifest("cam1-000002", "cam1-000001"), manifest("cam1-000003", "cam1-000001")
    assert [m.id for m in lineage([a, b, c], "cam1-000003")] == ["cam1-000003", "cam1-000001"]
    orphan = manifest("cam1-000009", "cam1-000008")
    assert lineage([a, orphan], "cam1-000009") == [orphan]
    with pytest.raises(KeyError):
        lineage([a], "cam1-000002")


def test_ids_count_up_per_stream() -> None:
    assert version_id("cam1", []) == "cam1-000001"
    assert version_id("cam1", ["cam1-000002", "cam1-000009", "cam1-x", "cam10-000050", "other-000070"]) == "cam1-000010"
    assert version_id("cam", ["cam-1-000004"]) == "cam-000001", "a camera whose name begins like another's"


@given(st.lists(st.integers(1, 10**7), max_size=20))
def test_an_id_is_always_new_and_sorts_last(numbers: list[int]) -> None:
    existing = [f"c-{n:06d}" for n in numbers]
    new = version_id("c", existing)
    assert new not in existing
    assert all(int(new[2:]) > n for n in numbers)
