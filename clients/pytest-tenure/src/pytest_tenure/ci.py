"""Ids of builds and nodes, from the variables of CI systems.

The id of a build is equal on all its nodes, and another one when the whole build is repeated. The
id of a node is unique in its build.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping

BUILD_BYTES_MAX = 150
WORKER_BYTES_MAX = 128


def build_id(env: Mapping[str, str]) -> str | None:
    """Returns the id of the build, or `None` outside the CI systems that are known."""
    if env.get("TENURE_BUILD"):
        return env["TENURE_BUILD"]
    for variable, parts in (
        ("GITHUB_RUN_ID", _github(env)),
        ("CI_PIPELINE_ID", _gitlab(env)),
        ("BUILDKITE_BUILD_ID", _buildkite(env)),
        ("CIRCLE_WORKFLOW_ID", _circleci(env)),
        ("JENKINS_URL", _jenkins(env)),
    ):
        if env.get(variable):
            return _join(parts)
    return None


def worker_id(env: Mapping[str, str]) -> str:
    """Returns the id of the node."""
    if env.get("TENURE_WORKER"):
        return env["TENURE_WORKER"]
    process = f"{socket.gethostname()}/{os.getpid()}"
    name = process
    if env.get("GITHUB_RUN_ID"):
        # There is no variable for the index in a matrix. A runner has one job at a time.
        name = env.get("RUNNER_NAME", process)
    elif env.get("CI_PIPELINE_ID"):
        # A job that is retried has a new id.
        name = f"{env.get('CI_NODE_INDEX', '1')}/{env.get('CI_JOB_ID', process)}"
    elif env.get("BUILDKITE_BUILD_ID"):
        job = env.get("BUILDKITE_PARALLEL_JOB", "0")
        name = f"{job}/{env.get('BUILDKITE_RETRY_COUNT', '0')}"
    elif env.get("CIRCLE_WORKFLOW_ID"):
        name = env.get("CIRCLE_NODE_INDEX", process)
    elif env.get("JENKINS_URL"):
        name = f"{env.get('NODE_NAME', socket.gethostname())}/{env.get('EXECUTOR_NUMBER', '0')}"
    return name.encode()[:WORKER_BYTES_MAX].decode(errors="ignore")


def _github(env: Mapping[str, str]) -> list[str]:
    run = f"{env.get('GITHUB_RUN_ID', '')}.{env.get('GITHUB_RUN_ATTEMPT', '1')}"
    return ["github", env.get("GITHUB_REPOSITORY", ""), run, env.get("GITHUB_JOB", "")]


def _gitlab(env: Mapping[str, str]) -> list[str]:
    # The nodes of `parallel: 5` have the names `test 1/5` to `test 5/5`.
    job = env.get("CI_JOB_GROUP_NAME") or re.sub(r"\s+\d+/\d+$", "", env.get("CI_JOB_NAME", ""))
    return ["gitlab", env.get("CI_PROJECT_ID", ""), env.get("CI_PIPELINE_ID", ""), job]


def _buildkite(env: Mapping[str, str]) -> list[str]:
    # The retry count is that of one node, so it is a part of its id and not of the build's.
    step = env.get("BUILDKITE_STEP_KEY") or env.get("BUILDKITE_STEP_ID", "")
    return ["buildkite", env.get("BUILDKITE_BUILD_ID", ""), step]


def _circleci(env: Mapping[str, str]) -> list[str]:
    # A workflow that is repeated has a new id.
    return ["circleci", env.get("CIRCLE_WORKFLOW_ID", ""), env.get("CIRCLE_JOB", "")]


def _jenkins(env: Mapping[str, str]) -> list[str]:
    return [env.get("BUILD_TAG") or f"jenkins-{env.get('BUILD_ID', '')}"]


def _join(parts: list[str]) -> str:
    """Makes an id of the allowed length and characters."""
    text = "/".join(part for part in parts if part)
    allowed = re.sub(r"[^0-9A-Za-z._:@+/-]+", "-", text)
    if allowed == text and len(text) <= BUILD_BYTES_MAX:
        return text
    # Different texts have different ids.
    suffix = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{allowed[: BUILD_BYTES_MAX - 13]}-{suffix}"
