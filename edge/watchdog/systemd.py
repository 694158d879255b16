"""What systemd is told (sd_notify): ready, stopping, a word on how it goes, and that we live. A few datagrams to a local socket; without
one (no systemd, `Type=simple`) nothing happens.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class ServiceManager:
    """environment: NOTIFY_SOCKET says where, WATCHDOG_USEC how often it wants to hear that we live. No method raises."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        microseconds = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        #: Seconds within which it must hear from us, None: it does not ask.
        self.within_s = int(microseconds) / 1e6 if ours and microseconds.isdecimal() and int(microseconds) > 0 else None

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send("STATUS=" + " ".join(text.split())[:400])

    def _send(self, text: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        # "@" stands for the zero byte of an abstract address.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(text.encode(), address)
        except OSError:  # a manager that does not listen must not stop the box
            return
