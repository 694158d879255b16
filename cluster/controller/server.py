"""The controller's HTTPS server in a thread of its own: one port for boxes (mutual TLS) and people (an account).

A client is asked for a certificate of our authority and may have none (people). What it brings is checked by OpenSSL but for its time:
an expired one comes through, so that `cluster.controller.box_api` can answer in words; it opens nothing there.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import threading
from pathlib import Path
from typing import Any, Self

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from cluster.controller.box_api import PEER
from configs.errors import EnvironmentLacking

#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME; not among Python's names.
_NO_CHECK_TIME = 0x200000
MOST_CONNECTIONS = 2000
STOP_WITHIN_S = 5.0


def tls_context(cert_file: Path, key_file: Path, ca_pem: str) -> ssl.SSLContext:
    """Asks for a client's certificate. Raises EnvironmentLacking for files that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags = ssl.VerifyFlags(context.verify_flags | _NO_CHECK_TIME)
    context.load_verify_locations(cadata=ca_pem)
    try:
        context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise EnvironmentLacking(
            f"the certificate {cert_file} cannot be served: {getattr(error, 'reason', None) or error}", subject=str(cert_file),
            code="certificate", remedy="remove it, it is made anew at the next start",
        ) from None  # fmt: skip
    return context


class _PeerProtocol(H11Protocol):
    """Puts the client's certificate (DER) into the state of every request of its connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls: Any = transport.get_extra_info("ssl_object")
        der = tls.getpeercert(binary_form=True) if tls is not None else None
        if der:
            self.app_state = {**self.app_state, PEER: der}


class FleetServer:
    """Serves `app` until `stop`. `bind` raises EnvironmentLacking 'port_taken'; port 0: any free one."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = bind(host, port)
        self.port = int(self._socket.getsockname()[1])
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self, app: ASGIApp, tls: ssl.SSLContext) -> Self:
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2, server_header=False,
            limit_concurrency=MOST_CONNECTIONS, http=_PeerProtocol, ssl_context_factory=lambda *_: tls, ws_max_size=16 * 1024,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket.dup()]}, name="fleet-web", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Safe to call twice and without start."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(STOP_WITHIN_S)
        self._socket.close()


def bind(host: str, port: int) -> socket.socket:
    """Listening, so that a taken port is an error and not a log line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(512)
    except OSError as error:
        sock.close()
        taken = error.errno == errno.EADDRINUSE
        raise EnvironmentLacking(
            f"port {port} on {host} is taken by another program" if taken else f"cannot listen on {host}:{port}: {error.strerror}",
            subject=f"{host}:{port}", remedy="choose another port (--port) or address (--host)", code="port_taken" if taken else "",
        ) from None  # fmt: skip
    return sock
