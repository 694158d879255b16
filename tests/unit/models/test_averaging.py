"""The mean of models' weights."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from models.averaging import averaged
from models.zoo import load_detector, new_detector


def state(*values: float, dtype: torch.dtype = torch.float32, seen: int = 0) -> dict[str, torch.Tensor]:
    return {"layer.weight": torch.tensor(values, dtype=dtype), "norm.num_batches_tracked": torch.tensor(seen)}


def test_each_number_is_the_mean_and_what_only_counts_is_the_last_ones() -> None:
    found = averaged([state(1.0, 4.0, seen=3), state(2.0, -4.0, seen=9), state(6.0, 0.0, seen=5)])
    assert found is not None
    assert found["layer.weight"].tolist() == [3.0, 0.0]
    assert found["norm.num_batches_tracked"].item() == 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_mean_has_the_type_of_what_it_is_of(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    found = averaged([state(most, dtype=dtype), state(most, dtype=dtype)])
    assert found is not None
    assert found["layer.weight"].dtype is dtype
    if dtype is not torch.float64:
        assert found["layer.weight"].isfinite().all(), "summed in a wider type"


@pytest.mark.parametrize(
    "other",
    [
        {"layer.weight": torch.zeros(3), "norm.num_batches_tracked": torch.tensor(0)},
        {"layer.weight": torch.zeros(2)},
        {"layer.weight": torch.zeros(2, dtype=torch.float16), "norm.num_batches_tracked": torch.tensor(0)},
        {"layer.weights": torch.zeros(2), "norm.num_batches_tracked": torch.tensor(0)},
    ],
)
def test_what_is_not_alike_has_no_mean(other: dict[str, torch.Tensor]) -> None:
    assert averaged([state(1.0, 2.0), other]) is None
    assert averaged([other, state(1.0, 2.0)]) is None


def test_of_nothing_there_is_no_mean() -> None:
    assert averaged([]) is None


@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), min_size=1, max_size=5))
def test_a_mean_lies_among_what_it_is_of_whatever_their_order(rows: list[list[float]]) -> None:
    found, turned = averaged([state(*row) for row in rows]), averaged([state(*row) for row in reversed(rows)])
    assert found is not None
    assert turned is not None
    numbers = found["layer.weight"].numpy()
    assert (numbers >= np.float32(rows).min(axis=0)).all()
    assert (numbers <= np.float32(rows).max(axis=0)).all()
    np.testing.assert_allclose(numbers, turned["layer.weight"].numpy(), rtol=1e-6, atol=1e-6)


def test_it_is_a_copy() -> None:
    one = state(1.0)
    found = averaged([one])
    assert found is not None
    for tensor in found.values():
        tensor += 1
    assert one["layer.weight"].tolist() == [1.0]
    assert one["norm.num_batches_tracked"].item() == 0


def test_the_mean_of_a_real_model_and_itself_answers_as_it_does() -> None:
    model = load_detector("tinydet-edge")
    image = np.random.default_rng(0).integers(0, 255, (180, 320, 3), np.uint8)
    found = averaged([model.state(), model.state()])
    assert found is not None
    again = new_detector(model.spec, state=found)
    (a,), (b,) = model.predict([image], score_min=0.01), again.predict([image], score_min=0.01)
    np.testing.assert_array_equal(a.xyxy, b.xyxy)
