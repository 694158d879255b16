"""What waits for the broker, in memory: the rules of `edge.store.outbox` without its database, for a thousand boxes at once.

Of a state (`latest`) only the newest is kept; every other message in order; beyond the bounds the oldest go and are counted, events
before states. One test puts the same messages into both and compares (tests/unit/cluster/simulate/test_simulated_outbox.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from edge.store.outbox import BYTES_MAX, MESSAGES_MAX, Message


class SimulatedOutbox:
    """put, take everything, acknowledge; see the module."""

    def __init__(self, *, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._messages_max, self._bytes_max = messages_max, bytes_max
        self._waiting: OrderedDict[int, Message] = OrderedDict()
        self._states: dict[str, int] = {}
        self._next, self._bytes, self.lost = 0, 0, 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, messages: Sequence[Message]) -> int:
        """Queues messages; how many older ones had to go."""
        for message in messages:
            if message.latest and message.topic in self._states:
                self._drop(self._states[message.topic])
            if message.latest:
                self._states[message.topic] = self._next
            self._waiting[self._next] = message
            self._bytes += message.size_bytes
            self._next += 1
        dropped = 0
        while len(self._waiting) > self._messages_max or self._bytes > self._bytes_max:
            oldest = next((id for id, m in self._waiting.items() if not m.latest), None)
            if oldest is None:
                oldest = next(iter(self._waiting))
            self._drop(oldest)
            dropped += 1
        self.lost += dropped
        return dropped

    def take_all(self) -> list[Message]:
        """Everything that waits, oldest first; it is the broker's now."""
        found = list(self._waiting.values())
        self._waiting.clear()
        self._states.clear()
        self._bytes = 0
        return found

    def _drop(self, id: int) -> None:
        gone = self._waiting.pop(id)
        self._bytes -= gone.size_bytes
        if gone.latest:
            self._states.pop(gone.topic, None)
