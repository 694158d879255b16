"""A fleet on this machine, and what its owner does and asks: commands, requests of the fleet view, waiting, pictures."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from cluster.engines.ray_nodes import RayNodes
from fleet_scenes import reading
from fleet_scenes.stage import (
    FEW_CAMERAS,
    RUSH,
    RUSH_WINDOW,
    USUAL,
    BoxSettings,
    Cam,
    Cameras,
    config_text,
    hurried,
    record,
    times_for,
)

ROOT = Path(__file__).resolve().parents[2]
#: Longest that nothing may change of what a scene waits for. Three boxes learn on two cores here.
PATIENCE_S = 900.0
#: So often a wait says what it is for.
TELL_S = 60.0
ROUND_S = 15.0


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


class Failed(Exception):
    """A scene did not happen."""


def nothing_known(_: Any) -> str:
    """How far it is, where nobody can tell."""
    return ""


@dataclass
class Demo:
    """folder: all data; ports: of the fleet view and the broker; ray: None without a pooled training; pictures: folder, None: none are
    taken; settings: of each box, as configured now; seen: scene -> what was measured."""

    folder: Path
    ports: tuple[int, int]
    cameras: Cameras
    ray: RayNodes | None
    pictures: Path | None
    settings: dict[str, BoxSettings] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _tls: ssl.SSLContext | None = None

    # --- what an owner types ----------------------------------------------------------------------------------------------

    def driftbox(self, *words: str) -> Any:
        """A command; its JSON."""
        done = subprocess.run(
            [sys.executable, "-m", "edge", *words, "--json"], cwd=ROOT, env=_environment(), capture_output=True, text=True
        )
        if done.returncode:
            raise Failed(f"driftbox {' '.join(words[:3])} ended with {done.returncode}: {(done.stdout + done.stderr)[-600:]}")
        return json.loads(done.stdout or "null")

    def fleet(self, *words: str) -> Any:
        """A command on the controller's data folder."""
        return self.driftbox("fleet", *words, "--data-dir", str(self.control))

    def start(self, name: str, *words: str) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        self.running[name] = subprocess.Popen(
            [sys.executable, "-m", "edge", *words], cwd=ROOT, env=_environment(), stdout=log, stderr=log, start_new_session=True
        )

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)

    def end_all(self) -> None:
        for name in reversed(list(self.running)):
            self.end(name)

    @property
    def control(self) -> Path:
        return self.folder / "controller"

    # --- boxes ------------------------------------------------------------------------------------------------------------

    def config_of(self, box: str, settings: BoxSettings) -> Path:
        """Written down; in force when the box is started next."""
        self.settings[box] = settings
        path = self.folder / f"{box}.yaml"
        path.write_text(config_text(box, self.folder / box, self.cameras.of(box), settings), encoding="utf-8")
        return path

    def start_box(self, box: str) -> None:
        self.start(box, "run", str(self.folder / f"{box}.yaml"))

    def is_rush(self) -> bool:
        return any(settings.window == RUSH_WINDOW for settings in self.settings.values())

    def end_rush(self) -> None:
        """The rush hour is over: north goes on as a box like the others, with the two cameras that it has usually."""
        if not self.is_rush():
            return
        say("the rush hour ends: box north begins anew as large as the others, with two cameras")
        self.end("north")
        self.cameras.show(USUAL, "day")
        for cam in set(RUSH["north"]) - set(USUAL["north"]):
            self.pin("north", cam.id, "")
        self.config_of("north", BoxSettings())
        self.start_box("north")
        self.pin_north()
        self.wait("every box reports its cameras", lambda state: reading.camera_count(state) == count_of(USUAL))

    def pin_north(self) -> None:
        """north's cameras stay there, or the fleet would see that they are better off elsewhere."""
        for cam in self.cameras.of("north"):
            self.wait(f"north reports {cam.id}", partial(reading.is_there, box="north", camera=cam.id))
            self.pin("north", cam.id, "north")

    def pin(self, home: str, camera: str, box: str) -> None:
        self.put(f"cameras/{home}/{camera}/pin", {"box": box})

    # --- what a person does in the fleet view ----------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        answer = httpx.get(f"https://127.0.0.1:{self.ports[0]}/api/v1/fleet/{path}", verify=self._trusted(), timeout=30)
        answer.raise_for_status()
        return answer.json()

    def put(self, path: str, body: dict[str, Any], *, method: str = "PUT") -> None:
        url = f"https://127.0.0.1:{self.ports[0]}/api/v1/fleet/{path}"
        answer = httpx.request(method, url, json=body, verify=self._trusted(), timeout=30)
        if answer.is_error:
            raise Failed(f"the controller refused {path}: {answer.text[:200]}")

    def wait(
        self, what: str, there: Callable[[dict[str, Any]], Any], *, of: str = "state",
        how_far: Callable[[dict[str, Any]], str] = nothing_known, patience_s: float = PATIENCE_S,
    ) -> Any:  # fmt: skip
        """The first true answer to a question about what the controller tells. how_far: in words; as long as they change it is waited
        on, so a busy machine takes longer and does not fail. Raises Failed when nothing has changed for `patience_s`."""
        began_s = moved_s = time.monotonic()
        told_s, far = began_s, ""
        while True:
            self._all_run()
            with contextlib.suppress(httpx.HTTPError, FileNotFoundError):  # it is not there yet, or not at the moment
                answer = self.get(of)
                if found := there(answer):
                    return found
                now_far = how_far(answer)
                if now_far != far:
                    far, moved_s = now_far, time.monotonic()
            now_s = time.monotonic()
            if now_s - moved_s > patience_s:
                raise Failed(f"nothing new for {patience_s:.0f} s: {what}" + (f" ({far})" if far else ""))
            if now_s - told_s > TELL_S:
                told_s = now_s
                say(f"... {now_s - began_s:.0f} s, waiting: {what}" + (f" ({far})" if far else ""))
            time.sleep(0.5)

    def _all_run(self) -> None:
        for name, process in self.running.items():
            if process.poll() is not None:
                raise Failed(f"{name} ended with {process.returncode}; see {self.folder / name}.log")

    def picture(self, name: str, hash: str, ready: str) -> None:
        """A page of the fleet view as it stands now, NAME.png. hash: of the page; ready: a selector of what must be on it."""
        if self.pictures is None:
            return
        from PIL import Image
        from playwright.sync_api import Error, sync_playwright

        self.pictures.mkdir(parents=True, exist_ok=True)
        path = self.pictures / f"{name}.png"
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
                )
                page = browser.new_page(viewport={"width": 1200, "height": 900}, ignore_https_errors=True)
                page.set_default_timeout(120_000)
                page.goto(f"https://127.0.0.1:{self.ports[0]}/{hash}")
                page.wait_for_selector(ready)
                page.screenshot(path=path, animations="disabled")
                browser.close()
            colours = Image.open(path).convert("RGB").quantize(64, dither=Image.Dither.NONE)
            colours.save(path, optimize=True)  # a third of the size
        except Error as error:  # a scene does not fail for want of its picture
            say(f"no picture {name}: {error.message.splitlines()[0]}")

    def _trusted(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=str(self.control / "ca" / "ca.crt"))
        return self._tls


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "YOLO_OFFLINE": "1"}


def count_of(cams: Mapping[str, tuple[Cam, ...]]) -> int:
    return sum(map(len, cams.values()))


# --- setting it up ------------------------------------------------------------------------------------------------------


def ray_nodes() -> RayNodes:
    """Three nodes. Ray gives a node 30 s to begin, which is little on a busy machine: it is tried again."""
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "60")
    nodes = RayNodes()
    for number in range(3):
        for left in (2, 1, 0):
            try:
                nodes.add(cpus=1, labels={"driftbox/box": f"node{number}"})
                break
            except Exception as error:  # Ray has no type of its own for it
                if not left:
                    nodes.close()
                    raise Failed(f"Ray's node {number} did not begin: {error}") from error
    return nodes


def set_up(demo: Demo, *, rush: bool) -> None:
    """A controller, three boxes that join it. rush: north is small and has the four cameras of the rush hour, profiled."""
    https, broker = demo.ports
    demo.start(
        "controller", "fleet", "serve", "--data-dir", str(demo.control), "--host", "127.0.0.1", "--name", "127.0.0.1",
        "--port", str(https), "--broker-port", str(broker), "--round-s", str(ROUND_S), "--no-login",
    )  # fmt: skip
    demo.wait("a controller is in charge", lambda status: status["in_charge"], of="status")
    for box in USUAL:
        code = demo.fleet("boxes", "invite", "--box", box)["code"]
        config = str(demo.config_of(box, BoxSettings()))
        demo.driftbox("fleet", "join", f"https://127.0.0.1:{https}", "--code", code, "--config", config)
        say(f"box {box} has joined")
    if rush:
        begin_rush(demo)


def start_boxes(demo: Demo) -> None:
    """At the same time: the first shares are then those of the whole fleet."""
    for box in USUAL:
        demo.start_box(box)
    demo.pin_north()
    cams = RUSH if demo.is_rush() else USUAL
    demo.wait("every box reports its cameras", lambda state: reading.camera_count(state) == count_of(cams))


#: Seconds of a camera's footage that it is profiled on.
CLIP_S = 12.0


def begin_rush(demo: Demo) -> None:
    """north is too small for its four cameras, whatever this machine is."""
    capacity_pct = too_small_pct(demo)
    times = times_for(capacity_pct)
    if times > 1:
        say(
            f"this machine is quick: the cameras of the rush hour show {times} times as many frames of streets {times} times as quick"
        )
        demo.cameras.show({**USUAL, "north": hurried(RUSH, times)["north"]}, "day")
    demo.config_of("north", BoxSettings(capacity_pct=capacity_pct * times, window=RUSH_WINDOW))


def too_small_pct(demo: Demo) -> int:
    """Profiles north's cameras as an owner does, on their own footage and this machine; the capacity that is too small for all."""
    needs_pct = []
    for cam in demo.cameras.of("north"):
        video = demo.folder / f"{cam.id}.mp4"
        record(cam, video, seconds=CLIP_S)
        config = str(demo.folder / "north.yaml")
        made = demo.driftbox("profile", cam.id, config, "--video", str(video), "--clip-s", f"{CLIP_S:g}", "--exhaustive")
        need_pct, kept = reading.profile_of(made)
        say(f"profile of north/{cam.id}: {need_pct:.1f} pct for every frame; quality {reading.told_numbers(kept)}")
        needs_pct.append(need_pct)
        video.unlink()
    return max(1, round(FEW_CAMERAS * sum(needs_pct) / len(needs_pct)))
