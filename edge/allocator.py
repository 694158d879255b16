"""How this process keeps memory: few arenas, and large pieces for themselves, so that a box does not grow by holes.

glibc gives threads arenas of their own, up to eight for each core, and raises the size from which a piece gets a mapping of its own up
to 32 MiB as such pieces are freed. A box has some thirty threads that all work on pictures of a megabyte: each arena keeps the holes of
the largest frame that ever went through it, and the process grows in steps of a few MiB for hours without holding anything more
(measured: docs/operations.md). Told at the start, before there are threads, it costs nothing measurable.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping

#: Arenas that threads share. One would make them wait for each other; two were never waited for.
ARENAS = 2
#: Pieces from this size on are mappings of their own, given back at once when they are freed; as much may lie free at an arena's end.
#: A mapping's pages are zeroed each time: 128 KiB, glibc's first value, doubles the CPU time of a frame in torch, since every layer's
#: output is one; 4 MiB is above those.
LARGE_BYTES = 4 << 20
#: glibc's names of the parameters (malloc.h).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
#: Who has set one of these knows better.
THEIRS = ("GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")

#: glibc's `mallopt`: (parameter, value) -> 1 when it took it.
Mallopt = Callable[[int, int], int]


def few_arenas(mallopt: Mallopt | None = None, environ: Mapping[str, str] = os.environ) -> bool:
    """Tells the allocator; False where it is another than glibc's, or the operator has set it."""
    tell = mallopt or _glibc()
    if tell is None or any(environ.get(name) for name in THEIRS):
        return False
    wanted = ((_ARENA_MAX, ARENAS), (_MMAP_THRESHOLD, LARGE_BYTES), (_TRIM_THRESHOLD, LARGE_BYTES))
    return all(tell(parameter, value) == 1 for parameter, value in wanted)


def _glibc() -> Mallopt | None:
    try:
        library = ctypes.CDLL(None)
        mallopt: Mallopt = library.mallopt
        library.gnu_get_libc_version  # noqa: B018 - musl has a mallopt that does nothing
    except (OSError, AttributeError):
        return None
    return mallopt
