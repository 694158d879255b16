"""What a box holds, told from inside: `python tests/benchmarks/idle_inside.py OUT.jsonl EVERY_S -- run box.yaml` is `driftbox run`
with one more thread, which writes a line of counters every so often, and the stacks of all threads whenever memory has jumped.

For `bench_idle.py --explain` only; nothing of this is in the product."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

MIB = 2**20
#: Memory without pages of files is looked at this often; a rise above the highest so far by this much is a jump.
LOOK_S, JUMP_MIB = 0.2, 1.0
#: Every so many lines the objects are counted: that takes Python's lock for a moment.
COUNT_OBJECTS_EVERY = 30
LIBC = ctypes.CDLL(None)


class Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def allocator() -> dict[str, float]:
    """What glibc's malloc took from the system in arenas and in mappings of their own, and how much of the arenas is in use; MiB."""
    LIBC.mallinfo2.restype = Mallinfo2
    found = LIBC.mallinfo2()
    return {
        "arenas": found.arena / MIB, "used": found.uordblks / MIB, "free": found.fordblks / MIB, "mapped": found.hblkhd / MIB,
        "top": found.keepcost / MIB,
    }  # fmt: skip


def arenas() -> list[tuple[float, float]]:
    """(taken from the system, free of that) of each of glibc's arenas, MiB; from malloc_info's XML."""
    LIBC.open_memstream.restype = ctypes.c_void_p
    LIBC.malloc_info.argtypes, LIBC.fclose.argtypes = (ctypes.c_int, ctypes.c_void_p), (ctypes.c_void_p,)
    LIBC.free.argtypes = (ctypes.c_void_p,)
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = LIBC.open_memstream(ctypes.byref(text), ctypes.byref(size))
    LIBC.malloc_info(0, stream)
    LIBC.fclose(stream)
    rows = []
    for heap in ElementTree.fromstring(text.value or b"<malloc/>").iter("heap"):
        free = sum(int(total.get("size", 0)) for total in heap.iter("total"))
        system = next(int(row.get("size", 0)) for row in heap.iter("system") if row.get("type") == "current")
        rows.append((round(system / MIB, 2), round(free / MIB, 2)))
    LIBC.free(text)
    return rows


def sqlite_mib() -> float:
    """What all connections of SQLite hold: page caches, statements, schemas. Negative when the library cannot be asked."""
    import _sqlite3

    try:
        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_memory_used.restype = ctypes.c_int64
        return float(library.sqlite3_memory_used()) / MIB
    except (OSError, AttributeError):
        return -1.0


def anonymous_mib() -> float:
    rows = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("RssAnon")) / 1024


def counters(line: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "malloc": allocator(), "arenas": arenas(), "sqlite": sqlite_mib(), "python_blocks": sys.getallocatedblocks(),
        "threads": threading.active_count(),
    }  # fmt: skip
    if line % COUNT_OBJECTS_EVERY == 0:
        found["objects"] = dict(
            Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects()).most_common(60)
        )
        found["sizes"] = large()
    return found


def large() -> dict[str, float]:
    """MiB in arrays and bytes that the collector's objects refer to directly, by type of the holder and of the held."""
    import numpy as np

    seen: set[int] = set()
    held: Counter[str] = Counter()
    for holder in gc.get_objects():
        for part in gc.get_referents(holder):
            if isinstance(part, (np.ndarray, bytes, bytearray)) and id(part) not in seen:
                seen.add(id(part))
                held[f"{type(holder).__qualname__} of {type(part).__qualname__}"] += sys.getsizeof(part)
    return {name: round(size / MIB, 3) for name, size in held.most_common(20)}


def stacks() -> dict[str, list[str]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        names.get(ident, str(ident)): [
            f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in traceback.extract_stack(frame)[-6:]
        ]
        for ident, frame in sys._current_frames().items()
    }


def tell(out: Path, every_s: float) -> None:
    highest, due_s, line = 0.0, time.monotonic(), 0
    with out.open("a", encoding="utf-8", buffering=1) as file:
        while True:
            now = anonymous_mib()
            if now > highest + JUMP_MIB:
                row = {"t": time.time(), "jump": round(now - highest, 2), "to": now, "malloc": allocator(), "stacks": stacks()}
                file.write(json.dumps(row) + "\n")
            highest = max(highest, now)
            if time.monotonic() >= due_s:
                file.write(json.dumps({"t": time.time(), "anon": now, **counters(line)}) + "\n")
                due_s, line = due_s + every_s, line + 1
            time.sleep(LOOK_S)


def main() -> None:
    out, every_s, _, *arguments = sys.argv[1:]
    threading.Thread(target=tell, args=(Path(out), float(every_s)), daemon=True, name="tells").start()
    sys.argv = ["driftbox", *arguments]
    from edge.cli import main as driftbox

    driftbox()


if __name__ == "__main__":
    main()
