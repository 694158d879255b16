"""The names under which the box answers. A page of somebody else whose name is made to lead here (DNS rebinding) brings that name."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

#: Nobody can register a name under these, so no page of the internet can bear one (RFC 6762, 8375; ICANN keeps the others undelegated).
PRIVATE_SUFFIXES = (".local", ".lan", ".home", ".corp", ".internal", ".home.arpa", ".localdomain")


@dataclass(frozen=True, kw_only=True)
class HostNames:
    """names: beside those that cannot be rebound: loopback names, addresses, names without a dot, names of private networks."""

    names: frozenset[str]

    def answers(self, host: str) -> bool:
        """Whether a request with this `Host` header is for this box."""
        name = host_name(host).lower().removesuffix(".")
        private = bool(name) and ("." not in name or name.endswith(PRIVATE_SUFFIXES))
        return name in self.names or is_loopback(name) or is_address(name) or private


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def machine_names() -> tuple[str, ...]:
    """How this machine is called in its network: its host name, plain, with `.local` (mDNS) and as it calls itself in full."""
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    return tuple(dict.fromkeys(n for n in (name, short, f"{short}.local" if short else "") if n))


def host_names(configured: Iterable[str]) -> HostNames:
    return HostNames(names=frozenset((*machine_names(), *(name.lower().removesuffix(".") for name in configured))))


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's own."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def host_name(host: str) -> str:
    """The name or address of a `Host` header, without its port; '' for nonsense."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
