"""What the schema cannot say about good requests, so that they reach the rules behind it.

Good requests are about kinds that are declared and jobs that run. A bad one is bad in some way that
must stay, so nothing is changed in it, apart from how long it waits.
"""

import functools
import os
import random
from datetime import datetime, timedelta, timezone

import requests
import schemathesis

# Those of tenure.toml beside this file; other kinds have no operations.
OPERATIONS = {"report": "build", "database": "sync"}
RUNNING = 40
# Longer waits are bad requests where they are in a body; elsewhere any number will do.
WAIT_MS_MAX = 86_400_000
U64_MAX = 2**64 - 1


@schemathesis.hook
def before_call(context, case, kwargs):
    good = case.meta is not None and case.meta.generation.mode.is_positive
    shorten(case.query, U64_MAX)
    if isinstance(case.body, dict):
        shorten(case.body, U64_MAX if good else WAIT_MS_MAX)
    if not good:
        return
    # The same choice for the same request, whatever came before.
    choice = random.Random(repr((case.path_parameters, case.query, case.body)))
    if isinstance(case.body, dict):
        case.body = {name: whole(value) for name, value in case.body.items()}
        if case.body.get("run_at") is not None:
            case.body["run_at"] = soon(choice)
        if "token" in case.body:
            # A tenure may hold no lock of this name, or live as long as its session does, whatever a
            # request says: no schema knows.
            case.body.pop("lock", None)
            case.body.pop("ttl_ms", None)
        if case.operation.path.startswith("/pipelines/run/"):
            # The one pipeline that is declared takes no parameters, which no schema knows.
            case.body = {name: value for name, value in case.body.items() if name == "trigger_by"}
    if choice.random() < 0.5:
        prefer_declared(case, choice)
        prefer_running(case, choice)


def shorten(fields, longest):
    """Nobody waits for an answer in a test."""
    for name in ("wait_ms", "poll_ms"):
        wait = str(whole(fields.get(name)))
        if wait.isdigit() and int(wait) <= longest:
            fields[name] = int(wait) % 20


def prefer_declared(case, choice):
    """A kind that is declared, and an operation that it has."""
    # In a path that was changed what is escaped would be taken for a name, and be a bad one.
    if "kind" in case.path_parameters and "%" not in "".join(case.path_parameters.values()):
        kind = choice.choice(list(OPERATIONS))
        case.path_parameters["kind"] = kind
        if isinstance(case.body, dict) and "operation" in case.body:
            case.body["operation"] = OPERATIONS[kind]
    if case.operation.path.startswith("/pipelines/run/"):
        case.path_parameters["pipeline_id"] = "idle"
        case.query["tenant"] = "default"


def prefer_running(case, choice):
    """A job that runs, with the token of its tenure and an end that its kind knows."""
    if case.operation.path.startswith("/v1/jobs/{id}"):
        job, token = choice.choice(running())
        case.path_parameters["id"] = job
        case.query["tenant"] = "default"
        if isinstance(case.body, dict) and "token" in case.body:
            case.body["token"] = token
            case.body.pop("state", None)


@functools.cache
def running():
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


def whole(value):
    """A schema takes 1.0 for an integer; the server, like most readers of JSON, does not."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def soon(choice):
    """An instant within a year: a schema has no word for a bound that moves with time."""
    ahead = timedelta(minutes=choice.randrange(500_000))
    return (datetime.now(timezone.utc) + ahead).isoformat()
