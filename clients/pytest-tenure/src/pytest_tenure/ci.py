"""Ids of builds and nodes, from the variables of CI systems.

The id of a build is equal on all its nodes. The id of a node is unique in its build.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping

WORKER_BYTES_MAX = 128


def build_id(env: Mapping[str, str]) -> str | None:
    """Returns the id of the build, or `None` outside the CI systems that are known.

    `tenure build run` finds the same ids.
    """
    if env.get("TENURE_BUILD"):
        return env["TENURE_BUILD"]
    parts = _parts(env)
    return _join(parts) if parts and all(parts) else None


def _parts(env: Mapping[str, str]) -> list[str]:
    def values(*names: str) -> list[str]:
        return [env.get(name, "") for name in names]

    if env.get("GITHUB_ACTIONS"):
        return values("GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_JOB")
    if env.get("GITLAB_CI"):
        # The nodes of `parallel: 5` have the names `test 1/5` to `test 5/5`.
        job = re.sub(r"\s+\d+/\d+$", "", env.get("CI_JOB_NAME", ""))
        return [*values("CI_PROJECT_PATH", "CI_PIPELINE_ID"), job]
    if env.get("BUILDKITE"):
        return [part for part in values("BUILDKITE_BUILD_ID", "BUILDKITE_STEP_ID") if part]
    if env.get("CIRCLECI"):
        return values("CIRCLE_WORKFLOW_ID", "CIRCLE_JOB")
    if env.get("JENKINS_URL"):
        return values("JOB_NAME", "BUILD_NUMBER")
    return []


def worker_id(env: Mapping[str, str]) -> str:
    """Returns the id of the node."""
    if env.get("TENURE_WORKER"):
        return env["TENURE_WORKER"]
    name = None
    if env.get("GITHUB_ACTIONS"):
        # There is no variable for the index in a matrix. A runner has one job at a time.
        name = env.get("RUNNER_NAME")
    elif env.get("GITLAB_CI"):
        name = env.get("CI_NODE_INDEX") or env.get("CI_JOB_ID")
    elif env.get("BUILDKITE"):
        name = env.get("BUILDKITE_PARALLEL_JOB") or env.get("BUILDKITE_JOB_ID")
    elif env.get("CIRCLECI"):
        name = env.get("CIRCLE_NODE_INDEX")
    elif env.get("JENKINS_URL") and env.get("NODE_NAME") and env.get("EXECUTOR_NUMBER"):
        name = f"{env['NODE_NAME']}-{env['EXECUTOR_NUMBER']}"
    name = name or f"{socket.gethostname()}/{os.getpid()}"
    return name.encode()[:WORKER_BYTES_MAX].decode(errors="ignore")


def is_retry(env: Mapping[str, str]) -> bool:
    """Returns whether the CI system runs the node again."""
    attempt, count = env.get("GITHUB_RUN_ATTEMPT", ""), env.get("BUILDKITE_RETRY_COUNT", "")
    return (attempt.isdigit() and int(attempt) > 1) or (count.isdigit() and int(count) > 0)


def _join(parts: list[str]) -> str:
    """Makes an id of the allowed characters."""
    allowed = re.sub(r"[^0-9A-Za-z._/-]", "-", "/".join(parts))
    return re.sub(r"^[^0-9A-Za-z]+", "", allowed)
