"""The session of a node: one heartbeat keeps everything that the node holds."""

from __future__ import annotations

import os
import threading
import uuid

from .client import Connection, Json, Server, now
from .errors import NoAnswer, Refused

CLOSE_S = 3.0
"""Maximum time to wait for the answer when the session is closed."""


class Session:
    """An open session with a thread that sends its heartbeats.

    The server counts the time to live from the arrival of a heartbeat. This class counts it from
    before the heartbeat left, so that the session never expires earlier than it says.
    """

    def __init__(
        self, server: Server, connection: Connection, name: str, ttl_ms: int, heartbeat_ms: int
    ) -> None:
        self._server = server
        self._ttl_s, self._heartbeat_s = ttl_ms / 1000, heartbeat_ms / 1000
        self._closed = threading.Event()
        self._lost = False
        self._pid = os.getpid()
        sent = now()
        body = {"name": name, "ttl_ms": ttl_ms}
        answer = connection.repeat("POST", "/v1/sessions", body, request_id=uuid.uuid4().hex)
        self.id: str = answer["session"]
        self._deadline = sent + self._ttl_s
        name = f"tenure-heartbeat-{self.id[:8]}"
        threading.Thread(target=self._send_heartbeats, name=name, daemon=True).start()

    def is_alive(self) -> bool:
        """Returns whether the node still has what it holds, as far as it can know."""
        return not self._lost and not self._closed.is_set() and now() < self._deadline

    def close(self) -> None:
        """Releases everything that the session holds. If that fails, the session expires."""
        if self._closed.is_set() or os.getpid() != self._pid:
            return
        self._closed.set()
        connection = Connection(self._server)
        try:
            connection.call("DELETE", f"/v1/sessions/{self.id}", timeout_s=CLOSE_S)
        except (NoAnswer, Refused):
            pass
        finally:
            connection.close()

    def _send_heartbeats(self) -> None:
        connection, pause, seen = Connection(self._server), self._heartbeat_s, 0
        path = f"/v1/sessions/{self.id}/beat"
        while not self._closed.wait(max(0.0, min(pause, self._deadline - now()))):
            if not self.is_alive():
                break
            sent = now()
            try:
                body = {"seen": seen}
                answer = connection.call("POST", path, body, timeout_s=self._ttl_s / 3)
            except NoAnswer:
                pause = self._heartbeat_s / 4
                continue
            except Refused as refusal:
                if refusal.status in (404, 409):
                    self._lost = True
                    break
                pause = self._heartbeat_s / 4
                continue
            pause = self._heartbeat_s
            seen = max([seen, *_revocations(answer)])
            if self.is_alive():  # a session that was lost stays lost
                self._deadline = sent + self._ttl_s
        connection.close()


def _revocations(answer: Json) -> list[int]:
    """Returns the numbers of single tests that the node has lost; their results do not count."""
    return [revoked["n"] for revoked in answer.get("revoked", [])]
