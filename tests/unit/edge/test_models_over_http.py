"""`/api/v1/models` on the data folder of a box with real little models: look, compare, promote, roll back, pin, out and in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from configs.files import TEMP_PREFIX
from edge.api import make_app
from edge.api_guard import UPLOADS
from edge.box_models import BoxModels, common_ancestor
from edge.clock import SystemClock
from edge.shelf import Shelf
from edge.store.folder import DataFolder
from edge.store.store import QualityPoint, Store
from edge.web.fake import FakeSource
from edge.web.fake_learning import FakeModels
from edge.web.services import Services
from edge.web.who import Role
from models.fake import FakeDetector
from models.keys import KeyRing
from scheduler.types import RetrainConfig
from tests.support.accounts import House
from tests.support.fakes import put_fakes_in_the_zoo

CONFIG = RetrainConfig(name="full")
M = "/api/v1/models"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """gate: 000001 -> 000002 -> 000003 (serves); 000004 was rejected, 000005 is a candidate. yard has its first model."""
    with pytest.MonkeyPatch.context() as patch:
        put_fakes_in_the_zoo(patch)
        root = tmp_path_factory.mktemp("made") / "data"
        with DataFolder(root) as folder, Store(folder.db_path) as store:
            shelf = Shelf(folder, store, SystemClock())
            for camera in ("gate", "yard"):
                shelf.ensure(camera, "fake")
            versions = [
                shelf.keep_candidate(
                    "gate", parent=f"gate-00000{parent}", detector=FakeDetector(skill=skill), config=CONFIG, window=n, gpu_s=2.5,
                    samples=("f1", "f2"),
                ).id
                for n, (parent, skill) in enumerate([(1, 0.6), (2, 0.7), (3, 0.2), (3, 0.8)])
            ]  # fmt: skip
            for version, quality in zip(versions[:2], (0.61, 0.72), strict=True):
                shelf.admit("gate", version, quality)
            shelf.reject("gate", versions[2], "not better")
            for at_utc, value in ((10.0, 0.7), (20.0, 0.6)):
                store.add_quality(QualityPoint(stream="gate", at_utc=at_utc, value=value, kind="f1", version="gate-000003"))
        yield root


class Folder:
    """A copy of the folder with a client; control: what stands in for a running box."""

    def __init__(self, made: Path, root: Path, control: Any = None) -> None:
        self.root = Path(shutil.copytree(made, root))
        self.store = Store(self.root / "driftbox.db")
        services = Services(models=BoxModels(self.root, self.store, control))
        self.client = TestClient(
            make_app(FakeSource(), services), base_url="http://127.0.0.1:8080", client=("127.0.0.1", 50_000),
        )  # fmt: skip

    def serving(self, camera: str = "gate") -> str:
        return self.store.serving()[camera].id

    def left_over(self) -> list[Path]:
        return list((self.root / "exports").glob(f"{TEMP_PREFIX}*"))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Iterator[Folder]:
    opened = Folder(made, tmp_path / "box")
    yield opened
    opened.store.close()


def test_list_and_tree(folder: Folder) -> None:
    rows = folder.client.get(M, params={"camera": "gate"}).json()["models"]
    assert [(r["id"], r["state"], r["depth"]) for r in rows] == [
        ("gate-000001", "retired", 0), ("gate-000002", "retired", 0), ("gate-000003", "serving", 0), ("gate-000004", "rejected", 1),
        ("gate-000005", "candidate", 0),
    ]  # fmt: skip
    assert rows[3]["reason"] == "not better"
    assert {r["camera"] for r in folder.client.get(M).json()["models"]} == {"gate", "yard"}
    assert folder.client.get(M, params={"camera": "nobody"}).status_code == 404


def test_one_version(folder: Folder) -> None:
    shown = folder.client.get(f"{M}/gate-000003").json()
    assert shown["lineage"] == ["gate-000003", "gate-000002", "gate-000001"]
    assert shown["replaced"] == "gate-000002"
    assert shown["quality_on"] == "held-out labels of the window in which it was made (it learned from window 1)"
    assert (shown["samples"], shown["config"]["name"]) == (2, "full")
    assert shown["live"] == {"points": 2, "mean": pytest.approx(0.65), "worst": 0.6, "first_utc": 10.0, "last_utc": 20.0}
    assert "model.safetensors" in shown["files"]
    first = folder.client.get(f"{M}/gate-000001").json()
    assert (first["config"], first["live"]["points"], first["quality_on"]) == ({}, 0, "never judged by a gate of this camera")


def test_two_versions_compared(folder: Folder) -> None:
    told = folder.client.get(f"{M}/compare", params={"first": "gate-000005", "second": "gate-000001"}).json()
    assert (told["ancestor"], told["steps"], told["same_camera"]) == ("gate-000001", 3, True)
    differences = {d["name"]: (d["first"], d["second"]) for d in told["differences"]}
    assert differences["configuration"] == ("full", None)
    assert differences["labels of window"] == (3, None)
    other = folder.client.get(f"{M}/compare", params={"first": "gate-000001", "second": "yard-000001"}).json()
    assert (other["ancestor"], other["steps"], other["same_camera"]) == (None, None, False)
    assert "do not compare" in other["remark"]
    assert folder.client.get(f"{M}/compare", params={"first": "gate-9", "second": "gate-000001"}).status_code == 404


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (["c", "b", "a"], ["c", "b", "a"], ("c", 0)),
        (["c", "b", "a"], ["d", "b", "a"], ("b", 2)),
        (["a"], ["c", "b", "a"], ("a", 2)),
        (["x"], ["y"], (None, None)),
    ],
)
def test_common_ancestors(first: list[str], second: list[str], found: tuple[str | None, int | None]) -> None:
    assert common_ancestor(first, second) == found


# --- what serves --------------------------------------------------------------------------------------------------------


def test_roll_back_and_promote(folder: Folder) -> None:
    back = folder.client.post(f"{M}/of/gate/rollback", json={})
    assert back.json() == {"camera": "gate", "before": "gate-000003", "after": "gate-000002", "warning": ""}
    assert folder.serving() == "gate-000002"
    assert folder.client.post(f"{M}/of/gate/rollback", json={"version": "gate-000001"}).json()["after"] == "gate-000001"
    assert folder.client.post(f"{M}/gate-000003/promote", json={}).json()["after"] == "gate-000003"
    refused = folder.client.post(f"{M}/gate-000005/promote", json={})
    assert refused.status_code == 400
    assert "never admitted" in refused.json()["detail"]
    forced = folder.client.post(f"{M}/gate-000005/promote", json={"force": True})
    assert "never measured" in forced.json()["warning"]
    assert folder.serving() == "gate-000005"


def test_what_cannot_serve_is_refused_with_a_word(folder: Folder) -> None:
    for path, body, status in (
        ("gate-000004/promote", {"force": True}, 400),  # rejected
        ("gate-000099/promote", {}, 404),
        ("of/nobody/rollback", {}, 404),
        ("of/gate/rollback", {"version": "yard-000001"}, 400),
        ("of/gate/rollback", {"version": "../../etc"}, 422),
        ("of/yard/rollback", {}, 400),  # its first model
        ("gate-000003/promote", {"force": "yes"}, 422),
        ("gate-000003/promote", {"other": 1}, 422),
    ):
        answer = folder.client.post(f"{M}/{path}", json=body)
        assert answer.status_code == status, (path, answer.text)
    assert folder.serving() == "gate-000003"


def test_damaged_files_do_not_serve(folder: Folder) -> None:
    (folder.root / "models" / "gate" / "gate-000002" / "model.safetensors").write_bytes(b"no")
    answer = folder.client.post(f"{M}/of/gate/rollback", json={})
    assert answer.status_code == 409
    assert "damaged" in answer.json()["detail"]
    shutil.rmtree(folder.root / "models" / "gate" / "gate-000002")
    assert folder.client.post(f"{M}/of/gate/rollback", json={}).status_code == 409
    assert folder.client.get(f"{M}/gate-000002").json()["files"] == {}


def test_a_damaged_manifest_is_told(folder: Folder) -> None:
    manifest = folder.root / "models" / "gate" / "gate-000002" / "manifest.json"
    for content in (b"{", b"[]", b"\xff\xfe"):
        manifest.write_bytes(content)
        answer = folder.client.get(f"{M}/gate-000002")
        assert answer.status_code == 409, answer.text
        assert "manifest" in answer.json()["detail"]


def test_pins(folder: Folder) -> None:
    assert folder.client.put(f"{M}/gate-000001/pin", json={"pinned": True}).json()["pinned"]
    assert folder.store.model("gate-000001").pinned
    assert not folder.client.put(f"{M}/gate-000001/pin", json={"pinned": False}).json()["pinned"]
    assert folder.client.put(f"{M}/gate-000001/pin", json={"pinned": 1}).status_code == 422


class Control:
    """A box that obeys."""

    def __init__(self) -> None:
        self.did: list[tuple[str, Mapping[str, Any], str]] = []
        self.store: Store | None = None

    def do(self, command: str, arguments: Mapping[str, Any], *, by: str) -> dict[str, Any]:
        assert self.store is not None
        self.did.append((command, dict(arguments), by))
        version = arguments.get("version") or "gate-000002"
        self.store.serve(str(version), at_utc=0.0)
        return {"warning": "watch it"}


def test_a_running_box_is_told_through_its_own_control(made: Path, tmp_path: Path) -> None:
    control = Control()
    folder = Folder(made, tmp_path / "box", control)
    control.store = folder.store
    told = folder.client.post(f"{M}/of/gate/rollback", json={}).json()
    assert told == {"camera": "gate", "before": "gate-000003", "after": "gate-000002", "warning": "watch it"}
    folder.client.post(f"{M}/gate-000003/promote", json={})
    assert control.did == [
        ("model/rollback", {"camera": "gate", "version": None}, "local"),
        ("model/promote", {"version": "gate-000003", "force": False}, "local"),
    ]
    folder.store.close()


def test_a_version_that_takes_long_is_said_to_be_on_its_way(made: Path, tmp_path: Path) -> None:
    """As `edge.live_control` answers."""

    class Slow(Control):
        def do(self, command: str, arguments: Mapping[str, Any], *, by: str) -> dict[str, Any]:
            return {"camera": "gate", "before": "gate-000003", "after": "gate-000001", "warning": "", "serves": False}

    folder = Folder(made, tmp_path / "box", Slow())
    told = folder.client.post(f"{M}/of/gate/rollback", json={"version": "gate-000001"}).json()
    assert told["after"] == "gate-000001"
    assert told["warning"] == "it is still being loaded"
    folder.store.close()


# --- out and in ---------------------------------------------------------------------------------------------------------


def bundle_of(folder: Folder, version: str = "gate-000002") -> bytes:
    answer = folder.client.get(f"{M}/{version}/bundle")
    assert answer.headers["content-disposition"] == f'attachment; filename="{version}.driftbox"'
    return answer.content


def import_(folder: Folder, data: bytes, **more: Any) -> Any:
    return folder.client.post(f"{M}/import", content=data, headers={"Content-Type": "application/octet-stream"}, **more)


def test_a_bundle_goes_out_and_comes_into_another_box_that_trusts_it(folder: Folder, made: Path, tmp_path: Path) -> None:
    other = Folder(made, tmp_path / "other")
    data = bundle_of(folder)
    assert folder.left_over() == []
    untrusted = import_(other, data)
    assert untrusted.status_code in (400, 409), untrusted.text
    KeyRing(other.root).trust(KeyRing(folder.root).public_file)
    taken = import_(other, data, params={"camera": "yard"})
    assert taken.status_code == 200, taken.text
    assert (taken.json()["camera"], taken.json()["state"]) == ("yard", "candidate")
    row = other.client.get(f"{M}/{taken.json()['version']}").json()
    assert row["origin"] == "import of gate-000002"
    assert other.serving("yard") == "yard-000001"
    assert other.left_over() == []
    other.store.close()


def test_what_is_no_bundle_leaves_nothing_behind(folder: Folder) -> None:
    before = folder.client.get(M).json()
    for data in (b"", b"PK\x05\x06" + b"\0" * 18, b"\0" * 3_000_000, bundle_of(folder)[:-50]):
        answer = import_(folder, data)
        assert 400 <= answer.status_code < 500, answer.text
    assert import_(folder, b"x", params={"camera": "../x"}).status_code == 422
    assert folder.client.post(f"{M}/import", json={"a": 1}).status_code == 415
    assert folder.left_over() == []
    assert folder.client.get(M).json() == before


def test_a_body_that_is_too_long_is_refused_unread_or_cut_off(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    announced = folder.client.post(
        f"{M}/import", content=b"", headers={"Content-Type": "application/octet-stream", "Content-Length": str(2**40)}
    )
    assert announced.status_code == 413
    assert folder.left_over() == []


def test_a_body_that_never_ends_is_cut_off(folder: Folder) -> None:
    [upload] = [one for one in UPLOADS if one.path == f"{M}/import"]
    most_bytes, sent = upload.most_bytes, 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 2**16
            yield bytes(2**16)

    object.__setattr__(upload, "most_bytes", 3 * 2**20)
    try:
        answer = import_(folder, endless())  # type: ignore[arg-type]
    finally:
        object.__setattr__(upload, "most_bytes", most_bytes)
    assert answer.status_code == 413, answer.text
    assert sent > 3 * 2**20
    assert folder.left_over() == []


def test_no_room_is_told(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.models_exchange.SPARE_MIB", 10**9)
    assert import_(folder, b"x").status_code == 507
    assert folder.client.get(f"{M}/gate-000002/bundle").status_code == 507


def test_an_unknown_or_damaged_version_is_not_exported(folder: Folder) -> None:
    assert folder.client.get(f"{M}/gate-000099/bundle").status_code == 404
    (folder.root / "models" / "gate" / "gate-000002" / "model.safetensors").write_bytes(b"no")
    assert folder.client.get(f"{M}/gate-000002/bundle").status_code == 409
    assert folder.left_over() == []


# --- who may ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "operates", "takes_in"), [(Role.VIEWER, 403, 403), (Role.OPERATOR, 200, 403), (Role.ADMIN, 200, 200)]
)
def test_roles(tmp_path: Path, role: Role, operates: int, takes_in: int) -> None:
    house = House(tmp_path)
    client = house.signed_in(role, services=Services(models=FakeModels()))
    assert client.get(M).status_code == 200
    assert client.get(f"{M}/gate-000001/bundle").status_code == operates
    assert client.post(f"{M}/of/gate/rollback", json={}).status_code == operates
    assert client.post(f"{M}/gate-000002/promote", json={}).status_code == operates
    assert client.put(f"{M}/gate-000001/pin", json={"pinned": True}).status_code == operates
    octets = {"Content-Type": "application/octet-stream"}
    assert client.post(f"{M}/import", content=b"x", headers=octets).status_code == takes_in
    house.close()
