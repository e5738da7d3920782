"""The exporter's end of the two pipes to the reader."""

import select
from collections.abc import Sequence
from typing import BinaryIO

from monitor.messages import MAX_LINE_BYTES, Scan, decode_scan, encode_request


class ReaderPipe:
    """Asks the reader, one question at a time."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests = requests
        self._answers = answers
        self._number = 0

    def scan(self, pids: Sequence[int]) -> Scan:
        """Have the reader look once. Raises EOFError when it is gone, ValueError for an answer that isn't one."""
        self._number += 1
        try:
            self._requests.write(encode_request(self._number, list(pids)))
            self._requests.flush()
        except BrokenPipeError:
            raise EOFError("the reader is gone") from None
        while True:
            line = self._answers.readline(MAX_LINE_BYTES)
            if not line.endswith(b"\n"):
                raise EOFError("the reader is gone")
            number, scan = decode_scan(line)
            if number == self._number:
                return scan

    def wait_gone(self, seconds: float) -> bool:
        """Wait that long for the reader's end; whether it has come."""
        poll = select.poll()
        poll.register(self._answers.fileno(), 0)  # only POLLHUP and POLLERR, which need no asking for
        return bool(poll.poll(seconds * 1000))
