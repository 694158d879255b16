"""`kill -9` at random moments: whatever the box was writing, what is found afterwards is whole, and nothing acknowledged is lost.

A helper process imports everything once and forks a writer per round (imports would take longer than the rounds). The writer
stores samples, labels, versions, swaps and journal lines as fast as it can and says on a pipe what has been done.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge.journal import read_segments
from edge.store.folder import DataFolder, check_version
from edge.store.store import ModelState, Store
from streams.samples import SampleStore

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 10

#: How every program goes on: each order is a fresh child that writes until it is killed.
FOR_EVER = """
tell("ready")
for order in sys.stdin:
    pid = os.fork()
    if pid == 0:
        sys.stdin.close()
        try:
            write_for_ever(int(order))
        except BaseException as error:
            tell("error", repr(error))
            os._exit(1)
    tell("pid", pid)
    os.waitpid(pid, 0)
    tell("dead")
"""

WRITER = r"""
import hashlib, itertools, json, os, sys, time
from pathlib import Path
import cv2, numpy as np
from edge.journal import Journal
from edge.store.folder import DataFolder
from edge.store.store import Store
from scheduler.types import Detections, Frame, ModelVersion
from streams.samples import SampleStore

cv2.setNumThreads(0)
root = Path(sys.argv[1])

def slow_write(fd, data):
    # Files grow in small steps, so that a kill often finds one half-written.
    time.sleep(0.0005)
    return os.write(fd, data[:2000])

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())

def write_for_ever(round_no):
    folder = DataFolder(root)
    store = Store(folder.db_path)
    folder.recover(store, at_utc=float(round_no))
    samples = SampleStore(folder.samples_dir, max_samples=60, prune_every=7, write=slow_write)
    journal = Journal(folder.events_dir, max_bytes=2**20, write=slow_write)
    rng = np.random.default_rng(round_no)
    image = rng.integers(0, 255, (120, 160, 3), dtype=np.uint8)
    boxes = Detections(xyxy=np.ones((3, 4), np.float32), score=np.ones(3, np.float32), class_id=np.zeros(3, np.int64))
    journal.start_segment(f"header {round_no}")
    for n in itertools.count():
        if n % 50 == 49:
            journal.start_segment(f"header {round_no}")
        journal.append(f"{round_no} {n} " + "x" * (n * 37 % 3000))
        tell("line", round_no, n)
        ref = samples.add(Frame(stream="yard", seq=n % 90, captured_s=0.0, captured_utc=0.0, image=image), round_no)
        samples.label(ref, boxes, "golden", "train" if n % 2 else "holdout")
        if n % 2 == 0:
            id = f"yard-{round_no}-{n}"
            content = bytes([n % 256]) * 50_000
            sha = hashlib.sha256(content).hexdigest()
            with folder.new_version("yard", id) as part:
                with open(part / "weights.safetensors", "wb", buffering=0) as file:
                    for start in range(0, len(content), 10_000):
                        slow_write(file.fileno(), b"")
                        file.write(content[start : start + 10_000])
                (part / "manifest.json").write_text(json.dumps({"sha256": sha, "arch": "tiny"}))
            store.add_model(ModelVersion(id=id, stream="yard", parent=None, arch="tiny", sha256=sha), at_utc=float(n))
            if n % 4 == 0:
                tell("serving", id)
                store.serve(id, at_utc=float(n))
                tell("serves", id)
        store.add_note(float(n), "c", "n")

"""


class Helper:
    def __init__(self, root: Path, program: str = WRITER) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program + FOR_EVER, str(root)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def round(self, number: int, delay_s: float, served: int) -> list[str]:
        """Lets a writer work until it has served so many versions and `delay_s` longer, kills it, and returns all it has said."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        said: list[str] = []
        pid = 0
        while not (pid and self._did(said, served)):
            line = self._line()
            said.append(line)
            if line.startswith("pid"):
                pid = int(line.split()[1])
        time.sleep(delay_s)
        os.kill(pid, signal.SIGKILL)
        while said[-1] != "dead":
            said.append(self._line())
        return said

    @staticmethod
    def _did(said: list[str], served: int) -> bool:
        """As much as it was to do before the kill, or it failed."""
        begun, done = (sum(s.startswith(word) for s in said) for word in ("line", "serves "))
        return (begun > 0 and done >= served) or any(s.startswith("error") for s in said)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def check_samples(folder: DataFolder) -> None:
    samples = SampleStore(folder.samples_dir)
    for ref in samples.list("yard"):
        assert samples.load_image(ref).shape == (120, 160, 3)
    for ref in samples.list("yard", labelled=True):
        assert len(samples.load_labels(ref).detections) == 3


def check_journal(folder: DataFolder, said: list[str]) -> None:
    last: dict[str, int] = {}
    for segment in read_segments(folder.events_dir):
        assert not segment.lines or segment.lines[0].startswith("header ")
        for line in segment.lines[1:]:
            round_no, n, body = line.split(" ")
            assert int(n) == last.get(round_no, int(n) - 1) + 1, "a hole"
            assert body == "x" * (int(n) * 37 % 3000)
            last[round_no] = int(n)
    for words in (s.split() for s in said if s.startswith("line")):
        assert last[words[1]] >= int(words[2]), "an acknowledged line is gone"


def check_models(folder: DataFolder, store: Store, said: list[str]) -> None:
    store.check()
    for path in (folder.models_dir / "yard").glob("yard-*"):
        assert check_version(path, True) is None, "a version has its name before it is whole"
    acknowledged = [s.split()[1] for s in said if s.startswith("serves ")]
    begun = [s.split()[1] for s in said if s.startswith("serving ")]
    served = store.serving().get("yard")
    if acknowledged:
        assert served is not None
        assert served.id in (acknowledged[-1], begun[-1]), "the last admitted model does not serve"
    for model in store.models():
        if model.state in (ModelState.SERVING, ModelState.RETIRED):
            assert check_version(folder.version_dir("yard", model.version.id), True) is None


@pytest.mark.slow
def test_ten_kills_leave_ten_whole_folders(tmp_path: Path) -> None:
    root = tmp_path / "data"
    rng = random.Random(20)
    helper = Helper(root)
    said: list[str] = []
    try:
        for number in range(ROUNDS):
            said += helper.round(number, rng.uniform(0.0, 0.1), number % 4)
            assert not [s for s in said if s.startswith("error")]
            with DataFolder(root) as folder, Store(folder.db_path) as store:
                check_samples(folder)  # also before anything is put in order
                check_journal(folder, said)
                check_models(folder, store, said)
                folder.recover(store, at_utc=1e6)
                assert folder.recover(store, at_utc=1e6) == []
                assert not list(root.rglob(".tmp-*"))
                check_samples(folder)
                check_models(folder, store, said)
                assert not [m for m in store.models() if m.state is ModelState.CANDIDATE]
                on_disk = {p.name for p in (folder.models_dir / "yard").iterdir()}
                in_use = {m.version.id for m in store.models() if m.state is not ModelState.REJECTED}
                assert on_disk == in_use
    finally:
        helper.close()
    assert len([s for s in said if s.startswith("serves ")]) > ROUNDS  # some died early, and some did something before


def test_a_file_size_limit_of_the_system_is_survived(tmp_path: Path) -> None:
    """A real refusal by the kernel (EFBIG, as with a quota), in a process of its own: errors of ours, nothing half."""
    code = r"""
import resource, sys
from pathlib import Path
import numpy as np
from configs.errors import StorageError
from edge.journal import Journal, read_segments
from edge.store.store import Store
from scheduler.types import Frame
from streams.samples import SampleStore

root = Path(sys.argv[1])
journal, samples = Journal(root / "events"), SampleStore(root / "samples")
store = Store(root / "x.db")
journal.start_segment("h")
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
codes = []
try:
    for n in range(10_000):
        journal.append(f"{n:0100d}")
except StorageError as error:
    codes.append(error.code)
(segment,) = read_segments(root / "events")
assert not segment.torn and segment.lines[1:] == tuple(f"{i:0100d}" for i in range(n)), (n, len(segment.lines))
noise = np.random.default_rng(0).integers(0, 255, (400, 600, 3), dtype=np.uint8)
try:
    samples.add(Frame(stream="a", seq=1, captured_s=0.0, captured_utc=0.0, image=noise), 0)
except StorageError as error:
    codes.append(error.code)
assert samples.list("a") == [] and not [p for p in (root / "samples").rglob("*") if p.is_file()]
try:
    for n in range(10_000):
        store.add_note(0.0, "c", "x" * 500)
except StorageError as error:
    codes.append("db")
assert len(store.notes(10_000)) == n
print(*codes)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["full", "full", "db"]


# --- versions that come in, serve, are tidied away ----------------------------------------------------------------------

LIBRARIAN = r"""
import itertools, os, sys, zipfile
from pathlib import Path
import torch
from edge.clock import SystemClock
from edge.models_exchange import export_model, import_model
from edge.models_admin import pin, promote, rollback
from edge.shelf import Retention, Shelf
from edge.store.folder import DataFolder
from edge.store.store import Store
from models.fake import FakeDetector
from models.zoo import EDGE, ZOO, ZooEntry
from scheduler.types import RetrainConfig

torch.set_num_threads(1)
root = Path(sys.argv[1])

def build(spec, state, device, seed):
    detector = FakeDetector()
    if state is not None:
        detector.load_state(state)
    return detector

ZOO["fake"] = ZooEntry(arch="fake", role=EDGE, input_px=128, build=build, bundled=True)
import models.zoo
models.zoo._bundled_state = lambda arch: FakeDetector().state()

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())

def write_for_ever(round_no):
    folder = DataFolder(root)
    store = Store(folder.db_path)
    folder.recover(store, at_utc=float(round_no))
    shelf = Shelf(folder, store, SystemClock(), Retention(keep_versions=2))
    shelf.ensure("yard", "fake")
    bundle = root.parent / f"{round_no}.driftbox"
    tell("line", round_no)
    for n in itertools.count():
        serving = shelf.serving_version("yard").id
        config = RetrainConfig(name="x")
        made = shelf.keep_candidate("yard", parent=serving, detector=FakeDetector(skill=0.5), config=config, window=n)
        tell("serving", made.id)
        shelf.admit("yard", made.id, 0.5)
        tell("serves", made.id)
        bundle.unlink(missing_ok=True)
        export_model(root, made.id, bundle)
        taken = import_model(root, bundle)
        tell("taken", taken["version"])
        if n % 3 == 0:
            pin(root, taken["version"], pinned=n % 2 == 0)
            tell("serving", taken["version"])
            promote(root, taken["version"], force=True)
            tell("serves", taken["version"])
        if n % 4 == 3:
            failed, back = shelf.serving_version("yard").id, shelf.replaced("yard")
            if back is not None:
                tell("serving", back)
                shelf.put_back("yard", failed=failed, version=back, reason="a test")
                tell("serves", back)

"""


def check_versions(folder: DataFolder, store: Store, said: list[str]) -> None:
    """What serves is what was acknowledged last or was about to; every version that may serve is whole."""
    store.check()
    acknowledged, begun = ([s.split()[1] for s in said if s.startswith(word)] for word in ("serves ", "serving "))
    serving = store.serving()["yard"].id
    if acknowledged:
        assert serving in (acknowledged[-1], begun[-1])
    for model in store.models("yard"):
        if model.state is not ModelState.REJECTED:
            assert check_version(folder.version_dir("yard", model.version.id), True) is None, model.version.id


@pytest.mark.slow
def test_ten_kills_while_versions_come_and_go_leave_whole_ones(tmp_path: Path) -> None:
    root = tmp_path / "data"
    rng = random.Random(21)
    helper = Helper(root, LIBRARIAN)
    said: list[str] = []
    try:
        for number in range(ROUNDS):
            said += helper.round(number, rng.uniform(0.0, 0.2), number % 5)
            assert not [s for s in said if s.startswith("error")]
            with DataFolder(root) as folder, Store(folder.db_path) as store:
                check_versions(folder, store, said)  # also before anything is put in order
                folder.recover(store, at_utc=1e6)
                assert folder.recover(store, at_utc=1e6) == []
                check_versions(folder, store, said)
                taken = {s.split()[1] for s in said if s.startswith("taken")}
                rows = {m.version.id: m for m in store.models("yard")}
                assert taken <= rows.keys(), "what was acknowledged as taken in is recorded"
                on_disk = {p.name for p in (folder.models_dir / "yard").iterdir()}
                in_use = {id for id, m in rows.items() if m.state is not ModelState.REJECTED or m.pinned}
                assert {id for id in in_use if rows[id].state is not ModelState.REJECTED} <= on_disk <= in_use
                assert not list(root.rglob(".tmp-*"))
                alive = [m for m in rows.values() if m.state is not ModelState.REJECTED and not m.pinned]
                assert len(alive) <= 2 + 3 + 1, "retention goes on after a kill"
    finally:
        helper.close()
    assert len([s for s in said if s.startswith("serves ")]) > ROUNDS
    assert [s for s in said if s.startswith("taken")]
