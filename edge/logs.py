"""What an operator reads on stderr: plain lines, no credentials, and tracebacks only when asked for with `--debug`."""

from __future__ import annotations

import logging
import os
import sys
import threading

from configs.errors import redact
from edge.log_ring import RING

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
    root.handlers[:] = [handler, RING]
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    # Else Python prints the traceback of a thread that dies as it is, addresses with passwords included.
    threading.excepthook = _thread_died


def _thread_died(died: threading.ExceptHookArgs) -> None:
    if died.exc_type is not SystemExit and died.exc_value is not None:
        name = died.thread.name if died.thread is not None else "?"
        text = f"{died.exc_type.__name__}: {died.exc_value}"
        logging.getLogger("driftbox").error(
            "the thread %s has ended: %s", name, text, exc_info=(died.exc_type, died.exc_value, died.exc_traceback)
        )
