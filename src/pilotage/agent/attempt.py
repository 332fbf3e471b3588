"""One attempt on a real computer: set up, bring the inputs, run, watch, take the outputs, and say what came of it."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent import diagnosis
from pilotage.agent.application import Application
from pilotage.agent.commands import Commands
from pilotage.agent.diagnosis import Failure
from pilotage.agent.environment import Environments
from pilotage.agent.failure_patterns import LogScans
from pilotage.agent.inputs import Inputs, changed_input
from pilotage.agent.logs import LogFile
from pilotage.agent.outputs import Outputs, find_outputs
from pilotage.agent.scratch import Scratch
from pilotage.agent.slot_token import SlotToken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pilotage.agent.workplace import Fetch, Workplace

_LAST_CHARACTERS = 1500


class Outcome(NamedTuple):
    """How an attempt ended: the payload of its AttemptFinished, and its logs, to which their `ref` is still to be added."""

    payload: dict[str, Any]
    logs: list[dict[str, Any]]


class _Phases:
    """The phases of an attempt: each ends where the next begins."""

    def __init__(self, on_phase: Callable[[str, float], None]) -> None:
        self._on_phase = on_phase
        self._began = time.monotonic()
        self._clock_began = time.time() - self._began
        self.times: list[dict[str, Any]] = []

    def enter(self, phase: str) -> None:
        """A phase begins."""
        if self.times:
            self.end()
        started_at = self._clock_began + self._began
        self.times.append({"phase": phase, "started_at": started_at, "seconds": 0.0})
        self._on_phase(phase, started_at)

    def end(self) -> None:
        """The last one is over."""
        now = time.monotonic()
        self.times[-1]["seconds"] = now - self._began
        self._began = now


class AttemptRunner:
    """Runs one attempt after the other in one slot, from one thread; its folder and its log files go from one to the next.

    A stop that comes before `run` has begun is nobody's: who may be late looks again when `on_phase` tells of `setup`.
    """

    def __init__(self, workplace: Workplace, slot_number: int) -> None:
        """Take a slot of a workplace; nothing is made before the first attempt."""
        self._workplace = workplace
        self._slot_number = slot_number
        self._watch = workplace.watcher.new_watch()
        self._scratch = Scratch(workplace.scratch, slot_number)
        self._token = SlotToken(f"{workplace.scratch}/slot-{slot_number}.token")
        self._environments = Environments({**workplace.environment, "PILOTAGE_TOKEN_FILE": self._token.path})
        self._commands = Commands(self._watch, workplace.remains)
        self._logs: list[LogFile] = []
        self._generation = 0

    def run(
        self,
        assignment: Mapping[str, Any],
        work: Mapping[str, Any],
        *,
        on_phase: Callable[[str, float], None],
        fetch: Fetch,
        token: str = "",
    ) -> Outcome:
        """Run an attempt to its end; every failure is an outcome. `on_phase` is told each phase and when it began.

        `token` is what its commands may show when they speak of their own package.
        """
        watch, commands = self._watch, self._commands
        phases = _Phases(on_phase)
        commands.reset()
        watch.attempt_began(self._logs)
        self._workplace.left_events.attempt_began(assignment["ref"], token)
        try:
            payload = self._carry_out(assignment, work, phases, fetch, token)
            logs = [text for text in (log.text(final=True) for log in self._logs) if text is not None]
            if payload["exit_code"] != "SUCCESS":
                # Whoever decides what follows reads of its time in the event, and so that it is over.
                phases.enter("cleaning")
                if work.get("keep_failed"):
                    self._keep_folder(assignment["ref"], payload)
        finally:
            left = self._clear()
            watch.attempt_ended()
            self._workplace.left_events.attempt_ended(assignment["ref"], token)
        phases.end()
        if left and payload["exit_code"] != "SUCCESS":
            payload["exit_message"] = f"{payload['exit_message']}\n{left}"
        payload["phases"] = phases.times
        if self._workplace.node:
            payload["node"] = self._workplace.node
        payload.update(commands.measured(watch.peak_bytes))
        return Outcome(payload, logs)

    def cancel(self, why: str) -> None:
        """From another thread: end what runs, and nothing that comes later; `run` then returns EXECUTION_CANCELED."""
        self._watch.stop("cancelled", why)

    def log_texts(self) -> list[dict[str, Any]]:
        """From another thread: the logs of what runs, as they are now; none where nothing runs."""
        if not self._watch.is_busy:
            return []
        with contextlib.suppress(OSError):
            return [text for text in (log.text(final=False) for log in self._logs) if text is not None]
        return []

    def close(self) -> None:
        """Let go of the log files."""
        self._workplace.watcher.forget(self._watch)
        self._commands.close()
        self._token.close()
        self._close_logs()

    def _carry_out(
        self, assignment: Mapping[str, Any], work: Mapping[str, Any], phases: _Phases, fetch: Fetch, token: str
    ) -> dict[str, Any]:
        """All phases; the payload, without what every attempt has."""
        application: Application | None = None
        try:
            phases.enter("setup")
            if work.get("refused"):
                raise Failure("platform-failure", f"the service cannot say how it is run: {work['refused']}")
            if work.get("adopted") is not None:  # an earlier run made the same of the same, and it lies in its place
                told = {"exit_code": "SUCCESS", "reason": "made-before", "exit_message": work.get("message", "")}
                return {**told, "manifest": work["adopted"]}
            application = self._set_up(assignment, work, token)
            return {"exit_code": "SUCCESS", **self._run(assignment, work, application, phases, fetch)}
        except Failure as failure:
            return self._failed(failure, application)
        except OSError as error:
            doing = f"the phase {phases.times[-1]['phase']!r}"
            return self._failed(diagnosis.from_system(error, doing=doing), application)
        except (ValueError, LookupError) as error:
            message = f"the work cannot be understood: {type(error).__name__}: {error}"
            return self._failed(Failure("platform-failure", message), application)

    def _set_up(self, assignment: Mapping[str, Any], work: Mapping[str, Any], token: str) -> Application:
        try:
            self._scratch.prepare()
            self._token.show(token)
            if not self._logs:
                base = f"{self._workplace.scratch}/slot-{self._slot_number}.{self._generation}"
                self._logs += [LogFile(f"{base}.{stream}", stream) for stream in ("stdout", "stderr")]
            scans = LogScans(work) if work.get("failure_patterns") else None
            for log in self._logs:
                scan = scans.of_stream(log.stream) if scans is not None else None
                log.begin(on_dropped=scan.feed if scan is not None else None)
        except OSError as error:
            raise diagnosis.from_system(error, doing="making the package's folder") from error
        return Application(
            self._workplace,
            assignment,
            work,
            watch=self._watch,
            commands=self._commands,
            environments=self._environments,
            scratch=self._scratch.path,
            token=self._token,
            logs=self._logs,
            scans=scans,
        )

    def _run(
        self,
        assignment: Mapping[str, Any],
        work: Mapping[str, Any],
        application: Application,
        phases: _Phases,
        fetch: Fetch,
    ) -> dict[str, Any]:
        """Everything after the setup; what a success has to tell."""
        check, scratch, known = self._commands.check, self._scratch.path, self._workplace.known
        sight = self._workplace.sight
        check()
        if work.get("pre") and not application.run_pre():
            return {"manifest": [], "exit_message": "its pre script says that there is nothing to do"}
        phases.enter("inputs")
        placed = []
        if work.get("inputs"):
            inputs = Inputs(
                job=assignment["ref"]["job"], work=work, scratch=scratch, known=known, fetch=fetch, sight=sight
            )
            placed = inputs.place(work["inputs"], check)
        phases.enter("application")
        names = [each.name for each in placed]
        failure = application.run(names)
        changed = changed_input(placed)
        if changed is not None and failure is None:
            failure = Failure("application-error", f"it changed its input {changed.name!r}, which others read as well")
        if work.get("post") and (failure is None or failure.reason != "cancelled"):
            failure = application.run_post(failure)
        if failure is not None:
            raise failure
        phases.enter("outputs")
        check()
        outputs = find_outputs(work, scratch, names)
        manifest: list[dict[str, Any]] = []
        if outputs:
            inodes = {each.inode for each in placed if each.source}
            manifest = Outputs(ref=assignment["ref"], work=work, scratch=scratch, sight=sight).stage(
                outputs, known, fetch, input_inodes=inodes
            )
        application.forget_kept()
        return {"manifest": manifest, "exit_status": 0}

    def _failed(self, failure: Failure, application: Application | None) -> dict[str, Any]:
        last_lines = application.last_lines(_LAST_CHARACTERS) if application is not None else ""
        payload: dict[str, Any] = {
            "exit_code": failure.code,
            "exit_message": diagnosis.exit_message(failure.message, last_lines),
        }
        if failure.reason != "cancelled":
            payload["reason"] = failure.reason
        if failure.exit_status is not None:
            payload["exit_status"] = failure.exit_status
        if failure.signal_number is not None:
            payload["signal"] = failure.signal_number
        return payload

    def _keep_folder(self, ref: Mapping[str, Any], payload: dict[str, Any]) -> None:
        name = f"{ref['job']}-{ref['package']}-{ref['attempt']}"
        with contextlib.suppress(OSError):
            kept = self._scratch.keep(self._workplace.keep, name)
            payload["exit_message"] = f"{payload['exit_message']}\nits folder is kept: {kept}"

    def _clear(self) -> str:
        """Leave nothing of this attempt to the next; what is left all the same, in words, and is not used again."""
        if self._commands.left_behind:
            self._scratch.abandon()
            self._close_logs()
            self._generation += 1
            return "something that it started does not end, and may still use its folder"
        path = self._scratch.path
        return "" if self._scratch.empty() else f"its folder cannot be emptied, and is left as it is: {path}"

    def _close_logs(self) -> None:
        for log in self._logs:
            log.close()
        self._logs.clear()
