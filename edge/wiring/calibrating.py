"""`driftbox calibrate` on this box's own jobs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from configs.schema import BoxConfig
from edge import calibrate, calibrate_processes
from edge.clock import SystemClock
from edge.gpu.base import SWITCH_S
from edge.gpu.choose import clock_for
from edge.speed_file import SpeedFile, write_speed
from edge.store.folder import DataFolder
from edge.wiring.compute import backend_of, processes_of
from edge.wiring.models import plain_lesson, plain_picture
from edge.wiring.settings import device_of_models, models_of
from models.retrain import settle_precision
from models.serving.cache import machine
from models.tasks.registry import task_of

if TYPE_CHECKING:
    from edge.gpu.mps import MpsBackend


def calibrate_box(config: BoxConfig, *, quick: bool, progress: Callable[[str, float], None]) -> SpeedFile:
    """Measures the box's own jobs on its own backend and keeps the result in its data folder. Raises StorageError (code 'in_use' while a
    box runs on the folder: it would be measured too), WeightsError, JobError."""
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    clock = clock_for(config.gpus, SystemClock())
    with DataFolder(config.box.data_dir) as folder:
        # A box that may give away less than one core or GPU is measured as if it had a whole one: speed is relative to that.
        # (A partition of a GPU cannot be made whole.)
        least_pct = 0 if config.gpus.backend == "mig" else 100
        whole = config.gpus.model_copy(update={"capacity_pct": max(least_pct, config.gpus.capacity_pct)})
        backend = backend_of(config.model_copy(update={"gpus": whole}), clock)
        plan, processes = calibrate.QUICK if quick else calibrate.FULL, processes_of(backend)
        if processes is not None:
            plan = replace(plan, most_s=plan.most_s + calibrate_processes.PROCESS_S)
        try:
            found = [subject for names in models_of(config) for subject in subjects_of(config, *names, processes=processes)]
            seen = calibrate.run(calibrate.Bench(backend, clock), found, plan, progress=progress)
            made = calibrate.concluded(
                seen, machine=machine(), devices=[f.name for f in backend.facts()], backend=backend.name,
                capacity_pct=backend.capacity_pct, quick=quick, utc_s=clock.utc_s(),
            )  # fmt: skip
        finally:
            backend.close()
        write_speed(folder.root, made)
    return made


def subjects_of(
    config: BoxConfig, task_name: str, edge: str, golden: str, *, processes: MpsBackend | None = None
) -> list[calibrate.Subject]:
    """The jobs of the cameras of one task with one model, on a plain picture: speed at a share does not depend on what is seen.
    processes: where they compute when it is not here."""
    task = task_of(task_name)
    device = device_of_models(config)
    detector, picture = task.load(edge, device=device), plain_picture(task)
    lesson = plain_lesson(picture)
    settle_precision(detector, [lesson], task=task)
    golden_model, names = task.load_golden(golden, device=device), (edge, golden)
    score_min, lessons = config.models.edge_score_min, [lesson] * 8
    if processes is None:
        return calibrate.subjects(task, detector, golden_model, [picture], lessons, names=names, score_min=score_min)
    samples = calibrate_processes.kept_lessons(processes.scratch_dir / re.sub(r"\W+", "-", f"{task_name}-{edge}"), lessons)
    return calibrate_processes.subjects(
        processes, task, detector, golden_model, [picture], samples, names=names, score_min=score_min
    )
