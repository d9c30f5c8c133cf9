"""The time limit of a test: a thread that acts when the test does not end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Callable


class Watchdog:
    """Calls a function in its thread when a section of the main thread takes too long.

    The function ends the process, so the section never ends after it was called.
    """

    def __init__(self, limit_s: float, on_timeout: Callable[[], None]) -> None:
        self._limit_s, self._on_timeout = limit_s, on_timeout
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._fired = False
        threading.Thread(target=self._run, name="tenure-watchdog", daemon=True).start()

    @contextlib.contextmanager
    def section(self) -> Iterator[None]:
        """Limits the time of a `with` block."""
        self._set(time.monotonic() + self._limit_s)
        try:
            yield
        finally:
            self._set(None)

    def _set(self, deadline: float | None) -> None:
        with self._changed:
            self._deadline = deadline
            self._changed.notify()
            has_fired = self._fired
        while has_fired:  # the process ends
            time.sleep(1.0)

    def _run(self) -> None:
        with self._changed:
            while not self._fired:
                left = None if self._deadline is None else self._deadline - time.monotonic()
                if left is None or left > 0:
                    self._changed.wait(left)
                else:
                    self._fired = True
        self._on_timeout()
