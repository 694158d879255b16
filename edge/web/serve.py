"""The HTTP server in a thread of its own; the port is bound in `start`, so a taken one is an error and not a log line."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import time
from types import TracebackType
from typing import Self

import uvicorn

from configs.errors import EnvironmentLacking
from edge.api import make_app
from edge.status import StatusSource
from edge.web.services import Services
from streams.pulse import Pulse

STOP_WITHIN_S = 5.0
#: Open connections; more are answered 503.
MOST_CONNECTIONS = 500
#: Longest message that a viewer may send.
MOST_WS_BYTES = 16 * 1024


def bind(host: str, port: int) -> socket.socket:
    """A listening-to-be socket. port 0: any free one. Raises EnvironmentLacking naming the port and the remedy."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        infos = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise EnvironmentLacking(
            f"the address {host} for the status page is unknown",
            subject=host,
            remedy="set web.host to an address of this machine",
        ) from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    # Restarts must not wait for old connections; a port on which somebody listens is refused all the same.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(infos[0][4])
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise _lacking(host, port, error) from None
    return sock


def _lacking(host: str, port: int, error: OSError) -> EnvironmentLacking:
    if error.errno == errno.EADDRINUSE:
        return EnvironmentLacking(
            f"port {port} on {host} is taken by another program",
            subject=f"{host}:{port}",
            remedy="stop that program, or choose another port (web.port, or --port)",
            code="port_taken",
        )
    if error.errno == errno.EACCES:
        return EnvironmentLacking(
            f"port {port} on {host} may not be used by this user", subject=f"{host}:{port}", remedy="choose a port above 1023"
        )
    return EnvironmentLacking(
        f"cannot listen on {host}:{port}: {error.strerror}",
        subject=f"{host}:{port}",
        remedy="set web.host to an address of this machine, e.g. 127.0.0.1",
    )


class _Server(uvicorn.Server):
    """Says with every round of its loop that it lives."""

    def __init__(self, config: uvicorn.Config, pulse: Pulse) -> None:
        super().__init__(config)
        self._pulse = pulse

    async def on_tick(self, counter: int) -> bool:
        self._pulse.beat()
        return await super().on_tick(counter)


class WebServer:
    """Serves `source` until `stop`. `start` raises EnvironmentLacking when the port is taken; later requests are answered."""

    def __init__(
        self, source: StatusSource, *, host: str, port: int, services: Services | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        """tls: None: plain HTTP."""
        self._host, self._port, self._scheme = host, port, "http" if tls is None else "https"
        self._config = uvicorn.Config(
            make_app(source, services), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2,
            server_header=False, limit_concurrency=MOST_CONNECTIONS, ws_max_size=MOST_WS_BYTES,
            # Compressing for each viewer would cost more than the network here.
            ws_per_message_deflate=False, ssl_context_factory=None if tls is None else lambda *_: tls,
        )  # fmt: skip
        self._pulse = Pulse(time.monotonic)
        self._server = _Server(self._config, self._pulse)
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Address for a browser on this machine."""
        port = self._socket.getsockname()[1] if self._socket else self._port
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._host, self._host)
        return f"{self._scheme}://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{port}/"

    def start(self) -> None:
        self._socket = bind(self._host, self._port)
        self._serve(self._socket)

    def _serve(self, sock: socket.socket) -> None:
        # A server closes what it was given when it ends; another one may have to listen on the same port.
        sockets = {"sockets": [sock.dup()]}
        self._thread = threading.Thread(target=self._server.run, kwargs=sockets, name="web", daemon=True)
        self._pulse.beat()
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether its thread does what it should: it runs, or was told to end, or has not begun."""
        return self._thread is None or self._server.should_exit or self._thread.is_alive()

    def silent_s(self) -> float:
        """See `streams.pulse`."""
        return 0.0 if self._thread is None or self._server.should_exit else self._pulse.silent_s()

    def begin_anew(self) -> None:
        """Another server on the same port, in a thread of its own; for one that has died, or does not come round."""
        if self._socket is None:
            return
        self._server.force_exit = self._server.should_exit = True
        self._server = _Server(self._config, self._pulse)
        self._serve(self._socket)

    def stop(self) -> None:
        """Ends the server; open requests get two seconds. Safe to call twice and without start."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(STOP_WITHIN_S)
            self._thread = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.stop()
