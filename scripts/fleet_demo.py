"""A whole fleet on one machine: `make fleet-demo`, or `python scripts/fleet_demo.py [--scenes A,B] [--keep DIR] [--pictures DIR]`.

A controller with its own broker, three boxes in processes of their own, rendered cameras over real RTSP, and Ray with three nodes for
the pooled training. Everything is done by the commands and requests of an owner. Four scenes (`fleet_scenes/`), each with what is
looked at to tell that it happened; the exit code is 1 when one did not:

    shares     a customer misses its goal by measurement; what it needs is learned, shares move, the goal is met by measurement
    migration  a box is emptied: its camera is watched elsewhere before it is let go
    pooling    night falls, which no model knows; boxes give samples, a model is trained on Ray and offered box by box, and each camera's
               gate judges it on labels of its own
    takeover   a box is killed (SIGKILL): its cameras are watched by others
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from fleet_scenes.demo import Demo, Failed, ray_nodes, say, set_up, start_boxes  # noqa: E402
from fleet_scenes.migration import migration  # noqa: E402
from fleet_scenes.pooling import pooling  # noqa: E402
from fleet_scenes.shares import promise, shares  # noqa: E402
from fleet_scenes.stage import RUSH, USUAL, Cameras  # noqa: E402
from fleet_scenes.takeover import takeover  # noqa: E402

SCENES: dict[str, Callable[[Demo], str]] = {"shares": shares, "migration": migration, "pooling": pooling, "takeover": takeover}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--keep", type=Path, help="folder for all data, kept afterwards")
    parser.add_argument("--scenes", default=",".join(SCENES), help="which, in this order; shares can only be the first")
    parser.add_argument("--port", type=int, default=18470, help="of the fleet view; the broker takes the next one")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="pictures of the fleet view, by Chromium")
    parser.add_argument("--stay", action="store_true", help="leave everything running until Ctrl-C, to look around")
    given = parser.parse_args()
    names = given.scenes.split(",")
    if unknown := [name for name in names if name not in SCENES]:
        parser.error(f"no scene {', '.join(unknown)}: {', '.join(SCENES)}")
    if "shares" in names[1:]:
        parser.error("shares can only be the first scene: its rush hour ends with it")
    folder = given.keep or Path(tempfile.mkdtemp(prefix="driftbox-fleet-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    cameras, nodes = Cameras(), None
    failed: dict[str, str] = {}
    demo: Demo | None = None
    try:
        if "pooling" in names:
            nodes = ray_nodes()
            say(f"Ray at {nodes.settings.address} has three nodes")
        cameras.show(RUSH if "shares" in names else USUAL, "day")
        demo = Demo(folder.resolve(), (given.port, given.port + 1), cameras, nodes, given.pictures)
        set_up(demo, rush="shares" in names)
        promise(demo, 0)
        start_boxes(demo)
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
