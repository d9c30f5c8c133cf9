"""HTTP client for a Tenure server. Each thread has a connection of its own."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from .errors import EXIT_UNAVAILABLE, NoAnswer, Refused, Stop

UNREACHABLE_S = 60.0
"""Time without any answer after which a node gives up."""
ANSWER_S = 10.0
"""Maximum time to wait for an answer, in addition to the time that a request waits itself."""
RETRY_S = 0.1
"""Pause before the first repetition; it doubles up to `RETRY_MAX_S`."""
RETRY_MAX_S = 2.0
CLOCK_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)

Json = dict[str, Any]


def now() -> float:
    """Returns the seconds of a monotonic clock that runs during suspend, where there is one."""
    return time.monotonic() if CLOCK_BOOTTIME is None else time.clock_gettime(CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Server:
    """A server and how to authenticate there."""

    url: str
    key: str = field(repr=False)
    tenant: str | None = None

    @property
    def shown_url(self) -> str:
        """The address without a user and a password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class Connection:
    """A connection that is kept open between requests. Not for use by two threads."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._http: http.client.HTTPConnection | None = None

    def call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float = ANSWER_S,
    ) -> Json:
        """Sends a request once. Raises `NoAnswer` or `Refused`."""
        is_reused = self._http is not None
        try:
            try:
                status, answer = self._exchange(method, path, body, request_id, timeout_s)
            except (http.client.RemoteDisconnected, ConnectionError):
                # The server closes idle connections. Every request may be repeated.
                self.close()
                if not is_reused:
                    raise
                status, answer = self._exchange(method, path, body, request_id, timeout_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise NoAnswer(f"{type(error).__name__}: {error}") from error
        if 200 <= status < 300:
            return answer
        detail = str(answer.get("detail", f"status {status}"))
        if status >= 500 or status in (408, 429):
            raise NoAnswer(detail)
        raise Refused(status, str(answer.get("code", "")), detail)

    def repeat(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float = ANSWER_S,
    ) -> Json:
        """Sends a request until it is answered. Raises `Refused`, or `Stop` if nothing answers."""
        pause, give_up = RETRY_S, now() + UNREACHABLE_S
        while True:
            try:
                return self.call(method, path, body, request_id=request_id, timeout_s=timeout_s)
            except NoAnswer as why:
                left = give_up - now()
                if left <= 0:
                    url = self._server.shown_url
                    text = f"{url} has not answered for {UNREACHABLE_S:g} s ({why})"
                    raise Stop(EXIT_UNAVAILABLE, text) from why
            time.sleep(min(pause, max(left, 0.0)))
            pause = min(2 * pause, RETRY_MAX_S)

    def close(self) -> None:
        """Closes the connection. The next request opens a new one."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def _exchange(
        self,
        method: str,
        path: str,
        body: Json | None,
        request_id: str | None,
        timeout_s: float,
    ) -> tuple[int, Json]:
        connection = self._connect(timeout_s)
        headers = {"Authorization": f"Bearer {self._server.key}"}
        if request_id is not None:
            headers["Idempotency-Key"] = request_id
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body).encode()
        connection.request(method, self._path(path), content, headers)
        response = connection.getresponse()
        text = response.read()
        answer = json.loads(text) if text else {}
        if not isinstance(answer, dict):
            raise ValueError("the answer is not a JSON object")
        return response.status, answer

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._http is None:
            parts = urlsplit(self._server.url)
            host = parts.hostname or "127.0.0.1"
            if parts.scheme == "https":
                context = ssl.create_default_context(cafile=os.environ.get("TENURE_CA") or None)
                self._http = http.client.HTTPSConnection(host, parts.port, context=context)
            else:
                self._http = http.client.HTTPConnection(host, parts.port)
        self._http.timeout = timeout_s
        if self._http.sock is not None:
            self._http.sock.settimeout(timeout_s)
        return self._http

    def _path(self, path: str) -> str:
        path = urlsplit(self._server.url).path.rstrip("/") + path
        if self._server.tenant is None:
            return path
        separator = "&" if "?" in path else "?"
        return f"{path}{separator}tenant={quote(self._server.tenant, safe='')}"
