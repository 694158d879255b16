"""A staged rollout among real boxes: two box processes, a real controller with its broker. Each box judges by its own gate, on labels of
its own; a model that is better goes from the first box to the second, one that is worse stops at the first."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

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
from scheduler.fleet.types import CameraKey
from tests.support.ports import free_port
from tests.support.running_box import RunningBox, eventually

pytestmark = [pytest.mark.slow, pytest.mark.mqtt, pytest.mark.timeout(900)]

ARCH = "tinydet-edge"
BOXES = ("north", "south")
#: One box first, then all; nobody waits in a test.
RULES = RolloutRules(steps_frac=(0.0, 1.0), soak_s=0.0)


def detector(seed: int | None) -> Detector:
    """As it comes with the package; seed: one that has learnt nothing."""
    from models.tinydet import load_bundled
    from models.zoo import new_detector, spec_of

    return load_bundled(ARCH) if seed is None else new_detector(spec_of(ARCH), seed=seed)


def untaught(path: Path) -> Path:
    """Weights with which a camera sees nothing: what it is offered must be better."""
    from safetensors.torch import save_file

    made = detector(seed=7)
    save_file({k: v.contiguous() for k, v in made.state().items()}, path, metadata={"arch": ARCH})
    return path


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


def config(box: str, seed: int, weights: Path) -> str:
    """It labels and judges; a retraining of its own would have to win half of all there is (min_gain), so what it serves has come from
    the fleet."""
    return f"""
box: {{id: {box}, site: yard}}
window: {{seconds: 25, first_seconds: 10, label_frames: 8, gate_frames: 6, sample_fps: 1.0, prep_auto: false, prep_pct: 60,
  prep_max_frac: 0.9, overlap: false}}
scheduler: {{min_gain: 0.5, drift: {{enabled: false}}}}
models: {{serving: trained, catalog: {{}}, retrain: [{{name: short, epochs: 1}}]}}
cameras:
  - {{id: gate, url: "rendered:yard?seed={seed}", fps: 2, edge: "{weights}"}}
"""


class RealFleet:
    """Boxes as processes, joined and trusting the fleet's key; `heard`: of each rollout, which boxes spoke of it in which step."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
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
        weights = untaught(folder / "untaught.safetensors")
        self.boxes = {name: self._box(name, seed, weights, key, stack) for seed, name in enumerate(BOXES)}
        self.heard: dict[str, set[tuple[int, str]]] = {}

    def _box(self, name: str, seed: int, weights: Path, key: Path, stack: ExitStack) -> RunningBox:
        folder = self.folder / name
        data_dir = folder / "data"
        data_dir.mkdir(parents=True)
        candidate = Candidate(box=name, site="yard", capacity_pct=100, software="1")
        code = self.controller.services.actions.invite(by="test").code
        join(MemberFolder(data_dir), self.controller.url, code, candidate, now_utc_s=time.time())
        KeyRing(data_dir).trust(key)
        box = RunningBox(folder, config(name, seed, weights))
        stack.callback(end, box)
        return box

    def begin(self, id: str, model: Detector) -> None:
        made = bundle(self.folder, id, model, self.signer)
        actions = self.controller.services.actions
        actions.put_bundle(f"{id}-1", made, by="test")
        cameras = tuple(CameraKey(home=box, camera="gate") for box in BOXES)
        actions.rollout(RolloutWish(what="begin", id=id, parcel=f"{id}-1", cameras=cameras, rules=RULES), by="test")

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
def fleet(tmp_path: Path) -> Iterator[RealFleet]:
    with ExitStack() as stack:
        yield RealFleet(tmp_path, stack)


def of(rollout: Rollout, box: str) -> Watched:
    return next(watched for watched in rollout.cameras if watched.group == box)


def test_a_better_model_goes_on_and_a_worse_one_stops_at_the_first_box(fleet: RealFleet) -> None:
    services = fleet.controller.services
    eventually(
        lambda: (
            fleet.all_run() and all((b := services.state().boxes.get(box)) and b.report and b.report.cameras for box in BOXES)
        ),
        "both boxes report their cameras",
    )

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
