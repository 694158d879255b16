"""The demo's cameras: four rendered scenes that drift, served over real RTSP.

    python -m streams.rendered.serve --port 8554
    python -m streams.rendered.serve --port 8554 --config cameras.json

The addresses are printed as one JSON line when the cameras can be watched. cameras.json holds a list of objects with the fields
of `CameraScript`, `schedule` being a list of [seconds, condition] pairs.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from configs.errors import ConfigError, DriftboxError
from configs.units import is_camera_id
from streams.rendered import RenderedScene, Schedule
from streams.rtsp_process import MountSpec
from streams.rtsp_server import RtspServer

#: Frames per second of a drawn stream; more than any camera sends.
MOST_FPS = 120.0


@dataclass(frozen=True, kw_only=True)
class CameraScript:
    """One rendered camera. kind, seed: see `RenderedScene`; schedule: (seconds since the start, condition name) pairs, see
    `Schedule.of`; fps, width_px, height_px: of the stream; from_s: the scene's time at the start; pace: seconds of the scene in a second
    of the stream (2: everybody is twice as quick)."""

    id: str
    kind: str
    seed: int
    schedule: tuple[tuple[float, str], ...] = ((0.0, "day"),)
    fps: float = 5.0
    width_px: int = 320
    height_px: int = 180
    from_s: float = 0.0
    pace: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ConfigError(f"camera {self.id}: its seed must be a whole number from 0", subject=self.id)
        if not is_camera_id(self.id):
            raise ConfigError(f"{self.id!r} is no camera id", subject=self.id, remedy="use lower case letters, digits, - and _")
        if not 0 < self.pace <= 100:
            raise ConfigError(f"camera {self.id}: its pace must be above 0 and at most 100, got {self.pace}", subject=self.id)
        if not 0 < self.fps <= MOST_FPS or min(self.width_px, self.height_px) < 32 or self.width_px % 2 or self.height_px % 2:
            wanted = f"fps must be above 0 and at most {MOST_FPS:g}, the sides of the picture even and at least 32 pixels"
            raise ConfigError(f"camera {self.id}: {wanted}", subject=self.id)

    def scene(self) -> RenderedScene:
        """Raises ConfigError for an unknown kind or condition."""
        moments = tuple((self.pace * t_s + self.from_s, name) for t_s, name in self.schedule)
        return RenderedScene(self.kind, self.seed, self.width_px, self.height_px, Schedule.of(*moments))

    def mount(self) -> MountSpec:
        """For `streams.rtsp_process`."""
        return MountSpec(
            name=self.id,
            factory="streams.rendered.serve:frames",
            arguments=asdict(self),
            fps=self.fps,
            width_px=self.width_px,
            height_px=self.height_px,
        )


#: The built-in demo. Every camera is clear for the first 40-90 s, so that one sees the models do well before they do badly.
DEMO_CAMERAS: tuple[CameraScript, ...] = (
    CameraScript(id="street", kind="street", seed=101, schedule=((0, "day"), (45, "day"), (75, "night"))),
    CameraScript(id="yard", kind="yard", seed=102, schedule=((0, "day"), (60, "day"), (90, "fog"))),
    CameraScript(id="hall", kind="hall", seed=103, schedule=((0, "day"), (75, "day"), (105, "night"))),
    CameraScript(id="crossing", kind="street", seed=104, schedule=((0, "day"), (90, "day"), (115, "rain+dusk"))),
)


def frames(**arguments: Any) -> Callable[[int], np.ndarray]:
    """Picture number -> uint8 (H, W, 3) RGB of the camera that `CameraScript(**arguments)` describes."""
    script = camera_script(arguments)
    scene = script.scene()
    cv2.setNumThreads(1)  # a camera must not take the cores of the box it feeds
    return lambda index: scene.render(script.from_s + script.pace * index / script.fps)[0]


def camera_script(table: dict[str, Any]) -> CameraScript:
    """From a mapping, as read from JSON. Raises ConfigError naming unknown and missing keys."""
    known = {f.name for f in fields(CameraScript)}
    unknown, missing = sorted(set(table) - known), sorted({"id", "kind", "seed"} - set(table))
    if unknown or missing:
        problem = f"unknown keys {', '.join(unknown)}" if unknown else f"missing keys {', '.join(missing)}"
        raise ConfigError(f"a rendered camera has {problem}", remedy=f"known keys: {', '.join(sorted(known))}")
    moments = table.get("schedule", ((0.0, "day"),))
    try:
        schedule = tuple((float(t_s), str(name)) for t_s, name in moments)
    except (TypeError, ValueError):
        name = str(table["id"])
        raise ConfigError(f"camera {name}: its schedule is no list of [seconds, condition] pairs", subject=name) from None
    script = CameraScript(**table | {"schedule": schedule})
    script.scene()  # an unknown kind or condition is told now, not when somebody watches
    return script


def read_scripts(path: Path) -> tuple[CameraScript, ...]:
    """Raises ConfigError when the file is not a JSON list of rendered cameras with distinct ids."""
    try:
        tables = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}", subject=str(path)) from None
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path} holds no list of cameras", subject=str(path), remedy="write [{...}, {...}]")
    scripts = tuple(camera_script(table) for table in tables)
    if len({script.id for script in scripts}) < len(scripts):
        raise ConfigError(f"{path}: two cameras have one id", subject=str(path), remedy="give each camera its own id")
    return scripts


def demo_mounts(scripts: Sequence[CameraScript] = DEMO_CAMERAS) -> tuple[MountSpec, ...]:
    """What `streams.rtsp_process.RtspServerProcess` serves for the demo."""
    return tuple(script.mount() for script in scripts)


def serve(scripts: Sequence[CameraScript], *, host: str = "127.0.0.1", port: int = 0) -> RtspServer:
    """A started server with one mount per camera. Raises EnvironmentLacking when the port is taken."""
    server = RtspServer(host, port)
    for script in scripts:
        server.add_frames(script.id, script.fps, script.width_px, script.height_px, frames(**asdict(script)), keyframe_s=1.0)
    server.start()
    return server


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m streams.rendered.serve", description="Serves rendered cameras over RTSP.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--config", type=Path, help="JSON list of cameras; without it, the built-in demo")
    options = parser.parse_args(arguments)
    try:
        scripts = read_scripts(options.config) if options.config else DEMO_CAMERAS
        server = serve(scripts, host=options.host, port=options.port)
    except DriftboxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps({script.id: server.url(script.id) for script in scripts}), flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
