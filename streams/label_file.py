"""What a sample's label file says, and what may become of it: golden labels, a person's correction, and back.

A label file holds the labels in force and who made them. A person's labels are never replaced by the golden model's: what the golden
model says (or says anew) of a sample that a person has labelled is kept beside them, so that a correction can be undone and the
golden model's errors can be counted. All functions here are pure; `streams.samples` reads and writes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from scheduler.types import Detections

Split = Literal["train", "holdout"]
By = Literal["golden", "person"]
#: Why a labelled sample is used for nothing: too much of it is unsure, or a person said so. '': it is used.
LeftOut = Literal["", "unsure", "ignored"]

SCHEMA = 1
SPLITS: tuple[Split, ...] = ("train", "holdout")
_LEFT_OUT: tuple[LeftOut, ...] = ("", "unsure", "ignored")


@dataclass(frozen=True, kw_only=True, eq=False)
class GoldenAnswer:
    """What the golden model said of a sample. golden: its architecture; unsure: boxes it was not sure of, which are no labels;
    gpu_s: what asking it cost, None: not measured."""

    detections: Detections
    golden: str
    stored_utc: float
    unsure: Detections = field(default_factory=Detections.empty)
    left_out: LeftOut = ""
    gpu_s: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleLabels:
    """The labels of a sample. by: who made `detections`; split: what the sample may be used for; stored_utc: since when;
    said: what the golden model answered, None when it was never asked (a person came first). golden: the golden model's
    architecture, '' when it was never asked."""

    detections: Detections
    golden: str
    split: Split
    stored_utc: float
    by: By = "golden"
    unsure: Detections = field(default_factory=Detections.empty)
    left_out: LeftOut = ""
    said: GoldenAnswer | None = None

    @property
    def usable(self) -> bool:
        """May be trained on or judged by."""
        return not self.left_out


def with_golden(old: SampleLabels | None, answer: GoldenAnswer, split: Split) -> SampleLabels:
    """The golden model has labelled a sample (again). A person's labels stay in force, and so does their split."""
    if old is not None and old.by == "person":
        return replace(old, golden=answer.golden, said=answer)
    return SampleLabels(
        detections=answer.detections, golden=answer.golden, split=split, stored_utc=answer.stored_utc, by="golden",
        unsure=answer.unsure, left_out=answer.left_out, said=answer,
    )  # fmt: skip


def with_person(old: SampleLabels | None, detections: Detections, split: Split, *, at_utc: float) -> SampleLabels:
    """A person says what is in the picture. `split` counts for a sample that had no labels; one that has keeps its own, so that
    nothing that judged is ever trained on."""
    return SampleLabels(
        detections=detections, golden=old.golden if old else "", split=old.split if old else split, stored_utc=at_utc,
        by="person", said=old.said if old else None,
    )  # fmt: skip


def with_ignored(old: SampleLabels | None, split: Split, *, at_utc: float) -> SampleLabels:
    """A person says that the sample is to be used for nothing."""
    return replace(with_person(old, Detections.empty(), split, at_utc=at_utc), left_out="ignored")


def undone(labels: SampleLabels) -> SampleLabels | None:
    """The golden model's own answer again; None (no labels) when it never answered. Golden labels stay as they are."""
    if labels.by == "golden":
        return labels
    return with_golden(None, labels.said, labels.split) if labels.said is not None else None


def merged(here: SampleLabels | None, came: SampleLabels) -> SampleLabels:
    """The labels of one picture of which two boxes have said something: a person's before the golden model's, of the same kind the newer
    ones. Who has judged by it on either box goes on judging by it: nothing that judged is ever trained on. Which of them is called
    `here` makes no difference, and neither does doing it twice."""
    if here is None:
        return came
    winner, other = sorted((here, came), key=_weight, reverse=True)
    split: Split = "holdout" if "holdout" in (here.split, came.split) else "train"
    said = winner.said if winner.said is not None else other.said
    return replace(winner, split=split, said=said, golden=winner.golden or (said.golden if said else ""))


def _weight(labels: SampleLabels) -> tuple[bool, float, bytes]:
    """What is said decides between two of the same moment: any order that both boxes agree on, and that merging does not change."""
    return labels.by == "person", labels.stored_utc, encode(replace(labels, split="train", golden="", said=None))


# --- JSON -------------------------------------------------------------------------------------------------------------


def encode(labels: SampleLabels) -> bytes:
    """The file's content; keys of the first release keep their meaning."""
    body: dict[str, Any] = {
        "schema": SCHEMA, "golden": labels.golden, "split": labels.split, "stored_utc": labels.stored_utc, "by": labels.by,
        "left_out": labels.left_out, **_boxes(labels.detections), "unsure": _boxes(labels.unsure),
    }  # fmt: skip
    if labels.said is not None:
        body["gpu_s"] = labels.said.gpu_s
        if labels.by == "person":
            body["said"] = _answer(labels.said)
    return json.dumps(body).encode()


def decode(data: bytes) -> SampleLabels:
    """Raises ValueError for anything but a whole label file."""
    try:
        body = json.loads(data)
        return _decoded(body)
    except (KeyError, TypeError, OverflowError, RecursionError, AttributeError) as error:
        raise ValueError(f"not a label file: {error}") from error


def _decoded(body: dict[str, Any]) -> SampleLabels:
    by, left_out = body.get("by", "golden"), body.get("left_out", "")
    if body["schema"] != SCHEMA or body["split"] not in SPLITS or by not in ("golden", "person") or left_out not in _LEFT_OUT:
        raise ValueError("unknown label schema")
    labels = SampleLabels(
        detections=_detections(body), golden=str(body["golden"]), split=body["split"], stored_utc=float(body["stored_utc"]),
        by=by, unsure=_detections(body.get("unsure")), left_out=left_out,
    )  # fmt: skip
    if by == "golden":
        answer = GoldenAnswer(
            detections=labels.detections, golden=labels.golden, stored_utc=labels.stored_utc, unsure=labels.unsure,
            left_out=left_out, gpu_s=_cost(body.get("gpu_s")),
        )  # fmt: skip
        return replace(labels, said=answer)
    return replace(labels, said=_read_answer(body["said"]) if body.get("said") is not None else None)


def _answer(said: GoldenAnswer) -> dict[str, Any]:
    return {
        "golden": said.golden, "stored_utc": said.stored_utc, "left_out": said.left_out, "gpu_s": said.gpu_s,
        **_boxes(said.detections), "unsure": _boxes(said.unsure),
    }  # fmt: skip


def _read_answer(body: dict[str, Any]) -> GoldenAnswer:
    if body["left_out"] not in _LEFT_OUT:
        raise ValueError("unknown label schema")
    return GoldenAnswer(
        detections=_detections(body), golden=str(body["golden"]), stored_utc=float(body["stored_utc"]),
        unsure=_detections(body["unsure"]), left_out=body["left_out"], gpu_s=_cost(body["gpu_s"]),
    )  # fmt: skip


def _boxes(found: Detections) -> dict[str, Any]:
    return {"xyxy": found.xyxy.tolist(), "score": found.score.tolist(), "class_id": found.class_id.tolist()}


def _detections(body: dict[str, Any] | None) -> Detections:
    if body is None:  # a file of the first release
        return Detections.empty()
    found = Detections(
        xyxy=np.asarray(body["xyxy"], np.float32).reshape(-1, 4), score=np.asarray(body["score"], np.float32),
        class_id=np.asarray(body["class_id"], np.int64),
    )  # fmt: skip
    if not (np.isfinite(found.xyxy).all() and np.isfinite(found.score).all() and (found.class_id >= 0).all()):
        raise ValueError("numbers that are none")
    return found


def _cost(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(float(value)) else None
