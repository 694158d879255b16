"""Which cameras answer when they are called (WS-Discovery): one question on every network of this machine, or to one address.

Read leniently, because cameras are sloppy: of an answer counts what it announces, wherever in the message it stands and whatever the
message calls itself. Whoever answers is a stranger: no entity is expanded, nothing is loaded, and numbers and sizes have bounds.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from urllib.parse import unquote, urlsplit

#: Most answers that are read, and cameras that are told.
MOST_ANSWERS, MOST_CAMERAS = 2000, 200
MOST_DATAGRAM = 65536
GROUP_V4, GROUP_V6, PORT = "239.255.255.250", "ff02::c", 3702
#: A datagram may be lost: all are asked this often, within the first half of the time.
TIMES = 2
_NAMESPACE, _KIND = "http://www.onvif.org/ver10/network/wsdl", "NetworkVideoTransmitter"
_SCOPES = {"name": "name", "hardware": "hardware", "location": "location"}


def search(seconds: float, to: Sequence[object] | None = None) -> list[dict[str, str]]:
    """Cameras that answer within `seconds`: `address` and, as far as they say, `name`, `hardware`, `location`. to: (host, port) of one,
    which ends the search when it has answered. Raises OSError when nothing can be sent."""
    with ExitStack() as stack:
        calls = [_call_to(stack, str(to[0]), to[1])] if to else list(_calls_to_all(stack))
        if not calls:
            raise OSError("this machine has no network that cameras could be on")
        found: dict[str, dict[str, str]] = {}
        for data in _answers(calls, seconds):
            for camera in announced(data):
                found.setdefault(camera["address"], camera)
            if len(found) >= MOST_CAMERAS or (to and found):
                break
        return list(found.values())


def announced(data: bytes) -> list[dict[str, str]]:
    """The cameras that a message announces; none in nonsense."""
    from lxml import etree

    reader = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        tree = etree.fromstring(data, reader)
    except (etree.XMLSyntaxError, ValueError):
        return []
    matches = [_camera(match) for match in tree.iterfind(".//{*}ProbeMatch")]
    return [match for match in matches if match is not None]


def _camera(match: object) -> dict[str, str] | None:
    kinds, places = _words(match, "Types"), [w for w in _words(match, "XAddrs") if w.startswith(("http://", "https://"))]
    if not places or (kinds and not any(kind.rpartition(":")[2] == _KIND for kind in kinds)):
        return None
    found = {"address": places[0]}
    for scope in _words(match, "Scopes"):
        with suppress(ValueError):
            parts = urlsplit(scope)
            kind, _, value = parts.path.lstrip("/").partition("/")
            if parts.scheme == "onvif" and kind in _SCOPES and value:
                found.setdefault(_SCOPES[kind], unquote(value))
    return found


def _words(match: object, name: str) -> list[str]:
    return (match.findtext(f"{{*}}{name}") or "").split()  # type: ignore[attr-defined]


# --- the network ------------------------------------------------------------------------------------------------------

Call = tuple[socket.socket, tuple[object, ...] | None]  # whom to ask; None: it is connected


def _call_to(stack: ExitStack, host: str, port: object) -> Call:
    family, kind, proto, _, place = socket.getaddrinfo(host, str(port), type=socket.SOCK_DGRAM)[0]
    sock = stack.enter_context(socket.socket(family, kind, proto))
    sock.connect(place)  # answers of others are not taken
    return sock, None


def _calls_to_all(stack: ExitStack) -> Iterator[Call]:
    """A socket for every address of this machine: a question goes out on that network, and the answers come to who asked."""
    import psutil

    for interface, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            with suppress(OSError):  # a network that is down, or carries no such question
                if address.family == socket.AF_INET:
                    sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                    sock.bind((address.address, 0))
                    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address.address))
                    yield sock, (GROUP_V4, PORT)
                elif address.family == socket.AF_INET6 and address.address.lower().startswith("fe80"):
                    number = socket.if_nametoindex(interface)
                    sock = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
                    sock.bind((address.address.partition("%")[0], 0, 0, number))
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, number)
                    yield sock, (GROUP_V6, PORT, 0, number)


def _answers(calls: list[Call], seconds: float) -> Iterator[bytes]:
    """Datagrams that come until the time is over. Raises OSError when nobody could be asked."""
    question, until_s, asked = _question(), time.monotonic() + seconds, 0
    with selectors.DefaultSelector() as ready:
        for sock, _ in calls:
            sock.setblocking(False)
            ready.register(sock, selectors.EVENT_READ)
        left = MOST_ANSWERS
        while left and (left_s := until_s - time.monotonic()) > 0:
            if asked < TIMES and left_s <= seconds * (1 - asked / (2 * TIMES)):
                asked += 1
                _ask(calls, question)
            for key, _ in ready.select(min(left_s, seconds / (2 * TIMES))):
                left -= 1
                with suppress(OSError):  # nobody listens at that address
                    yield key.fileobj.recv(MOST_DATAGRAM)  # type: ignore[union-attr]


def _ask(calls: list[Call], question: bytes) -> None:
    failed: list[OSError] = []
    for sock, place in calls:
        try:
            sock.send(question) if place is None else sock.sendto(question, place)
        except OSError as error:
            failed.append(error)
    if len(failed) == len(calls) and any(place for _, place in calls):
        raise failed[0]


def _question() -> bytes:
    from wsdiscovery import QName
    from wsdiscovery.actions.probe import constructProbe
    from wsdiscovery.message import createSOAPMessage

    text: str = createSOAPMessage(constructProbe([QName(_NAMESPACE, _KIND)], []))
    return text.encode()
