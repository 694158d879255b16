"""Events per second through the box's database and a real mosquitto at QoS 1, and an outage of an hour in simulated time.

Run: python tests/benchmarks/bench_mqtt.py [EVENTS]

Every event is a tracked object's: told by `MqttPublisher.tell`, written to SQLite, published, acknowledged, deleted, and received by a
consumer in a process of its own. In the outage the broker is down while an hour's events are told (20 a second, as fast as they can be
stored), and then comes back.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Queue, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from configs.schema import MqttSection
from edge.objects.types import ObjectEvent
from edge.store.outbox import Outbox
from edge.store.store import Store
from edge.telemetry.mqtt import MqttPublisher
from edge.web.fake import FakeSource
from tests.support.mosquitto import Broker

TO_REACH_PER_S = 2_000
PAHO_PER_S = "7,200-9,000 (paho alone, without database, this machine's kind)"
OUTAGE_S, OUTAGE_PER_S = 3_600, 20


def event(number: int) -> ObjectEvent:
    return ObjectEvent(
        id=f"gate-{number}", camera="gate", what=("new", "update", "end")[number % 3], class_name="person", score=0.9,
        box=(0.1, 0.2, 0.3, 0.4), started_utc=1.79e9, seen_utc=1.79e9 + number / 20, zones=("door",), version="gate-2",
    )  # fmt: skip


def consume(port: int, expected: int, out: Queue[Any]) -> None:
    """Counts what arrives until all is there; then tells when the first and the last came, and the objects' numbers."""
    numbers: list[int] = []
    ids: set[str] = set()
    times: list[float] = []

    def on_message(client: Any, data: Any, message: Any) -> None:
        body = json.loads(message.payload)
        if body["kind"] in ("new", "update", "end"):
            times.append(time.monotonic())
            numbers.append(int(body["id"].removeprefix("gate-")))
            ids.add(body["event_id"])

    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"consumer-{expected}", clean_session=True)
    client.on_message = on_message
    client.on_connect = lambda c, *_: c.subscribe("driftbox/+/+/camera/+/events", qos=1)
    client.on_subscribe = lambda *_: out.put("subscribed")
    client.connect("127.0.0.1", port)
    client.loop_start()
    deadline_s = time.monotonic() + 300
    while len(numbers) < expected and time.monotonic() < deadline_s:
        time.sleep(0.05)
    time.sleep(0.5)
    out.put({"span_s": times[-1] - times[0], "last_s": times[-1], "numbers": numbers, "ids": len(ids)})
    client.loop_stop()


@contextmanager
def publishing(port: int, folder: Path) -> Iterator[tuple[MqttPublisher, Outbox]]:
    with Store(folder / "driftbox.db") as store:
        outbox = Outbox(store)
        mqtt = MqttSection(enabled=True, port=port)
        publisher = MqttPublisher(mqtt, site="home", box="bench", source=FakeSource(), outbox=outbox)
        publisher.start()
        yield publisher, outbox
        publisher.stop()


def consumer_of(port: int, expected: int) -> tuple[BaseProcess, Queue[Any]]:
    context = get_context("spawn")
    out: Queue[Any] = context.Queue()
    process = context.Process(target=consume, args=(port, expected, out), daemon=True)
    process.start()
    assert out.get(timeout=60) == "subscribed"
    return process, out


def verdict(found: dict[str, Any], count: int) -> str:
    numbers = found["numbers"]
    lost, twice = count - len(set(numbers)), len(numbers) - len(set(numbers))
    return f"lost {lost}, twice {twice}, {'in order' if numbers == sorted(numbers) else 'OUT OF ORDER'}"


def throughput(count: int, folder: Path) -> None:
    broker = Broker(folder)
    broker.start()
    _, out = consumer_of(broker.port, count)
    with publishing(broker.port, folder) as (publisher, outbox):
        while not publisher.connected:
            time.sleep(0.05)
        started_s, cpu_s = time.monotonic(), time.process_time()
        for number in range(count):
            publisher.tell(event(number))
        while len(outbox) or publisher.backlog:
            time.sleep(0.02)
        took_s, cpu_s = time.monotonic() - started_s, time.process_time() - cpu_s
    found = out.get(timeout=300)
    broker.stop()
    rate = count / max(took_s, found["last_s"] - started_s)
    mark = "reached" if rate >= TO_REACH_PER_S else "MISSED"
    print(f"{mark:<8} events/s through database and broker, QoS 1: {rate:,.0f} (to reach {TO_REACH_PER_S:,}; {PAHO_PER_S})")
    print(f"         {count:,} events, {1e6 * cpu_s / count:.0f} us of CPU each in the box; {verdict(found, count)}")


def outage(folder: Path) -> None:
    count = OUTAGE_S * OUTAGE_PER_S
    broker = Broker(folder)
    broker.start()
    with publishing(broker.port, folder) as (publisher, outbox):
        while not publisher.connected:
            time.sleep(0.05)
        broker.stop()
        while publisher.connected:
            time.sleep(0.05)
        started_s = time.monotonic()
        for number in range(count):
            publisher.tell(event(number))
            if number % 10_000 == 0:
                time.sleep(0.5)  # an hour in seconds: the memory holds as much as a database that stands still for minutes
        while publisher.backlog:
            time.sleep(0.05)
        stored_s = time.monotonic() - started_s
        size_mib = outbox.size_bytes / 2**20
        # The consumer is there before the box: the broker keeps nothing for who comes later.
        send, publisher._send = publisher._send, lambda: None  # type: ignore[method-assign]
        broker.start()
        _, out = consumer_of(broker.port, count)
        back_s = time.monotonic()
        publisher._send = send  # type: ignore[method-assign]
        found = out.get(timeout=300)
        took_s = found["last_s"] - back_s
    broker.stop()
    mark = "reached" if verdict(found, count) == "lost 0, twice 0, in order" else "MISSED"
    print(
        f"{mark:<8} an hour without a broker, {count:,} events: {verdict(found, count)} (to reach: none lost, none twice, in order)"
    )
    print(f"         stored in {stored_s:.1f} s ({size_mib:.0f} MiB), delivered within {took_s:.1f} s of the broker's return")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as first:
        throughput(count, Path(first))
    with tempfile.TemporaryDirectory() as second:
        outage(Path(second))


if __name__ == "__main__":
    main()
