"""Blocks one behind the other are a block; a block file is there whole or not at all."""

from __future__ import annotations

import gzip
import io
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import StorageError
from streams.block_file import (
    BlockIndex,
    concatenates,
    data_path,
    framed,
    index_path,
    names_in,
    read_block,
    read_index,
    records_of,
    remove_block_file,
    remove_unfinished,
    write_block_file,
)

RECORDS = st.lists(st.binary(max_size=200), max_size=6)


def encode(records) -> bytes:
    return b"".join(framed(r) for r in records)


def decode(block: bytes) -> list[bytes]:
    return list(records_of(block))


@given(RECORDS, RECORDS)
def test_two_blocks_one_behind_the_other_are_a_block(first: list[bytes], second: list[bytes]) -> None:
    assert decode(encode(first) + encode(second)) == first + second


def zipped(records) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as file:
        for number, record in enumerate(records):
            file.writestr(str(number), record)
    return held.getvalue()


def unzipped(block: bytes) -> list[bytes]:
    with zipfile.ZipFile(io.BytesIO(block)) as file:
        return [file.read(name) for name in file.namelist()]


def test_which_formats_survive_merging() -> None:
    assert concatenates(encode, decode)
    assert not concatenates(zipped, unzipped)  # one directory at the end: the first block's records are gone
    assert concatenates(lambda r: gzip.compress(encode(r)), lambda b: decode(gzip.decompress(b)))  # members follow each other


@given(RECORDS.filter(bool), st.integers(0, 10**6), st.integers(1, 255))
def test_a_changed_byte_is_found(records: list[bytes], at: int, flip: int) -> None:
    block = bytearray(encode(records))
    block[at % len(block)] ^= flip
    with suppress(ValueError):
        assert decode(bytes(block)) != records


@given(RECORDS.filter(bool), st.integers(1, 50))
def test_a_cut_block_is_refused_or_shorter(records: list[bytes], cut: int) -> None:
    block = encode(records)[: -min(cut, len(encode(records)))]
    with suppress(ValueError):
        assert decode(block) == records[: len(decode(block))] != records


@settings(max_examples=25, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=5))
def test_a_file_gives_back_its_blocks(tmp_path_factory: pytest.TempPathFactory, blocks: list[list[bytes]]) -> None:
    folder = tmp_path_factory.mktemp("blocks")
    written = write_block_file(folder, "m", blocks, covers=[(4, 1)])
    index = read_index(folder, "m")
    assert index == written == BlockIndex.decode(index.encode())
    assert (index.partitions, index.covers) == (len(blocks), ((4, 1),))
    assert [decode(read_block(folder, "m", index, p)) for p in range(len(blocks))] == blocks


def test_damage_has_a_name_and_a_code(tmp_path: Path) -> None:
    index = write_block_file(tmp_path, "m", [[b"one"], [b"two"]], covers=[(0, 0)])
    data = bytearray(data_path(tmp_path, "m").read_bytes())
    data[-1] ^= 1
    data_path(tmp_path, "m").write_bytes(data)
    assert decode(read_block(tmp_path, "m", index, 0)) == [b"one"]
    for break_it in (lambda: None, lambda: data_path(tmp_path, "m").write_bytes(data[:-1])):
        break_it()
        with pytest.raises(StorageError) as caught:
            read_block(tmp_path, "m", index, 1)
        assert (caught.value.code, caught.value.subject) == ("corrupt", "m")
    with pytest.raises(StorageError, match="its data has"):
        read_index(tmp_path, "m")
    index_path(tmp_path, "m").write_bytes(index.encode()[:-1] + b"x")
    with pytest.raises(StorageError, match="damaged"):
        read_index(tmp_path, "m")
    remove_block_file(tmp_path, "m")
    for gone in (lambda: read_index(tmp_path, "m"), lambda: read_block(tmp_path, "m", index, 0)):
        with pytest.raises(StorageError) as caught:
            gone()
        assert caught.value.code == "missing"


@pytest.mark.parametrize(
    ("offsets", "crcs", "covers"),
    [
        ((1, 2), (0,), ()),
        ((0, 5, 3), (0, 0), ()),
        ((0, 5), (0, 0), ()),
        ((0,), (), ((1, 0), (1, 1))),
        ((0,), (), ((2, 0), (1, 0))),
    ],
)
def test_an_index_that_cannot_be_is_refused(offsets, crcs, covers) -> None:
    with pytest.raises(ValueError, match="block"):
        BlockIndex(offsets=offsets, crcs=crcs, covers=covers)


@given(st.binary(max_size=300))
def test_foreign_bytes_are_no_index(data: bytes) -> None:
    with pytest.raises(ValueError, match="block file"):
        BlockIndex.decode(data)


def test_what_a_kill_leaves_is_not_there_and_goes(tmp_path: Path) -> None:
    index = write_block_file(tmp_path, "whole", [[b"x"]], covers=[(0, 0)])
    index_path(tmp_path, "half").write_bytes(index.encode())  # the index is durable first
    (tmp_path / ".tmp-1-half.data").write_bytes(b"...")
    assert names_in(tmp_path) == ["whole"]
    with pytest.raises(StorageError):
        read_index(tmp_path, "half")
    assert remove_unfinished(tmp_path) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["whole.data", "whole.index"]
