"""One controller at a time: the lease in SQLite, and who counts how long it is good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.controller.database import FleetDatabase, NotInCharge
from cluster.controller.lease import Held, LeaseKeeper, LeaseTimes, SqliteLeases
from configs.errors import StorageError


class Time:
    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[FleetDatabase]:
    made = FleetDatabase(tmp_path / "fleet.db")
    yield made
    made.close()


def keeper(db: FleetDatabase, id: str, time: Time) -> LeaseKeeper:
    return LeaseKeeper(SqliteLeases(db, time), id, time)


def test_the_first_one_has_it_and_keeps_its_term(db: FleetDatabase, time: Time) -> None:
    one, two = keeper(db, "one", time), keeper(db, "two", time)
    for _ in range(20):
        one.look()
        two.look()
        assert (one.term, two.term) == (1, 0)
        time.s += 5.0
    assert "one is in charge" in two.why


def test_who_is_silent_loses_it_and_terms_only_rise(db: FleetDatabase, time: Time) -> None:
    one, two = keeper(db, "one", time), keeper(db, "two", time)
    one.look()
    time.s += 16.0
    two.look()
    assert (one.holds(), two.term) == (False, 2)
    one.look()
    assert "two is in charge" in one.why


def test_who_holds_it_stops_before_another_can_have_it(db: FleetDatabase, time: Time) -> None:
    one = keeper(db, "one", time)
    one.look()
    time.s += LeaseTimes().lasts_s - LeaseTimes().margin_s
    assert not one.holds()
    assert not SqliteLeases(db, time).take("two", lasts_s=15.0).mine


def test_given_back_it_is_free_at_once(db: FleetDatabase, time: Time) -> None:
    one, two = keeper(db, "one", time), keeper(db, "two", time)
    one.look()
    one.give()
    two.look()
    assert (one.holds(), two.term) == (False, 2)


def test_a_clock_that_was_set_back_keeps_it_from_nobody(db: FleetDatabase, time: Time) -> None:
    keeper(db, "one", time).look()
    time.s -= 900.0
    two = keeper(db, "two", time)
    two.look()
    assert two.term == 2


def test_a_store_that_is_away_does_not_end_what_is_in_hand(time: Time) -> None:
    class Away:
        gone = False

        def take(self, holder: str, *, lasts_s: float, note: str = "", above: int = 0) -> Held:
            if self.gone:
                raise StorageError("it is away")
            return Held(mine=True, holder=holder, term=above + 1, until_utc_s=0.0)

        def give(self, holder: str, term: int) -> None:
            raise StorageError("it is away")

    store = Away()
    one = LeaseKeeper(store, "one", time)
    one.look()
    store.gone = True
    time.s += 6.0
    one.look()
    assert one.holds()
    time.s += 6.1
    one.look()
    assert not one.holds()
    assert "cannot be asked" in one.why
    one.give()


def test_another_controller_with_a_higher_term_wins_whatever_the_store_says(db: FleetDatabase, time: Time) -> None:
    one = keeper(db, "one", time)
    one.look()
    one.heard("other", 9, live=True)
    assert not one.holds()
    time.s += 5.0
    one.look()
    assert not one.holds(), "it is there, now"
    time.s += 20.0
    one.look()
    assert one.term == 10, "it is gone: ours is higher"


def test_lower_terms_the_own_messages_and_old_ones_change_nothing(db: FleetDatabase, time: Time) -> None:
    one = keeper(db, "one", time)
    one.look()
    one.heard("other", 0, live=True)
    one.heard("one", 99, live=True)
    assert one.term == 1
    one.heard("other", 50, live=False)
    one.look()
    time.s += 5.0
    one.look()
    assert one.term == 51, "kept by the broker: only its term counts"


def test_of_two_with_one_term_the_higher_id_goes_on(db: FleetDatabase, time: Time) -> None:
    one = keeper(db, "one", time)
    one.look()
    one.heard("aaa", 1, live=True)
    assert one.holds()
    one.heard("zzz", 1, live=True)
    assert not one.holds()


def test_the_database_refuses_whoever_has_a_lower_term(db: FleetDatabase) -> None:
    with db.transaction(term=5):
        pass
    with pytest.raises(NotInCharge, match="term 5"), db.transaction(term=4) as inside:
        inside.execute("DELETE FROM state")
    with db.transaction(term=5):
        pass


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["one", "two", "three"]), st.floats(0.0, 20.0)), max_size=30))
def test_whatever_happens_never_two_and_never_a_term_twice(steps: list[tuple[str, float]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        time, db = Time(), FleetDatabase(Path(folder) / "fleet.db")
        keepers = {id: keeper(db, id, time) for id in ("one", "two", "three")}
        owners: dict[int, str] = {}
        for id, pause_s in steps:
            time.s += pause_s
            keepers[id].look()
            holding = [k for k in keepers.values() if k.holds()]
            assert len(holding) <= 1
            for one in holding:
                assert owners.setdefault(one.term, one.id) == one.id
        db.close()


def test_a_store_that_cannot_be_asked_is_an_error_at_the_door_and_a_reason_later(db: FleetDatabase, time: Time) -> None:
    one = keeper(db, "one", time)
    db.close()
    with pytest.raises(StorageError):
        one.begin()
    one.look()
    assert "cannot be asked for" in one.why


def test_times_keep_their_proportions() -> None:
    assert LeaseTimes.of(15.0) == LeaseTimes()
    short = LeaseTimes.of(3.0)
    assert short.renew_s < short.lasts_s - short.margin_s
