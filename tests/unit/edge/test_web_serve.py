"""The server thread: bound before it is announced, a taken port is named, stop frees it. Loopback only."""

from __future__ import annotations

import socket
import threading

import httpx
import pytest

from configs.errors import EnvironmentLacking
from edge.web.fake import FakeSource
from edge.web.serve import WebServer, bind


def test_a_started_server_answers_and_stop_frees_the_port() -> None:
    server = WebServer(FakeSource(), host="127.0.0.1", port=0)
    server.start()
    url = server.url
    assert httpx.get(url + "healthz", timeout=120).json()["ok"] is True
    server.stop()
    server.stop()
    port = int(url.rstrip("/").rpartition(":")[2])
    bind("127.0.0.1", port).close()
    assert not [thread for thread in threading.enumerate() if thread.name == "web"]


def test_a_taken_port_is_named_with_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(EnvironmentLacking, match=f"port {port} on 127.0.0.1 is taken") as caught:
            WebServer(FakeSource(), host="127.0.0.1", port=port).start()
    assert "web.port" in caught.value.remedy
    assert caught.value.exit_code == 3
    assert caught.value.code == "port_taken"


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(EnvironmentLacking, match=r"192\.0\.2\.1"):
        bind("192.0.2.1", 0)


def test_stop_without_start_is_fine() -> None:
    WebServer(FakeSource(), host="127.0.0.1", port=0).stop()


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://127.0.0.1:80/"), ("::1", "http://[::1]:80/"), ("::", "http://[::1]:80/")]
)
def test_the_address_for_a_browser(host: str, url: str) -> None:
    assert WebServer(FakeSource(), host=host, port=80).url == url
