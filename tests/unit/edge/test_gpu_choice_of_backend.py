"""From configuration and devices to a backend: what cannot be kept is said with its remedy before anything is built."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from configs.errors import EnvironmentLacking
from configs.schema import GpusSection
from edge.clock import FakeClock
from edge.gpu import choose
from edge.gpu.choose import VISIBLE, build_backend, chosen_instance, facts_of, why_not
from edge.gpu.cuda_lanes import MAX_LANES
from edge.gpu.executor import Executor
from edge.gpu.fake_nvml import FakeGpu, FakeMig, FakeNvml
from edge.gpu.lanes import CpuDevice, LaneBackend
from edge.gpu.mig import MigBackend
from edge.gpu.none import NoShares
from edge.gpu.nvml import DeviceReader, Survey
from edge.wiring.wide import gpus_of
from scheduler.salus.policies import lane_policy

PARTS = [FakeMig(profile="1g.18gb", slices=1, memory_mib=18_000), FakeMig(profile="3g.71gb", slices=3, memory_mib=71_000)]


def gpus(text: str) -> GpusSection:
    return GpusSection(**yaml.safe_load(text))


def survey_of(*found: FakeGpu, fault: str = "", device: int | None = None) -> Survey:
    fake = FakeNvml(found)
    if fault:
        fake.fail("nvml" if device is None else "nvmlDeviceGetPowerUsage", fault, device=device)
    return DeviceReader(fake, tell=lambda _: None).read()


@pytest.fixture
def on_clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """CUDA devices are cores in virtual time."""
    clock = FakeClock()
    monkeypatch.setattr(choose, "cuda_device", lambda gpus, clock, facts: Facts(clock, facts, gpus.memory_mib))
    return clock


class Facts(CpuDevice):
    def __init__(self, clock: FakeClock, facts: object, memory_mib: int | None) -> None:
        super().__init__(clock=clock)
        self.memory_mib, self.capacity_pct = float(memory_mib or 1000), 100
        self.facts = facts  # type: ignore[assignment, method-assign]


def built(text: str, survey: Survey, clock: FakeClock, environ: dict[str, str] | None = None) -> object:
    where = {} if environ is None else environ
    return build_backend(gpus(text), data_dir=Path("data"), clock=clock, look=lambda: survey, environ=where)


def test_on_a_cpu_no_gpu_is_asked_for_and_none_is_lacking() -> None:
    assert why_not(gpus("{}"), survey_of(fault="DRIVER_NOT_LOADED")) is None
    assert why_not(gpus("{backend: none}"), survey_of()) is None


@pytest.mark.parametrize(
    ("text", "survey", "code", "words", "remedy"),
    [
        ("{device: cuda}", survey_of(fault="LIBRARY_NOT_FOUND"), "no_driver", "no NVIDIA driver", "gpus.device: cpu"),
        ("{device: cuda}", survey_of(fault="NO_PERMISSION"), "no_permission", "may not ask", "/dev/nvidia"),
        ("{device: cuda}", survey_of(), "no_gpu", "has no GPUs", "gpus.device: cpu"),
        ("{device: cuda, index: 1}", survey_of(FakeGpu()), "no_gpu", "has 1 GPU", "count from 0"),
        ("{device: cuda, index: 1}", survey_of(FakeGpu(), FakeGpu(), fault="GPU_IS_LOST", device=1), "gpu_lost", "GPU 1 (", "restart"),
        ("{device: cuda, backend: green}", survey_of(FakeGpu(mig=[])), "mig_on", "is divided", "-mig 0"),
        ("{device: cuda, backend: mps}", survey_of(FakeGpu(mig=PARTS)), "mig_on", "is divided", "gpus.backend to mig"),
        ("{device: cuda, memory_mib: 90000}", survey_of(FakeGpu()), "memory", "GPU 0 has 81920 MiB", "leave it out"),
        ("{device: cuda, trial_gpus: [1]}", survey_of(FakeGpu()), "no_gpu", "names GPU 1, and this machine has 1", "count from"),
        (
            "{device: cuda, trial_gpus: [1]}", survey_of(FakeGpu(), FakeGpu(), fault="GPU_IS_LOST", device=1), "gpu_lost",
            "cannot train trials", "restart",
        ),
        ("{device: cuda, trial_gpus: [1]}", survey_of(FakeGpu(), FakeGpu(mig=[])), "mig_on", "divided", "one that is whole"),
        ("{device: cuda, backend: mig}", survey_of(FakeGpu()), "no_partition", "is not divided", "-mig 1"),
        ("{device: cuda, backend: mig}", survey_of(FakeGpu(mig=[])), "no_partition", "has no partition", "-cgi"),
        ("{device: cuda, backend: mig, mig_instance: MIG-x}", survey_of(FakeGpu(mig=PARTS)), "no_partition", "MIG-x", "MIG-fake-0-1"),
        ("{device: cuda, backend: mig}", survey_of(FakeGpu(mig=PARTS)), "capacity", "3g.71gb is 43 pct", "set it to 42"),
        (
            "{device: cuda, backend: mig, capacity_pct: 40, memory_mib: 80000}", survey_of(FakeGpu(mig=PARTS)), "memory",
            "has 71000 MiB", "leave it out",
        ),
    ],
)  # fmt: skip
def test_what_is_lacking_is_named_with_its_remedy(text: str, survey: Survey, code: str, words: str, remedy: str) -> None:
    problem = why_not(gpus(text), survey)
    assert problem is not None
    assert (problem.code, problem.exit_code) == (code, 3)
    assert words in problem.message
    assert remedy in problem.remedy
    with pytest.raises(EnvironmentLacking, match=problem.message.replace("(", r"\(").replace(")", r"\)")):
        built(text, survey, FakeClock())


def test_further_gpus_for_trials_are_asked_for_by_their_uuid() -> None:
    survey = survey_of(FakeGpu(), FakeGpu(), FakeGpu())
    given = gpus("{device: cuda, trial_gpus: [2, 1]}")
    assert why_not(given, survey) is None
    assert gpus_of(given, lambda: survey) == [survey.devices[2].facts.uuid, survey.devices[1].facts.uuid]
    assert len({gpu.facts.uuid for gpu in survey.devices}) == 3


def test_a_lost_gpu_beside_the_one_in_use_is_nobodys_problem() -> None:
    assert why_not(gpus("{device: cuda}"), survey_of(FakeGpu(), FakeGpu(), fault="GPU_IS_LOST", device=1)) is None


def test_the_cpu_backends_are_as_configured() -> None:
    clock = FakeClock()
    lanes = built("{capacity_pct: 150, policy: srtf, max_lanes: 1, memory_mib: 512}", survey_of(), clock)
    assert isinstance(lanes, LaneBackend)
    assert (lanes.capacity_pct, lanes._policy, lanes.clock) == (150, lane_policy("srtf"), clock)
    assert lanes._tenants.capacity_mib == 512
    free = built("{backend: none, capacity_pct: 150}", survey_of(), clock)
    assert isinstance(free, NoShares)
    assert free.capacity_pct == 150


def test_a_gpu_is_named_by_its_uuid_before_cuda_is_used(on_clock: FakeClock) -> None:
    environ: dict[str, str] = {}
    survey = survey_of(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b", temperature_c=70))
    made = built("{device: cuda, index: 1, policy: fair, capacity_pct: 80}", survey, on_clock, environ)
    assert isinstance(made, Executor)
    assert (made.capacity_pct, made._policy, environ) == (80, lane_policy("fair"), {VISIBLE: "GPU-b"})
    assert [f.temperature_c for f in made.facts()] == [70]
    free = built("{device: cuda, backend: none}", survey, on_clock, environ)
    assert isinstance(free, NoShares)
    assert environ == {VISIBLE: "GPU-a"}


def test_mig_works_in_the_largest_partition_or_the_one_that_is_named(on_clock: FakeClock) -> None:
    survey = survey_of(FakeGpu(mig=PARTS, temperature_c=50))
    environ: dict[str, str] = {}
    made = built("{device: cuda, backend: mig, capacity_pct: 40}", survey, on_clock, environ)
    assert isinstance(made, MigBackend)
    assert environ == {VISIBLE: "MIG-fake-0-1"}
    assert (made.capacity_pct, made.parts[0].name, made.facts()[0].temperature_c) == (40, "NVIDIA Fake 80GB MIG 3g.71gb", 50)
    made.set_shares({"a": 30.0})
    made.open_lane("a")
    inside = made.parts[0].inside.report(1.0)
    assert inside["a"].promised_pct == pytest.approx(70.0), "30 of the partition's 42.9 points"
    built("{device: cuda, backend: mig, capacity_pct: 14, mig_instance: MIG-fake-0-0}", survey, on_clock, environ)
    assert environ == {VISIBLE: "MIG-fake-0-0"}
    assert chosen_instance(gpus("{device: cuda, backend: mig, mig_instance: MIG-none}"), survey.devices[0]) is None


OWN = "{device: cuda, backend: mig, capacity_pct: 40, mig_reconfigure: true, mig_profile: 3g.71gb}"


def starts(fake: FakeNvml, text: str, folder: Path, environ: dict[str, str]) -> object:
    reader = DeviceReader(fake, tell=lambda _: None)
    old = reader.read()
    return build_backend(
        gpus(text), data_dir=folder, clock=FakeClock(), look=lambda: old, look_anew=reader.read, environ=environ, library=fake
    )


def test_a_box_that_may_divide_its_gpu_works_in_the_partition_that_it_made(on_clock: FakeClock, tmp_path: Path) -> None:
    fake, environ = FakeNvml([FakeGpu(mig=[FakeMig(profile="4g.71gb", slices=4, memory_mib=71_000)])]), dict[str, str]()
    made = starts(fake, OWN, tmp_path, environ)
    assert isinstance(made, MigBackend)
    assert (environ[VISIBLE], made.parts[0].size_pct) == ("MIG-fake-0-gi2-3g.71gb", pytest.approx(300 / 7)), (
        "not the larger one"
    )
    assert starts(fake, OWN, tmp_path, environ)
    assert len(fake.gpus[0].mig or ()) == 2


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (OWN.replace("40", "60"), "capacity", "the partition 3g.71gb is 43 pct"),
        (OWN.replace("}", ", memory_mib: 80000}"), "memory", "has 71000 MiB"),
        (OWN.replace("3g.71gb", "3g.40gb"), "no_profile", "no MIG profile 3g.40gb"),
        (OWN.replace("device: cuda", "device: cuda, index: 1"), "mig_off", "GPU 1 (NVIDIA Fake 80GB): MIG mode is off"),
        (OWN.replace("device: cuda", "device: cuda, index: 2"), "no_gpu", "has 2 GPUs"),
    ],
)
def test_a_partition_that_would_not_do_is_not_made(text: str, code: str, words: str, tmp_path: Path) -> None:
    fake = FakeNvml([FakeGpu(mig=[]), FakeGpu()])
    with pytest.raises(EnvironmentLacking) as caught:
        starts(fake, text, tmp_path, {})
    assert caught.value.code == code
    assert words in caught.value.message
    assert fake.gpus[0].mig == []


def test_the_facts_are_those_of_the_newest_look_at_the_configured_device() -> None:
    fake = FakeNvml([FakeGpu(), FakeGpu()])
    reader = DeviceReader(fake)
    assert facts_of(gpus("{device: cuda, index: 1}"), reader.read)[0].index == 1
    fake.gpus[1].temperature_c = 88
    assert facts_of(gpus("{device: cuda, index: 1}"), reader.read)[0].temperature_c == 88


def test_a_torch_without_cuda_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.gpu.cuda.cuda_missing", lambda: "this PyTorch was built without CUDA")
    with pytest.raises(EnvironmentLacking, match="built without CUDA") as caught:
        choose.cuda_device(gpus("{device: cuda}"), FakeClock(), tuple)
    assert "CUDA build" in caught.value.remedy


@pytest.mark.parametrize(("backend", "where"), [("green", "edge.gpu.green.GreenBackend"), ("mps", "edge.gpu.mps.MpsBackend")])
def test_green_and_mps_are_built_for_the_configured_gpu(backend: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments are checked against the real classes, which want a GPU."""
    module, _, name = where.rpartition(".")
    real = inspect.signature(getattr(importlib.import_module(module), name).__init__)
    made: list[inspect.BoundArguments] = []
    answer = SimpleNamespace(device=object())

    def make(*given: object, **named: object) -> object:
        made.append(real.bind(None, *given, **named))
        return answer

    monkeypatch.setattr(where, make)
    environ: dict[str, str] = {}
    survey = survey_of(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b", temperature_c=66))
    text = f"{{device: cuda, index: 1, backend: {backend}, capacity_pct: 90, memory_mib: 5000, work_conserving: true}}"
    clock = FakeClock()
    assert built(text, survey, clock, environ) is answer
    about = made[0].arguments
    assert (about["capacity_pct"], about["memory_mib"], about["mode"], about["clock"]) == (90, 5000, "work-conserving", clock)
    assert [f.temperature_c for f in about["facts"]()] == [66]
    if backend == "mps":  # its processes get their device in their own environment
        assert (about["gpu"], about["data_dir"], environ) == ("GPU-b", Path("data"), {})
    else:
        assert (about["index"], environ) == (0, {VISIBLE: "GPU-b"})


@pytest.mark.parametrize("static", ["off", "auto", "on"])
def test_static_partitions_are_asked_for_where_they_are_configured(static: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []
    monkeypatch.setattr("edge.gpu.mps.MpsBackend", lambda *given, **named: made.append(named))
    built(f"{{device: cuda, backend: mps, mps_static: '{static}'}}", survey_of(FakeGpu()), FakeClock())
    assert made[0]["static"] == static


def test_lanes_are_capped_on_a_gpu_except_where_the_policy_says_how_many() -> None:
    texts = ("{device: cuda}", "{device: cuda, max_lanes: 3}", "{device: cuda, policy: srtf}", "{device: cuda, policy: pack}")
    assert [choose.lanes_on_gpu(gpus(text)) for text in texts] == [MAX_LANES, 3, None, None]
