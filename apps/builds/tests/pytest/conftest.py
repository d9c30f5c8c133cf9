"""Records which tests ran where, and stops nodes at the places that a test of the plugin names."""

import os
import pathlib
import time

import pytest
from pytest_tenure import client, node

BED = pathlib.Path(os.environ["BED"])
WORKER = os.environ["TENURE_WORKER"]
STOP = os.environ.get("BED_STOP")  # where the node stops
NODES = int(os.environ.get("BED_NODES", "1"))  # nodes that must run a test before one ends
TIMEOUT_S = 60.0


def wait_for(condition):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def stop():
    (BED / "stopped").touch()
    wait_for((BED / "go").exists)


@pytest.fixture(autouse=True)
def record(request):
    with open(BED / "runs", "a") as runs:
        runs.write(f"{WORKER} {request.node.nodeid}\n")
    (BED / f"node-{WORKER}").touch()
    wait_for(lambda: len(list(BED.glob("node-*"))) >= NODES)
    if STOP == "test":
        stop()


def stop_in_publish():
    """Stops the leader when a part of its tests is published."""
    send = node.Node._send

    def send_or_stop(self, action, body, wait_ms=0):
        if action == "publish" and body["first"] > 0:
            stop()
        return send(self, action, body, wait_ms)

    node.Node._send = send_or_stop


node.PUBLISH_MAX = 20
if STOP == "publish":
    stop_in_publish()
if STOP == "unreachable":
    client.UNREACHABLE_S = 1.0
