"""What the options, the environment and the data directory say."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from . import ci
from .client import Json, Server

BATCH_MAX = 100
BATCH_DEFAULT = 1
DEFAULT_URL = "http://127.0.0.1:7117"


@dataclass(frozen=True)
class Settings:
    """Settings of a node."""

    server: Server
    build: str
    worker: str
    batch: int
    rules: Json = field(default_factory=dict)
    """Rules of the build, if this node creates it. The server has the defaults."""
    known_flaky: frozenset[str] = frozenset()
    is_retry: bool = False
    """Whether the CI system runs the node again: then the build is not created."""


def add_options(parser: pytest.Parser) -> None:
    """Declares the command line options."""
    group = parser.getgroup("tenure", "tests of a CI build on all its nodes, from one queue")
    add = group.addoption
    add("--tenure", action="store_true", help="run the tests of the queue of a Tenure server")
    add("--tenure-build", metavar="ID", help="id of the build, equal on all nodes")
    add("--tenure-worker", metavar="ID", help="id of this node, unique in the build")
    add("--tenure-server", metavar="URL", help="server; by default that of TENURE_SERVER")
    add("--tenure-key", metavar="KEY", help="key; prefer TENURE_KEY, which other users cannot see")
    batch = "tests that are reserved at once"
    add("--tenure-batch", metavar="N", type=int, default=BATCH_DEFAULT, help=batch)
    requeues = "times that a failed test is run again"
    add("--tenure-max-requeues", metavar="N", type=int, help=requeues)
    tolerance = "fraction of the tests that may be run again in total"
    add("--tenure-requeue-tolerance", metavar="X", type=float, help=tolerance)
    add("--tenure-timeout", metavar="SECONDS", type=float, help="time limit of one run of a test")
    add("--tenure-max-failures", metavar="N", type=int, help="failed tests that stop the build")
    add("--tenure-seed", metavar="SEED", help="seed of the order; by default the id of the build")
    flaky = "tests whose failure does not fail the build, one id per line"
    add("--tenure-known-flaky", metavar="FILE", help=flaky)


def read(config: pytest.Config) -> Settings:
    """Reads the settings. Raises `pytest.UsageError`."""
    refuse_xdist(config)
    build = config.getoption("tenure_build") or ci.build_id(os.environ)
    if not build:
        raise pytest.UsageError(
            "--tenure: no CI system is known here, so name the build, equal on all nodes: "
            "--tenure-build ID or TENURE_BUILD"
        )
    batch = config.getoption("tenure_batch")
    if not 1 <= batch <= BATCH_MAX:
        raise pytest.UsageError(f"--tenure-batch: {batch} is not between 1 and {BATCH_MAX}")
    return Settings(
        server=find_server(config),
        build=build,
        worker=config.getoption("tenure_worker") or ci.worker_id(os.environ),
        batch=batch,
        rules=read_rules(config),
        known_flaky=read_known_flaky(config.getoption("tenure_known_flaky")),
        is_retry=ci.is_retry(os.environ),
    )


def refuse_xdist(config: pytest.Config) -> None:
    """Refuses the distribution of pytest-xdist."""
    is_distributed = config.getoption("dist", "no") != "no" or config.getoption("tx", None)
    if config.getoption("numprocesses", None) or is_distributed:
        raise pytest.UsageError(
            "--tenure: the options -n, --dist and --tx of pytest-xdist cannot be used with it; "
            "start one process `pytest --tenure` per node or CPU instead"
        )


def read_rules(config: pytest.Config) -> Json:
    """Returns the rules that were named."""
    timeout_s: float | None = config.getoption("tenure_timeout")
    # `--maxfail` and `-x` count the failures of the build, not those of the node.
    max_failures = config.getoption("tenure_max_failures") or config.getoption("maxfail", 0)
    rules: dict[str, Any] = {
        "seed": config.getoption("tenure_seed"),
        "timeout_ms": None if timeout_s is None else round(timeout_s * 1000),
        "max_requeues": config.getoption("tenure_max_requeues"),
        "requeue_tolerance": config.getoption("tenure_requeue_tolerance"),
        "max_failures": max_failures or None,
    }
    return {name: value for name, value in rules.items() if value is not None}


def read_known_flaky(path: str | None) -> frozenset[str]:
    """Reads a list of tests. Empty lines and those that start with `#` are skipped."""
    if path is None:
        return frozenset()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--tenure-known-flaky: {path}: {error}") from error
    stripped = (line.strip() for line in lines)
    return frozenset(line for line in stripped if line and not line.startswith("#"))


def find_server(config: pytest.Config) -> Server:
    """Returns the named server, or the one that runs on this machine."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    data = Path(os.environ.get("TENURE_DATA") or os.path.join(home, "tenure"))
    url = config.getoption("tenure_server") or os.environ.get("TENURE_SERVER")
    url = (url or _read(data / "server.url") or DEFAULT_URL).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise pytest.UsageError(f"--tenure: {url} is not the address of a server: http[s]://HOST")
    # Tests and the processes that they start do not need the key.
    inherited = os.environ.pop("TENURE_KEY", None)
    key = config.getoption("tenure_key") or inherited or _read(data / "admin.key")
    if not key:
        raise pytest.UsageError("--tenure: set TENURE_KEY to a key of the server")
    return Server(url=url, key=key, tenant=os.environ.get("TENURE_TENANT") or None)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
