"""`driftbox decide escher`: what is set on which node, and which task could run where. Input and answer: docs/decide.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from cluster.engines.base import INFINITE, PHYSICAL, QUANTUM, NodeStatus
from cluster.engines.places import places
from cluster.escher.amounts import fits, lacking
from cluster.escher.policies.base import View, Want
from cluster.escher.policies.fair_share import FairShare, User, divided
from cluster.escher.registry import MOST_PER_NODE, Held, Registry, due, never, settled
from cluster.escher.uses import Ledger
from cluster.escher.wishes import Where, Wish
from scheduler.decide import System
from scheduler.decide.inputs import Clock, Name, Strict, Table, no_doubles, parse

#: Owner of all that is decided here.
ASKED = "asked"

Resource = Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?|CPU|GPU|memory_mib)$")]
Ephemeral = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")]
Amount = Annotated[float, Field(ge=0, le=INFINITE)]
Demand = Annotated[float, Field(ge=QUANTUM, le=INFINITE)]
Vector = dict[Resource, Demand]


# --- input ------------------------------------------------------------------------------------------------------------


class NodeInput(Strict):
    id: Name
    alive: bool = Field(True, description="false: lost; what was set on it is gone")
    total: dict[Resource, Amount] = Field(default_factory=dict, description="physical amounts: CPU, GPU, memory_mib")
    used: dict[Resource, Amount] = Field(default_factory=dict, description="of physical and ephemeral ones, by what runs")
    in_force: dict[Ephemeral, Amount] = Field(
        default_factory=dict, max_length=MOST_PER_NODE, description="ephemeral resources as the engine answered"
    )

    @model_validator(mode="after")
    def _used_is_there(self) -> NodeInput:
        strangers = sorted(set(self.total) - PHYSICAL)
        if strangers:
            raise ValueError(f"total is physical; {strangers[0]} belongs into in_force")
        over = lacking(self.used, {**self.total, **self.in_force})
        if over:
            raise ValueError(f"more {over[0]} is used than there is")
        return self


class WishInput(Strict):
    name: Ephemeral
    capacity: Amount = Field(0.0, description="on each chosen node; 0 deletes")
    nodes: list[Name] = Field(default_factory=list, description="only these, in order of preference; empty: any")
    holding: Vector = Field(default_factory=dict, description="a node must have this free when it is chosen")
    count: int | None = Field(None, ge=0, description="on so many of them; null: all")
    together: str = Field("", max_length=63, description="wishes with the same word lie on one node")
    per_node: dict[Name, Amount] | None = Field(None, description="instead: exactly these")


class TaskInput(Strict):
    id: Name
    demands: Vector = Field(default_factory=dict, description="hard: all of it on one node")
    preferences: list[Vector] = Field(default_factory=list, max_length=100, description="tried in order, then none")


class GangInput(Strict):
    id: Name
    bundles: list[Vector] = Field(min_length=1, max_length=1000, description="demands of each member")
    spread: bool = Field(True, description="every bundle on another node")


class UserInput(Strict):
    id: Ephemeral = Field(max_length=20)
    weight: float = Field(1.0, gt=0, le=1e9, description="among its siblings")
    parent: str = Field("", description="user above it")
    active: bool = Field(True, description="it has work; one with subordinates: if one of them has")
    needs: int | None = Field(None, ge=0, description="nodes that it can use; null: all")
    nodes: list[Name] = Field(default_factory=list, description="its nodes now")


class EscherInput(Strict):
    """What `decide escher` reads."""

    nodes: list[NodeInput] = Field(min_length=1, max_length=10_000)
    wishes: list[WishInput] = Field(default_factory=list, max_length=10_000, description="ephemeral resources to have")
    users: list[UserInput] = Field(default_factory=list, max_length=10_000, description="tree that the nodes are divided among")
    gangs: list[GangInput] = Field(default_factory=list, max_length=1000, description="in order; each holds what it gets")
    tasks: list[TaskInput] = Field(default_factory=list, max_length=100_000, description="in order of submission, after gangs")

    @field_validator("nodes", "gangs", "tasks", "users")
    @classmethod
    def _ids(cls, entries: list[Any]) -> list[Any]:
        no_doubles((entry.id for entry in entries), "id")
        return entries

    @field_validator("wishes")
    @classmethod
    def _names(cls, wishes: list[WishInput]) -> list[WishInput]:
        no_doubles((wish.name for wish in wishes), "name")
        return wishes

    @field_validator("users")
    @classmethod
    def _a_tree(cls, users: list[UserInput]) -> list[UserInput]:
        divided(0, [_user(user) for user in users])
        return users


# --- answer -----------------------------------------------------------------------------------------------------------


class SetAnswer(Strict):
    name: str
    capacity: float
    node: str
    in_force: float = Field(description="what the engine answers: never less than is in use; then it is asked again")


class UserAnswer(Strict):
    id: str
    nodes: list[str]
    demands: dict[str, float] = Field(description="what its tasks add to theirs")


class GangAnswer(Strict):
    id: str
    nodes: list[str] | None = Field(description="of each bundle; null: all or nothing, so nothing")
    why: str


class TaskAnswer(Strict):
    id: str
    node: str | None = Field(description="null: it waits")
    eligible: list[str] = Field(description="nodes that could run it; an engine may take any of them")
    preference: int | None = Field(description="the one that was met, from 0; null: hard demands alone, or it waits")
    never: bool = Field(description="no node will ever do: refused")
    why: str


class EscherAnswer(Strict):
    """What `decide escher` prints."""

    plan_ms: float | None
    set: list[SetAnswer] = Field(description="calls of set_resource in order; deletions first")
    users: list[UserAnswer]
    gangs: list[GangAnswer]
    tasks: list[TaskAnswer]
    explain: dict[str, dict[str, float]] | None = Field(default=None, description="node -> free at the end; when asked for")


def decide_escher(data: Any, clock: Clock | None = None, *, explain: bool = False) -> dict[str, Any]:
    """What to set, and what could run where, as plain JSON values.

    data: what `json.loads` gave. clock: monotonic seconds, used for `plan_ms` only. explain: also what is left on each node.
    Errors: ConfigError with every problem and its path.
    """
    given = parse(EscherInput, data)
    started_s = clock() if clock else 0.0
    nodes = [_status(node) for node in given.nodes]
    users, shares = _shares(given)
    wishes = {w.name: w for w in (*(_wish(w) for w in given.wishes), *shares)}
    registry = settled(
        Registry(
            wishes=wishes,
            in_force={n.id: {k: Held(asked=v, answered=v, at_s=0.0) for k, v in n.in_force.items()} for n in given.nodes},
        ),
        nodes,
    )
    calls = [_answered(call.name, call.capacity, call.node, given) for call in due(registry, nodes, 0.0)]
    ledger = _after(given, calls)
    gangs, ledger = _gangs(given, ledger)
    tasks, ledger = _tasks(given, ledger, registry, nodes)
    answer = EscherAnswer(
        plan_ms=(clock() - started_s) * 1000 if clock else None,
        set=calls,
        users=users,
        gangs=gangs,
        tasks=tasks,
        explain={node: dict(sorted(free.items())) for node, free in sorted(ledger.free.items())} if explain else None,
    )
    return answer.model_dump(mode="json", exclude=None if explain else {"explain"})


def _status(node: NodeInput) -> NodeStatus:
    total = {**node.total, **node.in_force} if node.alive else {}
    free = {name: round(amount - node.used.get(name, 0.0), 4) for name, amount in total.items()}
    return NodeStatus(id=node.id, alive=node.alive, total=total, free=free)


def _wish(wish: WishInput) -> Wish:
    where = Where(nodes=tuple(wish.nodes), holding=wish.holding, count=wish.count, together=wish.together)
    return Wish(name=wish.name, owner=ASKED, capacity=wish.capacity, where=where, per_node=wish.per_node)


def _user(user: UserInput) -> User:
    return User(id=user.id, weight=user.weight, parent=user.parent, active=user.active, needs=user.needs)


def _shares(given: EscherInput) -> tuple[list[UserAnswer], list[Wish]]:
    """The policy's own step, so that `decide` and the library cannot differ."""
    share = FairShare(
        id="share",
        owner=ASKED,
        users=tuple(_user(user) for user in given.users),
        granted={user.id: tuple(user.nodes) for user in given.users},
    )
    after = share.step(View(nodes=[_status(node) for node in given.nodes]), 0.0)
    moved = after.policy
    assert isinstance(moved, FairShare)
    last = {c.wish.name: c.wish for c in after.commands if isinstance(c, Want)}
    held = {
        share.resource(name): Wish(name=share.resource(name), owner=ASKED, per_node=dict.fromkeys(mine, float(INFINITE)))
        for name, mine in moved.granted.items()
    }
    answers = [
        UserAnswer(id=name, nodes=list(mine), demands=moved.demands(name)) for name, mine in sorted(moved.granted.items())
    ]
    return answers, list({**held, **last}.values())


def _answered(name: str, capacity: float, node: str, given: EscherInput) -> SetAnswer:
    in_use = next(n.used.get(name, 0.0) for n in given.nodes if n.id == node)
    return SetAnswer(name=name, capacity=capacity, node=node, in_force=max(capacity, in_use))


def _after(given: EscherInput, calls: list[SetAnswer]) -> Ledger:
    """What is free once the calls were made."""
    free: dict[str, dict[str, float]] = {}
    for node in given.nodes:
        if not node.alive:
            continue
        total = {**node.total, **node.in_force} | {c.name: c.in_force for c in calls if c.node == node.id}
        left = {name: round(amount - node.used.get(name, 0.0), 4) for name, amount in total.items()}
        free[node.id] = {name: amount for name, amount in left.items() if total[name] > 0}
    return Ledger(free=free)


def _gangs(given: EscherInput, ledger: Ledger) -> tuple[list[GangAnswer], Ledger]:
    answers = []
    for gang in given.gangs:
        found = places(gang.bundles, ledger.free, spread=gang.spread)
        if found is None:
            empty = {node.id: node.total for node in given.nodes if node.alive}
            physical = [{name: a for name, a in bundle.items() if name in PHYSICAL} for bundle in gang.bundles]
            ever = places(physical, empty, spread=gang.spread) is not None
            why = "not all bundles have room now" if ever else "it would not fit on empty nodes either"
        else:
            why = f"{len(found)} bundles on {len(set(found))} nodes"
            for node, bundle in zip(found, gang.bundles, strict=True):
                ledger = ledger.taking(node, bundle)
        answers.append(GangAnswer(id=gang.id, nodes=found, why=why))
    return answers, ledger


def _tasks(given: EscherInput, ledger: Ledger, registry: Registry, nodes: list[NodeStatus]) -> tuple[list[TaskAnswer], Ledger]:
    answers = []
    for task in given.tasks:
        choices = [*({**wished, **task.demands} for wished in task.preferences), dict(task.demands)]
        met = next((n for n, demands in enumerate(choices) if ledger.boxes_for([demands])), None)
        eligible = list(ledger.boxes_for([choices[met]])) if met is not None else []
        node = eligible[0] if eligible else None
        refused = "" if node is not None else never(registry, task.demands, nodes)
        answers.append(
            TaskAnswer(
                id=task.id,
                node=node,
                eligible=eligible,
                preference=met if met is not None and met < len(task.preferences) else None,
                never=bool(refused),
                why=_why(task.demands, ledger.free, node, refused),
            )
        )
        if node is not None and met is not None:
            ledger = ledger.taking(node, choices[met])
    return answers, ledger


def _why(demands: Mapping[str, float], free: Mapping[str, Mapping[str, float]], node: str | None, refused: str) -> str:
    if node is not None:
        return "has all that it demands"
    if refused:
        return refused
    short = {name for amounts in free.values() for name in lacking(demands, amounts)}
    everywhere = sorted(name for name in short if not any(fits({name: demands[name]}, a) for a in free.values()))
    if everywhere:
        return f"waits: no node has enough {', '.join(everywhere)} free"
    return f"waits: no node has {', '.join(sorted(short))} free at once"


def escher_tables(answer: dict[str, Any]) -> list[Table]:
    """An explained answer for people."""
    return [
        Table(
            title="set_resource, in order",
            columns=("resource", "capacity", "node", "in force"),
            rows=[(c["name"], c["capacity"], c["node"], c["in_force"]) for c in answer["set"]],
        ),
        Table(
            title="who could run where",
            columns=("what", "node", "eligible", "why"),
            rows=[
                *((f"gang {g['id']}", ", ".join(g["nodes"] or ()) or None, None, g["why"]) for g in answer["gangs"]),
                *((f"task {t['id']}", t["node"], ", ".join(t["eligible"]), t["why"]) for t in answer["tasks"]),
                *((f"user {u['id']}", ", ".join(u["nodes"]) or None, None, "") for u in answer["users"]),
            ],
        ),
        Table(
            title="free at the end",
            columns=("node", "free"),
            rows=[(n, ", ".join(f"{k} {v:g}" for k, v in free.items())) for n, free in answer["explain"].items()],
        ),
    ]


SYSTEM = System(decide=decide_escher, input_model=EscherInput, answer_model=EscherAnswer, tables=escher_tables)

__all__ = ["SYSTEM", "EscherAnswer", "EscherInput", "decide_escher", "escher_tables"]
