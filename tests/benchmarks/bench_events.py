"""Tracked objects' events per second: into the database, and through it and a real mosquitto; search, and what a clip costs.

Run: python tests/benchmarks/bench_events.py [EVENTS]

Every object is told new, update, end. `database`: `ObjectWriter` writes and then tells a listener. `database and broker`: the same, and
the listener is MQTT's publisher over an outbox in the same database; a consumer in another process counts what arrives (QoS 1; left out
where mosquitto is not installed). `search`: pages of a full table. `clip`: CPU of the ring and of copying packets, per second of video.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import bench_mqtt

from configs.schema import MqttSection
from edge.objects.types import ObjectEvent
from edge.objects.writer import ObjectWriter
from edge.store.objects import ObjectQuery, ObjectStore
from edge.store.outbox import Outbox
from edge.store.store import Store
from edge.telemetry.mqtt import MqttPublisher
from edge.web.fake import FakeSource
from streams.masks import Mask
from streams.recording import ClipFile, MaskedClip, Ring
from tests.support.mosquitto import Broker
from tests.support.packets import packets

TO_REACH_PER_S = bench_mqtt.TO_REACH_PER_S
CAMERAS, CLASSES = 8, ("person", "car", "bicycle")
LATER_S = 300.0


def events(count: int) -> Iterator[ObjectEvent]:
    """`count` events, three of each object, cameras and classes in turn. Objects are numbered as `bench_mqtt.consume` wants it."""
    for number in range(count):
        turn, which = number % 3, number // 3
        begun = 1.79e9 + which
        yield ObjectEvent(
            id=f"gate-{number - turn}", camera=f"c{which % CAMERAS}", what=("new", "update", "end")[turn],
            class_name=CLASSES[which % 3], score=0.9, box=(0.1, 0.2, 0.3, 0.4), started_utc=begun, seen_utc=begun + turn,
            ended_utc=begun + turn if turn == 2 else None, zones_been=("door",) if which % 2 else (), version="c-2",
            extra={"dwell_s": {"door": 1.0}, "still": False},
        )  # fmt: skip


def told(rate: float, what: str, more: str) -> None:
    mark = "reached" if rate >= TO_REACH_PER_S else "MISSED"
    print(f"{mark:<8} events/s through {what}: {rate:,.0f} (to reach {TO_REACH_PER_S:,}; {more})")


def database(count: int, folder: Path) -> None:
    with Store(folder / "driftbox.db") as store:
        heard: list[str] = []
        writer = ObjectWriter(ObjectStore(store), [lambda event: heard.append(event.what)])
        writer.start()
        started_s, cpu_s = time.monotonic(), time.process_time()
        for event in events(count):
            writer.tell(event)
        writer.flush(LATER_S)
        took_s, cpu_s = time.monotonic() - started_s, time.process_time() - cpu_s
        writer.stop()
        rows = int(store.rows("SELECT count(*) AS n FROM objects WHERE ended_utc IS NOT NULL")[0]["n"])
        told(
            count / took_s,
            "the database",
            f"no anchor; {rows:,} objects, {1e6 * cpu_s / count:.0f} us of CPU an event, lost {count - len(heard)}",
        )
        search(ObjectStore(store))


def search(store: ObjectStore) -> None:
    questions = {
        "newest": ObjectQuery(), "camera and class": ObjectQuery(camera="c3", class_name="car"), "zone": ObjectQuery(zone="door"),
        "time": ObjectQuery(from_utc=1.79e9 + 100, to_utc=1.79e9 + 200), "with a clip (none)": ObjectQuery(with_clip=True),
    }  # fmt: skip
    for name, query in questions.items():
        took_ms = []
        for _ in range(20):
            started_s = time.perf_counter()
            store.search(query)
            took_ms.append(1e3 * (time.perf_counter() - started_s))
        print(f"         search, {name}: {statistics.median(took_ms):.1f} ms a page of 50")


def database_and_broker(count: int, folder: Path) -> None:
    broker = Broker(folder)
    broker.start()
    _, out = bench_mqtt.consumer_of(broker.port, count)
    with Store(folder / "driftbox.db") as store:
        outbox = Outbox(store)
        publisher = MqttPublisher(
            MqttSection(enabled=True, port=broker.port), site="home", box="bench", source=FakeSource(), outbox=outbox
        )
        writer = ObjectWriter(ObjectStore(store), [publisher.tell])
        publisher.start()
        while not publisher.connected:
            time.sleep(0.05)
        writer.start()
        started_s = time.monotonic()
        for event in events(count):
            writer.tell(event)
        writer.flush(LATER_S)
        found = out.get(timeout=LATER_S)
        took_s = found["last_s"] - started_s
        writer.stop()
        publisher.stop()
    broker.stop()
    order = "in order" if found["numbers"] == sorted(found["numbers"]) else "OUT OF ORDER"
    told(count / took_s, "database and broker", f"{bench_mqtt.PAHO_PER_S}; {found['ids']:,} of {count:,} arrived, {order}")


def clip(folder: Path) -> None:
    items = packets(15 * 60, fps=15.0, keyframe_s=2.0, size=(640, 360))
    seconds, ring = len(items) / 15.0, Ring(keep_s=15.0, max_bytes=48 * 2**20)
    started_s = time.thread_time()
    for item in items:
        ring.put(item)
    ring_s = time.thread_time() - started_s
    costs = {}
    masks = [Mask(((0.0, 0.0), (0.4, 0.0), (0.4, 1.0), (0.0, 1.0)))]
    for name, make in (
        ("copied", lambda file: ClipFile(file, items[0].format)),
        ("encoded anew with masks at 5 frames/s", lambda file: MaskedClip(file, items[0].format, masks, fps=5.0)),
    ):
        with (folder / f"{len(costs)}.mp4").open("wb") as file:
            started_s = time.thread_time()
            made = make(file)
            for item in items:
                made.add(item)
            made.close()
            costs[name] = time.thread_time() - started_s
    print(
        f"         a 640x360 camera of 15 frames/s: ring {100 * ring_s / seconds:.3f} % of a core, while a clip is written ",
        end="",
    )
    print(", ".join(f"{100 * cost_s / seconds:.2f} % {name}" for name, cost_s in costs.items()))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 30_000
    count -= count % 3
    for part in (database, database_and_broker):
        if part is database_and_broker and shutil.which("mosquitto") is None:
            print("(mosquitto is not installed: events through the broker are left out)")
            continue
        with tempfile.TemporaryDirectory() as folder:
            part(count, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        clip(Path(folder))


if __name__ == "__main__":
    main()
