"""The running box's own token, for commands on its machine: a file that only the box's user may read, new at every start.

Whoever may read the data folder may ask the box, and only from this machine (`edge.web.accounts.gate`).
"""

from __future__ import annotations

from pathlib import Path

from configs.files import atomic_write, storage_errors
from edge.web.accounts.rules import LOCAL_TOKEN, Token, new_token, parse_token


def local_token_path(data_dir: Path) -> Path:
    return data_dir / "web" / "local-token"


def write_local_token(data_dir: Path) -> Token:
    """Makes a new one; the one before opens nothing any more. Raises StorageError."""
    token, path = new_token(LOCAL_TOKEN), local_token_path(data_dir)
    with storage_errors(path):
        path.parent.mkdir(mode=0o700, exist_ok=True)
    atomic_write(path, f"{token}\n".encode(), durable=False, secret=True)
    return token


def read_local_token(data_dir: Path) -> Token | None:
    """None: there is none, or this user may not read it."""
    try:
        return parse_token(local_token_path(data_dir).read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError):
        return None
