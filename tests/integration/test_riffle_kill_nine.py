"""A merging process killed (SIGKILL): originals are whole, a merged file is there whole or not at all, the next start completes them."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster.riffle.merge import merge_files
from cluster.riffle.merger import merged_name, original_name, sources_of
from streams.block_file import names_in, read_block, read_index, remove_unfinished, write_block_file

pytestmark = pytest.mark.slow

MAPS, PARTITIONS, ROUNDS = 4, 50, 4
WORK = """
import itertools, sys
from pathlib import Path
from cluster.riffle.admit import Buffers
from cluster.riffle.merge import merge_files
from cluster.riffle.merger import merged_name, sources_of
for n in itertools.count():
    merge_files(Path(sys.argv[1]), sources_of([(m, 0) for m in range({maps})]), merged_name(n), buffers=Buffers(read=2000, write=3000))
    print(n, flush=True)
"""


def test_killed_at_any_moment(tmp_path: Path) -> None:
    blocks = [[[f"{m}/{p}/{k}".encode() * 20 for k in range(3)] for p in range(PARTITIONS)] for m in range(MAPS)]
    for m in range(MAPS):
        write_block_file(tmp_path, original_name(m, 0), blocks[m], covers=[(m, 0)])
    indexes = [read_index(tmp_path, original_name(m, 0)) for m in range(MAPS)]
    wanted = [
        b"".join(read_block(tmp_path, original_name(m, 0), indexes[m], p) for m in range(MAPS)) for p in range(PARTITIONS)
    ]
    rng, work = random.Random(7), WORK.format(maps=MAPS)
    for _ in range(ROUNDS):
        worker = subprocess.Popen([sys.executable, "-c", work, str(tmp_path)], stdout=subprocess.PIPE)
        assert worker.stdout is not None
        done = rng.randrange(1, 30)  # it dies soon after so many, in the middle of the next
        for number in range(done):
            assert worker.stdout.readline() == b"%d\n" % number
        time.sleep(rng.uniform(0.0, 0.02))
        worker.kill()
        worker.communicate()
        merged = [name for name in names_in(tmp_path) if name.startswith("merge")]
        assert len(merged) >= done, "what it told of is there"
        for name in merged:
            index = read_index(tmp_path, name)
            assert index.covers == tuple((m, 0) for m in range(MAPS))
            assert [read_block(tmp_path, name, index, p) for p in range(PARTITIONS)] == wanted
        for m in range(MAPS):
            assert read_index(tmp_path, original_name(m, 0)) == indexes[m]
        remove_unfinished(tmp_path)
        assert len(list(tmp_path.iterdir())) == 2 * (MAPS + len(merged))
    merge_files(tmp_path, sources_of([(m, 0) for m in range(MAPS)]), merged_name(len(merged)))
