"""The queue of a model: columns beside requests, whatever is added and taken in whatever order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.orloj.types import Request
from scheduler.orloj.waiting import Queue

#: What is done to a queue: a deadline to add, or the parts of its length at which requests are taken.
DONE = st.lists(st.one_of(st.floats(0, 9), st.lists(st.floats(0, 0.999), min_size=1, max_size=6)), max_size=200)


def request(id: int, deadline_s: float) -> Request:
    together = id % 5 if id % 3 else None
    return Request(
        id=id, app="a", model="m", released_s=0.0, deadline_s=deadline_s, penalty=id / 7, after_s=id / 11, together=together
    )  # fmt: skip


def columns(queue: Queue) -> list[np.ndarray]:
    return [queue.deadline_s, queue.penalty, queue.after_s, queue.mark, queue.together]


def told(requests: list[Request]) -> list[list[float]]:
    """What the columns of these requests should be; marks are negative ids."""
    return [
        [r.deadline_s for r in requests],
        [r.penalty for r in requests],
        [r.after_s for r in requests],
        [-r.id for r in requests],
        [-1 if r.together is None else r.together for r in requests],
    ]


@settings(max_examples=60, deadline=None)
@given(done=DONE)
def test_columns_stay_beside_their_requests(done: list[float | list[float]]) -> None:
    queue, naive = Queue(), list[Request]()
    for id, each in enumerate(done):
        if isinstance(each, float):
            queue.add(request(id, each), -id)
            naive = sorted([*naive, request(id, each)], key=lambda r: (r.deadline_s, r.id))
        else:
            places = list(dict.fromkeys(int(part * len(naive)) for part in each)) if naive else []
            assert queue.take(places) == tuple(naive[i] for i in places)
            naive = [r for i, r in enumerate(naive) if i not in places]
        assert list(queue.requests) == naive
        assert [column.tolist() for column in columns(queue)] == told(naive)


def test_room_that_was_left_at_the_front_is_used_again() -> None:
    queue = Queue()
    for id in range(10_000):
        queue.add(request(id, float(id)), -id)
        if id >= 50:
            assert [r.id for r in queue.take([0])] == [id - 50]
    assert len(queue) == 50
    assert queue._floats.shape[1] <= 256


def test_what_is_late_is_taken_from_the_front_only() -> None:
    queue = Queue()
    for id, deadline_s in enumerate((3.0, 1.0, 2.0, 2.0)):
        queue.add(request(id, deadline_s), -id)
    assert queue.take_before(1.0) == ()
    assert [r.id for r in queue.take_before(2.5)] == [1, 2, 3]
    assert queue.deadline_s == pytest.approx([3.0])
