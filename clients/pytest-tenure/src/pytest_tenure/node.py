"""A node of a build: it joins, leads or follows, reserves tests and gives their results.

Every rule about the queue is on the server; this file sends its requests in the right order.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Callable
from urllib.parse import quote

from .client import ANSWER_S, Connection, Json, now
from .errors import (
    EXIT_LEADERS_LOST,
    EXIT_NO_LEADER,
    EXIT_UNAVAILABLE,
    Lost,
    NoAnswer,
    Refused,
    Stop,
)
from .order import digest, order
from .session import Session
from .settings import Settings

PUBLISH_MAX = 1_000
"""Maximum number of tests that are published in one request."""
WAIT_MS = 10_000
"""Maximum time that one request waits for a leader or for a test."""
FINAL_S = 3.0
"""Maximum time to wait for the answer to the last results of a node that ends early."""


@dataclass(frozen=True)
class ReservedTest:
    """A test that the node is to run."""

    job: str
    token: int
    test: str
    failures: int
    losses: int

    def result(self, outcome: str, **facts: object) -> Json:
        """Describes what became of the test."""
        return {**asdict(self), "outcome": outcome, **facts}


@dataclass(frozen=True)
class Reservation:
    """Answer to a reservation."""

    tests: list[ReservedTest]
    verdicts: list[str]
    is_finished: bool
    stopped: str | None


class Node:
    """A node of a build."""

    def __init__(
        self, settings: Settings, tests: Sequence[str], say: Callable[[str], None]
    ) -> None:
        self._settings, self._tests, self._say = settings, tests, say
        self._connection = Connection(settings.server)
        self._list: Json = {"total": len(tests), "digest": digest(tests)}
        self._session: Session | None = None
        self._term = 0
        self._restart = settings.is_retry
        self.rules: Json = {}

    def create(self) -> None:
        """Creates the build, or finds it; learns its rules."""
        own = self._settings
        body: Json = {"worker": own.worker, "tests": self._list, "rules": own.rules}
        if own.is_retry:
            body["existing"] = True
        build = self._send("join", body)["build"]
        self.rules = build["rules"]
        if build["master_status"] == "finished" or build.get("stopped"):
            self._retry_failures()

    def _retry_failures(self) -> None:
        """Queues the failed tests of an earlier run of this node, or of all nodes if the CI system
        runs a node again under another name.
        """
        queued, whose = self._send("retry", {"worker": self._settings.worker})["tests"], "this node"
        if not queued and self._settings.is_retry:
            queued, whose = self._send("retry", {})["tests"], "all nodes"
        if queued:
            self._say(f"running {queued} failed tests of {whose} again")

    def enter(self) -> None:
        """Opens a session and waits until the tests are published. Publishes them if it leads.

        Raises `Lost` if the session is lost before.
        """
        self._session = Session(
            self._settings.server,
            self._connection,
            self._settings.worker,
            self.rules["stale_ms"],
            self.rules["heartbeat_ms"],
        )
        has_leader_since = now()
        while True:
            answer = self._join()
            build = answer["build"]
            if answer["role"] == "leader":
                self._say(f"this node leads build {build['build']} in term {build['term']}")
                try:
                    self._publish(answer["leadership"])
                except Lost as why:
                    self._say(f"this node no longer leads: {why}")
            elif build["master_status"] in ("ready", "finished"):
                self._term = build["term"]
                leader = build["master_worker_id"]
                self._say(f"{build['total']} tests were published by {leader}")
                return
            elif build["master_status"] == "failed":
                raise _setup_failed(build)
            elif build["master_setup_heartbeat"] is not None:
                has_leader_since = now()
            elif now() - has_leader_since > self.rules["wait_ms"] / 1000:
                wait_s = self.rules["wait_ms"] / 1000
                raise Stop(EXIT_NO_LEADER, f"no node has led the build for {wait_s:g} s")

    def is_alive(self) -> bool:
        """Returns whether the node still has the tests that it reserved."""
        return self._session is not None and self._session.is_alive()

    def check(self) -> Session:
        """Returns the session. Raises `Lost` if the node has lost its tests."""
        if self._session is None or not self._session.is_alive():
            raise Lost("no heartbeat has reached the server in time")
        return self._session

    def reserve(self, maximum: int, wait_ms: int, results: list[Json]) -> Reservation:
        """Gives results and reserves tests. Raises `Lost` if all reserved tests are lost."""
        body = {
            "worker": self._settings.worker,
            "session": self.check().id,
            "term": self._term,
            "max": maximum,
            "wait_ms": wait_ms,
            "results": results,
        }
        answer = self._send("reserve", body, wait_ms)
        stopped = answer.get("stopped")
        return Reservation(
            tests=[_reserved(test) for test in answer["tests"]],
            verdicts=answer["verdicts"],
            is_finished=answer["finished"],
            stopped=stopped["message"] if stopped else None,
        )

    def acknowledge(self, results: list[Json]) -> list[str]:
        """Gives results from any thread, once: for a node that ends early."""
        connection = Connection(self._settings.server)
        body = {"worker": self._settings.worker, "term": self._term, "results": results}
        try:
            answer = connection.call("POST", self._path("ack"), body, timeout_s=FINAL_S)
            return list(answer["verdicts"])
        except (NoAnswer, Refused):
            return []  # the session is closed next, so other nodes run the tests
        finally:
            connection.close()

    def report(self) -> Json:
        """Returns the results of the build."""
        try:
            return self._connection.repeat("GET", self._path("report"))
        except Refused as refusal:
            raise Stop(EXIT_UNAVAILABLE, str(refusal)) from refusal

    def leave(self) -> None:
        """Closes the session: other nodes get what the node holds."""
        if self._session is not None:
            self._session.close()

    def _join(self) -> Json:
        wait_ms = min(WAIT_MS, self.rules["wait_ms"])
        body = {
            "worker": self._settings.worker,
            "session": self.check().id,
            "tests": self._list,
            "existing": True,
            # Once: a setup that fails again has failed.
            "restart": self._restart,
            "wait_ms": wait_ms,
        }
        self._restart = False
        return self._send("join", body, wait_ms)

    def _publish(self, leadership: Json) -> None:
        tests = order(self._tests, self.rules["seed"])
        for first in range(0, max(len(tests), 1), PUBLISH_MAX):
            chunk = tests[first : first + PUBLISH_MAX]
            body = {**leadership, "first": first, "tests": chunk}
            if first + len(chunk) == len(tests):
                body.update(self._list)
            self._send("publish", body)

    def _send(self, action: str, body: Json, wait_ms: int = 0) -> Json:
        """Sends a request until it is answered. A repetition has no further effect."""
        try:
            return self._connection.repeat(
                "POST",
                self._path(action),
                body,
                request_id=uuid.uuid4().hex,
                timeout_s=wait_ms / 1000 + ANSWER_S,
            )
        except Refused as refusal:
            if refusal.is_lost:
                raise Lost(str(refusal)) from refusal
            raise Stop(EXIT_UNAVAILABLE, str(refusal)) from refusal

    def _path(self, action: str) -> str:
        return f"/v1/builds/{quote(self._settings.build, safe='')}/{action}"


def _reserved(test: Json) -> ReservedTest:
    names = ("job", "token", "test", "failures", "losses")
    return ReservedTest(**{name: test[name] for name in names})


def _setup_failed(build: Json) -> Stop:
    error = build.get("error") or {}
    code, message = error.get("code", "UNKNOWN"), error.get("message", "")
    exit_code = EXIT_LEADERS_LOST if code == "WORKER_TIMEOUT" else EXIT_UNAVAILABLE
    return Stop(exit_code, f"the setup of the build failed: {code}: {message}")
