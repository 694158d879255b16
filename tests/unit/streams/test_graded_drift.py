"""Drift over real frames: identity at 0, growing with strength, seeded, on schedule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from streams.drift import KINDS, DriftSpec, apply, apply_all
from streams.rendered import RenderedScene

IMAGE = RenderedScene("street", 12, 240, 136).render(30.0)[0]
FLICKERING = {"dusk", "noise", "rain"}
SEEDED = FLICKERING | {"fog", "glare"}


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(int) - b).mean())


@pytest.mark.parametrize("kind", KINDS)
def test_strength_zero_is_the_identity_and_the_input_is_left_alone(kind: str) -> None:
    before = IMAGE.copy()
    same = apply(IMAGE, kind, 0.0, seed=1)
    np.testing.assert_array_equal(same, IMAGE)
    assert same is not IMAGE
    full = apply(IMAGE, kind, 1.0, seed=1)
    np.testing.assert_array_equal(IMAGE, before)
    assert full.shape == IMAGE.shape
    assert full.dtype == np.uint8


@pytest.mark.parametrize("kind", KINDS)
def test_effect_grows_with_strength(kind: str) -> None:
    distances = [distance(apply(IMAGE, kind, strength, seed=1), IMAGE) for strength in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert all(b > a for a, b in zip(distances, distances[1:], strict=False)), distances
    assert distances[-1] > (1.5 if kind in ("blur", "greyness") else 10)


@pytest.mark.parametrize("kind", KINDS)
def test_seed_and_frame_decide_everything_random(kind: str) -> None:
    one = apply(IMAGE, kind, 0.8, seed=1, frame=4)
    np.testing.assert_array_equal(one, apply(IMAGE, kind, 0.8, seed=1, frame=4))
    assert (distance(one, apply(IMAGE, kind, 0.8, seed=2, frame=4)) > 0) == (kind in SEEDED)
    assert (distance(one, apply(IMAGE, kind, 0.8, seed=1, frame=5)) > 0) == (kind in FLICKERING)


def test_kinds_do_what_they_are_called() -> None:
    full = {kind: apply(IMAGE, kind, 1.0, seed=3).astype(float) for kind in KINDS}
    assert full["dusk"].mean() < 0.25 * IMAGE.mean()
    assert full["underexposure"].mean() < 0.2 * IMAGE.mean()
    assert (full["overexposure"] == 255).mean() > 0.3
    assert full["fog"].std() < 0.5 * IMAGE.std()
    assert full["fog"][:30].std() < full["fog"][-30:].std()
    assert np.ptp(full["greyness"], axis=2).max() <= 1
    assert np.abs(np.diff(full["blur"], axis=1)).mean() < 0.7 * np.abs(np.diff(IMAGE.astype(float), axis=1)).mean()


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match="snow") as caught:
        apply(IMAGE, "snow", 0.5, seed=1)
    assert "fog" in caught.value.remedy
    for strength in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="strength"):
            apply(IMAGE, "fog", strength, seed=1)


def test_spec_ramps_up_holds_and_fades() -> None:
    spec = DriftSpec(kind="fog", start=10, end=30, strength=0.8, ramp=4, ramp_out=5)
    levels = [spec.strength_at(i) for i in range(35)]
    assert levels[9] == 0
    assert levels[10:14] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert levels[13:26] == pytest.approx([0.8] * 13)
    assert levels[25:31] == pytest.approx([0.8, 0.64, 0.48, 0.32, 0.16, 0.0])
    assert DriftSpec(kind="fog").strength_at(10**9) == 1.0


@given(
    start=st.integers(0, 50),
    length=st.integers(1, 80),
    ramp=st.integers(0, 40),
    ramp_out=st.integers(0, 40),
    strength=st.floats(0, 1),
    frame=st.integers(0, 200),
)
def test_strength_never_leaves_its_bounds(
    start: int, length: int, ramp: int, ramp_out: int, strength: float, frame: int
) -> None:
    spec = DriftSpec(kind="fog", start=start, end=start + length, strength=strength, ramp=ramp, ramp_out=ramp_out)
    assert 0 <= spec.strength_at(frame) <= strength
    if not start <= frame < start + length:
        assert spec.strength_at(frame) == 0


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "snow"},
        {"kind": "fog", "strength": 2},
        {"kind": "fog", "start": 9, "end": 9},
        {"kind": "fog", "ramp": -1},
        {"kind": "fog", "speed": 1},
        {"start": 3},
    ],
)
def test_bad_specs_are_refused(table: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        DriftSpec.of(table)


def test_apply_all_combines_what_is_active() -> None:
    specs = [DriftSpec.of({"kind": "dusk", "start": 5, "ramp": 2}), DriftSpec(kind="noise", start=8, end=9, strength=0.5)]
    assert apply_all(IMAGE, specs, 4, seed=1) is IMAGE
    dusk = apply_all(IMAGE, specs, 6, seed=1)
    np.testing.assert_array_equal(dusk, apply(IMAGE, "dusk", 1.0, seed=1, frame=6))
    assert distance(apply_all(IMAGE, specs, 8, seed=1), apply_all(IMAGE, specs[:1], 8, seed=1)) > 3
