"""`driftbox fleet simulate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cluster.simulate.scenario import Scenario
from configs.errors import UsageError
from edge.cli_common import Json
from edge.console import print_json, print_table, say

_D = Scenario()


def simulate_command(
    boxes: Annotated[int, typer.Option(min=1, max=5000, help="Boxes.")] = 100,
    cameras: Annotated[int, typer.Option(min=1, max=64, help="Cameras of each box.")] = _D.cameras,
    customers: Annotated[int, typer.Option(min=1, max=500, help="Customers.")] = _D.customers,
    hours: Annotated[float, typer.Option(min=0.1, max=24 * 31, help="Virtual hours; the first is not judged.")] = 4.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same fleet.")] = 0,
    partition: Annotated[
        str, typer.Option(metavar="PART@HOUR+HOURS", help="Part of the boxes that cannot be reached, from when on, how long.")
    ] = "0.3@1.5+2",
    deaths: Annotated[int, typer.Option(min=0, help="Boxes that stop altogether for two hours, at times drawn.")] = 5,
    report_s: Annotated[
        float, typer.Option(min=5, max=600, help="Virtual seconds between two reports of a box (live: 5; more is cheaper).")
    ] = _D.report_s,
    load: Annotated[
        float, typer.Option(min=0.05, max=5, help="Mean need of a box's cameras, in parts of its capacity.")
    ] = _D.load_frac,
    arrivals: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Recorded load: CSV of timestamp, arrivals a second.", show_default=False
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Play a fleet in virtual time through the controller's own code: partition, dying boxes, the broker away, a staged rollout."""
    from cluster.simulate.run import simulate

    cut_frac, at_h, for_h = parsed_partition(partition)
    scenario = Scenario(
        boxes=boxes, cameras=cameras, customers=customers, hours=hours, seed=seed, cut_frac=cut_frac, cut_at_h=at_h, cut_h=for_h,
        deaths=min(deaths, boxes), report_s=report_s, load_frac=load,
    )  # fmt: skip
    result = simulate(scenario, arrivals=arrivals)
    if json:
        print_json(asdict(result) | {"targets": [asdict(target) for target in result.targets()]})
        return
    mark = {True: "reached", False: "MISSED", None: "-"}
    print_table(("", "what", "to reach", "here"), [(mark[t.ok], t.what, t.to_reach, t.measured) for t in result.targets()])
    print_table(("part of the controller", "ms a call"), [(part, f"{ms:.2f}") for part, ms in result.cpu_ms.items()])
    if result.rollout:
        say(f"the staged rollout is {result.rollout}")
    say(f"{scenario.hours:g} virtual hours in {result.wall_s:.0f} s")


def parsed_partition(text: str) -> tuple[float, float, float]:
    """PART@HOUR+HOURS; 'none' is no partition. UsageError for anything else."""
    if text == "none":
        return 0.0, 0.0, 0.0
    try:
        part, _, rest = text.partition("@")
        at, _, span = rest.partition("+")
        return float(part), float(at), float(span)
    except ValueError:
        raise UsageError(
            f"a partition is written PART@HOUR+HOURS, got {text[:40]!r}", subject=text[:40], remedy="e.g. 0.3@1.5+24, or none"
        ) from None
