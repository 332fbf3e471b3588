"""The exchange of a pilot with its service: one message with everything, and one answer, which counts only if awaited.

An exchange without events is a long poll: the service answers when there is something to do, and events overtake it on
another connection. An exchange with events is answered at once, so the next one waits for its answer. Events within a
moment are sent together. While the service is away the pilot goes on with its attempts, and retries at growing
intervals.
"""

from __future__ import annotations

import json
import math
import os
import select
import time
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from pilotage.agent.durable_files import is_gone
from pilotage.agent.link.connect import UNAUTHENTICATED, Credentials
from pilotage.agent.pilot.backlog import ref_of
from pilotage.agent.pilot.pilot import CANCELLED, Pilot, PilotSettings, say
from pilotage.agent.pilot.spool import SpooledEvent, encode
from pilotage.agent.processes import reap_adopted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pilotage.agent.link.link import Answer, Link

BACKOFF_SECONDS = (0.1, 10.0)
NEAR_SECONDS = 0.5
DENIED_SECONDS = 10.0
DESERTED_FAREWELL_SECONDS = 1.0
LINKS_MAX = 3  # a long poll, an exchange with events, and one whose answer no longer matters
LOOK_SECONDS = 1.0  # how often to reap orphans and to remind stopping attempts
COMPLAIN_SECONDS = 300.0
WALL_TIME = "wall-time"
LISTEN_SECONDS = 0.5  # a full pilot without news for so long opens a poll, to hear of cancellations


class Exchanger:
    """Exchanges messages for a pilot until it ends. All methods run in the main thread, except `on_news`."""

    def __init__(self, settings: PilotSettings, credentials: Credentials | None = None) -> None:
        """Make the wake-up pipe; `run` takes the pilot. `credentials` choose the token."""
        now = time.monotonic()
        margin_seconds = min(settings.wall_margin_seconds, 0.5 * settings.wall_seconds)
        self._settings = settings
        self._credentials = credentials or Credentials(settings.token_file)
        # The end of its wall time; once it is leaving, when it gives up delivering its last events.
        self._limit_at = now + settings.wall_seconds - margin_seconds if settings.wall_seconds else math.inf
        self._interval_seconds = settings.interval_seconds
        self._patience_seconds = settings.patience_intervals * settings.interval_seconds
        self._heard_at = now
        self._sequence = 0
        self._opened_at = -1.0  # start of the open exchange; negative: none is open
        self._asks = False  # the open exchange was sent without an attempt
        self._news = False  # the open exchange has events, so it is answered at once
        self._unsent_at = math.inf  # since when there are events that the open exchange does not have
        self._flush_at = self._due_at = math.inf
        self._retry_at = 0.0
        self._backoff_seconds = BACKOFF_SECONDS[0]
        self._complained_at = -math.inf
        self._look_at = now + LOOK_SECONDS
        self._logs_at = now + settings.interval_seconds
        self._links: dict[int, Link] = {}
        self._asked_to_leave = ""
        self._leaving = ""
        self._over = False
        self._unwritten: list[SpooledEvent] = []
        self._damaged: list[str] = []  # damaged files of the site's cache that the open exchange tells of
        self._awake, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poller = select.poll()
        self._poller.register(self._awake, select.POLLIN)
        self._head = self._constant_part()
        self.look_after: Callable[[], None] = reap_adopted  # every second

    def _constant_part(self) -> bytes:
        """The constant part of every exchange, as the start of a JSON object."""
        settings = self._settings
        fields: dict[str, Any] = {"pilot": settings.pilot, "site": settings.site, "node": settings.node}
        fields["capacity"] = settings.capacity._asdict()
        if settings.serves is not None:
            fields["serves"] = settings.serves
        return encode(fields).encode()[:-1]

    # --- the process -------------------------------------------------------------------------------------------------

    def run(self, pilot: Pilot) -> bool:
        """Exchange until the pilot ends; returns whether the service has all events."""
        self._pilot = pilot
        with pilot.guard:
            pilot.introduce()
        self._exchange()
        while not self._over:
            seconds = min(self._flush_at, self._due_at, self._look_at) - time.monotonic()
            for descriptor, _ in self._poller.poll(max(0.0, seconds) * 1000.0):
                if descriptor == self._awake:
                    self._drain()
                elif descriptor in self._links:
                    self._receive(self._links[descriptor])
            self._look(time.monotonic())
        for link in list(self._links.values()):
            self._drop(link)
        os.close(self._awake)
        os.close(self._wake)
        with pilot.guard:
            return not pilot.spool.pending

    @property
    def heard_at(self) -> float:
        """When the service last answered, by the monotonic clock."""
        return self._heard_at

    def ask_to_leave(self, reason: str) -> None:
        """End soon, whatever it holds. May be called from a signal handler or another thread."""
        self._asked_to_leave = self._asked_to_leave or reason
        self._rouse()

    def on_news(self, urgent: bool) -> None:  # noqa: FBT001 # a positional call is cheaper, once per attempt
        """Schedule an exchange for new events, with those of the next moment. The pilot's lock is held."""
        now = time.monotonic()
        if self._unsent_at == math.inf:
            self._unsent_at = now
        if self._opened_at >= 0.0 and self._news:
            return  # the answer to the open exchange is on its way, and triggers the next
        at = now if urgent else self._unsent_at + self._settings.hold_seconds
        if at < self._flush_at:
            self._flush_at = at
            self._rouse()

    def _rouse(self) -> None:
        try:
            os.write(self._wake, b"!")
        except OSError:
            return  # the pipe is full, so the thread wakes up; or it has ended

    def _drain(self) -> None:
        try:
            os.read(self._awake, 4096)
        except BlockingIOError:
            return

    def _look(self, now: float) -> None:
        """Do what is due."""
        if self._asked_to_leave and not self._leaving:
            from pilotage.agent.allocation import is_over

            # The wall time may end by a limit that the pilot does not know; a batch system that ends many jobs answers slowly.
            over = WALL_TIME if now >= self._limit_at or is_over() else ""
            self._depart(over or self._asked_to_leave, over or "preempted", self._settings.grace_seconds)
            return
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self.look_after()
            with self._pilot.guard:
                self._pilot.remind()
            if not self._leaving and is_gone(self._settings.state):
                self._depart("homeless", "preempted", DESERTED_FAREWELL_SECONDS)
                return
        if now >= self._flush_at:
            self._flush(now)
        elif now >= self._due_at:
            self._check(now)

    def _check(self, now: float) -> None:
        """Check for a retry, a heartbeat, the end of the wall time or of the patience."""
        settings = self._settings
        if self._leaving and now >= self._limit_at:
            say(f"ended before the service had all events: {self._leaving}")
            self._over = True
        elif now >= self._heard_at + settings.outlive_seconds:
            say(f"the service did not answer for {settings.outlive_seconds:g} s")
            self._over = True
        elif now >= self._limit_at:
            self._depart(WALL_TIME, WALL_TIME, settings.farewell_seconds)
        elif not self._leaving and now >= self._heard_at + settings.deserted_seconds and self._has_nothing():
            self._depart("deserted", CANCELLED, DESERTED_FAREWELL_SECONDS)
        elif not self._leaving and self._is_abandoned(now):
            say("leaving undelivered events in the spool for the next pilot")
            self._depart("deserted", CANCELLED, DESERTED_FAREWELL_SECONDS)
        else:
            if 0.0 <= self._opened_at <= now - self._patience_seconds:
                longer_seconds = self._patience_seconds * settings.patience_growth
                self._patience_seconds = min(longer_seconds, settings.patience_seconds_max)
            self._exchange()

    def _has_nothing(self) -> bool:
        pilot = self._pilot
        with pilot.guard:  # a pilot that never had work has no events that matter
            return not pilot.slot_table.held and not (pilot.given and pilot.spool.pending)

    def _is_abandoned(self, now: float) -> bool:
        """Tell whether its work is done, and the service has been away for long enough."""
        pilot = self._pilot
        with pilot.guard:
            over_at = math.inf if pilot.slot_table.held else max(self._heard_at, pilot.idle_since)
        return now >= over_at + self._settings.untold_seconds

    def _wake_at(self, at: float) -> None:
        self._due_at = min(at, self._limit_at)

    def _depart(self, reason: str, stopping: str, seconds: float) -> None:
        """Stop the running attempts, for a reason, and end as soon as the service knows."""
        self._leaving = reason
        self._limit_at = time.monotonic() + seconds
        self._retry_at = 0.0
        say(f"leaving: {reason}")
        with self._pilot.guard:
            self._pilot.leave(reason, stopping=stopping)
        self._exchange()

    # --- speaking ----------------------------------------------------------------------------------------------------

    def _flush(self, now: float) -> None:
        with self._pilot.guard:
            self._flush_at = math.inf
            awaited = self._opened_at >= 0.0 and self._news
        if now < self._retry_at:
            self._wake_at(self._retry_at)
        elif not awaited:
            self._exchange()

    def _exchange(self) -> None:
        pilot, now = self._pilot, time.monotonic()
        with pilot.guard:
            pilot.tell_long_phases(self._interval_seconds)
            events, logs = pilot.spool.batch()
            self._unwritten += pilot.spool.take_unwritten()
            held = b",".join([each.ref_text for each in pilot.slot_table.held.values()])
            self._asks = not held
            backlog, clocks = pilot.backlog, pilot.spool.clocks()
            self._sequence += 1
            self._opened_at = now
            self._news = bool(events)
            self._unsent_at = self._flush_at = math.inf
        if now >= self._logs_at:
            self._logs_at = now + self._interval_seconds
            logs += pilot.partial_logs()
        self._write()
        parts = [b'{"exchange":%b,"sequence":%d,%b,"backlog":%d' % (self._head, self._sequence, clocks, backlog)]
        if self._limit_at < math.inf:
            parts.append(b'"remaining_seconds":%.3f' % max(0.0, self._limit_at - now))
        if self._leaving:
            parts.append(b'"leaving":%b' % encode(self._leaving).encode())
        ended = b',"ended_token":%b' % encode(self._credentials.ended).encode() if self._credentials.ended else b""
        self._damaged = pilot.damaged.untold()
        if self._damaged:
            ended += b',"damaged":%b' % encode(self._damaged).encode()
        fields = (held, b",".join(events), b",".join(logs), ended)
        parts.append(b'"held":[%b],"events":[%b]},"logs":[%b]%b}' % fields)
        self._wake_at(now + self._patience_seconds)
        self._send(b",".join(parts))

    def _write(self) -> None:
        """Write all events to disk before they are sent."""
        spool = self._pilot.spool
        try:
            spool.write(self._unwritten)
            self._unwritten = []
            if spool.overgrown:
                with self._pilot.guard:
                    kept = spool.kept()
                spool.rewrite(kept)
        except OSError as error:
            self._complain(f"events cannot be written to disk, and are sent all the same: {error}")

    def _send(self, body: bytes) -> None:
        link = next((each for each in self._links.values() if not each.ticket), None)
        again = link is not None
        try:
            if link is None:
                link = self._connect()
            fields = "Content-Type: application/json\r\n"
            link.send("POST", "/agent/exchange", body, fields=fields, ticket=self._sequence)
        except (OSError, ValueError) as error:
            if link is not None:
                self._drop(link)
            self._failed(str(error), again=again)

    def _connect(self) -> Link:
        if len(self._links) >= LINKS_MAX:
            self._drop(min(self._links.values(), key=lambda each: each.ticket))
        link = self._credentials.connect(self._settings.server, **self._settings.reach)
        self._links[link.fileno()] = link
        self._poller.register(link.fileno(), select.POLLIN)
        return link

    def _drop(self, link: Link) -> None:
        for descriptor in [number for number, each in self._links.items() if each is link]:
            del self._links[descriptor]
            self._poller.unregister(descriptor)
        link.close()

    def _failed(self, why: str, *, again: bool, seconds: float = 0.0) -> None:
        """Give up the open exchange without an answer; retry it, later with each failure."""
        now = time.monotonic()
        with self._pilot.guard:
            self._opened_at = -1.0
        if again:  # an idle connection was closed, which says nothing about the service
            self._wake_at(now)
            return
        if not seconds:
            seconds = self._backoff_seconds
            # On the same computer a retry costs nothing, and a restarted service should go on at once.
            longest_seconds = NEAR_SECONDS if self._settings.server.startswith("unix:") else BACKOFF_SECONDS[1]
            self._backoff_seconds = min(2.0 * seconds, longest_seconds)
        self._retry_at = now + seconds
        self._wake_at(self._retry_at)
        self._complain(f"no answer from the service: {why}")

    def _complain(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._complained_at + COMPLAIN_SECONDS:
            self._complained_at = now
            say(text)

    # --- listening ---------------------------------------------------------------------------------------------------

    def _receive(self, link: Link) -> None:
        ticket, again = link.ticket, link.answers > 0
        try:
            answer = link.receive()
        except OSError as error:
            self._drop(link)
            if ticket == self._sequence and self._opened_at >= 0.0:
                self._failed(str(error), again=again)
            return
        if answer is None:
            return
        if answer.fields.get(b"connection", b"").lower() == b"close":
            self._drop(link)
        if ticket == self._sequence and self._opened_at >= 0.0:
            self._judge(answer)

    def _judge(self, answer: Answer) -> None:
        if answer.status == 200:
            try:
                content = json.loads(answer.body)
                reply = content["reply"]
                if reply["pilot"] == self._settings.pilot and reply["sequence"] == self._sequence:
                    self._credentials.take(answer.fields)
                    self._hear(reply, content.get("work") or [], content.get("tokens") or [])
                    if content.get("variables"):
                        with self._pilot.guard:
                            self._pilot.name_variables(content["variables"])
                    return
                why = "the answer is for another pilot"
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                why = f"the answer is malformed: {type(error).__name__}: {error}"
            self._failed(why, again=False)
            return
        message = f"HTTP {answer.status}: {answer.body[:300].decode('utf-8', 'replace')}"
        if answer.status in (401, 403):
            # The token file may have been renewed.
            again = answer.status == UNAUTHENTICATED and self._credentials.refused()
            self._credentials.look_again()
            self._failed(
                f"{message}; the token in {self._settings.token_file} is rejected", again=again, seconds=DENIED_SECONDS
            )
        else:
            self._failed(message, again=False)

    def _hear(self, reply: dict[str, Any], work: list[dict[str, Any]], tokens: list[str]) -> None:
        """Process the answer to the open exchange."""
        pilot, now = self._pilot, time.monotonic()
        if self._complained_at > self._heard_at:
            say("connected to the service")
            self._complained_at = -math.inf
        self._heard_at, self._retry_at = now, 0.0
        self._backoff_seconds = BACKOFF_SECONDS[0]
        self._interval_seconds = float(reply.get("interval_seconds", 10.0))
        self._patience_seconds = self._settings.patience_intervals * self._interval_seconds
        assignments = reply.get("assignments") or []
        with pilot.guard:
            opened_at, self._opened_at = self._opened_at, -1.0
            spool = pilot.spool
            spool.hear(reply)
            if self._damaged:
                pilot.damaged.told(self._damaged)
            changed = bool(assignments)
            if not self._leaving:
                for ref in reply.get("cancelled") or ():
                    changed = pilot.cancel(ref_of(ref)) or changed
                if not reply.get("leave"):
                    for assignment, how, token in zip_longest(assignments, work, tokens):
                        assignment["seen"] = spool.seen  # for events that the attempt logs
                        pilot.accept(assignment, how, token or "")
                    pilot.begin()
            done = bool(pilot.ended) and not spool.pending
        if self._leaving:
            self._over = done
            self._wake_at(now if self._unsent_at < math.inf else now + 1.0)
        elif reply.get("leave"):
            self._depart(str(reply["leave"])[:64], "preempted", self._settings.farewell_seconds)
        elif not self._end_if_idle(now):
            self._listen(opened_at, changed=changed)

    def _listen(self, opened_at: float, *, changed: bool) -> None:
        """Open the next exchange: soon if there are events or free slots, else as a heartbeat."""
        pilot, now, hold_seconds = self._pilot, time.monotonic(), self._settings.hold_seconds
        with pilot.guard:
            has_unsent = self._unsent_at < math.inf or pilot.spool.pending
            has_capacity = pilot.slot_table.has_capacity(pilot.backlog)
            stopping = any(each.stopping is not None for each in pilot.slot_table.held.values())
            if has_unsent:
                self._flush_at = now if pilot.is_urgent else max(now, min(self._unsent_at, now) + hold_seconds)
            busy = pilot.slot_table.running > 0
        at = opened_at + self._interval_seconds
        if has_unsent:
            self._wake_at(max(now, at))
        elif stopping and not self._news and not changed:
            self._wake_at(now + 0.5)  # the service repeats cancellations until the attempts have ended
        elif self._news or changed or now >= opened_at + 0.5 * self._interval_seconds:
            # Running attempts may end in a moment: their events are then the next exchange, and this poll is saved.
            self._wake_at(now + (hold_seconds if has_capacity else LISTEN_SECONDS) if busy else now)
        else:  # an early answer without content: the service does not keep polls open
            self._wake_at(max(now, at))

    def _end_if_idle(self, now: float) -> bool:
        # Only while no exchange is open: then no assignment can be on its way here.
        settings, pilot = self._settings, self._pilot
        with pilot.guard:
            if pilot.slot_table.held:
                return False
            # If others share its batch job, it asks for the next one before it ends.
            over = settings.serves is not None and pilot.given and (self._asks or not pilot.following)
            idle = now - pilot.idle_since >= settings.idle_seconds
        if over or idle:
            self._depart("finished" if over else "idle", CANCELLED, settings.farewell_seconds)
        return over or idle
