"""What the reports of pytest mean for the queue."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

MESSAGE_BYTES_MAX = 1_024
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

CODES = {"setup": "SETUP_FAILED", "call": "FAILED", "teardown": "TEARDOWN_FAILED"}


def failure(reports: Sequence[pytest.TestReport]) -> pytest.TestReport | None:
    """Returns the report that makes the test fail. Skipped and expected failures do not."""
    return next((report for report in reports if report.failed), None)


def code(report: pytest.TestReport) -> str:
    """Returns the failure code of a phase."""
    return CODES.get(report.when or "call", "FAILED")


def message(report: pytest.TestReport, root: Path) -> str:
    """Describes a failure for the summary of all nodes, with a path below `root`."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        path = crash.path.removeprefix(f"{root}{os.sep}")
        return clean(f"{path}:{crash.lineno}: {crash.message}")
    # Errors of fixtures, such as an unknown one, have no place. Their end says most.
    text = report.longreprtext.strip().encode(errors="replace")
    return clean(text[-MESSAGE_BYTES_MAX:].decode(errors="ignore"))


def clean(text: str) -> str:
    """Removes escape sequences and control characters, and shortens a text to what is stored."""
    text = _CONTROLS.sub("", _ESCAPES.sub("", text))
    return text.encode(errors="replace")[:MESSAGE_BYTES_MAX].decode(errors="ignore")
