"""`driftbox models ...` by the command line, on the data folder of a box with real little models."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge import cli
from edge.clock import SystemClock
from edge.models_admin import origin_in_words
from edge.shelf import Shelf
from edge.store.folder import DataFolder
from edge.store.store import ModelState, Store
from models.fake import FakeDetector
from models.versions import read_manifest
from scheduler.types import RetrainConfig, Signature
from tests.support.fakes import put_fakes_in_the_zoo

CONFIG = RetrainConfig(name="full")


def make_folder(root: Path) -> None:
    """A data folder in which camera gate went 000001 -> 000002 -> 000003 (serves), 000004 was rejected, 000005 is a candidate; `yard`
    and `hall` (of another architecture) have their first models."""
    with DataFolder(root) as folder, Store(folder.db_path) as store:
        shelf = Shelf(folder, store, SystemClock())
        for camera, arch in (("gate", "fake"), ("yard", "fake"), ("hall", "fake-other")):
            shelf.ensure(camera, arch)
        made = [
            shelf.keep_candidate(
                "gate", parent=f"gate-00000{parent}", detector=FakeDetector(skill=skill), config=CONFIG, window=n, gpu_s=2.5,
                samples=("f1", "f2"), signature=Signature(values=(0.5, float(n))),
            ).id
            for n, (parent, skill) in enumerate([(1, 0.6), (2, 0.7), (3, 0.2), (3, 0.8)])
        ]  # fmt: skip
        for version, quality in zip(made[:2], (0.61, 0.72), strict=True):
            shelf.admit("gate", version, quality)
        shelf.reject("gate", made[2], "not better")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Made once, because every step of it waits for the disk; copied for each test."""
    with pytest.MonkeyPatch.context() as patch:
        put_fakes_in_the_zoo(patch)
        root = tmp_path_factory.mktemp("made") / "data"
        make_folder(root)
        yield root


class Box:
    """A copy of the folder, and the commands on it."""

    def __init__(self, made: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = Path(shutil.copytree(made, root)), capsys

    def __call__(self, *words: str | Path) -> Any:
        return self.run(0, *words, "--json", parse=True)

    def run(self, code: int, *words: str | Path, parse: bool = False) -> Any:
        with pytest.raises(SystemExit) as ended:
            cli.main(["models", *(str(w) for w in words), "--data-dir", str(self.root)])
        said = self._capsys.readouterr()
        assert (ended.value.code or 0) == code, said.err + said.out
        assert "Traceback" not in said.err + said.out
        return json.loads(said.out) if parse else said.out + said.err

    def serving(self, camera: str = "gate") -> str:
        with Store(self.root / "driftbox.db") as store:
            store.check()
            return store.serving()[camera].id

    def state(self, version: str) -> ModelState:
        with Store(self.root / "driftbox.db") as store:
            return store.model(version).state

    def folder(self, version: str) -> Path:
        return self.root / "models" / version.rpartition("-")[0] / version


@pytest.fixture
def box(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Box:
    return Box(made, tmp_path / "box", capsys)


@pytest.fixture
def other(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Box:
    return Box(made, tmp_path / "other", capsys)


# --- list, show ---------------------------------------------------------------------------------------------------------


def test_the_tree_puts_a_version_before_what_was_made_from_it(box: Box) -> None:
    box.run(0, "rollback", "gate")
    rows = box("list", "--tree", "--camera", "gate")["models"]
    assert [(r["id"], r["depth"], r["state"]) for r in rows] == [
        ("gate-000001", 0, "retired"),
        ("gate-000002", 0, "serving"),
        ("gate-000003", 0, "retired"),
        ("gate-000004", 1, "rejected"),
        ("gate-000005", 0, "candidate"),
    ]
    flat, tree = (box.run(0, "list", *words, "--camera", "gate").splitlines() for words in ([], ["--tree"]))
    assert [line.index("gate-0") for line in flat[1:]] == [8, 8, 8, 8, 8]
    assert [line.index("gate-0") for line in tree[1:]] == [8, 8, 8, 10, 8]


def test_the_line_to_the_serving_version_is_the_trunk(box: Box) -> None:
    with Store(box.root / "driftbox.db") as store:
        from scheduler.types import ModelVersion

        for number, parent in ((6, 1), (7, 6)):
            version = ModelVersion(
                id=f"gate-00000{number}", stream="gate", parent=f"gate-00000{parent}", arch="fake", sha256=""
            )
            store.add_model(version, at_utc=0.0)
    rows = box("list", "--tree", "--camera", "gate")["models"]
    assert {r["id"]: r["depth"] for r in rows if r["id"][-1] in "12367"} == {
        "gate-000001": 0, "gate-000002": 0, "gate-000003": 0, "gate-000006": 1, "gate-000007": 1,
    }  # fmt: skip


def test_a_line_of_thousands_of_generations_is_drawn(box: Box) -> None:
    with Store(box.root / "driftbox.db") as store, store.transaction() as db:
        for n in range(10, 3000):
            columns = "id, stream, parent, arch, sha256, state, created_utc"
            values = (f"gate-{n:06d}", f"gate-{n - 1:06d}")
            db.execute(f"INSERT INTO models ({columns}) VALUES (?, 'gate', ?, 'fake', '', 'retired', 0)", values)
    assert len(box("list", "--tree", "--camera", "gate")["models"]) == 2995


def test_what_is_known_of_a_version_is_shown(box: Box) -> None:
    shown = box("show", "gate-000003")
    assert shown["lineage"] == ["gate-000003", "gate-000002", "gate-000001"]
    assert (shown["quality"], shown["gpu_s"], shown["replaced"]) == (0.72, 2.5, "gate-000002")
    assert shown["training"]["samples"] == 2
    assert shown["manifest"]["samples"] == ["f1", "f2"]
    assert shown["manifest"]["quality"] == {"f1": 0.72}
    assert shown["manifest"]["signature"] == {"values": [0.5, 1.0]}
    text = box.run(0, "show", "gate-000003")
    assert "gate-000003 < gate-000002 < gate-000001" in text
    assert "no model version" in box.run(2, "show", "gate-9")


# --- rollback, promote --------------------------------------------------------------------------------------------------


def test_going_back_twice_goes_further_back_and_not_to_and_fro(box: Box) -> None:
    assert box("rollback", "gate")["after"] == "gate-000002"
    assert box("rollback", "gate")["after"] == "gate-000001"
    assert "nothing to go back to" in box.run(2, "rollback", "gate")
    assert box("promote", "gate-000003") == {"camera": "gate", "before": "gate-000001", "after": "gate-000003", "warning": ""}
    assert box("rollback", "gate")["after"] == "gate-000001", "what the promoted one replaced"


def test_what_no_gate_admitted_serves_only_by_force_and_with_a_warning(box: Box) -> None:
    assert "was never admitted" in box.run(2, "promote", "gate-000005")
    assert box.serving() == "gate-000003"
    assert "warning: gate-000005 was never measured" in box.run(0, "promote", "gate-000005", "--force")
    assert box.serving() == "gate-000005"
    with Store(box.root / "driftbox.db") as store:
        assert store.model("gate-000005").reason == "promoted by the operator, without a gate"


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_what_was_rejected_is_never_promoted(box: Box, force: list[str]) -> None:
    assert "was rejected: not better" in box.run(2, "promote", "gate-000004", *force)
    assert box.serving() == "gate-000003"


@pytest.mark.parametrize("command", [["promote", "gate-000002"], ["rollback", "gate"]])
def test_a_damaged_version_does_not_serve(box: Box, command: list[str]) -> None:
    weights = box.folder("gate-000002") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert "gate-000002 is damaged" in box.run(3, *command)
    assert box.serving() == "gate-000003"


def test_a_mean_of_versions_says_of_which() -> None:
    assert origin_in_words({"kind": "average", "of": "gate-000002, gate-000003"}) == "mean of gate-000002, gate-000003"


def test_a_version_is_copied_to_another_camera_with_its_origin(box: Box) -> None:
    done = box("promote", "gate-000003", "--camera", "yard")
    assert (done["after"], done["before"]) == ("yard-x000001", "yard-000001")
    assert "never measured on camera 'yard'" in done["warning"]
    assert box.serving("yard") == "yard-x000001"
    shown = box("show", "yard-x000001")
    assert shown["origin"] == "copy of gate-000003"
    assert shown["manifest"]["origin"] == {"kind": "copy", "version": "gate-000003", "camera": "gate"}
    assert shown["manifest"]["signature"] == {"values": [0.5, 1.0]}
    assert box("promote", "gate-000003", "--camera", "yard")["after"] == "yard-x000002"
    assert box.serving("gate") == "gate-000003"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["gate-000003", "--camera", "hall"], "it is a fake, and camera 'hall' runs fake-other"),
        (["gate-000003", "--camera", "nowhere"], "camera 'nowhere' has no serving model here"),
        (["gate-000004", "--camera", "yard"], "was rejected"),
        (["gate-000005", "--camera", "yard"], "was never admitted anywhere"),
        (["gate-9", "--camera", "yard"], "no model version"),
    ],
)
def test_what_cannot_be_copied_is_refused_and_leaves_nothing(box: Box, words: list[str], part: str) -> None:
    before = sorted(box.root.rglob("*"))
    assert part in box.run(2, "promote", *words)
    assert sorted(box.root.rglob("*")) == before
    assert box.serving("yard") == "yard-000001"


def test_commands_work_beside_a_box_that_runs(box: Box, tmp_path: Path) -> None:
    with DataFolder(box.root) as folder, Store(folder.db_path) as store:
        store.changed_by_others()
        assert box("rollback", "gate")["after"] == "gate-000002"
        assert store.changed_by_others(), "the running box sees it"
        assert not store.changed_by_others()
        assert store.serving()["gate"].id == "gate-000002"
        box("export", "gate-000002", "--out", tmp_path / "x.driftbox")
        assert box("import", tmp_path / "x.driftbox")["version"] == "gate-x000001"
        assert folder.recover(store, at_utc=0.0) == [
            "model gate-000005 of gate rejected: the box stopped before it was judged",
            "removed the files of gate-000005 of gate, which is not in use",
        ], "nothing of what the command took in"


# --- pins ---------------------------------------------------------------------------------------------------------------


def test_a_version_is_pinned_and_unpinned(box: Box) -> None:
    assert box("pin", "gate-000001") == {"version": "gate-000001", "pinned": True}
    assert [r["id"] for r in box("list")["models"] if r["pinned"]] == ["gate-000001"]
    assert "no longer pinned" in box.run(0, "unpin", "gate-000001")
    assert not [r for r in box("list")["models"] if r["pinned"]]
    assert "files of gate-000004 are gone" in box.run(3, "pin", "gate-000004")
    assert "no model version" in box.run(2, "pin", "gate-9")


# --- export, import, trust ----------------------------------------------------------------------------------------------


def exchange(box: Box, other: Box, tmp_path: Path) -> Path:
    """A bundle of `box` that `other` trusts."""
    bundle = tmp_path / "gate.driftbox"
    box("export", "gate-000003", "--out", bundle)
    box("key", "--out", tmp_path / "box.pub")
    other("trust", tmp_path / "box.pub")
    return bundle


def test_a_bundle_of_a_trusted_box_becomes_a_candidate(box: Box, other: Box, tmp_path: Path) -> None:
    bundle = exchange(box, other, tmp_path)
    done = other("import", bundle)
    assert done == {
        "version": "gate-x000001", "camera": "gate", "signed_by": box("key")["fingerprint"], "state": "candidate", "warning": "",
    }  # fmt: skip
    assert other.state("gate-x000001") is ModelState.CANDIDATE
    assert other.serving() == "gate-000003"
    manifest = read_manifest(other.folder("gate-x000001"))
    assert manifest.origin["version"] == "gate-000003"
    assert manifest.origin["quality_there"] == "f1 0.720"
    assert manifest.signature == Signature(values=(0.5, 1.0)), "so that a window that looks like that one finds it"
    with DataFolder(other.root) as folder, Store(folder.db_path) as store:
        shelf = Shelf(folder, store, SystemClock())
        assert shelf.cached("gate")[0].name == "gate-x000001"
        loaded = shelf.detector("gate-x000001")
        assert isinstance(loaded, FakeDetector)
        assert loaded.skill == pytest.approx(0.7)


def test_an_import_may_serve_at_once_and_says_what_that_means(box: Box, other: Box, tmp_path: Path) -> None:
    bundle = exchange(box, other, tmp_path)
    text = other.run(0, "import", bundle, "--camera", "yard", "--promote")
    assert "yard: yard-x000001" in text
    assert "warning: yard-x000001 was never measured on camera 'yard'" in text
    assert other.serving("yard") == "yard-x000001"


def test_a_stranger_and_an_unsigned_one_are_refused_by_default(box: Box, other: Box, tmp_path: Path) -> None:
    bundle = tmp_path / "gate.driftbox"
    box("export", "gate-000003", "--out", bundle)
    assert "which this box does not trust" in other.run(2, "import", bundle)
    assert other("import", bundle, "--allow-unsigned")["version"] == "gate-x000001"
    assert box("import", bundle)["version"] == "gate-x000001", "a box trusts itself"


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["--camera", "hall"], 2, "it is a fake, and camera 'hall' runs fake-other"),
        (["--camera", "nowhere"], 2, "camera 'nowhere' has no serving model here"),
    ],
)
def test_a_bundle_for_the_wrong_camera_is_refused_and_leaves_nothing(
    box: Box, other: Box, tmp_path: Path, words: list[str], code: int, part: str
) -> None:
    bundle = exchange(box, other, tmp_path)
    before = sorted(other.root.rglob("*"))
    assert part in other.run(code, "import", bundle, *words)
    assert sorted(other.root.rglob("*")) == before


def test_a_broken_bundle_ends_with_3_and_leaves_nothing(box: Box, other: Box, tmp_path: Path) -> None:
    bundle = exchange(box, other, tmp_path)
    whole = bundle.read_bytes()
    before = sorted(other.root.rglob("*"))
    for content, part in ((whole[: len(whole) // 2], "no whole zip"), (b"", "no whole zip")):
        bundle.write_bytes(content)
        assert part in other.run(3, "import", bundle)
        document = other.run(3, "import", bundle, "--json", parse=True)
        assert document["error"]["code"] == "bundle"
    with zipfile.ZipFile(bundle, "w") as file:
        file.writestr("../evil", b"x")
    assert "no part of a bundle" in other.run(3, "import", bundle)
    assert sorted(other.root.rglob("*")) == before
    assert "there is no file" in other.run(2, "import", tmp_path / "nothing")


def test_without_room_nothing_is_taken_in(box: Box, other: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = exchange(box, other, tmp_path)
    monkeypatch.setattr(DataFolder, "free_mib", lambda _: 10.0)
    assert "no space left" in other.run(3, "import", bundle)
    assert len(other("list", "--camera", "gate")["models"]) == 5


def test_an_export_overwrites_nothing_and_knows_its_place(box: Box, tmp_path: Path) -> None:
    done = box("export", "gate-000003")
    assert done["file"] == str(box.root / "exports" / "gate-000003.driftbox")
    assert done["signed_by"] == box("key")["fingerprint"]
    assert "is there already" in box.run(2, "export", "gate-000003")
    assert "there is no folder" in box.run(2, "export", "gate-000003", "--out", tmp_path / "no" / "x")
    assert "no format 'zip'" in box.run(2, "export", "gate-000003", "--format", "zip")
    assert "files of gate-000004 are gone" in box.run(3, "export", "gate-000004")


@pytest.fixture
def tiny(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Box:
    """A camera whose network is a real one."""
    with DataFolder(tmp_path / "made") as folder, Store(folder.db_path) as store:
        Shelf(folder, store, SystemClock()).ensure("gate", "tinydet-edge")
    return Box(tmp_path / "made", tmp_path / "tiny", capsys)


def test_a_network_is_exported_for_other_programs(tiny: Box, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    done = tiny("export", "gate-000001", "--format", "onnx")
    assert done["file"].endswith("exports/gate-000001.onnx")
    model = onnx.load(done["file"])
    onnx.checker.check_model(model)
    given = model.graph.input[0].type.tensor_type
    assert given.elem_type == onnx.TensorProto.UINT8, "it takes a picture's pixels as they are"
    assert given.shape.dim[3].dim_value == 3


def test_what_cannot_be_made_here_ends_with_3_and_leaves_nothing(tiny: Box) -> None:
    from models.serving.registry import runtime_of

    if not runtime_of("tensorrt").missing():
        pytest.skip("TensorRT is here")
    assert "tensorrt cannot be made here" in tiny.run(3, "export", "gate-000001", "--format", "tensorrt")
    assert not list((tiny.root / "exports").iterdir())


def test_keys_are_listed_added_and_removed(box: Box, other: Box, tmp_path: Path) -> None:
    assert box("trust")["trusted"] == []
    name = other("key", "--out", tmp_path / "other.pub")["fingerprint"]
    assert box("trust", tmp_path / "other.pub")["trusted"] == [name]
    assert name in box.run(0, "trust")
    assert box("trust", "--remove", name)["trusted"] == []
    assert "no trusted key" in box.run(2, "trust", "--remove", name)
    assert "holds a private key" in box.run(2, "trust", other.root / "keys" / "box.key")
    assert "PUBLIC KEY" in box.run(0, "key")
    assert "PRIVATE" not in box.run(0, "key")


def test_a_folder_of_no_box_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["key"], ["trust"], ["list"], ["pin", "x"], ["export", "x"], ["promote", "x"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(["models", *words, "--data-dir", str(tmp_path / "none")])
        assert ended.value.code == 3
        assert "no box has run" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
