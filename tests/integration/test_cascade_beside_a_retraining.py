"""A cascade (detect, then classify the crops) on video, on a real box in this process, while a real retraining goes on beside it.

How many frames are in time is the machine's matter (`driftbox bench cascade_live` measures it); here: that frames and crops are answered
meanwhile, that the retraining comes to its end, and that no frame is lost uncounted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.load import parse_config
from edge.box_status import RuntimeStatus
from edge.finish import Finished
from edge.inference import Shown
from edge.queries.runner import Outcome
from edge.runtime import Watched
from edge.store.store import ModelState
from edge.wiring.box import Box, built
from scheduler import events as ev
from scheduler.commands import RejectModel
from scheduler.events import Event
from streams.encode import write_video
from streams.rendered.scene import RenderedScene
from tests.support.box_in_process import while_it_runs
from tests.support.pace import slowness
from tests.support.running_box import eventually, write_classifier

#: A retraining, and the one of the next window should the first have been too long on a busy machine.
PATIENCE_S = 540.0
FPS, CROPS = 4.0, 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """Half a minute of a street, which is played again and again in its own time."""
    scene = RenderedScene("street", 101)
    path = tmp_path / "street.mp4"
    write_video(path, (scene.render(n / 5)[0] for n in range(150)), fps=5)
    return path


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """A box sets its process up for itself."""
    threads, switch_s = torch.get_num_threads(), sys.getswitchinterval()
    yield
    torch.set_num_threads(threads)
    sys.setswitchinterval(switch_s)


def configuration(folder: Path, video: Path, slower: float) -> str:
    weights = write_classifier(folder / "small.safetensors")
    return f"""
box: {{data_dir: "{folder / "data"}"}}
web: {{enabled: false}}
gpus: {{capacity_pct: 160}}
window:
  {{seconds: {120 * slower:.0f}, first_seconds: {15 * slower:.0f}, label_frames: 8, gate_frames: 4, sample_fps: {1 / slower:.4g},
   prep_pct: 80, prep_max_frac: 0.4}}
scheduler: {{policy: "uniform(long,60)", serving: orloj, min_gain: 0.0, min_quality: 0.0, drift: {{enabled: false}}}}
models:
  serving: trained
  tasks: {{classification: {{edge: "{weights}"}}}}
  retrain: [{{name: long, epochs: 60, batch: 4, lr: 0.002}}]
cameras:
  - id: street
    url: "{video}"
    fps: {FPS / slower:.4g}
    loop: true
    deadline_ms: {1000 * slower:.0f}
    queries:
      - name: what
        lag_goal_s: {1.5 * slower:.4g}
        nodes:
          - {{transform: decode}}
          - {{transform: detect}}
          - {{transform: classify, knobs: {{crop_limit: [{CROPS}]}}}}
          - {{transform: count}}
"""


@dataclass(kw_only=True)
class Seen:
    """What was seen from outside. lags_s: of every frame that was shown; crops: of every answer of the query."""

    lags_s: list[float] = field(default_factory=list)
    crops: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def watch(self, box: Box, camera: Watched) -> None:
        """Looks on, from before the first frame; nothing else changes."""
        queries = camera.queries
        assert queries is not None, "its query cannot run"
        on_shown, on_outcome, reject = queries.on_shown, queries.on_outcome, box.runtime._execute[RejectModel]

        def shown(one: Shown) -> None:
            self.lags_s.append(one.lag_s)
            on_shown(one)

        def outcome(one: Outcome) -> None:
            if "classify" in one.told:
                self.crops.append(int(one.told["classify"]["crops"]))
            on_outcome(one)

        def rejected(command: RejectModel) -> None:
            self.refused[command.version] = command.reason
            reject(command)

        queries.on_outcome = outcome
        queries.on_shown = shown  # type: ignore[assignment, method-assign]
        box.runtime._execute[RejectModel] = rejected
        box.runtime.parts.listeners.append(lambda thing: self.events.append(thing) if isinstance(thing, Event) else None)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in list(self.events) if isinstance(event, kind)]


def retraining(box: Box) -> bool:
    return any(job.kind == "retraining" for job in list(box.runtime.jobs.values()))


def done_or_next(box: Box, seen: Seen, ended: int) -> list[Event] | bool:
    """Retrainings that ended well beside the first `ended`; else whether another one runs."""
    return seen.of(ev.RetrainDone)[ended:] or retraining(box)


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Over one retraining. before, after: the camera's counts; crops: of the query's answers; candidate: what came of it; frac: as
    `/api/v1/status` tells it."""

    before: Finished
    after: Finished
    crops: list[int]
    candidate: str
    frac: float


def lived_through(box: Box, camera: Watched, seen: Seen) -> Beside:
    """Waits until a retraining has ended well: the next window begins another, should one have been too long."""
    eventually(lambda: any(seen.crops), "the query has classified crops", PATIENCE_S)
    status = RuntimeStatus(box.runtime, box="box", site="site")
    done: Any = True
    while done is True:
        ended = len(seen.of(ev.RetrainDone))
        eventually(partial(retraining, box), "a retraining runs", PATIENCE_S)
        before, answers = camera.worker.finish.total(), len(seen.crops)
        eventually(lambda: not retraining(box), "it has ended", PATIENCE_S)
        after, crops = camera.worker.finish.total(), seen.crops[answers:]
        done = eventually(partial(done_or_next, box, seen, ended), "it ended well, or another one begins", PATIENCE_S)
    # A window that has just begun has none yet.
    told = eventually(
        lambda: [c.finish_frac for c in status.status().cameras if c.finish_frac is not None], "it is told", PATIENCE_S
    )
    candidate = done[0].candidate
    settled = (ModelState.SERVING, ModelState.RETIRED, ModelState.REJECTED)
    eventually(lambda: box.store.model(candidate).state in settled, "it is admitted or refused", PATIENCE_S)
    return Beside(before=before, after=after, crops=crops, candidate=candidate, frac=told[0])


def test_frames_and_their_crops_are_answered_and_counted_while_a_retraining_goes_on(tmp_path: Path, video: Path) -> None:
    seen = Seen()
    with built(parse_config(configuration(tmp_path, video, slowness())), say=lambda _: None) as box:
        [camera] = box.watched
        seen.watch(box, camera)
        beside = while_it_runs(box, partial(lived_through, box, camera, seen))
        total, state = camera.worker.finish.total(), box.store.model(beside.candidate).state
        assert camera.queries is not None
        [report] = camera.queries.reports()

    before, after = beside.before, beside.after
    assert after.answered - before.answered > 0, "frames are answered while it trains"
    assert after.due - before.due >= (after.answered - before.answered) + (after.dropped - before.dropped)
    assert any(beside.crops), "and their crops are classified"
    assert max(beside.crops) <= CROPS
    assert not seen.of(ev.JobFailed)
    assert state is not ModelState.REJECTED or seen.refused[beside.candidate], "refused only with a reason"
    assert 0.0 <= beside.frac <= 1.0

    assert camera.worker.errors == 0, camera.worker.last_error
    assert report.failed_frames == 0
    assert total.answered == camera.worker.frames == len(seen.lags_s), "each frame that was shown is counted, once"
    assert total.in_time == sum(lag_s <= camera.worker.finish.goal_s for lag_s in seen.lags_s), "the others of them are late"
    untaken = total.due - total.answered - total.dropped
    assert untaken >= 0, "due = in time + late + given up + those that nobody took"
