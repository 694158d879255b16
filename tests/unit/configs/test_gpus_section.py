"""Section `gpus`: what cannot be kept is refused at the door, as far as that is known without asking the machine."""

from __future__ import annotations

import pytest

from configs.errors import ConfigError
from configs.load import parse_config
from configs.schema.box import GpusSection
from scheduler.salus.policies import POLICIES


def problems(gpus: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(f"gpus: {gpus}")
    return "; ".join(f"{path}: {text}" for path, text in caught.value.problems)


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ("{backend: green}", "backend green keeps shares of a GPU: set device to cuda"),
        ("{backend: mps}", "backend mps keeps shares of a GPU"),
        ("{backend: mig, device: cpu}", "backend mig keeps shares of a GPU"),
        ("{device: cuda, capacity_pct: 200}", "capacity_pct 200 cannot be kept"),
        ("{device: cuda, backend: green, policy: fair}", "policy fair is for backend lanes or mig"),
        ("{backend: none, max_lanes: 2}", "none has no lanes"),
        ("{policy: srtf, max_lanes: 2}", "so it has one lane, not 2"),
        ("{mig_instance: MIG-1}", "is for backend mig"),
        ("{device: cuda, backend: mig, mig_instance: GPU-1}", "MIG-"),
        ("{policy: fastest}", "gpus.policy"),
        ("{backend: magic}", "gpus.backend"),
        ("{max_lanes: 0}", "gpus.max_lanes: must be 1 to 64"),
        ("{memory_mib: 1}", "gpus.memory_mib: must be 64 to"),
        ("{index: -1}", "gpus.index"),
        ("{device: cuda, trial_width: 2}", "more than there are in trial_gpus"),
        ("{device: cuda, trial_width: 3, trial_gpus: [1, 2]}", "more than there are in trial_gpus"),
        ("{device: cuda, trial_gpus: [0, 1]}", "GPU 0 is the box's own"),
        ("{device: cuda, trial_gpus: [1, 1]}", "different numbers"),
        ("{device: cuda, trial_gpus: [16]}", "from 0 to 15"),
        ("{trial_gpus: [1]}", "set device to cuda"),
        ("{device: cuda, backend: mps, trial_gpus: [1]}", "for backend lanes, not mps"),
        ("{backend: none, trial_width: 2, capacity_pct: 200}", "for backend lanes, not none"),
        ("{backend: none, trial_width: 0}", "for backend lanes, not none"),
        ("{trial_width: 2, capacity_pct: 150}", "capacity_pct must be 200 or more"),
        ("{mps_static: auto}", "mps_static is for backend mps"),
        ("{device: cuda, backend: green, mps_static: on}", "mps_static is for backend mps"),
        ("{device: cuda, backend: mps, mps_static: auto, work_conserving: true}", "work_conserving lends them"),
        ("{device: cuda, backend: mps, mps_static: half}", "gpus.mps_static"),
        ("{mig_reconfigure: true}", "mig_reconfigure is for backend mig"),
        ("{device: cuda, backend: mig, mig_reconfigure: true}", "needs mig_profile"),
        ("{device: cuda, backend: mig, mig_profile: 3g.71gb}", "set mig_reconfigure to true"),
        ("{device: cuda, backend: mig, mig_reconfigure: true, mig_profile: 1c.3g.71gb}", "a profile as nvidia-smi mig -lgip"),
        ("{device: cuda, backend: mig, mig_reconfigure: true, mig_profile: half}", "for instance 3g.71gb"),
        ("{device: cuda, backend: mig, mig_reconfigure: true, mig_profile: 3g.71gb, mig_instance: MIG-1}", "leave one out"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(gpus: str, words: str) -> None:
    found = problems(gpus)
    assert words in found
    assert found.startswith("gpus")


@pytest.mark.parametrize(
    "gpus",
    [
        "{trial_width: 2, capacity_pct: 200}", "{trial_width: 0}", "{device: cuda, trial_gpus: [1, 2], trial_width: 2}",
        "{device: cuda, index: 2, trial_gpus: [0]}",
        "{}", "{backend: none}", "{policy: srtf, max_lanes: 1, memory_mib: 512}", "{device: cuda, backend: mps, memory_mib: 4096}",
        "{device: cuda, index: 3, backend: mig, mig_instance: MIG-5, policy: fair}", "{capacity_pct: 400}",
        "{device: cuda, backend: mig, mig_reconfigure: true, mig_profile: 3g.71gb}",
        "{device: cuda, backend: mig, mig_reconfigure: true, mig_profile: 1g.24gb+me.all}",
    ],
)  # fmt: skip
def test_what_can_be_is_taken(gpus: str) -> None:
    parse_config(f"gpus: {gpus}")


def test_a_box_computes_on_its_cpu_and_keeps_the_plan_unless_told_otherwise() -> None:
    default = GpusSection()
    assert (default.device, default.backend, default.policy, default.mig_reconfigure) == ("cpu", "lanes", "plan", False)


def test_the_policies_are_those_of_salus() -> None:
    offered = GpusSection.model_json_schema()["properties"]["policy"]["enum"]
    assert set(offered) <= set(POLICIES)
