"""The CPU meter: what a thread's tensors hold and take, with real torch operations; and what the machine says of itself."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import edge.gpu.memory as memory
from edge.gpu.memory import MIB, NoMeter, TensorMeter, machine_mib, resident_mib


def mib(n: float) -> torch.Tensor:
    return torch.empty(int(n * MIB), dtype=torch.uint8)


def measured(meter: TensorMeter) -> tuple[float, float]:
    usage = meter.usage()
    assert usage is not None
    return usage.persistent_mib, usage.ephemeral_mib


def test_what_is_kept_persists_and_what_is_dropped_was_ephemeral() -> None:
    meter, kept = TensorMeter(), []
    with meter.measuring():
        kept.append(mib(3))
        mib(5)
        mib(7)
    assert measured(meter) == (3.0, 7.0)  # the 5 had gone when the 7 came


def test_the_peak_is_what_lived_at_one_moment() -> None:
    meter = TensorMeter()
    with meter.measuring():
        a = mib(5)
        b = mib(7)
        del a, b
        mib(4)
    assert measured(meter) == (0.0, 12.0)


def test_views_and_in_place_operations_take_nothing() -> None:
    meter = TensorMeter()
    with meter.measuring():
        a = mib(4)
        b = a.view(2, -1)[0]
        a.add_(1)
        del b
    assert measured(meter) == (4.0, 0.0)
    del a


def test_what_the_job_brought_along_counts_from_its_first_use() -> None:
    model = nn.Linear(512, 512, bias=False)  # 1 MiB
    meter = TensorMeter()
    with torch.inference_mode(), meter.measuring():
        pass
    assert measured(meter) == (0.0, 0.0)
    with torch.inference_mode(), meter.measuring():
        model(torch.zeros(1, 512))
    assert measured(meter)[0] == pytest.approx(1.0, abs=0.01)
    with meter.measuring():  # it is still there, although nothing touches it
        pass
    assert measured(meter)[0] == pytest.approx(1.0, abs=0.01)
    del model
    with meter.measuring():
        pass
    assert measured(meter) == (0.0, 0.0)


def test_a_training_step_holds_parameters_gradients_and_optimizer_state() -> None:
    model = nn.Linear(512, 512, bias=False)  # 1 MiB
    optimizer = torch.optim.AdamW(model.parameters())
    meter = TensorMeter()
    for _ in range(2):
        with meter.measuring():
            model(torch.zeros(64, 512)).square().sum().backward()
            optimizer.step()
    persistent, ephemeral = measured(meter)
    assert persistent == pytest.approx(4.0, abs=0.01)  # weights, gradient, two moments
    assert ephemeral > 0.1


def test_only_its_own_thread_counts() -> None:
    meter, others = TensorMeter(), []
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait()
        others.append(mib(50))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with meter.measuring():
        inside.set()
        done.wait()
    thread.join()
    assert measured(meter) == (0.0, 0.0)


def test_memory_that_another_thread_frees_is_free() -> None:
    meter, kept = TensorMeter(), []
    with meter.measuring():
        kept.append(mib(6))
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    with meter.measuring():
        pass
    assert measured(meter) == (0.0, 0.0)


def test_addresses_that_are_used_again_are_not_confused() -> None:
    """The allocator gives the same place to the next tensor of that size, thousands of times."""
    meter = TensorMeter()
    with meter.measuring():
        for _ in range(2000):
            mib(0.25)
        last = mib(0.25)
    assert measured(meter)[0] == pytest.approx(0.25)
    assert measured(meter)[1] <= 0.25
    del last


def test_a_body_that_raises_is_measured_too() -> None:
    meter = TensorMeter()
    with pytest.raises(ArithmeticError), meter.measuring():
        mib(9)
        raise ArithmeticError
    assert measured(meter) == (0.0, 9.0)


def test_resized_storage_counts_with_its_new_size() -> None:
    meter, growing = TensorMeter(), torch.empty(MIB, dtype=torch.uint8)
    with meter.measuring():
        growing.add_(1)
        growing.resize_(4 * MIB)
        growing.zero_()
    assert measured(meter)[0] == pytest.approx(4.0)


def test_without_a_meter_nothing_is_known() -> None:
    meter = NoMeter()
    with meter.measuring():
        mib(1)
    assert meter.usage() is None


def test_importing_it_does_not_load_torch() -> None:
    code = "import sys, edge.gpu.memory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the machine ------------------------------------------------------------------------------------------------------


def test_the_process_is_smaller_than_the_machine() -> None:
    resident = resident_mib()
    assert resident is None or 10.0 < resident < machine_mib()


@pytest.mark.parametrize(("limit", "wanted"), [("536870912", 512.0), ("max", None), ("9223372036854771712", None), ("", None)])
def test_a_containers_limit_counts_when_it_is_less(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, wanted: float | None
) -> None:
    file = tmp_path / "memory.max"
    file.write_text(limit)
    monkeypatch.setattr(memory, "CGROUP_LIMITS", ())
    machine = machine_mib()
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (str(file), str(tmp_path / "missing")))
    assert machine_mib() == (wanted if wanted is not None else machine)


def test_a_machine_that_says_nothing_is_taken_for_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CGROUP_LIMITS", ())
    monkeypatch.setattr(memory, "_meminfo_mib", lambda name: None)
    assert machine_mib() == memory.UNKNOWN_MIB
