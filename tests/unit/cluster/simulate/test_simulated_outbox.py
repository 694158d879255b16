"""The outbox in memory keeps to the rules of the real one: the same messages in, the same ones left and lost."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.simulate.outbox import SimulatedOutbox
from edge.store.outbox import Message, Outbox
from edge.store.store import Store

MESSAGE = st.builds(
    Message, topic=st.sampled_from(["a", "b", "state/a", "state/b"]), payload=st.binary(max_size=30), latest=st.booleans()
)
#: Messages put one after the other, and True where the broker takes all that waits.
HAPPENINGS = st.lists(st.one_of(MESSAGE, st.just(True)), max_size=40)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HAPPENINGS, st.integers(2, 8), st.integers(20, 120))
def test_it_is_the_real_one_in_memory(
    tmp_path_factory: pytest.TempPathFactory, happenings: list[Message | bool], most: int, most_bytes: int
) -> None:
    store = Store(tmp_path_factory.mktemp("outbox") / "o.db")
    real, ours = (
        Outbox(store, messages_max=most, bytes_max=most_bytes),
        SimulatedOutbox(messages_max=most, bytes_max=most_bytes),
    )
    for happening in happenings:
        if isinstance(happening, Message):
            assert ours.put([happening]) == real.put([happening], at_utc=0.0)
        else:
            taken = real.take(10_000)
            real.acknowledge(taken)
            assert ours.take_all() == [one.message for one in taken]
        assert len(ours) == len(real)
    assert ours.take_all() == [one.message for one in real.take(10_000)]
    assert ours.lost == real.lost()
    store.close()
