"""The order of tests: a pure function of the tests and the seed, the same on every node.

It equals `apps/builds/src/order.rs` of the server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def order(tests: Iterable[str], seed: str) -> list[str]:
    """Shuffles tests in a way that depends on the seed only."""
    return sorted(tests, key=lambda test: hashlib.sha256(f"{seed}\n{test}".encode()).digest())


def digest(tests: Iterable[str]) -> str:
    """Returns a digest of a list of tests that does not depend on its order."""
    text = "".join(f"{test}\n" for test in sorted(tests))
    return hashlib.sha256(text.encode()).hexdigest()


def find_duplicate(tests: Iterable[str]) -> str | None:
    """Returns the first test that occurs twice."""
    seen: set[str] = set()
    for test in tests:
        if test in seen:
            return test
        seen.add(test)
    return None
