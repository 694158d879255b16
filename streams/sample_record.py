"""A labelled sample as one record of a block file (`streams.block_file`): which it is, its labels, its picture as JPEG."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from configs.errors import StorageError
from scheduler.fleet.types import CameraKey
from streams.block_file import (
    MAX_INDEX_BYTES,
    BlockIndex,
    MapAttempt,
    data_path,
    index_path,
    read_block,
    read_index,
    records_of,
    write_block_file,
)
from streams.label_file import SPLITS, SampleLabels, decode, encode

SCHEMA = 1
_LENGTH = struct.Struct("<I")
_MAX_HEAD_BYTES = 4 * 2**20
#: A picture of more pixels than this is none of a camera.
MAX_PIXELS = 100_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleRecord:
    """camera: whose; window, seq: as in `streams.samples`; labels: in force; jpeg: the picture as it lay on the box."""

    camera: CameraKey
    window: int
    seq: int
    labels: SampleLabels
    jpeg: bytes

    @property
    def name(self) -> str:
        return f"{self.camera}/{self.window:06d}/{self.seq:09d}"

    def image(self) -> np.ndarray:
        """uint8 (H, W, 3) RGB. ValueError: not a picture."""
        image = cv2.imdecode(np.frombuffer(self.jpeg, np.uint8), cv2.IMREAD_COLOR_RGB) if self.jpeg else None
        if image is None or image.shape[0] * image.shape[1] > MAX_PIXELS:
            raise ValueError(f"sample {self.name} is not a picture")
        return image


def partition_of(name: str, partitions: int) -> int:
    """The reduce key: the training partition of a sample, the same on every box; every partition gets of every camera alike."""
    return zlib.crc32(name.encode()) % partitions


def encoded(record: SampleRecord) -> bytes:
    head = json.dumps(
        {"schema": SCHEMA, "camera": str(record.camera), "window": record.window, "seq": record.seq,
         "labels": json.loads(encode(record.labels))},
        separators=(",", ":"),
    ).encode()  # fmt: skip
    return _LENGTH.pack(len(head)) + head + record.jpeg


def decoded(data: bytes) -> SampleRecord:
    """ValueError for anything but a whole record; the picture is looked at by `SampleRecord.image`."""
    if len(data) < _LENGTH.size:
        raise ValueError("too short for a sample")
    length = _LENGTH.unpack_from(data)[0]
    end = _LENGTH.size + length
    if length > _MAX_HEAD_BYTES or end > len(data):
        raise ValueError("a sample's head is longer than the sample")
    try:
        head = json.loads(data[_LENGTH.size : end])
        if head["schema"] != SCHEMA:
            raise ValueError(f"a sample of schema {head['schema']}, known is {SCHEMA}")
        window, seq = int(head["window"]), int(head["seq"])
        if window < 0 or seq < 0:
            raise ValueError("numbers that are none")
        return SampleRecord(
            camera=CameraKey.parse(head["camera"]), window=window, seq=seq, jpeg=data[end:],
            labels=decode(json.dumps(head["labels"]).encode()),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"not a sample: {error}") from error


# --- a map output on its way ------------------------------------------------------------------------------------------------


def write_partitioned(
    folder: Path, name: str, records: Iterable[SampleRecord], *, partitions: int, covers: Sequence[MapAttempt]
) -> BlockIndex:
    """A map output: the records by their training partition. Raises StorageError."""
    blocks: list[list[bytes]] = [[] for _ in range(partitions)]
    for record in records:
        blocks[partition_of(record.name, partitions)].append(encoded(record))
    return write_block_file(folder, name, blocks, covers=covers)


def carried(folder: Path, name: str) -> bytes:
    """A block file as one piece of bytes. Raises StorageError."""
    read_index(folder, name)  # whole, or it does not travel
    index = index_path(folder, name).read_bytes()
    return _LENGTH.pack(len(index)) + index + data_path(folder, name).read_bytes()


def taken_in(
    data: bytes, folder: Path, name: str, *, partitions: int, covers: Sequence[MapAttempt], home: str
) -> tuple[BlockIndex, list[str]]:
    """Writes what `carried` made as a map output of ours, and the names of its samples; nothing that the sender says is believed: every
    record is decoded, must be a training sample of a camera of box `home`, and lie in its partition. Raises StorageError, 'corrupt'
    where that is not so (nothing is written)."""
    blocks, samples = _checked_blocks(data, name, partitions, home, splits=("train",))
    return write_block_file(folder, name, blocks, covers=covers), [sample.name for sample in samples]


def unpacked_samples(data: bytes, name: str, *, home: str) -> list[SampleRecord]:
    """The samples in what `carried` made of a file with one partition, of either split, checked as by `taken_in`. Raises as that."""
    return _checked_blocks(data, name, 1, home, splits=SPLITS)[1]


def _checked_blocks(
    data: bytes, name: str, partitions: int, home: str, *, splits: Sequence[str]
) -> tuple[list[list[bytes]], list[SampleRecord]]:
    try:
        length = _LENGTH.unpack_from(data)[0]
        if length > MAX_INDEX_BYTES:
            raise ValueError("its index is too long")
        begin = _LENGTH.size + length
        index = BlockIndex.decode(data[_LENGTH.size : begin])
        if index.partitions != partitions or index.size_bytes != len(data) - begin:
            raise ValueError(
                f"it has {index.partitions} blocks of {index.size_bytes} bytes, not {partitions} of {len(data) - begin}"
            )
        blocks = [list(records_of(data[begin + a : begin + b])) for a, b in zip(index.offsets, index.offsets[1:], strict=False)]
        samples = [_checked(record, p, partitions, home, splits) for p, block in enumerate(blocks) for record in block]
    except (ValueError, struct.error) as error:
        raise StorageError(
            f"the samples {name} cannot be used: {error}", subject=name, code="corrupt", remedy="its box is asked again"
        ) from None
    return blocks, samples


def _checked(record: bytes, partition: int, partitions: int, home: str, splits: Sequence[str]) -> SampleRecord:
    sample = decoded(record)
    if sample.camera.home != home or sample.labels.split not in splits:
        what = "sample" if len(splits) > 1 else "training sample"
        raise ValueError(f"sample {sample.name} is not a {what} of box {home}")
    if partition_of(sample.name, partitions) != partition:
        raise ValueError(f"sample {sample.name} lies in the wrong partition")
    sample.image()
    return sample


def digest(data: bytes) -> str:
    """SHA-256, hex."""
    return hashlib.sha256(data).hexdigest()


def samples_in(folder: Path, name: str, partition: int) -> list[SampleRecord]:
    """The samples of a block. Raises StorageError, ValueError."""
    return [decoded(r) for r in records_of(read_block(folder, name, read_index(folder, name), partition))]
