"""Where tests have their ports from: none that somebody listens on, none twice, none of another worker's."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

import pytest

from tests.support import ports
from tests.support.ports import FIRST, LAST, STRETCH, _stretch, free_port


def test_ports_are_free_and_given_once() -> None:
    given = [free_port() for _ in range(50)]
    assert len(set(given)) == 50
    assert all(FIRST <= port <= LAST for port in given)


def test_one_that_somebody_listens_on_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = free_port()
        monkeypatch.setattr(ports, "_ports", itertools.cycle([taken.getsockname()[1], free]))
        assert free_port() == free


def test_workers_have_ports_of_their_own() -> None:
    stretches = [set(itertools.islice(_stretch({"PYTEST_XDIST_WORKER": f"gw{number}"}, 4711), STRETCH)) for number in range(8)]
    assert sum(len(stretch) for stretch in stretches) == len(set().union(*stretches)) == 8 * STRETCH


def test_none_is_one_that_the_system_gives_to_connections_that_go_out() -> None:
    about = Path("/proc/sys/net/ipv4/ip_local_port_range")
    assert not about.exists() or int(about.read_text().split()[0]) > LAST
