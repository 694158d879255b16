"""A canary in the password of a camera must be seen nowhere: not in a log, an error, the status, a name, the process list.

A process of its own runs cameras with that password into every kind of failure, with all logging switched on, and prints whatever it
can be made to print. The password comes in over standard input, as it comes to the box from a file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from streams.rtsp_server import RtspServer

CANARY = "QZcanary4711"
ROOT = Path(__file__).parent.parent.parent

SCRIPT = r"""
import faulthandler, gc, json, logging, sys, threading, time, traceback, warnings
logging.basicConfig(level=1, stream=sys.stdout)
warnings.simplefilter("always")

from streams.camera import PyavCamera, open_camera
from streams.url import SourceUrl
from streams.video import probe, read_frames

def show(*things):
    for thing in things:
        print("SHOWN", thing, repr(thing), flush=True)

urls = json.load(sys.stdin)
for name, text in urls.items():
    try:
        camera = open_camera("cam", SourceUrl(text))
    except Exception as error:
        show(error, vars(error))
        traceback.print_exc()
        continue
    camera.start()
    for _ in range(400):
        frame = camera.next_frame(after_seq=-1, timeout_s=0.05)
        status = camera.status()
        if frame is not None or status.code is not None:
            break
    print("REACHED", name, "frame" if frame is not None else status.code.value, flush=True)
    show(status, camera, camera.id, SourceUrl(text), [thread.name for thread in threading.enumerate()])
    for thread in threading.enumerate():
        stack = sys._current_frames().get(thread.ident)
        show("".join(traceback.format_stack(stack)) if stack else "")
    for name in ("cmdline", "comm", "environ"):
        show(open(f"/proc/self/{name}", "rb").read())
    camera.stop()
for text in urls.values():
    for function in (probe, lambda path: list(read_frames(path))):
        try:
            function(text)
        except Exception as error:
            show(error, vars(error), error.__cause__, error.__context__)
            traceback.print_exc()
show(*[error for error in gc.get_objects() if isinstance(error, Exception) and not error.args == ()])
print("DONE", flush=True)
"""


def test_a_password_is_seen_nowhere() -> None:
    right, wrong = RtspServer(user="joe", password=CANARY), RtspServer(user="joe", password="other", auth="basic")
    for server in (right, wrong):
        server.add_frames("cam", 10, 64, 48, lambda index: np.full((48, 64, 3), index % 255, np.uint8))
        server.start()
    urls = {
        "accepted": right.url("cam", user="joe", password=CANARY),
        "refused": wrong.url("cam", user="joe", password=CANARY),
        "missing": right.url("cam", user="joe", password=CANARY) + "-typo",
        "closed": f"rtsp://joe:{CANARY}@127.0.0.1:9/cam",
        "unknown_host": f"rtsps://joe:{CANARY}@no-such-host.invalid/cam",
        "http": f"http://joe:{CANARY}@127.0.0.1:9/cam.mjpg?password={CANARY}",
        "unquoted": f"rtsp://joe:{CANARY}/{CANARY}@127.0.0.1:9/cam",
        "unknown_scheme": f"gopher://joe:{CANARY}@127.0.0.1:9/cam",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", SCRIPT],
            input=json.dumps(urls),
            capture_output=True,
            text=True,
            timeout=280,
            cwd=ROOT,
        )
    finally:
        right.stop()
        wrong.stop()
    printed = done.stdout + done.stderr
    reached = dict(line.split()[1:3] for line in done.stdout.splitlines() if line.startswith("REACHED"))
    assert reached == {
        "accepted": "frame",
        "refused": "auth",
        "missing": "not_found",
        "closed": "network",
        "unknown_host": "network",
        "http": "network",
    }, printed[-3000:]
    assert "DONE" in done.stdout, printed[-3000:]
    seen = [line for line in printed.splitlines() if CANARY in line]
    assert not seen, seen[:5]
