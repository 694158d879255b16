"""How each kind of learning job is done: here (`HERE`), or in a process of the job's own (`edge.gpu.remote_jobs`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edge.jobs.base import Steps
from edge.jobs.gate import GateResult, gate_steps
from edge.jobs.label import LabelResult, label_steps
from edge.jobs.look import look_steps
from edge.jobs.probe import ProbeResult, probe_steps
from edge.jobs.profile import profile_steps
from edge.jobs.train import retrain_steps
from models.detector import Detector
from scheduler.types import Look, ProfileTrial


def cloned(shared: Detector) -> Detector:
    return shared.clone()


@dataclass(frozen=True, kw_only=True)
class JobSteps:
    """Six generators of iterations, each with the parameters of the function of `edge.jobs` that is its default. own: (a model that
    several jobs use) -> the one that a job may use for itself."""

    look: Callable[..., Steps[Look]] = look_steps
    probe: Callable[..., Steps[ProbeResult]] = probe_steps
    label: Callable[..., Steps[LabelResult]] = label_steps
    profile: Callable[..., Steps[tuple[tuple[ProfileTrial, ...], int]]] = profile_steps
    retrain: Callable[..., Steps[Detector]] = retrain_steps
    gate: Callable[..., Steps[GateResult]] = gate_steps
    own: Callable[[Detector], Detector] = cloned


HERE = JobSteps()


def here(job: str) -> JobSteps:
    """In the box's own process, whatever job it is."""
    return HERE
