"""What the demonstration is played with: rendered cameras over real RTSP, and the boxes' configurations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from streams.encode import write_video
from streams.rendered.serve import CameraScript
from streams.rtsp_process import RtspServerProcess


@dataclass(frozen=True, kw_only=True)
class Cam:
    """A camera of the demonstration. look, seed: of the rendered scene; fps: of the stream, and analysed; pace: how much quicker than
    usual everybody in it is."""

    id: str
    customer: str
    look: str
    seed: int
    fps: float = 5.0
    pace: float = 1.0

    def script(self, box: str, condition: str) -> CameraScript:
        return CameraScript(
            id=f"{box}-{self.id}", kind=self.look, seed=self.seed, schedule=((0.0, condition),), fps=self.fps, pace=self.pace
        )


#: Every box has more than its cameras need.
USUAL: Mapping[str, tuple[Cam, ...]] = {
    "north": (
        Cam(id="gate", customer="acme", look="street", seed=101, fps=10.0),
        Cam(id="dock", customer="bolt", look="yard", seed=102, fps=10.0),
    ),
    "south": (Cam(id="lane", customer="bolt", look="street", seed=103),),
    "east": (Cam(id="hall", customer="bolt", look="hall", seed=104),),
}
#: The rush hour of scene `shares`: box north watches four places where everybody hurries. A frame that is not analysed is answered by
#: the one before it, and is soon wrong there: `driftbox profile` gives gate an F1 of 0.94, 0.83, 0.63, 0.53, 0.41, 0.36 for every
#: frame, every 2nd, 3rd, 4th, 6th, 8th.
RUSH: Mapping[str, tuple[Cam, ...]] = {
    **USUAL,
    "north": (
        Cam(id="gate", customer="acme", look="street", seed=101, fps=12.0, pace=3.0),
        Cam(id="dock", customer="bolt", look="yard", seed=102, fps=12.0, pace=3.0),
        Cam(id="kerb", customer="bolt", look="street", seed=105, fps=12.0, pace=3.0),
        Cam(id="ramp", customer="bolt", look="street", seed=106, fps=12.0, pace=3.0),
    ),
}


#: What box north has in the rush hour, at least, in pct of a core: below, one pct is too much of it to move, and labels take too long.
ENOUGH_PCT = 14


def hurried(cams: Mapping[str, tuple[Cam, ...]], times: int) -> dict[str, tuple[Cam, ...]]:
    """The same cameras on a faster machine: so many times as many frames of a street that is so many times as quick. Every `n`-th frame
    is worth what it was, and costs more."""
    return {box: tuple(replace(cam, fps=cam.fps * times, pace=cam.pace * times) for cam in some) for box, some in cams.items()}


def times_for(capacity_pct: int) -> int:
    """How much quicker the rush hour must be for a capacity (of a box that is too small for it) of at least `ENOUGH_PCT`."""
    return max(1, math.ceil(ENOUGH_PCT / capacity_pct))


@dataclass(frozen=True, kw_only=True)
class BoxSettings:
    """capacity_pct: of a core; window: of the configuration, as YAML."""

    capacity_pct: int = 60
    # Many labels, and time to judge what is offered: the scene `pooling` is about both. prep_auto: boxes that do not learn by themselves
    # would take a trickle of labels.
    window: str = (
        "{seconds: 90, first_seconds: 20, label_frames: 40, gate_frames: 16, sample_fps: 1.0, prep_auto: false, prep_pct: 40, "
        "prep_max_frac: 0.8, profile_epochs: 1, profile_data_frac: 0.2}"
    )


#: Few labels, because they are paid from the same share as the cameras; retraining is not what the scene is about.
RUSH_WINDOW = (
    "{seconds: 120, first_seconds: 20, label_frames: 16, gate_frames: 6, sample_fps: 1.0, prep_pct: 5, profile_epochs: 1, "
    "profile_data_frac: 0.1}"
)
#: Of what a camera of the rush hour needs for every frame, what box north has for all four: so bolt, which has three, could use all of
#: it, and what that leaves is less than acme needs for every second frame.
FEW_CAMERAS = 2.2


def config_text(box: str, data_dir: Path, cams: Mapping[Cam, str], settings: BoxSettings) -> str:
    """A box's configuration. cams: camera -> its address. min_gain: small boxes, for which a retraining of their own is not worth it
    unless it brings very much."""
    cameras = "\n".join(
        f'  - {{id: {cam.id}, url: "{url}", fps: {cam.fps:g}, customer: {cam.customer}, networks: [yard]}}'
        for cam, url in cams.items()
    )
    return f"""box: {{id: {box}, site: yard, data_dir: "{data_dir}"}}
gpus: {{capacity_pct: {settings.capacity_pct}}}
window: {settings.window}
scheduler: {{min_gain: 0.5, quantum_pct: 1, drift: {{enabled: false}}}}
web: {{enabled: false}}
models: {{serving: trained, retrain: [{{name: short, epochs: 4}}], catalog: {{}}}}
fleet: {{networks: [yard], consent: true}}
cameras:
{cameras}
"""


class Cameras:
    """The rendered cameras, served by a process of its own. They come back at the same port when they are shown anew."""

    def __init__(self) -> None:
        self._server: RtspServerProcess | None = None
        self._shown: Mapping[str, tuple[Cam, ...]] = {}

    def show(self, cams: Mapping[str, tuple[Cam, ...]], condition: str) -> None:
        """These, in this light (`streams.rendered.conditions`), from now on. Every camera loses its connection for a moment."""
        scripts = [cam.script(box, condition) for box, some in cams.items() for cam in some]
        port = self._server.port if self._server else 0
        self.stop()
        self._server = RtspServerProcess([script.mount() for script in scripts], port=port)
        self._server.start()
        self._shown = cams

    def turn(self, condition: str) -> None:
        """The same cameras in another light."""
        self.show(self._shown, condition)

    def of(self, box: str) -> dict[Cam, str]:
        """A box's cameras with their addresses."""
        assert self._server is not None
        return {cam: self._server.url(f"{box}-{cam.id}") for cam in self._shown[box]}

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


def record(cam: Cam, path: Path, *, seconds: float = 24.0) -> None:
    """What the camera shows by day, as a file: the footage that an owner profiles it on."""
    script = cam.script("record", "day")
    scene = script.scene()
    pictures = (scene.render(cam.pace * n / cam.fps)[0] for n in range(round(seconds * cam.fps)))
    write_video(path, pictures, fps=cam.fps)
