"""What a batch system does for us: agents are started, ended and looked at, by any way of running a command there.

Nothing is started twice. What may have been queued, although no answer came, is looked for by its key; only when it has
not shown itself for a while is it submitted again. What has ended is told once, with the last that it printed.
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
from pilotage.agent.batch.values import Answer, BatchError, Busy, Call, Refused, Seen, Unknown, Wanted, answered
from pilotage.agent.silent_pilots import NOTICES_MAX, Notice, Silence

ARRAY_MAX = 100
SETTLE_SECONDS = 10.0
"""So long after a call that was not answered, what it may have queued is seen in a listing."""
PATIENCE_SECONDS = 15.0
"""So long a system may take to tell of something that it just took, or how something ended."""
TAIL_CHARACTERS_MAX = 2000
_TAILS_MAX = 200  # files that are read by one call
_VANISHED = "vanished"


class Listed(NamedTuple):
    """What is known of one key; of what has ended, the last that it printed."""

    native_id: str
    ended: bool = False
    reason: str = ""
    stderr: str = ""
    detail: str = ""  # the system's own word


class _Missing(NamedTuple):
    """Something that should be in a listing and is not."""

    since: float
    asked_at: float


class Submitter:
    """The batch system of one site; one thread at a time may use it."""

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
        """Take the language, a way to run commands, and what agents are started with; nothing is run yet.

        `run` raises `Unknown` where there is no way to the site; so may `job_template`, which is asked when it is needed.
        `output` is the folder that agents print to, where that is known without the rest. `note` is told, before a
        submission and after it, which keys may be queued without our knowing; whoever dies in between has them be `unsure`
        next time.
        """
        self._dialect = dialect
        self._run = run
        self._job_template = job_template
        self._output = output or (lambda: job_template().output)
        self._clock = clock
        self._array_max = array_max
        self._settle_seconds = settle_seconds
        self._patience_seconds = patience_seconds
        self._there: dict[str, str] | None = None  # native ids of what has not ended, by key; None before a look
        self._live: dict[str, str] = {}  # native ids of all that once was there, and whose end was not told, by key
        self._ended: dict[str, Seen] = {}  # in the last listing, by key
        self._open: dict[str, Seen] = {}  # the same of what has not ended
        self._silence = Silence(clock=clock)
        self._told: set[str] = set()
        self._looked_at = 0.0
        self._unsure = dict.fromkeys(unsure, clock())  # when something was submitted without an answer, by key
        self._note = note
        self._missing: dict[str, _Missing] = {}
        self._cancelled: set[str] = set()
        self._doubtful = False  # whether something may have been queued that no listing was asked for since

    # --- starting ---

    def submit_pilots(self, key: str, count: int = 1) -> list[str]:
        """Start pilots under a key and those that follow it, unless they are there; the native ids of the first ones.

        There are fewer than asked for where a limit, or anything else, is met on the way. Where not one was started that
        is raised: `Refused`, `Busy` or `Unknown`.
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
        """Take the next ones that are there already, or start as many of those that are not as go together."""
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
                size //= 2  # fewer may fit, whether or not it says so
                if busy.fewer:
                    self._array_max = size
            else:
                return

    def submit_attempt(self, key: str, *, serves: str, demand: Mapping[str, Any]) -> str:
        """Start an agent for one attempt, unless there is one; its native id. See `PilotJobTemplate.attempt`."""
        known = self._known(key)
        if known is not None:
            return known
        job_template = self._job_template()
        with _sayable():
            wanted = job_template.attempt(key, serves=serves, demand=demand)
        if wanted.hosts and not self._dialect.places:
            raise Refused("bad-resources", f"{self._dialect.name} cannot be told on which nodes it is to run")
        return self._submit(wanted)[key]

    def _known(self, key: str) -> str | None:
        """The native id of what has a key; None where it may be started. Raises `Unknown` where that is not known."""
        tried_at = self._unsure.get(key)
        settled = tried_at is None or self._looked_at > tried_at + self._settle_seconds
        if self._there is None or self._doubtful or not settled:
            self._look()
        known = self._live.get(key)
        if known is None and key in self._ended:
            known = self._ended[key].native_id
        if known is None and tried_at is not None and self._looked_at <= tried_at + self._settle_seconds:
            raise Unknown(f"{key} may have been queued by a call that was not answered; it is looked for")
        return known

    def _submit(self, wanted: Wanted) -> dict[str, str]:
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

    # --- ending ---

    def cancel(self, *keys: str) -> None:
        """End what has these keys; nothing happens where there is nothing. Raises `Unknown`."""
        if self._there is None or any(key not in self._there for key in keys):
            self._look()
        found = {key: self._there[key] for key in keys if key in self._there} if self._there is not None else {}
        if found:
            self._dialect.cancelled(self._run(self._dialect.cancel(found)))
        self._cancelled.update(self._live.keys() & keys)

    # --- looking ---

    def listing(self, expected: Collection[str] = ()) -> dict[str, Listed]:
        """Everything of ours that is there, or that ended and was not told yet, by key. Raises `Unknown`.

        What is `expected`, or was there, and is not any more, is asked for in the system's history; what is not known there
        either is told as vanished.
        """
        self._look()
        assert self._there is not None
        self._end_errors()
        ended = {key: seen for key, seen in self._ended.items() if key not in self._told}
        missing = {key: self._live.get(key, "") for key in (*self._live, *expected) if key not in self._told}
        missing = {key: native for key, native in missing.items() if key not in self._there and key not in ended}
        for key in self._cancelled & missing.keys():  # an array that never began leaves but one trace
            ended[key] = Seen(missing.pop(key), "ended", "cancelled")
        self._cancelled &= self._there.keys()
        ended.update(self._remembered(missing))
        tails = self._tails(ended)
        self._told &= {*self._ended, *expected}
        self._told.update(ended)
        self._forget(ended)
        for key in ended:
            self._live.pop(key, None)
        found = {key: Listed(native_id) for key, native_id in self._there.items()}
        for key, seen in ended.items():
            stderr = tails.get(key, "") or self._own_words(seen)
            reason = _VANISHED if seen.detail == _VANISHED else seen.reason or "ended"
            found[key] = Listed(seen.native_id, ended=True, reason=reason, stderr=stderr, detail=seen.detail)
        return found

    def notice(self, unheard: Collection[str]) -> list[Notice]:
        """What somebody should know of things that have not spoken, as they were in the last listing.

        What is held is told with the system's own word, and what runs for a while with the last that it printed.
        """
        waiting = {key: self._open[key] for key in unheard if key in self._open}
        held = [Notice(key, seen.reason, seen.detail) for key, seen in waiting.items() if seen.reason == "held"]
        running = [key for key, seen in waiting.items() if seen.state == "running" and seen.reason != "held"]
        return [*held[:NOTICES_MAX], *self._silence.notice(running, self._printed)]

    def _look(self) -> None:
        now = self._clock()
        listed = self._dialect.listed(self._run(self._dialect.listing()))
        self._looked_at, self._doubtful = now, False
        self._open = {key: seen for key, seen in listed.items() if seen.state != "ended"}
        self._there = {key: seen.native_id for key, seen in self._open.items()}
        self._ended = {key: seen for key, seen in listed.items() if seen.state == "ended"}
        self._live.update(self._there)
        self._forget(listed)

    def _end_errors(self) -> None:
        """What the system could not start, and never will, is taken out of its queue, and has ended with its words for it."""
        assert self._there is not None
        stuck = {key: seen for key, seen in self._open.items() if seen.reason == "error"}
        call = self._dialect.errors([seen.native_id for seen in stuck.values()]) if stuck else None
        if call is None:
            return
        words = self._dialect.errors_told(self._run(call))
        self._dialect.cancelled(self._run(self._dialect.cancel({key: seen.native_id for key, seen in stuck.items()})))
        for key, seen in stuck.items():
            said = words.get(seen.native_id, "it does not say why")
            why = f"the batch system could not start it ({seen.detail}): {said}"
            self._ended[key] = Seen(seen.native_id, "ended", "platform-failure", detail=why)
            del self._open[key], self._there[key]

    def _remembered(self, missing: Mapping[str, str]) -> dict[str, Seen]:
        """How things ended that are in no listing any more; those that may still show themselves count as there."""
        assert self._there is not None
        now = self._clock()
        self._missing = {key: self._missing.get(key, _Missing(now, 0.0)) for key in missing}
        # It may cost the site much: once at first, and once more when its accounts have had time to be written.
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
                    found[key] = Seen(missing[key], "ended", detail=_VANISHED)
                else:
                    self._missing[key] = _Missing(since, now)
        for key in found:
            del self._missing[key]
        for key in self._missing:
            self._there[key] = missing[key]
        return found

    def _history(self, due: Mapping[str, str]) -> dict[str, Seen]:
        call = self._dialect.history(due) if due else None
        if call is None:
            return {}
        try:
            remembered = self._dialect.remembered(self._run(call))
        except Unknown:
            return {}  # the listing was answered: what is not in it is gone, for whatever reason
        return {key: seen for key, seen in remembered.items() if key in due and seen.state == "ended"}

    # --- what was printed ---

    def _tails(self, ended: Mapping[str, Seen]) -> dict[str, str]:
        """The last that each printed; the files are removed when that is known here."""
        found: dict[str, str] = {}
        keys = list(ended)
        for start in range(0, len(keys), _TAILS_MAX):
            some = keys[start : start + _TAILS_MAX]
            found.update(self._read(some))
            files = [output_of(self._output(), key) for key in some]
            self._run(Call(("sh",), "\n".join([f"rm -f {shlex.quote(file)}" for file in files] + [""])))
        return found

    def _printed(self, keys: Collection[str]) -> dict[str, str]:
        """The last that each printed so far; nothing where that cannot be read now."""
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
            raise Unknown("what agents printed could not be read to its end")
        return {key: _clean(texts[place]) for place, key in enumerate(keys)}

    def _own_words(self, seen: Seen) -> str:
        """What can be said of something that printed nothing."""
        if seen.exit_status == CANNOT_WRITE_STATUS:
            return (
                f"its node could not write to {self._output()}: the folder of a site must be on a file system"
                " that all of its nodes share"
            )
        return seen.detail if seen.reason not in ("", "ended") else ""


@contextmanager
def _sayable() -> Iterator[None]:
    """Refuse what the language of the system has no words for."""
    try:
        yield
    except ValueError as error:
        raise Refused("bad-resources", str(error)) from error


def _follower(key: str, offset: int) -> str:
    found = element_key(key, offset)
    if found is None:
        raise ValueError(f"the key of several pilots ends in a number, not {key!r}")
    return found


def _clean(text: str) -> str:
    said = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return said[-TAIL_CHARACTERS_MAX:].strip()


# Commands of a batch system in the environment that its users work in: a login shell, then the site's own lines of
# setup.
#
# Neither a command over ssh nor one that cron starts has that by itself: `sbatch` is not found there, or it speaks
# to a system that was switched off years ago. What a profile or a setup prints is no part of the answer, and
# neither of them is given the input of the command.

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Run = Callable[[Call], Answer]
    """Runs a command to its end."""

_BEGINS = "pilotage-command-begins"
_NOT_FOUND = 127
# The descriptors 8 and 9 keep the command's own input and output while the profile and the setup are read.
_ENTER = """\
exec 8<&0 9>&1 </dev/null >&2
shell=bash
command -v bash >/dev/null 2>&1 || shell=sh
exec "$shell" -l -c "$0" "$shell" "$@"
"""
# A profile may choose a language; messages must be in one that we can read, and LC_ALL would overrule that.
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
    """What runs commands as `run` does, but in a login shell and after these lines of setup."""
    script = "\n".join([*setup, _GO_ON])

    def run_there(call: Call) -> Answer:
        return _of_the_command(run(Call(("sh", "-c", _ENTER, script, *call.argv), call.stdin)))

    return run_there


def _of_the_command(answer: Answer) -> Answer:
    """The answer without what was printed before the command began; where that was not found, it may say why."""
    before, begun, after = answer.stderr.partition(f"{_BEGINS}\n")
    if not begun:
        return answer
    return answer._replace(stderr=f"{after}{before}" if answer.exit_status == _NOT_FOUND else after)
