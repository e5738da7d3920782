"""Calls of sources that may hang: each source has a thread of its own, and whoever asks waits only so long."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class HangingError(Exception):
    """The source has not answered in time; it may still do so."""


class Hangproof(Generic[T]):
    """One function that may block for ever, called in its own thread.

    There is at most one call at a time: while one hangs, later callers are told so at once and no further thread is
    made. An answer that comes too late is thrown away: it tells of another time.
    """

    def __init__(self, name: str, call: Callable[[], T]) -> None:
        self._name = name
        self._call = call
        self._busy = threading.Lock()

    def ask(self, seconds: float) -> T:
        """Call, and give what the function gives or raises. Raises HangingError."""
        if not self._busy.acquire(blocking=False):
            raise HangingError(f"{self._name} has not answered for {seconds:g} s")
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.append(self._call())
            except BaseException as e:
                errors.append(e)
            finally:
                self._busy.release()
                done.set()

        threading.Thread(target=work, name=self._name, daemon=True).start()
        if not done.wait(seconds):
            raise HangingError(f"{self._name} has not answered for {seconds:g} s")
        if errors:
            raise errors[0]
        return results[0]
