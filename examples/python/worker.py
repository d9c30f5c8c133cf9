#!/usr/bin/env python3
"""A worker for Tenure with nothing beyond the standard library. Run it to try it, or import it:

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

DATA = os.environ.get("TENURE_DATA") or os.path.expanduser("~/.local/share/tenure")
URL = os.environ.get("TENURE_SERVER") or "http://127.0.0.1:7117"
KEY = os.environ.pop("TENURE_KEY", None)  # what a handler starts need not have it
TTL = float(os.environ.get("WORKER_TTL", 15))  # seconds that the session lives without heartbeats
SLOTS = int(os.environ.get("WORKER_SLOTS", 2))  # jobs at once
DRAIN = float(os.environ.get("WORKER_DRAIN", 20))  # seconds for work to end after SIGTERM
CLAIM = 5.0  # seconds that a claim waits for a job, and work has to stop when it is handed back

handlers = {}  # (kind, operation) -> function
stopping = threading.Event()  # take no more jobs


class Away(Exception):
    """No answer came, so nobody knows whether it happened: ask again."""


class Stop(Exception):
    """The work must stop: "lost", "cancelled" or "handed_back"."""


class Failed(Exception):
    """The attempt failed. Say whether trying again may help, if you know."""

    def __init__(self, code, message="", transient=None, state=None):
        message = message.encode()[:1024].decode(errors="ignore")
        self.body = dict(outcome="failed", code=code, message=message)
        self.body.update(transient=transient, state=state)


def handles(kind, operation):
    return lambda function: handlers.setdefault((kind, operation), function)


def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # runs on while the machine is suspended


def say(text):
    print(f"worker: {text}", file=sys.stderr, flush=True)


def call(method, path, body=None, request_id=None, timeout=10.0):
    request = urllib.request.Request(URL + path, json.dumps(body or {}).encode(), method=method)
    request.add_header("Authorization", "Bearer " + KEY)
    if request_id:
        request.add_header("Idempotency-Key", request_id)
    try:
        try:
            answer = urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as no:
            answer = no  # which is an answer, too
        with answer:
            status, body = answer.code, json.load(answer)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Away(error) from error
    if status >= 500:
        raise Away(body.get("detail"))
    return status, body


class Session:
    """The liveness of this process: one heartbeat renews everything that it holds."""

    def __init__(self, name):
        self.id, self.jobs, self.told = uuid.uuid4().hex, set(), {}
        self.hand_back, self.closed = threading.Event(), threading.Event()
        sent = now()
        body = {"name": name, "ttl_ms": int(TTL * 1000)}
        status, answer = call("POST", "/v1/sessions", body, self.id)
        if status != 200:
            raise SystemExit(f"worker: {answer['detail']}")
        self.extend(sent)
        for task in (self.beat, self.watch):
            threading.Thread(target=task, daemon=True).start()

    def extend(self, sent):
        # From before the request left, and a fifth shorter than the store's count: a tenth for
        # clocks that run apart, a tenth for work that has to stop.
        self.deadline = sent + 0.8 * TTL

    def lives(self):
        return now() < self.deadline

    def beat(self):
        pause, seen = TTL / 3, 0
        while self.lives() and not self.closed.wait(min(pause, self.deadline - now())):
            sent, path = now(), f"/v1/sessions/{self.id}/beat"
            try:
                status, answer = call("POST", path, {"seen": seen}, timeout=TTL / 4)
            except Away as why:
                say(f"a heartbeat failed: {why}")
                pause = TTL / 12  # no answer prolongs nothing, so the next one comes soon
                continue
            pause = TTL / 3
            if status != 200:
                self.deadline = 0.0
            elif self.lives():  # what is lost stays lost
                self.extend(sent)
                for one in answer["revoked"]:
                    why = "cancelled" if one.get("cancel") else "lost"
                    self.told[one["resource"], one["token"]] = why
                    seen = max(seen, one["n"])

    def watch(self):
        """Sees to it that no work outlives the session. It does nothing that could block."""
        while self.lives():
            if self.closed.wait(0.05):
                return
        say(f"the session is lost, with {len(self.jobs)} jobs")
        until = now() + TTL / 10
        while self.jobs and now() < until:
            time.sleep(0.02)
        if self.jobs:  # a thread cannot be stopped from outside, a process can
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
        told = self.session.told.get(self.key)
        if told or not self.session.lives():
            raise Stop(told if self.session.lives() else "lost")
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
        self.tell("progress", {"percent": percent, "message": message})

    def log(self, text):
        self.tell("logs", {"text": text + "\n"})

    def tell(self, what, body):
        self.check()
        try:
            status, answer = self.call(what, body)
        except Away as why:
            return say(f"{what} of job {self.id} got no answer: {why}")
        if status == 409:
            self.session.told[self.key] = "lost"
        elif status != 200:
            say(f"{what} of job {self.id}: {answer['detail']}")
        elif answer["cancelling"]:
            self.session.told[self.key] = "cancelled"
        self.check()

    def finish(self, body):
        """Says what the attempt came to, again and again until there is an answer."""
        while self.session.lives():
            try:
                status, answer = self.call("finish", body)
            except Away as why:
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
    except Exception as error:  # a bug in a handler is a failure like any other
        body = Failed("ERROR", f"{type(error).__name__}: {error}").body
    session.jobs.discard(job)
    # What is lost is somebody else's already: nothing is said of it.
    end = "lost" if body["outcome"] == "lost" else job.finish(body)
    session.told.pop(job.key, None)
    say(f"{job.operation} of {job.kind}/{job.name}, attempt {job.attempt}: {end}")
    if handler is None:
        stopping.wait(1.0)  # so that another worker gets it


def slot(session):
    """Takes one job after the other, until the session is lost or the worker stops."""
    kinds, request_id = sorted({kind for kind, _ in handlers}), None
    while session.lives() and (request_id or not stopping.is_set()):
        # One that got no answer may have got a job: the same request gets the same job again.
        request_id = request_id or uuid.uuid4().hex
        ask = {"session": session.id, "kinds": kinds, "max": 1, "wait_ms": int(CLAIM * 1000)}
        try:
            status, answer = call("POST", "/v1/jobs/claim", ask, request_id, CLAIM + 10.0)
        except Away as why:
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
    """Lets work end for a while, hands back what has not ended, and is over in any case."""
    say(f"stopping: {len(session.jobs)} jobs have {DRAIN:g} s to end")
    for hand_back, seconds in ((False, DRAIN), (True, 2 * CLAIM)):
        if hand_back:
            session.hand_back.set()
        until = now() + seconds
        for thread in slots:
            thread.join(max(0.0, until - now()))
    if any(thread.is_alive() for thread in slots):
        say("work does not stop, so this process ends; its session will lapse")
        os._exit(1)
    session.closed.set()
    try:
        call("DELETE", f"/v1/sessions/{session.id}")
    except Away:
        pass  # then it lapses


def main():
    global KEY
    if KEY is None:
        with open(os.path.join(DATA, "admin.key")) as file:
            KEY = file.read().strip()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    name = os.environ.get("WORKER_NAME") or f"{socket.gethostname()}/{os.getpid()}"
    while not stopping.is_set():
        try:
            session = Session(name)
        except Away as why:
            say(f"no server yet: {why}")
            stopping.wait(1.0)
            continue
        say(f"{name} is ready for jobs, session {session.id}")
        slots = [threading.Thread(target=slot, args=(session,), daemon=True) for _ in range(SLOTS)]
        for thread in slots:
            thread.start()
        while session.lives() and not stopping.wait(0.1):
            pass
        if stopping.is_set():
            drain(session, slots)


def build(job):
    """Pretends to work: `steps` steps of `step_ms`; its first `fails` attempts fail."""
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
