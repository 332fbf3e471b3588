"""A pilot: holds the slots of a node, runs assigned attempts in them, and records events.

Each slot is a thread that runs one attempt at a time and takes the next by itself, so that it never idles while
attempts wait. The exchanging thread sends the events, together with others of the same moment.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.attempt.attempt import AttemptRunner, Outcome
from pilotage.agent.attempt.diagnosis import exit_code_for
from pilotage.agent.attempt.workplace import DamagedFiles
from pilotage.agent.pilot.backlog import AttemptDurations, HeldAttempt, SlotTable
from pilotage.agent.pilot.spool import TOKEN_SUFFIX, PilotSpool, log_text
from pilotage.agent.resources import Resources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pilotage.agent.attempt.workplace import Fetch, Workplace

DURATIONS_KEPT_SECONDS = 5.0  # after so long without work the average duration of attempts is reset
VARIABLE_CHARACTERS_MAX = 1000
CANCELLED = ""  # reason of attempts that the service cancelled


class PilotSettings(NamedTuple):
    """The identity, resources and intervals of a pilot; an interval from the service takes precedence."""

    pilot: str
    site: str
    state: str
    server: str
    request: str = ""
    announcement: str = ""
    token_file: str = ""
    ca_file: str = ""
    scratch_folder: str = ""  # empty: in the state folder
    node: str = ""
    in_batch_job: bool = False  # whether a batch system knows how it ended
    serves: dict[str, Any] | None = None  # the attempt to run, and those that share its batch job, and no others
    capacity: Resources = Resources()
    backlog: int = 64  # attempts that may wait here at most; the longer they take, the fewer
    wall_seconds: float = 0.0  # 0: no limit
    interval_seconds: float = 10.0  # until the first reply sets it
    patience_intervals: float = 1.5  # an exchange is repeated after so long without a reply
    patience_growth: float = 2.0
    patience_seconds_max: float = 120.0
    hold_seconds: float = 0.06  # how long a first event waits for others
    idle_seconds: float = 300.0  # a pilot without attempts ends after so long
    outlive_seconds: float = 21_600.0  # a pilot without any reply ends after so long
    deserted_seconds: float = 21_600.0  # the same, without attempts and undelivered events
    untold_seconds: float = 1800.0  # the same, without attempts; undelivered events stay in its spool
    farewell_seconds: float = 300.0  # how long it tries to deliver its last events
    grace_seconds: float = 10.0  # the same after a signal
    wall_margin_seconds: float = 30.0  # it stops everything so long before its wall time is over
    remembered_max: int = 256  # finished attempts that it can still report again

    @property
    def spool(self) -> Path:
        """The folder with the spools of all pilots of the state folder."""
        return Path(self.state) / "spool"

    @property
    def reach(self) -> dict[str, str]:
        """The keyword arguments of `connect`."""
        return {"announcement": self.announcement, "ca_file": self.ca_file}

    @property
    def own_token_file(self) -> Path:
        """The file for the renewed token."""
        return self.spool / f"{self.pilot}{TOKEN_SUFFIX}"

    @property
    def scratch(self) -> Path:
        """The scratch folder of this pilot alone."""
        return (Path(self.scratch_folder) if self.scratch_folder else Path(self.state) / "scratch") / self.pilot


def say(text: str) -> None:
    """Write a log line to standard error; the state of the site shows it."""
    with contextlib.suppress(OSError, ValueError):  # closed, or the disk is full
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} pilotage-agent: {text}\n")
        sys.stderr.flush()


class Slot:
    """A thread that runs attempts, one at a time."""

    def __init__(self, pilot: Pilot, number: int, held: HeldAttempt) -> None:
        self.number = number
        self.runner: AttemptRunner | None = None  # made in its thread: the main thread never starts a process
        self.next: HeldAttempt | None = held
        self._wake = threading.Lock()
        self._wake.acquire()
        self._pilot = pilot
        threading.Thread(target=self._work, name=f"slot {number}", daemon=True).start()

    def hand(self, held: HeldAttempt) -> None:
        """Give an attempt to an idle slot."""
        self.next = held
        self._wake.release()

    def _work(self) -> None:
        while True:
            held = self.next
            while held is not None:
                held = self._pilot.run(self, held)
            if self.runner is not None:
                self.runner.rest()
            self._wake.acquire()


class Pilot:
    """The attempts and slots of a pilot; `Exchanger` assigns attempts and takes the events.

    `guard` is the lock of everything that slots and the exchange share. `on_news` is called under it, when there are
    new events, and with whether they are urgent.
    """

    def __init__(
        self,
        settings: PilotSettings,
        *,
        workplace: Workplace,
        fetch: Fetch,
        on_news: Callable[[bool], None],
        on_slots: Callable[[int], None] = lambda _: None,
        make_runner: Callable[[Workplace, int], AttemptRunner] = AttemptRunner,
        damaged: DamagedFiles | None = None,
    ) -> None:
        """Take the parts shared with its slots; nothing runs before the first assignment.

        `on_slots` is called when more attempts run than there are cores, because they share some.
        """
        self.settings = settings
        self.guard = threading.Lock()
        self.slot_table = SlotTable(settings.capacity)
        self.spool = PilotSpool(settings.spool, settings.pilot, remembered_max=settings.remembered_max)
        self.slots = max(1, settings.capacity.cores_hundredths // 100)
        self.idle_since = time.monotonic()
        self.given = False  # whether it ever had work
        self.following = 0  # attempts that its batch job runs after the latest one
        self.closing = False  # whether it starts no more attempts
        self.ended = ""  # why it ended, once reported
        self._leaving = ""
        self._workplace = workplace
        self.damaged = damaged or DamagedFiles()  # in the cache of the site
        self._fetch = fetch
        self._on_news = on_news
        self._on_slots = on_slots
        self._make_runner = make_runner
        self._idle: list[Slot] = []
        self._count = 0
        self._durations = AttemptDurations()
        self._description: dict[str, Any] = {"node": settings.node, "software": {}, "environment": {}}

    @property
    def backlog(self) -> int:
        """How many attempts may wait here beyond the running ones; guarded."""
        settings = self.settings
        if settings.serves is not None:
            return 0
        if not self.slot_table.held and time.monotonic() - self.idle_since > DURATIONS_KEPT_SECONDS:
            self._durations.forget()
        return min(settings.backlog, self._durations.ahead(self.slots))

    @property
    def is_urgent(self) -> bool:
        """Tell whether to send events at once: few attempts wait, so that more should arrive in time."""
        return len(self.slot_table.waiting) <= max(self.slots, self.spool.unsent)

    def introduce(self) -> None:
        """Report the pilot and its node; guarded."""
        settings, now = self.settings, time.time()
        started: dict[str, Any] = {"site": settings.site, "node": settings.node, "slots": self.slots}
        if settings.request:
            started["request"] = settings.request
        self.spool.tell("PilotStarted", started, at=now)
        self._description = describe_node(settings.node, settings.site)
        self.spool.tell("NodeDescribed", self._description, at=now)

    def name_variables(self, names: Sequence[str]) -> None:
        """Report the environment variables of the node that the service asks for, once; guarded."""
        values = {name: os.environ[name][:VARIABLE_CHARACTERS_MAX] for name in names if name in os.environ}
        environment = {**self._description["environment"], **values}
        if environment != self._description["environment"]:
            self._description = {**self._description, "environment": environment}
            self.spool.tell("NodeDescribed", self._description, at=time.time())
            self._on_news(False)

    def _describe_software(self, held: HeldAttempt, software: Mapping[str, str]) -> None:
        """Report versions of software as an event of the attempt that uses it, which its job keeps; guarded."""
        self._description = {**self._description, "software": {**self._description["software"], **software}}
        self.spool.tell_of(held, "NodeDescribed", self._description, at=time.time())

    # --- instructions of the service: guarded ------------------------------------------------------------------------

    def accept(self, assignment: dict[str, Any], work: dict[str, Any] | None, token: str = "") -> None:
        """Accept an attempt, unless it is known already; `token` is for its commands."""
        held = HeldAttempt(assignment, work, token)
        if held.ref in self.slot_table.held:
            return
        if self.spool.tell_again(held.ref):
            self._on_news(False)
            return
        self.given = True
        self.following = int(assignment.get("following", 0))
        why = self._why_not(held)
        if why:
            self._tell_end(held, _failure(f"the pilot cannot run it: {why}"))
            self._on_news(False)
            return
        self.slot_table.accept(held)

    def _why_not(self, held: HeldAttempt) -> str:
        """Why an attempt cannot be run; empty if it can."""
        if held.work is None:
            return "the service does not say how"
        if self.slot_table.never_fits(held.resources):
            return f"it asks for {held.resources}, but the node has {self.slot_table.capacity}"
        return str(held.work.get("refused", ""))

    def begin(self) -> None:
        """Start the waiting attempts that fit, in order."""
        while not self.closing:
            held = self.slot_table.take()
            if held is None:
                return
            if self._idle:
                self._idle.pop().hand(held)
                continue
            if self._count >= self.slots:
                self._on_slots(self._count + 1)
            try:
                Slot(self, self._count + 1, held)
            except RuntimeError as error:  # the system gives no more threads: the existing slots go on one by one
                self.slot_table.put_back(held)
                if self.slot_table.running:
                    return
                self.slot_table.remove(held)
                self._tell_end(held, _failure(f"the pilot cannot run it: {error}"))
                self._on_news(False)
            else:
                self._count += 1

    def cancel(self, ref: tuple[str, str, int]) -> bool:
        """Stop a cancelled attempt; returns whether that is an event to report."""
        held = self.slot_table.held.get(ref)
        if held is None or held.stopping is not None:
            return False
        if held.running:
            self._stop(held, CANCELLED)
        else:
            self.slot_table.remove(held)
            self.idle_since = time.monotonic()
        return True

    def leave(self, reason: str, *, stopping: str) -> None:
        """Start no more attempts, stop the running ones for a reason, and report the pilot's end when all are over."""
        self.closing, self._leaving = True, reason
        for held in list(self.slot_table.held.values()):
            if held.running:
                if held.stopping is None:
                    self._stop(held, stopping)
            else:
                self.slot_table.remove(held)
                self._tell_end(held, _stopped({"exit_code": "EXECUTION_CANCELED"}, "preempted"))
        self._end_if_empty()

    def remind(self) -> bool:
        """Stop attempts again that were just starting and missed it. Returns whether there are any."""
        stopping = [
            each for each in self.slot_table.held.values() if each.stopping is not None and each.slot is not None
        ]
        for held in stopping:
            _cancel(held)
        return bool(stopping)

    def _stop(self, held: HeldAttempt, reason: str) -> None:
        held.stopping = reason
        _cancel(held)

    def tell_long_phases(self, interval_seconds: float) -> None:
        """Report each phase that takes longer than an interval, once."""
        if not self.slot_table.running:
            return
        old = time.time() - interval_seconds
        for held in self.slot_table.held.values():
            phase = held.phase
            if phase is not None and phase is not held.reported_phase and phase[1] <= old:
                held.reported_phase = phase
                self.spool.tell_of(held, "PhaseEntered", {"phase": phase[0]}, at=phase[1])

    # --- in the slots' threads ---------------------------------------------------------------------------------------

    def run(self, slot: Slot, held: HeldAttempt) -> HeldAttempt | None:
        """Run an attempt to its end, in the thread of its slot; returns the next one, if any."""
        held.slot = slot
        began = time.monotonic()
        if held.stopping is None:
            outcome = self._outcome(slot, held)
        else:
            outcome = Outcome({"exit_code": "EXECUTION_CANCELED", "exit_message": "cancelled before it began"}, [])
        payload = outcome.payload
        if held.stopping and payload.get("exit_code") == "EXECUTION_CANCELED":
            payload = _stopped(payload, held.stopping)
        with self.guard:
            held.slot = None
            following = None
            if self.closing:
                self.slot_table.remove(held)
            else:
                following = self.slot_table.follow(held)
            if outcome.software:
                self._describe_software(held, outcome.software)
            self.spool.tell_of(held, "AttemptFinished", payload, at=time.time(), logs=outcome.logs)
            self.idle_since = now = time.monotonic()
            self._durations.note(now - began)
            if following is None:
                self._idle.append(slot)
            if self.slot_table.may_begin:
                self.begin()
            if self._leaving:
                self._end_if_empty()
            self._on_news(self.is_urgent)
        return following

    def _outcome(self, slot: Slot, held: HeldAttempt) -> Outcome:
        def on_phase(phase: str, at: float) -> None:
            held.enter(phase, at)
            if phase == "application" and (held.work or {}).get("shown"):
                self._tell_shown(held)

        try:
            if slot.runner is None:
                slot.runner = self._make_runner(self._workplace, slot.number)
            return slot.runner.run(
                held.assignment, held.work or {}, on_phase=on_phase, fetch=self._fetch, token=held.token
            )
        except Exception as error:  # noqa: BLE001 # an unexpected error fails the attempt, and must not end the slot
            import traceback

            say(traceback.format_exc())
            return Outcome(_failure(f"the agent failed: {type(error).__name__}: {error}"), [])

    def _tell_shown(self, held: HeldAttempt) -> None:
        """Report at once that an application runs whose outputs others may read while they grow."""
        with self.guard:
            phase = held.reported_phase = held.phase
            if phase is not None:
                self.spool.tell_of(held, "PhaseEntered", {"phase": phase[0]}, at=phase[1])
                self._on_news(True)

    def partial_logs(self) -> list[bytes]:
        """The current logs of attempts in a long phase, if they grew since they were sent; not guarded."""
        with self.guard:
            in_long_phase = [
                held
                for held in self.slot_table.held.values()
                if held.reported_phase is not None and held.slot is not None
            ]
            running = [(held, held.slot.runner) for held in in_long_phase if held.slot.runner is not None]
        found = []
        for held, runner in running:
            logs = runner.log_texts()
            size = sum(len(log["head"]) + len(log.get("tail", "")) + log.get("dropped_bytes", 0) for log in logs)
            if size != held.logs_sent:
                held.logs_sent = size
                found += [log_text(held, dict(log, final=False)) for log in logs]
        return found

    def _tell_end(self, held: HeldAttempt, payload: dict[str, Any]) -> None:
        payload["node"] = self.settings.node
        self.spool.tell_of(held, "AttemptFinished", payload, at=time.time())
        self.idle_since = time.monotonic()

    def _end_if_empty(self) -> None:
        if self._leaving and not self.ended and not self.slot_table.held:
            self.ended = self._leaving
            self.spool.tell("PilotEnded", {"reason": self._leaving[:64]}, at=time.time())


def _cancel(held: HeldAttempt) -> None:
    runner = held.slot.runner if held.slot is not None else None
    if runner is not None:
        runner.cancel(held.stopping or "cancelled")


def _failure(message: str) -> dict[str, Any]:
    reason = "platform-failure"
    return {"exit_code": exit_code_for(reason, phase=""), "exit_message": message, "reason": reason}


def _stopped(payload: dict[str, Any], reason: str) -> dict[str, Any]:
    """The payload of an attempt that was stopped because its pilot ends."""
    stopped = dict(payload)
    stopped["reason"] = reason
    stopped["exit_code"] = exit_code_for(reason, phase="application")
    stopped["exit_message"] = (
        "killed: the wall time of its pilot is over" if reason == "wall-time" else "its pilot had to end"
    )
    return stopped


def describe_node(node: str, site: str) -> dict[str, Any]:
    """A description of this computer."""
    system = os.uname()
    name = os_release()
    kernel = f"{system.sysname} {system.release} {system.machine}"
    return {
        "node": node,
        "site": site,
        "cores": os.cpu_count() or 1,
        "memory_bytes": memory_bytes(),
        "system": f"{name}, {kernel}" if name else kernel,
        "software": {"python": sys.version.split()[0]},
        "environment": {"utc_offset": utc_offset(time.localtime().tm_gmtoff)},
        "os_release": name,
        "kernel": kernel,
        "cpu_model": cpu_model(),
        "libc": libc(),
    }


def os_release() -> str:
    """The name and version of the operating system; empty if it does not tell."""
    for line in _lines_of("/etc/os-release"):
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip("\"'")
    return ""


def cpu_model(file: str = "/proc/cpuinfo") -> str:
    """The model of the first processor, or the numbers of its maker where it has no name."""
    numbers: dict[str, str] = {}
    for line in _lines_of(file):
        key, _, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if key == "model name" and value:
            return value
        if not key and numbers:
            break  # the next processor
        if key in ("CPU implementer", "CPU variant", "CPU part", "CPU revision", "cpu"):
            numbers[key] = value
    return ", ".join(f"{key} {value}" for key, value in numbers.items())


def libc() -> str:
    """The C library and its version; empty if it does not tell."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def _lines_of(file: str) -> list[str]:
    try:
        return Path(file).read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return []


def utc_offset(seconds: int) -> str:
    """The offset of a time zone, east of UTC, as text: `+02:00`."""
    hours, minutes = divmod(abs(seconds) // 60, 60)
    return f"{'-' if seconds < 0 else '+'}{hours:02}:{minutes:02}"


def usable_folder(text: str) -> str:
    """Expand the variables in a folder's path; empty if it is not a writable folder."""
    folder = os.path.expandvars(text)
    if not text or "$" in folder:
        return ""
    if not os.path.isabs(folder) or not os.access(folder, os.W_OK | os.X_OK):
        say(f"packages cannot use {folder}: they work in the state folder")
        return ""
    return folder


def memory_bytes() -> int:
    """The memory of this computer."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
