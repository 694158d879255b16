"""The data folder: one box at a time, versions whole or absent, order after a crash."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from configs.errors import StorageError
from edge.store.folder import DataFolder, check_version
from edge.store.store import ModelState, Store
from models.detector import DetectorSpec
from models.versions import Manifest, load_version, save_version
from scheduler.types import ModelVersion

ROOT = Path(__file__).resolve().parents[3]


def write_version(folder: DataFolder, id: str, stream: str = "yard", content: bytes = b"weights") -> ModelVersion:
    sha256 = hashlib.sha256(content).hexdigest()
    with folder.new_version(stream, id) as part:
        (part / "weights.safetensors").write_bytes(content)
        (part / "manifest.json").write_text(
            json.dumps({"sha256": sha256, "arch": "tiny", "parent": None, "quality": {"f1": 0.6}})
        )
    return ModelVersion(id=id, stream=stream, parent=None, arch="tiny", sha256=sha256)


def add(folder: DataFolder, store: Store, id: str, stream: str = "yard", *, serve: bool = True) -> None:
    store.add_model(write_version(folder, id, stream), at_utc=1.0)
    if serve:
        store.serve(id, at_utc=1.0)


@pytest.fixture
def folder(tmp_path: Path):  # type: ignore[no-untyped-def]
    with DataFolder(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def store(folder: DataFolder):  # type: ignore[no-untyped-def]
    with Store(folder.db_path) as opened:
        yield opened
        opened.check()


def test_the_layout_is_the_one_of_the_design(folder: DataFolder) -> None:
    assert {p.name for p in folder.root.iterdir()} == {".lock", ".files.lock", "samples", "models", "events", "exports"}
    assert folder.version_dir("yard", "yard-3") == folder.root / "models" / "yard" / "yard-3"
    assert folder.free_mib() > 0


@pytest.mark.parametrize(("stream", "version"), [("..", "v"), ("yard", ".."), ("yard", "a/b"), ("yard", ".tmp-1"), ("", "v")])
def test_names_cannot_leave_the_folder(folder: DataFolder, stream: str, version: str) -> None:
    with pytest.raises(ValueError, match="not a model version"):
        folder.version_dir(stream, version)


def test_a_second_box_on_the_folder_is_told_who_has_it(folder: DataFolder) -> None:
    with pytest.raises(StorageError) as caught:
        DataFolder(folder.root)
    assert caught.value.code == "in_use"
    assert f"process {os.getpid()}" in caught.value.message


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from edge.store.folder import DataFolder\n"
        "folder = DataFolder(Path(sys.argv[1])); print('have it', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "data")], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "have it\n"
    with pytest.raises(StorageError) as caught:
        DataFolder(tmp_path / "data")
    assert caught.value.code == "in_use"
    assert f"process {child.pid}" in caught.value.message
    child.kill()
    child.communicate()
    DataFolder(tmp_path / "data").close()  # the lock of a killed process is free, whatever the file says


def test_a_folder_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError) as caught:
        DataFolder(tmp_path / "file")
    assert str(tmp_path / "file") in caught.value.message
    with pytest.raises(StorageError):
        DataFolder(Path("/proc/driftbox-data"))


def test_too_little_room_is_said_before_it_hurts(folder: DataFolder) -> None:
    folder.require_free(0.001)
    with pytest.raises(StorageError) as caught:
        folder.require_free(1e12)
    assert caught.value.code == "full"


def test_a_version_whose_making_fails_leaves_nothing(folder: DataFolder) -> None:

    def fail() -> None:
        with folder.new_version("yard", "v1") as part:
            (part / "weights.safetensors").write_bytes(b"x")
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert list((folder.models_dir / "yard").iterdir()) == []
    write_version(folder, "v1")
    with pytest.raises(ValueError, match="exists"):
        write_version(folder, "v1")
    folder.remove_version("yard", "v1")
    folder.remove_version("yard", "v1")
    assert list((folder.models_dir / "yard").iterdir()) == []


def test_disk_errors_inside_a_new_version_are_mapped(folder: DataFolder) -> None:
    with pytest.raises(StorageError) as caught, folder.new_version("yard", "v1"):
        raise OSError(28, "No space left on device")
    assert caught.value.code == "full"


def test_a_folder_in_order_is_left_alone(folder: DataFolder, store: Store) -> None:
    add(folder, store, "v1")
    add(folder, store, "v2")
    before = sorted(p.relative_to(folder.root) for p in folder.root.rglob("*"))
    assert folder.recover(store, at_utc=2.0) == []
    assert sorted(p.relative_to(folder.root) for p in folder.root.rglob("*")) == before
    assert store.serving()["yard"].id == "v2"


def test_unfinished_things_are_removed(folder: DataFolder, store: Store) -> None:
    add(folder, store, "v1")
    half = folder.models_dir / "yard" / ".tmp-99-v2"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"ha")
    (folder.events_dir / ".tmp-99-00000001.jsonl").write_text("h")
    (folder.samples_dir / "yard").mkdir()
    (folder.samples_dir / "yard" / ".tmp-9-1.jpg").write_bytes(b"")
    assert folder.recover(store, at_utc=2.0) == [
        "removed unfinished events/.tmp-99-00000001.jsonl",
        "removed unfinished models/yard/.tmp-99-v2",
        "samples: removed 1 unfinished files",
    ]
    assert not list(folder.root.rglob(".tmp-*"))
    assert folder.recover(store, at_utc=2.0) == []


@pytest.mark.parametrize("damage", ["folder gone", "bits", "no weights", "no manifest", "manifest"])
def test_a_damaged_serving_version_is_replaced_by_the_one_before(folder: DataFolder, store: Store, damage: str) -> None:
    for id in ("v1", "v2", "v3"):
        add(folder, store, id)
    path = folder.version_dir("yard", "v3")
    if damage == "folder gone":
        folder.remove_version("yard", "v3")
    elif damage == "bits":
        (path / "weights.safetensors").write_bytes(b"weightz")
    elif damage == "no weights":
        (path / "weights.safetensors").write_bytes(b"")
    elif damage == "no manifest":
        (path / "manifest.json").unlink()
    else:
        (path / "manifest.json").write_text("[1, 2")
    found = folder.recover(store, at_utc=2.0)
    assert found[0].startswith("model v3 of yard rejected: damaged: its ")
    assert found[1] == "model v2 of yard took over"
    assert store.serving()["yard"].id == "v2"
    assert store.model("v3").state is ModelState.REJECTED
    assert path.exists() == (damage != "folder gone")  # kept for inspection
    assert folder.recover(store, at_utc=2.0) == []


def test_without_a_good_version_the_camera_starts_from_its_base(folder: DataFolder, store: Store) -> None:
    add(folder, store, "v1")
    add(folder, store, "v2")
    for id in ("v1", "v2"):
        folder.remove_version("yard", id)
    assert folder.recover(store, at_utc=2.0)[-1] == "yard starts from its base model"
    assert store.serving() == {}


def test_candidates_nobody_judged_go(folder: DataFolder, store: Store) -> None:
    add(folder, store, "v1")
    add(folder, store, "v2", serve=False)
    found = folder.recover(store, at_utc=2.0)
    assert found == [
        "model v2 of yard rejected: the box stopped before it was judged",
        "removed the files of v2 of yard, which is not in use",
    ]
    assert store.serving()["yard"].id == "v1"
    assert not folder.version_dir("yard", "v2").exists()


def test_a_folder_without_a_row_goes_when_the_database_is_known(folder: DataFolder, store: Store) -> None:
    add(folder, store, "v1")
    write_version(folder, "v2")
    assert folder.recover(store, at_utc=2.0) == ["removed the files of v2 of yard, which is not in use"]


def test_a_lost_database_does_not_cost_the_models(folder: DataFolder, store: Store) -> None:
    write_version(folder, "v1")
    write_version(folder, "v2")
    (folder.version_dir("yard", "v2") / "weights.safetensors").write_bytes(b"?")
    found = folder.recover(store, at_utc=2.0)
    assert "model v1 of yard adopted" in found[0]
    model = store.model("v1")
    assert (model.state, model.version.quality, model.version.arch) == (ModelState.RETIRED, 0.6, "tiny")
    assert store.serving() == {}
    store.serve("v1", at_utc=3.0)
    assert not folder.version_dir("yard", "v2").exists()
    assert folder.recover(store, at_utc=2.0) == []


def test_versions_as_the_models_package_writes_them_are_understood(folder: DataFolder, store: Store) -> None:
    spec = DetectorSpec(arch="tinydet-edge", input_px=160)
    manifest = Manifest(
        id="yard-000001", stream="yard", parent="yard-0", spec=spec, config=None, window=3, created_utc=1.0, quality={"f1": 0.7}
    )
    with folder.new_version("yard", "yard-000001") as part:
        sha256 = save_version(part, manifest, {"weight": torch.arange(4.0)})
    assert check_version(folder.version_dir("yard", "yard-000001"), True) is None
    folder.recover(store, at_utc=2.0)
    adopted = store.model("yard-000001").version
    assert adopted == ModelVersion(
        id="yard-000001", stream="yard", parent="yard-0", arch="tinydet-edge", sha256=sha256, quality=0.7
    )
    assert load_version(folder.version_dir("yard", "yard-000001")).state["weight"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_version_made_after_the_clock_was_set_back_is_still_the_newest(folder: DataFolder, store: Store) -> None:
    for id, at_utc in (("v1", 100.0), ("v2", 50.0), ("v3", 10.0)):
        store.add_model(write_version(folder, id), at_utc=at_utc)
        store.serve(id, at_utc=at_utc)
    folder.remove_version("yard", "v3")
    folder.recover(store, at_utc=1.0)
    assert store.serving()["yard"].id == "v2"


def test_two_cameras_are_put_in_order_independently(folder: DataFolder, store: Store) -> None:
    add(folder, store, "a1", "a")
    add(folder, store, "b1", "b")
    folder.remove_version("a", "a1")
    folder.recover(store, at_utc=2.0)
    assert list(store.serving()) == ["b"]
