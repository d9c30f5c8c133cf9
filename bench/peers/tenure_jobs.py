#!/usr/bin/env python3
"""Tenure itself: rows that match those of the peers with 64 and 500 jobs per call, and one by one.

The binary is $TENURE, or the release build of this checkout.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BUILT = Path(__file__).resolve().parents[2] / "target" / "release" / "tenure"
ROWS = [  # name, part of the benchmark, jobs in flight
    ("calls x64, 1000 resources, 256 in flight", ["calls", "--in-a-call", "64"], 256),
    ("calls x500, 1000 resources, 5000 in flight", ["calls", "--in-a-call", "500"], 5000),
    ("one by one, 1000 resources, 256 in flight", ["embedded"], 256),
]


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: tenure_jobs.py URL SECONDS [ONLY]")
    url, seconds, only = sys.argv[1], sys.argv[2], (sys.argv[3:] or [""])[0]
    binary = os.environ.get("TENURE", str(BUILT))
    if not os.access(binary, os.X_OK):
        sys.exit(f"tenure_jobs.py: no program at {binary}: cargo build --release, or set TENURE")
    for what, part, in_flight in ROWS:
        if only in what:
            print(f"tenure\t{what}\t{measure(binary, url, seconds, part, in_flight)}", flush=True)


def measure(binary, url, seconds, part, in_flight):
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, "bench", "jobs", "--only", *part, "--in-flight", str(in_flight), "--resources", "1000",
                   "--seconds", f"{seconds}s", "--dir", folder, "-o", "json"]
        env = {**os.environ, "TENURE_BENCH_STORE": url}
        rows = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout)
    return round(next(row["pairs_per_s"] for row in rows if "uniform: submit to start" in row["what"]))


if __name__ == "__main__":
    main()
