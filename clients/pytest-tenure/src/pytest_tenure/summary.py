"""The summary of a build: the same on every node, made from the report of the server."""

from __future__ import annotations

from collections.abc import Iterator

from .client import Json

LISTED_MAX = 100
"""Maximum number of tests of one sort that are listed."""

Line = tuple[str, dict[str, bool]]
RED, YELLOW, GREEN = {"red": True}, {"yellow": True}, {"green": True}


def lines(report: Json) -> Iterator[Line]:
    """Returns the lines with their colours."""
    colour = RED if report["failed"] or report["unfinished"] else GREEN
    yield totals(report), colour
    for test in report["failures"][:LISTED_MAX]:
        runs = count(test["failures"], "failed run")
        place = f" on {test['worker']}" if test["worker"] else ""
        yield f"FAILED {test['test']} ({test['code']}{place}, {runs})", RED
        for line in (test["message"] or "").splitlines():
            yield f"    {line}", {}
    yield from more(report["failures"])
    for test in report["flaky_tests"][:LISTED_MAX]:
        runs = count(test["failures"], "failed run")
        end = "passed in the end" if test["state"] == "PASSED" else "known to be flaky"
        yield f"FLAKY {test['test']} ({runs}, {end})", YELLOW
    yield from more(report["flaky_tests"])
    for test in report["lost_tests"][:LISTED_MAX]:
        nodes = count(test["losses"], "node")
        yield f"LOST {test['test']} ({nodes} lost while running it, now {test['state']})", YELLOW
    yield from more(report["lost_tests"])
    for worker in report["workers"]:
        tests, seconds = count(worker["tests"], "test"), worker["duration_ms"] / 1000
        yield f"{worker['worker']}: {tests}, {worker['failed']} failed, {seconds:.2f} s", {}


def totals(report: Json) -> str:
    """Returns the first line."""
    if not report["total"] and not report["unfinished"]:
        return "no tests: the list is empty"
    parts = [f"{report['passed']} passed", f"{report['failed']} failed"]
    for name, text in (("flaky", "known to be flaky"), ("unfinished", "not run")):
        if report[name]:
            parts.append(f"{report[name]} {text}")
    for name, noun in (("requeues", "requeue"), ("losses", "lost run")):
        if report[name]:
            parts.append(count(report[name], noun))
    nodes = count(len(report["workers"]), "node")
    seconds = report["duration_ms"] / 1000
    total = count(report["total"], "test")
    return f"{total} on {nodes} in {seconds:.2f} s: {', '.join(parts)}"


def more(tests: list[Json]) -> Iterator[Line]:
    """Says how many tests of a list are not shown."""
    if len(tests) > LISTED_MAX:
        yield f"... and {len(tests) - LISTED_MAX} more", {}


def count(number: int, noun: str) -> str:
    """Returns `1 test`, `2 tests`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
