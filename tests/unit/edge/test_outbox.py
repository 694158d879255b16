"""What waits for the broker: order, bounds, states that newer ones replace, and what a crash or a full disk leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlite_utils import Database

from configs.errors import StorageError
from edge.store.migrations import migrations
from edge.store.outbox import Message, Outbox
from edge.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "x.db") as opened:
        yield opened


def event(text: str, topic: str = "events") -> Message:
    return Message(topic=topic, payload=text.encode())


def state(text: str, topic: str = "state") -> Message:
    return Message(topic=topic, payload=text.encode(), retain=True, latest=True)


def texts(outbox: Outbox, limit: int = 1000) -> list[str]:
    return [w.message.payload.decode() for w in outbox.take(limit)]


def counts_are_right(outbox: Outbox, store: Store) -> None:
    rows = store.rows("SELECT topic, payload FROM outbox")
    assert len(outbox) == len(rows)
    assert outbox.size_bytes == sum(len(row["topic"].encode()) + len(row["payload"]) for row in rows)


def test_messages_come_out_in_order_until_they_are_acknowledged(store: Store) -> None:
    outbox = Outbox(store)
    assert outbox.put([event("a"), event("b"), event("c")], at_utc=1.0) == 0
    first = outbox.take(2)
    assert [w.message for w in first] == [event("a"), event("b")]
    assert texts(outbox) == ["c"], "what was taken is not given out twice"
    outbox.acknowledge(first[1:])
    outbox.rewind()
    assert texts(outbox) == ["a", "c"]
    counts_are_right(outbox, store)


def test_ids_are_never_used_twice(store: Store) -> None:
    outbox = Outbox(store)
    outbox.put([event("a")], at_utc=1.0)
    (old,) = outbox.take(1)
    outbox.acknowledge([old])
    outbox.put([event("b")], at_utc=1.0)
    outbox.acknowledge([old])  # a late acknowledgement must not hit a new message
    assert texts(outbox) == ["b"]


def test_of_a_state_only_the_newest_waits_and_events_keep_their_places(store: Store) -> None:
    outbox = Outbox(store)
    outbox.put([state("1"), event("a"), state("other", "elsewhere")], at_utc=1.0)
    outbox.put([event("b"), state("2"), state("3")], at_utc=1.0)
    assert texts(outbox) == ["a", "other", "b", "3"]
    counts_are_right(outbox, store)


def test_a_state_on_its_way_is_not_taken_away_from_under_the_sender(store: Store) -> None:
    outbox = Outbox(store)
    outbox.put([state("1")], at_utc=1.0)
    on_the_way = outbox.take(1)
    outbox.put([state("2")], at_utc=1.0)
    assert len(outbox) == 2
    outbox.acknowledge(on_the_way)
    outbox.rewind()
    assert texts(outbox) == ["2"]


def test_kept_history_is_not_replaced(store: Store) -> None:
    outbox = Outbox(store)
    windows = [Message(topic="window", payload=body, retain=True) for body in (b"1", b"2")]
    outbox.put(windows, at_utc=1.0)
    assert [w.message for w in outbox.take(9)] == windows


def test_when_it_is_full_the_oldest_events_go_and_states_stay(store: Store) -> None:
    outbox = Outbox(store, messages_max=4)
    outbox.put([state("s"), event("1")], at_utc=1.0)
    assert outbox.put([event(str(n)) for n in range(2, 6)], at_utc=1.0) == 2
    assert texts(outbox) == ["s", "3", "4", "5"]
    assert outbox.lost() == 2
    counts_are_right(outbox, store)


def test_bytes_are_bounded_too(store: Store) -> None:
    outbox = Outbox(store, bytes_max=1000)
    for number in range(20):
        outbox.put([event(f"{number:0100d}")], at_utc=1.0)
    assert outbox.size_bytes <= 1000
    kept = [int(text) for text in texts(outbox)]
    assert kept == list(range(20 - len(kept), 20))
    assert outbox.lost() == 20 - len(kept)


def test_a_message_larger_than_the_outbox_goes_by_itself(store: Store) -> None:
    outbox = Outbox(store, bytes_max=100)
    outbox.put([state("s")], at_utc=1.0)
    assert outbox.put([event("x" * 200)], at_utc=1.0) == 1
    assert texts(outbox) == ["s"]


def test_states_go_when_there_is_nothing_else(store: Store) -> None:
    outbox = Outbox(store, messages_max=2)
    assert outbox.put([state(str(n), f"state/{n}") for n in range(5)], at_utc=1.0) == 3
    assert texts(outbox) == ["3", "4"]


def test_what_was_lost_is_remembered_until_it_was_told(store: Store) -> None:
    Outbox(store, messages_max=1).put([event("1"), event("2"), event("3")], at_utc=1.0)
    again = Outbox(store, messages_max=1)
    assert again.lost() == 2
    again.forget_lost()
    assert Outbox(store).lost() == 0


def test_facts_outlive_a_restart(tmp_path: Path) -> None:
    with Store(tmp_path / "y.db") as first:
        Outbox(first).remember("devices", "{}")
        Outbox(first).remember("devices", '{"a": 1}')
    with Store(tmp_path / "y.db") as second:
        assert (Outbox(second).fact("devices"), Outbox(second).fact("nothing")) == ('{"a": 1}', None)


def test_what_an_older_version_left_is_delivered(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    db = Database(path)
    migrations.apply(db, stop_before="m010_mqtt")
    db.execute("INSERT INTO outbox (topic, payload, qos, retain, queued_utc) VALUES ('t', x'6162', 1, 1, 7.0)")
    db.conn.commit()
    db.close()
    with Store(path) as store:
        (waiting,) = Outbox(store).take(9)
        assert waiting.message == Message(topic="t", payload=b"ab", retain=True)


def test_on_a_full_disk_nothing_of_a_batch_is_stored_and_nothing_is_miscounted(tmp_path: Path) -> None:
    with Store(tmp_path / "z.db", max_page_count=80) as store:
        outbox = Outbox(store)
        outbox.put([event("kept")], at_utc=1.0)
        with pytest.raises(StorageError) as caught:
            outbox.put([event("x" * 4000) for _ in range(200)], at_utc=1.0)
        assert caught.value.code == "full"
        counts_are_right(outbox, store)
        assert texts(outbox) == ["kept"]


#: What can happen to an outbox: something is told, a batch is sent, some of it is acknowledged in any order, the connection breaks,
#: the box is killed.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.booleans(), max_size=5)),
        st.tuples(st.just("take"), st.integers(1, 6)),
        st.tuples(st.just("ack"), st.integers(0, 6)),
        st.tuples(st.just("break"), st.none()),
        st.tuples(st.just("kill"), st.none()),
    ),
    max_size=40,
)


@given(steps=STEPS)
@settings(max_examples=25, deadline=None)
def test_whatever_breaks_every_event_arrives_in_order_and_the_last_state_wins(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object]]
) -> None:
    """The broker sees what is taken, also when the box never learns so. Consumers keep the first of each event, as docs/mqtt.md says."""
    with Store(tmp_path_factory.mktemp("db") / "x.db") as store:
        outbox, arrived, on_the_way, told, newest = Outbox(store), [], [], [], ""
        for number, (what, how) in enumerate(steps):
            if what == "put":
                batch = [state(f"{number}.{i}") if is_state else event(f"{number}.{i}") for i, is_state in enumerate(how)]  # type: ignore[arg-type]
                told += [m.payload for m in batch if not m.latest]
                newest = next((m.payload.decode() for m in reversed(batch) if m.latest), newest)
                outbox.put(batch, at_utc=float(number))
            elif what == "take":
                taken = outbox.take(int(how))  # type: ignore[call-overload]
                on_the_way += taken
                arrived += taken
            elif what == "ack":
                outbox.acknowledge(on_the_way[: int(how)])  # type: ignore[call-overload]
                del on_the_way[: int(how)]  # type: ignore[call-overload]
            else:
                on_the_way = []
                outbox = Outbox(store) if what == "kill" else outbox
                outbox.rewind()
            counts_are_right(outbox, store)
        outbox.rewind()
        arrived += outbox.take(10_000)
        seen = list(dict.fromkeys(w.message.payload for w in arrived if not w.message.latest))
        assert seen == told
        states = [w.message.payload.decode() for w in arrived if w.message.latest]
        assert (states[-1] if states else "") == newest
