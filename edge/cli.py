"""The command `driftbox`. Thin: every command calls one function of the box and prints what it returns.

Exit codes: 0 ok, 1 the thing asked about is bad, 2 wrong usage or configuration, 3 the environment lacks something.
Heavy libraries are imported inside commands, so that `driftbox --help` and `driftbox check` answer at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from configs.errors import DriftboxError, UsageError, redact
from configs.load import load_config
from configs.schema import BoxConfig
from edge.cli_accounts import accounts_app
from edge.cli_cameras import cameras_app
from edge.cli_common import ConfigFile, DataDir, Json, OptionalConfig, load_given, load_in_force
from edge.cli_fleet import fleet_app
from edge.cli_labels import labels_app
from edge.cli_models import models_app
from edge.cli_operate import backup_app, diagnostics, upgrade
from edge.cli_profile import profile
from edge.cli_settings import settings_app
from edge.console import print_json, print_table, say, say_json_line, show_error
from edge.logs import DEBUG_VARIABLE

app = typer.Typer(
    name="driftbox",
    help="Edge video analytics with continuous learning: retraining and live inference share one GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
decide_app = typer.Typer(
    help="What would one of the nine systems decide here, and why: JSON in, JSON out.", no_args_is_help=True
)
app.add_typer(accounts_app, name="accounts")
app.add_typer(models_app, name="models")
app.add_typer(cameras_app, name="cameras")
app.add_typer(labels_app, name="labels")
app.add_typer(settings_app, name="settings")
app.add_typer(backup_app, name="backup")
app.add_typer(fleet_app, name="fleet")
app.command()(upgrade)
app.command()(diagnostics)
app.command()(profile)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: runs a command and exits with its code. No traceback reaches an operator unless `--debug` is given."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"
    try:
        app(words, prog_name="driftbox")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:  # the one place where everything that nobody foresaw ends
        if debug:
            # Redacted as a whole: a library's own message may hold an address with a password.
            print(redact(traceback.format_exc()), file=sys.stderr)
        show_error(error, as_json="--json" in words)
        sys.exit(error.exit_code if isinstance(error, DriftboxError) else 1)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(f"driftbox {version('driftbox')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks (may stand anywhere).")] = False,
) -> None:
    """Runs before every command."""


# --- the box ----------------------------------------------------------------------------------------------------------


@app.command()
def run(
    config: OptionalConfig = None,
    data_dir: DataDir = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the status page, instead of web.port.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line for machines.")] = False,
) -> None:
    """Run the box until it is stopped (Ctrl-C). Without CONFIG: the built-in demo, four rendered cameras that drift."""
    from edge.environment import prepare

    loaded = load_given(config, data_dir)
    if port is not None:
        loaded = loaded.model_copy(update={"web": loaded.web.model_copy(update={"port": port})})
    prepare(loaded)
    from edge.closing import leave
    from edge.wiring.running import run_box

    leave(run_box(loaded, demo=config is None, file=config, say=say_json_line if json else say))


@app.command()
def check(config: ConfigFile, json: Json = False) -> None:
    """Validate a configuration without touching the world: every problem at once. Exit code 2 if there is any.

    With the cameras that were changed through the product, where its data folder is on this machine."""
    load_config(config)
    loaded = load_in_force(config)
    if json:
        print_json({"ok": True, "config": str(config), "cameras": [camera.id for camera in loaded.cameras]})
        return
    off = len(loaded.cameras) - len(loaded.active_cameras)
    cameras = f"{len(loaded.active_cameras)} cameras" + (f" and {off} switched off" if off else "")
    say(f"{config} is fine: {cameras}, policy {loaded.scheduler.policy}, windows of {loaded.window.seconds:g} s")


@app.command()
def doctor(config: OptionalConfig = None, data_dir: DataDir = None, json: Json = False) -> None:
    """Look at the world: libraries, GPU, disk, clock, port, broker, weights, cameras. One line each, with the remedy."""
    from edge.doctor import Level, examine, exit_code
    from edge.environment import prepare

    loaded = load_in_force(config, data_dir)
    prepare(loaded)
    findings = []
    for finding in examine(loaded):
        findings.append(finding)
        if not json:
            say(f"{finding.level.value:<4}  {finding.check}: {finding.text}")
            if finding.remedy:
                say(f"      what to do: {finding.remedy}")
    if json:
        fields = ("check", "level", "text", "remedy")
        print_json({"ok": exit_code(findings) == 0, "findings": [{f: getattr(x, f) for f in fields} for x in findings]})
    elif exit_code(findings) == 0:
        warnings = sum(finding.level is Level.WARN for finding in findings)
        say("all is well" if not warnings else f"the box will run; {warnings} warnings")
    raise typer.Exit(exit_code(findings))


@app.command()
def calibrate(
    config: OptionalConfig = None,
    data_dir: DataDir = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer shares, shorter: under a minute or two, less exact.")] = False,
    json: Json = False,
) -> None:
    """Measure how fast this box's own jobs run at a share, alone and together; plans use it from the next start on."""
    from edge.environment import prepare
    from edge.progress import make_progress

    loaded = load_in_force(config, data_dir)
    prepare(loaded)
    from edge.calibrate import table
    from edge.wiring.calibrating import calibrate_box

    with make_progress(enabled=not json) as progress:
        bar = progress.task("measurements", total=100)
        found = calibrate_box(loaded, quick=quick, progress=lambda what, done_frac: bar.set(round(100 * done_frac)))
    if json:
        print_json(found.model_dump(mode="json"))
    else:
        columns, rows = table(found)
        print_table(columns, rows)
        say(f"speed for plans, {found.known} known: " + ", ".join(f"{x:g} % -> {y:.3f}" for x, y in found.speed))
        if found.problem:
            say(f"plans will not use it: {found.problem}")
    raise typer.Exit(1 if found.problem else 0)


@app.command()
def replay(
    data_dir: Annotated[Path, typer.Argument(metavar="DATA_DIR", help="Data folder of a box that ran.")], json: Json = False
) -> None:
    """Feed the recorded events back to a fresh engine; exit code 1 at the first command that differs."""
    from dataclasses import asdict

    from edge.replay import replay as replay_folder

    result = replay_folder(data_dir)
    if json:
        print_json({"exact": result.exact, **asdict(result)})
    elif result.difference is None:
        say(f"exact: {result.events} events in {result.segments} segments gave the same {result.commands} commands")
    else:
        where = result.difference
        say(f"different: {where.segment}, line {where.line}, after {where.event}")
        say(f"  recorded: {where.recorded or '(nothing)'}\n  replayed: {where.replayed or '(nothing)'}")
    raise typer.Exit(0 if result.exact else 1)


# --- studies ----------------------------------------------------------------------------------------------------------


@app.command()
def evaluate(
    videos: Annotated[
        list[Path] | None, typer.Argument(metavar="VIDEO...", help="Video files, one stream each.", show_default=False)
    ] = None,
    task: Annotated[str, typer.Option(help="What the edge model is asked: detection, classification.")] = "detection",
    edge: Annotated[
        str | None, typer.Option(help="Edge model, e.g. yolov8n@320. Default: that of --config.", show_default=False)
    ] = None,
    golden: Annotated[
        str | None, typer.Option(help="Golden model, e.g. yolo26l@640. Default: that of --config.", show_default=False)
    ] = None,
    policy: Annotated[str, typer.Option(help="Policies, separated by commas.")] = "lookahead,uniform,no-retrain",
    gpus: Annotated[float, typer.Option(min=0.05, max=64, help="GPUs of the virtual box.")] = 1.0,
    window_s: Annotated[float, typer.Option(min=10, help="Virtual seconds that a window stands for.")] = 200.0,
    windows: Annotated[int, typer.Option(min=1, max=1000, help="Parts that each stream is cut into, a window each.")] = 5,
    fps: Annotated[float, typer.Option(min=0.1, max=120, help="Rate at which live inference must keep up.")] = 10.0,
    label_frames: Annotated[
        int, typer.Option(min=4, max=10_000, help="Frames per stream and window that may be labelled.")
    ] = 24,
    judged_frames: Annotated[
        int, typer.Option(min=2, max=10_000, help="Frames per stream and window on which quality is judged.")
    ] = 16,
    gpu_speed: Annotated[float, typer.Option(min=0.01, help="Cores of this machine that one virtual GPU stands for.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn by chance.")] = 0,
    scenario: Annotated[Path | None, typer.Option(help="Scenario file instead of videos.", show_default=False)] = None,
    footage: Annotated[
        Path | None,
        typer.Option(help="Folder of the scenario's videos, instead of the scenario's own.", show_default=False),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration whose window, scheduler and retrainings are used.", show_default=False)
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(help="Cost profile (JSON) instead of measuring this machine.", show_default=False)
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder that keeps labels and trainings for the next time.", show_default=False)
    ] = None,
    drift: Annotated[
        bool | None,
        typer.Option("--drift/--no-drift", help="Spare cameras without drift. Default: as in --config.", show_default=False),
    ] = None,
    reuse: Annotated[
        bool | None,
        typer.Option("--reuse/--no-reuse", help="Try earlier models first. Default: as in --config.", show_default=False),
    ] = None,
    group: Annotated[
        bool | None,
        typer.Option("--group/--no-group", help="Retrain cameras together. Default: as in --config.", show_default=False),
    ] = None,
    together: Annotated[
        bool | None,
        typer.Option(
            "--together/--no-together",
            help="One lesson a window for all cameras with one model. Default: as in --config.",
            show_default=False,
        ),
    ] = None,
    golden_runtime: Annotated[
        str, typer.Option(help="What carries out the golden model: torch, or openvino or openvino-bf16, faster on a CPU.")
    ] = "torch",
    trace: Annotated[Path | None, typer.Option(help="Write the evaluation as a trace (JSON).", show_default=False)] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw F1 over time (PNG or SVG).", show_default=False)] = None,
    json: Json = False,
) -> None:
    """How well would this box have done on this footage? Real models and training, virtual time."""
    from edge.environment import prepare
    from edge.progress import make_progress

    loaded = load_given(config)
    prepare(loaded)
    from edge.evaluate import EvaluateOptions, evaluate_command
    from edge.evaluate.command import RETRAIN
    from edge.wiring.settings import engine_config, labelling_of, retrain_configs, scoring_of
    from models.tasks.registry import task_of

    chosen, usual = task_of(task), loaded.models.for_task(task)
    edge, golden = edge or usual.edge, golden or usual.golden
    tuned = RETRAIN if chosen.name == "detection" else retrain_configs(BoxConfig(), edge)
    # The golden model's cost is measured by the evaluation itself.
    from_config: dict[str, Any] = (
        {"engine": engine_config(loaded, 0.1), "scoring": scoring_of(loaded), "labelling": labelling_of(loaded)}
        if config is not None
        else {}
    )
    options = EvaluateOptions(
        windows=windows, window_s=window_s, gpus=gpus, fps=fps, candidates=label_frames, judged=judged_frames,
        gpu_speed=gpu_speed, seed=seed, task=chosen, golden_runtime=golden_runtime, **from_config,
    ).switched(drift=drift, reuse=reuse, group=group, together=together)  # fmt: skip
    with make_progress(enabled=not json) as progress:
        bar = progress.task("policies", total=100)
        answer = evaluate_command(
            videos=videos or (), scenario=scenario, footage_dir=footage, edge=edge, golden=golden, policies=policy, options=options,
            retrain=tuned if config is None else retrain_configs(loaded, edge), costs=costs, cache=cache,
            trace=trace, plot=plot, log=progress.note, progress=lambda what, done_frac: bar.set(round(100 * done_frac)),
        )  # fmt: skip
    if json:
        print_json(answer)
        return
    print_table(
        ("policy", f"mean {answer['quality']}", "retrainings", "admitted", "GPU-seconds"),
        [(r["policy"], f"{r['mean_f1']:.3f}", r["retrainings"], r["admitted"], round(r["gpu_s"])) for r in answer["policies"]],
    )


@app.command()
def simulate(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A trace (JSON), the authors' table (CSV), or a box's data folder.")
    ],
    policy: Annotated[str, typer.Option(help="Policies, separated by commas.")] = "lookahead,uniform,no-retrain",
    streams: Annotated[
        int | None, typer.Option(min=1, help="The first so many of the shuffled streams; default: all.", show_default=False)
    ] = None,
    gpus: Annotated[float, typer.Option(min=0.05, max=1000, help="GPUs of the virtual box.")] = 1.0,
    windows: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Windows after the first; default: all.", show_default=False)
    ] = None,
    window_s: Annotated[
        float | None, typer.Option(min=1, help="Length of a window; costs stay as recorded.", show_default=False)
    ] = None,
    quantum: Annotated[int, typer.Option(min=1, max=100, help="Step of the planner, percent of a GPU.")] = 5,
    estimate: Annotated[str, typer.Option(help="static or hand-back.")] = "hand-back",
    min_quality: Annotated[float, typer.Option(min=0, max=1, help="Floor that no camera should fall under.")] = 0.4,
    profiles: Annotated[str, typer.Option(help="What the box believes: predicted (as recorded) or true.")] = "predicted",
    noise: Annotated[float, typer.Option(min=0, max=1, help="Standard deviation of noise on predicted end qualities.")] = 0.0,
    overhead_s: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds of preparation per window, instead of what was recorded.", show_default=False),
    ] = None,
    devices: Annotated[bool, typer.Option("--devices", help="A job's share lies on one GPU, instead of one pool.")] = False,
    calibrate: Annotated[
        bool | None,
        typer.Option("--calibrate/--no-calibrate", help="Correct predictions by earlier outcomes.", show_default=False),
    ] = None,
    hold_out: Annotated[
        bool, typer.Option("--hold-out", help="Calibration begins with what the last two streams of the order showed.")
    ] = False,
    prune: Annotated[bool, typer.Option(help="Stop profiling configurations that are never worth it.")] = True,
    react: Annotated[
        bool | None,
        typer.Option("--react/--no-react", help="Plan anew when a retraining leaves its prediction.", show_default=False),
    ] = None,
    slaq: Annotated[
        str | None, typer.Option(help="Move training shares each epoch: sum, minmax or finish.", show_default=False)
    ] = None,
    up_mbps: Annotated[float | None, typer.Option(min=0.001, help="Uplink, for the policy cloud.", show_default=False)] = None,
    down_mbps: Annotated[float | None, typer.Option(min=0.001, help="Downlink.", show_default=False)] = None,
    up_mb: Annotated[float, typer.Option(min=0, help="Megabits of video per camera and window to a cloud.")] = 160.0,
    down_mb: Annotated[float, typer.Option(min=0, help="Megabits of model per camera and window back.")] = 398.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the streams' order and of the noise.")] = 0,
    sweep: Annotated[
        list[str] | None, typer.Option(help='A grid, e.g. "streams=2,4,8 gpus=1,2"; may be repeated.', show_default=False)
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=2, help="Processes.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="Draw the result (PNG or SVG).", show_default=False)] = None,
    save_trace: Annotated[Path | None, typer.Option(help="Write what was read as a trace (JSON).", show_default=False)] = None,
    json: Json = False,
) -> None:
    """What would policies make of recorded offers? The box's own engine in virtual time, without any model."""
    import time

    from edge.progress import make_progress
    from edge.simulate import Setting, link, simulate_command
    from edge.simulate.report import print_answer

    setting = Setting(
        streams=streams, gpus=gpus, window_s=window_s, quantum=quantum, noise=noise, overhead_s=overhead_s, seed=seed,
        profiles=one_of("profiles", profiles, ("predicted", "true")), min_quality=min_quality,
        estimate=one_of("estimate", estimate, ("static", "hand-back")), devices=devices, calibrate=calibrate, prune=prune,
        hold_out=hold_out,
        react=react, slaq=None if slaq is None else one_of("slaq", slaq, ("sum", "minmax", "finish")),
        network=link(up_mbps, down_mbps, up_mb, down_mb),
    )  # fmt: skip
    started_s = time.perf_counter()
    with make_progress(enabled=not json) as progress:
        task = progress.task("simulations", total=100)
        answer = simulate_command(
            trace, policies=policy, setting=setting, windows=windows, sweep=sweep or (), jobs=jobs, plot=plot,
            save_trace=save_trace, progress=lambda what, done_frac: task.set(round(100 * done_frac)),
        )  # fmt: skip
    if json:
        print_json(answer)
    else:
        print_answer(answer, time.perf_counter() - started_s)


def one_of(field: str, text: str, known: tuple[str, ...]) -> Any:
    """`text` if it is known. Raises UsageError naming the option."""
    if text not in known:
        raise UsageError(f"{field}: '{text}' is not known", subject=field, remedy=f"known: {', '.join(known)}")
    return text


@app.command()
def decide(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="Which of the nine systems: ekya, cilantro, ...")],
    input_file: Annotated[
        Path | None, typer.Argument(metavar="INPUT.json", help="The situation; - reads standard input.", show_default=False)
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schemas of input and answer instead.")] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Why each share, and what one quantum more would be worth; as tables without --json."),
    ] = False,
    json: Json = False,
) -> None:
    """What would SYSTEM decide here, and why: JSON in, JSON out; the same code that the box runs."""
    import time

    from edge.plug_ins import system_of

    chosen = system_of(system)
    if schema:
        print_json(chosen.schema())
        return
    if input_file is None:
        raise UsageError("decide needs an input file", remedy=f"driftbox decide {system} INPUT.json, or - for standard input")
    answer = chosen.decide(read_json(input_file), time.perf_counter, explain=explain)
    if json or not explain or chosen.tables is None:
        print_json(answer)
        return
    for number, table in enumerate(chosen.tables(answer)):
        say(("\n" if number else "") + table.title)
        print_table(table.columns, table.rows)


def read_json(path: Path) -> Any:
    """The parsed file, `-` for standard input. Raises UsageError naming the line of a mistake; a key given twice is one."""
    import json as json_module

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for number, key in enumerate(keys) if key in keys[:number])
            raise UsageError(f"{path}: the key '{twice}' stands twice in one object", subject=str(path), remedy="drop one")
        return found

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        return json_module.loads(text, object_pairs_hook=unique)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", subject=str(path), remedy="check the path") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a UTF-8 text", subject=str(path), remedy="save it as JSON") from None
    except json_module.JSONDecodeError as error:
        raise UsageError(
            f"{path} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}",
            subject=str(path),
            remedy="correct it there",
        ) from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply", subject=str(path), remedy="see docs/decide.md") from None
    except ValueError as error:  # a whole number of thousands of digits
        raise UsageError(f"{path} is not usable: {error}", subject=str(path), remedy="see docs/decide.md") from None


# What stands after NAME is the benchmark's own, options of the same name as ours included.
@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False})
def bench(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Benchmark; without it, their names.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Run a benchmark of the source tree on this machine; what follows NAME goes to it (try --help after NAME)."""
    from edge.bench import benchmarks, run_benchmark

    known = benchmarks()
    if name is None:
        if json:
            print_json({"benchmarks": [{"name": n, "about": about} for n, (_, about) in known.items()]})
        else:
            print_table(("benchmark", "what it measures"), [(n, about) for n, (_, about) in known.items()])
        return
    run_benchmark(name, context.args[1:] if context.args[:1] == ["--"] else context.args)


# --- day-to-day work ---------------------------------------------------------------------------------------------------


@app.command()
def fetch(
    weights: Annotated[
        list[str],
        typer.Argument(metavar="WEIGHTS...", help="Names such as yolov8n; `all`: whatever can be downloaded."),
    ],
    json: Json = False,
) -> None:
    """Download published weights once, with their checksums, into the cache."""
    from edge.progress import make_progress
    from models.weights import BY_NAME
    from models.weights import fetch as fetch_weights

    names = [name for name, file in BY_NAME.items() if file.direct] if weights == ["all"] else weights
    with make_progress(enabled=not json) as progress:
        tasks: dict[str, Any] = {}

        def show(file: str, done: int, total: int) -> None:
            task = tasks.setdefault(file, progress.task(f"{file} (MiB)", total=total / 2**20 or None))
            task.set(round(done / 2**20, 1), total=round(total / 2**20, 1) or None)

        paths = fetch_weights(names, progress=show)
    if json:
        print_json({"weights": [{"name": name, "path": str(path)} for name, path in zip(names, paths, strict=True)]})
    else:
        print_table(("weights", "file"), list(zip(names, paths, strict=True)))
