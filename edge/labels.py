"""What labels look like to people and programs: the schema of `driftbox labels --json` and of `/api/v1/labels`, and the seam to them.

Frozen, every field described, sizes bounded. `LabelStore` is what the command line and the web server ask; `edge.labels_admin` answers
from a data folder, `FakeLabels` from memory, for tests and for a look.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from configs.errors import UsageError
from configs.units import CLASSES, is_camera_id

#: Class names a label may have; the last one only where regions that moved are classified.
NOTHING_NAME = "nothing"
CLASS_NAMES: tuple[str, ...] = (*CLASSES, NOTHING_NAME)
#: Most boxes of one picture.
MAX_BOXES = 500
#: Most rows of one answer.
MAX_PAGE = 500

State = Literal["unlabelled", "golden", "unsure", "person", "ignored", "damaged"]
_NAME = re.compile(r"([a-z0-9][a-z0-9_-]{0,62})/([0-9]{1,9})/([0-9]{1,15})")


@dataclass(frozen=True, kw_only=True, order=True)
class SampleName:
    """A sample as people write it: `camera/window/seq`."""

    camera: str
    window: int
    seq: int

    def __str__(self) -> str:
        return f"{self.camera}/{self.window:06d}/{self.seq:09d}"

    @staticmethod
    def parse(text: str) -> SampleName:
        """Raises UsageError for anything but camera/window/seq."""
        found = _NAME.fullmatch(text)
        if found is None or not is_camera_id(found[1]):
            raise UsageError(
                f"'{text[:80]}' names no sample",
                subject=text[:80],
                remedy="write camera/window/seq, as `driftbox labels list` does",
            )
        return SampleName(camera=found[1], window=int(found[2]), seq=int(found[3]))


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Corner = Annotated[float, Field(ge=-1e6, le=1e6)]


class BoxIn(_View):
    """One object."""

    class_name: str = Field(
        validation_alias=AliasChoices("class", "class_name"), serialization_alias="class", max_length=40,
        description=f"One of {', '.join(CLASS_NAMES)}.",
    )  # fmt: skip
    xyxy: tuple[Corner, Corner, Corner, Corner] = Field(description="Left, top, right, bottom in pixels of the picture.")
    score: float = Field(
        default=1.0, ge=0, le=1, description="The golden model's score; a person's box has 1, whatever is sent."
    )


class BoxView(BoxIn):
    """One object as it is shown."""


class LabelsIn(_View):
    """What a person says is in the picture."""

    boxes: tuple[BoxIn, ...] = Field(default=(), max_length=MAX_BOXES, description="All objects; none: the picture is empty.")
    ignored: bool = Field(default=False, description="The sample is used for nothing (then without boxes).")


class LabelRow(_View):
    """One sample in a list."""

    sample: str = Field(description="camera/window/seq.")
    camera: str
    window: int
    seq: int
    state: State = Field(
        description="unlabelled; golden: the golden model's labels; unsure: left out, because too much of it is unsure; person: a "
        "person's labels; ignored: a person took it out; damaged: its label file cannot be read."
    )
    split: str | None = Field(default=None, description="train or holdout; null: not labelled.")
    counts: dict[str, int] = Field(default_factory=dict, description="Labels of each class.")
    unsure: int = Field(default=0, description="Boxes that the golden model was not sure of.")
    stored_utc: float | None = Field(default=None, description="When these labels were made, seconds since the epoch.")


class LabelView(LabelRow):
    """Everything about one sample's labels."""

    width_px: int
    height_px: int
    golden: str = Field(default="", description="Golden model that was asked; empty: none.")
    golden_gpu_s: float | None = Field(default=None, description="What asking it cost; null: not measured.")
    boxes: tuple[BoxView, ...] = Field(default=(), description="Labels in force.")
    unsure_boxes: tuple[BoxView, ...] = Field(default=(), description="What the golden model was not sure of: no labels.")
    golden_boxes: tuple[BoxView, ...] | None = Field(
        default=None, description="The golden model's own answer, as undoing a correction brings it back; null: never asked."
    )
    etag: str = Field(description="Changes with the labels; send it back as If-Match to correct only what you have seen.")


class LabelPage(_View):
    """Part of a list, newest window first. next: send it as `after` for more; null: that was all."""

    labels: tuple[LabelRow, ...]
    next: str | None = None
    damaged: int = Field(default=0, description="Label files on this page that cannot be read.")


class GoldenErrors(_View):
    """The golden model against people, over the samples that a person has looked at (box overlap 0.5, same class)."""

    samples: int = 0
    right: int = Field(default=0, description="Golden boxes that a person kept.")
    wrong: int = Field(default=0, description="Golden boxes that a person removed, moved or gave another class.")
    missed: int = Field(default=0, description="Objects that a person added.")
    wrong_frac: float | None = Field(default=None, description="wrong of all golden boxes; null: there were none.")
    missed_frac: float | None = Field(default=None, description="missed of all objects; null: there were none.")


class LabelStats(_View):
    """Counts over a data folder, or over one camera of it."""

    samples: int = 0
    labelled: int = 0
    by_person: int = Field(default=0, description="Of the labelled ones; those that were taken out included.")
    ignored: int = 0
    left_out: int = Field(default=0, description="Too much of them is unsure.")
    with_unsure: int = Field(default=0, description="Samples in use that hold boxes the golden model was not sure of.")
    damaged: int = 0
    counts: dict[str, int] = Field(default_factory=dict, description="Labels of each class, of the samples in use.")
    corrected_frac: float | None = Field(default=None, description="by_person of labelled; null: nothing is labelled.")
    golden_samples: int = Field(default=0, description="Samples the golden model was asked about at a cost that was measured.")
    golden_gpu_s: float = Field(default=0.0, description="What that cost, GPU-seconds.")
    golden_gpu_s_per_sample: float | None = None
    golden_errors: GoldenErrors = Field(default_factory=GoldenErrors)


class ClassLabels(_View):
    """Boxes of one class on a camera's pictures."""

    class_name: str = Field(serialization_alias="class", validation_alias=AliasChoices("class", "class_name"))
    golden: int = Field(default=0, description="Labels in force that are the large model's.")
    corrected: int = Field(default=0, description="Labels of people.")
    unsure: int = Field(default=0, description="What the large model was not sure of: no labels.")
    ignored: int = Field(default=0, description="The large model's, in pictures that people took out.")
    golden_errors: GoldenErrors = Field(
        default_factory=GoldenErrors, description="Over pictures with this class in either's labels."
    )


class CameraLabels(_View):
    """A camera's sampled pictures, and its labels by class."""

    camera: str
    pictures: int = 0
    golden: int = Field(default=0, description="Pictures with the large model's labels.")
    corrected: int = Field(default=0, description="Pictures with a person's labels.")
    ignored: int = Field(default=0, description="Pictures that a person took out.")
    left_out: int = Field(default=0, description="Pictures of which too much is unsure.")
    unlabelled: int = 0
    damaged: int = Field(default=0, description="Pictures whose label file cannot be read.")
    golden_errors: GoldenErrors = Field(default_factory=GoldenErrors)
    classes: tuple[ClassLabels, ...] = ()


class LabelStatistics(_View):
    """Over the newest pictures. complete: those were all; else older ones are left out."""

    cameras: tuple[CameraLabels, ...] = ()
    pictures: int = 0
    complete: bool = True


@dataclass(frozen=True, kw_only=True)
class LabelQuery:
    """Which samples to list. cameras: of these, None: of all. by: who made the labels; unsure: only with unsure boxes (True) or only
    without (False); unlabelled: also samples without labels; after: the `next` of the page before."""

    camera: str | None = None
    cameras: frozenset[str] | None = None
    window: int | None = None
    by: Literal["golden", "person"] | None = None
    unsure: bool | None = None
    unlabelled: bool = False
    limit: int = 50
    after: str | None = None


class LabelStore(Protocol):
    """Samples and their labels. Methods raise UsageError - code 'not_found': no such sample (any more), 'labels': what is said of it
    cannot be, 'changed': somebody was faster - and StorageError."""

    def list(self, query: LabelQuery) -> LabelPage: ...

    def statistics(self, query: LabelQuery) -> LabelStatistics:
        """Of the query's `camera`, `cameras` and `window`; the newest pictures, in bounded time."""

    def get(self, name: SampleName) -> LabelView: ...

    def put(self, name: SampleName, labels: LabelsIn, *, etag: str | None = None) -> LabelView:
        """A person's labels from now on. etag: only when the labels in force are still those."""

    def undo(self, name: SampleName, *, etag: str | None = None) -> LabelView:
        """The golden model's labels again."""

    def picture(self, name: SampleName, *, drawn: bool) -> bytes:
        """JPEG; drawn: with its boxes."""


def class_name_of(class_id: int) -> str:
    """As people and label files call it."""
    return CLASS_NAMES[class_id] if class_id < len(CLASS_NAMES) else f"class {class_id}"


def not_found(name: SampleName | str) -> UsageError:
    """A sample that is not there, or not there any more: old windows are pruned while people look at them."""
    return UsageError(
        f"there is no sample '{name}' (old ones are removed when there is no room)", subject=str(name), code="not_found",
        remedy="see `driftbox labels list`",
    )  # fmt: skip


def changed(name: SampleName) -> UsageError:
    """Somebody corrected the sample after it was shown."""
    return UsageError(
        f"the labels of '{name}' have changed since they were read", subject=str(name), code="changed", remedy="read them again"
    )
