"""Live updates for viewers of the page: one look at the box and one serialisation a second, however many look on (and one more for each
set of cameras that tokens are held to, see `edge.web.held`).

A viewer gets the whole status first and then what changed (`edge.web.json_patch`); docs/http.md describes the messages. Who reads
too slowly is let go: its queue is short, and a browser that comes back begins with the whole status again. While nobody looks on, no
work is done.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from anyio import to_thread
from pydantic import BaseModel
from starlette.websockets import WebSocket, WebSocketDisconnect

from configs.errors import redact
from edge.web.json_patch import patch_between

log = logging.getLogger("driftbox")

EVERY_S = 1.0
#: Messages that wait for a viewer; one more and it is let go.
MOST_WAITING = 16
MOST_VIEWERS = 100
#: Whether a viewer may still look is asked this often.
STILL_EVERY_S = 15.0
#: A viewer that takes longer to take a message is gone.
SEND_WITHIN_S = 10.0
#: Close codes (RFC 6455; 4000 and above are ours): try again later; the session or token is over.
TRY_LATER, SIGNED_OUT = 1013, 4401


T = TypeVar("T", bound=BaseModel)


class Viewer:
    """What waits for one connection. cameras: it sees nothing of others, None: all."""

    def __init__(self, cameras: frozenset[str] | None = None) -> None:
        self.cameras = cameras
        self.queue: asyncio.Queue[str] = asyncio.Queue(MOST_WAITING)
        self.too_slow = asyncio.Event()

    def offer(self, text: str, *, may_miss: bool = False) -> None:
        """may_miss: a viewer that is behind does without it; otherwise it is let go."""
        if may_miss and self.queue.qsize() >= MOST_WAITING // 2:
            return
        try:
            self.queue.put_nowait(text)
        except asyncio.QueueFull:
            self.too_slow.set()


@dataclass(frozen=True, kw_only=True)
class _Told:
    """What viewers of the same cameras know: the newest status, and its number."""

    newest: dict[str, Any] | None = None
    seq: int = 0


class LiveFeed(Generic[T]):
    """status: asked in a worker thread, at most every `every_s` seconds. seen_by: what of it viewers see who are held to these cameras;
    None: nobody may be (`serve` raises ValueError)."""

    def __init__(
        self,
        status: Callable[[], T],
        *,
        seen_by: Callable[[T, frozenset[str]], T] | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._status, self._seen_by, self._every_s = status, seen_by, every_s
        self._viewers: set[Viewer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._told: dict[frozenset[str] | None, _Told] = {}
        self._wholes: dict[frozenset[str] | None, str] = {}
        self._ending: set[asyncio.Future[Any]] = set()  # the loop itself holds tasks only weakly
        self.serialised = 0  # messages made, for tests and benchmarks

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def publish(self, kind: str, body: Mapping[str, Any], *, camera: str | None = None) -> None:
        """Sends `{"type": kind, ...body}` to everybody who looks on; from any thread. camera: it is about this one, and so for those who
        are held to it, too. Nothing happens when nobody does, and a viewer
        that is behind may miss it: whoever must know everything asks the events' own route."""
        loop = self._loop
        if loop is None or not self._viewers:
            return
        try:
            text = json.dumps({"type": kind, **body}, ensure_ascii=False, default=str)
            loop.call_soon_threadsafe(partial(self._tell, text, camera))
        except RuntimeError:  # the server has ended
            self._loop = None

    async def serve(
        self, socket: WebSocket, still: Callable[[], Awaitable[bool]] | None = None, *, cameras: frozenset[str] | None = None
    ) -> None:
        """Serves one viewer until it goes away, is too slow, or may not look any more (`still`). cameras: see `Viewer`."""
        if cameras is not None and self._seen_by is None:
            raise ValueError("this feed cannot tell what somebody who is held to cameras may see")
        await socket.accept()
        if len(self._viewers) >= MOST_VIEWERS:
            await socket.close(TRY_LATER, "too many look on")
            return
        viewer = self._join(cameras)
        ways = [
            asyncio.ensure_future(way)
            for way in (_sent(socket, viewer), _left(socket), viewer.too_slow.wait(), _signed_out(still))
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._viewers.discard(viewer)
            for way in ways:  # not waited for: whoever ends us may not wait
                self._ending.add(way)
                way.add_done_callback(self._ended)
                way.cancel()
        if ways[1] not in done and ways[0] not in done:
            code, why = (SIGNED_OUT, "sign in again") if ways[3] in done else (TRY_LATER, "this viewer is too slow")
            await _closed(socket, code, why)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _ended(self, way: asyncio.Future[Any]) -> None:
        """Its error was nobody's."""
        self._ending.discard(way)
        if not way.cancelled():
            way.exception()

    def _join(self, cameras: frozenset[str] | None = None) -> Viewer:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the server was started anew
            self._loop, self._task, self._told = loop, None, {}
            self._viewers.clear()
        viewer = Viewer(cameras)
        running = self._task is not None and not self._task.done()
        if running and cameras in self._told:
            viewer.offer(self._whole_text(cameras))
        self._viewers.add(viewer)
        if not running:
            self._told = {}
            self._task = loop.create_task(self._run())
        return viewer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._viewers:
            started_s = loop.time()
            try:
                known = {viewer.cameras: self._told.get(viewer.cameras, _Told()) for viewer in self._viewers}
                made = await to_thread.run_sync(self._made, known)
            except Exception as error:  # a viewer's page must not end because one look failed
                log.warning("live updates: the status cannot be told: %s", redact(f"{type(error).__name__}: {error}"))
            else:
                # Whoever has joined meanwhile was given what was known before.
                joined = {viewer.cameras for viewer in self._viewers}
                kept = {cameras: told for cameras, told in self._told.items() if cameras in joined}
                self._told, self._wholes = kept | {cameras: told for cameras, (told, _) in made.items()}, {}
                for viewer in list(self._viewers):
                    if viewer.cameras in made and made[viewer.cameras][1]:
                        viewer.offer(made[viewer.cameras][1])
            await asyncio.sleep(max(0.05, self._every_s - (loop.time() - started_s)))
        self._told = {}

    def _made(self, known: Mapping[frozenset[str] | None, _Told]) -> dict[frozenset[str] | None, tuple[_Told, str]]:
        """What viewers of the same cameras know now, and the message that tells it, '' when nothing changed. known: what they knew. In a
        worker thread: changes nothing here."""
        status = self._status()
        return {cameras: self._news(self._seen(status, cameras), told) for cameras, told in known.items()}

    def _seen(self, status: T, cameras: frozenset[str] | None) -> T:
        return status if cameras is None or self._seen_by is None else self._seen_by(status, cameras)

    def _news(self, view: T, told: _Told) -> tuple[_Told, str]:
        status, seq = view.model_dump(mode="json"), told.seq + 1
        if told.newest is None:
            return _Told(newest=status, seq=seq), self._dumped({"type": "status", "seq": seq, "status": status})
        changed = patch_between(told.newest, status)
        if not changed:
            return replace(told, newest=status), ""
        return _Told(newest=status, seq=seq), self._dumped({"type": "patch", "seq": seq, "patch": changed})

    def _whole_text(self, cameras: frozenset[str] | None) -> str:
        """For whoever joins: the newest status, made once for all who join before the next one."""
        if cameras not in self._wholes:
            told = self._told[cameras]
            self._wholes[cameras] = self._dumped({"type": "status", "seq": told.seq, "status": told.newest})
        return self._wholes[cameras]

    def _dumped(self, message: Mapping[str, Any]) -> str:
        self.serialised += 1
        return json.dumps(message, ensure_ascii=False, separators=(",", ":"))

    def _tell(self, text: str, camera: str | None) -> None:
        for viewer in list(self._viewers):
            if viewer.cameras is None or camera in viewer.cameras:
                viewer.offer(text, may_miss=True)


async def _sent(socket: WebSocket, viewer: Viewer) -> None:
    try:
        while True:
            text = await viewer.queue.get()
            async with asyncio.timeout(SEND_WITHIN_S):  # wait_for of Python 3.11 may swallow being cancelled
                await socket.send_text(text)
    except (WebSocketDisconnect, TimeoutError, RuntimeError, OSError):
        return


async def _left(socket: WebSocket) -> None:
    """Ends when the viewer goes away. What it says is heard and means nothing."""
    try:
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass
    except (WebSocketDisconnect, RuntimeError, OSError):
        return


async def _signed_out(still: Callable[[], Awaitable[bool]] | None) -> None:
    while still is None or await still():
        await asyncio.sleep(STILL_EVERY_S)


async def _closed(socket: WebSocket, code: int, why: str) -> None:
    await asyncio.sleep(0)  # what was being sent is given up first
    try:
        async with asyncio.timeout(1.0):
            await socket.close(code, why)
    except (WebSocketDisconnect, TimeoutError, RuntimeError, OSError):
        return
