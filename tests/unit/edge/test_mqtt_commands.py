"""What strangers may send: everything is answered once, nothing is done twice, nothing ends the thread."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import JobError, StorageError, UsageError
from configs.schema import MqttSection
from edge.control import COMMANDS
from edge.store.outbox import Message
from edge.telemetry import commands as module
from edge.telemetry.commands import CONTROLS, PAYLOAD_MAX_BYTES, Commands, order_of
from edge.telemetry.topics import Topics

NAMES = Topics(prefix="driftbox", site="home", box="demo")
BASE = "driftbox/home/demo"


class FakeControl:
    """Checks arguments as a box does, and notes what was done by whom."""

    def __init__(self) -> None:
        self.done: list[tuple[str, dict[str, Any], str]] = []
        self.fails: Exception | None = None
        self.result: dict[str, Any] = {"changed": True}

    def do(self, command: str, arguments: Mapping[str, Any], *, by: str) -> dict[str, Any]:
        try:
            COMMANDS[command][0].model_validate(dict(arguments))
        except ValueError:
            raise UsageError(f"{command}: bad arguments", code="usage") from None
        if self.fails is not None:
            raise self.fails
        self.done.append((command, dict(arguments), by))
        return self.result


class Desk:
    """Commands without a network and without a thread: what was accepted is done when `work` is called."""

    def __init__(self) -> None:
        self.control, self.sent, self.doubted, self.reborn, self.now_s = FakeControl(), [], [], 0, 100.0
        self.audited: list[tuple[str, ...]] = []
        self.disk_full = False
        self.commands = Commands(
            NAMES, self.control, send=self.sent.append, doubt=self.doubted.append, reborn=self._reborn,
            birth_topic="homeassistant/status", audit=self._audit, utc=lambda: 1.79e9, monotonic=lambda: self.now_s,
        )  # fmt: skip

    def _audit(self, *entry: str) -> None:
        if self.disk_full:
            raise StorageError("the disk is full", code="full")
        self.audited.append(entry)

    def _reborn(self) -> None:
        self.reborn += 1

    def say(self, topic: str, body: object, *, retained: bool = False) -> None:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        full = topic if topic.startswith("homeassistant/") else f"{BASE}/{topic}"
        self.commands.incoming(full, payload, retained, False)
        self.work()

    def work(self) -> None:
        while not self.commands._waiting.empty():
            order = self.commands._waiting.get_nowait()
            assert order is not None
            self.commands.obey(order)

    def replies(self) -> list[tuple[str, Any]]:
        return [(m.topic.removeprefix(f"{BASE}/"), json.loads(m.payload)) for m in self.sent]

    def reply(self) -> Any:
        (found,) = self.replies()
        return found[1]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_command_is_done_and_answered_with_its_id(desk: Desk) -> None:
    desk.say("command/camera/learning", {"id": "7", "arguments": {"camera": "gate", "on": False}})
    assert desk.control.done == [("camera/learning", {"camera": "gate", "on": False}, "mqtt")]
    ((topic, reply),) = desk.replies()
    assert topic == "command/camera/learning/reply"
    assert reply == {
        "schema": 1, "at": "2026-09-21T14:13:20.000Z", "id": "7", "command": "camera/learning", "ok": True,
        "result": {"changed": True},
    }  # fmt: skip
    assert not any(m.retain for m in desk.sent)


@pytest.mark.parametrize(
    ("topic", "word", "command", "arguments"),
    [
        ("camera/gate/learning/set", b"OFF", "camera/learning", {"camera": "gate", "on": False}),
        ("camera/gate/watching/set", b"ON", "camera/watch", {"camera": "gate", "on": True}),
        ("camera/gate/rollback/set", b"PRESS", "model/rollback", {"camera": "gate"}),
        ("camera/gate/restart/set", b"PRESS", "camera/restart", {"camera": "gate"}),
    ],
)
def test_switches_and_buttons(desk: Desk, topic: str, word: bytes, command: str, arguments: dict[str, Any]) -> None:
    desk.say(topic, word)
    assert desk.control.done == [(command, arguments, "mqtt")]
    assert desk.reply()["ok"] is True


def test_a_switch_that_could_not_be_turned_shows_where_it_really_stands(desk: Desk) -> None:
    desk.control.fails = UsageError("there is no camera gate", code="not_found", remedy="look at `driftbox cameras list`")
    desk.say("camera/gate/learning/set", b"ON")
    assert desk.doubted == [f"{BASE}/camera/gate/learning"]
    assert desk.reply()["error"] == {
        "code": "not_found", "message": "there is no camera gate", "remedy": "look at `driftbox cameras list`",
    }  # fmt: skip


def test_a_command_that_comes_twice_is_done_once_and_answered_twice(desk: Desk) -> None:
    for _ in range(2):
        desk.say("command/model/rollback", {"id": 5, "arguments": {"camera": "gate"}})
    desk.say("command/camera/restart", {"id": 5, "arguments": {"camera": "gate"}})
    assert [command for command, _, _ in desk.control.done] == ["model/rollback", "camera/restart"]
    first, second, _ = (reply for _, reply in desk.replies())
    assert first == second


def test_one_that_failed_may_not_be_tried_again_under_its_id_but_under_another(desk: Desk) -> None:
    desk.control.fails = JobError("no earlier version", code="no_data")
    desk.say("command/model/rollback", {"id": 1, "arguments": {"camera": "gate"}})
    desk.control.fails = None
    desk.say("command/model/rollback", {"id": 1, "arguments": {"camera": "gate"}})
    desk.say("command/model/rollback", {"id": 2, "arguments": {"camera": "gate"}})
    assert [reply["ok"] for _, reply in desk.replies()] == [False, False, True]


def test_every_command_is_in_the_audit_log_once_with_its_outcome(desk: Desk) -> None:
    for _ in range(2):
        desk.say("command/model/rollback", {"id": 5, "arguments": {"camera": "gate"}})
    desk.control.fails = UsageError("no such camera", code="not_found")
    desk.say("camera/yard/learning/set", b"ON")
    assert desk.audited == [("model/rollback", "ok", "gate"), ("camera/learning", "not_found", "yard")]
    desk.disk_full = True
    desk.say("camera/yard/learning/set", b"ON")
    assert len(desk.replies()) == 4, "a full disk stops nobody"


def test_commands_without_an_id_are_all_done(desk: Desk) -> None:
    for _ in range(2):
        desk.say("command/camera/restart", {"arguments": {"camera": "gate"}})
    assert len(desk.control.done) == 2


def test_only_so_many_ids_are_remembered(desk: Desk) -> None:
    for id in range(module.REMEMBERED + 50):
        desk.now_s += 1
        desk.say("command/camera/restart", {"id": id, "arguments": {"camera": "gate"}})
    assert len(desk.commands._replies) == module.REMEMBERED


@pytest.mark.parametrize(
    ("topic", "body", "code"),
    [
        ("command/camera/learning", b"{not json", "usage"),
        ("command/camera/learning", b"\xff\xfe", "usage"),
        ("command/camera/learning", b"", "usage"),
        ("command/camera/learning", b"[]", "usage"),
        ("command/camera/learning", b'{"arguments": {"camera": "gate", "on": NaN}}', "usage"),
        ("command/camera/learning", b"[" * 10_000, "usage"),
        ("command/camera/learning", b'{"id": ' + b"9" * 5000 + b"}", "usage"),
        ("command/camera/learning", {"id": {"a": 1}}, "usage"),
        ("command/camera/learning", {"id": True}, "usage"),
        ("command/camera/learning", {"id": "x" * 201}, "usage"),
        ("command/camera/learning", {"id": "1", "arguments": ["gate"]}, "usage"),
        ("command/camera/learning", {"id": "1", "arguments": {}, "sudo": True}, "usage"),
        ("command/camera/learning", {"id": "1", "arguments": {"camera": "../../etc", "on": True}}, "usage"),
        ("command/camera/learning", {"id": "1", "arguments": {"camera": "gate", "on": "yes"}}, "usage"),
        ("command/camera/learning", {"id": "1", "arguments": {"camera": "gate", "on": True, "as": "root"}}, "usage"),
        ("command/camera/learning", b" " * (PAYLOAD_MAX_BYTES + 1), "too_large"),
        ("command/box/format", {}, "unknown"),
        ("command/" + "x" * 5000, {}, "unknown"),
        ("command/__class__", {}, "unknown"),
        ("camera/gate/learning/set", b"on", "usage"),
        ("camera/gate/learning/set", b"ON" * 9000, "usage"),
        ("camera/gate/rollback/set", b"", "usage"),
        ("camera/" + "g" * 900 + "/learning/set", b"ON", "usage"),
    ],
)
def test_what_is_wrong_is_answered_and_not_done(desk: Desk, topic: str, body: object, code: str) -> None:
    desk.say(topic, body)
    assert desk.control.done == []
    ((where, reply),) = desk.replies()
    assert (reply["ok"], reply["error"]["code"]) == (False, code)
    assert where in {"command/reply", *(f"command/{name}/reply" for name in COMMANDS)}, (
        "strangers do not choose where we publish"
    )
    assert len(desk.sent[0].payload) < 2000
    desk.say("camera/gate/learning/set", b"ON")
    assert len(desk.control.done) == 1, "the next one is obeyed"


def test_a_retained_command_is_refused_and_clearing_it_is_no_command(desk: Desk) -> None:
    desk.say("camera/gate/learning/set", b"OFF", retained=True)
    assert desk.reply()["error"]["code"] == "retained"
    desk.say("camera/gate/learning/set", b"", retained=True)
    assert len(desk.sent) == 1
    assert desk.control.done == []


@pytest.mark.parametrize(
    "topic", ["command/reply", "command/camera/learning/reply", "camera/gate/events", "camera/gate/status", "command/"]
)
def test_our_own_words_are_no_commands(desk: Desk, topic: str) -> None:
    desk.say(topic, {"ok": True})
    assert desk.sent == []
    assert desk.control.done == []


def test_a_flood_is_refused_with_few_words_and_ends(desk: Desk) -> None:
    for _ in range(2000):
        desk.say("camera/gate/learning/set", b"ON")
    assert len(desk.control.done) == module.BURST
    refused = [reply for _, reply in desk.replies() if not reply["ok"]]
    assert [reply["error"]["code"] for reply in refused] == ["busy"] * int(module.COMPLAINTS)
    desk.now_s += 10
    desk.say("camera/gate/learning/set", b"ON")
    assert len(desk.control.done) == module.BURST + 1


def test_more_than_may_wait_are_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "work", lambda: None)
    desk.commands._allowance = module.Allowance(1e9, 1e9, lambda: desk.now_s)
    for _ in range(module.WAITING_MAX + 5):
        desk.say("camera/gate/learning/set", b"ON")
    assert desk.commands._waiting.qsize() == module.WAITING_MAX
    assert [reply["error"]["code"] for _, reply in desk.replies()] == ["busy"] * 5


def test_nonsense_in_a_flood_is_not_answered_by_a_flood(desk: Desk) -> None:
    for _ in range(500):
        desk.say("command/camera/learning", b"{")
    assert len(desk.replies()) == module.COMPLAINTS


def test_who_speaks_another_protocol_is_bounded_too(desk: Desk) -> None:
    for _ in range(500):
        desk.commands.ask("camera/learning", {"camera": "gate", "on": True})
        desk.work()
    assert len(desk.control.done) == module.BURST


def test_whatever_the_box_raises_is_an_answer_without_secrets(desk: Desk) -> None:
    desk.control.fails = RuntimeError("rtsp://admin:hunter2@cam/1 exploded")
    desk.say("command/camera/restart", {"arguments": {"camera": "gate"}})
    assert desk.reply()["error"]["code"] == "internal"
    assert b"hunter2" not in desk.sent[0].payload
    desk.control.fails = JobError("rtsp://admin:hunter2@cam/1 refused")
    desk.say("command/camera/restart", {"arguments": {"camera": "gate"}})
    assert b"hunter2" not in desk.sent[1].payload


def test_a_result_that_json_does_not_know_is_left_out(desk: Desk) -> None:
    desk.control.result = {"when": object()}
    desk.say("command/camera/restart", {"arguments": {"camera": "gate"}})
    assert desk.reply() | {"at": ""} == {
        "schema": 1,
        "at": "",
        "id": None,
        "command": "camera/restart",
        "ok": True,
        "result": {},
    }


def test_home_assistants_birth_is_heard_but_not_its_past_nor_a_flood_of_it(desk: Desk) -> None:
    desk.say("homeassistant/status", b"online", retained=True)
    desk.say("homeassistant/status", b"offline")
    assert desk.reborn == 0
    for _ in range(50):
        desk.say("homeassistant/status", b"online")
    assert desk.reborn == 1
    desk.now_s += module.REBORN_EVERY_S + 1
    desk.say("homeassistant/status", b"online")
    assert desk.reborn == 2
    assert desk.sent == []


def test_without_commands_only_the_birth_is_subscribed_to() -> None:
    sent: list[Message] = []
    deaf = Commands(NAMES, None, send=sent.append, birth_topic="homeassistant/status")
    assert deaf.subscriptions == ("homeassistant/status",)
    deaf.incoming(f"{BASE}/camera/gate/learning/set", b"ON", False, False)
    assert sent == []
    assert Commands(NAMES, None, send=sent.append).subscriptions == ()


@pytest.mark.parametrize(
    ("fields", "obeys"),
    [
        ({}, False),
        ({"username": "box"}, True),
        ({"tls": True, "cert_file": "a", "key_file": "b"}, True),
        ({"username": "box", "commands": "never"}, False),
        ({"commands": "always"}, True),
        ({"broker": "embedded"}, False),
        ({"broker": "embedded", "embedded": {"users": [{"name": "ha", "password": "env:X"}]}}, True),
    ],
)
def test_commands_are_obeyed_by_default_where_the_broker_knows_people(fields: dict[str, Any], obeys: bool) -> None:
    assert MqttSection.model_validate(fields, strict=False).obeys is obeys


def test_the_thread_obeys_and_ends() -> None:
    control, sent = FakeControl(), []
    commands = Commands(NAMES, control, send=sent.append)
    for camera in ("gate", "yard"):
        commands.incoming(f"{BASE}/camera/{camera}/learning/set", b"ON", False, False)
    commands._waiting.put(None)
    commands.start()
    commands._thread.join(60)
    assert not commands._thread.is_alive()
    assert [arguments["camera"] for _, arguments, _ in control.done] == ["gate", "yard"]
    commands.stop()


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSONS = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)
TOPICS = st.one_of(
    st.sampled_from([f"command/{name}" for name in COMMANDS] + [f"camera/gate/{kind}/set" for kind in CONTROLS]),
    st.text(max_size=40).map(lambda text: f"command/{text}"),
    st.text(max_size=40).map(lambda text: f"camera/{text}/set"),
    st.text(max_size=40),
)


@given(topic=TOPICS, body=st.binary(max_size=200) | JSONS.map(lambda value: json.dumps(value).encode()), retained=st.booleans())
@settings(max_examples=400, deadline=None)
def test_nothing_that_is_sent_ends_the_box(topic: str, body: bytes, retained: bool) -> None:
    desk = Desk()
    desk.commands.incoming(f"{BASE}/{topic}", body, retained, False)
    desk.work()
    assert len(desk.sent) <= 1
    for _, reply in desk.replies():
        assert reply["ok"] is bool(desk.control.done)
    assert not (retained and desk.control.done)


@given(camera=st.text(max_size=20), kind=st.sampled_from(sorted(CONTROLS)))
def test_a_topic_names_one_camera_only(camera: str, kind: str) -> None:
    body = b"ON" if CONTROLS[kind][1] else b"PRESS"
    order = order_of(NAMES, f"{BASE}/camera/{camera}/{kind}/set", body)
    assert order is None if "/" in camera else order is not None and order.arguments["camera"] == camera
