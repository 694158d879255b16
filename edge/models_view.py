"""Model versions as people and programs see them over HTTP: the schema of `/api/v1/models`, and the seam (`edge.box_models`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from pydantic import Field

from edge.control import Arguments
from edge.status import View

#: Ids of versions: camera, kind, number.
VERSION_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,90}$"
#: Largest bundle that is taken over HTTP; a larger one comes in by `driftbox models import`.
MAX_BUNDLE_BYTES = 512 * 2**20


class ModelRow(View):
    """A version in a list."""

    camera: str
    id: str
    state: str = Field(description="candidate, admitted, serving, retired or rejected.")
    quality: float | None = Field(
        default=None, description="On held-out labels when its gate judged it (0-1); null: never judged."
    )
    gpu_s: float | None = Field(
        default=None, description="GPU-seconds that its retraining took (on a box without a GPU of one core)."
    )
    parent: str | None = Field(default=None, description="Version that it was made from.")
    pinned: bool = Field(description="Its files stay whatever retention says.")
    arch: str
    origin: str = Field(default="", description="Where it comes from, when not from a retraining of its own camera.")
    created: str = Field(description="When, ISO-8601 UTC.")
    reason: str = Field(default="", description="Why it is in its state.")
    depth: int = Field(default=0, description="Branches on the way to it; the line that leads to the serving version has none.")


class ModelList(View):
    """A camera's versions stand in the order of their lineage: a version before what was made from it."""

    models: tuple[ModelRow, ...] = ()


class LiveQuality(View):
    """What was measured of a version on new labels after it had gone live (and before: of the gate)."""

    points: int = 0
    mean: float | None = Field(default=None, description="0-1; null: never measured.")
    worst: float | None = None
    first_utc: float | None = None
    last_utc: float | None = None


class ModelShown(ModelRow):
    """Everything about one version."""

    replaced: str | None = Field(default=None, description="Of a serving version: the one it replaced.")
    lineage: tuple[str, ...] = Field(description="The version and its ancestors, newest first.")
    sha256: str
    window: int | None = Field(default=None, description="Window whose labels it learned from.")
    samples: int = Field(default=0, description="Pictures that it learned from.")
    config: dict[str, Any] = Field(default_factory=dict, description="How it was retrained; empty: a camera's first model.")
    quality_on: str = Field(description="On which labels `quality` was measured, in words.")
    files: dict[str, str] = Field(default_factory=dict, description="File -> size; empty: they are gone.")
    live: LiveQuality


class Difference(View):
    """One thing in which two versions differ."""

    name: str
    unit: str = ""
    first: str | int | float | bool | None = None
    second: str | int | float | bool | None = None


class ModelComparison(View):
    """Two versions side by side."""

    first: ModelShown
    second: ModelShown
    same_camera: bool
    ancestor: str | None = Field(description="Newest version that both come from; null: none that is recorded.")
    steps: int | None = Field(description="Retrainings on the way from one to the other by way of that; null: no ancestor.")
    differences: tuple[Difference, ...] = Field(description="Of how they were retrained, cost and size.")
    remark: str = Field(description="What may be concluded from the two qualities.")


class ServedView(View):
    """What a promotion or rollback changed."""

    camera: str
    before: str | None
    after: str
    warning: str = Field(default="", description="What one should know; empty: nothing.")


class ImportedView(View):
    """A version that came in."""

    version: str
    camera: str
    signed_by: str | None = Field(description="Fingerprint of the key that signed it.")
    state: str = Field(description="candidate: the camera's own gate judges it next.")


class PromoteIn(Arguments):
    force: bool = Field(default=False, strict=True, description="Although no gate has admitted it.")


class RollbackIn(Arguments):
    version: str | None = Field(default=None, pattern=VERSION_PATTERN, description="Default: the one that served before.")


class PinIn(Arguments):
    pinned: bool = Field(strict=True, description="Whether its files are kept whatever comes.")


class ModelShelf(Protocol):
    """Called from web threads. Raise UsageError ('not_found'), StorageError, WeightsError, JobError. by: who asks."""

    def list(self, camera: str | None) -> ModelList: ...

    def show(self, version: str) -> ModelShown: ...

    def compare(self, first: str, second: str) -> ModelComparison: ...

    def promote(self, version: str, *, force: bool, by: str) -> ServedView: ...

    def rollback(self, camera: str, version: str | None, *, by: str) -> ServedView: ...

    def pin(self, version: str, *, pinned: bool) -> ModelRow: ...

    def bundle(self, version: str) -> Path:
        """Writes a signed bundle to a new file, which the caller removes."""

    def upload(self) -> Path:
        """Where a bundle that comes in may be written for a while; the caller removes it. Raises StorageError without room."""

    def take_in(self, file: Path, camera: str | None) -> ImportedView: ...
