"""The allocator is told once, at the start, unless the operator has said something else or it is not glibc's."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from edge.allocator import ARENAS, LARGE_BYTES, THEIRS, few_arenas

#: From malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
#: Thirty threads that allocate at the same time; prints how many arenas there are.
COUNT_ARENAS = """
import ctypes, re, sys, threading, tempfile
from edge.allocator import few_arenas
sys.argv[1] == "few" and few_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
together = threading.Barrier(30)
def work():
    together.wait()
    libc.malloc(100_000)
    together.wait()
threads = [threading.Thread(target=work) for _ in range(30)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.fopen.restype, libc.fclose.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
libc.malloc_info.argtypes = (ctypes.c_int, ctypes.c_void_p)
with tempfile.NamedTemporaryFile() as file:
    stream = libc.fopen(file.name.encode(), b"w")
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(len(re.findall(rb"<heap nr", file.read())))
"""


class Told:
    def __init__(self, answer: int = 1) -> None:
        self.said: dict[int, int] = {}
        self._answer = answer

    def __call__(self, parameter: int, value: int) -> int:
        self.said[parameter] = value
        return self._answer


def test_it_is_told_of_arenas_and_large_pieces() -> None:
    told = Told()
    assert few_arenas(told, {})
    assert told.said == {M_ARENA_MAX: ARENAS, M_MMAP_THRESHOLD: LARGE_BYTES, M_TRIM_THRESHOLD: LARGE_BYTES}


@pytest.mark.parametrize("name", THEIRS)
def test_what_the_operator_says_goes_first(name: str) -> None:
    told = Told()
    assert not few_arenas(told, {name: "1"})
    assert told.said == {}


def test_an_allocator_that_refuses_is_no_reason_to_stop() -> None:
    assert not few_arenas(Told(answer=0), {})


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """musl has a `mallopt` as well, which does nothing."""

    class Musl:
        mallopt = Told()

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Musl())
    assert not few_arenas(environ={})
    assert Musl.mallopt.said == {}


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="not glibc")
def test_threads_share_the_arenas_for_real() -> None:
    def arenas(how: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", COUNT_ARENAS, how], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert arenas("few") <= ARENAS < arenas("as it is")
