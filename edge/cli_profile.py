"""`driftbox profile CAMERA`. Thin, like `edge.cli`; what is done stands in `edge.profiler`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.cli_common import DataDir, Json, OptionalConfig, load_in_force
from edge.console import print_json, print_table, say


def profile(
    camera: Annotated[str, typer.Argument(metavar="CAMERA", help="Camera id.")],
    config: OptionalConfig = None,
    data_dir: DataDir = None,
    video: Annotated[
        Path | None, typer.Option(help="Profile on this recording instead of the camera's own.", show_default=False)
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live/--samples", help="A live camera: on what it sends now, or on the samples that its box has kept."),
    ] = True,
    start_s: Annotated[float, typer.Option(min=0, help="Where in the recording to begin.")] = 0.0,
    clip_s: Annotated[float, typer.Option(min=0.2, max=600, help="Seconds of video that are looked at.")] = 20.0,
    query: Annotated[
        str | None, typer.Option(help="One of the camera's queries; default: the camera itself.", show_default=False)
    ] = None,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Measure every setting instead of searching.")] = False,
    beta: Annotated[float, typer.Option(min=0, max=100, help="Quality that a core must buy, for the search.")] = 0.3,
    budget_s: Annotated[
        float | None,
        typer.Option(min=0, help="Stop searching after so many seconds of compute; default: no limit.", show_default=False),
    ] = None,
    models: Annotated[str, typer.Option(help="Other models to measure beside the one that serves, separated by commas.")] = "",
    forms: Annotated[
        str, typer.Option(help="Forms to measure beside the trained one, e.g. openvino; separated by commas.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of what the search draws.")] = 0,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the profile into the data folder for the box.")] = True,
    json: Json = False,
) -> None:
    """What quality does each setting of a camera's knobs give, and what does it need? Plans use the answer."""
    from edge.environment import prepare
    from edge.progress import make_progress

    loaded = load_in_force(config, data_dir)
    prepare(loaded)
    from edge.profiler.command import ProfileOptions, profile_command
    from edge.profiler.profile import table
    from scheduler.ekya.usual_knobs import STRIDES

    options = ProfileOptions(
        video=video, live=live, start_s=start_s, clip_s=clip_s, all_settings=exhaustive, beta=beta, budget_s=budget_s,
        models=_names(models), forms=_names(forms), seed=seed, keep=keep, query=query,
    )  # fmt: skip
    with make_progress(enabled=not json) as progress:
        bar = progress.task("settings", total=100)
        found, version = profile_command(
            loaded, camera, options, device=loaded.gpus.device, curve=STRIDES,
            told=lambda what, done, of: bar.set(round(100 * done / max(1, of))),
        )  # fmt: skip
    if json:
        print_json({"version": version, "front": [o.name for o in found.front()], **found.model_dump(mode="json")})
        return
    print_table(*table(found, found.front()))
    say(found.described())
    cost = found.cost
    every = f"{'' if cost.every_measured else 'about '}{cost.every_s:.1f} s"
    say(
        f"{cost.settings} of {cost.of_settings} settings tried for {cost.search_s:.1f} s of compute (every one of them, nothing kept:"
        f" {every}); golden labels took {cost.truth_s:.1f} s"
    )
    for left in found.left_out:
        say(f"left out: {left.name}: {left.reason}")
    if found.assumed:
        say(f"assumed: {found.assumed}")
    say(f"kept as version {version} of {camera}'s profile" if version is not None else "not kept")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
