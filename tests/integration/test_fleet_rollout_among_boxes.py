"""Staged rollouts among real boxes: box processes, a real controller with its broker. Each box judges by its own gate, on labels of its
own; a model that is better goes from box to box, one that is worse stops at the first, and so does one that turns bad after it was let
in."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from cluster.controller.serve import RunningController, ServeOptions
from cluster.rollouts.types import Rollout, RolloutRules, Watched
from cluster.rollouts.wishes import RolloutWish
from edge.fleet.joining import Candidate, join
from edge.fleet.membership import MemberFolder
from edge.models_admin import opened
from edge.store.store import ModelState, StoredModel
from models.bundle import SUFFIX, write_bundle
from models.detector import Detector
from models.keys import KeyRing, Signer, public_pem
from models.versions import Manifest, save_version
from scheduler.fleet.types import CameraKey, CameraReport
from tests.support.ports import free_port
from tests.support.running_box import RunningBox, asking_headers, eventually

pytestmark = [pytest.mark.slow, pytest.mark.mqtt, pytest.mark.timeout(900)]

ARCH = "tinydet-edge"
BOXES = ("north", "south")
THREE = (*BOXES, "east")
#: One box first, then all; nobody waits in a test.
RULES = RolloutRules(steps_frac=(0.0, 1.0), soak_s=0.0)
#: One box, two, three.
STAGES = RolloutRules(steps_frac=(0.0, 0.6, 1.0), soak_s=0.0)
#: The first box is watched until something happens. Drawn scenes hardly change by themselves.
WATCHED = RolloutRules(steps_frac=(0.0, 1.0), soak_s=1e6, lone_sigma=0.05)
#: Part of its own spread by which every weight of the model that boxes begin with is off: it sees 0.6 to 0.8 of what is there by day.
OFF_FRAC = 0.3


def detector(seed: int | None) -> Detector:
    """As it comes with the package; seed: one that has learnt nothing."""
    from models.tinydet import load_bundled
    from models.zoo import new_detector, spec_of

    return load_bundled(ARCH) if seed is None else new_detector(spec_of(ARCH), seed=seed)


def weights_file(path: Path, model: Detector) -> Path:
    from safetensors.torch import save_file

    save_file({k: v.contiguous() for k, v in model.state().items()}, path, metadata={"arch": ARCH})
    return path


def middling() -> Detector:
    """The one of the package with all its weights a little off: what it is offered is better, and it has much to lose."""
    import torch

    made, chance = detector(seed=None), torch.Generator().manual_seed(5)
    noisy = {
        name: value + OFF_FRAC * value.std() * torch.randn(value.shape, generator=chance) if value.ndim > 1 else value
        for name, value in made.state().items()
    }
    made.load_state(noisy)
    return made


def bundle(folder: Path, name: str, model: Detector, signer: Signer) -> Path:
    manifest = Manifest(
        id=f"{name}-000001", stream=name, parent=None, spec=model.spec, config=None, window=None, created_utc=time.time(),
        origin={"kind": "pooled"},
    )  # fmt: skip
    target = folder / f"{name}{SUFFIX}"
    with tempfile.TemporaryDirectory(dir=folder) as part:
        save_version(Path(part), manifest, model.state())
        write_bundle(Path(part), target, signer)
    return target


def config(box: str, seed: int, weights: Path, *, reuse: bool) -> str:
    """It labels and judges; a retraining of its own would have to win half of all there is (min_gain), so what it serves has come from
    the fleet. reuse: earlier models are measured, too, and serve again where they are better."""
    return f"""
box: {{id: {box}, site: yard}}
window: {{seconds: 25, first_seconds: 10, label_frames: 16, holdout_frac: 0.5, gate_frames: 6, sample_fps: 1.0, prep_auto: false,
  prep_pct: 60, prep_max_frac: 0.9, overlap: false}}
scheduler: {{min_gain: 0.5, drift: {{enabled: false}}, reuse: {{enabled: {str(reuse).lower()}}}}}
models: {{serving: trained, catalog: {{}}, retrain: [{{name: short, epochs: 1}}]}}
cameras:
  - {{id: gate, url: "{scene(seed)}", fps: 2, edge: "{weights}"}}
"""


def scene(seed: int, condition: str = "day") -> str:
    """A camera's address."""
    return f"rendered:yard?seed={seed}&at=0:{condition}"


class RealFleet:
    """Boxes as processes, joined and trusting the fleet's key. first: what their cameras begin with, None: a model with which they see
    nothing; where there is one nobody measures what a version has replaced, and the controller alone watches it. heard: of each rollout,
    which boxes spoke of it in which step."""

    def __init__(self, folder: Path, stack: ExitStack, names: Sequence[str] = BOXES, first: Detector | None = None) -> None:
        self.folder, self.reuse = folder, first is None
        options = ServeOptions(
            data_dir=folder / "fleet", host="127.0.0.1", port=free_port(), names=("127.0.0.1",), broker_port=free_port(), round_s=1.0,
            report_every_s=1.0, login=False,
        )  # fmt: skip
        self.controller = RunningController(options, say=lambda text: None)
        self.controller.start()
        stack.callback(self.controller.stop)
        eventually(lambda: self.controller.services.status().in_charge, "the controller is in charge")
        self.signer = KeyRing(folder).signer()
        key = folder / "fleet.pub"
        key.write_bytes(public_pem(self.signer.public))
        weights = weights_file(folder / "first.safetensors", detector(seed=7) if first is None else first)
        self.boxes = {name: self._box(name, seed, weights, key, stack) for seed, name in enumerate(names)}
        self.heard: dict[str, set[tuple[int, str]]] = {}

    def _box(self, name: str, seed: int, weights: Path, key: Path, stack: ExitStack) -> RunningBox:
        folder = self.folder / name
        data_dir = folder / "data"
        data_dir.mkdir(parents=True)
        candidate = Candidate(box=name, site="yard", capacity_pct=100, software="1")
        code = self.controller.services.actions.invite(by="test").code
        join(MemberFolder(data_dir), self.controller.url, code, candidate, now_utc_s=time.time())
        KeyRing(data_dir).trust(key)
        box = RunningBox(folder, config(name, seed, weights, reuse=self.reuse))
        stack.callback(end, box)
        return box

    def begin(self, id: str, model: Detector, rules: RolloutRules = RULES) -> None:
        made = bundle(self.folder, id, model, self.signer)
        actions = self.controller.services.actions
        actions.put_bundle(f"{id}-1", made, by="test")
        cameras = tuple(CameraKey(home=box, camera="gate") for box in self.boxes)
        actions.rollout(RolloutWish(what="begin", id=id, parcel=f"{id}-1", cameras=cameras, rules=rules), by="test")

    def rollout(self, id: str) -> Rollout | None:
        """As it is now; notes who speaks of it."""
        state = self.controller.services.state()
        found = state.rollouts.get(id)
        if found is not None:
            reports = [(box, view.report) for box, view in state.boxes.items() if view.report is not None]
            speak = {box for box, report in reports for word in report.confirmation.offers if word.rollout == id}
            self.heard.setdefault(id, set()).update((found.step, box) for box in speak)
        return found

    def all_run(self) -> bool:
        for box in self.boxes.values():
            assert box.process.poll() is None, box.output.read_text()[-2000:]
        return True

    def until(self, id: str, ended: Callable[[Rollout], bool], what: str) -> Rollout:
        def looked() -> Rollout | None:
            found = self.rollout(id) if self.all_run() else None
            return found if found is not None and ended(found) else None

        try:
            found = eventually(looked, what)
        except pytest.fail.Exception as error:
            pytest.fail(f"{error}; {self.rollout(id)}")
        assert isinstance(found, Rollout)
        return found

    def all_report(self, *, measured: bool = False) -> None:
        """Waits until every box tells of its camera; measured: and of what it serves."""

        def there(box: str) -> bool:
            view = self.controller.services.state().boxes.get(box)
            return bool(view and view.cameras and (view.cameras[0].measured or not measured))

        eventually(lambda: self.all_run() and all(map(there, self.boxes)), "all boxes report their cameras")

    def told(self, box: str) -> CameraReport:
        """The newest that a box said of its camera."""
        return self.controller.services.state().boxes[box].cameras[0]

    def turn(self, box: str, condition: str) -> None:
        """What a box's camera shows from now on."""
        here = self.boxes[box]
        answer = httpx.patch(
            f"http://127.0.0.1:{here.port}/api/v1/cameras/gate", json={"url": scene(list(self.boxes).index(box), condition)}, timeout=60,
            headers=asking_headers(here.data_dir),
        )  # fmt: skip
        assert answer.status_code == 200, answer.text

    def model_of(self, box: str, rollout: str) -> StoredModel | None:
        """What a rollout has brought to a box's camera."""
        with opened(self.boxes[box].data_dir) as (_, store):
            return next((m for m in store.models("gate") if (m.config.get("origin") or {}).get("rollout") == rollout), None)  # type: ignore[attr-defined]

    def serving(self, box: str) -> str:
        with opened(self.boxes[box].data_dir) as (_, store):
            return store.serving("gate")["gate"].id


def end(box: RunningBox) -> None:
    if box.process.poll() is None:
        box.process.kill()
        box.process.wait()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[RealFleet]:
    with ExitStack() as stack:
        yield RealFleet(tmp_path, stack, THREE, first=middling())


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[RealFleet]:
    with ExitStack() as stack:
        yield RealFleet(tmp_path, stack)


def of(rollout: Rollout, box: str) -> Watched:
    return next(watched for watched in rollout.cameras if watched.group == box)


def test_a_better_model_goes_on_and_a_worse_one_stops_at_the_first_box(fleet: RealFleet) -> None:
    fleet.all_report()
    fleet.begin("good", detector(seed=None))
    done = fleet.until("good", lambda r: r.state != "running", "the better model has gone through the fleet")
    assert done.state == "done", done.decisions
    first, second = done.boxes
    assert [watched.answer for watched in done.cameras] == ["serving", "serving"]
    assert (0, second) not in fleet.heard["good"], "the second box had to wait"
    steps = [decision for decision in done.decisions if decision.what.startswith("step")]
    assert [step.what for step in steps] == [f"step 1 of 2: 1 of 2 boxes ({first})", f"step 2 of 2: 2 of 2 boxes ({second})"]
    assert "1 of 1 cameras took it" in steps[1].reason
    came = fleet.model_of(second, "good")
    assert came is not None
    assert came.created_utc >= steps[1].at_utc_s, "it came there with the second step"
    for box in BOXES:
        model = fleet.model_of(box, "good")
        assert model is not None
        assert (model.state, model.version.id) == (ModelState.SERVING, fleet.serving(box))

    fleet.begin("bad", detector(seed=11))
    stopped = fleet.until("bad", lambda r: r.state != "running", "the worse model is stopped")
    assert stopped.state == "stopped", stopped.decisions
    first, second = stopped.boxes
    assert of(stopped, first).answer == "refused"
    assert "refused" in stopped.reason
    assert (of(stopped, second).step, of(stopped, second).answer) == (None, "")
    assert {box for _, box in fleet.heard["bad"]} == {first}
    refused = fleet.model_of(first, "bad")
    assert refused is not None
    assert refused.state is ModelState.REJECTED
    assert fleet.model_of(second, "bad") is None, "the second box never saw it"
    for box in BOXES:
        good = fleet.model_of(box, "good")
        assert good is not None
        assert fleet.serving(box) == good.version.id
    assert [box.stop() for box in fleet.boxes.values()] == [0, 0]


def test_three_boxes_in_stages_and_a_version_that_turns_bad_after_it_was_let_in(three: RealFleet) -> None:
    three.all_report(measured=True)
    three.begin("late", detector(seed=None), WATCHED)
    let_in = three.until("late", lambda r: bool(r.boxes) and of(r, r.boxes[0]).answer == "serving", "the first box serves it")
    first = let_in.boxes[0]
    three.turn(first, "night+fog")  # where this model sees next to nothing
    stopped = three.until("late", lambda r: r.state != "running", "labels say that it is no good any more")
    assert (stopped.state, stopped.step) == ("stopped", 0), stopped.decisions
    assert stopped.reason.startswith("quality on labels fell by"), stopped.reason
    assert of(stopped, first).answer == "serving", "it was let in, and harm came later"
    assert of(stopped, first).error is not None
    told = three.told(first)
    assert [m.version for m in told.measured][-1] == three.serving(first) == told.version
    assert all(m.frames > 0 for m in told.measured)
    assert {box for _, box in three.heard["late"]} == {first}, "the others never saw it"

    three.controller.services.actions.rollout(RolloutWish(what="roll_back", id="late"), by="test")
    three.until("late", lambda r: r.state == "returned", "the first box serves what it served before")
    assert three.model_of(first, "late").state is ModelState.RETIRED  # type: ignore[union-attr]
    three.turn(first, "day")

    three.begin("good", detector(seed=None), STAGES)
    done = three.until("good", lambda r: r.state != "running", "the better model has gone through the fleet")
    assert done.state == "done", done.decisions
    sizes = [decision.what for decision in done.decisions if decision.what.startswith("step")]
    assert [what.partition(" (")[0] for what in sizes] == [f"step {k} of 3: {k} of 3 boxes" for k in (1, 2, 3)]
    assert [watched.answer for watched in done.cameras] == ["serving"] * 3
    for box in done.boxes[1:]:
        early = {step for step, who in three.heard["good"] if who == box and step < done.boxes.index(box)}
        assert not early, f"{box} had to wait for its step"
    for box in three.boxes:
        assert three.model_of(box, "good").version.id == three.serving(box)  # type: ignore[union-attr]
    assert [box.stop() for box in three.boxes.values()] == [0, 0, 0]
