"""Has a camera's scene drifted, how should labels follow, and which earlier window was like this one? Pure; see docs/drift.md."""

from scheduler.drift.budget import Need, label_frames, settled, shared
from scheduler.drift.decide import DriftConfig, drift, needs_new_look, reference_after
from scheduler.drift.signature import distance, picture, signature
from scheduler.drift.tests import NAMES, frames_needed, run_test

__all__ = [
    "NAMES",
    "DriftConfig",
    "Need",
    "distance",
    "drift",
    "frames_needed",
    "label_frames",
    "needs_new_look",
    "picture",
    "reference_after",
    "run_test",
    "settled",
    "shared",
    "signature",
]
