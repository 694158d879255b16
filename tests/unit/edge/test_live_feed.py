"""Live updates: the first message, what changed, who may look, and viewers that are slow, gone, or too many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from edge.api import make_app
from edge.status import BoxStatus
from edge.web import live
from edge.web.fake import FakeSource
from edge.web.live import LiveFeed, Viewer
from edge.web.services import Services
from edge.web.who import Role
from tests.support.accounts import House, bearer
from tests.unit.edge.test_json_patch import carried_out

#: The test client asks under another name where none is given.
URL, HOME = "ws://box.local/api/v1/live", "http://box.local"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    built = House(tmp_path)
    yield built
    built.close()


def quick(source: FakeSource | None = None) -> LiveFeed:
    return LiveFeed((source or FakeSource()).status, every_s=0.01)


class Steady(FakeSource):
    """Nothing changes."""

    def status(self) -> BoxStatus:
        self.ticks = 6
        return super().status()


# --- what is told -----------------------------------------------------------------------------------------------------


def test_first_the_whole_then_what_changed() -> None:
    source = FakeSource()
    client = TestClient(make_app(source, Services(live=quick(source))), base_url=HOME)
    with client.websocket_connect(URL) as socket:
        first = socket.receive_json()
        assert first["type"] == "status"
        document, seq = first["status"], first["seq"]
        BoxStatus.model_validate(document)
        for _ in range(5):
            message = socket.receive_json()
            assert (message["type"], message["seq"]) == ("patch", seq + 1)
            document, seq = carried_out(document, message["patch"]), seq + 1
        shown = BoxStatus.model_validate(document)
    assert shown.now_utc == pytest.approx(first["status"]["now_utc"] + 5)
    assert shown.cameras[0].frames_analysed == first["status"]["cameras"][0]["frames_analysed"] + 5


def test_a_second_viewer_gets_the_whole_and_then_the_same_patches() -> None:
    client = TestClient(make_app(FakeSource(), Services(live=quick())), base_url=HOME)
    with client, client.websocket_connect(URL) as one:
        one.receive_json()
        with client.websocket_connect(URL) as two:
            first = two.receive_json()
            assert first["type"] == "status"
            after = two.receive_json()
            assert after["seq"] == first["seq"] + 1
            message = one.receive_json()
            while message["seq"] < after["seq"]:
                message = one.receive_json()
            assert message == after


def run(feed: LiveFeed, work: Callable[[], Any]) -> None:
    asyncio.run(work())


def test_many_viewers_cost_one_serialisation_a_tick() -> None:
    source = FakeSource()
    feed = LiveFeed(source.status, every_s=0.0)

    async def work() -> None:
        viewers = [feed._join() for _ in range(50)]
        texts = [[await viewer.queue.get() for _ in range(4)] for viewer in viewers]
        made = feed.serialised
        assert all(text == texts[0] for text in texts)
        assert made <= source.ticks < 4 + live.MOST_WAITING + 2
        for viewer in viewers:
            feed._viewers.discard(viewer)
        assert feed._task is not None
        await feed._task

    run(feed, work)


def test_nobody_looks_nothing_is_done() -> None:
    source = FakeSource()
    feed = LiveFeed(source.status, every_s=0.0)

    async def work() -> None:
        viewer = feed._join()
        await viewer.queue.get()
        feed._viewers.discard(viewer)
        assert feed._task is not None
        await feed._task
        seen = source.ticks
        await asyncio.sleep(0)
        assert source.ticks == seen
        again = feed._join()
        assert '"type":"status"' in await again.queue.get(), "who comes later begins with the whole"
        feed._viewers.discard(again)
        await feed._task

    run(feed, work)


def test_nothing_is_told_while_nothing_changes() -> None:
    feed = LiveFeed(Steady().status, every_s=0.0)

    async def work() -> None:
        viewer = feed._join()
        await viewer.queue.get()
        while feed.serialised < 1:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert viewer.queue.empty()
        feed._viewers.discard(viewer)
        assert feed._task is not None
        await feed._task

    run(feed, work)


def test_a_status_that_fails_ends_nobodys_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shaky(FakeSource):
        def status(self) -> BoxStatus:
            found = super().status()
            if self.ticks == 2:
                raise RuntimeError("rtsp://user:zzCANARYzz@camera")
            return found

    told: list[str] = []
    monkeypatch.setattr(live.log, "warning", lambda text, *parts: told.append(text % parts))
    feed = LiveFeed(Shaky().status, every_s=0.0)

    async def work() -> None:
        viewer = feed._join()
        assert '"type":"status"' in await viewer.queue.get()
        assert '"type":"patch"' in await viewer.queue.get()
        feed._viewers.discard(viewer)

    run(feed, work)
    assert len(told) == 1
    assert "CANARY" not in told[0]


def test_what_the_box_publishes_reaches_everybody_who_looks() -> None:
    feed = LiveFeed(Steady().status, every_s=0.01)
    client = TestClient(make_app(Steady(), Services(live=feed)), base_url=HOME)
    feed.publish("event", {"camera": "nobody looks"})
    with client, client.websocket_connect(URL) as one, client.websocket_connect(URL) as two:
        assert {one.receive_json()["type"], two.receive_json()["type"]} == {"status"}
        feed.publish("event", {"camera": "gate", "text": "é"})
        assert one.receive_json() == two.receive_json() == {"type": "event", "camera": "gate", "text": "é"}


# --- who looks --------------------------------------------------------------------------------------------------------


def refused(client: TestClient, **how: Any) -> bool:
    try:
        with client.websocket_connect(URL, **how):
            return False
    except WebSocketDisconnect:
        return True


def test_only_who_is_known_looks(house: House) -> None:
    assert refused(house.client())
    assert not refused(house.signed_in(Role.VIEWER))
    assert not refused(house.client(), headers=bearer(house.token()))
    assert refused(house.client(), headers=bearer("driftbox_" + "0" * 12 + "_" + "x" * 43))
    assert not refused(house.client(), headers=bearer(house.token(areas=("live",), name="a")))
    assert refused(house.client(), headers=bearer(house.token(areas=("status",), name="b")))


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}])
def test_another_sites_page_does_not_look(house: House, headers: dict[str, str]) -> None:
    assert refused(house.signed_in(), headers=headers)
    assert not refused(house.signed_in(), headers={"Origin": HOME})


def test_without_accounts_another_sites_page_does_not_look_either() -> None:
    client = TestClient(make_app(FakeSource()), base_url=HOME)
    assert refused(client, headers={"Origin": "http://evil.example"})
    assert not refused(client, headers={"Origin": HOME})


def test_who_is_signed_out_looks_no_longer(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STILL_EVERY_S", 0.01)
    page = house.signed_in(services=Services(live=quick()))
    with page, page.websocket_connect(URL) as socket:
        socket.receive_json()
        house.accounts.set_password("admin", "another long password", by="test", address="")
        with pytest.raises(WebSocketDisconnect) as caught:
            while True:
                socket.receive_json()
    assert caught.value.code == live.SIGNED_OUT


def test_too_many_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_VIEWERS", 1)
    client = TestClient(make_app(FakeSource(), Services(live=quick())), base_url=HOME)
    with client, client.websocket_connect(URL) as one:
        one.receive_json()
        with client.websocket_connect(URL) as two, pytest.raises(WebSocketDisconnect) as caught:
            two.receive_json()
        assert caught.value.code == live.TRY_LATER
        one.receive_json()


# --- viewers that are slow or gone ------------------------------------------------------------------------------------


class Socket:
    """The server's end of a connection. takes: messages it lets through, then it hangs; comes: what the viewer sends."""

    def __init__(self, takes: int, comes: list[str] | None = None) -> None:
        self.takes, self.sent, self.closed = takes, [], None
        self.comes = list(comes or [])

    sent: list[str]
    closed: int | None

    async def accept(self) -> None: ...

    async def send_text(self, text: str) -> None:
        if len(self.sent) >= self.takes:
            await asyncio.Event().wait()
        self.sent.append(text)

    async def receive(self) -> dict[str, Any]:
        if not self.comes:
            await asyncio.Event().wait()
        return {"type": self.comes.pop(0)}

    async def close(self, code: int, why: str) -> None:
        self.closed = code


def test_a_slow_viewer_is_let_go_and_holds_up_nobody() -> None:
    feed = LiveFeed(FakeSource().status, every_s=0.0)
    slow, fine = Socket(takes=2), Socket(takes=10**6)

    async def work() -> None:
        good = asyncio.ensure_future(feed.serve(fine))  # type: ignore[arg-type]
        await feed.serve(slow)  # type: ignore[arg-type]
        assert slow.closed == live.TRY_LATER
        seen = len(fine.sent)
        while len(fine.sent) < seen + 5:
            await asyncio.sleep(0.001)
        assert feed.viewers == 1
        good.cancel()
        await asyncio.gather(good, return_exceptions=True)
        assert feed.viewers == 0

    run(feed, work)


def test_a_viewer_that_vanishes_leaves_nothing_behind() -> None:
    feed = LiveFeed(FakeSource().status, every_s=0.0)

    async def work() -> None:
        for _ in range(20):
            gone = Socket(takes=10**6, comes=["websocket.receive", "websocket.disconnect"])
            await feed.serve(gone)  # type: ignore[arg-type]
            assert gone.closed is None, "nobody is there to be told"
        assert feed.viewers == 0
        assert feed._task is not None
        await feed._task
        assert asyncio.all_tasks() == {asyncio.current_task()}, "no task is left over"

    run(feed, work)


def test_a_queue_is_bounded() -> None:
    async def work() -> None:
        viewer = Viewer()
        for n in range(1000):
            viewer.offer(str(n))
        assert viewer.queue.qsize() == live.MOST_WAITING
        assert viewer.too_slow.is_set()
        behind = Viewer()
        for n in range(1000):
            behind.offer(str(n), may_miss=True)
        assert not behind.too_slow.is_set(), "a burst of events lets nobody go"
        behind.offer("status")
        assert behind.queue.qsize() == live.MOST_WAITING // 2 + 1

    asyncio.run(work())


def test_a_server_that_was_started_anew_begins_anew() -> None:
    feed = quick()
    for _ in range(2):
        client = TestClient(make_app(FakeSource(), Services(live=feed)), base_url=HOME)
        with client, client.websocket_connect(URL) as socket:
            assert socket.receive_json()["type"] == "status"
            assert socket.receive_json()["type"] == "patch"
    feed.publish("event", {})


def test_a_feed_that_cannot_narrow_serves_nobody_who_is_held_to_cameras() -> None:
    feed = LiveFeed(Steady().status, every_s=0.0)
    with pytest.raises(ValueError, match="held to cameras"):
        asyncio.run(feed.serve(None, cameras=frozenset({"gate"})))  # type: ignore[arg-type]
    assert feed.viewers == 0
