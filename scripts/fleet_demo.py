"""A whole fleet on one machine: `make fleet-demo`, or `python scripts/fleet_demo.py [--scenes A,B] [--keep DIR] [--pictures DIR]`.

A controller with its own broker, three boxes in processes of their own, rendered cameras over real RTSP, and Ray with three nodes for
the pooled training. Everything is done by the commands and requests of an owner. Four scenes, each with what is looked at to tell that
it happened; the exit code is 1 when one did not:

    shares     a customer misses its goal with its part by weight; what it needs is learned, shares move, the goal is met
    migration  a box is emptied: its camera is watched elsewhere before it is let go
    pooling    night falls, which no model knows; boxes give samples, a model is trained on Ray and offered box by box, and each camera's
               gate judges it on labels of its own
    takeover   a box is killed (SIGKILL): its cameras are watched by others
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cluster.engines.ray_nodes import RayNodes  # noqa: E402
from streams.rendered.serve import CameraScript  # noqa: E402
from streams.rtsp_process import RtspServerProcess  # noqa: E402
from streams.samples import SampleStore  # noqa: E402

#: Longest that a step of a scene is waited for. Three boxes learn on two cores here.
PATIENCE_S = 600.0
ROUND_S, WINDOW_S = 15.0, 60.0
#: Quality that customers are promised, at first and then. Both cameras of box north want all of it: the higher goal gets more there.
GOALS = {"acme": (0.4, 0.8), "bolt": (0.85, 0.6)}
#: bolt pays for more: until something is learned, shares are parts by weight.
WEIGHTS = {"acme": 1.0, "bolt": 30.0}
#: Labelled pictures of the night that a model is trained on: so many together, and so many of every camera.
NIGHT_PICTURES, LEAST_OF_EACH = 60, 4


@dataclass(frozen=True, kw_only=True)
class Cam:
    """A camera of the demonstration. fps: analysed."""

    id: str
    customer: str
    kind: str
    seed: int
    fps: float = 5.0


CAMERAS = {
    "north": (
        Cam(id="gate", customer="acme", kind="street", seed=101, fps=10.0),
        Cam(id="dock", customer="bolt", kind="yard", seed=102, fps=10.0),
    ),
    "south": (Cam(id="lane", customer="acme", kind="street", seed=103),),
    "east": (Cam(id="hall", customer="bolt", kind="hall", seed=104),),
}
CAPACITY_PCT = {"north": 20, "south": 60, "east": 60}


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


class Failed(Exception):
    """A scene did not happen."""


@dataclass
class Demo:
    """folder: all data; ports: of the fleet view and the broker; ray: None without a pooled training; pictures: folder, None: none are
    taken; seen: scene -> what was measured."""

    folder: Path
    ports: tuple[int, int]
    cameras: Cameras
    ray: RayNodes | None
    pictures: Path | None
    seen: dict[str, str] = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _tls: ssl.SSLContext | None = None

    def driftbox(self, *words: str, check: bool = True) -> Any:
        """A command, as an owner types it; its JSON."""
        done = subprocess.run(
            [sys.executable, "-m", "edge", *words, "--json"], cwd=ROOT, env=_environment(), capture_output=True, text=True
        )
        if done.returncode and check:
            raise Failed(f"driftbox {' '.join(words[:3])} ended with {done.returncode}: {(done.stdout + done.stderr)[-600:]}")
        return json.loads(done.stdout or "null")

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

    def get(self, path: str) -> Any:
        """Of the controller's API, as the fleet view asks it."""
        answer = httpx.get(f"https://127.0.0.1:{self.ports[0]}/api/v1/fleet/{path}", verify=self._trusted(), timeout=30)
        answer.raise_for_status()
        return answer.json()

    def put(self, path: str, body: dict[str, Any]) -> None:
        """To the controller's API, as the fleet view's buttons do."""
        url = f"https://127.0.0.1:{self.ports[0]}/api/v1/fleet/{path}"
        answer = httpx.put(url, json=body, verify=self._trusted(), timeout=30)
        if answer.is_error:
            raise Failed(f"the controller refused {path}: {answer.text[:200]}")

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
            Image.open(path).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(
                path, optimize=True
            )  # a third of the size
        except Error as error:  # a scene does not fail for want of its picture
            say(f"no picture {name}: {error.message.splitlines()[0]}")

    def _trusted(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=str(self.control / "ca" / "ca.crt"))
        return self._tls

    def wait(
        self, what: str, there: Callable[[dict[str, Any]], Any], *, of: str = "state", within_s: float = PATIENCE_S
    ) -> Any:
        """The first true answer to a question about what the controller tells."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            for name, process in self.running.items():
                if process.poll() is not None:
                    raise Failed(f"{name} ended with {process.returncode}; see {self.folder / name}.log")
            with contextlib.suppress(httpx.HTTPError, FileNotFoundError):  # it is not there yet, or not at the moment
                if found := there(self.get(of)):
                    return found
            time.sleep(0.5)
        raise Failed(f"not within {within_s:.0f} s: {what}")

    @property
    def control(self) -> Path:
        return self.folder / "controller"


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "YOLO_OFFLINE": "1"}


# --- setting it up ------------------------------------------------------------------------------------------------------


class Cameras:
    """The rendered cameras, served by a process of its own. They come back at the same addresses with another light."""

    def __init__(self) -> None:
        self._server: RtspServerProcess | None = None

    def turn(self, condition: str) -> None:
        """It is day, or night, ..., from now on (`streams.rendered.conditions`). Every camera loses its connection for a moment."""
        scripts = [
            CameraScript(id=f"{box}-{cam.id}", kind=cam.kind, seed=cam.seed, schedule=((0.0, condition),), fps=10.0)
            for box, cams in CAMERAS.items()
            for cam in cams
        ]
        port = self._server.port if self._server else 0
        self.stop()
        self._server = RtspServerProcess([script.mount() for script in scripts], port=port)
        self._server.start()

    def url(self, box: str, camera: str) -> str:
        assert self._server is not None
        return self._server.url(f"{box}-{camera}")

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


def config_of(demo: Demo, box: str) -> Path:
    cameras = "\n".join(
        f'  - {{id: {cam.id}, url: "{demo.cameras.url(box, cam.id)}", fps: {cam.fps:g}, customer: {cam.customer}, networks: [yard]}}'
        for cam in CAMERAS[box]
    )
    path = demo.folder / f"{box}.yaml"
    # min_gain: small boxes, for which a retraining of their own is not worth it unless it brings very much
    path.write_text(
        f"""box: {{id: {box}, site: yard, data_dir: "{demo.folder / box}"}}
gpus: {{capacity_pct: {CAPACITY_PCT[box]}}}
window:
  {{seconds: {WINDOW_S:g}, first_seconds: 20, label_frames: 24, gate_frames: 8, sample_fps: 1.0, prep_pct: 20, profile_epochs: 1,
    profile_data_frac: 0.2}}
scheduler: {{min_gain: 0.5, drift: {{enabled: false}}}}
web: {{enabled: false}}
models: {{serving: trained, retrain: [{{name: short, epochs: 4}}], catalog: {{}}}}
fleet: {{networks: [yard], consent: true}}
cameras:
{cameras}
""",
        encoding="utf-8",
    )
    return path


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


def set_up(demo: Demo) -> None:
    https, broker = demo.ports
    data = ("--data-dir", str(demo.control))
    demo.start(
        "controller", "fleet", "serve", *data, "--host", "127.0.0.1", "--name", "127.0.0.1", "--port", str(https),
        "--broker-port", str(broker), "--round-s", str(ROUND_S), "--no-login",
    )  # fmt: skip
    demo.wait("a controller is in charge", lambda status: status["in_charge"], of="status")
    promise(demo, 0)
    for box in CAMERAS:
        code = demo.driftbox("fleet", "boxes", "invite", "--box", box, *data)["code"]
        config = str(config_of(demo, box))
        demo.driftbox("fleet", "join", f"https://127.0.0.1:{https}", "--code", code, "--config", config)
        say(f"box {box} has joined")
    for box in CAMERAS:  # at the same time: the first shares are then those of the whole fleet
        demo.start(box, "run", str(demo.folder / f"{box}.yaml"))
    for cam in CAMERAS["north"]:  # pinned, or the fleet would see that they are better off elsewhere
        demo.wait(f"north reports {cam.id}", partial(is_there, box="north", camera=cam.id))
        demo.put(f"cameras/north/{cam.id}/pin", {"box": "north"})
    all_cameras = sum(map(len, CAMERAS.values()))
    demo.wait("all boxes report their cameras", lambda state: sum(len(cameras_of(b)) for b in state["boxes"]) == all_cameras)


def promise(demo: Demo, which: int) -> None:
    """Each customer's first goal, or its second."""
    for id, goals in GOALS.items():
        words = ("--goal", str(goals[which]), "--measure", "quality", "--weight", str(WEIGHTS[id]))
        demo.driftbox("fleet", "customers", "add", id, *words, "--data-dir", str(demo.control))


def cameras_of(box: dict[str, Any]) -> list[dict[str, Any]]:
    return box["report"]["cameras"] if box["report"] else []


def is_there(state: dict[str, Any], box: str, camera: str) -> bool:
    return any(c["camera"]["camera"] == camera for b in state["boxes"] if b["id"] == box for c in cameras_of(b))


def owner_of(state: dict[str, Any], camera: str) -> str:
    """The box that watches a camera (HOME/CAMERA): its home, unless somebody else holds its lease."""
    home, _, id = camera.partition("/")
    return next((lease["box"] for lease in state["leases"] if lease["camera"] == {"home": home, "camera": id}), home)


def on_its_way(state: dict[str, Any], camera: str) -> bool:
    home, _, id = camera.partition("/")
    return any(
        handoff["camera"] == {"home": home, "camera": id} and handoff["phase"] not in ("done", "undone")
        for handoff in state["handoffs"]
    )


# --- scenes -------------------------------------------------------------------------------------------------------------


def shares(demo: Demo) -> str:
    """bolt is promised much and acme little; then it is the other way round. Only what was measured on labels counts, not what
    stands for it."""
    course, goal = "view/customers/acme/course", GOALS["acme"][1]
    first = demo.wait("acme's quality is measured", lambda found: newest(found, "value"), of=course)
    before = demo.wait("shares", given)
    say(f"{told(before)}; acme's quality {first:.2f}, which is to be {goal:g}")
    if first >= goal:
        raise Failed(f"acme has {first:.2f} already: nothing is to be moved here")
    promise(demo, 1)
    met = demo.wait("acme's new goal is met", lambda found: above(newest(found, "value"), goal), of=course)
    grants = demo.get("state")["grants"]
    after = {g["customer"]: g["share_pct"] for g in grants}
    reason = next(g["reason"] for g in grants if g["customer"] == "acme")
    say(f"{told(after)}; {reason}")
    demo.picture("customer", "#/customers/acme", ".plot")
    moved = f"acme: quality {first:.2f} with {before['acme']:.1f} pct, {met:.2f} with {after['acme']:.1f} pct; goal {goal:g}"
    if after["acme"] <= before["acme"]:
        raise Failed(f"the goal was not met by moved shares: {moved}")
    return moved


def given(state: dict[str, Any]) -> dict[str, float] | None:
    """Every customer's share."""
    found = {g["customer"]: float(g["share_pct"]) for g in state["grants"]}
    return found if found.keys() == GOALS.keys() else None


def newest(course: dict[str, Any], name: str) -> float | None:
    return float(course[name][-1][1]) if course[name] else None


def above(value: float | None, least: float) -> float | None:
    return value if value is not None and value >= least else None


def told(pct: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.1f} pct" for name, share in sorted(pct.items()))


def migration(demo: Demo) -> str:
    """north is emptied: its cameras are watched elsewhere before it lets them go."""
    data = ("--data-dir", str(demo.control))
    if owner_of(demo.get("state"), "north/gate") != "north":
        raise Failed("gate is not watched by north, which is to be emptied")
    began_utc = time.time()
    for cam in CAMERAS["north"]:
        demo.put(f"cameras/north/{cam.id}/pin", {"box": ""})
    demo.driftbox("fleet", "drain", "north", *data)
    owner = demo.wait("gate is watched elsewhere", lambda state: moved_to(state, "north/gate", "north"))
    rows = demo.get("view/history?camera=north/gate")["placements"]
    at_utc_s = {row["phase"]: row["at_utc_s"] for row in reversed(rows) if row["at_utc_s"] >= began_utc}
    if not {"switch", "done"} <= at_utc_s.keys():
        raise Failed(f"the history does not tell how gate moved: {sorted(at_utc_s)}")
    demo.wait(f"gate is live on {owner}", lambda state: is_live(state, owner, "north", "gate"))
    demo.picture("history", "#/history", "h2:has-text('Rounds')")
    demo.driftbox("fleet", "drain", "north", "--off", *data)
    done_s, switch_s = at_utc_s["done"] - began_utc, at_utc_s["done"] - at_utc_s["switch"]
    return f"north/gate is watched by {owner}: {done_s:.1f} s after the wish, {switch_s:.1f} s from the switch to its end"


def moved_to(state: dict[str, Any], camera: str, source: str) -> str | None:
    found = owner_of(state, camera)
    return found if found != source and not on_its_way(state, camera) else None


def is_live(state: dict[str, Any], box: str, home: str, camera: str) -> bool:
    report = next(b for b in state["boxes"] if b["id"] == box)
    return any(c["camera"] == {"home": home, "camera": camera} and c["state"] == "live" for c in cameras_of(report))


def takeover(demo: Demo) -> str:
    """The box that watches lane dies without a word; a standby has what it needs."""
    demo.wait("lane has a standby", lambda state: any(
        lease["camera"] == {"home": "south", "camera": "lane"} and lease["standby"] for lease in state["leases"]
    ))  # fmt: skip
    time.sleep(10.0)  # settings and model reach the standby
    owner = owner_of(demo.get("state"), "south/lane")
    demo.end(owner, signal.SIGKILL)
    began_s = time.monotonic()
    say(f"box {owner} was killed")
    heir = demo.wait("another box watches lane", lambda state: moved_to(state, "south/lane", owner))
    demo.wait(f"lane is live on {heir}", lambda state: is_live(state, heir, "south", "lane"))
    took_s = time.monotonic() - began_s
    demo.picture("takeover", "#/boxes", f"td:has-text('{heir}'), a:has-text('{heir}')")
    return f"south/lane is watched by {heir} {took_s:.1f} s after {owner} was killed"


def pooling(demo: Demo) -> str:
    """Boxes whose operators consent give samples; a model is trained on Ray, offered to one box after another, and each camera's gate
    judges it on labels of its own."""
    assert demo.ray is not None
    data = ("--data-dir", str(demo.control))
    demo.cameras.turn("night")
    since_utc = time.time()
    say("night falls")
    key = demo.driftbox("fleet", "key", *data)["file"]
    for box in demo.running.keys() - {"controller"}:
        demo.driftbox("models", "trust", key, "--data-dir", str(demo.folder / box))
    pictures = demo.wait("there are labels of the night", lambda state: night_pictures(demo, state, since_utc))
    say(f"labelled pictures of the night: {', '.join(f'{camera} {count}' for camera, count in pictures.items())}")
    say(f"quality at night: {qualities(demo.get('state'))}")
    made = demo.driftbox(
        "fleet", "train", "night", "--arch", "tinydet-edge", "--epochs", "8", "--batch", "4", "--lr", "0.002", "--workers", "2",
        "--ray", demo.ray.settings.address, "--soak-min", "0", *data,
    )  # fmt: skip
    losses = f"{made['losses'][0]:.2f} to {made['losses'][-1]:.2f}"
    say(f"trained on {made['pictures']} pictures of {', '.join(made['boxes'])}; loss {losses}")
    row = demo.wait("every gate has judged, box by box", ended, of="view")
    for decision in reversed(row["decisions"]):
        say(f"rollout: {decision['what']}: {decision['reason']}")
    words = judged(demo.get("state"))
    say(f"quality at night now: {qualities(demo.get('state'))}")
    demo.picture("models", "#/models", ".way")
    demo.picture("boxes", "#/boxes", "td")
    serving = [word for word in words if " serving" in word]
    if not serving:
        raise Failed(f"no gate let the model in: {'; '.join(words)}")
    told = f"{made['pictures']} pictures of {len(made['boxes'])} boxes, loss {losses}"
    return f"{told}; {len(serving)} of {len(words)} gates let it in: {', '.join(words)}"


def night_pictures(demo: Demo, state: dict[str, Any], since_utc: float) -> dict[str, int] | None:
    """Labelled training pictures since then, per camera; None: too few."""
    found = {
        f"{camera['camera']['home']}/{camera['camera']['camera']}": taken_since(demo, box["id"], camera["camera"], since_utc)
        for box in state["boxes"] if box["online"] for camera in cameras_of(box)
    }  # fmt: skip
    enough = found and sum(found.values()) >= NIGHT_PICTURES and min(found.values()) >= LEAST_OF_EACH
    return found if enough else None


def taken_since(demo: Demo, box: str, camera: dict[str, str], since_utc: float) -> int:
    store = SampleStore(demo.folder / box / "samples")
    local = camera["camera"] if camera["home"] == box else f"{camera['home']}--{camera['camera']}"
    refs = store.usable(local, store.windows(local), "train")
    return sum((store.root / f"{ref.name}.jpg").stat().st_mtime >= since_utc for ref in refs)


def qualities(state: dict[str, Any]) -> str:
    return ", ".join(
        f"{camera['camera']['home']}/{camera['camera']['camera']} {camera['quality']:.2f}"
        for box in state["boxes"] for camera in cameras_of(box) if camera["quality"] is not None
    )  # fmt: skip


def ended(view: dict[str, Any]) -> dict[str, Any] | None:
    """The rollout, once it goes no further."""
    return next((dict(row) for row in view["rollouts"] if row["id"] == "night" and row["state"] != "running"), None)


def judged(state: dict[str, Any]) -> list[str]:
    """How each camera's gate found."""
    return [
        f"{word['camera']['home']}/{word['camera']['camera']} {word['stage']}"
        + (f" {word['after']:.2f}" if word["after"] is not None else "")
        + (f" ({word['problem']})" if word["stage"] in ("refused", "failed") else "")
        for box in state["boxes"] if box["report"]
        for word in box["report"]["confirmation"]["offers"]
    ]  # fmt: skip


SCENES: dict[str, Callable[[Demo], str]] = {"shares": shares, "migration": migration, "pooling": pooling, "takeover": takeover}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--keep", type=Path, help="folder for all data, kept afterwards")
    parser.add_argument("--scenes", default=",".join(SCENES), help="which, in this order")
    parser.add_argument("--port", type=int, default=18470, help="of the fleet view; the broker takes the next one")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="pictures of the fleet view, by Chromium")
    parser.add_argument("--stay", action="store_true", help="leave everything running until Ctrl-C, to look around")
    given = parser.parse_args()
    names = given.scenes.split(",")
    if unknown := [name for name in names if name not in SCENES]:
        parser.error(f"no scene {', '.join(unknown)}: {', '.join(SCENES)}")
    folder = given.keep or Path(tempfile.mkdtemp(prefix="driftbox-fleet-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    cameras, nodes = Cameras(), None
    failed: dict[str, str] = {}
    demo: Demo | None = None
    try:
        if "pooling" in names:
            nodes = ray_nodes()
            say(f"Ray at {nodes.settings.address} has three nodes")
        cameras.turn("day")
        demo = Demo(folder.resolve(), (given.port, given.port + 1), cameras, nodes, given.pictures)
        set_up(demo)
        say(f"fleet view: https://127.0.0.1:{given.port}/")
        for name in names:
            play(demo, name, failed)
        if given.stay:
            say("everything goes on until Ctrl-C")
            signal.pause()
    except Failed as failure:
        say(f"this did not happen: {failure}")
        failed["set-up"] = str(failure)
    except KeyboardInterrupt:
        pass
    finally:
        if demo is not None:
            demo.end_all()
        cameras.stop()
        if nodes is not None:
            nodes.close()
    seen = demo.seen if demo else {}
    for name in names:
        print(f"{name:10}  {seen.get(name) or 'NOT SHOWN: ' + failed.get(name, 'not reached')}")
    if failed or given.keep:
        print(f"logs and data: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if len(seen) == len(names) else 1


def play(demo: Demo, name: str, failed: dict[str, str]) -> None:
    """A scene; one that does not happen keeps no other from being tried."""
    say(f"scene {name}")
    began_s = time.monotonic()
    try:
        demo.seen[name] = f"{SCENES[name](demo)} [{time.monotonic() - began_s:.0f} s]"
        say(demo.seen[name])
    except (Failed, httpx.HTTPError) as failure:
        failed[name] = str(failure)
        say(f"this did not happen: {failure}")


if __name__ == "__main__":
    sys.exit(main())
