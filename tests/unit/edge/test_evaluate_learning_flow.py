"""evaluate with looks, probes and shared retrainings: real jobs in virtual time, told in the answer, the same in every run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.evaluate.run import run_policy
from edge.evaluate.studio import EvaluateOptions, FromMemo
from edge.memo import Memo
from tests.support.evaluation import COSTS, OPTIONS, scripted_studio
from tests.support.scripted_video import write_scripted_video

LEARNS = replace(OPTIONS, windows=6, candidates=24).switched(drift=True, reuse=True)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("scripted")
    return [write_scripted_video(folder / f"cam{n}.mp4", frames=240, first_seed=1000 * n, change_every=3) for n in range(3)]


def answer(videos: list[Path], options: EvaluateOptions, memo: Memo | None = None) -> dict[str, Any]:
    studio = scripted_studio(videos, options=options, memo=memo)
    return {**run_policy(studio, "lookahead", shown_as="lookahead").as_dict(), "work": studio.done}


@pytest.mark.slow
def test_cameras_that_have_learned_are_only_measured_and_it_costs_less(videos: list[Path]) -> None:
    full, spared = answer(videos, replace(LEARNS, engine=OPTIONS.engine)), answer(videos, LEARNS)
    assert full["gpu_s_by_kind"]["look"] == full["gpu_s_by_kind"]["probe"] == 0
    assert spared["gpu_s_by_kind"]["look"] > 0
    assert spared["gpu_s_by_kind"]["probe"] > 0
    assert spared["gpu_s_by_kind"]["label"] < 0.9 * full["gpu_s_by_kind"]["label"]
    assert spared["gpu_s_by_kind"]["profile"] < full["gpu_s_by_kind"]["profile"]
    assert spared["mean_f1"] > full["mean_f1"] - 0.03
    assert any("only measured" in reason for plan in spared["plans"] for reason in plan["reasons"])


def test_the_answer_tells_drift_and_probes(videos: list[Path]) -> None:
    told = answer(videos, LEARNS)
    json.dumps({k: v for k, v in told.items() if k != "work"}, allow_nan=False)
    probe = told["probes"][0]
    assert probe["found"][0]["true_f1"] is not None
    assert {"at_s", "stream", "window", "serving_f1", "serving_true_f1"} <= set(probe)
    drifts = [v["drift"] for w in told["windows"] for v in w["videos"].values()]
    assert drifts[0] is None, "nothing to compare with in the first window"
    known = [d for d in drifts if d is not None]
    assert known
    assert set(known[0]) == {"drifted", "magnitude", "note", "tests"}
    assert told["gates"][0]["gain_sd"] is not None


@pytest.mark.slow
def test_a_second_run_gives_the_same_answer_and_works_nothing(videos: list[Path], tmp_path: Path) -> None:
    first = answer(videos, LEARNS, Memo(tmp_path))
    again = answer(videos, LEARNS, Memo(tmp_path))
    assert first["work"].embeddings > 0
    assert again["work"].embeddings == again["work"].trainings == again["work"].trials == 0
    assert {k: v for k, v in first.items() if k != "work"} == {k: v for k, v in again.items() if k != "work"}


def test_a_look_costs_a_pass_of_each_frame(videos: list[Path]) -> None:
    told = answer(videos[:1], replace(LEARNS, windows=2))
    assert told["gpu_s_by_kind"]["look"] == pytest.approx(24 * COSTS["infer_gpu_s"], abs=0.05)


def test_cameras_that_see_the_same_share_a_retraining(videos: list[Path]) -> None:
    options = replace(LEARNS, windows=3)
    together = options.switched(group=True)
    together = replace(together, engine=replace(together.engine, group_distance=5.0))
    alone, shared = answer(videos, options), answer(videos, together)
    trained = [t for t in shared["trainings"] if t["window"] == 1]
    assert len(trained) == 1 < len([t for t in alone["trainings"] if t["window"] == 1])
    assert {g["stream"] for g in shared["gates"] if g["window"] == 1} == {"cam0", "cam1", "cam2"}
    assert len({g["candidate"] for g in shared["gates"] if g["window"] == 1}) == 1, "one model, judged by each"
    assert shared["gpu_s_by_kind"]["train"] < alone["gpu_s_by_kind"]["train"]
    assert any("shares the retraining" in reason for plan in shared["plans"] for reason in plan["reasons"])


@pytest.mark.slow
def test_cameras_with_one_model_learn_together_the_same_in_every_run(videos: list[Path], tmp_path: Path) -> None:
    together = replace(LEARNS, windows=3).switched(together=True)
    together = replace(together, engine=replace(together.engine, overlap=True, prep_auto=True, gate_known=True))
    told = answer([*videos, videos[0]], together, Memo(tmp_path))
    (lesson, *_) = told["trainings"]
    gates = [g for g in told["gates"] if g["window"] == lesson["window"]]
    assert len(gates) == 4
    assert {g["candidate"] for g in gates} == {gates[0]["candidate"]}, "one model, judged by each"
    assert told["gpu_s_by_kind"]["train"] > 0
    again = answer([*videos, videos[0]], together, Memo(tmp_path))
    assert again["work"].trainings == 0
    assert {k: v for k, v in told.items() if k != "work"} == {k: v for k, v in again.items() if k != "work"}


def test_switches_leave_what_is_not_named() -> None:
    on = EvaluateOptions().switched(drift=True, group=None)
    assert (on.engine.drift, on.engine.reuse, on.engine.group) == (True, False, False)
    assert on.switched(drift=None, reuse=True).engine.drift
    assert not on.switched(drift=False).engine.drift


def test_what_is_remembered_of_a_version_is_what_it_says(videos: list[Path]) -> None:
    studio = scripted_studio(videos[:1], options=LEARNS)
    model = studio.detector(studio.base_version)
    remembered = FromMemo(studio, "cam0", studio.base_version)
    image = studio.image("cam0", studio.candidates("cam0", 0)[0].index)
    assert np.allclose(remembered.embed([image, image]), model.embed([image, image]))
    assert studio.done.embeddings == 1
    assert remembered.state().keys() == model.state().keys()
