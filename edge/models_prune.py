"""`driftbox models prune`: a smaller version of a model, taught by the one that it is made of on the camera's own labels.

Nothing in the box prunes by itself: whether it pays depends on the camera, and it costs as much as a long retraining. So an operator
asks for it, sees what it saves and what it costs on held-out labels, and promotes it or leaves it. It is no offer to the camera's gate,
which asks only whether a model is better. What learns from it later keeps its widths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from configs.errors import UsageError
from edge.form_making import TIMED, times_ms
from edge.jobs.base import Scoring, no_yield, quality_of, quality_steps, run_at_once
from edge.models_admin import check_files, find, opened
from edge.models_exchange import require_room, take_in
from edge.samples import FileSamples
from models.compress.prune import lesson, n_weights, pruned
from models.detector import Detector
from models.labelled import LabelledImage
from models.retrain import retrain
from models.sanity import CheckedSamples, looked_at
from models.tasks.detection import DETECTION
from models.versions import MODEL_FILE, load_version, save_version
from models.zoo import new_detector
from scheduler.types import RetrainConfig
from streams.samples import SampleStore

#: The newest windows of the camera whose labels it learns from.
WINDOWS = 4


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A model by what matters here. quality: F1 on the held-out labels, None where none shows an object; ms: CPU time of a prediction
    as trained, median."""

    weights: int
    ms: float
    quality: float | None


@dataclass(frozen=True, kw_only=True)
class Smaller:
    """version: the new candidate; lessons, held_out: labelled pictures that it learned from, and was judged on."""

    version: str
    camera: str
    before: Measured
    after: Measured
    lessons: int
    held_out: int


def prune_version(
    data_dir: Path,
    version: str,
    *,
    ratio: float,
    epochs: int = 15,
    seed: int = 0,
    told: Callable[[str], None] = lambda text: None,
) -> Smaller:
    """Takes about `ratio` of a version's channels out, trains what is left and keeps it as a candidate of the same camera. told: hears
    what was seen in the labels, and each epoch. Raises UsageError (unknown version, a model that cannot be pruned, a camera without
    labels), EnvironmentLacking (torch-pruning is missing), JobError (labels that are not to be learned from), StorageError."""
    if epochs < 1:
        raise UsageError(f"{epochs} epochs teach nothing", subject="epochs", remedy="give at least 1")
    with opened(data_dir) as (folder, store):
        camera = find(store, version).version.stream
        with folder.files_lock():
            check_files(folder, find(store, version))
            place = folder.version_dir(camera, version)
            loaded = load_version(place)
        require_room(folder, (place / MODEL_FILE).stat().st_size)
        teacher = new_detector(loaded.manifest.spec, state=loaded.state)
        student, config = pruned(teacher, ratio), lesson(epochs)
        labels = _Labels(SampleStore(folder.samples_dir), camera)
        learned = _taught(student, teacher, labels, config, seed, told)
        before, after = _measured([teacher, student], labels, learned)
        manifest = replace(loaded.manifest, spec=student.spec, config=config, gpu_s=None, traits=None, signature=None)
        taken = take_in(
            folder, store, camera, manifest, {"kind": "prune", "version": version, "ratio": f"{ratio:g}"},
            lambda part, new: save_version(part, new, student.state()), parent=version, offered=False,
        )  # fmt: skip
    return Smaller(
        version=taken.id, camera=camera, before=before, after=after, lessons=len(learned), held_out=len(labels.held_out)
    )


class _Labels:
    """The camera's labels of its newest windows."""

    def __init__(self, store: SampleStore, camera: str) -> None:
        self.samples, self.camera = FileSamples(store), camera
        self.windows = sorted(store.windows(camera))[-WINDOWS:]
        refs = [ref for window in self.windows for ref in store.sampled(camera, window)]
        self.held_out = [ref for ref in refs if store.split(ref) == "holdout" and self.samples.labels(ref) is not None]

    def lessons(self) -> Sequence[LabelledImage]:
        return self.samples.labelled(self.camera, self.windows, "train")


def _taught(
    student: Detector, teacher: Detector, labels: _Labels, config: RetrainConfig, seed: int, told: Callable[[str], None]
) -> CheckedSamples:
    """Trains the student in place; what it learned from."""
    lessons = labels.lessons()
    if not lessons:
        raise UsageError(
            f"camera '{labels.camera}' has no labels to learn from", subject=labels.camera,
            remedy="let its box learn for a window, or import labels (`driftbox labels import`)",
        )  # fmt: skip
    checked = run_at_once(looked_at(lessons, subject=labels.camera))
    for note in checked.notes:
        told(note)
    for step in retrain(student, checked, config, seed=seed, teacher=teacher):
        if step.epoch_loss is not None:
            told(f"epoch {step.epoch} of {config.epochs}: loss {step.epoch_loss:.3f}")
    return checked


def _measured(models: Sequence[Detector], labels: _Labels, learned: CheckedSamples) -> list[Measured]:
    """Each model: its time on pictures of this camera, its quality on those that were held out."""
    images = [learned[i].image for i in range(min(TIMED, len(learned)))]
    found = []
    for model, ms in zip(models, times_ms(models, images, spent_s=time.thread_time), strict=True):
        counts = run_at_once(quality_steps(labels.samples, DETECTION, model, labels.held_out, Scoring(), no_yield))
        found.append(Measured(weights=n_weights(model), ms=ms, quality=quality_of(counts)))
    return found
