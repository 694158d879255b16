"""`driftbox fleet workloads apply/list/remove`: boxes that are pods of a Kubernetes cluster, not machines
(`cluster.engines.kubernetes_workloads`). Thin; needs no controller's data folder, only the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import UsageError
from edge.console import print_json, print_table, say

if TYPE_CHECKING:
    from cluster.engines.kubernetes_workloads import Workloads

workloads_app = typer.Typer(help="Boxes that are pods of a Kubernetes cluster.", no_args_is_help=True)

Box = Annotated[str, typer.Argument(metavar="BOX", help="The box's id.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The controller's: how the Kubernetes cluster is reached.")
]
Kubeconfig = Annotated[
    str, typer.Option(metavar="FILE", help="Of the cluster; default: what kubectl uses, or the pod's account.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")]


def _workloads(config: Path | None, kubeconfig: str) -> Workloads:
    """Raises ConfigError, EnvironmentLacking (no client, no cluster)."""
    from cluster.controller.outside import engine_settings
    from cluster.engines.choose import kubernetes_settings
    from cluster.engines.kubernetes_api import KubernetesApi
    from cluster.engines.kubernetes_workloads import Workloads
    from configs.load import load_controller

    said = load_controller(config, {"kubernetes": {"kubeconfig": kubeconfig}} if kubeconfig else {})
    return Workloads(KubernetesApi(kubernetes_settings(engine_settings(said))))


@workloads_app.command("apply")
def apply(
    box: Box,
    config_secret: Annotated[str, typer.Option(help="Secret with its configuration, as the key box.yaml.")],
    demand: Annotated[
        list[str] | None,
        typer.Option(
            "--demand", metavar="NAME=AMOUNT", help="What its node must have: CPU, memory_mib, GPU, or a named resource."
        ),
    ] = None,
    data_claim: Annotated[
        str, typer.Option(help="PersistentVolumeClaim of its data folder; without one its data ends with the pod.")
    ] = "",
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=SECRET/KEY", help="For what its configuration takes from env:NAME."),
    ] = None,
    config: Config = None,
    kubeconfig: Kubeconfig = "",
    json: Json = False,
) -> None:
    """Makes it so, whatever was there under its id: one pod, on a node that meets its demands."""
    from cluster.engines.kubernetes_workloads import CameraWorkload

    workload = CameraWorkload(
        id=box, demands=dict(map(_demand, demand or ())), config_secret=config_secret, data_claim=data_claim,
        environment=dict(map(_variable, env or ())) or None,
    )  # fmt: skip
    _workloads(config, kubeconfig).apply(workload)
    if json:
        print_json({"box": box})
    else:
        say(f"box {box} is to run in the cluster; driftbox fleet workloads list says when it is ready")


@workloads_app.command("list")
def listed(config: Config = None, kubeconfig: Kubeconfig = "", json: Json = False) -> None:
    """Boxes in the cluster, whether each is ready, and what keeps it from being."""
    rows = [(w.id, w.ready, w.problem) for w in _workloads(config, kubeconfig).statuses()]
    if json:
        print_json([dict(zip(("box", "ready", "problem"), row, strict=True)) for row in rows])
    else:
        print_table(("box", "ready", "problem"), rows)


@workloads_app.command("remove")
def remove(box: Box, config: Config = None, kubeconfig: Kubeconfig = "", json: Json = False) -> None:
    """Its pod ends in order; its claim and its Secret stay."""
    _workloads(config, kubeconfig).remove(box)
    if json:
        print_json({"box": box})
    else:
        say(f"box {box} does not run in the cluster any more")


def _demand(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    try:
        return name, float(amount)
    except ValueError:
        raise UsageError(f"a demand is NAME=AMOUNT, not {text[:80]}", subject="--demand") from None


def _variable(text: str) -> tuple[str, tuple[str, str]]:
    name, _, where = text.partition("=")
    secret, _, key = where.partition("/")
    if not (name and secret and key):
        raise UsageError(f"a variable is NAME=SECRET/KEY, not {text[:80]}", subject="--env")
    return name, (secret, key)
