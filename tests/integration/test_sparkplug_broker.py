"""The box as a Sparkplug node at a real mosquitto: birth, data, rebirth, a switch, and the will of a box that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from configs.schema import MqttSection
from edge.store.outbox import Outbox
from edge.store.store import Store
from edge.telemetry.publisher import Telemetry
from edge.telemetry.sparkplug import BDSEQ, BOOLEAN, REBIRTH, Metric, decoded, encoded
from edge.web.fake import FakeSource
from tests.support.mosquitto import Broker, Listener, eventually, require_mosquitto

pytestmark = pytest.mark.mqtt
ROOT = Path(__file__).parents[2]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    require_mosquitto()
    running = Broker(tmp_path)
    running.start()
    yield running
    running.stop()


class FakeControl:
    def __init__(self) -> None:
        self.done: list[tuple[str, dict[str, Any]]] = []

    def do(self, command: str, arguments: Mapping[str, Any], *, by: str) -> dict[str, Any]:
        self.done.append((command, dict(arguments)))
        return {}


def bdseq(payload: bytes) -> object:
    return next(m.value for m in decoded(payload) if m.name == BDSEQ)


def publish(listener: Listener, topic: str, metric: Metric) -> None:
    listener._client.publish(topic, encoded([metric], at_utc=1.0, seq=None), qos=1)


def test_a_node_is_born_answers_and_dies(broker: Broker, tmp_path: Path) -> None:
    mqtt = MqttSection(enabled=True, port=broker.port, sparkplug=True, sparkplug_group="plant", commands="always")
    listener, control = Listener(broker.port), FakeControl()
    numbers = []
    for _ in range(2):
        with Store(tmp_path / "x.db") as store:
            telemetry = Telemetry(mqtt, site="home", box="demo", source=FakeSource(), outbox=Outbox(store), control=control)
            assert telemetry.sparkplug is not None
            telemetry.sparkplug._look_every_s = 0.05
            deaths, births = len(listener.of("NDEATH/demo")), len(listener.of("NBIRTH/demo"))
            telemetry.start()
            eventually(lambda before=births: len(listener.of("NBIRTH/demo")) > before, "a birth")
            eventually(lambda: listener.of("DBIRTH/demo/gate"), "a camera's birth")
            again = len(listener.of("NBIRTH/demo"))
            publish(listener, "spBv1.0/plant/NCMD/demo", Metric(name=REBIRTH, datatype=BOOLEAN, value=True))
            eventually(lambda before=again: len(listener.of("NBIRTH/demo")) > before, "a rebirth")
            publish(listener, "spBv1.0/plant/DCMD/demo/gate", Metric(name="Learning", datatype=BOOLEAN, value=False))
            eventually(lambda: control.done, "the switch is turned")
            listener._client.publish("spBv1.0/plant/NCMD/demo", b"\xff\xff\xff", qos=1)
            telemetry.stop()
            eventually(lambda before=deaths: len(listener.of("NDEATH/demo")) > before, "a goodbye")
        assert bdseq(listener.of("NDEATH/demo")[-1]) == bdseq(listener.of("NBIRTH/demo")[-1])
        numbers.append(bdseq(listener.of("NDEATH/demo")[-1]))
    assert numbers == [0, 1], "every connection has the next number, also after a restart"
    assert control.done[0] == ("camera/learning", {"camera": "gate", "on": False})
    assert not any(retained for topic, _, retained in listener.seen if topic.startswith("spBv1.0"))
    listener.close()


def test_the_will_of_a_killed_box_is_its_death(broker: Broker, tmp_path: Path) -> None:
    program = f"""
        import time
        from pathlib import Path
        from configs.schema import MqttSection
        from edge.store.outbox import Outbox
        from edge.store.store import Store
        from edge.telemetry.sparkplug_publisher import SparkplugPublisher
        from edge.web.fake import FakeSource
        mqtt = MqttSection(enabled=True, port={broker.port})
        outbox = Outbox(Store(Path({str(tmp_path / "killed.db")!r})))
        SparkplugPublisher(mqtt, site="home", box="demo", source=FakeSource(), outbox=outbox, look_every_s=0.05).start()
        time.sleep(600)
    """
    listener = Listener(broker.port)
    box = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    try:
        (birth,) = eventually(lambda: listener.of("home/NBIRTH/demo"), "the birth")
    finally:
        box.send_signal(signal.SIGKILL)
        box.wait()
    (death,) = eventually(lambda: listener.of("home/NDEATH/demo"), "the will")
    assert bdseq(death) == bdseq(birth)
    listener.close()
