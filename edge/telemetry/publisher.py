"""Starts telemetry for a running box: the publisher, commands, the embedded broker, Sparkplug."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from configs.schema import BoxConfig, CameraEntry, MqttSection
from edge.clock import Clock
from edge.control import BoxControl
from edge.runtime import BoxRuntime
from edge.status import StatusSource
from edge.store.accounts import AccountStore
from edge.store.outbox import Outbox
from edge.store.store import Store
from edge.telemetry.announce import Announcer
from edge.telemetry.commands import BY, Commands
from edge.telemetry.embedded_broker import EmbeddedBroker
from edge.telemetry.kept import WithKept
from edge.telemetry.mqtt import MqttPublisher
from edge.telemetry.sparkplug_publisher import SparkplugPublisher
from edge.telemetry.topics import Topics


def outbox_of(mqtt: MqttSection, store: Store) -> Outbox:
    return Outbox(store, messages_max=mqtt.outbox_messages, bytes_max=mqtt.outbox_mib * 2**20)


def auditor(store: Store, clock: Clock) -> Callable[[str, str, str], None]:
    """Notes commands in the box's audit log, as asked for by `mqtt`: who published them only the broker knows."""
    accounts = AccountStore(store)

    def audit(action: str, outcome: str, detail: str) -> None:
        accounts.add_audit(at_utc=clock.utc_s(), who=BY, address="", action=action, outcome=outcome, detail=detail, known=True)

    return audit


class Telemetry:
    """Everything that speaks MQTT for one box. control: what carries out commands; None: there is nobody who could."""

    def __init__(
        self, mqtt: MqttSection, *, site: str, box: str, source: StatusSource, outbox: Outbox, control: BoxControl | None = None,
        audit: Callable[[str, str, str], None] = lambda action, outcome, detail: None,
    ) -> None:  # fmt: skip
        topics = Topics(prefix=mqtt.prefix, site=site, box=box)
        self.commands = Commands(
            topics,
            control if mqtt.obeys else None,
            send=lambda message: self.publisher.send(message),
            doubt=lambda topic: self.publisher.doubt(topic),
            reborn=lambda: self.publisher.announce_again(),
            birth_topic=f"{mqtt.discovery_prefix}/status" if mqtt.discovery else "",
            audit=audit,
        )
        self.publisher = MqttPublisher(
            mqtt, site=site, box=box, source=source, outbox=outbox, announcer=Announcer(mqtt, topics, outbox),
            incoming=self.commands.incoming, subscriptions=self.commands.subscriptions,
        )  # fmt: skip

        self.sparkplug = None
        if mqtt.sparkplug:
            self.sparkplug = SparkplugPublisher(
                mqtt, site=site, box=box, source=source, outbox=outbox, ask=self.commands.ask if mqtt.obeys else None
            )

    def start(self) -> None:
        self.commands.start()
        self.publisher.start()
        if self.sparkplug is not None:
            self.sparkplug.start()

    def stop(self) -> None:
        self.commands.stop()
        if self.sparkplug is not None:
            self.sparkplug.stop()
        self.publisher.stop()


def start_telemetry(
    config: BoxConfig,
    runtime: BoxRuntime,
    status: StatusSource,
    store: Store,
    control: BoxControl | None = None,
    *,
    configured: Callable[[], Sequence[CameraEntry]] | None = None,
    look_after: Callable[[MqttPublisher], None] = lambda publisher: None,
) -> Callable[[], None]:
    """Publishes to the configured broker; returns what stops it. What the runtime reports is told at once, not a second later.
    configured: all cameras, watched or not; look_after: told who does the work. Raises EnvironmentLacking when the broker's password
    cannot be found; a broker that is down is no error."""
    mqtt = config.telemetry.mqtt
    with ExitStack() as stack:
        if mqtt.broker == "embedded":
            broker = EmbeddedBroker(mqtt, config.box.data_dir / "broker")
            broker.start()
            stack.callback(broker.stop)
            mqtt = broker.reached_by()
        telemetry = Telemetry(
            mqtt, site=config.box.site, box=config.box.id, control=control, outbox=outbox_of(mqtt, store),
            source=status if configured is None else WithKept(status, configured),
            audit=auditor(store, runtime.parts.clock),
        )  # fmt: skip
        runtime.parts.listeners.append(lambda _: telemetry.publisher.wake())
        runtime.parts.object_listeners.append(telemetry.publisher.tell)
        telemetry.start()
        look_after(telemetry.publisher)
        stack.callback(telemetry.stop)
        return stack.pop_all().close
