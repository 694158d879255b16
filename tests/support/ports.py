"""Ports for programs that are told one before they listen on it: a test that picks a port and lets it go may find it taken.

Connections that go out get theirs from the system's own range (32768 and up on Linux), so ours come from below it, where nobody takes
any by chance; each test process has a stretch of its own, and gives none twice before it has given all of them.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading

FIRST, LAST = 20_000, 31_999
#: Of a worker of pytest-xdist; a process without one begins somewhere in the whole range.
STRETCH = 1_000

_lock = threading.Lock()


def _stretch(environ: dict[str, str], pid: int) -> itertools.cycle[int]:
    """The ports of a process, again and again, from one that others of its kind hardly begin with."""
    worker = environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    first, size = (
        (FIRST + int(worker) * STRETCH % (LAST + 1 - FIRST), STRETCH) if worker.isdigit() else (FIRST, LAST + 1 - FIRST)
    )
    begin = pid * 37 % size
    return itertools.cycle([first + (begin + step) % size for step in range(size)])


_ports = _stretch(dict(os.environ), os.getpid())


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with _lock:
        for port in itertools.islice(_ports, LAST + 1 - FIRST):
            try:
                with socket.create_server(("127.0.0.1", port)):
                    return port
            except OSError:
                continue
    raise AssertionError("all ports are taken")
