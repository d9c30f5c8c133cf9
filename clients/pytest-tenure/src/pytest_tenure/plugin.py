"""The hooks of pytest: `pytest --tenure` runs the tests of a queue that all nodes share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from . import outcome, settings, summary
from .client import Json
from .errors import Stop
from .interrupt import TermInterrupts
from .order import find_duplicate
from .runner import Runner

SHOWN = {
    # verdict: (letter, word)
    "requeued": ("R", "REQUEUED"),
    "flaky": ("Y", "FLAKY"),
    "lost": ("L", "LOST"),
}
"""Verdicts that do not fail the node."""


NO_TESTS = (
    *("collectonly", "help", "version", "markers"),
    *("showfixtures", "show_fixtures_per_test", "cacheshow"),
)
"""Options with which pytest runs no tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    settings.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    if config.option.tenure and not any(config.getoption(name, None) for name in NO_TESTS):
        config.pluginmanager.register(TenurePlugin(config), "tenure-node")


class TenurePlugin:
    """A node of a build."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._settings = settings.read(config)
        # A failure here may be run again elsewhere, so pytest does not stop at it.
        config.option.maxfail = 0
        # pytest captures the output of tests, but not now.
        self._stderr = os.dup(2)
        self._runner: Runner | None = None
        self._report: Json | None = None
        self._stop: Stop | None = None
        self._has_collection_errors = False
        self._pid = os.getpid()

    def pytest_report_header(self) -> str:
        own = self._settings
        return f"tenure: build {own.build}, node {own.worker}, server {own.server.shown_url}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        self._has_collection_errors = session.testsfailed > 0
        if self._has_collection_errors and not session.config.option.continue_on_collection_errors:
            return None  # pytest refuses to run tests
        check_ids([item.nodeid for item in session.items])
        self._runner = Runner(session, self._settings, self._say, self._settle, self._stderr)
        with TermInterrupts():
            try:
                self._runner.run()
            except Stop as stop:
                self._stop = stop
        self._report = self._runner.report
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        assert self._runner is not None
        self._runner.run_protocol(item, nextitem)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        if os.getpid() != self._pid:
            # A process that the test has forked, and that has not ended itself. It must neither
            # tear down fixtures nor take part in the build.
            os._exit(1)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> Any:
        verdict = str(report.outcome)
        if verdict in SHOWN:
            letter, word = SHOWN[verdict]
            return verdict, letter, (word, {"yellow": True})
        return None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._stop is not None:
            session.exitstatus = self._stop.exit_code
        elif self._report is not None:
            has_failed = self._report["failed"] > 0 or self._has_collection_errors
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if has_failed else pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._report is None and self._stop is None:
            return
        terminalreporter.write_sep("=", f"tenure build {self._settings.build}")
        if self._report is not None:
            for line, colour in summary.lines(self._report):
                terminalreporter.write_line(line, **colour)
        if self._stop is not None:
            text = f"ERROR: {self._stop} (exit code {self._stop.exit_code})"
            terminalreporter.write_line(text, red=True)

    def _say(self, text: str) -> None:
        terminal = self._terminal()
        if terminal is not None:
            terminal.ensure_newline()
            if terminal._tw.width_of_current_line:  # with `-q`
                terminal.write("\n")
            terminal.write_line(f"tenure: {text}")

    def _settle(
        self, item: pytest.Item, reports: Sequence[pytest.TestReport], verdict: str
    ) -> None:
        """Shows a failed test with the verdict on it."""
        failure = outcome.failure(reports)
        if failure is None or verdict == "failed":
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
            return
        # Only the terminal shows it: for other plugins the test has not ended on this node.
        failure.outcome = verdict if verdict in SHOWN else "lost"  # type: ignore[assignment]
        terminal = self._terminal()
        if terminal is not None:
            terminal.pytest_runtest_logreport(failure)
            first = outcome.message(failure, item.config.rootpath).partition("\n")[0]
            self._say(f"{item.nodeid} failed, verdict {verdict}: {first}")

    def _terminal(self) -> Any:
        return self._config.pluginmanager.get_plugin("terminalreporter")


def check_ids(tests: list[str]) -> None:
    """Refuses lists that cannot be distributed."""
    duplicate = find_duplicate(tests)
    if duplicate is not None:
        raise pytest.UsageError(f"--tenure: the test {duplicate} is in the list twice")
    for test in tests:
        try:
            test.encode()
        except UnicodeEncodeError:
            raise pytest.UsageError(f"--tenure: the test {test!r} has no UTF-8 name") from None
