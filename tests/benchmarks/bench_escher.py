"""ESCHER on a real Ray cluster of four local nodes: from a resource to its task, a thousand resources, gangs of 32 under contention; and
a controller's placement carried to an engine of a thousand nodes.

Run: python tests/benchmarks/bench_escher.py [GANGS ON RAY, 0: NO RAY] [TRIES ON THE LOCAL ENGINE]

All of it goes through the product's own engine and library. What is measured stands beside what else the machine was doing: the load is
printed, because every figure here waits for processes of Ray to be given the processor.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from cluster.controller.on_engine import EVERY_S, Carrier
from cluster.engines.base import Engine, Task, Work
from cluster.engines.local import LocalEngine
from cluster.engines.ray_engine import RayEngine
from cluster.engines.ray_nodes import RayNodes
from cluster.escher.library import Escher
from cluster.escher.names import named
from cluster.escher.policies.gang import Gang, Pace
from cluster.escher.policies.gang_desk import GangDesk
from cluster.placement.sight import Patience
from cluster.types import CameraLease, Grant
from tests.support.fleets import fleet_of

NODES, CPUS, MEMBERS = 4, 8, 32
LOOK_S = 0.001
OWNER = "bench"
DESK = named(OWNER, "desk")


def row(what: str, measured: str, anchor: str, to_reach: str, ok: bool | None) -> None:
    mark = {True: "reached", False: "MISSED", None: "-"}[ok]
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"{mark:<8} {what}: {measured}\n           anchor: {anchor}; to reach: {to_reach}; {load}", flush=True)


def spread(times: Sequence[float], unit: float = 1.0, digits: int = 3) -> str:
    ordered = sorted(times)
    values = (statistics.median(ordered), ordered[int(0.95 * (len(ordered) - 1))], ordered[-1])
    return "median {}, P95 {}, most {}".format(*(f"{value * unit:.{digits}f}" for value in values))


def waited(condition: Callable[[], bool], patience_s: float = 60.0) -> float:
    """Seconds until it came true. TimeoutError."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > patience_s:
            raise TimeoutError("it did not come true")
        time.sleep(LOOK_S)
    return time.monotonic() - began_s


# --- a resource and its task ------------------------------------------------------------------------------------------


def to_running(engine: RayEngine, *, work: bool, count: int) -> list[float]:
    """From the call of `set_resource` to the task that waited for it running, warm: the first of each node are not counted."""
    nodes = [node.id for node in engine.nodes() if node.alive]
    times: list[float] = []
    for number in range(-2 * len(nodes), count):
        name, node = f"bench.r{'w' if work else 'h'}{number + 100}", nodes[number % len(nodes)]
        entry = Work(entry="tests.support.fleet_engines:where_am_i") if work else None
        engine.submit(Task(id=name, demands={name: 1}, work=entry))
        time.sleep(0.2)
        began_s = time.monotonic()
        engine.set_resource(name, 1, node)
        waited(lambda name=name: engine.status([name])[name].state in ("running", "done"))  # type: ignore[misc]
        if number >= 0:
            times.append(time.monotonic() - began_s)
        engine.cancel([name])
        waited(lambda name=name: engine.status([name])[name].ended)  # type: ignore[misc]
        engine.forget([name])
        waited(lambda name=name, node=node: engine.set_resource(name, 0, node) == 0)  # type: ignore[misc]
    return times


def thousand(engine: RayEngine, count: int = 1000) -> None:
    nodes = [node.id for node in engine.nodes() if node.alive]
    times: list[float] = []
    for number in range(count):
        began_s = time.monotonic()
        engine.set_resource(f"bench.many{number}", 1, nodes[number % len(nodes)])
        times.append(time.monotonic() - began_s)

    def seen() -> int:
        return sum(name.startswith("bench.many") for node in engine.nodes() for name in node.total)

    late_s = waited(lambda: seen() == count)
    mean_ms = 1e3 * sum(times) / count
    measured = (
        f"mean {mean_ms:.2f} ms each ({spread(times, 1e3, 1)} ms); all in the cluster's view {late_s:.2f} s after the last"
    )
    row(f"{count:,} resources", measured, "1 ms each (0.72 amortised)", "<= 5 ms each", mean_ms <= 5)
    for number in range(count):
        engine.set_resource(f"bench.many{number}", 0, nodes[number % len(nodes)])


# --- gangs ------------------------------------------------------------------------------------------------------------


def gangs_in_turn(
    engine: Engine,
    gangs: int,
    *,
    ghosts_only: bool,
    clock: Callable[[], float],
    patience_s: float,
    between: Callable[[], None] | None = None,
) -> list[float]:
    """Gangs that are asked for at once, each of which needs the whole cluster and lets go as soon as it is held. Seconds of `clock`
    from the moment that the one before let go to the next one being held. TimeoutError if it takes `patience_s`: a live-lock. between:
    what others do between two looks."""
    escher = Escher(engine)
    escher.register(OWNER, clock())
    pace = Pace(deadline_s=5.0, pause_s=0.05, most_s=0.2)
    asked = [
        Gang(
            id=f"{DESK}.{n}",
            owner=OWNER,
            bundles=({"CPU": 1},) * MEMBERS,
            spread=False,
            ghosts_only=ghosts_only,
            pace=pace,
        )
        for n in range(gangs)
    ]
    escher.run(GangDesk(id=DESK, owner=OWNER).asked(*asked), clock())
    times: list[float] = []
    let_go_s = clock()
    while len(times) < gangs:
        if between is not None:
            between()
        escher.tick(clock())
        desk = escher.policy(DESK)
        assert isinstance(desk, GangDesk)
        held = [gang for gang in desk.gangs if gang.phase == "held"]
        assert len(held) <= 1, "two gangs hold what there is only once"
        if held:
            times.append(clock() - let_go_s)
            escher.run(desk.letting_go(held[0].id), clock())
            let_go_s = clock()
        elif clock() - let_go_s > patience_s:
            raise TimeoutError(f"after {len(times)} gangs nobody gets ahead")
        elif not isinstance(engine, LocalEngine):
            time.sleep(LOOK_S)
    last = escher.policy(DESK)
    if isinstance(last, GangDesk):
        escher.run(replace(last, closed=True), clock())
    for _ in range(50):
        escher.tick(clock())
        time.sleep(0.002)
    escher.remove_owner(OWNER, clock())
    return times


def gangs_on_ray(engine: RayEngine, gangs: int) -> None:
    for ghosts_only, count, how in ((False, gangs, "reservation"), (True, 5, "ghosts")):
        waited(lambda: sum(node.free.get("CPU", 0) for node in engine.nodes()) == NODES * CPUS)
        times = gangs_in_turn(engine, count, ghosts_only=ghosts_only, clock=time.monotonic, patience_s=60.0)
        row(
            f"gang of {MEMBERS} on {NODES} nodes, Ray, by {how}, {count} gangs that each need the whole cluster",
            f"{spread(times)} s from room to held; all {count} were held, one at a time",
            "< 1 s (256 CPUs, 32 nodes)",
            "<= 1 s",
            max(times) <= 1.0,
        )


class Steps:
    """Virtual time: a look at it costs 10 ms."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.01
        return self.now_s


class Strangers:
    """They take single processors and give them back, at random but repeatably; never more than half of the cluster at a time."""

    def __init__(self, engine: LocalEngine, seed: int) -> None:
        self._engine, self._chance, self._number, self._held = engine, random.Random(seed), 0, list[str]()

    def __call__(self) -> None:
        if len(self._held) < NODES * CPUS // 2 and self._chance.random() < 0.5:
            self._number += 1
            self._held.append(f"stranger{self._number}")
            self._engine.submit(Task(id=self._held[-1], demands={"CPU": 1}))
        elif self._held and self._chance.random() < 0.9:
            gone = self._held.pop(self._chance.randrange(len(self._held)))
            self._engine.cancel([gone])
            self._engine.forget([gone])


def gangs_on_local(tries: int) -> None:
    """In virtual time, by ghosts, where a live-lock could be: gangs beside strangers who take what is needed."""
    began_s = time.monotonic()
    done, longest_s = 0, 0.0
    while done < tries:
        engine = LocalEngine({f"n{n}": {"CPU": CPUS} for n in range(NODES)}, seed=done)
        others = Strangers(engine, done)
        count = min(50, tries - done)
        times = gangs_in_turn(engine, count, ghosts_only=True, clock=Steps(), patience_s=10_000.0, between=others)
        engine.check()
        done, longest_s = done + len(times), max(longest_s, *times)
    took_s = time.monotonic() - began_s
    measured = f"none: every one was held, the longest {longest_s:.2f} virtual s after the one before"
    row(
        f"live-lock, local engine, virtual time, by ghosts: {done:,} gangs of {MEMBERS}, 50 at once, beside strangers",
        f"{measured}; {1e3 * took_s / done:.0f} ms of real time each",
        "none",
        f"none in {tries:,} tries",
        True,
    )


# --- placement on an engine -------------------------------------------------------------------------------------------


def placement_carried(boxes: int = 1000, cameras: int = 4) -> None:
    """The controller's own carrier over the local engine, which costs less than Ray's calls: CPU time of a look, all in this thread."""
    state = fleet_of(boxes, cameras=cameras)
    grants = {"city": Grant(customer="city", share_pct=50.0 * boxes, by_box=dict.fromkeys(state.boxes, 50.0))}
    held = [replace(state, grants=grants)]
    engine = LocalEngine({box: {"CPU": 4.0} for box in state.boxes}, threads=False)
    carrier = Carrier(
        engine,
        "here",
        state=lambda: held[0],
        holds=lambda: True,
        patience=Patience(),
        monotonic_s=time.monotonic,
        utc_s=lambda: 110.0,
    )

    def look() -> float:
        began_s = time.thread_time()
        carrier.step()
        assert carrier.status().problem == "", carrier.status().problem
        return time.thread_time() - began_s

    def moves(number: int) -> None:
        """A camera is watched by another box from now on."""
        box, other = f"b{number:03}", f"b{number + 1:03}"
        camera = state.boxes[box].cameras[0].camera
        lease = CameraLease(camera=camera, box=other, term=2, since_utc_s=0.0)
        held[0] = replace(held[0], leases={**held[0].leases, camera: lease})

    first_s, still_s = look(), [look() for _ in range(5)]
    moved_s = []
    for number in range(5):
        moves(number)
        moved_s.append(look())
    many = sum(len(node.total) - 1 for node in engine.nodes())
    assert many >= boxes * (cameras + 1), f"{many} amounts for {boxes} boxes"
    per_look_s = max(statistics.median(still_s), statistics.median(moved_s))
    row(
        f"placement carried to an engine of {boxes:,} nodes, {boxes * cameras:,} cameras, {many:,} amounts on nodes, local engine",
        f"CPU time of the first look {first_s:.2f} s; nothing changed: {spread(still_s)} s; one camera moved: {spread(moved_s)} s",
        "-", f"<= {EVERY_S / 2:g} s a look: half of a core at one look every {EVERY_S:g} s", per_look_s <= EVERY_S / 2,
    )  # fmt: skip


def main() -> None:
    gangs = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    tries = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    gangs_on_local(tries)
    placement_carried()
    if gangs == 0:
        return
    cluster, engine = RayNodes(), None
    try:
        for number in range(NODES):
            cluster.add(cpus=CPUS, labels={"driftbox/box": f"box{number}"})
        engine = RayEngine(cluster.settings)
        print(f"Ray: {NODES} nodes of {CPUS} CPU on this machine, nodes report every 20 ms (Ray's default: 100 ms)")
        for work, what in ((True, "set_resource to task running (a Ray task)"), (False, "set_resource to ghost running")):
            times = to_running(engine, work=work, count=40)
            median_s = statistics.median(times)
            ok = median_s <= 0.06 if work else None
            row(what, f"{spread(times)} s of {len(times)}", "0.06 s", "<= 0.06 s median" if work else "-", ok)
        thousand(engine)
        gangs_on_ray(engine, gangs)
    finally:
        if engine is not None:
            engine.close()
        cluster.close()


if __name__ == "__main__":
    main()
