"""What commands print: tables and text for people, JSON for machines, errors that say what to do.

Results go to stdout, errors and progress to stderr. With `--json`, stdout holds exactly one JSON document, errors included.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from configs.errors import ConfigError, DriftboxError, redact


def print_json(value: object) -> None:
    """One document, non-ASCII kept, no NaN."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """Aligned columns; on a terminal in rich's style, elsewhere plain text that `grep` and `awk` can use."""
    cells = [[cell_text(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _print_plain(columns, cells)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*(escape(cell) for cell in row))
    Console().print(table)


def _print_plain(columns: Sequence[str], cells: list[list[str]]) -> None:
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(columns)]
    for row in [list(columns), *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def cell_text(value: object) -> str:
    """How a value stands in a table: `-` for none, yes/no, three digits of a fraction."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def say(text: str = "") -> None:
    """A line for people on stdout."""
    print(text, flush=True)


def say_json_line(text: str) -> None:
    """The same for machines that read line by line."""
    print(json.dumps({"text": text}, ensure_ascii=False), flush=True)


def warn(text: str) -> None:
    """A line for people on stderr."""
    print(redact(text), file=sys.stderr, flush=True)


def error_document(error: BaseException) -> Mapping[str, Any]:
    """An error for machines: code, message, subject, remedy, problems."""
    if isinstance(error, DriftboxError):
        problems = error.problems if isinstance(error, ConfigError) else ()
        return {
            "error": {
                "code": error.code,
                "message": error.message,
                "subject": error.subject,
                "remedy": error.remedy,
                "problems": [{"path": path, "text": text} for path, text in problems],
            }
        }
    return {"error": {"code": "unexpected", "message": _unexpected(error), "subject": "", "remedy": _REPORT, "problems": []}}


def show_error(error: BaseException, *, as_json: bool) -> None:
    """Prints an error without a traceback."""
    if as_json:
        print_json(error_document(error))
        return
    if not isinstance(error, DriftboxError):
        warn(f"error: {_unexpected(error)}\n  {_REPORT}")
        return
    warn(f"error: {error.message}")
    for path, text in error.problems if isinstance(error, ConfigError) else ():
        warn(f"  {path}: {text}")
    if error.remedy:
        warn(f"  what to do: {error.remedy}")


_REPORT = "this is a mistake in Driftbox: run the command again with --debug and report what it prints"


def _unexpected(error: BaseException) -> str:
    return redact(f"unexpected {type(error).__name__}: {error}" if str(error) else f"unexpected {type(error).__name__}")
