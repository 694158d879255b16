"""A box makes, finds, exchanges and removes its partition on a real GPU. It changes how that is divided, so it runs only when told to:
`DRIFTBOX_TEST_MIG=1 pytest -m gpu tests/gpu/test_mig_division.py`, as root, with MIG mode on and nobody on GPU 0.

The same steps, with faults and kills at each of them, run against the fake in tests/unit/edge/test_gpu_mig_division.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge.gpu.mig_card import Card
from edge.gpu.mig_division import Division
from edge.gpu.nvml import DeviceReader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(os.environ.get("DRIFTBOX_TEST_MIG") != "1", reason="DRIFTBOX_TEST_MIG is not 1"),
]


def test_a_partition_is_made_found_exchanged_and_removed(tmp_path: Path) -> None:
    before = {part.uuid for part in DeviceReader().read().instances}
    with Card(0) as card:
        card.must_be_on()
        small, large = sorted(card.profiles().values(), key=lambda profile: (profile.slices, profile.memory_mib))[:2]
        uuid = Division(card, tmp_path).carry_out(small)
        try:
            assert {part.uuid for part in DeviceReader().read().instances} == before | {uuid}
            assert Division(card, tmp_path).carry_out(small) == uuid
            other = Division(card, tmp_path).carry_out(large)
            assert {part.uuid for part in DeviceReader().read().instances} == before | {other}
        finally:
            own = Division(card, tmp_path)
            for made in own.noted:
                card.destroy(made.number)
    assert {part.uuid for part in DeviceReader().read().instances} == before
