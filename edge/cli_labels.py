"""`driftbox labels ...`: look at what the golden model saw, correct it, and exchange labels with other tools.

Works on a data folder, whether a box runs on it or not. Heavy libraries are imported inside commands.
"""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from configs.errors import UsageError
from edge.cli_common import ConfigOption, DataDir, Json, load_given
from edge.console import print_json, print_table, say

if TYPE_CHECKING:
    from edge.labels import BoxView, LabelQuery, LabelRow, LabelView
    from edge.labels_admin import FolderLabels

labels_app = typer.Typer(help="Labels of a box: look, correct, take back, exchange.", no_args_is_help=True)

Sample = Annotated[str, typer.Argument(metavar="SAMPLE", help="camera/window/seq, as `driftbox labels list` names it.")]
Camera = Annotated[str | None, typer.Option(help="Only this camera's.", show_default=False)]
Window = Annotated[int | None, typer.Option(min=0, help="Only this window's.", show_default=False)]
Unsure = Annotated[bool, typer.Option("--unsure", help="Only samples with boxes the golden model was not sure of.")]
By = Annotated[str | None, typer.Option(metavar="MAKER", help="Only labels made by golden or person.", show_default=False)]
Form = Annotated[str, typer.Option("--format", metavar="FORMAT", help="yolo or coco.")]
T = TypeVar("T", bound=str)
_MAKERS: tuple[Literal["golden", "person"], ...] = ("golden", "person")
_FORMATS: tuple[Literal["yolo", "coco"], ...] = ("yolo", "coco")
#: Most bytes of a file of boxes.
MAX_BOXES_BYTES = 256 * 1024


@labels_app.command("list")
def labels_list(
    camera: Camera = None,
    window: Window = None,
    unsure: Unsure = False,
    by: By = None,
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="Also samples without labels.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Rows at most.")] = 50,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """Samples and who labelled them, newest window first."""
    from edge.labels_admin import row_of

    labels = _open(data_dir, config)
    query = _query(camera, window, unsure, by, unlabelled=unlabelled)
    rows: list[LabelRow] = []
    more = False
    for found in labels.found(query):
        more = len(rows) >= limit
        if more:
            break
        rows.append(row_of(found))
    if json:
        print_json({"labels": [row.model_dump(mode="json") for row in rows], "more": more})
        return
    print_table(
        ("sample", "labels by", "used for", "objects", "unsure"),
        [(r.sample, r.state, r.split, _counted(r.counts), r.unsure or None) for r in rows],
    )
    if more:
        say("there are more: raise --limit, or choose with --camera, --window, --unsure, --by")


@labels_app.command("show")
def labels_show(
    sample: Sample,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.jpg", help="Write the picture with its boxes drawn in.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """One sample: its boxes, by whom, and what the golden model was not sure of."""
    from configs.files import atomic_write
    from edge.labels import SampleName

    labels, name = _open(data_dir, config), SampleName.parse(sample)
    view = labels.get(name)
    if picture is not None:
        atomic_write(picture, labels.picture(name, drawn=True), durable=False)
    _answer(view, json=json)


@labels_app.command("set")
def labels_set(
    sample: Sample,
    boxes: Annotated[str, typer.Option(metavar="FILE.json", help='All objects: [{"class": "car", "xyxy": [..]}]; `-`: stdin.')],
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """Say what is in a picture; an empty list: nothing. The golden model's labels never replace it."""
    from edge.labels import LabelsIn, SampleName

    labels, name = _open(data_dir, config), SampleName.parse(sample)
    _answer(labels.put(name, LabelsIn(boxes=read_boxes(boxes))), json=json)


@labels_app.command("remove-box")
def labels_remove_box(
    sample: Sample,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Of the box, as `driftbox labels show` counts them.")],
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """Remove one box; the others become yours as they are."""
    from edge.labels import LabelsIn, SampleName

    labels, name = _open(data_dir, config), SampleName.parse(sample)
    view = labels.get(name)
    kept = _without(view.boxes, number, sample)
    _answer(labels.put(name, LabelsIn(boxes=kept), etag=view.etag), json=json)


@labels_app.command("ignore")
def labels_ignore(sample: Sample, data_dir: DataDir = None, config: ConfigOption = None, json: Json = False) -> None:
    """Use a sample for nothing: neither training nor judging."""
    from edge.labels import LabelsIn, SampleName

    _answer(_open(data_dir, config).put(SampleName.parse(sample), LabelsIn(ignored=True)), json=json)


@labels_app.command("undo")
def labels_undo(sample: Sample, data_dir: DataDir = None, config: ConfigOption = None, json: Json = False) -> None:
    """Take a correction back: the golden model's labels are in force again."""
    from edge.labels import SampleName

    _answer(_open(data_dir, config).undo(SampleName.parse(sample)), json=json)


@labels_app.command("review")
def labels_review(
    camera: Camera = None,
    window: Window = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Samples at most.")] = 20,
    picture_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where each picture is written, instead of a temporary folder.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """Look at golden labels one after the other, the unsure ones first, and correct them. Needs a terminal."""
    from edge.labels_review import review

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "labels review asks questions and needs a terminal", subject="review",
            remedy="use `driftbox labels list --unsure`, `labels show` and `labels set`, or `labels export` and `labels import`",
        )  # fmt: skip
    done = review(_open(data_dir, config), _query(camera, window, False, "golden"), limit=limit, picture_dir=picture_dir)
    if json:
        print_json(done)
    else:
        say(
            f"{done['looked_at']} looked at, {done['confirmed']} confirmed, {done['corrected']} corrected, {done['ignored']} ignored"
        )


@labels_app.command("export")
def labels_export(
    target: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is new or empty.")],
    form: Form,
    camera: Camera = None,
    window: Window = None,
    unsure: Unsure = False,
    by: By = None,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """Write pictures and labels for other tools; who made each label is marked."""
    from edge.labels_exchange import export_labels

    done = export_labels(_open(data_dir, config), target, _format(form), _query(camera, window, unsure, by))
    if json:
        print_json({**vars(done), "folder": str(done.folder)})
        return
    damaged = f"; {done.damaged} damaged ones are not among them" if done.damaged else ""
    say(f"{target}: {done.samples} samples, {done.boxes} boxes, {done.by_person} labelled by a person{damaged}")


@labels_app.command("import")
def labels_import(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="Folder as `driftbox labels export` writes it.")],
    form: Form,
    changed_only: Annotated[
        bool, typer.Option("--changed-only", help="Leave samples alone that say what had been said before.")
    ] = False,
    data_dir: DataDir = None,
    config: ConfigOption = None,
    json: Json = False,
) -> None:
    """Take a folder's labels over as a person's: all of them, or none when anything is wrong."""
    from edge.labels_exchange import import_labels

    done = import_labels(_open(data_dir, config), source, _format(form), changed_only=changed_only)
    if json:
        print_json(vars(done))
        return
    say(f"{done.samples} samples with {done.boxes} boxes are a person's now; {done.confirmed} of them said the same as before")
    if done.skipped:
        say(f"{done.skipped} unchanged ones were left as they were")


@labels_app.command("stats")
def labels_stats(camera: Camera = None, data_dir: DataDir = None, config: ConfigOption = None, json: Json = False) -> None:
    """Counts per class, what the golden model cost, and how often a person found it wrong."""
    stats = _open(data_dir, config).stats(camera)
    if json:
        print_json(stats.model_dump(mode="json"))
        return
    say(f"samples           {stats.samples}, {stats.labelled} labelled, {stats.damaged} with a damaged label file")
    say(
        f"by a person       {stats.by_person} ({_pct(stats.corrected_frac)} of the labelled), {stats.ignored} of them taken out"
    )
    say(f"unsure            {stats.with_unsure} in use with unsure boxes, {stats.left_out} left out")
    say(f"objects           {_counted(stats.counts) or 'none'}")
    if stats.golden_gpu_s_per_sample is not None:
        each = stats.golden_gpu_s_per_sample
        say(f"golden model      {stats.golden_gpu_s:.1f} GPU-seconds for {stats.golden_samples} samples, {each:.3f} each")
    errors = stats.golden_errors
    say(
        f"golden errors     {errors.samples} samples a person looked at: {_pct(errors.wrong_frac)} of its boxes wrong, "
        f"{_pct(errors.missed_frac)} of the objects missed"
    )


# --- shared -----------------------------------------------------------------------------------------------------------


def _open(data_dir: Path | None, config: Path | None) -> FolderLabels:
    from edge.labels_admin import FolderLabels

    loaded = load_given(config, data_dir)
    return FolderLabels(loaded.box.data_dir, holdout_frac=loaded.window.holdout_frac)


def _query(camera: str | None, window: int | None, unsure: bool, by: str | None, *, unlabelled: bool = False) -> LabelQuery:
    from edge.labels import LabelQuery

    maker = _one_of(by, _MAKERS, "--by") if by is not None else None
    return LabelQuery(camera=camera, window=window, unsure=True if unsure else None, by=maker, unlabelled=unlabelled)


def _format(form: str) -> Literal["yolo", "coco"]:
    return _one_of(form, _FORMATS, "--format")


def _one_of(word: str, known: Sequence[T], option: str) -> T:
    for one in known:
        if word == one:
            return one
    raise UsageError(f"{option}: '{word}' is unknown", subject=option, remedy=f"one of: {', '.join(known)}")


def read_boxes(path: str) -> tuple[BoxView, ...]:
    """Boxes of a JSON file (`-`: standard input): a list, or an object with `boxes`. Raises UsageError naming the first mistake."""
    from pydantic import ValidationError

    from edge.labels import LabelsIn

    try:
        text = sys.stdin.buffer.read(MAX_BOXES_BYTES + 1) if path == "-" else Path(path).read_bytes()[: MAX_BOXES_BYTES + 1]
        if len(text) > MAX_BOXES_BYTES:
            raise UsageError(
                f"{path} is larger than {MAX_BOXES_BYTES} bytes", subject=path, remedy="a picture has 500 boxes at most"
            )
        body = json_module.loads(text)
        return LabelsIn.model_validate({"boxes": body} if isinstance(body, list) else body).boxes  # type: ignore[return-value]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", subject=path, remedy="name a file of boxes") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{path}: {where}: {first['msg']} ({error.error_count()} problems)", subject=path, code="labels",
            remedy='write [{"class": "car", "xyxy": [left, top, right, bottom]}]',
        ) from None  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}", subject=path, code="labels", remedy="correct it there") from None


def _without(boxes: Sequence[BoxView], number: int, sample: str) -> tuple[BoxView, ...]:
    if not 1 <= number <= len(boxes):
        raise UsageError(
            f"{sample} has no box {number}, it has {len(boxes)}", subject=sample, remedy=f"see `driftbox labels show {sample}`"
        )
    return tuple(box for n, box in enumerate(boxes, start=1) if n != number)


def _answer(view: LabelView, *, json: bool) -> None:
    if json:
        print_json(view.model_dump(mode="json", by_alias=True))
        return
    golden = f", golden model {view.golden}" if view.golden else ""
    say(f"{view.sample}  labels by: {view.state}  used for: {view.split or '-'}  {view.width_px} x {view.height_px} px{golden}")
    rows = [(str(n), *_box_cells(box)) for n, box in enumerate(view.boxes, start=1)]
    rows += [(f"?{n}", *_box_cells(box)) for n, box in enumerate(view.unsure_boxes, start=1)]
    if rows:
        print_table(("box", "class", "score", "left", "top", "right", "bottom"), rows)


def _box_cells(box: BoxView) -> tuple[str, ...]:
    return (box.class_name, f"{box.score:.2f}", *(f"{v:.0f}" for v in box.xyxy))


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items())


def _pct(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f} %"
