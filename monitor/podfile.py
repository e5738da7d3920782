"""The node's pods from a file: for machines without an API server."""

import json
from collections.abc import Mapping
from pathlib import Path

from monitor.pods import Pod, from_object, living


class PodFile:
    """A v1 PodList as JSON, written by whoever runs the pods; read again whenever it was replaced or changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._pods: dict[str, Pod] = {}

    def read(self) -> Mapping[str, Pod]:
        """Give the living pods. Raises OSError, ValueError."""
        status = self._path.stat()
        stamp = status.st_mtime_ns, status.st_size, status.st_ino
        if stamp != self._stamp:
            items = json.loads(self._path.read_text())["items"]
            pods = [from_object(item) for item in items if living(item)]
            self._pods = {pod.uid: pod for pod in pods}
            self._stamp = stamp
        return self._pods
