"""When to open, wait and give up: the states of a camera as a pure machine. Events and the time in, one action out.

    Start --> CONNECTING --Opened, Packet--> LIVE --silence--> STALLED
                  ^   \\                      |  \\__ Ended(finite) --> ENDED
                  |    `--Failed--> WAITING <-'  Failed, Ended
                  `---Waited----------'                                     Stop, from anywhere --> STOPPED

Waits grow from `first_wait_s` to a cap and are jittered, so that a site full of cameras does not come back in step. The cap is
low: a camera that returns is asked again soon enough to give a picture within 3 s. Only a refused password is tried seldom,
because cameras lock accounts after a few wrong tries.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from configs.errors import StreamErrorCode, redact
from streams.source import CameraState

# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    pass


@dataclass(frozen=True)
class Opened:
    """The server answered; nothing was received yet."""


@dataclass(frozen=True)
class Packet:
    """A packet of video came."""


@dataclass(frozen=True)
class Failed:
    """Opening, reading or decoding failed, or nothing came for too long. text is redacted here once more."""

    code: StreamErrorCode
    text: str


@dataclass(frozen=True)
class Ended:
    """The stream ended without an error. finite: it is a recording that has an end; repeat: play it again."""

    finite: bool
    repeat: bool = False


@dataclass(frozen=True)
class Waited:
    """The time of a `Wait` has come."""


@dataclass(frozen=True)
class Stop:
    pass


Event = Start | Opened | Packet | Failed | Ended | Waited | Stop

# --- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Open:
    """Open the source, giving up after timeout_s."""

    timeout_s: float


@dataclass(frozen=True)
class Read:
    """Read the next packet."""


@dataclass(frozen=True)
class Wait:
    """Do nothing until until_s."""

    until_s: float


@dataclass(frozen=True)
class Finish:
    """Close and end."""


Action = Open | Read | Wait | Finish


@dataclass(frozen=True, kw_only=True)
class ReconnectPolicy:
    """stall_s: silence after which a live camera counts as stalled; give_up_s: silence after which it is opened anew.

    open_timeout_s: patience with a server; every third try in a row that times out gets long_open_timeout_s, for slow cameras.
    """

    first_wait_s: float = 0.25
    cap_s: float = 1.5
    auth_cap_s: float = 30.0
    open_timeout_s: float = 3.0
    long_open_timeout_s: float = 8.0
    stall_s: float = 3.0
    give_up_s: float = 4.0


class Reconnect:
    """One camera's machine. seed: of the jitter. Not thread-safe."""

    def __init__(self, *, policy: ReconnectPolicy | None = None, seed: int = 0) -> None:
        self.policy = policy or ReconnectPolicy()
        self.code: StreamErrorCode | None = None
        self.error = ""
        self.reconnects = 0
        self._random = random.Random(seed)
        self._state = CameraState.STOPPED
        self._since_s = 0.0
        self._heard_s = 0.0
        self._tries = 0  # opened in a row without receiving anything
        self._timeouts = 0  # of these, how many timed out
        self._was_live = False
        self._received_any = False  # since it was opened

    def handle(self, event: Event, now_s: float) -> Action:
        """What to do next. Events that make no sense in the present state change nothing."""
        if self._state is CameraState.STOPPED and not isinstance(event, Start):
            return Finish()
        match event:
            case Start() | Waited():
                return self._open(now_s)
            case Opened():
                self._heard_s = now_s
                self._received_any = False
                return Read()
            case Packet():
                return self._received(now_s)
            case Failed(code, text):
                return self._back_off(code, redact(text), now_s)
            case Ended() if not self._received_any:
                return self._back_off(StreamErrorCode.CODEC, "no pictures came", now_s)
            case Ended(finite=True, repeat=False):
                self._go(CameraState.ENDED, now_s)
                self.code, self.error = StreamErrorCode.ENDED, ""
                return Finish()
            case Ended(finite=True):
                return Open(self.policy.open_timeout_s)
            case Ended():
                return self._back_off(StreamErrorCode.NETWORK, "the camera ended the stream", now_s)
            case Stop():
                self._go(CameraState.STOPPED, now_s)
                return Finish()

    def _go(self, state: CameraState, now_s: float) -> None:
        if state is not self._state:
            self._state, self._since_s = state, now_s

    def _open(self, now_s: float) -> Action:
        self._go(CameraState.CONNECTING, now_s)
        self._heard_s = now_s
        patient = self._timeouts % 3 == 2
        return Open(self.policy.long_open_timeout_s if patient else self.policy.open_timeout_s)

    def _received(self, now_s: float) -> Action:
        if self._state is not CameraState.LIVE:
            self._go(CameraState.LIVE, now_s)
            self.reconnects += self._was_live
            self._was_live = True
            self._tries = self._timeouts = 0
            self.code, self.error = None, ""
        self._heard_s = now_s
        self._received_any = True
        return Read()

    def _back_off(self, code: StreamErrorCode, text: str, now_s: float) -> Action:
        self._go(CameraState.WAITING, now_s)
        self.code, self.error = code, text
        self._timeouts = self._timeouts + 1 if code is StreamErrorCode.TIMEOUT else 0
        cap_s = self.policy.auth_cap_s if code is StreamErrorCode.AUTH else self.policy.cap_s
        # The exponent is bounded because a camera may be away for years.
        wait_s = min(cap_s, self.policy.first_wait_s * 2.0 ** min(self._tries, 16))
        self._tries += 1
        return Wait(now_s + wait_s * self._random.uniform(0.5, 1.0))

    def silence_s(self, now_s: float) -> float:
        """How long nothing was heard from an open source."""
        return max(0.0, now_s - self._heard_s)

    def state(self, now_s: float) -> tuple[CameraState, float, StreamErrorCode | None]:
        """(state, since when, code) as of `now_s`. Silence is seen here, however long the reading thread may be stuck."""
        silent = self.silence_s(now_s) >= self.policy.stall_s
        if self._state is CameraState.LIVE and silent:
            return CameraState.STALLED, self._heard_s + self.policy.stall_s, StreamErrorCode.TIMEOUT
        if self._state is CameraState.CONNECTING and silent and self.code is None:
            return self._state, self._since_s, StreamErrorCode.TIMEOUT
        return self._state, self._since_s, self.code
