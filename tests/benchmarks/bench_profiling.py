"""What micro-profiling is worth: predicted against really trained quality of Ekya's 18 configurations, and its cost. Resumable.

Run: driftbox bench profiling [--data DIR] [--cache DIR] [--jobs 2] [--streams brt_avenue,...] [--json FILE]

Classification of what moves (`streams.motion`) in real videos: MobileNetV2 on crops of 64 px, labels by yolo26s's class of the crop. Of
each stream the first third is the past, from which the serving model's head has learnt; the rest is the window: every fourth picture is
held out. The 18 configurations are Ekya's own (papers/ekya.md section 5): last layers with 64 added neurons or all layers with 1024,
data fraction 0.1, 0.5, 1, epochs 5, 15, 30. Each is really trained once, from the serving model, and judged on the held-out labels:
profiling without a micro-profiler. Then the product's micro-profiler (`models.microprofile_run`, `scheduler.ekya.microprofile`) predicts
all 18, with several settings. Costs are CPU seconds of one thread, of both in the same process, so the machine's speed cancels out.
What was trained is kept in the cache folder: a second call does only what is missing. It holds data and settings, not the code.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from models.weights import cache_dir
from scheduler.ekya import microprofile as decisions
from scheduler.types import ProfileTrial, RetrainConfig

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
STREAMS = ("brt_avenue", "london_kerbside", "ua_detrac_mvi40201", "pets09_s2l1_view1")
EDGE, GOLDEN, GOLDEN_SCORE_MIN, LONGEST_PX = "mobilenetv2@64", "yolo26s@640", 0.4, 640
#: Pictures of the past and of the window; every HELD_OUT-th of the window's is held out.
PAST, WINDOW, HELD_OUT, PAST_FRAC = 30, 136, 4, 1 / 3
#: What the serving model learnt with, on the past.
FIRST = RetrainConfig(name="first", epochs=5, batch=2, layers_frac=0.05, lr=3e-3, head_neurons=64)
SEED = 0
#: Published, and to reach.
PAPER_POINTS, PAPER_TIMES, WANTED_POINTS, WANTED_TIMES = 5.8, 100, 5.0, 100


def configurations() -> tuple[RetrainConfig, ...]:
    """Ekya's 18. batch: in pictures, about 10 to 15 crops, as the authors' 8."""
    layers = (("head", 0.05, 64, 3e-3), ("all", 1.0, 1024, 3e-4))
    return tuple(
        RetrainConfig(
            name=f"{name}-{data_frac:g}-{epochs}", epochs=epochs, batch=2, layers_frac=layers_frac, data_frac=data_frac, lr=lr,
            head_neurons=neurons,
        )
        for name, layers_frac, neurons, lr in layers
        for data_frac in (0.1, 0.5, 1.0)
        for epochs in (5, 15, 30)
    )  # fmt: skip


CONFIGS = configurations()


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How the micro-profiler is run. epochs, data_frac, n_min: as `models.microprofile_run.microprofile` takes them; judged_frac: part
    of the held-out pictures that it judges by."""

    name: str
    epochs: int
    data_frac: float
    n_min: int
    judged_frac: float = 1.0


#: The box's own (3 epochs on half of the data, at least 12 pictures, all held-out ones), the paper's (5 epochs on a tenth), and cheaper.
SETTINGS = (
    Setting(name="box", epochs=3, data_frac=0.5, n_min=12),
    Setting(name="paper", epochs=5, data_frac=0.1, n_min=2),
    Setting(name="paper, third judged", epochs=5, data_frac=0.1, n_min=2, judged_frac=0.34),
    Setting(name="3 epochs, third judged", epochs=3, data_frac=0.1, n_min=2, judged_frac=0.34),
    Setting(name="2 epochs, third judged", epochs=2, data_frac=0.1, n_min=2, judged_frac=0.34),
    Setting(name="3 epochs, 5 %", epochs=3, data_frac=0.05, n_min=2, judged_frac=0.34),
)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One configuration, really carried out. right, regions: per held-out picture, of the trained model; cpu_s: training and judging."""

    config: str
    right: tuple[int, ...]
    regions: tuple[int, ...]
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """One run of the micro-profiler. judged: places of the pictures that it judged by among the held-out ones; before: quality of the
    serving model on them; predicted: configuration -> end quality; cpu_s: all of it."""

    setting: str
    before: float
    judged: tuple[int, ...]
    predicted: dict[str, float]
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class StreamResult:
    """crops: labelled regions to learn from, and held out."""

    stream: str
    crops: tuple[int, int]
    trained: tuple[Trained, ...]
    profiled: tuple[Profiled, ...]


# --- one stream -------------------------------------------------------------------------------------------------------


def stream_result(stream: str, data: Path, cache: Path) -> StreamResult:
    """Everything about one stream, from the cache or by work. Runs in a process of its own."""
    os.environ.setdefault("DRIFTBOX_WEIGHTS", str(data / "weights"))
    import torch

    torch.set_num_threads(1)
    from edge.memo import Memo

    memo = Memo(cache)
    past, train, held_out = _samples(stream, data, memo)
    serving = _serving(stream, past, memo)
    trained = [_kept(memo, ("trained", stream, config, SEED), Trained, partial(_trained, serving, train, held_out, config))
               for config in CONFIGS]  # fmt: skip
    profiled = [_kept(memo, ("profiled", stream, s, SEED), Profiled, partial(_profiled, serving, train, held_out, s))
                for s in SETTINGS]  # fmt: skip
    crops = tuple(sum(len(sample.labels) for sample in part) for part in (train, held_out))
    return StreamResult(stream=stream, crops=(crops[0], crops[1]), trained=tuple(trained), profiled=tuple(profiled))


def _kept(memo: Any, what: tuple[object, ...], kind: Any, work: Any) -> Any:
    """A dataclass of numbers and texts, out of the memo or made."""
    from edge.evaluate.studio import key_of

    key = key_of(*what, EDGE, GOLDEN, GOLDEN_SCORE_MIN, PAST, WINDOW, HELD_OUT, FIRST)
    found = memo.json(key)
    if found is None:
        found = json.loads(json.dumps(asdict(work())))
        memo.keep_json(key, found)
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})


def _samples(stream: str, data: Path, memo: Any) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """(past, to learn from, held out): labelled pictures."""
    from edge.evaluate.studio import key_of, regions_of
    from edge.footage import Clip, footage_of
    from models.labelled import LabelledImage, spread
    from models.tasks.base import Picture
    from models.tasks.classification import CLASSIFICATION

    footage = footage_of(stream, [Clip(path=data / "videos" / f"{stream}.mp4")])
    regions = regions_of(footage, LONGEST_PX, memo)
    moving = [index for index in sorted(regions) if len(regions[index])]
    parts = [[i for i in moving if i < PAST_FRAC * footage.frames], [i for i in moving if i >= PAST_FRAC * footage.frames]]
    chosen = [[part[k] for k in spread(len(part), wanted)] for part, wanted in zip(parts, (PAST, WINDOW), strict=True)]
    images = footage.load([*chosen[0], *chosen[1]], longest_px=LONGEST_PX)
    golden = None

    def labelled(index: int) -> LabelledImage:
        nonlocal golden
        key = key_of("labelled", footage.key(), index, GOLDEN, GOLDEN_SCORE_MIN, LONGEST_PX)
        labels = memo.detections(key)
        if labels is None:
            golden = golden or CLASSIFICATION.load_golden(GOLDEN)
            picture = Picture(image=images[index], regions=regions[index])
            labels = CLASSIFICATION.labels(golden, [picture], score_min=GOLDEN_SCORE_MIN)[0]
            memo.keep_detections(key, labels)
        return LabelledImage(image=images[index], labels=labels)

    past, window = ([labelled(index) for index in part if index in images] for part in chosen)
    held_out = [sample for k, sample in enumerate(window) if k % HELD_OUT == HELD_OUT - 1]
    return past, [sample for k, sample in enumerate(window) if k % HELD_OUT != HELD_OUT - 1], held_out


def _serving(stream: str, past: Sequence[Any], memo: Any) -> Any:
    from edge.evaluate.studio import key_of
    from models.tasks.classification import CLASSIFICATION
    from models.zoo import new_detector

    base = CLASSIFICATION.load(EDGE)
    key = key_of("serving", stream, EDGE, GOLDEN, GOLDEN_SCORE_MIN, PAST, FIRST, SEED)
    state = memo.state(key)
    if state is not None:
        return new_detector(base.spec, state=state)
    serving, _ = _retrained(base, past, FIRST)
    memo.keep_state(key, serving.state())
    return serving


def _retrained(serving: Any, train: Sequence[Any], config: RetrainConfig) -> tuple[Any, float]:
    """(the trained model, CPU seconds)."""
    from models.retrain import retrain, student
    from models.tasks.classification import CLASSIFICATION

    started_s = time.process_time()
    detector = student(serving, config, seed=SEED)
    for _ in retrain(detector, train, config, seed=SEED, task=CLASSIFICATION, teacher=serving):
        pass
    return detector, time.process_time() - started_s


def _trained(serving: Any, train: Sequence[Any], held_out: Sequence[Any], config: RetrainConfig) -> Trained:
    from models.labelled import predicted
    from models.tasks.base import Scoring
    from models.tasks.classification import CLASSIFICATION

    detector, training_s = _retrained(serving, train, config)
    started_s = time.process_time()
    counts = [CLASSIFICATION.counts(f, labels, Scoring()) for f, labels in predicted(detector, held_out, task=CLASSIFICATION)]
    return Trained(
        config=config.name, right=tuple(c.tp for c in counts), regions=tuple(c.tp + c.fn for c in counts),
        cpu_s=training_s + time.process_time() - started_s,
    )  # fmt: skip


def _profiled(serving: Any, train: Sequence[Any], held_out: Sequence[Any], setting: Setting) -> Profiled:
    from models.labelled import spread
    from models.microprofile_run import microprofile
    from models.tasks.classification import CLASSIFICATION

    judged = spread(len(held_out), max(1, round(setting.judged_frac * len(held_out))))
    started_s = time.process_time()
    trials = finished(
        microprofile(
            serving, train, [held_out[i] for i in judged], CONFIGS, epochs=setting.epochs, data_frac=setting.data_frac,
            budget_gpu_s=float("inf"), seed=SEED, timer=time.process_time, n_min=setting.n_min, task=CLASSIFICATION,
        )
    )  # fmt: skip
    options = decisions.options(trials, CONFIGS, n_train=len(train))
    return Profiled(
        setting=setting.name, before=trials[0].quality[0], judged=tuple(judged),
        predicted={option.name: option.end_quality for option in options}, cpu_s=time.process_time() - started_s,
    )  # fmt: skip


def finished(steps: Generator[Any, None, tuple[ProfileTrial, ...]]) -> tuple[ProfileTrial, ...]:
    """What a generator returns at its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return tuple(end.value)


# --- what it says -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One setting over all streams. Errors in points (0-100) over streams and configurations, of predicted against really trained
    quality: error_points (median), error_p90_points and bias_points (signed mean) on the very labels that the profiler judged by, which
    is what its answer is about; all_labels_points (median) on all held-out ones. unchanged_points: the median error of saying that
    nothing changes. lost_points: what is lost by taking the configuration that is predicted best. times: how many times cheaper than
    carrying out all 18."""

    setting: str
    n: int
    error_points: float
    error_p90_points: float
    all_labels_points: float
    bias_points: float
    unchanged_points: float
    lost_points: float
    profile_cpu_s: float
    exhaustive_cpu_s: float

    @property
    def times(self) -> float:
        return self.exhaustive_cpu_s / max(self.profile_cpu_s, 1e-9)

    @property
    def reached(self) -> bool:
        return self.error_points <= WANTED_POINTS and self.times >= WANTED_TIMES


def quality(trained: Trained, judged: Sequence[int] | None = None) -> float:
    """Accuracy of a trained model over the held-out pictures named, or all."""
    places = range(len(trained.right)) if judged is None else judged
    return sum(trained.right[i] for i in places) / max(1, sum(trained.regions[i] for i in places))


def verdict(results: Sequence[StreamResult], setting: str) -> Verdict:
    same, overall, signed, unchanged, lost = [], [], [], [], []
    for result in results:
        profiled = next(p for p in result.profiled if p.setting == setting)
        real = {t.config: quality(t) for t in result.trained}
        for trained in result.trained:
            predicted, on_judged = profiled.predicted[trained.config], quality(trained, profiled.judged)
            signed.append(predicted - on_judged)
            same.append(abs(predicted - on_judged))
            overall.append(abs(predicted - real[trained.config]))
            unchanged.append(abs(profiled.before - on_judged))
        lost.append(max(real.values()) - real[max(profiled.predicted, key=lambda name: profiled.predicted[name])])
    return Verdict(
        setting=setting, n=len(same), error_points=100 * statistics.median(same),
        error_p90_points=100 * float(np.quantile(same, 0.9)), all_labels_points=100 * statistics.median(overall),
        bias_points=100 * statistics.fmean(signed), unchanged_points=100 * statistics.median(unchanged),
        lost_points=100 * statistics.fmean(lost),
        profile_cpu_s=sum(p.cpu_s for r in results for p in r.profiled if p.setting == setting),
        exhaustive_cpu_s=sum(t.cpu_s for r in results for t in r.trained),
    )  # fmt: skip


def verdicts(results: Sequence[StreamResult]) -> list[Verdict]:
    return [verdict(results, setting.name) for setting in SETTINGS]


def best(found: Sequence[Verdict]) -> Verdict:
    """One that reaches both figures, else the most exact of those that are cheap enough, else the cheapest."""
    cheap = [v for v in found if v.times >= WANTED_TIMES]
    return min(cheap, key=lambda v: v.error_points) if cheap else max(found, key=lambda v: v.times)


def lines(results: Sequence[StreamResult]) -> Iterator[str]:
    for r in results:
        real = [quality(t) for t in r.trained]
        before = next((p.before for p in r.profiled if len(p.judged) == len(r.trained[0].right)), float("nan"))
        yield (
            f"{r.stream}: {r.crops[0]} crops to learn from, {r.crops[1]} held out; accuracy {before:.3f}, after retraining "
            f"{min(real):.3f}-{max(real):.3f}; all 18: {sum(t.cpu_s for t in r.trained):.0f} CPU-s"
        )
    yield f"{'setting':<26}{'median':>8}{'p90':>7}{'bias':>7}{'all labels':>12}{'no change':>11}{'lost':>7}{'CPU-s':>8}{'cheaper':>9}"
    for v in verdicts(results):
        yield (
            f"{v.setting:<26}{v.error_points:>8.1f}{v.error_p90_points:>7.1f}{v.bias_points:>+7.1f}{v.all_labels_points:>12.1f}"
            f"{v.unchanged_points:>11.1f}{v.lost_points:>7.1f}{v.profile_cpu_s:>8.1f}{v.times:>8.0f}x"
        )
    chosen = best(verdicts(results))
    yield (
        f"{'reached' if chosen.reached else 'MISSED'}: {chosen.setting}: {chosen.error_points:.1f} points in the median and "
        f"{chosen.times:.0f}x cheaper (Ekya: {PAPER_POINTS} and {PAPER_TIMES}x; to reach: <= {WANTED_POINTS:g} and >= {WANTED_TIMES}x)"
    )


def as_json(results: Sequence[StreamResult]) -> dict[str, Any]:
    rows = [{**asdict(v), "times": v.times} for v in verdicts(results)]
    return {"settings": rows, "best": best(verdicts(results)).setting, "streams": [r.stream for r in results]}


def run(streams: Sequence[str], data: Path, cache: Path, jobs: int) -> list[StreamResult]:
    """Streams side by side, one process and one thread each."""
    with ProcessPoolExecutor(max(1, jobs), mp_context=get_context("spawn")) as pool:
        return list(pool.map(partial(stream_result, data=data, cache=cache), streams))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with videos/ and weights/")
    parser.add_argument("--cache", type=Path, default=cache_dir() / "bench-profiling")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--streams", default=",".join(STREAMS), help="videos, by name, separated by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also written there, for `bench learning`")
    args = parser.parse_args()
    if not (args.data / "videos").is_dir():
        raise SystemExit(f"{args.data} holds no videos: name the folder of videos/ and weights/ with --data")
    os.environ["OMP_NUM_THREADS"] = "1"
    results = run(args.streams.split(","), args.data.resolve(), args.cache, args.jobs)
    print("\n".join(lines(results)))
    if args.json:
        args.json.write_text(json.dumps(as_json(results)))


if __name__ == "__main__":
    main()
