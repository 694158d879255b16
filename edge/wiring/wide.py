"""Profiling trials on several devices of a box (`gpus.trial_width`, `gpus.trial_gpus`): the processes that train them, and who pays for
what they compute.

On a CPU the devices are cores: trials of width 1 stay in the box's process, wider ones have a process per core, and a job's share pays
for all of it. On GPUs they are further ones that the box uses for nothing else: all its trials that train more than the head run there,
in a process per GPU. Those are no part of what the plan divides, so that nobody's share pays; what a trial costs the plan is still what
was computed for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from configs.machine import usable_cores
from configs.schema import GpusSection
from edge.clock import Clock
from edge.gpu.choose import no_trial_gpu
from edge.gpu.nvml import Survey
from edge.gpu.remote import RemoteClock
from edge.jobs import HERE, JobSteps, Steps, profile_steps
from models.wide import CPU, Ranks
from models.wide_trials import Wide as Devices
from models.wide_trials import WideTrials, Widths
from scheduler.types import ProfileTrial


@dataclass(frozen=True, kw_only=True)
class Wide:
    """clock: what the box measures its jobs by from now on: a job is charged what its trials' processes compute; paces: by which shares
    are kept; steps: how its jobs are done; widths: gives the devices to one job; close: the end of the processes."""

    clock: Clock
    paces: Clock
    steps: Callable[[str], JobSteps]
    widths: Callable[[], AbstractContextManager[Widths | None]]
    close: Callable[[], None]


def wide_of(
    gpus: GpusSection, clock: Clock, look: Callable[[], Survey], *, ranks: Callable[..., Devices] = Ranks
) -> Wide | None:  # fmt: skip
    """None: every trial has one device, the box's own. No process is started before a trial wants them. look: what the GPUs say.
    Raises EnvironmentLacking for a GPU that is not there, or cannot be used."""
    on_cpu = gpus.device == "cpu"
    devices = cores_of(gpus) if on_cpu else gpus_of(gpus, look)
    if len(devices) < (2 if on_cpu else 1):
        return None
    charged = RemoteClock(clock)
    trials = WideTrials(
        ranks(devices, elsewhere=charged.elsewhere), width_max=gpus.trial_width or None, narrow_here=on_cpu, clock=clock.monotonic_s
    )  # fmt: skip
    steps = replace(HERE, profile=partial(profiled_wide, trials))
    return Wide(
        clock=charged, paces=charged if on_cpu else clock, steps=lambda job: steps, widths=trials.of_a_job, close=trials.close
    )  # fmt: skip


def cores_of(gpus: GpusSection) -> list[str]:
    """A device per core that a trial may have."""
    return [CPU] * (gpus.trial_width or max(1, min(gpus.capacity_pct // 100, usable_cores())))


def gpus_of(gpus: GpusSection, look: Callable[[], Survey]) -> list[str]:
    """The UUIDs of the further GPUs that trials may have: CUDA counts devices in another order than the driver."""
    if not gpus.trial_gpus:
        return []
    survey = look()
    lacking = no_trial_gpu(gpus, survey)
    if lacking is not None:
        raise lacking
    return [survey.devices[index].facts.uuid for index in gpus.trial_gpus]


def profiled_wide(trials: WideTrials, *given: Any, **named: Any) -> Steps[tuple[tuple[ProfileTrial, ...], int]]:
    """`edge.jobs.profile_steps`, its trials as wide as pays."""
    with trials.of_a_job() as widths:
        return (yield from profile_steps(*given, widths=widths, **named))
