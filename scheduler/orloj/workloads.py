"""The card's workloads (Orloj, section 8), made from a seed: laws of run times per application, and bursty arrivals.

The thesis gives finish rates, means and 99th percentiles, but neither the peaks of its synthetic laws, nor c0 and c1, nor its load.
What stands here instead is written beside each number. Arrivals follow the shape of the Azure Functions trace that was used there: a
rate that is random from slot to slot, keeps some of its value to the next, and has rare slots several times above the mean; Poisson
inside a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from scheduler.orloj.simulate import Job, Stage, World
from scheduler.orloj.types import ModelCost

#: float64 (N,) run times in seconds, of N requests of one application.
Draw = Callable[[np.random.Generator, int], np.ndarray]

#: SLOs, in 99th percentiles of the stand-alone run time.
SLOS = (1.5, 2.0, 3.0, 4.0, 5.0)
#: Batch sizes, and the batch law in parts of the mean stand-alone run time: c0 = 0.4 mean, c1 = 0.15 (the card's own simulation).
SIZES = (1, 2, 4, 8, 16)
C0_FRAC, C1 = 0.4, 0.15
#: Unit of the synthetic laws, whose peaks lie evenly between 3 and 12 units (a law with one peak: at 7.5).
UNIT_S = 0.1
PEAK_LOW, PEAK_HIGH = 3.0, 12.0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """apps: the applications that share the model, equally often. paper: finish rates in percent by policy at each of `SLOS`."""

    name: str
    apps: Mapping[str, Draw]
    paper: Mapping[str, tuple[int, ...]]
    static: bool = False


def peak(mean_s: float, sd_s: float) -> Draw:
    """Normal, never below a twentieth of the mean."""
    return lambda rng, n: np.maximum(rng.normal(mean_s, sd_s, n), mean_s / 20)


def constant(time_s: float) -> Draw:
    return lambda rng, n: np.full(n, time_s)


def halves(mean_s: float, p99_s: float) -> dict[str, Draw]:
    """A lognormal law with this mean and 99th percentile, as two applications: requests below its median and above it (the thesis groups
    each data set into short-running and long-running requests)."""
    z99 = 2.3263478740408408
    sigma = z99 - np.sqrt(z99**2 - 2 * np.log(p99_s / mean_s))
    mu = np.log(mean_s) - sigma**2 / 2

    def half(sign: float) -> Draw:
        return lambda rng, n: np.exp(mu + sigma * sign * np.abs(rng.standard_normal(n)))

    return {"short": half(-1.0), "long": half(1.0)}


def modes(count: int, sds: tuple[float, ...]) -> dict[str, Draw]:
    """An application per peak."""
    peaks = np.linspace(PEAK_LOW, PEAK_HIGH, count) if count > 1 else np.array([(PEAK_LOW + PEAK_HIGH) / 2])
    return {f"mode{i}": peak(UNIT_S * p, UNIT_S * sds[i % len(sds)]) for i, p in enumerate(peaks)}


#: Published finish rates in percent at each of `SLOS`: Clipper | Nexus | Clockwork | Orloj.
PUBLISHED = """
bimodal sd 0.5     | 1 1 4 11 20 | 1 2 5 13 25 | 44 53 62 61 57 | 57 76 96 99 100
bimodal sd 1       | 2 3 10 21 33 | 2 3 10 19 34 | 46 53 55 53 56 | 60 76 97 99 100
bimodal sd 2       | 4 7 19 34 49 | 3 5 13 30 54 | 43 51 55 50 59 | 59 73 97 100 100
bimodal sd 2/0.5   | 16 28 61 89 97 | 18 32 68 93 100 | 52 59 60 59 63 | 75 83 98 96 100
bimodal sd 0.5/2   | 1 1 4 8 15 | 1 2 4 9 17 | 38 50 57 66 52 | 40 61 90 97 99
1 mode             | 3 10 45 73 82 | 4 13 54 80 91 | 48 55 61 58 60 | 46 74 98 100 100
2 modes            | 1 4 13 27 37 | 3 3 14 30 44 | 45 58 51 56 55 | 60 75 97 100 100
3 modes            | 3 5 10 18 35 | 4 5 9 23 42 | 45 55 61 60 61 | 59 68 97 99 99
4 modes            | 3 5 8 10 14 | 5 7 12 16 19 | 46 56 59 60 60 | 59 73 94 98 100
5 modes            | 2 2 3 4 7 | 3 3 7 8 8 | 47 55 59 57 56 | 60 73 94 97 99
6 modes            | 4 3 6 7 8 | 4 5 8 9 11 | 46 53 53 51 54 | 58 71 92 97 99
7 modes            | 3 4 8 10 12 | 5 5 9 12 15 | 43 51 54 52 54 | 59 73 93 98 99
8 modes            | 3 5 8 9 11 | 4 6 9 13 14 | 33 49 43 52 50 | 60 74 93 97 99
static Inception   | 1 31 86 96 98 | 1 30 88 97 98 | 16 58 84 82 83 | 41 48 84 99 99
static ResNet      | 1 15 62 89 95 | 0 15 64 91 96 | 30 59 77 88 87 | 42 48 85 98 99
RDI-Nets/CIFAR     | 61 98 99 99 99 | 61 99 100 100 100 | 48 47 48 48 48 | 49 84 100 100 100
SkipNet/ImageNet   | 0 0 0 0 0 | 0 3 12 31 48 | 5 14 21 12 16 | 24 62 92 95 89
Blenderbot/convAI  | 5 18 56 71 75 | 6 21 63 81 87 | 43 61 64 65 65 | 45 65 74 81 81
Blenderbot/Cornell | 6 20 54 71 74 | 6 20 57 74 77 | 43 60 62 64 64 | 44 68 75 81 82
GPT/convAI         | 39 79 91 92 92 | 38 83 99 100 100 | 39 57 61 63 61 | 36 64 86 97 98
GPT/Cornell        | 45 84 94 94 95 | 44 86 100 100 100 | 46 65 73 73 74 | 44 68 97 99 100
BART/CNN           | 12 36 73 78 80 | 11 36 73 79 81 | 44 46 46 44 44 | 46 71 97 99 100
T5/CNN             | 48 86 99 99 99 | 46 84 100 100 100 | 47 50 50 52 51 | 49 74 100 100 100
FSMT/WMT           | 4 21 63 73 75 | 4 23 65 76 79 | 45 50 51 53 54 | 45 59 88 93 95
mBART/WMT          | 7 28 71 76 78 | 10 30 73 78 80 | 38 36 35 36 35 | 47 59 91 96 98
"""

_APPS: dict[str, dict[str, Draw]] = {
    "bimodal sd 0.5": modes(2, (0.5,)),
    "bimodal sd 1": modes(2, (1.0,)),
    "bimodal sd 2": modes(2, (2.0,)),
    "bimodal sd 2/0.5": modes(2, (2.0, 0.5)),
    "bimodal sd 0.5/2": modes(2, (0.5, 2.0)),
    "1 mode": modes(1, (1.0,)),
    "2 modes": modes(2, (1.0,)),
    "3 modes": modes(3, (1.0,)),
    "4 modes": modes(4, (1.0,)),
    "5 modes": modes(5, (1.0,)),
    "6 modes": modes(6, (1.0,)),
    "7 modes": modes(7, (1.0,)),
    "8 modes": modes(8, (1.0,)),
    "static Inception": {"": constant(0.02)},
    "static ResNet": {"": constant(0.01)},
    "RDI-Nets/CIFAR": halves(0.68315, 2.66754),
    "SkipNet/ImageNet": halves(0.00324, 0.00556),
    "Blenderbot/convAI": halves(0.20039, 0.24227),
    "Blenderbot/Cornell": halves(0.20322, 0.24704),
    "GPT/convAI": halves(0.07947, 0.14340),
    "GPT/Cornell": halves(0.09484, 0.16169),
    "BART/CNN": halves(0.77466, 1.10199),
    "T5/CNN": halves(0.55291, 0.79728),
    "FSMT/WMT": halves(0.18930, 0.31931),
    "mBART/WMT": halves(0.43238, 0.72987),
}


def _workloads() -> Iterator[Workload]:
    for line in PUBLISHED.strip().splitlines():
        name, *columns = (part.strip() for part in line.split("|"))
        rates = {policy: tuple(map(int, column.split())) for policy, column in zip(_COLUMNS, columns, strict=True)}
        yield Workload(name=name, apps=_APPS[name], paper=rates, static=name.startswith("static"))


_COLUMNS = ("clipper", "nexus", "clockwork", "orloj")

WORKLOADS: tuple[Workload, ...] = tuple(_workloads())


def arrivals_s(
    rng: np.random.Generator, count: int, mean_gap_s: float, *, slot_gaps: float = 40.0, cv: float = 0.6, keep: float = 0.7
) -> np.ndarray:
    """float64 (count,), ascending. A slot lasts `slot_gaps` mean gaps; its rate is lognormal with coefficient of variation `cv` and
    keeps `keep` of its deviation (of the logarithm) to the next slot."""
    sigma = np.sqrt(np.log1p(cv**2))
    slots = int(np.ceil(3 * count / slot_gaps)) + 10
    level, logs = float(rng.standard_normal()), np.empty(slots)
    for i in range(slots):
        logs[i] = level
        level = keep * level + np.sqrt(1 - keep**2) * float(rng.standard_normal())
    rates = np.exp(sigma * logs - sigma**2 / 2)
    at_slots = np.concatenate(([0.0], np.cumsum(rates * slot_gaps)))  # expected arrivals up to each slot's begin
    at_slots *= max(1.0, 1.2 * count / at_slots[-1])
    events = np.cumsum(rng.exponential(size=count))
    return np.interp(events, at_slots, np.arange(slots + 1) * slot_gaps * mean_gap_s)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload at one SLO and load, ready to be served: the same jobs for every policy."""

    world: World
    jobs: tuple[Job, ...]


def make_case(workload: Workload, slo: float, *, load: float, count: int, seed: int, told: int = 64) -> Case:
    """load: mean rate over what full batches of 8 serve, drawn from all applications; told: samples per application from the past."""
    rng = np.random.default_rng(seed)
    names = list(workload.apps)
    history = np.concatenate([draw(rng, 4000 // len(names)) for draw in workload.apps.values()])
    mean_s = float(history.mean())
    cost = ModelCost(c0_s=C0_FRAC * mean_s, c1=C1, sizes=SIZES)
    longest_s = float(rng.permutation(history)[: len(history) // 8 * 8].reshape(-1, 8).max(axis=1).mean())
    rate = load * 8 / (cost.c0_s + cost.c1 * 8 * longest_s)
    slo_s = slo * float(np.quantile(history, 0.99))
    which = rng.integers(len(names), size=count)
    alone_s = np.empty(count)
    for i, draw in enumerate(workload.apps.values()):
        alone_s[which == i] = draw(rng, int((which == i).sum()))
    jobs = tuple(
        Job(app=names[w], released_s=float(t), deadline_s=float(t) + slo_s, stages=(Stage(model="model", alone_s=(float(x),)),))
        for t, w, x in zip(arrivals_s(rng, count, 1 / rate), which, alone_s, strict=True)
    )
    past = {("model", name): draw(rng, told).tolist() for name, draw in workload.apps.items()}
    return Case(world=World(costs={"model": cost}, told=past), jobs=jobs)
