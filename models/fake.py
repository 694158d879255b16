"""A detector with a scripted quality, for tests of whatever runs detectors: deterministic, tiny, trained in microseconds.

It finds the objects that a `scripted_image` puts into a picture's pixels, and misses or invents some of them: with skill s,
each object is found with probability s, and 1 - s false ones are added per object, so F1 on many frames comes close to s. Its
skill is its only tensor. Each step of training on labelled pictures moves the skill towards its ceiling, through an ordinary
loss and gradient, so the real training loop, evaluation and version store run on it unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from configs.errors import WeightsError
from configs.units import CLASSES
from models.detector import Detector, DetectorSpec, ServedBody, YieldPoint
from models.torch_support import check_teacher
from scheduler.types import Detections

#: Size and grid of a scripted picture: one object fills one cell of CELL_PX.
CELL_PX, COLUMNS, ROWS = 16, 8, 6
_BACKGROUND = 16
_STEP = 24  # grey level of class k is _BACKGROUND + _STEP * (k + 1)


def scripted_image(seed: int, *, n_objects: int = 6) -> tuple[np.ndarray, Detections]:
    """A picture of coloured cells and its exact labels. uint8 (96, 128, 3); the same for the same seed."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(COLUMNS * ROWS, size=n_objects, replace=False)
    classes = rng.integers(0, len(CLASSES), size=n_objects)
    image = np.full((ROWS * CELL_PX, COLUMNS * CELL_PX, 3), _BACKGROUND, np.uint8)
    for cell, class_id in zip(cells, classes, strict=True):
        x1, y1, x2, y2 = _cell_box(int(cell))
        image[y1:y2, x1:x2] = _BACKGROUND + _STEP * (class_id + 1)
    return image, _found(image)


class FakeDetector:
    """skill: probability (0-1) that an object is found. ceiling: where training takes it. fails_with: raised by `loss`, to
    rehearse a job that throws; nan_loss: `loss` gives NaN."""

    def __init__(
        self,
        *,
        skill: float = 0.5,
        ceiling: float = 0.95,
        arch: str = "fake",
        nan_loss: bool = False,
        fails_with: Exception | None = None,
    ) -> None:
        self.spec = DetectorSpec(arch=arch, input_px=COLUMNS * CELL_PX)
        self._ceiling, self._nan_loss, self._fails_with = ceiling, nan_loss, fails_with
        self._net = _Skill(skill)

    @property
    def skill(self) -> float:
        return float(self._net.skill.detach().clamp(0, 1))

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        results = []
        for image in images:
            if yield_point:
                yield_point()
            results.append(_blurred(_found(image), self.skill, image).above(score_min))
        return results

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        if self._fails_with is not None:
            raise self._fails_with
        if not images:
            raise ValueError("a training loss needs at least one image")
        distance = (self._net.skill - self._ceiling).abs().sum()
        return distance * float("nan") if self._nan_loss else distance

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Mean and spread of the grey levels, and the part of the cells that each class fills: (N, 2 + classes)."""
        rows = [np.concatenate([[i.mean() / 255, i.std() / 255], _class_mix(_found(i))]) for i in images]
        return np.array(rows, np.float32).reshape(len(images), 2 + len(CLASSES))

    def distill_loss(self, images: Sequence[np.ndarray], teacher: Detector) -> torch.Tensor:
        """Distance of the skills."""
        other = check_teacher(self, teacher)
        if not images:
            raise ValueError("a training loss needs at least one image")
        return (self._net.skill - other._net.skill.detach()).abs().sum()

    def body(self) -> ServedBody:
        """The network reads the grey level at every cell's centre and says its skill; misses are drawn while decoding."""

        def encode(image: np.ndarray) -> tuple[np.ndarray, object]:
            whole = image[: image.shape[0] // CELL_PX * CELL_PX, : COLUMNS * CELL_PX]
            return np.ascontiguousarray(whole.transpose(2, 0, 1)[None], np.float32), image

        def decode(outputs: Sequence[np.ndarray], image: object, score_min: float) -> Detections:
            assert isinstance(image, np.ndarray)
            truth = _from_levels(outputs[0][0, 0], image)
            return _blurred(truth, float(np.clip(outputs[1].mean(), 0, 1)), image).above(score_min)

        example_px = (ROWS * CELL_PX, COLUMNS * CELL_PX)
        return ServedBody(
            network=_Reader(self.skill).eval().requires_grad_(False), encode=encode, decode=decode, example_px=example_px
        )

    def trainable_layers(self) -> list[nn.Module]:
        return [self._net]

    def state(self) -> dict[str, torch.Tensor]:
        return {"skill": self._net.skill.detach().clone()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        if set(state) != {"skill"} or state["skill"].shape != self._net.skill.shape:
            raise WeightsError("weights do not fit fake: it has one tensor, skill (1,)", subject=self.spec.arch)
        with torch.no_grad():
            self._net.skill.copy_(state["skill"])

    def clone(self) -> Detector:
        twin = FakeDetector(ceiling=self._ceiling, arch=self.spec.arch, nan_loss=self._nan_loss, fails_with=self._fails_with)
        twin.load_state(self.state())
        return twin


class _Skill(nn.Module):
    def __init__(self, skill: float) -> None:
        super().__init__()
        self.skill = nn.Parameter(torch.tensor([skill], dtype=torch.float32))


class _Reader(nn.Module):
    """(B, 3, H, W) -> grey levels at the cells' centres (B, 1, H/16, W/16), the skill in as many places."""

    def __init__(self, skill: float) -> None:
        super().__init__()
        self.skill = nn.Parameter(torch.tensor([skill], dtype=torch.float32))
        self.pick = nn.Conv2d(3, 1, 1, stride=CELL_PX, bias=False)
        with torch.no_grad():
            self.pick.weight.copy_(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        levels = self.pick(x[:, :, CELL_PX // 2 :, CELL_PX // 2 :])
        return levels, torch.zeros_like(levels) + self.skill.view(1, 1, 1, 1)


def _cell_box(cell: int) -> tuple[int, int, int, int]:
    x, y = cell % COLUMNS * CELL_PX, cell // COLUMNS * CELL_PX
    return x + 1, y + 1, x + CELL_PX - 1, y + CELL_PX - 1


def _found(image: np.ndarray) -> Detections:
    """Every cell whose centre has an object's grey level, by cell. Works on the unchanged scripted picture only."""
    return _from_levels(image[CELL_PX // 2 :: CELL_PX, CELL_PX // 2 :: CELL_PX, 0], image)


def _from_levels(levels: np.ndarray, image: np.ndarray) -> Detections:
    """levels: grey level at the centre of each cell (rows, columns)."""
    boxes, classes = [], []
    for cell in range(min(COLUMNS * ROWS, (image.shape[0] // CELL_PX) * COLUMNS)):
        box = _cell_box(cell)
        if box[2] > image.shape[1]:
            continue
        level = round((float(levels[cell // COLUMNS, cell % COLUMNS]) - _BACKGROUND) / _STEP) - 1
        if 0 <= level < len(CLASSES):
            boxes.append(box)
            classes.append(level)
    return Detections(
        xyxy=np.array(boxes, np.float32).reshape(-1, 4),
        score=np.ones(len(boxes), np.float32),
        class_id=np.array(classes, np.int64),
    )


def _class_mix(found: Detections) -> np.ndarray:
    """Objects of each class as a part of all cells. float64 (classes,)"""
    return np.bincount(found.class_id, minlength=len(CLASSES)) / (COLUMNS * ROWS)


def _blurred(truth: Detections, skill: float, image: np.ndarray) -> Detections:
    """Misses objects and invents as many; which ones depends on the picture alone, and grows with falling skill."""
    digest = hashlib.sha256(image.tobytes()).digest()
    luck = np.random.default_rng(int.from_bytes(digest[:8], "big")).random(len(truth))
    seen = luck < skill
    # A missed object is reported one cell's width to the right outside the grid, where nothing is: one miss, one false alarm.
    away = truth.xyxy[~seen] + np.array([COLUMNS * CELL_PX, 0, COLUMNS * CELL_PX, 0], np.float32)
    xyxy = np.concatenate([truth.xyxy[seen], away])
    score = np.concatenate([0.5 + (1 - luck[seen]) / 2, 0.3 + (1 - luck[~seen]) / 10]).astype(np.float32)
    class_id = np.concatenate([truth.class_id[seen], truth.class_id[~seen]])
    order = np.argsort(-score, kind="stable")
    return Detections(xyxy=xyxy[order].astype(np.float32), score=score[order], class_id=class_id[order])
