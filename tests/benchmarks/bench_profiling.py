"""What micro-profiling is worth: predicted against really trained quality of Ekya's 18 configurations, and its cost. Resumable.

Run: driftbox bench profiling [--data DIR] [--cache DIR] [--jobs 2] [--streams brt_avenue,...] [--json FILE]

Classification of what moves (`streams.motion`) in real videos: MobileNetV2 on crops of 48 px, labels by yolo26s's class of the crop. Of
each stream the first third is the past, from which the serving model's head has learnt; the rest is the window: every second picture is
held out. The 18 configurations are Ekya's own (papers/ekya.md section 5): last layers with 64 added neurons or all layers with 1024,
data fraction 0.1, 0.5, 1, epochs 5, 15, 30. Each is really trained once, from the serving model, and judged on the held-out labels:
profiling without a micro-profiler. Then the product's micro-profiler (`models.microprofile_run`, `scheduler.ekya.microprofile`) predicts
all 18, with several settings, and `scheduler.ekya.calibration` corrects what it says by what came of its predictions on the other
streams: no stream's own results are ever among what corrects it. Costs are CPU seconds of one thread, of both in the same process, so
the machine's speed cancels out. What was trained is kept in the cache folder: a second call does only what is missing. It holds data and
settings, not the code.
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
from scheduler.ekya import calibration
from scheduler.ekya import microprofile as decisions
from scheduler.types import Observation, ProfileTrial, RetrainConfig, RetrainOption

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
STREAMS = ("london_kerbside", "brt_avenue", "suburban_road", "pets09_s2l1_view1")
EDGE, GOLDEN, GOLDEN_SCORE_MIN, LONGEST_PX = "mobilenetv2@48", "yolo26s@640", 0.4, 640
#: Pictures of the past and of the window; every HELD_OUT-th of the window's is held out.
PAST, WINDOW, HELD_OUT, PAST_FRAC = 16, 40, 2, 1 / 3
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
    """How the micro-profiler is run, in the terms of `models.microprofile_run.microprofile`. tried: all 'families', the 'speakers' of
    `decisions.speakers`, the 'heads' (families that train the head alone), or of those the one 'head' that speaks; others borrow.
    lend: the box itself leaves out what need not be tried."""

    name: str
    epochs: int
    data_frac: float
    n_min: int = 2
    keep_features: bool = False
    kept_data_frac: float | None = None
    judged_frac: float = 1.0
    tried: str = "families"
    lend: bool = False


def tried(setting: Setting) -> tuple[RetrainConfig, ...]:
    heads = [config for config in CONFIGS if config.layers_frac < 1]
    return {
        "families": CONFIGS, "speakers": decisions.speakers(CONFIGS), "heads": tuple(heads), "head": decisions.speakers(heads),
    }[setting.tried]  # fmt: skip


#: The box's own, without and with `window.profile_lend` (3 epochs on half of the data, at least 12 pictures; heads that lend: 5 on all),
#: the paper's (5 epochs on a tenth), and one thing more each time.
SETTINGS = (
    Setting(name="box", epochs=3, data_frac=0.5, n_min=12, keep_features=True, lend=True),
    Setting(name="box, not lending", epochs=3, data_frac=0.5, n_min=12, keep_features=True),
    Setting(name="paper", epochs=5, data_frac=0.1),
    Setting(name="+ features kept", epochs=5, data_frac=0.1, keep_features=True),
    Setting(name="+ half judged, paired", epochs=5, data_frac=0.1, keep_features=True, judged_frac=0.5),
    Setting(name="two families run", epochs=2, data_frac=0.1, kept_data_frac=0.5, judged_frac=0.5, tried="speakers", keep_features=True),
    Setting(name="three heads", epochs=3, data_frac=0.1, kept_data_frac=0.5, tried="heads", keep_features=True),
    Setting(name="one head", epochs=5, data_frac=0.1, kept_data_frac=0.5, tried="head", keep_features=True),
)  # fmt: skip
#: What corrects the predictions: nothing; all that was carried out on the other streams (hold-out cameras measured in full); of each
#: other stream the one configuration that was predicted best, which is what a box knows after one window.
HISTORIES = ("alone", "others, one each", "others in full")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One configuration, really carried out. right, regions: per held-out picture, of the trained model; cpu_s: training and judging."""

    config: str
    right: tuple[int, ...]
    regions: tuple[int, ...]
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """One run of the micro-profiler. before: quality of the serving model; predicted, sd, cost_s: configuration -> end quality, its
    error as far as the curve tells, and CPU seconds, before any correction; cpu_s: all of the run."""

    setting: str
    before: float
    predicted: dict[str, float]
    sd: dict[str, float]
    cost_s: dict[str, float]
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class StreamResult:
    """crops: labelled regions to learn from, and held out."""

    stream: str
    crops: tuple[int, int]
    trained: tuple[Trained, ...]
    profiled: tuple[Profiled, ...]

    def by(self, setting: str) -> Profiled:
        return next(p for p in self.profiled if p.setting == setting)


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
    from models.microprofile_run import microprofile
    from models.tasks.classification import CLASSIFICATION

    started_s = time.process_time()
    trials = finished(
        microprofile(
            serving, train, held_out, tried(setting), epochs=setting.epochs, data_frac=setting.data_frac, budget_gpu_s=float("inf"),
            seed=SEED, timer=time.process_time, n_min=setting.n_min, task=CLASSIFICATION, keep_features=setting.keep_features,
            kept_data_frac=setting.kept_data_frac, judged_frac=setting.judged_frac, lend=setting.lend,
        )
    )  # fmt: skip
    options = decisions.options(trials, CONFIGS, n_train=len(train), lend=True)
    return Profiled(
        setting=setting.name, before=trials[0].quality[0], predicted={o.name: o.end_quality for o in options},
        sd={o.name: o.quality_sd for o in options}, cost_s={o.name: o.cost_gpu_s for o in options},
        cpu_s=time.process_time() - started_s,
    )  # fmt: skip


def finished(steps: Generator[Any, None, tuple[ProfileTrial, ...]]) -> tuple[ProfileTrial, ...]:
    """What a generator returns at its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return tuple(end.value)


# --- what it says -----------------------------------------------------------------------------------------------------


def quality(trained: Trained) -> float:
    """Accuracy of a trained model over the held-out pictures."""
    return sum(trained.right) / max(1, sum(trained.regions))


def raw_options(profiled: Profiled) -> tuple[RetrainOption, ...]:
    return tuple(
        RetrainOption(name=name, end_quality=end, cost_gpu_s=profiled.cost_s[name], quality_sd=profiled.sd[name])
        for name, end in profiled.predicted.items()
    )


def observations(result: StreamResult, setting: str, *, one_each: bool) -> list[Observation]:
    """What a box would remember of this stream: of all configurations, or of the one that it would have carried out."""
    profiled = result.by(setting)
    chosen = max(profiled.predicted, key=lambda name: profiled.predicted[name])
    return [
        Observation(
            stream=result.stream, window=0, option=t.config, start_quality=profiled.before,
            predicted_quality=profiled.predicted[t.config], realised_quality=quality(t), predicted_gpu_s=profiled.cost_s[t.config],
            realised_gpu_s=t.cpu_s,
        )
        for t in result.trained
        if not one_each or t.config == chosen
    ]  # fmt: skip


def answers(results: Sequence[StreamResult], result: StreamResult, setting: str, history: str) -> dict[str, float]:
    """Configuration -> end quality that the profiler promises for this stream, corrected by `history` of the others."""
    profiled = result.by(setting)
    if history == "alone":
        return profiled.predicted
    others = [r for r in results if r.stream != result.stream]
    seen = [o for r in others for o in observations(r, setting, one_each=history == "others, one each")]
    options = calibration.correct(
        raw_options(profiled), stream=result.stream, quality=profiled.before, history=seen,
        families=decisions.family_names(CONFIGS),
    )  # fmt: skip
    return {option.name: option.end_quality for option in options}


def untried(results: Sequence[StreamResult], result: StreamResult) -> dict[str, float]:
    """What can be said without any trial: each configuration's mean gain on the other streams (nothing, where there is no other)."""
    before = result.profiled[0].before
    gains: dict[str, list[float]] = {t.config: [] for t in result.trained}
    for other in results:
        if other.stream != result.stream:
            for trained in other.trained:
                gains[trained.config].append(quality(trained) - other.profiled[0].before)
    return {name: min(1.0, before + (statistics.fmean(won) if won else 0.0)) for name, won in gains.items()}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One setting with one history over all streams. Errors in points (0-100) over streams and configurations, of predicted against
    really trained quality on the same held-out labels: error_points (median), error_p90_points, bias_points (signed mean);
    stream_points: median of each stream. lost_points: what is lost by taking the configuration that is predicted best, mean over
    streams. cost_ratio: median of predicted against real cost. times: how many times cheaper than carrying out all 18."""

    setting: str
    history: str
    error_points: float
    error_p90_points: float
    bias_points: float
    stream_points: tuple[float, ...]
    lost_points: float
    cost_ratio: float
    profile_cpu_s: float
    exhaustive_cpu_s: float

    @property
    def label(self) -> str:
        return self.setting if self.history == "alone" else f"{self.setting}, {self.history}"

    @property
    def times(self) -> float:
        return self.exhaustive_cpu_s / max(self.profile_cpu_s, 1e-9)

    @property
    def reached(self) -> bool:
        return self.error_points <= WANTED_POINTS and self.times >= WANTED_TIMES


def verdict(results: Sequence[StreamResult], setting: str, history: str) -> Verdict:
    said = [answers(results, result, setting, history) for result in results]
    ratios = [r.by(setting).cost_s[t.config] / t.cpu_s for r in results for t in r.trained]
    return judged(
        results, said, setting=setting, history=history, cost_ratio=statistics.median(ratios),
        profile_cpu_s=sum(r.by(setting).cpu_s for r in results),
    )  # fmt: skip


def judged(
    results: Sequence[StreamResult], said: Sequence[dict[str, float]], *, setting: str, history: str, cost_ratio: float,
    profile_cpu_s: float,
) -> Verdict:  # fmt: skip
    signed, streams, lost = [], [], []
    for result, predicted in zip(results, said, strict=True):
        real = {t.config: quality(t) for t in result.trained}
        errors = [predicted[name] - real[name] for name in real]
        signed += errors
        streams.append(100 * statistics.median(map(abs, errors)))
        lost.append(max(real.values()) - real[max(predicted, key=lambda name: predicted[name])])
    size = [abs(error) for error in signed]
    return Verdict(
        setting=setting, history=history, error_points=100 * statistics.median(size),
        error_p90_points=100 * float(np.quantile(size, 0.9)), bias_points=100 * statistics.fmean(signed), stream_points=tuple(streams),
        lost_points=100 * statistics.fmean(lost), cost_ratio=cost_ratio, profile_cpu_s=profile_cpu_s,
        exhaustive_cpu_s=sum(t.cpu_s for r in results for t in r.trained),
    )  # fmt: skip


def verdicts(results: Sequence[StreamResult]) -> list[Verdict]:
    return [verdict(results, setting.name, history) for setting in SETTINGS for history in HISTORIES]


def baselines(results: Sequence[StreamResult]) -> list[Verdict]:
    """What profiling has to beat: saying that nothing changes, and the other streams' mean gains. Neither costs anything."""
    nothing = [{t.config: r.profiled[0].before for t in r.trained} for r in results]
    rows = (("no change", "alone", nothing), ("no trial", "others in full", [untried(results, r) for r in results]))
    return [
        judged(results, said, setting=name, history=history, cost_ratio=float("nan"), profile_cpu_s=0.0)
        for name, history, said in rows
    ]


def best(found: Sequence[Verdict]) -> Verdict:
    """One that reaches both figures, else the most exact of those that are cheap enough, else the cheapest."""
    cheap = [v for v in found if v.times >= WANTED_TIMES]
    return min(cheap, key=lambda v: v.error_points) if cheap else max(found, key=lambda v: v.times)


def lines(results: Sequence[StreamResult]) -> Iterator[str]:
    for r in results:
        real = [quality(t) for t in r.trained]
        yield (
            f"{r.stream}: {r.crops[0]} crops to learn from, {r.crops[1]} held out; accuracy {r.profiled[0].before:.3f}, after "
            f"retraining {min(real):.3f}-{max(real):.3f}; all 18: {sum(t.cpu_s for t in r.trained):.0f} CPU-s"
        )
    titles = f"{'median':>7}{'p90':>6}{'bias':>7}{'lost':>6}{'cost':>6}{'CPU-s':>7}{'cheaper':>9}   each stream"
    yield f"{'setting':<23}{'history':<18}{titles}"
    for v in [*baselines(results), *verdicts(results)]:
        yield (
            f"{v.setting:<23}{v.history:<18}{v.error_points:>7.1f}{v.error_p90_points:>6.1f}{v.bias_points:>+7.1f}"
            f"{v.lost_points:>6.1f}{v.cost_ratio:>6.2f}{v.profile_cpu_s:>7.1f}{_cheaper(v):>9}   "
            f"{' '.join(f'{points:.1f}' for points in v.stream_points)}"
        )
    chosen = best(verdicts(results))
    yield (
        f"{'reached' if chosen.reached else 'MISSED'}: {chosen.label}: {chosen.error_points:.1f} points in the "
        f"median and {chosen.times:.0f}x cheaper (Ekya: {PAPER_POINTS} and {PAPER_TIMES}x; to reach: <= {WANTED_POINTS:g} and >= "
        f"{WANTED_TIMES}x)"
    )


def _cheaper(v: Verdict) -> str:
    return f"{v.times:.0f}x" if v.profile_cpu_s else "-"


def as_json(results: Sequence[StreamResult]) -> dict[str, Any]:
    """As `bench learning` reads it: rows by label."""
    unchanged = baselines(results)[0].error_points
    rows = [{**asdict(v), "setting": v.label, "times": v.times, "unchanged_points": unchanged} for v in verdicts(results)]
    return {"settings": rows, "best": best(verdicts(results)).label, "streams": [r.stream for r in results]}


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
