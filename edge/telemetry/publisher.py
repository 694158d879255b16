"""Starts telemetry for a running box."""

from __future__ import annotations

from collections.abc import Callable

from configs.schema import BoxConfig
from edge.runtime import BoxRuntime
from edge.status import StatusSource
from edge.store.store import Store
from edge.telemetry.mqtt import MqttPublisher


def start_telemetry(config: BoxConfig, runtime: BoxRuntime, status: StatusSource, store: Store) -> Callable[[], None]:
    """Publishes to the configured broker; returns what stops it. What the runtime reports is told at once, not a second later.
    Raises EnvironmentLacking when the broker's password cannot be found; a broker that is down is no error."""
    publisher = MqttPublisher(config.telemetry.mqtt, site=config.box.site, box=config.box.id, source=status, outbox=store)
    runtime.parts.listeners.append(lambda _: publisher.wake())
    publisher.start()
    return publisher.stop
