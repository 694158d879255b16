"""What the box knows of its GPUs: read through NVML (here the fake), whatever the driver answers; trouble is told once."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from configs.errors import UsageError
from edge.gpu import mig_card, nvml
from edge.gpu.fake_nvml import PROFILES, FakeGpu, FakeMig, FakeNvml
from edge.gpu.nvml import BY_CHOICE, DeviceProcess, DeviceReader, DeviceWatch, throttle_words


def reader(fake: FakeNvml) -> tuple[DeviceReader, list[str]]:
    told: list[str] = []
    return DeviceReader(fake, tell=told.append), told


def test_the_fake_has_only_functions_that_pynvml_has_with_the_same_arguments() -> None:
    functions = {name for name in vars(FakeNvml) if name.startswith("nvml")}
    assert len(functions) > 15
    for name in functions:
        ours = list(inspect.signature(getattr(FakeNvml, name)).parameters)[1:]
        assert ours == list(inspect.signature(getattr(pynvml, name)).parameters), name


def test_all_that_the_reader_asks_is_asked_of_the_fake_too() -> None:
    used = {
        word.split("(")[0] for word in Path(nvml.__file__).read_text().replace("nvml.nvml", "\nnvml.nvml").split("\nnvml.")[1:]
    }
    used = {name.rstrip(")") for name in used if name.startswith("nvmlDevice")}
    assert len(used) > 12
    assert used <= set(vars(FakeNvml))


def test_all_that_is_asked_to_divide_a_gpu_is_asked_of_the_fake_too() -> None:
    used = set(re.findall(r"\bnvml\w+Instance\w*|\bnvmlDevice\w+", Path(mig_card.__file__).read_text()))
    assert len(used) > 14
    assert used <= set(vars(FakeNvml))


def test_the_profiles_of_the_fake_are_numbered_as_nvml_does() -> None:
    for number, _, name, slices, _, _ in PROFILES:
        assert name.startswith(f"{slices}g.")
        assert number == getattr(pynvml, f"NVML_GPU_INSTANCE_PROFILE_{slices}_SLICE")


def test_every_word_for_a_slow_clock_stands_for_the_bit_of_nvml() -> None:
    reasons = {name: value for name, value in vars(pynvml).items() if name.startswith("nvmlClocksThrottleReason") and value}
    named = {bit for bit, _ in nvml.THROTTLE_WORDS}
    idle, everything = pynvml.nvmlClocksThrottleReasonGpuIdle, pynvml.nvmlClocksThrottleReasonAll
    assert named | {idle} == {value for value in reasons.values() if value != everything}
    assert dict(nvml.THROTTLE_WORDS)[pynvml.nvmlClocksEventReasonSwPowerCap] == "power limit"
    assert dict(nvml.THROTTLE_WORDS)[pynvml.nvmlClocksEventReasonHwThermalSlowdown] == "too hot (hardware)"
    assert dict(nvml.THROTTLE_WORDS)[pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown].startswith("power brake")
    assert throttle_words(idle) == ()
    assert throttle_words(pynvml.nvmlClocksEventReasonSwPowerCap | idle) == ("power limit",)
    assert set(BY_CHOICE) < set(dict(nvml.THROTTLE_WORDS).values())


def test_every_error_in_the_table_is_one_of_nvml() -> None:
    for name in nvml._TROUBLE:
        assert isinstance(getattr(pynvml, name), int)


def test_a_device_with_everything() -> None:
    gpu = FakeGpu(name="NVIDIA H200", uuid="GPU-1", memory_mib=141_000, used_mib=2_000, utilisation_pct=12, temperature_c=61,
                  power_w=301.5, throttle=0x44, ecc_errors=3, processes=[(42, 1_500), (43, None)])  # fmt: skip
    fake = FakeNvml([gpu], driver="580.1")
    survey = reader(fake)[0].read()
    facts = survey.facts[0]
    assert (survey.driver, survey.reason, survey.code) == ("580.1", "", "")
    assert (facts.index, facts.name, facts.uuid, facts.memory_total_mib, facts.memory_used_mib) == (
        0,
        "NVIDIA H200",
        "GPU-1",
        141_000,
        2_000,
    )
    assert (facts.utilisation_pct, facts.temperature_c, facts.power_w, facts.ecc_errors, facts.mig) == (12, 61, 301.5, 3, False)
    assert facts.throttled == ("power limit", "too hot (hardware)")
    assert survey.devices[0].processes == (DeviceProcess(pid=42, used_mib=1_500), DeviceProcess(pid=43, used_mib=None))
    assert survey.usable == survey.devices


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        ("LIBRARY_NOT_FOUND", "no_driver", "--gpus all"),
        ("DRIVER_NOT_LOADED", "no_driver", "modprobe"),
        ("LIB_RM_VERSION_MISMATCH", "driver_mismatch", "restart"),
        ("NO_PERMISSION", "no_permission", "/dev/nvidia"),
        ("OPERATING_SYSTEM", "no_permission", "/dev/nvidia"),
        ("UNKNOWN", "nvml", "nvidia-smi"),
        ("TIMEOUT", "nvml", "nvidia-smi"),
    ],
)
def test_a_driver_that_does_not_start_is_a_reason_and_no_crash(error: str, code: str, words: str) -> None:
    fake = FakeNvml([FakeGpu()])
    fake.fail("nvmlInit", error)
    looks, told = reader(fake)
    survey = looks.read()
    assert (survey.devices, survey.code) == ((), code)
    assert survey.reason
    assert words in survey.remedy
    assert told == [], "most boxes have no driver: no news"
    fake.heal()
    assert len(looks.read().devices) == 1, "asked again at the next look"


def test_without_the_package_there_are_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(nvml.FAKE_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    survey = DeviceReader().read()
    assert (survey.devices, survey.code) == ((), "no_nvml")
    assert "pip install nvidia-ml-py" in survey.remedy


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "NO_DATA", "UNKNOWN"])
def test_a_value_that_is_not_offered_is_none_and_the_others_are_there(error: str) -> None:
    fake = FakeNvml([FakeGpu(throttle=0x4)])
    for function in (
        "Power",
        "Temperature",
        "Utilization",
        "EccMode",
        "MigMode",
        "ComputeRunning",
        "CurrentClocks",
        "Memory",
        "UUID",
    ):
        fake.fail(f"nvmlDeviceGet{function}", error)
    looks, told = reader(fake)
    facts = looks.read().facts[0]
    assert (facts.power_w, facts.temperature_c, facts.utilisation_pct, facts.ecc_errors) == (None, None, None, None)
    assert (facts.throttled, facts.mig, facts.uuid, facts.memory_total_mib) == ((), False, "", 0.0)
    assert (facts.name, facts.problem, told) == ("NVIDIA Fake 80GB", "", [])


def test_an_older_driver_is_asked_by_the_older_name() -> None:
    fake = FakeNvml([FakeGpu(throttle=0x20)])
    fake.fail("nvmlDeviceGetCurrentClocksEventReasons", "FUNCTION_NOT_FOUND")
    assert reader(fake)[0].read().facts[0].throttled == ("too warm (driver)",)


def test_only_uncorrected_ecc_errors_count_and_no_ecc_is_none() -> None:
    survey = reader(FakeNvml([FakeGpu(ecc_errors=2), FakeGpu(ecc_errors=None)]))[0].read()
    assert [f.ecc_errors for f in survey.facts] == [2, None]


@pytest.mark.parametrize(("error", "code"), [("GPU_IS_LOST", "gpu_lost"), ("RESET_REQUIRED", "gpu_reset")])
@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo"])
def test_a_gpu_that_disappears_is_told_once_with_its_remedy_and_the_other_goes_on(error: str, code: str, function: str) -> None:
    fake = FakeNvml([FakeGpu(name="A"), FakeGpu(name="B", power_w=99)])
    looks, told = reader(fake)
    looks.read()
    fake.fail(function, error, device=1)
    for _ in range(3):
        survey = looks.read()
    assert [d.code for d in survey.devices] == ["", code]
    lost = survey.facts[1]
    assert (lost.name, lost.power_w, lost.memory_total_mib) == ("B", None, 81_920), "what does not change is still known"
    assert lost.problem
    assert survey.usable == survey.devices[:1]
    assert len(told) == 1
    assert told[0].startswith("GPU 1 (B): ")
    assert "restart the machine" in told[0]
    assert "INDEX" not in told[0]
    fake.heal()
    assert not looks.read().devices[1].code
    assert told[1:] == ["GPU 1 (B): answers again"]


def test_a_gpu_that_is_gone_before_the_first_look_has_no_name_but_a_problem() -> None:
    fake = FakeNvml([FakeGpu(), FakeGpu()])
    fake.fail("nvmlDeviceGetHandleByIndex", "GPU_IS_LOST", device=0)
    looks, told = reader(fake)
    survey = looks.read()
    assert (survey.facts[0].name, survey.devices[0].code, survey.devices[1].code) == ("GPU 0", "gpu_lost", "")
    assert len(told) == 1


def test_a_gpu_that_is_not_counted_any_more_is_lost_too() -> None:
    fake = FakeNvml([FakeGpu(name="A"), FakeGpu(name="B")])
    looks, told = reader(fake)
    looks.read()
    fake.gpus.pop()
    assert [d.code for d in looks.read().devices] == ["", "gpu_lost"]
    assert len(told) == 1


def test_a_driver_that_goes_away_is_told_once_and_so_is_its_return() -> None:
    fake = FakeNvml([FakeGpu()])
    looks, told = reader(fake)
    looks.read()
    fake.fail("nvmlSystemGetDriverVersion", "DRIVER_NOT_LOADED")
    for _ in range(3):
        assert looks.read().devices == ()
    assert len(told) == 1
    assert "modprobe" in told[0]
    fake.heal()
    assert len(looks.read().devices) == 1
    assert told[1:] == ["driver: answers again"]


def test_the_driver_is_taken_once_and_given_back() -> None:
    fake = FakeNvml([FakeGpu()])
    looks, _ = reader(fake)
    looks.read()
    looks.read()
    assert (fake.users, fake.calls.count("nvmlInit")) == (1, 1)
    looks.close()
    looks.close()
    assert fake.users == 0
    looks.read()
    fake.fail("nvmlShutdown", "UNKNOWN")
    looks.close()


def test_mig_instances_are_found_although_their_numbers_have_holes() -> None:
    parts = [FakeMig(profile="3g.71gb", slices=3, memory_mib=71_000, used_mib=10), FakeMig(slices=2, compute_slices=1)]
    fake = FakeNvml([FakeGpu(name="NVIDIA H200"), FakeGpu(name="NVIDIA H200", mig=parts)])
    fake.fail("nvmlDeviceGetMigDeviceHandleByIndex", "NOT_FOUND", device=1, times=1)
    survey = reader(fake)[0].read()
    assert [f.mig for f in survey.facts] == [False, True]
    assert survey.facts[1].utilisation_pct is None
    assert [i.uuid for i in survey.instances] == ["MIG-fake-1-1"]
    survey = reader(fake)[0].read()
    large, small = survey.instances
    assert (large.uuid, large.gpu, large.slices, large.of_slices, large.memory_used_mib) == ("MIG-fake-1-0", 1, 3, 7, 10)
    assert large.name == "NVIDIA H200 MIG 3g.71gb"
    assert large.size_pct == pytest.approx(300 / 7)
    assert small.slices == 1, "what computes is the compute instance"


def test_an_instance_that_is_destroyed_while_we_look_costs_only_itself() -> None:
    fake = FakeNvml([FakeGpu(mig=[FakeMig(), FakeMig()])])
    fake.fail("nvmlDeviceGetAttributes_v2", "NOT_FOUND", times=1)
    survey = reader(fake)[0].read()
    assert [i.uuid for i in survey.instances] == ["MIG-fake-0-1"]
    assert survey.devices[0].code == ""


def test_a_watch_keeps_the_newest_and_its_thread_ends() -> None:
    fake = FakeNvml([FakeGpu(temperature_c=50)])
    watch = DeviceWatch(reader(fake)[0], every_s=3600)
    watch.start()
    fake.gpus[0].temperature_c = 70
    assert watch.facts()[0].temperature_c == 50
    watch.look()
    assert watch.newest().facts[0].temperature_c == 70
    watch.stop()
    assert fake.users == 0
    none = DeviceWatch(reader(FakeNvml())[0])
    none.start()
    assert not none._thread.is_alive(), "nothing to watch"
    none.stop()


def test_the_fake_is_switched_on_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script: dict[str, Any] = {
        "gpus": [{"name": "NVIDIA H200", "mig": [{"slices": 3}], "processes": [[7, 100]]}, {"name": "other"}],
        "faults": [{"function": "nvmlDeviceGetPowerUsage", "error": "NOT_SUPPORTED", "device": 0}],
        "driver": "1.2",
    }
    (tmp_path / "gpus.json").write_text(json.dumps(script))
    for value in (json.dumps(script), str(tmp_path / "gpus.json")):
        monkeypatch.setenv(nvml.FAKE_VARIABLE, value)
        survey = DeviceReader().read()
        assert (survey.driver, [f.name for f in survey.facts]) == ("1.2", ["NVIDIA H200", "other"])
        assert [f.power_w for f in survey.facts] == [None, 120.5]
        assert survey.devices[0].processes[0].pid == 7


@pytest.mark.parametrize(
    "script",
    [
        "/no/such/file",
        "{",
        '{"gpus": [{"colour": 1}]}',
        '{"cpus": []}',
        '{"faults": [{"function": "nvmlInit", "error": "NONE"}]}',
        '{"gpus": 3}',
    ],
)
def test_a_script_that_cannot_be_is_named(script: str) -> None:
    with pytest.raises(UsageError, match="fake NVML") as caught:
        FakeNvml.from_script(script)
    assert "DRIFTBOX_FAKE_NVML" in caught.value.subject
    assert caught.value.remedy


def test_a_script_that_cannot_be_is_a_reason_for_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nvml.FAKE_VARIABLE, "{")
    survey = DeviceReader().read()
    assert survey.devices == ()
    assert "fake NVML" in survey.reason


def test_the_fake_answers_nobody_who_has_not_begun() -> None:
    with pytest.raises(pynvml.NVMLError):
        FakeNvml([FakeGpu()]).nvmlDeviceGetCount()
