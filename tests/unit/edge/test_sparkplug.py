"""Sparkplug B: bytes as the specification writes them, births before data, numbers that count, and what may be asked for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.status import BoxStatus, CameraView
from edge.telemetry.sparkplug import (
    BDSEQ,
    BOOLEAN,
    DOUBLE,
    INT64,
    REBIRTH,
    STRING,
    Metric,
    Node,
    Payload,
    Tell,
    decoded,
    encoded,
    wishes,
)


def gate(**fields: object) -> CameraView:
    return CameraView.model_validate({"id": "gate", "state": "live", "model": "gate-1", **fields})


def status_of(*cameras: CameraView, now_utc: float = 1000.0, **fields: object) -> BoxStatus:
    return BoxStatus.model_validate(
        {
            "box": "demo",
            "site": "home",
            "software": "0.1.0",
            "now_utc": now_utc,
            "started_utc": 0.0,
            "cameras": cameras,
            **fields,
        }
    )


def born(*cameras: CameraView) -> Node:
    node = Node(group="home", name="demo")
    node.connecting()
    node.messages(status_of(*cameras))
    return node


def seq(tell: Tell) -> int:
    payload = Payload()
    payload.ParseFromString(tell.payload)
    assert payload.HasField("seq")
    return int(payload.seq)


def told(messages: list[Tell]) -> list[tuple[str, dict[str, object]]]:
    return [(m.topic.removeprefix("spBv1.0/home/"), {x.name: x.value for x in decoded(m.payload)}) for m in messages]


def test_bytes_are_those_of_the_specification() -> None:
    """Field numbers by hand: payload timestamp 1, metrics 2, seq 3; metric name 1, timestamp 3, datatype 4, long 11, boolean 14,
    string 15, double 13, is_null 7."""
    metrics = [
        Metric(name="a", datatype=INT64, value=-1), Metric(name="b", datatype=BOOLEAN, value=True),
        Metric(name="c", datatype=STRING, value="x"), Metric(name="d", datatype=DOUBLE, value=1.0),
        Metric(name="e", datatype=DOUBLE, value=None),
    ]  # fmt: skip
    found = encoded(metrics, at_utc=0.005, seq=7)
    minus_one = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # two's complement in an unsigned long
    parts = [
        b"\x0a\x01a\x18\x05\x20\x04\x58" + minus_one, b"\x0a\x01b\x18\x05\x20\x0b\x70\x01", b"\x0a\x01c\x18\x05\x20\x0c\x7a\x01x",
        b"\x0a\x01d\x18\x05\x20\x0a\x69\x00\x00\x00\x00\x00\x00\xf0\x3f", b"\x0a\x01e\x18\x05\x20\x0a\x38\x01",
    ]  # fmt: skip
    assert found == b"\x08\x05" + b"".join(b"\x12" + bytes([len(part)]) + part for part in parts) + b"\x18\x07"


#: Written by the encoders of others: sparkplug-payload 1.0.3 (by the authors of the protocol) and pysparkplug 0.6.1, which leaves out
#: the data type of a command.
BIRTH_OF_OTHERS = (
    "08fdd095ffbc3112120a05626453657118fdd095ffbc312004580712210a144e6f646520436f6e74726f6c2f5265626972746818fdd095ffbc31200b7000"
    "121a0a08536f66747761726518fdd095ffbc31200c7a05302e312e3012200a0c4d65616e207175616c69747918fdd095ffbc31200a69000000000000e03f"
    "12130a0657696e646f7718fdd095ffbc31200438011800"
)
REBIRTHS_OF_OTHERS = (
    "08fdd095ffbc3112210a144e6f646520436f6e74726f6c2f5265626972746818fdd095ffbc31200b7001",
    "08fdd095ffbc31121a0a144e6f646520436f6e74726f6c2f5265626972746818017001",
)
SWITCHES_OF_OTHERS = (
    "08fdd095ffbc31120e0a084c6561726e696e67200b7000",
    "08fdd095ffbc31120e0a084c6561726e696e6718017000",
)


def test_a_birth_has_the_bytes_that_others_write() -> None:
    metrics = [
        Metric(name=BDSEQ, datatype=INT64, value=7), Metric(name=REBIRTH, datatype=BOOLEAN, value=False),
        Metric(name="Software", datatype=STRING, value="0.1.0"), Metric(name="Mean quality", datatype=DOUBLE, value=0.5),
        Metric(name="Window", datatype=INT64, value=None),
    ]  # fmt: skip
    assert encoded(metrics, at_utc=1_700_000_000.125, seq=0).hex() == BIRTH_OF_OTHERS
    assert decoded(bytes.fromhex(BIRTH_OF_OTHERS)) == metrics


@pytest.mark.parametrize(("rebirth", "switch"), list(zip(REBIRTHS_OF_OTHERS, SWITCHES_OF_OTHERS, strict=True)))
def test_commands_of_others_are_understood(rebirth: str, switch: str) -> None:
    node = born(gate())
    assert wishes(node, "spBv1.0/home/NCMD/demo", bytes.fromhex(rebirth)) == (True, [])
    asked = [("camera/learning", {"camera": "gate", "on": False})]
    assert wishes(node, "spBv1.0/home/DCMD/demo/gate", bytes.fromhex(switch)) == (False, asked)


def test_what_others_send_beyond_what_we_use_is_skipped() -> None:
    extra = b"\x0a\x01a\x42\x02\x08\x01\x70\x01"  # metadata (8) that we do not describe
    assert [(m.name, m.value) for m in decoded(b"\x12" + bytes([len(extra)]) + extra)] == [("a", True)]


def test_births_tell_everything_and_then_only_changes_are_told() -> None:
    node = Node(group="home", name="demo")
    node.connecting()
    birth, device = told(node.messages(status_of(gate(present={"person": 2}, zones={"door": {"person": 1}}))))
    assert birth[0] == "NBIRTH/demo"
    assert (birth[1][BDSEQ], birth[1][REBIRTH], birth[1]["Cameras live"], birth[1]["Mean quality"]) == (1, False, 1, None)
    assert device[0] == "DBIRTH/demo/gate"
    assert (device[1]["Present/person"], device[1]["Zones/door/person"], device[1]["Learning"]) == (2, 1, True)
    same = status_of(gate(present={"person": 2}, zones={"door": {"person": 1}}))
    assert node.messages(same) == []
    ((topic, metrics),) = told(node.messages(status_of(gate(present={"person": 3}, zones={"door": {"person": 1}}))))
    assert (topic, metrics) == ("DDATA/demo/gate", {"Present/person": 3})


def test_a_camera_without_pictures_is_dead_and_is_born_again() -> None:
    node = born(gate())
    dead = told(node.messages(status_of(gate(state="stalled"))))
    assert [topic for topic, _ in dead] == ["NDATA/demo", "DDEATH/demo/gate"]
    assert [topic for topic, _ in told(node.messages(status_of(gate())))] == ["NDATA/demo", "DBIRTH/demo/gate"]
    assert [topic for topic, _ in told(node.messages(status_of()))] == ["NDATA/demo", "DDEATH/demo/gate"]


def test_a_camera_with_other_metrics_is_born_anew() -> None:
    node = born(gate(zones={"door": {"person": 0}}))
    assert [topic for topic, _ in told(node.messages(status_of(gate(zones={"path": {"person": 0}}))))] == ["DBIRTH/demo/gate"]


def test_will_and_birth_of_a_connection_have_the_same_number_and_the_next_another() -> None:
    node = Node(group="home", name="demo", bdseq=255)
    for expected in (0, 1):
        node.connecting()
        death = node.death(5.0)
        assert death.topic == "spBv1.0/home/NDEATH/demo"
        assert [(m.name, m.value) for m in decoded(death.payload)] == [(BDSEQ, expected)]
        payload = Payload()
        payload.ParseFromString(death.payload)
        assert not payload.HasField("seq"), "a death has none"
        assert told(node.messages(status_of()))[0][1][BDSEQ] == expected


def test_a_rebirth_tells_everything_again_under_the_same_bdseq() -> None:
    node = born(gate())
    node.rebirth()
    messages = node.messages(status_of(gate()))
    assert [topic for topic, _ in told(messages)] == ["NBIRTH/demo", "DBIRTH/demo/gate"]
    assert told(messages)[0][1][BDSEQ] == 1
    assert seq(messages[0]) == 0


@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=600))
@settings(max_examples=20, deadline=None)
def test_seq_begins_at_0_and_counts_to_255_and_round(counts: list[int]) -> None:
    node = Node(group="home", name="demo")
    node.connecting()
    messages = [m for count in counts for m in node.messages(status_of(gate(present={"person": count})))]
    assert [seq(m) for m in messages] == [number % 256 for number in range(len(messages))]


def test_commands() -> None:
    node = born(gate())
    asked = encoded([Metric(name=REBIRTH, datatype=BOOLEAN, value=True)], at_utc=1.0, seq=None)
    assert wishes(node, "spBv1.0/home/NCMD/demo", asked) == (True, [])
    off = [Metric(name="Learning", datatype=BOOLEAN, value=False), Metric(name="Format", datatype=BOOLEAN, value=True)]
    found = wishes(node, "spBv1.0/home/DCMD/demo/gate", encoded(off, at_utc=1.0, seq=None))
    assert found == (False, [("camera/learning", {"camera": "gate", "on": False})])
    not_bool = encoded([Metric(name="Watching", datatype=STRING, value="yes")], at_utc=1.0, seq=None)
    assert wishes(node, "spBv1.0/home/DCMD/demo/gate", not_bool) == (False, [])
    assert wishes(node, "spBv1.0/other/NCMD/demo", asked) == (False, [])
    with pytest.raises(ValueError, match="Sparkplug"):
        wishes(node, "spBv1.0/home/NCMD/demo", b"\xff\xff\xff")


@given(body=st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_payload_or_none(body: bytes) -> None:
    node = Node(group="home", name="demo")
    for topic in ("spBv1.0/home/NCMD/demo", "spBv1.0/home/DCMD/demo/gate"):
        try:
            wishes(node, topic, body)
        except ValueError:
            continue


METRICS = st.one_of(
    st.builds(Metric, name=st.text(max_size=20), datatype=st.just(INT64), value=st.none() | st.integers(0, 2**63)),
    st.builds(Metric, name=st.text(max_size=20), datatype=st.just(STRING), value=st.none() | st.text()),
    st.builds(Metric, name=st.text(max_size=20), datatype=st.just(BOOLEAN), value=st.none() | st.booleans()),
    st.builds(Metric, name=st.text(max_size=20), datatype=st.just(DOUBLE), value=st.none() | st.floats(allow_nan=False)),
)


@given(metrics=st.lists(METRICS, max_size=8))
@settings(max_examples=100, deadline=None)
def test_what_is_written_can_be_read(metrics: list[Metric]) -> None:
    assert decoded(encoded(metrics, at_utc=1.0, seq=3)) == metrics
