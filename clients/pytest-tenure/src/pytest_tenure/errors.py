"""Exit codes of a node, and the errors that end or restart its work."""

from __future__ import annotations

EXIT_NO_LEADER = 40
EXIT_LEADERS_LOST = 41
EXIT_UNAVAILABLE = 42
EXIT_TIMED_OUT = 43
EXIT_TOO_MANY_FAILURES = 44


class Stop(Exception):
    """The node ends with an exit code."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Lost(Exception):
    """The node has lost its session, or the tests that it knows no longer count."""


class NoAnswer(Exception):
    """The outcome of a request is unknown: repeat it."""


class Refused(Exception):
    """The server has refused a request."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code

    @property
    def is_lost(self) -> bool:
        """Whether the session, or the right that the request used, is lost."""
        return self.code == "lost"
