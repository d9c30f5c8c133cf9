"""Hooks that adjust generated requests to constraints the schema cannot express.

Valid requests should refer to declared kinds and running jobs, so that they pass validation.
Invalid requests must stay invalid, so only their wait times are shortened.
"""

import functools
import os
import random
from datetime import datetime, timedelta, timezone

import requests
import schemathesis

# Kinds of tenure.toml in this folder; other kinds have no operations.
OPERATIONS = {"report": "build", "database": "sync"}
# Kind of tenure.toml whose resources have groups.
GROUPED = "suite"
# Number of jobs to start.
RUNNING = 40
# Longer waits are invalid in a body; a query accepts any number.
WAIT_MS_MAX = 86_400_000
U64_MAX = 2**64 - 1


@schemathesis.hook
def before_call(context, case, kwargs):
    valid = case.meta is not None and case.meta.generation.mode.is_positive
    shorten_waits(case.query, U64_MAX)
    if isinstance(case.body, dict):
        shorten_waits(case.body, U64_MAX if valid else WAIT_MS_MAX)
    if not valid:
        return
    # Seeded by the request, so that choices do not depend on earlier requests.
    choice = random.Random(repr((case.path_parameters, case.query, case.body)))
    consistent_conditions(case.headers)
    if case.operation.path.startswith("/v1/groups/"):
        # Other declared kinds have no groups.
        case.path_parameters["kind"] = GROUPED
    if "group" in case.query and "kind" not in case.query:
        # Groups are parts of the names of one kind.
        del case.query["group"]
    if case.method == "PUT" and "/timers/" in case.operation.path:
        # Without a body it says neither `at` nor `after_ms`.
        case.body = case.body if isinstance(case.body, dict) else {"after_ms": 60_000}
    if isinstance(case.body, dict):
        case.body = integral(case.body)
        consistent_body(case)
        if case.body.get("run_at") is not None:
            case.body["run_at"] = within_a_year(choice)
        if "token" in case.body:
            # The tenure may not hold this lock, or may have the TTL of its session: the schema
            # cannot express either.
            case.body.pop("lock", None)
            case.body.pop("ttl_ms", None)
        if case.operation.path.startswith("/pipelines/run/"):
            # The only declared pipeline takes no parameters, which the schema cannot express.
            case.body = {name: value for name, value in case.body.items() if name == "trigger_by"}
    if choice.random() < 0.5:
        prefer_declared(case, choice)
        prefer_running(case, choice)


def consistent_conditions(headers):
    """Leaves one condition, in quotes: the schemas of two headers cannot refer to each other."""
    generation = headers.get("If-Match")
    if generation is not None:
        headers.pop("If-None-Match", None)
        headers["If-Match"] = '"%s"' % str(generation).strip('"')


def consistent_body(case):
    """Removes fields that exclude each other, which the schema cannot express."""
    body, path = case.body, case.operation.path
    if body.get("only") is not None:
        body.pop("kinds", None)
        if body["only"].get("group") is not None:
            body["only"].pop("name", None)
    if "timers" in body:
        body["timers"] = {}
    if path.endswith("/finish"):
        # The states in which a job may end are those of its operation.
        body.pop("state", None)
    if path == "/v1/clusters":
        # What a profile allows is not in the schema.
        body["profile"] = "dev"
        for name in ("version", "region", "base_domain", "ttl_ms", "tags"):
            body.pop(name, None)
        body["name"] = str(body["name"])[:54].strip("-") or "a"
        body["owner"] = "ann"
        # The base domain belongs to this tenant.
        case.query["tenant"] = "default"
    if path.endswith("/ttl"):
        body["ttl_ms"] = int(integral(body["ttl_ms"])) // 1000 * 1000
    if path.endswith("/status") and body.get("merge") is None:
        body["merge"] = {"nodes": 3}
    if "/timers/" in path:
        body.pop("at", None)
        if body.get("after_ms") is None:
            body["after_ms"] = 60_000
    if path.endswith("/publish"):
        # They go with the last request only, and say what it contains.
        body.pop("total", None)
        body.pop("digest", None)
        body["first"] = 0
    if path.endswith("/claim") and not body.get("kinds") and body.get("only") is None:
        body["kinds"] = ["report"]
    for request in body.get("requests", []):
        if request.get("if_match") is not None:
            request.pop("if_none_match", None)


def shorten_waits(fields, max_wait):
    """Shortens valid waits to a few milliseconds."""
    for name in ("wait_ms", "poll_ms"):
        wait = str(integral(fields.get(name)))
        if wait.isdigit() and int(wait) <= max_wait:
            fields[name] = int(wait) % 20


def prefer_declared(case, choice):
    """Uses a declared kind and one of its operations."""
    # Replacing a parameter would escape the other ones again and make them invalid names.
    is_group = case.operation.path.startswith("/v1/groups/")
    if not is_group and "kind" in case.path_parameters and "%" not in "".join(case.path_parameters.values()):
        kind = choice.choice(list(OPERATIONS))
        case.path_parameters["kind"] = kind
        if isinstance(case.body, dict) and "operation" in case.body:
            case.body["operation"] = OPERATIONS[kind]
    if case.operation.path.startswith("/pipelines/run/"):
        case.path_parameters["pipeline_id"] = "idle"
        case.query["tenant"] = "default"


def prefer_running(case, choice):
    """Uses a running job with the token of its tenure, and no end state."""
    if case.operation.path.startswith("/v1/jobs/{id}"):
        job, token = choice.choice(running_jobs())
        case.path_parameters["id"] = job
        case.query["tenant"] = "default"
        if isinstance(case.body, dict) and "token" in case.body:
            case.body["token"] = token
            case.body.pop("state", None)


@functools.cache
def running_jobs():
    """Starts jobs and returns their ids and tokens."""
    session = call("sessions", {"name": "contract", "ttl_ms": 3_600_000})["session"]
    for n in range(RUNNING):
        call(f"resources/report/running-{n}/jobs", {"operation": "build"})
    claim = {"session": session, "kinds": ["report"], "max": RUNNING}
    jobs = call("jobs/claim", claim)["jobs"]
    return [(one["job"]["id"], one["tenure"]["token"]) for one in jobs]


def call(path, body):
    key = {"x-api-key": os.environ["TENURE_KEY"]}
    url = f"{os.environ['TENURE_SERVER']}/v1/{path}"
    answer = requests.post(url, json=body, headers=key, timeout=10)
    answer.raise_for_status()
    return answer.json()


def integral(value):
    """Converts 1.0 to 1: JSON Schema accepts 1.0 as an integer, the server does not."""
    if isinstance(value, dict):
        return {name: integral(part) for name, part in value.items()}
    if isinstance(value, list):
        return [integral(part) for part in value]
    is_integral = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if is_integral else value


def within_a_year(choice):
    """Returns an instant within a year: a schema cannot express a bound relative to now."""
    ahead = timedelta(minutes=choice.randrange(500_000))
    return (datetime.now(timezone.utc) + ahead).isoformat()
