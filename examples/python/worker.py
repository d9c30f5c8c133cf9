#!/usr/bin/env python3
"""A worker for Tenure that uses only the standard library. Run it, or import it:

    import worker

    @worker.handles("database", "create")
    def create(job):
        job.progress(50, "making room")
        job.check()                         # right before each effect
        return {"size": job.args["size"]}   # the result, as JSON

    worker.main()
"""

import http.client, json, os, signal, socket, sys, threading, time, uuid
import urllib.error, urllib.request

SHARE = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
DATA = os.environ.get("TENURE_DATA") or os.path.join(SHARE, "tenure")
URL = ""  # address of the server, set for each session
KEY = os.environ.pop("TENURE_KEY", None)  # child processes of a handler do not need it
TTL = float(os.environ.get("WORKER_TTL", 15))  # TTL of the session in seconds
SLOTS = int(os.environ.get("WORKER_SLOTS", 2))  # concurrent jobs
DRAIN = float(os.environ.get("WORKER_DRAIN", 20))  # seconds for work to end after SIGTERM
CLAIM = 5.0  # seconds that a claim waits, and that work has to stop before it is handed back

handlers = {}  # (kind, operation) -> function
stopping = threading.Event()  # stop claiming


class NoAnswer(Exception):
    """The outcome of a request is unknown: repeat it."""


class Stop(Exception):
    """The work must stop: "lost", "cancelled" or "handed_back"."""


class Failed(Exception):
    """The attempt failed. Set `transient` if it is known whether a retry may help."""

    def __init__(self, code, message="", transient=None, state=None):
        message = message.encode()[:1024].decode(errors="ignore")
        self.body = dict(outcome="failed", code=code, message=message)
        self.body.update(transient=transient, state=state)


def handles(kind, operation):
    return lambda function: handlers.setdefault((kind, operation), function)


def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # runs during suspend


def say(text):
    print(f"worker: {text}", file=sys.stderr, flush=True)


def find_server():
    """Returns the named server, or the one that runs on this machine."""
    if os.environ.get("TENURE_SERVER"):
        return os.environ["TENURE_SERVER"].rstrip("/")
    try:
        with open(os.path.join(DATA, "server.url")) as file:
            return file.read().strip()
    except OSError:  # it does not run yet
        return "http://127.0.0.1:7117"


def call(method, path, body=None, request_id=None, timeout=10.0):
    request = urllib.request.Request(URL + path, json.dumps(body or {}).encode(), method=method)
    request.add_header("Authorization", "Bearer " + KEY)
    if request_id:
        request.add_header("Idempotency-Key", request_id)
    try:
        try:
            answer = urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            answer = error  # an error status is an answer, too
        with answer:
            status, body = answer.code, json.load(answer)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(error) from error
    if status >= 500:
        raise NoAnswer(body.get("detail"))
    return status, body


class Session:
    """The liveness of this process: one heartbeat renews all its tenures."""

    def __init__(self, name):
        self.jobs, self.revoked = set(), {}
        self.hand_back, self.closed = threading.Event(), threading.Event()
        sent = now()
        body = {"name": name, "ttl_ms": int(TTL * 1000)}
        status, answer = call("POST", "/v1/sessions", body, uuid.uuid4().hex)
        if status != 200:
            raise SystemExit(f"worker: {answer['detail']}")
        self.id = answer["session"]
        self.extend(sent)
        for task in (self.heartbeat, self.watch):
            threading.Thread(target=task, daemon=True).start()

    def extend(self, sent):
        # Counts from before the request left, and is a fifth shorter than the TTL: a tenth for
        # clock drift, a tenth for stopping the work.
        self.deadline = sent + 0.8 * TTL

    def is_alive(self):
        return now() < self.deadline

    def heartbeat(self):
        pause, seen = TTL / 3, 0
        while self.is_alive() and not self.closed.wait(min(pause, self.deadline - now())):
            sent, path = now(), f"/v1/sessions/{self.id}/beat"
            try:
                status, answer = call("POST", path, {"seen": seen}, timeout=TTL / 4)
            except NoAnswer as why:
                say(f"a heartbeat failed: {why}")
                pause = TTL / 12  # a missing answer extends nothing: retry soon
                continue
            pause = TTL / 3
            if status != 200:
                self.deadline = 0.0
            elif self.is_alive():  # a lost session stays lost
                self.extend(sent)
                for one in answer["revoked"]:
                    why = "cancelled" if one.get("cancel") else "lost"
                    self.revoked[one["resource"], one["token"]] = why
                    seen = max(seen, one["n"])

    def watch(self):
        """Ensures that no work outlives the session. Does nothing that could block."""
        while self.is_alive():
            if self.closed.wait(0.05):
                return
        say(f"the session is lost, with {len(self.jobs)} jobs")
        until = now() + TTL / 10
        while self.jobs and now() < until:
            time.sleep(0.02)
        if self.jobs:  # a thread cannot be killed, a process can
            say("work does not stop, so this process ends")
            os._exit(1)


class Job:
    """One attempt, as its handler sees it."""

    def __init__(self, session, taken):
        job, limit_ms = taken["job"], taken["limit_ms"]
        self.session, self.id, self.token = session, job["id"], taken["tenure"]["token"]
        self.kind, self.name, self.operation = job["kind"], job["name"], job["operation"]
        self.args, self.spec, self.attempt = job["args"], taken["spec"], job["attempt"]
        self.limit = now() + limit_ms / 1000 if limit_ms else float("inf")
        self.key = (f"{job['tenant']}/{self.kind}/{self.name}", self.token)

    def check(self):
        """Raises when the work must stop. Call it right before each effect."""
        reason = self.session.revoked.get(self.key)
        if reason or not self.session.is_alive():
            raise Stop(reason if self.session.is_alive() else "lost")
        if now() >= self.limit:
            raise Failed("TIME_LIMIT", "the attempt took longer than its limit")
        if self.session.hand_back.is_set():
            raise Stop("handed_back")

    def sleep(self, seconds):
        until = now() + seconds
        while now() < until:
            self.check()
            time.sleep(min(0.05, seconds))
        self.check()

    def progress(self, percent, message=""):
        self.report("progress", {"percent": percent, "message": message})

    def log(self, text):
        self.report("logs", {"text": text + "\n"})

    def report(self, what, body):
        self.check()
        try:
            status, answer = self.call(what, body)
        except NoAnswer as why:
            return say(f"{what} of job {self.id} got no answer: {why}")
        if status == 409:
            self.session.revoked[self.key] = "lost"
        elif status != 200:
            say(f"{what} of job {self.id}: {answer['detail']}")
        elif answer["cancelling"]:
            self.session.revoked[self.key] = "cancelled"
        self.check()

    def finish(self, body):
        """Reports the result of the attempt, repeatedly until it is answered."""
        while self.session.is_alive():
            try:
                status, answer = self.call("finish", body)
            except NoAnswer as why:
                say(f"finish of job {self.id} got no answer: {why}")
                time.sleep(0.5)
                continue
            if status not in (413, 422) or body.get("code") == "BAD_RESULT":
                return answer["state"] if status == 200 else answer["detail"]
            body = Failed("BAD_RESULT", answer["detail"]).body  # too large, or no such state
        return "lost"

    def call(self, what, body):
        return call("POST", f"/v1/jobs/{self.id}/{what}", {"token": self.token, **body})


def work(session, taken):
    job = Job(session, taken)
    handler = handlers.get((job.kind, job.operation))
    session.jobs.add(job)
    try:
        job.check()
        if handler is None or stopping.is_set():
            raise Stop("handed_back")
        result = handler(job)
        json.dumps(result)
        body = {"outcome": "ok", "result": result}
    except Stop as stop:
        body = {"outcome": str(stop)}
    except Failed as failed:
        body = failed.body
    except Exception as error:  # a bug in a handler fails the attempt
        body = Failed("ERROR", f"{type(error).__name__}: {error}").body
    session.jobs.discard(job)
    # A lost attempt belongs to another worker: report nothing.
    end = "lost" if body["outcome"] == "lost" else job.finish(body)
    session.revoked.pop(job.key, None)
    say(f"{job.operation} of {job.kind}/{job.name}, attempt {job.attempt}: {end}")
    if handler is None:
        stopping.wait(1.0)  # let another worker claim it


def slot(session):
    """Executes one job after another until the session is lost or the worker stops."""
    kinds, request_id = sorted({kind for kind, _ in handlers}), None
    while session.is_alive() and (request_id or not stopping.is_set()):
        # A claim without an answer may have succeeded: repeating it returns the same job.
        request_id = request_id or uuid.uuid4().hex
        ask = {"session": session.id, "kinds": kinds, "max": 1, "wait_ms": int(CLAIM * 1000)}
        try:
            status, answer = call("POST", "/v1/jobs/claim", ask, request_id, CLAIM + 10.0)
        except NoAnswer as why:
            say(f"a claim got no answer: {why}")
            time.sleep(0.5)
            continue
        request_id = None
        if status == 200:
            for taken in answer["jobs"]:
                work(session, taken)
        else:
            say(f"a claim was refused: {answer['detail']}")
            stopping.wait(1.0)


def drain(session, slots):
    """Lets work end, hands back what has not ended, and exits in any case."""
    say(f"stopping: {len(session.jobs)} jobs have {DRAIN:g} s to end")
    for hand_back, seconds in ((False, DRAIN), (True, 2 * CLAIM)):
        if hand_back:
            session.hand_back.set()
        until = now() + seconds
        for thread in slots:
            thread.join(max(0.0, until - now()))
    if any(thread.is_alive() for thread in slots):
        say("work does not stop, so this process ends; its session will expire")
        os._exit(1)
    session.closed.set()
    try:
        call("DELETE", f"/v1/sessions/{session.id}")
    except NoAnswer:
        pass  # the session expires


def main():
    global KEY, URL
    if KEY is None:
        with open(os.path.join(DATA, "admin.key")) as file:
            KEY = file.read().strip()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    name = os.environ.get("WORKER_NAME") or f"{socket.gethostname()}/{os.getpid()}"
    while not stopping.is_set():
        URL = find_server()
        try:
            session = Session(name)
        except NoAnswer as why:
            say(f"no server yet: {why}")
            stopping.wait(1.0)
            continue
        say(f"{name} is ready for jobs, session {session.id}")
        slots = [threading.Thread(target=slot, args=(session,), daemon=True) for _ in range(SLOTS)]
        for thread in slots:
            thread.start()
        while session.is_alive() and not stopping.wait(0.1):
            pass
        if stopping.is_set():
            drain(session, slots)


def build(job):
    """Simulates work: `steps` steps of `step_ms`; the first `fails` attempts fail."""
    args = job.args or {}
    steps = args.get("steps", 5)
    for step in range(steps):
        job.progress(100 * step // steps, f"step {step + 1} of {steps}")
        job.sleep(args.get("step_ms", 200) / 1000)
    if job.attempt <= args.get("fails", 0):
        raise Failed(args.get("code", "FLAKY"), "it was told to fail")
    job.log(f"{steps} steps under token {job.token}")
    return {"steps": steps}


if __name__ == "__main__":
    handles("report", "build")(build)
    main()
