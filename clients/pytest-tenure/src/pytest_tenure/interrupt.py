"""SIGTERM works like Ctrl-C: fixtures are torn down, and other nodes get the tests at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


class TermInterrupts:
    """Raises `KeyboardInterrupt` at SIGTERM, within a `with` block of the main thread.

    Processes that tests fork have the default action. Python drops signals that arrive while it
    forks, so they are blocked until the new process has that action.
    """

    def __init__(self) -> None:
        self._masks = threading.local()
        self._is_active = False

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGTERM, self._handle)
        self._is_active = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._block,
                after_in_parent=self._unblock,
                after_in_child=self._restore_default,
            )

    def __exit__(self, *_: object) -> None:
        # The functions that are called around a fork cannot be removed.
        self._is_active = False
        signal.signal(signal.SIGTERM, self._before)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt("SIGTERM")

    def _block(self) -> None:
        mask = None
        if self._is_active:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._masks.before = mask

    def _unblock(self) -> None:
        if self._masks.before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def _restore_default(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._unblock()
