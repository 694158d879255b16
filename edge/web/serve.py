"""The HTTP server in a thread of its own; the port is bound in `start`, so a taken one is an error and not a log line."""

from __future__ import annotations

import errno
import socket
import threading
from types import TracebackType
from typing import Self

import uvicorn

from configs.errors import EnvironmentLacking
from edge.api import make_app
from edge.labels import LabelStore
from edge.status import StatusSource

STOP_WITHIN_S = 5.0


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


class WebServer:
    """Serves `source` until `stop`. `start` raises EnvironmentLacking when the port is taken; later requests are answered."""

    def __init__(self, source: StatusSource, *, host: str, port: int, labels: LabelStore | None = None) -> None:
        self._host, self._port = host, port
        config = uvicorn.Config(
            make_app(source, labels), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2
        )
        self._server = uvicorn.Server(config)
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Address for a browser on this machine."""
        port = self._socket.getsockname()[1] if self._socket else self._port
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._host, self._host)
        return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{port}/"

    def start(self) -> None:
        self._socket = bind(self._host, self._port)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, name="web", daemon=True)
        self._thread.start()

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
