"""Thread percentages and memory limits of MPS clients, and the clock that charges for work done elsewhere. No process is made."""

from __future__ import annotations

import inspect
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.clock import FakeClock
from edge.gpu.executor import Executor
from edge.gpu.lanes import CpuDevice
from edge.gpu.mps import CONTEXT_MIB, LIMIT_FACTOR, MpsBackend, limit_mib, next_pct
from edge.gpu.remote import RemoteClock
from edge.gpu.worker import is_poisoned
from scheduler.salus.types import MemoryNeed


@pytest.mark.parametrize(
    ("share", "pct"), [(0.0, 10), (0.1, 10), (10.0, 10), (10.1, 20), (33.0, 40), (90.0, 90), (99.0, 100), (100.0, 100)]
)
def test_a_new_process_gets_the_step_above_its_share(share: float, pct: float) -> None:
    assert next_pct(None, share) == pct


@pytest.mark.parametrize(
    ("current", "share", "pct"),
    [
        (30.0, 29.0, 30),
        (30.0, 31.0, 30),  # a point above its step: not worth a process
        (30.0, 32.5, 30),
        (30.0, 32.6, 40),
        (30.0, 20.0, 30),
        (30.0, 18.0, 30),
        (30.0, 17.5, 20),
        (30.0, 3.0, 10),
        (100.0, 50.0, 50),
        (10.0, 0.0, 10),
        (20.0, 95.0, 100),
    ],
)
def test_a_running_process_keeps_its_percentage_while_it_fits(current: float, share: float, pct: float) -> None:
    assert next_pct(current, share) == pct


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.sampled_from([5, 10, 20, 25]))
def test_percentages_carry_the_share_and_do_not_swing(shares: list[float], step: int) -> None:
    current: float | None = None
    for share in shares:
        current = next_pct(current, share, step)
        assert step <= current <= 100
        assert current >= min(100.0, share) - step / 4 - 1e-6
        assert current <= share + 1.25 * step + step
        for near in (share - 1.0, share + 1.0):  # a change of one point and back costs two processes at no place
            there = next_pct(current, min(100.0, max(0.0, near)), step)
            assert next_pct(there, share, step) == there


def test_a_process_is_limited_to_what_its_job_needs_and_a_context() -> None:
    assert limit_mib(None) is None
    assert limit_mib(MemoryNeed(persistent_mib=1000.0, ephemeral_mib=600.0)) == LIMIT_FACTOR * 1600.0 + CONTEXT_MIB


def test_work_done_elsewhere_is_charged_to_the_thread_that_waited() -> None:
    base = FakeClock()
    clock = RemoteClock(base)
    seen: dict[str, float] = {}

    def waits() -> None:
        with clock.elsewhere() as computed:
            base.sleep(2.0)
            computed(1.5)
        seen["waits"] = clock.thread_cpu_s()

    def copies() -> None:
        with clock.elsewhere() as computed:
            base.work(0.5)  # its own time while it waits is not charged on top
            computed(1.5)
        base.work(0.25)
        seen["copies"] = clock.thread_cpu_s()

    def fails() -> None:
        with pytest.raises(ArithmeticError), clock.elsewhere() as computed:
            computed(1.0)
            raise ArithmeticError
        seen["fails"] = clock.thread_cpu_s()

    for body in (waits, copies, fails):
        base.spawn(body)
    base.advance_to(10.0)
    base.join()
    assert seen == {"waits": 1.5, "copies": 1.75, "fails": 1.0}
    assert clock.thread_cpu_s(threading.get_ident()) == 0.0
    assert (clock.monotonic_s(), clock.utc_s()) == (base.monotonic_s(), base.utc_s())


@pytest.mark.parametrize(
    ("text", "poisoned"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: MPS client has been terminated", True),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", True),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", False),
        ("CUDA error: out of memory", False),
        ("index 3 is out of range", False),
    ],
)
def test_what_a_context_does_not_survive(text: str, poisoned: bool) -> None:
    assert is_poisoned(RuntimeError(text)) is poisoned


def test_nothing_of_the_executor_is_hidden_by_accident() -> None:
    """The backend is an executor with processes: a name that both use for different things would break one of them."""
    clock = FakeClock()
    core = set(vars(Executor(CpuDevice(clock=clock), clock=clock)))
    own = set(re.findall(r"self\.(\w+)(?:: [^=\n]+)? = |self\.(\w+), ", inspect.getsource(MpsBackend.__init__)))
    assigned = {name for pair in own for name in pair if name}
    assert "_detectors" in assigned
    assert not assigned & core
    assert not assigned & set(dir(Executor))
    assert not set(vars(MpsBackend)) & core
    meant = {"open_lane", "close_lane", "set_shares", "change_cost", "close", "name", "_give_up", "_look_for_hung"}
    assert {name for name in set(vars(MpsBackend)) & set(dir(Executor)) if not name.startswith("__")} == meant
