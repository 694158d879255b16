"""GPUs that are slowed or lost make the box degraded: the rule, and what the watchdog tells of it on Health, MQTT and `/metrics`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.clock import FakeClock
from edge.gpu.base import DeviceFacts
from edge.gpu.fake_nvml import FakeGpu, FakeNvml
from edge.gpu.nvml import DeviceReader, slowed_by
from edge.metrics import Gathered, ProcessUse, render
from edge.status import DeviceView
from edge.telemetry.topics import state_body
from edge.watchdog.devices import FREE_S, HELD_S, DeviceAlarm, Slowed, judged
from edge.watchdog.live import Watchdog
from edge.web.fake import FakeSource

HOT = DeviceFacts(index=0, name="Fake", memory_total_mib=1, memory_used_mib=0, throttled=("too warm (driver)",))
COOL = replace(HOT, throttled=())


class Bench:
    """A watchdog that looks once a second at devices which a test sets."""

    def __init__(self, *devices: DeviceFacts) -> None:
        self.clock, self.devices = FakeClock(), devices
        self.watchdog = Watchdog(clock=self.clock)
        self.watchdog.more_conditions.append(DeviceAlarm(lambda: self.devices, self.clock))

    def looks(self, seconds: float) -> tuple[str, ...]:
        for _ in range(int(seconds)):
            self.clock.advance_to(self.clock.monotonic_s() + 1.0)
            self.watchdog.look()
        return self.watchdog.degraded()


def test_it_is_said_after_a_minute_and_over_after_a_cool_one() -> None:
    bench = Bench(HOT)
    assert bench.looks(HELD_S) == ()
    told = ("GPU 0 (Fake) is slowed: too warm (driver); shares of it are worth less, look at its cooling and supply",)
    assert bench.looks(1) == told
    bench.devices = (COOL,)
    assert bench.looks(FREE_S - 1) == told
    assert bench.looks(1) == ()
    bench.devices = (HOT,)
    assert bench.looks(HELD_S) == (), "it begins anew"


def test_short_breaks_do_not_hide_it() -> None:
    bench = Bench(HOT)
    for _ in range(4):
        bench.devices = (HOT,)
        bench.looks(10)
        bench.devices = (COOL,)
        bench.looks(10)
    bench.devices = (HOT,)
    assert len(bench.looks(1)) == 1


def test_reasons_that_come_and_go_do_not_change_the_sentence_back_and_forth() -> None:
    """systemd and MQTT are told whenever the words change."""
    bench, other = Bench(HOT), replace(HOT, throttled=("too hot (hardware)",))
    bench.looks(HELD_S + 1)
    said = set()
    for _ in range(10):
        for facts in (other, HOT):
            bench.devices = (facts,)
            said |= set(bench.looks(1))
    assert [words for words in said if "too warm (driver), too hot (hardware)" in words] == list(said)


@pytest.mark.parametrize(
    "words", ["power limit", "clocks set by the operator", "clocks of the display", "waits for a slower GPU (sync boost)"]
)
def test_a_gpu_that_works_hard_or_is_set_so_is_well(words: str) -> None:
    assert slowed_by((words,)) == ()
    assert Bench(replace(HOT, throttled=(words,))).looks(3 * HELD_S) == ()


def test_one_that_cannot_be_used_is_said_at_once() -> None:
    bench = Bench(COOL, replace(COOL, index=1, problem="the GPU is lost: it no longer answers on its bus"))
    assert bench.looks(1) == ("GPU 1 (Fake) cannot be used: the GPU is lost: it no longer answers on its bus",)


def test_every_gpu_has_an_alarm_of_its_own() -> None:
    bench = Bench(HOT, replace(HOT, index=1))
    bench.looks(HELD_S + 1)
    bench.devices = (COOL, replace(HOT, index=1))
    assert [words[:5] for words in bench.looks(FREE_S)] == ["GPU 1"]


@given(st.lists(st.tuples(st.floats(0.1, 90.0), st.booleans()), max_size=40))
def test_whatever_comes_it_is_never_said_before_a_minute_and_never_kept_longer(looks: list[tuple[float, bool]]) -> None:
    at_s, state, first_s, newest_s = 0.0, dict[int, Slowed](), None, None
    for step_s, hot in looks:
        at_s += step_s
        state = judged(state, (HOT if hot else COOL,), at_s=at_s)
        if newest_s is not None and at_s - newest_s >= FREE_S:
            first_s = newest_s = None
        if hot:
            first_s, newest_s = at_s if first_s is None else first_s, at_s
        assert (0 in state) == (newest_s is not None)
        if first_s is not None and newest_s is not None:
            assert state[0].lasts == (newest_s - first_s >= HELD_S)


def test_from_the_driver_to_mqtt_and_prometheus() -> None:
    """The bits of NVML, read as a box reads them, end in words at the broker and in numbers at `/metrics`."""
    reader = DeviceReader(FakeNvml([FakeGpu(throttle=0x40)]))
    bench = Bench(*reader.read().facts)
    degraded = bench.looks(HELD_S + 1)
    device = bench.devices[0]
    view = DeviceView(index=0, name=device.name, memory_total_mib=1, memory_used_mib=0, throttled=device.throttled)
    status = FakeSource().status().model_copy(update={"degraded": degraded, "devices": (view,)})
    (words,) = state_body(status, obeys=False)["degraded"]
    assert "is slowed: too hot (hardware)" in words
    process = ProcessUse(resident_bytes=1, cpu_s=1, threads=1, open_files=1)
    numbers = render(Gathered(status=status, degraded=degraded, process=process)).decode()
    assert 'driftbox_device_slowed{device="0"} 1.0' in numbers
    assert "driftbox_degraded 1.0" in numbers
