"""The learning jobs: look, probe, label, profile, retrain, gate. What they share is in `edge.jobs.base`."""

from edge.jobs.base import (
    SampleRef,
    Samples,
    Steps,
    no_yield,
    pools,
    quality_of,
    quality_steps,
    run_at_once,
    run_in_lane,
    split_of,
    spread,
)
from edge.jobs.gate import GateResult, gate_refs, gate_steps, judging_refs, known_refs
from edge.jobs.label import GoldenWork, LabelResult, frames_to_label, golden_label_steps, label_split, label_steps, traits_of
from edge.jobs.look import look_steps, passes_of
from edge.jobs.probe import ProbeResult, probe_refs, probe_steps
from edge.jobs.profile import ProfiledAtOnce, profile_at_once, profile_steps
from edge.jobs.steps import HERE, JobSteps, here
from edge.jobs.train import half_way, retrain_steps
from models.tasks.base import Scoring

__all__ = [
    "HERE",
    "GateResult",
    "GoldenWork",
    "JobSteps",
    "LabelResult",
    "ProbeResult",
    "ProfiledAtOnce",
    "SampleRef",
    "Samples",
    "Scoring",
    "Steps",
    "frames_to_label",
    "gate_refs",
    "gate_steps",
    "golden_label_steps",
    "half_way",
    "here",
    "judging_refs",
    "known_refs",
    "label_split",
    "label_steps",
    "look_steps",
    "no_yield",
    "passes_of",
    "pools",
    "probe_refs",
    "probe_steps",
    "profile_at_once",
    "profile_steps",
    "quality_of",
    "quality_steps",
    "retrain_steps",
    "run_at_once",
    "run_in_lane",
    "split_of",
    "spread",
    "traits_of",
]
