"""Runs the tests that the node reserves, one after the other."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable

import pytest
from _pytest.runner import runtestprotocol

from . import outcome
from .client import Json, now
from .errors import EXIT_TIMED_OUT, EXIT_TOO_MANY_FAILURES, EXIT_UNAVAILABLE, Lost, Stop
from .node import WAIT_MS, Node, Reservation, ReservedTest
from .settings import Settings
from .watchdog import Watchdog

Settle = Callable[[pytest.Item, "Sequence[pytest.TestReport]", str], None]


@dataclass(frozen=True)
class Done:
    """A test that has run, and whose result the server does not know yet."""

    item: pytest.Item
    result: Json
    reports: list[pytest.TestReport]


class Runner:
    """Runs the tests of a build until none is left.

    `say` shows a line, `settle` the verdict on a failed test. `stderr` is a file descriptor that
    pytest does not capture.
    """

    def __init__(
        self,
        session: pytest.Session,
        settings: Settings,
        say: Callable[[str], None],
        settle: Settle,
        stderr: int,
    ) -> None:
        self._session, self._settings = session, settings
        self._say, self._settle, self._stderr = say, settle, stderr
        self._pid = os.getpid()
        self._items = {item.nodeid: item for item in session.items}
        self._node = Node(settings, list(self._items), say)
        self._queue: deque[ReservedTest] = deque()
        self._running: ReservedTest | None = None
        self._done: list[Done] = []
        self._reports: list[pytest.TestReport] | None = None
        self.report: Json | None = None

    def run(self) -> None:
        """Works on the build until it is finished or stopped. Sets its report."""
        try:
            self._node.create()
            limit_s = self._node.rules["timeout_ms"] / 1000
            watchdog = Watchdog(limit_s, lambda: self._end_after_timeout(limit_s))
            while True:
                try:
                    self._node.enter()
                    # Failed tests may be run again while the last node asks for the report.
                    while self.report is None or self.report["unfinished"]:
                        self._run_tests(watchdog)
                        self.report = self._node.report()
                    self._check_total(self.report["total"])
                    return
                except Lost as why:
                    self._say(f"this node has lost its session and joins again: {why}")
                    self._forget()
        except Stop as stop:
            if stop.exit_code == EXIT_TOO_MANY_FAILURES:
                self._leave()
                self.report = self._node.report()
            raise
        finally:
            self._leave()

    def run_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Runs a test, within the hooks that other plugins wrap around it.

        The reports of a failed test are logged with the verdict of the server.
        """
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if outcome.failure(reports) is None:
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._reports = reports

    def _run_tests(self, watchdog: Watchdog) -> None:
        while True:
            if not self._queue:
                reservation = self._reserve(WAIT_MS)
                if reservation.is_finished:
                    return
                continue
            self._running = self._queue.popleft()
            if not self._queue:
                # pytest keeps the fixtures that a test shares with the next one, so that one must
                # be known.
                self._reserve(0)
            self._node.check()
            with watchdog.section():
                self._run_test(self._running)
            self._running = None
            if self._session.shouldfail:
                raise self._session.Failed(self._session.shouldfail)
            if self._session.shouldstop:
                raise self._session.Interrupted(self._session.shouldstop)

    def _run_test(self, test: ReservedTest) -> None:
        item = self._items[test.test]
        nextitem = self._items[self._queue[0].test] if self._queue else None
        self._reports = None
        started = now()
        item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        duration_ms = round((now() - started) * 1000)
        reports = self._reports
        if reports is None:
            text = f"another plugin has run {test.test} itself; disable it, see the README"
            raise pytest.UsageError(f"--tenure: {text}")
        failure = outcome.failure(reports)
        if failure is None:
            result = test.result("passed", duration_ms=duration_ms)
        else:
            message = outcome.message(failure, item.config.rootpath)
            result = self._failed(test, duration_ms, outcome.code(failure), message)
        self._done.append(Done(item, result, reports))

    def _failed(self, test: ReservedTest, duration_ms: int, code: str, message: str) -> Json:
        facts: Json = {"duration_ms": duration_ms, "code": code, "message": message}
        if test.test in self._settings.known_flaky:
            facts["known_flaky"] = True
        return test.result("failed", **facts)

    def _reserve(self, wait_ms: int) -> Reservation:
        results = [done.result for done in self._done]
        reservation = self._node.reserve(self._settings.batch, wait_ms, results)
        self._settle_all(reservation.verdicts)
        self._queue.extend(reservation.tests)
        if reservation.stopped and not reservation.is_finished:
            raise Stop(EXIT_TOO_MANY_FAILURES, reservation.stopped)
        return reservation

    def _settle_all(self, verdicts: Sequence[str]) -> None:
        done, self._done = self._done, []
        for one, verdict in zip(done, verdicts):
            if outcome.failure(one.reports) is not None:
                self._settle(one.item, one.reports, verdict)

    def _check_total(self, total: int) -> None:
        """Refuses to succeed when tests of this node are missing in the build."""
        if total != len(self._items):
            text = f"the build had {total} tests, this node has {len(self._items)}"
            raise Stop(EXIT_UNAVAILABLE, text)

    def _forget(self) -> None:
        """Drops what belonged to a lost session: other nodes run those tests."""
        self._node.leave()
        self._settle_all(["lost"] * len(self._done))
        self._queue.clear()
        self._running = None

    def _leave(self) -> None:
        """Returns the tests that have not run, and closes the session."""
        if os.getpid() != self._pid:  # a process that a test has forked
            return
        if self._node.is_alive():
            self._settle_all(self._acknowledge([done.result for done in self._done]))
        self._settle_all(["lost"] * len(self._done))
        self._node.leave()

    def _acknowledge(self, results: list[Json]) -> list[str]:
        held = [self._running] if self._running is not None else []
        not_run = [test.result("not_run") for test in [*held, *self._queue]]
        return self._node.acknowledge([*results, *not_run]) if results or not_run else []

    def _end_after_timeout(self, limit_s: float) -> None:
        """Ends the process, in which a test does not end. Called by the thread of the watchdog."""
        try:
            self._give_up_test(limit_s)
        finally:
            os._exit(EXIT_TIMED_OUT)

    def _give_up_test(self, limit_s: float) -> None:
        test, self._running = self._running, None
        if test is None:
            return
        os.write(self._stderr, b"\n")
        faulthandler.dump_traceback(self._stderr, all_threads=True)
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        place = f" in {frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
        text = f"it has not ended within {limit_s:g} s, and was{place}"
        failed = self._failed(test, round(limit_s * 1000), "TIMED_OUT", outcome.clean(text))
        verdicts = self._acknowledge([*(done.result for done in self._done), failed])
        verdict = verdicts[len(self._done)] if len(verdicts) > len(self._done) else "unknown"
        self._node.leave()
        line = (
            f"tenure: {test.test} has not ended within {limit_s:g} s (verdict: {verdict}); this "
            f"node ends with exit code {EXIT_TIMED_OUT}\n"
        )
        os.write(self._stderr, line.encode(errors="replace"))
