"""What a frozen trunk says of each picture, worked out once and read by every run that leaves it frozen.

Configurations that train the head alone differ in epochs, data and added layer, but the trunk in front of it says the same of a picture
in all of them, and in the model that serves. Their trials and the judging after each epoch therefore cost one pass of the trunk over the
pictures, and then almost nothing (Ekya pays for every pass; our addition). It holds only while pictures come unchanged: such trials
learn without augmentation, whose part in a real retraining `scheduler.ekya.calibration` learns with the rest of the error.

Whole batches are kept, under the digest of their pixels: which pictures went through the network together then depends on the picture
alone, so a trial sees the same bits whichever trial came first.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

import torch


class KeptFeatures:
    """One run's view of the features of one trunk, which must not change as long as any view is used; `again` gives further runs theirs.
    Views may be used in different threads: two that ask for the same batch at once may both work it out, and get the same.

    timer: seconds of compute spent so far by the calling thread. saved_s: what this view's answers would have cost more without keeping;
    passes: batches that this view sent through the trunk."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer, self._lock = timer, threading.Lock()
        self._kept: dict[bytes, tuple[torch.Tensor, float]] = {}
        self.saved_s, self.passes = 0.0, 0

    def __deepcopy__(self, memo: object) -> None:
        """A copied network does not keep: it is copied to be changed."""

    def again(self) -> KeptFeatures:
        other = KeptFeatures(self._timer)
        other._lock, other._kept = self._lock, self._kept
        return other

    def of(self, batch: torch.Tensor, trunk: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """trunk(batch), kept or worked out. batch: (B, 3, S, S) float32; answer: (B, D), without a gradient."""
        key = hashlib.blake2b(batch.detach().contiguous().cpu().numpy().data, digest_size=16).digest()
        with self._lock:
            found = self._kept.get(key)
        if found is not None:
            self.saved_s += found[1]
            return found[0]
        started_s = self._timer()
        with torch.inference_mode(False), torch.no_grad():  # a tensor of inference mode could not be learned from later
            features = trunk(batch.clone()).detach()
        self.passes += 1
        with self._lock:
            return self._kept.setdefault(key, (features, self._timer() - started_s))[0]
