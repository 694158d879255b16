"""Log records lose their credentials on the way out, whoever wrote them and whatever they carry."""

from __future__ import annotations

import logging

from configs.errors import redact


class RedactingFormatter(logging.Formatter):
    """Formats as usual, then redacts the whole text, traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
