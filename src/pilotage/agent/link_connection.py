"""The way of a courier over a link of a pilot: by whatever the pilot itself reaches its service, a folder of a relay included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilotage.agent.http_client import ANSWER_SECONDS, Answer, Unreachable
from pilotage.agent.service_clock import TIME_FIELD, TOO_EARLY, ServiceClock, clock_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from pilotage.agent.link import Link

    Connect = Callable[[Callable[[], str]], Link]
    """Connects to the service of a pilot, to show it at each request the token that is said then."""


class LinkConnection:
    """What `http_client.Connection` does, over a link. One thread posts at a time."""

    def __init__(self, server: str, connect: Connect) -> None:
        """Name the server for what is told of it; nothing is opened before the first request."""
        self.server = server
        self._connect = connect
        self._link: Link | None = None
        self._token = ""
        self._service_clock = ServiceClock()

    def post(self, path: str, body: bytes, *, token: str, timeout_seconds: float | None = None) -> Answer:
        """Post JSON and return the answer; raises `Unreachable` where there is none."""
        limit_seconds = ANSWER_SECONDS if timeout_seconds is None else min(timeout_seconds, ANSWER_SECONDS)
        self._token = token
        reused = self._link is not None
        try:
            try:
                return self._say(path, body, limit_seconds)
            except OSError:
                self.close()
                if not reused:
                    raise
                # A server closes connections that rest: that says nothing about the server, so try once afresh.
                return self._say(path, body, limit_seconds)
        except (OSError, ValueError) as error:
            self.close()
            raise Unreachable(f"no answer: {error}", subject=self.server) from error

    def _say(self, path: str, body: bytes, limit_seconds: float) -> Answer:
        if self._link is None:
            self._link = self._connect(lambda: self._token)
        said = {"Content-Type": "application/json", **clock_fields(self._service_clock)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        self._link.send("POST", path, body, fields=lines)
        answer = self._link.wait(limit_seconds)
        fields = answer.fields
        self._service_clock.hear(fields.get(TIME_FIELD.lower().encode(), b""))
        if answer.status == TOO_EARLY:
            self._service_clock.doubted()
        return Answer(
            answer.status,
            answer.body,
            fields.get(b"retry-after", b"").decode("latin-1"),
            fields.get(b"location", b"").decode("latin-1"),
        )

    def break_off(self) -> None:
        """Nobody waits here in another thread: its user ends it by its limit."""

    def abandon(self) -> None:
        """Forget the link in a forked child."""
        self._link = None

    def close(self) -> None:
        """Hang up; the next request connects anew."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
