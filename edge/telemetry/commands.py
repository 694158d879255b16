"""What the box is told over MQTT: commands with replies, switches and buttons of Home Assistant, and its birth.

    <prefix>/<site>/<box>/command/<command>              {"id": ..., "arguments": {...}}
    <prefix>/<site>/<box>/command/<command>/reply        {"id": ..., "command": ..., "ok": true, "result": {...}}
    <prefix>/<site>/<box>/command/reply                  to what is no command
    <prefix>/<site>/<box>/camera/<id>/<switch>/set       ON | OFF, or PRESS

Whoever may publish there is not our friend: sizes, rates and the number of commands that wait are bounded, nothing that is sent ends
the thread, and every command is answered once. A command that the broker kept (retained) is refused, because it would be obeyed again
at every start; one that comes twice with the same id is done once and answered twice.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from configs.errors import DriftboxError, UsageError, redact
from edge.control import COMMANDS, BoxControl
from edge.store.outbox import Message
from edge.telemetry.topics import OFF, ON, Topics, payload

log = logging.getLogger(__name__)

PAYLOAD_MAX_BYTES = 16 * 1024
ID_MAX = 200
#: Commands that wait; more at once are refused.
WAITING_MAX = 200
#: A whole house of cameras may be switched at once; beyond that so many a second are obeyed.
BURST, PER_S = 200.0, 20.0
#: Refusals that are answered at once; beyond that one a second.
COMPLAINTS = 20.0
#: Commands whose replies are remembered, for those that come again.
REMEMBERED = 256
#: Home Assistant's rebirths are heard this often.
REBORN_EVERY_S = 5.0
#: Who asks, in log and notes: MQTT does not say who published.
BY = "mqtt"
#: <switch> of `camera/<id>/<switch>/set` -> its command, and whether it has two positions.
CONTROLS: dict[str, tuple[str, bool]] = {
    "learning": ("camera/learning", True),
    "watching": ("camera/watch", True),
    "rollback": ("model/rollback", False),
    "restart": ("camera/restart", False),
}
PRESS = "PRESS"


@dataclass(frozen=True, kw_only=True)
class Order:
    """A command as it came. id: its sender's, None: it has none; state_topic: where its outcome is seen, empty: nowhere."""

    command: str
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str | int | None = None
    state_topic: str = ""


class Refusal(UsageError):
    """Not obeyed. id: of the command, as far as it could be read."""

    def __init__(self, message: str, *, code: str, remedy: str = "", id: str | int | None = None) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.id = id


def subscriptions(topics: Topics) -> tuple[str, ...]:
    """Topics under which commands come; the replies under the first are our own."""
    return (topics.of_box("command/#"), topics.of_box("camera/+/+/set"))


def command_of(topics: Topics, topic: str) -> str:
    """The command a topic names, known or not; '' for our own replies and foreign topics."""
    name = topic.removeprefix(topics.of_box("command/")) if topic.startswith(topics.of_box("command/")) else ""
    return "" if name == "reply" or name.endswith("/reply") else name


def order_of(topics: Topics, topic: str, body: bytes) -> Order | None:
    """What a message asks for; None: it is not meant for us. Raises Refusal."""
    if topic.startswith(topics.of_box("camera/")):
        return _control(topics, topic, body)
    name = command_of(topics, topic)
    if not name:
        return None
    fields = _fields(body)
    id = _id(fields.pop("id", None))
    arguments = fields.pop("arguments", {})
    if name not in COMMANDS:
        raise Refusal(f"there is no command {name[:100]!r}", code="unknown", remedy="known: " + ", ".join(COMMANDS), id=id)
    if fields or not isinstance(arguments, dict):
        raise Refusal("a command is {id, arguments: {...}} and nothing else", code="usage", id=id)
    return Order(command=name, arguments=arguments, id=id)


def _control(topics: Topics, topic: str, body: bytes) -> Order | None:
    parts = topic.removeprefix(topics.of_box("camera/")).split("/")
    if len(parts) != 3 or parts[2] != "set" or parts[1] not in CONTROLS:
        return None
    camera, kind = parts[0], parts[1]
    command, is_switch = CONTROLS[kind]
    word = body[:16].decode("utf-8", "replace")
    wanted = (ON, OFF) if is_switch else (PRESS,)
    if word not in wanted:
        raise Refusal(f"{kind}/set takes {' or '.join(wanted)}", code="usage")
    arguments: dict[str, Any] = {"camera": camera, **({"on": word == ON} if is_switch else {})}
    return Order(command=command, arguments=arguments, state_topic=topics.of_camera(camera, kind) if is_switch else "")


def _fields(body: bytes) -> dict[str, Any]:
    if len(body) > PAYLOAD_MAX_BYTES:
        raise Refusal(f"a command has at most {PAYLOAD_MAX_BYTES} bytes", code="too_large")
    try:
        found = json.loads(body, parse_constant=_no_such_number)
    except (ValueError, RecursionError):
        raise Refusal("a command is a JSON object in UTF-8", code="usage") from None
    if not isinstance(found, dict):
        raise Refusal("a command is a JSON object", code="usage")
    return found


def _no_such_number(name: str) -> NoReturn:
    raise ValueError(name)


def _id(value: object) -> str | int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63):
        return value
    if isinstance(value, str) and len(value) <= ID_MAX:
        return value
    raise Refusal(f"id is a text of at most {ID_MAX} letters, or an integer of 64 bits", code="usage")


class Allowance:
    """How many commands are obeyed: `burst` at once, `per_s` in the long run."""

    def __init__(self, burst: float, per_s: float, monotonic: Callable[[], float]) -> None:
        self._burst, self._per_s, self._monotonic = burst, per_s, monotonic
        self._left, self._at_s = burst, monotonic()

    def take(self) -> bool:
        now_s = self._monotonic()
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Commands:
    """Obeys what comes, on a thread of its own. send: publishes (`MqttPublisher.send`); doubt: a state is to be told again; reborn: Home
    Assistant was started; audit: told (command, "ok" or an error's code, camera or version). Call `incoming` from any thread."""

    def __init__(
        self,
        topics: Topics,
        control: BoxControl | None,
        *,
        send: Callable[[Message], None],
        doubt: Callable[[str], None] = lambda _: None,
        reborn: Callable[[], None] = lambda: None,
        birth_topic: str = "",
        audit: Callable[[str, str, str], None] = lambda action, outcome, detail: None,
        utc: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topics, self._control, self._utc, self._monotonic = topics, control, utc, monotonic
        self._send, self._doubt, self._reborn, self._birth_topic = send, doubt, reborn, birth_topic
        self._audit = audit
        self._allowance = Allowance(BURST, PER_S, monotonic)
        self._complaints = Allowance(COMPLAINTS, 1.0, monotonic)
        self._rebirths = Allowance(1.0, 1.0 / REBORN_EVERY_S, monotonic)
        self._waiting: queue.Queue[Order | None] = queue.Queue(WAITING_MAX)
        self._replies: OrderedDict[tuple[str, str | int], dict[str, Any]] = OrderedDict()
        self._thread = threading.Thread(target=self._run, name="mqtt-commands", daemon=True)

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """What to subscribe to."""
        commands = subscriptions(self._topics) if self._control is not None else ()
        return (*commands, *([self._birth_topic] if self._birth_topic else []))

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, wait_s: float = 5.0) -> None:
        """Ends after the command that is being done; those that wait are not done."""
        while True:
            try:
                self._waiting.get_nowait()
            except queue.Empty:
                break
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def incoming(self, topic: str, body: bytes, retained: bool, again: bool) -> None:
        """A message has come. again: it may have come before."""
        if self._birth_topic and topic == self._birth_topic:
            # A retained birth is the past; we announce at every connection anyhow.
            if body == b"online" and not retained and self._rebirths.take():
                self._reborn()
            return
        if self._control is None:
            return
        try:
            self._accept(topic, body, retained)
        except Refusal as refusal:
            self._refuse(command_of(self._topics, topic), refusal)

    def ask(self, command: str, arguments: Mapping[str, Any]) -> None:
        """The same, of somebody who speaks another protocol; the reply is told where all are."""
        if self._control is None:
            return
        try:
            self._enqueue(Order(command=command, arguments=dict(arguments)))
        except Refusal as refusal:
            self._refuse(command, refusal)

    def _enqueue(self, order: Order) -> None:
        if not self._allowance.take():
            raise Refusal("too many commands", code="busy", remedy=f"send at most {PER_S:g} a second", id=order.id)
        try:
            self._waiting.put_nowait(order)
        except queue.Full:
            raise Refusal("too many commands wait", code="busy", remedy="send it again later", id=order.id) from None

    def _accept(self, topic: str, body: bytes, retained: bool) -> None:
        if retained:
            if not body or not (command_of(self._topics, topic) or topic.endswith("/set")):
                return
            raise Refusal(
                "a retained command is not obeyed: it would be repeated at every start", code="retained",
                remedy="publish it without retain, and clear this one with an empty retained message",
            )  # fmt: skip
        if topic.startswith(self._topics.of_box("command/")) and not command_of(self._topics, topic):
            return  # our own reply
        order = order_of(self._topics, topic, body)
        if order is not None:
            self._enqueue(order)

    def _refuse(self, name: str, refusal: Refusal) -> None:
        if not self._complaints.take():  # a flood of nonsense is not answered by a flood of replies
            return
        log.warning("mqtt: a command was refused: %s", refusal.message)
        self._reply(name, _failure(name, refusal.id, refusal))

    # --- our thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (order := self._waiting.get()) is not None:
            self.obey(order)

    def obey(self, order: Order) -> None:
        """Does it and answers."""
        key = (order.command, order.id) if order.id is not None else None
        known = self._replies.get(key) if key is not None else None
        answer = known or self._done(order)
        if known is None:
            self._note(order, answer)
        if key is not None and known is None:
            self._replies[key] = answer
            while len(self._replies) > REMEMBERED:
                self._replies.popitem(last=False)
        self._reply(order.command, answer)
        if order.state_topic:
            self._doubt(order.state_topic)

    def _note(self, order: Order, answer: dict[str, Any]) -> None:
        subject = str(order.arguments.get("camera") or order.arguments.get("version") or "")
        try:
            self._audit(order.command, "ok" if answer["ok"] else answer["error"]["code"], redact(subject[:200]))
        except DriftboxError as error:  # a full disk stops nobody
            log.warning("mqtt: the audit log misses %s: %s", order.command, error)

    def _done(self, order: Order) -> dict[str, Any]:
        assert self._control is not None
        try:
            result = self._control.do(order.command, order.arguments, by=BY)
        except DriftboxError as error:
            log.warning("mqtt: %s was not done: %s", order.command, error)
            return _failure(order.command, order.id, error)
        except Exception as error:  # whatever it is, its sender waits for an answer and the thread for the next command
            log.exception("mqtt: %s failed", order.command)
            return _failure(order.command, order.id, DriftboxError(redact(f"{type(error).__name__}"), code="internal"))
        log.info("mqtt: %s was done", order.command)
        return {"id": order.id, "command": order.command, "ok": True, "result": result}

    def _reply(self, name: str, body: dict[str, Any]) -> None:
        topic = self._topics.of_box(f"command/{name}/reply" if name in COMMANDS else "command/reply")
        try:
            self._send(Message(topic=topic, payload=payload(self._utc(), body)))
        except (TypeError, ValueError):  # a result that JSON does not know
            log.exception("mqtt: the result of %s cannot be told", name)
            self._send(Message(topic=topic, payload=payload(self._utc(), {**body, "result": {}})))


def _failure(name: str, id: str | int | None, error: DriftboxError) -> dict[str, Any]:
    return {
        "id": id, "command": name[:100], "ok": False,
        "error": {"code": error.code, "message": error.message, "remedy": error.remedy},
    }  # fmt: skip
