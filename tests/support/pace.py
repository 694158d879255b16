"""How slow this machine is just now, for tests of what happens in real time: they slow down with it instead of failing.

A live box in a test has seconds for what takes an idle machine tenths of one. Where the machine needs many times as long (few cores,
a busy neighbour, a slow disk), the test's box and its cameras live that much slower.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import deque

import cv2
import numpy as np

from models.fake import FakeDetector, scripted_image

#: What `_a_little_of_everything` takes on two quiet cores of a few years ago.
USUAL_S = 0.050
#: So much slower than usual the live tests may be and still have time (they pass with a quota of a quarter of one core).
ROOM = 1.5
MOST = 12.0

#: Seconds that the last few measurements took: a lucky moment says nothing about the minute that follows.
_took_s: deque[float] = deque(maxlen=5)


def slowness() -> float:
    """1 on a machine on which live tests have time enough, else how many times slower their boxes have to live (at most `MOST`)."""
    for _ in range(2):
        started_s = time.monotonic()
        _a_little_of_everything()
        _took_s.append(time.monotonic() - started_s)
    return min(MOST, max(1.0, max(_took_s) / (ROOM * USUAL_S)))


def _a_little_of_everything() -> None:
    """What a box does: threads that predict, encode pictures and make files durable."""
    threads = [threading.Thread(target=_a_few_frames, args=(8 * seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _a_few_frames(first: int) -> None:
    detector = FakeDetector(skill=0.4)
    with tempfile.TemporaryFile() as file:
        for index in range(first, first + 8):
            image, _ = scripted_image(index)
            detector.predict([image])
            file.write(cv2.imencode(".jpg", np.ascontiguousarray(image))[1].tobytes())
            file.flush()
            os.fsync(file.fileno())
