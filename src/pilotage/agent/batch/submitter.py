"""Submits, cancels and lists agents at a batch system, with any function that runs a command there.

It submits nothing twice. After a submission without an answer it looks for the key in the listings, and submits again
only when it has not shown up for a while. Ended jobs are reported once, with the end of their output.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.batch.dialect import CANNOT_WRITE_STATUS, Dialect, element_key, output_of
from pilotage.agent.batch.pilot_job import PilotJobTemplate
from pilotage.agent.batch.values import (
    Answer,
    BatchError,
    BatchJob,
    BatchRequest,
    Busy,
    Call,
    Refused,
    Unknown,
    answered,
)
from pilotage.agent.silent_pilots import NOTICES_MAX, BatchJobNotice, SilentPilots

ARRAY_MAX = 100
SETTLE_SECONDS = 10.0
"""How long an unanswered submission may take to show up in a listing."""
PATIENCE_SECONDS = 15.0
"""How long a batch system may take to list a new job, or to record how a job ended."""
TAIL_CHARACTERS_MAX = 2000
_TAILS_MAX = 200  # output files per call
_VANISHED = "vanished"


class Listed(NamedTuple):
    """The batch job of one key; if ended, with the end of its output."""

    native_id: str
    ended: bool = False
    reason: str = ""
    stderr: str = ""
    detail: str = ""  # the system's own state


class _Missing(NamedTuple):
    """A batch job that is missing from a listing."""

    since: float
    asked_at: float


class Submitter:
    """The batch system of one site; for one thread at a time."""

    def __init__(
        self,
        dialect: Dialect,
        run: Callable[[Call], Answer],
        job_template: Callable[[], PilotJobTemplate],
        *,
        output: Callable[[], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        array_max: int = ARRAY_MAX,
        settle_seconds: float = SETTLE_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        unsure: Collection[str] = (),
        note: Callable[[Collection[str]], None] | None = None,
    ) -> None:
        """Take the dialect, a function that runs commands, and the template of agents.

        `run` raises `Unknown` if the site cannot be reached; so may `job_template`, which is called when needed.
        `output` is the folder for output files, if known without the template. `note` gets the keys that may be queued
        without our knowledge, before and after a submission; after a crash in between they are `unsure` at the next
        start.
        """
        self._dialect = dialect
        self._run = run
        self._job_template = job_template
        self._output = output or (lambda: job_template().output)
        self._clock = clock
        self._array_max = array_max
        self._settle_seconds = settle_seconds
        self._patience_seconds = patience_seconds
        self._there: dict[str, str] | None = None  # native ids of unfinished jobs, by key; None before a listing
        self._live: dict[str, str] = {}  # native ids of all jobs once listed whose end is not reported, by key
        self._ended: dict[str, BatchJob] = {}  # ended jobs in the last listing, by key
        self._open: dict[str, BatchJob] = {}  # unfinished jobs in the last listing, by key
        self._silent_pilots = SilentPilots(clock=clock)
        self._reported: set[str] = set()
        self._looked_at = 0.0
        self._unsure = dict.fromkeys(unsure, clock())  # times of submissions without an answer, by key
        self._note = note
        self._missing: dict[str, _Missing] = {}
        self._cancelled: set[str] = set()
        self._doubtful = False  # whether a job may have been queued since the last listing

    def scheduler(self) -> str:
        """The batch system and its version, such as `slurm 23.02.6`; raises `Unknown`."""
        dialect = self._dialect
        version = dialect.version(self._run(dialect.is_here())) if dialect.version_words else ""
        return f"{dialect.name} {version}".strip()

    # --- submitting ---

    def submit_pilots(self, key: str, count: int = 1) -> list[str]:
        """Submit pilots with consecutive keys, unless they exist; returns the native ids of the first ones.

        There may be fewer than `count`, because of a limit or an error. If there is none, it raises the error:
        `Refused`, `Busy` or `Unknown`.
        """
        keys = [_follower(key, offset) for offset in range(count)]
        done: dict[str, str] = {}
        try:
            while len(done) < count:
                self._submit_next(keys, done)
        except BatchError:
            if not done:
                raise
        return list(done.values())

    def _submit_next(self, keys: Sequence[str], done: dict[str, str]) -> None:
        """Take the next pilots that exist, or submit the next array of those that do not."""
        first = len(done)
        known = self._known(keys[first])
        if known is not None:
            done[keys[first]] = known
            return
        together = 1
        while first + together < len(keys) and self._known(keys[first + together]) is None:
            together += 1
        size = min(together, self._array_max)
        while True:
            try:
                job_template = self._job_template()
                with _sayable():
                    wanted = job_template.pilots(keys[first], count=size)
                done.update(self._submit(wanted))
            except Busy as busy:
                if size == 1 or self._doubtful:
                    raise
                size //= 2  # a smaller array may fit, whatever the message
                if busy.fewer:
                    self._array_max = size
            else:
                return

    def submit_attempt(self, key: str, *, serves: str, demand: Mapping[str, Any]) -> str:
        """Submit an agent for one attempt, unless it exists; returns its native id. See `PilotJobTemplate.attempt`."""
        known = self._known(key)
        if known is not None:
            return known
        job_template = self._job_template()
        with _sayable():
            wanted = job_template.attempt(key, serves=serves, demand=demand)
        if wanted.hosts and not self._dialect.places:
            raise Refused("bad-resources", f"{self._dialect.name} cannot restrict a job to certain nodes")
        return self._submit(wanted)[key]

    def _known(self, key: str) -> str | None:
        """The native id of a key's job; None if it may be submitted. Raises `Unknown` in doubt."""
        tried_at = self._unsure.get(key)
        settled = tried_at is None or self._looked_at > tried_at + self._settle_seconds
        if self._there is None or self._doubtful or not settled:
            self._look()
        known = self._live.get(key)
        if known is None and key in self._ended:
            known = self._ended[key].native_id
        if known is None and tried_at is not None and self._looked_at <= tried_at + self._settle_seconds:
            raise Unknown(f"{key} may have been queued by a call without an answer; waiting for a listing")
        return known

    def _submit(self, wanted: BatchRequest) -> dict[str, str]:
        keys = [_follower(wanted.key, offset) for offset in range(wanted.count)]
        with _sayable():
            call = self._dialect.submit(wanted)
        self._unsure.update(dict.fromkeys(keys, self._clock()))
        self._tell_unsure()
        answer = Answer(None)
        try:
            answer = self._run(call)
            native_ids = self._dialect.submitted(wanted, answer)
        except Unknown:
            self._unsure.update(dict.fromkeys(keys, self._clock()))
            raise
        except BatchError:
            self._doubtful = answer.exit_status is None
            self._forget(keys)
            self._tell_unsure()
            raise
        self._forget(keys)
        self._tell_unsure()
        assert self._there is not None
        self._there.update(native_ids)
        self._live.update(native_ids)
        return native_ids

    def _tell_unsure(self) -> None:
        if self._note is not None:
            self._note(self._unsure)

    def _forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._unsure.pop(key, None)

    # --- cancelling ---

    def cancel(self, *keys: str) -> None:
        """Cancel the jobs of these keys, as far as they exist. Raises `Unknown`."""
        if self._there is None or any(key not in self._there for key in keys):
            self._look()
        found = {key: self._there[key] for key in keys if key in self._there} if self._there is not None else {}
        if found:
            self._dialect.cancelled(self._run(self._dialect.cancel(found)))
        self._cancelled.update(self._live.keys() & keys)

    # --- listing ---

    def listing(self, expected: Collection[str] = ()) -> dict[str, Listed]:
        """All our jobs that are present, or ended and not yet reported, by key. Raises `Unknown`.

        Jobs that are `expected`, or were listed before, and are missing now are looked up in the system's history; a
        job that is missing there, too, is reported as vanished.
        """
        self._look()
        assert self._there is not None
        self._end_errors()
        ended = {key: job for key, job in self._ended.items() if key not in self._reported}
        missing = {key: self._live.get(key, "") for key in (*self._live, *expected) if key not in self._reported}
        missing = {key: native for key, native in missing.items() if key not in self._there and key not in ended}
        for key in self._cancelled & missing.keys():  # an array cancelled in the queue leaves one record for all
            ended[key] = BatchJob(missing.pop(key), "ended", "cancelled")
        self._cancelled &= self._there.keys()
        ended.update(self._remembered(missing))
        tails = self._tails(ended)
        self._reported &= {*self._ended, *expected}
        self._reported.update(ended)
        self._forget(ended)
        for key in ended:
            self._live.pop(key, None)
        found = {key: Listed(native_id) for key, native_id in self._there.items()}
        for key, job in ended.items():
            stderr = tails.get(key, "") or self._own_words(job)
            reason = _VANISHED if job.detail == _VANISHED else job.reason or "ended"
            found[key] = Listed(job.native_id, ended=True, reason=reason, stderr=stderr, detail=job.detail)
        return found

    def notice(self, unheard: Collection[str]) -> list[BatchJobNotice]:
        """Report held and silent batch jobs of the last listing.

        A held job is reported with the system's reason, a silent one after a while with the end of its output.
        """
        waiting = {key: self._open[key] for key in unheard if key in self._open}
        held = [BatchJobNotice(key, job.reason, job.detail) for key, job in waiting.items() if job.reason == "held"]
        running = [key for key, job in waiting.items() if job.state == "running" and job.reason != "held"]
        return [*held[:NOTICES_MAX], *self._silent_pilots.notice(running, self._printed)]

    def _look(self) -> None:
        now = self._clock()
        listed = self._dialect.listed(self._run(self._dialect.listing()))
        self._looked_at, self._doubtful = now, False
        self._open = {key: job for key, job in listed.items() if job.state != "ended"}
        self._there = {key: job.native_id for key, job in self._open.items()}
        self._ended = {key: job for key, job in listed.items() if job.state == "ended"}
        self._live.update(self._there)
        self._forget(listed)

    def _end_errors(self) -> None:
        """Cancel jobs that the system can never start, and count them as ended, with its message."""
        assert self._there is not None
        stuck = {key: job for key, job in self._open.items() if job.reason == "error"}
        call = self._dialect.errors([job.native_id for job in stuck.values()]) if stuck else None
        if call is None:
            return
        words = self._dialect.errors_told(self._run(call))
        self._dialect.cancelled(self._run(self._dialect.cancel({key: job.native_id for key, job in stuck.items()})))
        for key, job in stuck.items():
            message = words.get(job.native_id, "it does not say why")
            why = f"the batch system could not start it ({job.detail}): {message}"
            self._ended[key] = BatchJob(job.native_id, "ended", "platform-failure", detail=why)
            del self._open[key], self._there[key]

    def _remembered(self, missing: Mapping[str, str]) -> dict[str, BatchJob]:
        """Ended jobs that are no longer listed; those that may still be listed count as present."""
        assert self._there is not None
        now = self._clock()
        self._missing = {key: self._missing.get(key, _Missing(now, 0.0)) for key in missing}
        # It may be expensive for the site: ask once at first, and once more when the accounting has been written.
        due = {
            key: missing[key]
            for key, known in self._missing.items()
            if not known.asked_at or now >= known.since + self._patience_seconds
        }
        found = self._history(due)
        for key in due:
            if key not in found:
                since = self._missing[key].since
                if now >= since + self._patience_seconds:
                    found[key] = BatchJob(missing[key], "ended", detail=_VANISHED)
                else:
                    self._missing[key] = _Missing(since, now)
        for key in found:
            del self._missing[key]
        for key in self._missing:
            self._there[key] = missing[key]
        return found

    def _history(self, due: Mapping[str, str]) -> dict[str, BatchJob]:
        call = self._dialect.history(due) if due else None
        if call is None:
            return {}
        try:
            remembered = self._dialect.remembered(self._run(call))
        except Unknown:
            return {}  # the listing was answered: a job missing from it is gone
        return {key: job for key, job in remembered.items() if key in due and job.state == "ended"}

    # --- output ---

    def _tails(self, ended: Mapping[str, BatchJob]) -> dict[str, str]:
        """The end of each job's output; removes the files afterwards."""
        found: dict[str, str] = {}
        keys = list(ended)
        for start in range(0, len(keys), _TAILS_MAX):
            some = keys[start : start + _TAILS_MAX]
            found.update(self._read(some))
            files = [output_of(self._output(), key) for key in some]
            self._run(Call(("sh",), "\n".join([f"rm -f {shlex.quote(file)}" for file in files] + [""])))
        return found

    def _printed(self, keys: Collection[str]) -> dict[str, str]:
        """The end of each job's output so far; empty if it cannot be read now."""
        try:
            return self._read(list(keys))
        except Unknown:
            return {}

    def _read(self, keys: Sequence[str]) -> dict[str, str]:
        folder, mark = self._output(), os.urandom(12).hex()
        lines = [
            f"tail -c {4 * TAIL_CHARACTERS_MAX} {shlex.quote(output_of(folder, key))} 2>/dev/null\necho {mark}"
            for key in keys
        ]
        texts = answered(self._run(Call(("sh",), "\n".join([*lines, "exit 0", ""])))).split(f"{mark}\n")
        if len(texts) != len(keys) + 1:
            raise Unknown("the output of agents could not be read completely")
        return {key: _clean(texts[place]) for place, key in enumerate(keys)}

    def _own_words(self, job: BatchJob) -> str:
        """A message for a job without output."""
        if job.exit_status == CANNOT_WRITE_STATUS:
            return (
                f"its node could not write to {self._output()}: the folder of a site must be on a file system"
                " that all of its nodes share"
            )
        return job.detail if job.reason not in ("", "ended") else ""


@contextmanager
def _sayable() -> Iterator[None]:
    """Turn a `ValueError` of the dialect into `Refused`."""
    try:
        yield
    except ValueError as error:
        raise Refused("bad-resources", str(error)) from error


def _follower(key: str, offset: int) -> str:
    found = element_key(key, offset)
    if found is None:
        raise ValueError(f"the key of several pilots must end in a number, not {key!r}")
    return found


def _clean(text: str) -> str:
    decoded = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return decoded[-TAIL_CHARACTERS_MAX:].strip()


# Runs commands of a batch system in the environment of its users: a login shell, then the site's own lines of setup.
#
# Neither ssh nor cron gives that by itself: `sbatch` is not found there, or talks to a system that was switched off
# years ago. Output of the profile and the setup is not part of the answer, and neither of them reads the command's input.

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Run = Callable[[Call], Answer]
    """Runs a command to its end."""

_BEGINS = "pilotage-command-begins"
_NOT_FOUND = 127
# Descriptors 8 and 9 keep the command's own input and output while the profile and the setup run.
_ENTER = """\
exec 8<&0 9>&1 </dev/null >&2
shell=bash
command -v bash >/dev/null 2>&1 || shell=sh
exec "$shell" -l -c "$0" "$shell" "$@"
"""
# A profile may choose a language; we can only parse English messages, and LC_ALL would override LC_MESSAGES.
_GO_ON = f"""\
if [ -n "${{LC_ALL:-}}" ]; then LANG=$LC_ALL LC_CTYPE=$LC_ALL; export LANG LC_CTYPE; unset LC_ALL; fi
unset LANGUAGE
LC_MESSAGES=C
export LC_MESSAGES
echo {_BEGINS} >&2
exec <&8 >&9 8<&- 9>&-
exec "$@"
"""


def in_login_shell(run: Run, setup: Sequence[str] = ()) -> Run:
    """A function that runs commands like `run`, but in a login shell and after these lines of setup."""
    script = "\n".join([*setup, _GO_ON])

    def run_there(call: Call) -> Answer:
        return _of_the_command(run(Call(("sh", "-c", _ENTER, script, *call.argv), call.stdin)))

    return run_there


def _of_the_command(answer: Answer) -> Answer:
    """The answer without the output before the command; if the command did not start, that output may say why."""
    before, begun, after = answer.stderr.partition(f"{_BEGINS}\n")
    if not begun:
        return answer
    return answer._replace(stderr=f"{after}{before}" if answer.exit_status == _NOT_FOUND else after)
