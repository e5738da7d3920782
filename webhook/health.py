"""Whether the webhook is ready, and why not."""

import threading


class Health:
    """Conditions by name: the webhook is ready when none of them holds a complaint."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._complaints: dict[str, str] = {}

    def report(self, condition: str, complaint: str = "") -> None:
        """Set what is wrong with a condition, nothing where it is well."""
        with self._lock:
            if complaint:
                self._complaints[condition] = complaint
            else:
                self._complaints.pop(condition, None)

    def complaints(self) -> dict[str, str]:
        """Return what is wrong now."""
        with self._lock:
            return dict(self._complaints)
