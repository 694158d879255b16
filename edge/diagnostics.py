"""One zip that tells a helper how a box is, and nothing that lets anybody in: every text is redacted, secrets of the configuration are
never read, pictures, samples and keys stay at home.
"""

from __future__ import annotations

import io
import json
import platform
import sqlite3
import zipfile
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from configs.errors import redact
from configs.schema import BoxConfig
from edge.software import software_version

#: Most that one part may hold; a longer one is cut at its beginning, for the end tells what happened last.
PART_MAX_BYTES = 4 * 2**20
JOURNAL_BYTES = 512 * 1024
#: Keys whose values are blotted out wherever they stand: secrets of the configuration show as such already, this is the second net.
_PRIVATE = ("password", "token", "secret", "key", "username", "user", "credential", "claim")

ABOUT = """What is in here: a box's status, its configuration without secrets, what doctor found, versions of its software, the last
lines of its log, the end of its journal, sizes of its database's tables, and its metrics. Passwords, keys, tokens, user names of
cameras, pictures and samples are not. Have a look before you send it on.
"""


def bundle(parts: Mapping[str, Callable[[], str]]) -> bytes:
    """A zip of texts by file name. A part that cannot be made says why in its place; the others are there."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README.txt", ABOUT)
        for name, make in parts.items():
            archive.writestr(name, _part(make))
    return target.getvalue()


def _part(make: Callable[[], str]) -> bytes:
    try:
        text = make()
    except Exception as error:  # whatever is broken is what the bundle is for
        text = f"not available: {type(error).__name__}: {error}\n"
    return redact(text).encode(errors="replace")[-PART_MAX_BYTES:]


def plain(value: Any) -> Any:
    """JSON-able, with everything blotted out that stands under a private key."""
    if isinstance(value, Mapping):
        return {str(k): "***" if _is_private(str(k)) and v not in (None, "", False) else plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, int | float | bool | None) else redact(str(value))


def _is_private(key: str) -> bool:
    return any(word in key.lower() for word in _PRIVATE)


def config_text(config: BoxConfig) -> str:
    """The configuration in force. Its secrets do not leave their types as text (`configs.schema.secret`)."""
    return json.dumps(plain(config.model_dump(mode="python")), indent=1, default=lambda value: redact(str(value)))


def versions_text() -> str:
    found = sorted({f"{d.metadata['Name']}=={d.version}" for d in distributions()}, key=str.lower)
    machine = f"driftbox {software_version()}\npython {platform.python_version()}\n{platform.platform()}\n"
    return machine + "\n".join(found) + "\n"


def database_text(path: Path) -> str:
    """Tables, their columns and numbers of rows; no content of any row."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)) as db:
        lines = [f"{path.stat().st_size} bytes"]
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
            columns = ", ".join(row[1] for row in db.execute("SELECT * FROM pragma_table_info(?)", (table,)))
            quoted = table.replace('"', '""')
            (rows,) = db.execute(f'SELECT count(*) FROM "{quoted}"').fetchone()
            lines.append(f"{table}: {rows} rows ({columns})")
    return "\n".join(lines) + "\n"


def journal_text(events_dir: Path) -> str:
    """The end of the newest segment."""
    segments = sorted(events_dir.glob("*.jsonl"))
    if not segments:
        return "no journal yet\n"
    with segments[-1].open("rb") as file:
        file.seek(max(0, segments[-1].stat().st_size - JOURNAL_BYTES))
        return f"{segments[-1].name}\n{file.read().decode(errors='replace')}"
