"""Boxes that watch real RTSP cameras and hand them to each other: the real runtime, live control, gates, parcels and the controller's
pure machine; only the messages between are a dict here, so that a test can lose, double and delay them.

Who is told of frames is a `Listener` in the place of objects: it notes the camera's time of each frame, which both boxes share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from cluster.placement.handoff import Advanced, HandoffRules, advance_handoffs, begin_handoff
from cluster.placement.plan import FleetRules, carry_out, plan_placement
from cluster.types import BoxView, CameraLease, FleetState, Handoff
from configs.errors import EnvironmentLacking
from configs.schema import CameraEntry
from edge.fleet.envelope import Member
from edge.fleet.guests import FleetCameras
from edge.fleet.handoff_book import HandoffBook
from edge.fleet.handoff_box import RunningCameras
from edge.fleet.labels import following_labels
from edge.fleet.samples import Box as SampleBox
from edge.fleet.samples import Giving
from edge.inference import Shown
from edge.runtime import Watched, knob_profiles
from scheduler.fleet.codec import as_dict, decode, encode
from scheduler.fleet.types import BoxReport, CameraKey, CameraReport, Confirmation, Desired
from streams.camera import open_camera
from streams.masks import masks_from
from streams.rtsp_server import RtspServer
from streams.source import Camera
from tests.support.authority import Authority
from tests.support.live_box import CONFIG
from tests.support.live_cameras import BookedBox, ScriptedMaker

FPS, SIZE = 10.0, (128, 96)
#: No windows: nothing but watching happens.
QUIET = replace(CONFIG, window_s=3600.0, first_window_s=3600.0)


def rendered(index: int) -> np.ndarray:
    """A picture that tells its number: 16 bars, one bit each."""
    image = np.full((SIZE[1], SIZE[0], 3), 60, np.uint8)
    for bit in range(16):
        image[:, bit * 8 : bit * 8 + 8] = 230 if index >> bit & 1 else 20
    return image


class Listener:
    """In the place of `CameraObjects`."""

    def __init__(self, told: list[float]) -> None:
        self._told = told

    def start(self) -> None: ...

    def stop(self, wait_s: float = 0.0) -> None: ...

    def behind(self) -> bool:
        return False

    def on_shown(self, shown: Shown) -> None:
        assert shown.frame.camera_s is not None
        self._told.append(round(shown.frame.camera_s, 3))

    def hand_over(self, to: str, wait_s: float) -> None:
        """It knows of no objects."""

    def take_on(self, state: object, base_s: float) -> str:
        return ""


class RtspMaker(ScriptedMaker):
    """Cameras are real streams; every analysed frame is noted beside what is told."""

    def __init__(self, box: MovingBox) -> None:
        super().__init__(box)
        self._moving = box

    def make(self, entry: CameraEntry) -> Watched:
        return self._moving.listened(super().make(entry), entry)

    def _camera(self, entry: CameraEntry) -> Camera:
        return open_camera(entry.id, entry.url.resolve(), seed=len(entry.id))


class Post:
    """The controller's shelf of parcels. away: it answers nobody."""

    def __init__(self, authority: Authority) -> None:
        self._authority, self.parcels, self.away = authority, dict[str, bytes](), False

    def certificate_of(self, box: str) -> bytes:
        self._here()
        return (self._authority.folder / f"{box}.pem").read_bytes()

    def put(self, parcel: str, data: bytes) -> None:
        self._here()
        self.parcels[parcel] = data

    def get(self, parcel: str) -> bytes:
        self._here()
        if parcel not in self.parcels:
            raise EnvironmentLacking("there is no such parcel yet")
        return self.parcels[parcel]

    def remove(self, parcel: str) -> None:
        self._here()
        self.parcels.pop(parcel, None)

    def _here(self) -> None:
        if self.away:
            raise EnvironmentLacking("the controller does not answer")


class MovingBox(BookedBox):
    """A box of a fleet. told: camera times told, by the camera's home; analysed: likewise, of every frame that its worker answered.
    consents: whether samples of its cameras may leave it, guests' too; audited: its audit log of that."""

    def __init__(
        self,
        root: Path,
        name: str,
        cameras: Mapping[str, str],
        authority: Authority,
        post: Post,
        *,
        arch: str = "fake",
        fps: float = FPS,
    ) -> None:
        """cameras: id -> address; arch: of their models; fps: of the cameras."""
        self.fps = fps
        self.name, self.told, self.analysed = name, dict[str, list[float]](), dict[str, list[float]]()
        self._urls = dict(cameras)
        super().__init__(root, dict.fromkeys(cameras, arch), urls=cameras, config=QUIET)
        self.maker = RtspMaker(self)
        self.control._maker = self.maker
        for id, url in cameras.items():
            entry = self.watched[id].entry
            assert entry is not None
            real = open_camera(id, url, seed=len(id))
            self.cameras[id] = real  # type: ignore[assignment]
            self.watched[id].camera = self.watched[id].worker.camera = real
            self.watched[id] = self.listened(self.watched[id], entry)
        pair = authority.issue(name)
        self.member = Member.of_pem(
            key=pair.key.read_bytes(), certificate=pair.cert.read_bytes(), authority=authority.cert.read_bytes()
        )
        self.consents, self.audited, self._post = False, list[tuple[str, str, str]](), post
        self.labels = following_labels(
            self._giving, root / "fleet" / "labels", self.runtime, self.store, post=post, member=lambda: self.member,
            known=lambda camera: cameras_here.known(camera), require_room=lambda: None,
        )  # fmt: skip
        cameras_here = RunningCameras(
            self.runtime, self.control, self.folder, self.store, lambda entry: self.consents, self.labels
        )
        self.host = FleetCameras(name, cameras_here, HandoffBook(root), member=lambda: self.member, post=post)
        self.runtime.stand_between(self.host.through)
        self.sequence = 0

    def _giving(self) -> SampleBox:
        entries = [kept.entry for kept in self.control.cameras().cameras]
        return SampleBox(
            member=self.member, post=self._post, store=self.samples, audit=lambda *entry: self.audited.append(entry),
            utc=time.time, cameras=lambda: {entry.id: Giving(consent=self.consents, masks=masks_from(entry.masks)) for entry in entries},
        )  # fmt: skip

    def listened(self, watched: Watched, entry: CameraEntry) -> Watched:
        key = entry.id.partition("--")[2] or entry.id
        watched.objects = Listener(self.told.setdefault(key, []))  # type: ignore[assignment]
        analysed = self.analysed.setdefault(key, [])
        predict = watched.worker._analyse

        def note(frame, iteration):  # type: ignore[no-untyped-def]
            seq = predict(frame, iteration)
            if frame.camera_s is not None:
                analysed.append(round(frame.camera_s, 3))
            return seq

        watched.worker._analyse = note  # type: ignore[method-assign]
        watched.fps, watched.knobs = 2 * self.fps, knob_profiles(2 * self.fps, 0.001)  # every frame
        return watched

    def __enter__(self) -> MovingBox:
        super().__enter__()
        self.host.start()
        self.labels.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.labels.stop()
        self.host.stop()
        super().__exit__(*error)

    def report(self) -> BoxReport:
        self.sequence += 1
        own = tuple(
            CameraReport(camera=CameraKey(home=self.name, camera=id), customer="house", networks=("lan",)) for id in self._urls
        )
        told = Confirmation(term=1, version=1, cameras=self.host.words())
        return BoxReport(
            box=self.name, site="site", boot="b", sequence=self.sequence, sent_utc="", software="", capacity_pct=100.0, spare_pct=50.0,
            memory_mib=None, networks=("lan",), cameras=own, confirmation=told,
        )  # fmt: skip


class Controller:
    """The pure machine with a state, a post and boxes; messages go through JSON both ways. lost: asked before each message, with the
    box and whether it is the box's. gone: boxes of whom nothing is heard, and whose will has come."""

    def __init__(self, boxes: Mapping[str, MovingBox], post: Post, rules: HandoffRules | None = None) -> None:
        self.boxes, self.post, self.rules = dict(boxes), post, rules or HandoffRules()
        now = time.time()
        self.state = FleetState(
            term=1, boxes={b: BoxView(id=b, site="site", joined_utc_s=now, seen_utc_s=now, online=True) for b in boxes}
        )
        self.said: list[tuple[float, str]] = []
        self.lost: Callable[[str, str], bool] = lambda box, message: False
        self.gone: set[str] = set()
        self.plan: FleetRules | None = None  # None: nothing moves by itself
        self.version = 0

    def round(self) -> Advanced:
        """Hears every box, decides, tells every box."""
        now = time.time()
        views = {id: replace(view, online=id not in self.gone) for id, view in self.state.boxes.items()}
        for box in self.boxes.values():
            if box.name not in self.gone and not self.lost(box.name, "report"):
                heard = decode(BoxReport, encode(box.report()))
                views[box.name] = replace(views[box.name], report=heard, seen_utc_s=now)
        state = replace(self.state, boxes=views, parcels=frozenset(self.post.parcels))
        if self.plan is not None:
            state = carry_out(state, plan_placement(state, self.plan, now), self.plan, now)
        advanced = advance_handoffs(state, self.rules, now)
        self.state = advanced.state
        self.said += [(time.monotonic(), text) for text in advanced.said]
        self.version += 1
        for box in self.boxes.values():
            desired = Desired(
                box=box.name,
                term=1,
                version=self.version,
                made_utc="",
                expires_utc="",
                cameras=advanced.orders.get(box.name, ()),
            )
            if box.name not in self.gone and not self.lost(box.name, "desired"):
                box.host.apply(decode(Desired, encode(desired)).cameras)
        return advanced

    def restart(self) -> None:
        """All that a killed controller still has is what it has written."""
        kept = [as_dict(thing) for thing in (*self.state.leases.values(), *self.state.handoffs.values())]
        leases = [decode(CameraLease, thing) for thing in kept if "box" in thing]
        handoffs = [decode(Handoff, thing) for thing in kept if "target" in thing]
        self.state = replace(
            self.state, leases={lease.camera: lease for lease in leases}, handoffs={handoff.camera: handoff for handoff in handoffs}
        )  # fmt: skip

    def move(self, camera: CameraKey, target: str, cause: str = "move") -> None:
        self.state = begin_handoff(
            self.state, camera, target, cause=cause, reason="a test", rules=self.rules, now_utc_s=time.time()  # type: ignore[arg-type]
        )  # fmt: skip

    def phase(self, camera: CameraKey) -> str:
        return self.state.handoffs[camera].phase

    def until(self, done: Callable[[], bool], what: str, within_s: float = 180.0) -> None:
        until_s = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < until_s, (
                f"not within {within_s:g} s: {what}; {[t for _, t in self.said]}; {self._words()}"
            )
            self.round()
            time.sleep(0.02)

    def _words(self) -> object:
        return {name: box.host.words() for name, box in self.boxes.items()}


def camera_server(names: tuple[str, ...], fps: float = FPS) -> RtspServer:
    server = RtspServer()
    for name in names:
        server.add_frames(name, fps, *SIZE, rendered)
    server.start()
    return server
