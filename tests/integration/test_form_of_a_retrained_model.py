"""What a live box does with the served form after a retraining: made of the new version, checked, swapped in; and where its window ends
too soon for that, the model serves as trained and is not lost."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from edge.form_making import Made, Maker, Wanted, make_form
from edge.serving import Serving
from models.serving.served import Deferred, ServedDetector
from models.serving.torch_runtime import TorchRuntime
from models.tasks.base import Picture
from models.tasks.detection import DETECTION
from scheduler import events as ev
from scheduler.commands import RejectModel
from tests.support.live_box import CONFIG, LiveBox

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fake_models")]


@pytest.fixture
def box(tmp_path: Path) -> LiveBox:
    """Its windows are long enough for a retraining on a busy machine."""
    return LiveBox(tmp_path / "data", {"a": "fake"}, config=replace(CONFIG, window_s=6.0))


def served_by(box: LiveBox, make: Maker, *, build_s: float) -> Serving:
    """Gives the box forms of torch, made by `make`; pictures are the camera's newest frame."""
    worker, told = box.watched["a"].worker, list[str]()

    def newest(camera: str) -> list[Picture]:
        shown = worker.shown()
        return [Picture(image=shown.frame.image)] if shown is not None else []

    serving = Serving(
        "torch", box.root / "forms", newest=newest, task_of=lambda camera: DETECTION, tell=lambda camera, text: told.append(text),
        build_s=build_s, runtimes=lambda name: TorchRuntime(), make=make, aside=lambda work: None,
    )  # fmt: skip
    parts = box.runtime.parts
    parts.serve, parts.serve_later, parts.form_s = serving.serve, serving.serve_later, serving.form_s
    return serving


def test_the_form_of_the_new_version_is_made_checked_and_swapped_in(box: LiveBox) -> None:
    made: list[tuple[str, Made]] = []
    ticks = itertools.count()

    def make(wanted: Wanted) -> Made:
        """In this process; all predictions take as long by this clock."""
        found = make_form(wanted, TorchRuntime(), spent_s=partial(next, ticks))
        made.append((wanted.runtime, found))
        return found

    served_by(box, make, build_s=0.5)
    with box:
        box.wait_for(ev.SwapDone, "a")
        version, serving = box.watched["a"].worker.serving()  # of this window, or of a later one
        box.wait_frames("a")
        assert version != "a-000001"
        assert isinstance(serving, ServedDetector)
        kept, served = box.shelf.detector(version).state(), serving.trained.state()
        assert all(torch.equal(kept[name], served[name]) for name in kept)
        assert made[0][0] == "torch"
        checked = made[0][1].checked
        assert checked is not None
        assert checked.agreement > 0.99, "the form says what the trained model says"
        assert box.watched["a"].worker.errors == 0
        assert box.replayed().exact


def test_a_form_for_which_the_window_is_too_short_does_not_cost_the_model_its_place(box: LiveBox) -> None:
    never = threading.Event()

    def make(wanted: Wanted) -> Made:
        never.wait(60.0)
        raise AssertionError("nobody may wait for this form")

    rejected: list[RejectModel] = []
    execute = box.runtime._execute[RejectModel]
    box.runtime._execute[RejectModel] = lambda command: (rejected.append(command), execute(command))[1]
    served_by(box, make, build_s=180.0)
    try:
        with box:
            done = box.wait_for(ev.SwapDone, "a")
            version, serving = box.watched["a"].worker.serving()
            assert version != "a-000001"
            assert isinstance(serving, Deferred), "as trained; the form follows"
            assert done.version not in [command.version for command in rejected]
            assert box.replayed().exact
    finally:
        never.set()
