"""One JSON object a line on stderr. Values of a pod's environment never get here."""

import json
import logging
import os
import time
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

_STDERR = 2
_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode
_level = logging.INFO


class JsonHandler(logging.Handler):
    """Libraries' and gunicorn's records in the same form as our own events."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record."""
        text = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
        _write(record.levelno, record.getMessage(), {"exception": text} if text else {})


def configure(level: str) -> None:
    """Set the level of our events; of others' records only warnings are written."""
    global _level  # noqa: PLW0603 (the one setting of this module)
    _level = getattr(logging, level.upper())
    root = logging.getLogger()
    root.handlers[:] = [JsonHandler()]
    root.setLevel(max(_level, logging.WARNING))


def event(level: int, message: str, *, exc_info: bool = False, **fields: Any) -> None:
    """Log a message with fields.

    Not by the logging module: with it the line costs as much as the decision that it tells of.
    """
    if level >= _level:
        if exc_info:
            fields["exception"] = traceback.format_exc()
        _write(level, message, fields)


def _write(level: int, message: str, fields: dict[str, Any]) -> None:
    now = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
    line = {"time": now, "level": logging.getLevelName(level).lower(), "message": message, **fields}
    # One call a line: lines of threads and processes don't mix. Where nobody can read the log, reviews go on.
    with suppress(OSError):
        os.write(_STDERR, (_encode(line) + "\n").encode())
