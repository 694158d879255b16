"""Profiling trials on several cores of a box (`gpus.trial_width`): the processes that train them, and who pays for what they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from configs.schema import GpusSection
from edge.clock import Clock
from edge.gpu.remote import RemoteClock
from edge.jobs import HERE, JobSteps, Steps, profile_steps
from models.wide import CPU, Ranks
from models.wide_trials import WideTrials
from scheduler.types import ProfileTrial


@dataclass(frozen=True, kw_only=True)
class Wide:
    """clock: what the box measures its jobs by from now on: a job is charged what its trials' processes compute. steps, close: how its
    jobs are done, and the end of the processes."""

    clock: Clock
    steps: Callable[[str], JobSteps]
    close: Callable[[], None]


def wide_of(gpus: GpusSection, clock: Clock) -> Wide | None:
    """None: every trial has one device. No process is started before a trial wants them."""
    if gpus.trial_width == 1:
        return None
    charged = RemoteClock(clock)
    trials = WideTrials(Ranks([CPU] * gpus.trial_width, elsewhere=charged.elsewhere), clock=clock.monotonic_s)
    steps = replace(HERE, profile=partial(profiled_wide, trials))
    return Wide(clock=charged, steps=lambda job: steps, close=trials.close)


def profiled_wide(trials: WideTrials, *given: Any, **named: Any) -> Steps[tuple[tuple[ProfileTrial, ...], int]]:
    """`edge.jobs.profile_steps`, its trials trained by `trials`."""
    with trials.of_a_job() as trainer:
        return (yield from profile_steps(*given, trainer=trainer, **named))
