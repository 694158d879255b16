"""`driftbox decide orloj`: what a free worker would run next. Input and answer as docs/decide.md describes them."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator

from scheduler.decide.inputs import Clock, Name, Strict, Table, no_doubles, parse, refusal
from scheduler.orloj.law import Law, edges_for, law_of
from scheduler.orloj.policy import OrlojRules
from scheduler.orloj.registry import POLICIES
from scheduler.orloj.runtimes import LawRules
from scheduler.orloj.score import score
from scheduler.orloj.types import BatchPolicy, ModelCost, Request

Seconds = Annotated[float, Field(ge=0, le=1e6)]
Time = Annotated[float, Field(ge=-1e12, le=1e12)]


# --- input ------------------------------------------------------------------------------------------------------------


class AppInput(Strict):
    app: Name
    alone_s: list[Seconds] = Field(min_length=1, max_length=10_000, description="run times of its requests by themselves")


class ModelInput(Strict):
    model: Name
    c0_s: Seconds = Field(0.0, description="fixed part of a batch")
    c1: float = Field(1.0, gt=0, le=1e3, description="factor on size times the longest stand-alone run time")
    sizes: list[Annotated[int, Field(ge=1, le=4096)]] = Field([1], min_length=1, max_length=64, description="ascending from 1")
    apps: list[AppInput] = Field(default_factory=list, max_length=1000, description="what is known of run times")

    @field_validator("sizes")
    @classmethod
    def _ascend_from_one(cls, sizes: list[int]) -> list[int]:
        if sizes[0] != 1 or sizes != sorted(set(sizes)):
            raise ValueError("sizes must ascend from 1")
        return sizes

    @field_validator("apps")
    @classmethod
    def _each_once(cls, apps: list[AppInput]) -> list[AppInput]:
        no_doubles((app.app for app in apps), "app")
        return apps


class RequestInput(Strict):
    id: int
    app: Name
    model: Name
    released_s: Time
    deadline_s: Time
    penalty: float = Field(1.0, ge=0, le=1e9, description="cost of being late")
    after_s: Seconds = Field(0.0, description="device time its frame needs after it")
    together: int | None = Field(None, ge=0, lt=2**63, description="requests with the same number are of use only all together")


class OrlojInput(Strict):
    """What `decide orloj` reads."""

    now_s: Time = Field(description="present time, in the clock of the requests")
    policy: Literal["orloj", "orloj-printed", "clockwork", "nexus", "clipper", "edf", "fifo"] = Field(
        "orloj", description="who decides"
    )
    b_per_s: float = Field(0.1, gt=0, le=1e6, description="rate of the anticipated delay")
    est_quantile: float | None = Field(
        None, gt=0, lt=1, description="printed variant: time a request must have left; null: the mean"
    )
    batches: int = Field(1, ge=1, le=1000, description="batches to decide, each as long as expected")
    models: list[ModelInput] = Field(min_length=1, max_length=100)
    requests: list[RequestInput] = Field(max_length=10_000)

    @field_validator("models")
    @classmethod
    def _models_once(cls, models: list[ModelInput]) -> list[ModelInput]:
        no_doubles((model.model for model in models), "model")
        return models


# --- answer -----------------------------------------------------------------------------------------------------------


class BatchAnswer(Strict):
    starts_s: float
    model: str
    size: int = Field(description="size it is run as")
    requests: list[int] = Field(description="ids, best first")
    expected_s: float = Field(description="how long the policy thinks it takes")


class ScoreAnswer(Strict):
    id: int
    slack_s: float = Field(description="time to its deadline, less after_s")
    chance_alone: float | None = Field(
        description="to be ready in time, run alone and at once; null: nothing is known of its run time"
    )
    score_alone: float | None = Field(description="loss avoided per second of the device, run alone and at once")


class OrlojAnswer(Strict):
    """What `decide orloj` prints. Every request is in a batch, dropped or waiting."""

    policy: str
    decide_ms: float | None = Field(description="time of all decisions; null where no clock was given")
    batches: list[BatchAnswer]
    dropped: list[int] = Field(description="given up: they would be late")
    waiting: list[int]
    explain: list[ScoreAnswer] | None = Field(default=None, description="only when asked for")


def decide_orloj(data: Any, clock: Clock | None = None, *, explain: bool = False) -> dict[str, Any]:
    """The next batches of a free worker, as plain JSON values.

    data: what `json.loads` gave. clock: monotonic seconds, used for `decide_ms` only. explain: the answer says each request's slack,
    chance and score. Errors: ConfigError with every problem and its path.
    """
    given = parse(OrlojInput, data)
    _check_requests(given)
    policy = _filled(given)
    started_s = clock() if clock else 0.0
    batches: list[BatchAnswer] = []
    dropped: list[int] = []
    now_s = given.now_s
    while len(batches) < given.batches:
        decision = policy.decide(now_s)
        dropped += [request.id for request in decision.dropped]
        if decision.batch is None:
            break
        batch = decision.batch
        ids = [request.id for request in batch.requests]
        batches.append(
            BatchAnswer(starts_s=now_s, model=batch.model, size=batch.size, requests=ids, expected_s=batch.expected_s)
        )
        now_s += batch.expected_s
    gone = {*dropped, *(id_ for batch in batches for id_ in batch.requests)}
    answer = OrlojAnswer(
        policy=given.policy,
        decide_ms=(clock() - started_s) * 1000 if clock else None,
        batches=batches,
        dropped=dropped,
        waiting=[request.id for request in given.requests if request.id not in gone],
        explain=_scores(given) if explain else None,
    )
    return answer.model_dump(mode="json", exclude=None if explain else {"explain"})


def orloj_tables(answer: dict[str, Any]) -> list[Table]:
    """An explained answer for people."""
    of_batch = {id_: i + 1 for i, batch in enumerate(answer["batches"]) for id_ in batch["requests"]}
    fate = {**dict.fromkeys(answer["dropped"], "dropped"), **{id_: f"batch {i}" for id_, i in of_batch.items()}}
    return [
        Table(
            title=f"policy {answer['policy']}: {len(answer['dropped'])} dropped, {len(answer['waiting'])} waiting",
            columns=("batch", "at", "model", "size", "requests", "expected s"),
            rows=[
                (
                    i + 1,
                    f"{b['starts_s']:.4g}",
                    b["model"],
                    b["size"],
                    " ".join(map(str, b["requests"])),
                    f"{b['expected_s']:.4g}",
                )
                for i, b in enumerate(answer["batches"])
            ],
        ),
        Table(
            title="requests",
            columns=("id", "slack s", "chance alone", "score alone", "becomes"),
            rows=[
                (
                    r["id"],
                    f"{r['slack_s']:.4g}",
                    _short(r["chance_alone"]),
                    _short(r["score_alone"]),
                    fate.get(r["id"], "waits"),
                )
                for r in answer["explain"]
            ],
        ),
    ]


def _short(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _check_requests(given: OrlojInput) -> None:
    models = {model.model for model in given.models}
    unknown = [
        (f"requests[{i}].model", f"no model '{request.model}'")
        for i, request in enumerate(given.requests)
        if request.model not in models
    ]
    times = Counter(request.id for request in given.requests)
    doubles = [(f"requests[{i}].id", f"{r.id} is there twice") for i, r in enumerate(given.requests) if times[r.id] > 1]
    if unknown or doubles:
        raise refusal(unknown + doubles)


def _filled(given: OrlojInput) -> BatchPolicy:
    rules = OrlojRules(
        variant="printed" if given.policy == "orloj-printed" else "ours",
        b_per_s=given.b_per_s,
        est_quantile=given.est_quantile,
        laws=LawRules(most=10_000, at_least=1),
    )
    policy = POLICIES[given.policy](rules) if given.policy.startswith("orloj") else POLICIES[given.policy]()
    for model in given.models:
        policy.add_model(model.model, ModelCost(c0_s=model.c0_s, c1=model.c1, sizes=tuple(model.sizes)))
        for app in model.apps:
            for alone_s in app.alone_s:
                policy.sample(model.model, app.app, alone_s, given.now_s)
    for request in given.requests:
        policy.submit(Request(**request.model_dump()), given.now_s)
    return policy


def _scores(given: OrlojInput) -> list[ScoreAnswer]:
    alone = {(m.model, a.app): _batch_of_one(m, a) for m in given.models for a in m.apps}
    told = []
    for request in given.requests:
        slack_s, law = request.deadline_s - request.after_s - given.now_s, alone.get((request.model, request.app))
        told.append(
            ScoreAnswer(
                id=request.id,
                slack_s=slack_s,
                chance_alone=None if law is None else min(1.0, float(law.cdf(slack_s))),
                score_alone=None
                if law is None
                else float(score(law, law.mean(), slack_s, b=given.b_per_s, penalty=request.penalty)),
            )
        )
    return told


def _batch_of_one(model: ModelInput, app: AppInput) -> Law:
    samples = np.array(app.alone_s)
    return law_of(samples, edges_for(samples)).mapped(model.c0_s, model.c1)
