"""Families that are not tried borrow in virtual time as on a box: the same trials, cheaper profiles, and the same names on offer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edge.evaluate.run import PolicyResult
from edge.evaluate.trace import trace_of
from models.detector import Detector
from scheduler.types import RetrainConfig
from tests.support.evaluation import OPTIONS, results_of, scripted_studio, scripted_videos
from tests.support.keeping import Keeping, Layered

HEAD = RetrainConfig(name="head", epochs=4, batch=4, lr=0.05, layers_frac=0.5)
WHOLE = replace(HEAD, name="whole", layers_frac=1.0)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return scripted_videos(tmp_path_factory.mktemp("videos"), count=1)


def evaluated(videos: list[Path], edge: Detector, *, lend: bool) -> tuple[PolicyResult, set[str]]:
    """The result, and which configurations its trace knows a prediction of."""
    options = replace(OPTIONS, windows=2, engine=replace(OPTIONS.engine, profile_lend=lend))
    studio = scripted_studio(videos, options=options, edge=edge, retrain=(WHOLE, HEAD))
    result = results_of(studio, ("thief-repeat",))["thief-repeat"]
    known = [o for s in trace_of(studio, [result]).streams for w in s.windows for o in w.options]
    return result, {o.name for o in known if o.predicted_quality is not None}


def test_the_cheap_families_are_tried_and_the_others_are_on_offer_all_the_same(videos: list[Path]) -> None:
    plain, _ = evaluated(videos, Keeping(skill=0.4), lend=False)
    lent, traced = evaluated(videos, Keeping(skill=0.4), lend=True)
    tried = [[{t.config.name for t in done.trials} for done in result.profiled.values()] for result in (plain, lent)]
    assert tried[0]
    assert tried == [[{"head", "whole"}] * len(tried[0]), [{"head"}] * len(tried[1])]
    offered = [{name for _, _, name in result.predicted} for result in (plain, lent)]
    assert offered == [{"head", "whole"}] * 2
    assert traced == {"head", "whole"}
    cost = [max(done.gpu_s for done in result.profiled.values()) for result in (plain, lent)]
    assert cost[1] < 0.7 * cost[0]
    assert lent.exhaustive_gpu_s > plain.exhaustive_gpu_s / 2, "what it stands for is still every configuration"


def test_a_model_that_keeps_nothing_tries_them_all(videos: list[Path]) -> None:
    lent, _ = evaluated(videos, Layered(skill=0.4), lend=True)
    assert {t.config.name for done in lent.profiled.values() for t in done.trials} == {"head", "whole"}
    assert not any(done.lend for done in lent.profiled.values())
