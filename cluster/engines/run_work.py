"""Runs a `Work` where an engine put it. In a pod: `python -m cluster.engines.run_work`; in a Ray worker: `outcome_of` (`ray_worker`).

A pod is told what to do by its environment and answers by its termination message, which Kubernetes cuts off at 4096 bytes: what is
larger belongs into a store, and the work returns where it lies.

    DRIFTBOX_TASK   id of the task                       DRIFTBOX_NODE   node it runs on (downward API)
    DRIFTBOX_WORK   {"entry": ..., "arguments": ...}     DRIFTBOX_ANSWER file of the termination message
    DRIFTBOX_DOMAIN domain of our extended resources
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.engines.base import NodeId, TaskContext, Work
from cluster.engines.local import run_work
from configs.errors import UsageError

#: Kubernetes keeps no more of a termination message.
LONGEST_ANSWER = 4096


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What work came to. problem: why it failed, "" it did not."""

    result: Any = None
    problem: str = ""

    def as_json(self) -> str:
        return json.dumps({"result": self.result, "problem": self.problem}, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Outcome:
        """ValueError for anything else."""
        body = json.loads(text)
        if not isinstance(body, dict):
            raise ValueError("not an outcome")
        return Outcome(result=body.get("result"), problem=str(body.get("problem", "")))


def outcome_of(work: Work, context: TaskContext) -> Outcome:
    """Calls it. Nothing is raised for what the work does wrong; KeyboardInterrupt and SystemExit pass."""
    result, problem = run_work(work, context)
    return Outcome(result=result, problem=problem)


@dataclass(frozen=True, kw_only=True)
class PodContext:
    """`TaskContext` in a pod. stop: set by SIGTERM, which Kubernetes sends when the pod is deleted; resize: the node's status patch."""

    node: NodeId
    task: str
    resize: Callable[[NodeId, str, float], float]
    stop: threading.Event

    def set_resource(self, name: str, capacity: float) -> None:
        self.resize(self.node, name, capacity)

    def cancelled(self) -> bool:
        return self.stop.is_set()


def run_pod(environ: Mapping[str, str], resize: Callable[[NodeId, str, float], float], stop: threading.Event) -> str:
    """The termination message of the work that `environ` describes. UsageError if it describes none."""
    try:
        body = json.loads(environ["DRIFTBOX_WORK"])
        work = Work(entry=body["entry"], arguments=body["arguments"])
        context = PodContext(node=environ["DRIFTBOX_NODE"], task=environ["DRIFTBOX_TASK"], resize=resize, stop=stop)
    except (KeyError, ValueError, TypeError) as error:
        raise UsageError(f"no work in the environment: {error!r}", remedy="the Kubernetes engine starts these pods") from None
    answer = outcome_of(work, context).as_json()
    if len(answer.encode()) > LONGEST_ANSWER:
        problem = f"the result has {len(answer.encode())} bytes, a pod's answer holds {LONGEST_ANSWER}: return where it lies"
        answer = Outcome(problem=problem).as_json()
    return answer


def main() -> int:
    """Exit code 0: the work is done; 1: it failed; 2: there is none."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        answer = run_pod(os.environ, _resize, stop)
    except UsageError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    Path(os.environ.get("DRIFTBOX_ANSWER", "/dev/termination-log")).write_text(answer, encoding="utf-8")
    return 1 if Outcome.from_json(answer).problem else 0


def _resize(node: NodeId, name: str, capacity: float) -> float:
    # Imported when it is wanted: the client costs a second, and most work never asks.
    from cluster.engines.kubernetes_api import open_api
    from cluster.engines.kubernetes_resources import patch_resource

    domain = os.environ.get("DRIFTBOX_DOMAIN", "driftbox.io")
    return patch_resource(open_api(), node=node, name=name, capacity=capacity, domain=domain)


if __name__ == "__main__":
    sys.exit(main())
