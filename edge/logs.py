"""What an operator reads on stderr: plain lines, no credentials, and tracebacks only when asked for with `--debug`."""

from __future__ import annotations

import logging
import os
import sys

from configs.errors import redact

#: Set by `driftbox --debug`; inherited by the box's own child processes.
DEBUG_VARIABLE = "DRIFTBOX_DEBUG"


class PlainFormatter(logging.Formatter):
    """One redacted line per record, whoever wrote it; a traceback follows only when `tracebacks` is true, redacted too."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        if not self._tracebacks and record.exc_info:
            record = logging.makeLogRecord({**vars(record), "exc_info": None, "exc_text": None, "stack_info": None})
        return redact(super().format(record))


def set_up_logging() -> None:
    """Everything to stderr from INFO on; the web server's own chatter from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter(tracebacks=os.environ.get(DEBUG_VARIABLE) == "1"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
