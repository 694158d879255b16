"""Who is asked for samples, and the training service's parcels in the controller's own folder."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cluster.controller.pooled import FolderPost, Wanted, _member, asked, bundle_of, offered_to
from cluster.controller.serve import FleetFolder
from cluster.engines.local import LocalEngine
from cluster.escher.library import Escher
from cluster.escher.uses import SHARE, customer
from cluster.riffle.gang import held_gang
from configs.errors import EnvironmentLacking, UsageError
from edge.clock import SystemClock
from scheduler.fleet.types import CameraKey, CameraReport
from scheduler.types import RetrainConfig

CONFIG = RetrainConfig(name="night")


def camera(
    name: str, *, home: str = "north", customer: str = "acme", arch: str = "tinydet-edge", consent: bool = True
) -> CameraReport:
    return CameraReport(camera=CameraKey(home=home, camera=name), customer=customer, arch=arch, consent=consent)


def wanted(**more: object) -> Wanted:
    return Wanted(name="night", arch="tinydet-edge", config=CONFIG, **more)  # type: ignore[arg-type]


SEEN = [
    ("north", camera("gate")),
    ("north", camera("dock", customer="bolt")),
    ("north", camera("hall", consent=False)),
    ("south", camera("lane", home="south")),
    ("south", camera("yard", home="south", arch="yolo11n")),
]


def test_whoever_consents_is_asked_where_the_camera_is_watched() -> None:
    found = {r.box: [str(key) for key in r.cameras] for r in asked(SEEN, wanted(), "night-1")}
    assert found == {"north": ["north/dock", "north/gate"], "south": ["south/lane"]}
    request = asked(SEEN, wanted(), "night-1")[0]
    assert (request.id, request.trainer, request.arch) == ("night-1", "fleet", "tinydet-edge")


def test_only_a_customers_or_a_boxs_cameras() -> None:
    assert [str(k) for r in asked(SEEN, wanted(customer="bolt"), "n") for k in r.cameras] == ["north/dock"]
    assert [r.box for r in asked(SEEN, wanted(boxes=("south",)), "n")] == ["south"]


def test_the_model_is_offered_to_those_it_is_for_also_where_no_samples_came_from() -> None:
    cameras = [one for _, one in SEEN]
    assert [str(key) for key in offered_to(cameras, wanted())] == ["north/dock", "north/gate", "north/hall", "south/lane"]
    assert [str(key) for key in offered_to(cameras, wanted(customer="acme"))] == ["north/gate", "north/hall", "south/lane"]
    assert [str(key) for key in offered_to(cameras, wanted(customer="bolt"))] == ["north/dock"]


@pytest.mark.parametrize("more", [{"customer": "nobody"}, {"boxes": ("west",)}])
def test_nobody_who_may_give_is_said_with_what_to_do(more: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="may give samples") as refused:
        asked(SEEN, wanted(**more), "n")
    assert "fleet.consent" in refused.value.remedy


def test_a_camera_that_does_not_consent_is_never_asked() -> None:
    silent = [(box, camera(one.camera.camera, home=one.camera.home, consent=False)) for box, one in SEEN]
    with pytest.raises(UsageError):
        asked(silent, wanted(), "n")


def test_parcels_lie_in_the_controllers_folder(tmp_path: Path) -> None:
    folder = FleetFolder(tmp_path, SystemClock())
    try:
        post = FolderPost(folder)
        with pytest.raises(EnvironmentLacking) as missing:
            post.get("fleet.samples.night.north.end")
        assert missing.value.code == "not_found"
        post.put("north.collect.night", b"sealed")
        post.put("north.collect.night", b"sealed")
        assert post.get("north.collect.night") == b"sealed"
        assert "north.collect.night" in folder.parcels.ids()
        with pytest.raises(UsageError):
            post.certificate_of("north")
        with pytest.raises(EnvironmentLacking, match="no certificate yet"):
            _member(folder)
        folder.authority.server(["127.0.0.1"], now_utc_s=folder.clock.utc_s())
        assert _member(folder).box == "fleet"
    finally:
        folder.close()


# --- what a worker asks for -------------------------------------------------------------------------------------------


def test_workers_ask_for_what_cameras_leave_where_the_engine_knows_it() -> None:
    """CPUs of the engine know nothing of cameras: all nodes have as many, and only one has room."""
    engine = LocalEngine({"full": {"CPU": 8}, "free": {"CPU": 8}}, threads=False)
    engine.set_resource(SHARE, 40, "full")
    engine.set_resource(SHARE, 320, "free")
    bundle = bundle_of(engine.nodes(), wanted(cpus=1.5))
    assert dict(bundle) == {SHARE: 150}
    now = iter(range(10_000))
    with held_gang(
        Escher(engine), "night", workers=2, bundle=bundle, now=lambda: 0.1 * next(now), wait=lambda _: None
    ) as demands:
        left = {node.id: node.free[SHARE] for node in engine.nodes()}
        assert left == {"full": 40, "free": 20}, "both places are where there is room, and cameras keep theirs"
        assert len(demands) == 1
    assert {node.id: node.free[SHARE] for node in engine.nodes()} == {"full": 40, "free": 320}


def test_no_two_workers_are_on_one_box_where_that_is_asked_for() -> None:
    engine = LocalEngine({"small": {"CPU": 8}, "large": {"CPU": 8}}, threads=False)
    engine.set_resource(SHARE, 100, "small")
    engine.set_resource(SHARE, 400, "large")
    now = iter(range(100_000))

    def gang(workers: int) -> AbstractContextManager[object]:
        return held_gang(
            Escher(engine), "night", workers=workers, bundle=bundle_of(engine.nodes(), wanted(share_pct=70)),
            now=lambda: 0.1 * next(now), wait=lambda _: None, patience_s=20, one_per_box=True,
        )  # fmt: skip

    with gang(2):
        assert {node.id: node.free[SHARE] for node in engine.nodes()} == {"small": 30, "large": 330}
    with pytest.raises(EnvironmentLacking, match="on boxes of their own could not be had together"), gang(3):
        pytest.fail("there are two boxes")
    assert {node.id: node.free[SHARE] for node in engine.nodes()} == {"small": 100, "large": 400}


def test_a_customers_workers_stay_within_its_share_where_that_is_asked_for() -> None:
    engine = LocalEngine({"a": {"CPU": 8}, "b": {"CPU": 8}}, threads=False)
    for node, granted_pct in (("a", 50), ("b", 200)):
        engine.set_resource(SHARE, 300, node)
        engine.set_resource(customer("acme"), granted_pct, node)
    bundle = bundle_of(engine.nodes(), wanted(share_pct=80, customer="acme", within_share=True))
    now = iter(range(100_000))

    def gang(workers: int) -> AbstractContextManager[object]:
        return held_gang(
            Escher(engine),
            "night",
            workers=workers,
            bundle=bundle,
            now=lambda: 0.1 * next(now),
            wait=lambda _: None,
            patience_s=20,
        )

    with gang(2):
        assert {node.id: node.free[SHARE] for node in engine.nodes()} == {"a": 300, "b": 140}
    with pytest.raises(EnvironmentLacking, match="could not be had together"), gang(3):
        pytest.fail("240 pct are more than acme was granted")


def test_a_share_of_which_nobody_told_is_refused() -> None:
    engine = LocalEngine({"a": {"CPU": 8}}, threads=False)
    with pytest.raises(EnvironmentLacking, match="no node of the engine says"):
        bundle_of(engine.nodes(), wanted(customer="acme", within_share=True))
    with pytest.raises(UsageError, match="whose share"):
        wanted(within_share=True)


def test_a_gang_that_cameras_leave_no_room_for_is_not_begun() -> None:
    engine = LocalEngine({"a": {"CPU": 8}, "b": {"CPU": 8}}, threads=False)
    for node in ("a", "b"):
        engine.set_resource(SHARE, 60, node)
    now = iter(range(100_000))
    bundle = bundle_of(engine.nodes(), wanted(share_pct=70))
    gang = held_gang(
        Escher(engine), "night", workers=2, bundle=bundle, now=lambda: 0.1 * next(now), wait=lambda _: None, patience_s=20
    )
    with pytest.raises(EnvironmentLacking, match="could not be had together"), gang:
        pytest.fail("there is no room")


def test_a_cluster_beside_the_fleet_is_asked_for_cpus() -> None:
    engine = LocalEngine({"a": {"CPU": 8}})
    assert dict(bundle_of(engine.nodes(), wanted(cpus=2))) == {"CPU": 2}
    with pytest.raises(EnvironmentLacking, match="no node of the engine says"):
        bundle_of(engine.nodes(), wanted(share_pct=50))
