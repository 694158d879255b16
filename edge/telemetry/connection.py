"""How the box reaches a broker: TLS, credentials, one connection per client, and what to say when it does not work.

A paho client here is used for one attempt and one connection: its thread ends with either, and its owner makes a new one after a pause.
What was on its way then is sent again by the owner, in the owner's order.
"""

from __future__ import annotations

import ssl
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode

from configs.errors import EnvironmentLacking
from configs.schema import MqttSection
from edge.certificates import read_certificate

KEEPALIVE_S = 30
RECONNECT_MAX_S = 60
#: Messages on their way at once. A broker that speaks MQTT 5 may want fewer.
WINDOW = 500
#: A certificate that ends within this time is told of.
SOON_S = 21 * 86_400.0


class Backoff:
    """When to try again: after 1 s, 2 s, ... at most RECONNECT_MAX_S."""

    def __init__(self) -> None:
        self._pause_s, self._again_s = 1.0, 0.0

    def reset(self) -> None:
        """It worked."""
        self._pause_s, self._again_s = 1.0, 0.0

    def is_over(self, now_s: float) -> bool:
        """Ask again and again after a failure; True once, when it is time to try."""
        if not self._again_s:
            self._again_s = now_s + self._pause_s
            self._pause_s = min(RECONNECT_MAX_S, 2 * self._pause_s)
        if now_s < self._again_s:
            return False
        self._again_s = 0.0
        return True


def where_of(mqtt: MqttSection) -> str:
    return f"{mqtt.host}:{mqtt.port}"


def tls_context(mqtt: MqttSection) -> ssl.SSLContext:
    """Checks the broker's certificate and name, always. Raises EnvironmentLacking naming the file that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=str(mqtt.ca_file) if mqtt.ca_file else None)
    except (OSError, ssl.SSLError) as error:
        raise _unusable("ca_file", mqtt.ca_file, error) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if mqtt.cert_file is not None and mqtt.key_file is not None:
        password = mqtt.key_password.resolve() if mqtt.key_password else ""
        try:
            # A function, so that OpenSSL never asks on the terminal for what was not configured.
            context.load_cert_chain(mqtt.cert_file, mqtt.key_file, password=lambda: password)
        except (OSError, ssl.SSLError) as error:
            raise _unusable("cert_file and key_file", mqtt.cert_file, error) from None
    return context


def _unusable(key: str, path: Path | None, error: Exception) -> EnvironmentLacking:
    if isinstance(error, FileNotFoundError):
        why, remedy = "a file is missing", f"correct telemetry.mqtt.{key}"
    elif isinstance(error, ssl.SSLError):
        why = getattr(error, "reason", None) or "it cannot be read"
        remedy = "both must be PEM and belong together; an encrypted key needs telemetry.mqtt.key_password"
    else:
        why, remedy = getattr(error, "strerror", None) or type(error).__name__, f"correct telemetry.mqtt.{key}"
    return EnvironmentLacking(f"telemetry.mqtt.{key} cannot be used ({path}): {why}", subject=str(path), remedy=remedy)


def certificate_end_utc(path: Path) -> float:
    """When a certificate's time is over. Raises EnvironmentLacking when the file holds none."""
    try:
        return read_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError) as error:
        raise _unusable("cert_file", path, error) from None


def certificate_trouble(mqtt: MqttSection, now_utc: float) -> str:
    """What is wrong, or soon will be, with the time of the box's own certificate; empty: nothing, or there is none."""
    if mqtt.cert_file is None:
        return ""
    end_utc = certificate_end_utc(mqtt.cert_file)
    if end_utc - now_utc > SOON_S:
        return ""
    day = datetime.fromtimestamp(end_utc, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"the box's certificate {mqtt.cert_file} {'has expired' if end_utc <= now_utc else 'expires'} ({day})"


def make_client(mqtt: MqttSection, client_id: str, *, protocol: str | None = None) -> paho.Client:
    """A client with credentials and TLS, not connected; it makes one connection. protocol: None: the configured one.
    Raises EnvironmentLacking when a password or a file cannot be used."""
    version = MQTTProtocolVersion.MQTTv5 if (protocol or mqtt.protocol) == "5" else MQTTProtocolVersion.MQTTv311
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, reconnect_on_failure=False)
    if mqtt.username is not None:
        client.username_pw_set(mqtt.username, mqtt.password.resolve() if mqtt.password else None)
    if mqtt.tls:
        client.tls_set_context(tls_context(mqtt))
    # Its owner sends no more than may be on the way: a queue of paho's own would mix up the order.
    client.max_inflight_messages_set(0)
    return client


def window_of(properties: Any) -> int:
    """Messages that may be on their way at once, as the broker said when it accepted us (MQTT 5; else WINDOW)."""
    return min(WINDOW, getattr(properties, "ReceiveMaximum", None) or WINDOW)


def current_failure(where: str) -> EnvironmentLacking:
    """For paho's `on_connect_fail`, which is called while the error is being handled and not told which."""
    error = sys.exc_info()[1]
    return unreachable(where, error if isinstance(error, Exception) else OSError())


def unreachable(where: str, error: Exception) -> EnvironmentLacking:
    """Why a connection could not be made, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"its certificate is not accepted: {error.verify_message}"
        remedy = "renew the broker's certificate, or correct telemetry.mqtt.ca_file and host"
    elif isinstance(error, ssl.SSLError):
        reason = f"no TLS with it: {error.reason or 'handshake failed'}"
        remedy = "check telemetry.mqtt.tls and port, and the box's certificate when the broker wants one"
    else:
        reason = getattr(error, "strerror", None) or type(error).__name__
        remedy = "is the broker running? correct telemetry.mqtt.host and port"
    return EnvironmentLacking(f"the broker {where} cannot be reached: {reason}", subject=where, remedy=remedy)


def refused(where: str, reason: ReasonCode) -> EnvironmentLacking:
    """The broker answered no."""
    if is_unsupported(reason):
        remedy = "set telemetry.mqtt.protocol to the other version"
    else:
        remedy = "correct telemetry.mqtt.username and password, or what the broker allows this user"
    return EnvironmentLacking(f"the broker {where} refused us: {reason}", subject=where, remedy=remedy)


def is_unsupported(reason: ReasonCode) -> bool:
    """Whether the broker does not know our version of MQTT."""
    return "nsupported protocol" in str(reason)


def probe(mqtt: MqttSection, *, timeout_s: float = 5.0) -> None:
    """Connects once and leaves. Raises EnvironmentLacking saying why it was not possible."""
    client, where = make_client(mqtt, ""), where_of(mqtt)
    answered = threading.Event()
    reasons: list[ReasonCode] = []

    def on_connect(client: paho.Client, data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        reasons.append(reason)
        answered.set()

    client.on_connect = on_connect
    client.on_disconnect = lambda *_: answered.set()
    try:
        client.connect(mqtt.host, mqtt.port, keepalive=KEEPALIVE_S)
    except (OSError, ValueError) as error:
        raise unreachable(where, error) from None
    client.loop_start()
    try:
        in_time = answered.wait(timeout_s)
    finally:
        client.disconnect()
        client.loop_stop()
    if not reasons:
        raise no_answer(mqtt, None if in_time else timeout_s)
    if reasons[0].is_failure:
        raise refused(where, reasons[0])


def no_answer(mqtt: MqttSection, within_s: float | None) -> EnvironmentLacking:
    """Connected, and never told whether we are welcome. within_s: so long was waited; None: it hung up."""
    where = where_of(mqtt)
    how = f"does not answer as an MQTT broker within {within_s:g} s" if within_s else "hangs up before it answers"
    if mqtt.cert_file is not None:
        remedy = "does it accept the box's certificate? Look into the broker's log"
    elif mqtt.protocol == "5":
        remedy = "is it a broker, with TLS or without? Or it does not know MQTT 5: set telemetry.mqtt.protocol to 3.1.1"
    else:
        remedy = "is it a broker, and with TLS or without?"
    return EnvironmentLacking(f"{where} {how}", subject=where, remedy=remedy)


def quietly(work: Callable[[], object]) -> None:
    """Takes a connection down, whatever state it is in."""
    try:
        work()
    except (OSError, ValueError, RuntimeError):
        return
