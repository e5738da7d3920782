"""One JSON object a line on stderr. Values of a pod's environment never get here."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

LOGGER = "webhook"
_log = logging.getLogger(LOGGER)


class JsonFormatter(logging.Formatter):
    """Renders a record and its `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"), default=str)


def configure(level: str) -> None:
    """Send our own, gunicorn's and every library's records to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    _log.setLevel(level.upper())


def event(level: int, message: str, *, exc_info: bool = False, **fields: Any) -> None:
    """Log a message with fields."""
    if _log.isEnabledFor(level):
        _log.log(level, message, extra={"fields": fields}, exc_info=exc_info)
