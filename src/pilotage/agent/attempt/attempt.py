"""Runs one attempt: prepares its folder, stages inputs, runs and watches its commands, stages outputs, reports the outcome."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.attempt import diagnosis, workplace
from pilotage.agent.attempt.application import Application, limits_of
from pilotage.agent.attempt.commands import Commands, Files, SpawnTurn
from pilotage.agent.attempt.diagnosis import Failure
from pilotage.agent.attempt.environment import Environments, SlotToken, own_entries, threads_of
from pilotage.agent.attempt.inputs.placing import Inputs, PlacedInput, changed_input, note_damaged
from pilotage.agent.attempt.logs import LogFile, LogScans, last_lines_of
from pilotage.agent.attempt.outputs import Outputs, ShownFolder, find_outputs, gives_files, make_output_folders
from pilotage.agent.attempt.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pilotage.agent.attempt.collected import Collected
    from pilotage.agent.attempt.files import KnownFiles
    from pilotage.agent.attempt.inputs.growing import GrowingInputs
    from pilotage.agent.attempt.workplace import Fetch, Workplace


# The fast path for plain attempts: one command, with files that have fixed names. Most attempts of most jobs are plain.
#
# In an attempt of a millisecond every call between two system calls counts. This does what `inputs` and `outputs` do,
# for ordinary files; anything unusual is left to them.

SMALL_BYTES = 16 * 1024
"""A smaller output is read in one call."""

# Fields that the fast path handles or may ignore; work with any other field, now or later, takes the full path.
PLAIN_WORK = frozenset({
    "path", "name", "index", "folder", "staged", "mark", "folder_mark", "inputs", "binaries", "keep_failed", "software",
    "cache", "visible_seconds",
})  # fmt: skip
PLAIN_BINARY = frozenset({"argv", "environment", "outputs"})
MADE_INPUT = frozenset({"name", "sha256", "size_bytes", "made"})
"""The fields of an input that a package of the job made."""
_OWN = ".pilotage"
# Do not block on special files, do not follow links, do not update the access time.
_LOOKING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | getattr(os, "O_NOATIME", 0)


def plain_binary(assignment: Mapping[str, Any], work: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The command of a plain attempt; None if the attempt is not plain."""
    binaries: Sequence[Mapping[str, Any]] = work.get("binaries", ())
    if len(binaries) != 1 or not PLAIN_WORK.issuperset(work) or not PLAIN_BINARY.issuperset(binaries[0]):
        return None
    demand = assignment.get("demand")
    if demand and demand.get("nodes", 1) > 1:
        return None
    return binaries[0]


def link_known(
    inputs: Sequence[Mapping[str, Any]], *, folder: str, scratch: int, known: KnownFiles
) -> dict[str, PlacedInput]:
    """Link inputs that packages of the job made and whose checksum is known, up to the first other input.

    `scratch` is the open target folder.
    """
    placed: dict[str, PlacedInput] = {}
    for each in inputs:
        name = each["name"]
        if each.keys() != MADE_INPUT or "/" in name:
            break
        source = f"{folder}/{name}"
        try:
            status = os.lstat(source)
            size_bytes = status.st_size
            if size_bytes != each["size_bytes"] or not known.is_known(status, each["sha256"]):
                break
            os.link(source, name, dst_dir_fd=scratch)
        except (OSError, ValueError):
            break
        placed[name] = PlacedInput(name, source, status.st_ino, size_bytes, status.st_mtime_ns)
    return placed


def stage_small(
    outputs: Sequence[Mapping[str, Any]],
    *,
    scratch: int,
    target: str,
    known: KnownFiles,
    placed: Collection[PlacedInput],
) -> list[dict[str, Any]] | None:
    """Stage the only output if it is a small new file, and return the manifest; otherwise do nothing and return None.

    `scratch` is its open folder, `placed` are the inputs there.
    """
    if len(outputs) != 1 or "pattern" in outputs[0]:
        return None
    name = outputs[0].get("name", "")
    if not name or "/" in name or name.startswith(_OWN) or not name.isascii():
        return None
    try:
        descriptor = os.open(name, _LOOKING, dir_fd=scratch)
        try:
            status = os.fstat(descriptor)
            size_bytes = status.st_size
            # A file with another hard link could be changed through that later.
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or size_bytes >= SMALL_BYTES:
                return None
            for each in placed:  # inputs whose other link may have been removed
                if each.inode == status.st_ino:
                    return None
            content = os.read(descriptor, size_bytes + 1)  # one byte more, to see whether it grows
        finally:
            os.close(descriptor)
        if len(content) != size_bytes:
            return None
        os.rename(name, target, src_dir_fd=scratch)
    except (OSError, ValueError):
        return None
    return [{"name": name, "size_bytes": size_bytes, "sha256": known.keep_content(status, content)}]


_LAST_CHARACTERS = 1500
_monotonic = time.monotonic


class Outcome(NamedTuple):
    """How an attempt ended: the payload of its AttemptFinished, and its logs, still without their `ref`."""

    payload: dict[str, Any]
    logs: list[dict[str, Any]]
    software: Mapping[str, str] = {}  # versions on this node, by name, that were not told before


class _Phases:
    """The phases of an attempt: each ends when the next begins."""

    __slots__ = ("_ahead", "_entered", "_on_phase")

    def __init__(self, on_phase: Callable[[str, float], None]) -> None:
        self._on_phase = on_phase
        self._ahead = time.time() - _monotonic()  # setting the clock must not change the length of a phase
        self._entered: list[tuple[str, float]] = []

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        at = self._ahead + _monotonic()
        self._entered.append((phase, at))
        self._on_phase(phase, at)

    @property
    def now(self) -> str:
        """The current phase."""
        return self._entered[-1][0]

    def ended(self) -> list[dict[str, Any]]:
        """All phases; the last one ends now."""
        phases: list[dict[str, Any]] = []
        end = self._ahead + _monotonic()
        for phase, at in reversed(self._entered):
            phases.append({"phase": phase, "started_at": at, "seconds": end - at})
            end = at
        phases.reverse()
        return phases


class AttemptRunner:
    """Runs attempts in one slot, one after the other in one thread; the folder and the log files are reused.

    A stop before `run` has begun is lost: the caller checks again when `on_phase` reports `setup`.
    """

    def __init__(self, workplace: Workplace, slot_number: int) -> None:
        """Take a slot of a workplace; the first attempt makes the files."""
        self._workplace = workplace
        self._slot_number = slot_number
        self._watch = workplace.watcher.new_watch()
        self._scratch = Scratch(workplace.scratch, slot_number)
        self._token = SlotToken(f"{workplace.scratch}/slot-{slot_number}.token")
        self._environments = Environments({**workplace.environment, "PILOTAGE_TOKEN_FILE": self._token.path})
        self._turn = SpawnTurn(workplace.turns)
        self._commands = Commands(self._watch, workplace.cleanup, self._turn)
        self._logs: list[LogFile] = []
        self._script_logs: dict[str, list[LogFile]] = {}  # of an attempt's scripts, if it has any
        self._files = Files(-1, -1, -1)  # the streams of a command that writes to these logs
        self._generation = 0
        self._shown: ShownFolder | None = None  # if others read its outputs while they grow
        self._collected: list[Collected] = []  # besides outputs, if the document asks for it

    def run(
        self,
        assignment: Mapping[str, Any],
        work: Mapping[str, Any],
        *,
        on_phase: Callable[[str, float], None],
        fetch: Fetch,
        token: str = "",
    ) -> Outcome:
        """Run an attempt to its end; every failure is an outcome. `on_phase` gets each phase and its start time.

        `token` lets its commands log events of their own package.
        """
        watch, commands = self._watch, self._commands
        phases = _Phases(on_phase)
        commands.reset()
        self._collected.clear()
        watch.attempt_began(self._logs)
        self._workplace.left_events.attempt_began(assignment["ref"], token)
        try:
            payload = self._carry_out(assignment, work, phases, fetch, token)
            logs = [text for log in self._all_logs() if (text := log.text(final=True)) is not None]
            for each in self._collected:
                payload.update(each.fields)
                logs += each.logs
            if payload["exit_code"] != "SUCCESS":
                if self._shown is not None:
                    self._shown.end()
                # The engine reads in the event that the wall time is over, and decides by that.
                phases.enter("cleaning")
                if work.get("keep_failed"):
                    self._keep_folder(assignment["ref"], payload)
        finally:
            left = self._clear()
            watch.attempt_ended()
            if self._script_logs:
                self._close_script_logs()
            self._workplace.left_events.attempt_ended(assignment["ref"], token)
        times = phases.ended()
        if payload["exit_code"] != "SUCCESS":
            if left:
                payload["exit_message"] = f"{payload['exit_message']}\n{left}"
        elif self._scratch.removed:
            self._note_undeclared(assignment["ref"], work, payload)
        payload["phases"] = times
        if self._workplace.node:
            payload["node"] = self._workplace.node
        payload.update(commands.measured(watch.peak_bytes))
        return Outcome(payload, logs, self._collected[0].software if self._collected else {})

    def cancel(self, why: str) -> None:
        """From another thread: end the running attempt, and no later one; `run` then returns EXECUTION_CANCELED."""
        self._watch.stop("cancelled", why)

    def log_texts(self) -> list[dict[str, Any]]:
        """From another thread: the current logs of the running attempt; empty if none runs."""
        if not self._watch.is_busy:
            return []
        with contextlib.suppress(OSError):
            return [text for text in (log.text(final=False) for log in self._all_logs()) if text is not None]
        return []

    def rest(self) -> None:
        """Close the folder while no attempt follows."""
        self._turn.give()
        self._scratch.rest()

    def close(self) -> None:
        """Close the folder and the log files."""
        self.rest()
        self._workplace.watcher.forget(self._watch)
        self._commands.close()
        self._token.close()
        self._close_logs()

    def _carry_out(
        self, assignment: Mapping[str, Any], work: Mapping[str, Any], phases: _Phases, fetch: Fetch, token: str
    ) -> dict[str, Any]:
        """Run all phases; returns the payload without the fields that every attempt has."""
        application: Application | None = None
        is_set_up = False
        try:
            phases.enter("setup")
            if work.get("refused"):
                raise Failure("platform-failure", f"the service cannot tell how to run it: {work['refused']}")
            if work.get("adopted") is not None:  # reused from an earlier run, already published
                payload = {"exit_code": "SUCCESS", "reason": "made-before", "exit_message": work.get("message", "")}
                return {**payload, "manifest": work["adopted"]}
            scans = self._set_up(work, token)
            is_set_up = True
            binary = plain_binary(assignment, work)
            if binary is not None:
                return self._run_plain(assignment, work, binary, phases, fetch)
            self._turn.give()  # the rest may take long
            application = self._application(assignment, work, scans)
            payload = {"exit_code": "SUCCESS", **self._run(assignment, work, application, phases, fetch)}
            return _with_commands(payload, application)
        except Failure as known:
            failure = known
        except OSError as error:
            failure = diagnosis.from_system(error, doing=f"the phase {phases.now!r}")
        except (ValueError, LookupError) as error:
            message = f"the work is malformed: {type(error).__name__}: {error}"
            failure = Failure("platform-failure", message)
        last_lines = ""
        if application is not None:
            last_lines = application.last_lines(_LAST_CHARACTERS)
            if failure.reason == "missing-output":
                application.blame(failure)
        elif is_set_up:  # before that, the logs belong to an earlier attempt
            last_lines = last_lines_of(self._logs, _LAST_CHARACTERS)
        payload = _failed(failure, last_lines, phase=phases.now)
        return _with_commands(payload, application) if application is not None else payload

    def _set_up(self, work: Mapping[str, Any], token: str) -> LogScans | None:
        """Prepare an empty folder, the token and empty logs; returns the scans for failure patterns."""
        self._shown = None
        try:
            self._scratch.prepare()
            self._token.show(token)
            if not self._logs:
                base = f"{self._workplace.scratch}/slot-{self._slot_number}.{self._generation}"
                self._logs += [LogFile(f"{base}.{stream}", stream) for stream in ("stdout", "stderr")]
                self._files = Files(self._workplace.null(), *(log.descriptor for log in self._logs))
            scans = LogScans(work) if work.get("failure_patterns") else None
            for log in self._logs:
                scan = scans.of_stream(log.stream) if scans is not None else None
                log.begin(on_dropped=scan.feed if scan is not None else None)
            if work.get("pre") or work.get("post"):
                base = f"{self._workplace.scratch}/slot-{self._slot_number}.{self._generation}"
                for which in ("pre", "post"):
                    names = [f"{which}-{stream}" for stream in ("stdout", "stderr")]
                    self._script_logs[which] = [LogFile(f"{base}.{name}", name) for name in names]
                self._watch.writes(self._all_logs())
        except OSError as error:
            raise diagnosis.from_system(error, doing="making the package's folder") from error
        return scans

    def _application(
        self, assignment: Mapping[str, Any], work: Mapping[str, Any], scans: LogScans | None
    ) -> Application:
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
            script_logs=self._script_logs,
            scans=scans,
        )

    def _run_plain(
        self,
        assignment: Mapping[str, Any],
        work: Mapping[str, Any],
        binary: Mapping[str, Any],
        phases: _Phases,
        fetch: Fetch,
    ) -> dict[str, Any]:
        """Like `_run`, for an attempt of one command: the payload of its success."""
        workplace, watch, commands, scratch = self._workplace, self._watch, self._commands, self._scratch.path
        ref = assignment["ref"]
        # Before the inputs: malformed work must fail as such, whatever else is wrong.
        ours = own_entries(assignment, work, scratch=scratch, spools=workplace.spools)
        placed: Collection[PlacedInput] = ()
        inputs = work.get("inputs")
        if inputs:  # without inputs there are too few system calls to be worth a turn
            phases.enter("inputs")
            self._turn.take()
            linked: dict[str, PlacedInput] = {}
            if workplace.visibility.of(work).folder and watch.stopped is None:
                linked = link_known(
                    inputs, folder=work["folder"], scratch=self._scratch.descriptor, known=workplace.known
                )
            placed = linked.values()
            if len(linked) != len(inputs):
                self._turn.give()
                placed = self._inputs(assignment, work, fetch).place(inputs, commands.check, before=linked)
        outputs = binary.get("outputs", ())
        make_output_folders(outputs, scratch)
        phases.enter("application")
        demand, threads = assignment.get("demand"), 1
        if demand:
            threads = threads_of(demand)
            watch.application_began(limits_of(demand, work, scratch))  # until the attempt is over
        environment = self._environments.make(ours, binary.get("environment") or {}, threads=threads)
        marks = [workplace.mark, *ours[:3]]
        argv = binary["argv"]
        ended = commands.run(argv, environment=environment, folder=scratch, files=self._files, marks=marks)
        if ended.exit_status != 0:
            what = repr(argv[0]) if argv else "the command"
            failure = self._application(assignment, work, None).failure_of(ended, what, argv=argv)
            if failure is not None:
                note_damaged(placed, workplace.damaged)
                raise failure
        changed = changed_input(placed)
        if changed is not None:
            note_damaged(placed, workplace.damaged)
            raise _changed(changed)
        if watch.stopped is not None:
            commands.check()
        manifest: list[dict[str, Any]] | None = []
        if outputs:
            phases.enter("outputs")
            manifest = None
            if workplace.visibility.of(work).staged:  # checked now: the command may have taken long
                target = f"{work['staged']}/{ref['package']}-{ref['attempt']}-0"
                manifest = stage_small(
                    outputs, scratch=self._scratch.descriptor, target=target, known=workplace.known, placed=placed
                )
            if manifest is None:
                self._turn.give()
                inodes = {each.inode for each in placed if each.source}
                names = find_outputs(work, scratch, [each.name for each in placed])
                manifest = self._outputs(assignment, work).stage(names, workplace.known, fetch, input_inodes=inodes)
        return {"exit_code": "SUCCESS", "manifest": manifest, "exit_status": 0}

    def _inputs(self, assignment: Mapping[str, Any], work: Mapping[str, Any], fetch: Fetch) -> Inputs:
        workplace = self._workplace
        return Inputs(
            job=assignment["ref"]["job"],
            work=work,
            scratch=self._scratch.path,
            known=workplace.known,
            fetch=fetch,
            visibility=workplace.visibility,
            damaged=workplace.damaged,
            software=workplace.software,
        )

    def _outputs(self, assignment: Mapping[str, Any], work: Mapping[str, Any]) -> Outputs:
        return Outputs(
            ref=assignment["ref"], work=work, scratch=self._scratch.path, visibility=self._workplace.visibility
        )

    def _run(
        self,
        assignment: Mapping[str, Any],
        work: Mapping[str, Any],
        application: Application,
        phases: _Phases,
        fetch: Fetch,
    ) -> dict[str, Any]:
        """Everything after the setup; returns the payload of a success."""
        check, scratch, known = self._commands.check, self._scratch.path, self._workplace.known
        check()
        if work.get("pre") and not application.run_pre():
            return {"manifest": [], "exit_message": "its pre script says that there is nothing to do"}
        placed = []
        if work.get("inputs") or work.get("early"):
            phases.enter("inputs")
            placed = self._inputs(assignment, work, fetch).place(work.get("inputs", ()), check)
        growing = self._growing_inputs(work) if work.get("early") else None
        for binary in work.get("binaries", ()):
            make_output_folders(binary.get("outputs", ()), scratch)
        if work.get("shown"):
            self._shown = ShownFolder(work["shown"], scratch)
        phases.enter("application")
        names = [*(each.name for each in placed), *(growing.names if growing is not None else ())]
        failure = self._apply(application, names, placed, growing)
        if work.get("provenance") and self._watch.stopped is None:

            def place(files: Sequence[Mapping[str, Any]]) -> None:
                self._inputs(assignment, work, fetch).place(files, check)

            self._collected.append(application.collect(names, place))
        if work.get("post") and (failure is None or failure.reason != "cancelled"):
            failure = application.run_post(failure)
        if failure is not None:
            raise failure
        check()
        if gives_files(work):
            phases.enter("outputs")
        outputs = find_outputs(work, scratch, names)
        manifest: list[dict[str, Any]] = []
        if outputs:
            inodes = {each.inode for each in placed if each.source}
            staging = self._outputs(assignment, work)
            manifest = staging.stage(outputs, known, fetch, input_inodes=inodes)
            if self._shown is not None:
                self._shown.finish(manifest, staging.prefix)
                self._workplace.keep_shown(self._shown.end)
        application.forget_kept()
        return {"manifest": manifest, "exit_status": 0}

    def _growing_inputs(self, work: Mapping[str, Any]) -> GrowingInputs:
        """Follow the inputs that running attempts still write."""
        from pilotage.agent.attempt.inputs.growing import GrowingInputs  # few packages start early

        growing = GrowingInputs(work, self._scratch.path)
        growing.place(self._commands.check, self._watch.stop)
        return growing

    def _apply(
        self,
        application: Application,
        names: Sequence[str],
        placed: Sequence[PlacedInput],
        growing: GrowingInputs | None,
    ) -> Failure | None:
        """Run the commands; returns the failure, also that of an input which has changed."""
        other: Failure | None = None
        try:
            failure = application.run(names)
        finally:
            if growing is not None:
                other = growing.end()
        changed = changed_input(placed)
        if changed is not None:
            note_damaged(placed, self._workplace.damaged)
            failure = failure or _changed(changed)
        return other or failure

    def _keep_folder(self, ref: Mapping[str, Any], payload: dict[str, Any]) -> None:
        name = f"{ref['job']}-{ref['package']}-{ref['attempt']}"
        with contextlib.suppress(OSError):
            kept = self._scratch.keep(self._workplace.keep, name)
            payload["exit_message"] = f"{payload['exit_message']}\nits folder is kept: {kept}"

    def _clear(self) -> str:
        """Leave nothing for the next attempt; returns in words what is left, which is not used again."""
        if self._commands.left_behind:
            self._scratch.abandon()
            self._close_logs()
            self._generation += 1
            return "a process of it does not end, and may still use its folder"
        path = self._scratch.path
        return "" if self._scratch.empty() else f"its folder cannot be emptied, and is left as it is: {path}"

    def _note_undeclared(self, ref: Mapping[str, Any], work: Mapping[str, Any], payload: dict[str, Any]) -> None:
        """Report undeclared files that a successful attempt left in its folder."""
        left = self._workplace.undeclared.look(ref, work, payload.get("manifest"), self._scratch.removed)
        if left and not payload.get("exit_message"):
            payload.update(workplace.undeclared_fields(left))

    def _all_logs(self) -> list[LogFile]:
        if not self._script_logs:
            return self._logs
        return [*self._logs, *(log for logs in self._script_logs.values() for log in logs)]

    def _close_script_logs(self) -> None:
        for logs in self._script_logs.values():
            for log in logs:
                log.close()
        self._script_logs = {}

    def _close_logs(self) -> None:
        for log in self._logs:
            log.close()
        self._logs.clear()


def _with_commands(payload: dict[str, Any], application: Application) -> dict[str, Any]:
    """The payload with what is known of the commands."""
    if application.binaries:
        payload["binaries"] = application.binaries
    if application.container_digest:
        payload["container_digest"] = application.container_digest
    return payload


def _failed(failure: Failure, last_lines: str, *, phase: str) -> dict[str, Any]:
    """The payload of a failure, without the fields that every attempt has."""
    payload: dict[str, Any] = {
        "exit_code": diagnosis.exit_code_for(failure.reason, phase=failure.phase or phase),
        "exit_message": diagnosis.exit_message(failure.message, last_lines),
    }
    if failure.reason != "cancelled":
        payload["reason"] = failure.reason
    if failure.exit_status is not None:
        payload["exit_status"] = failure.exit_status
    if failure.signal_number is not None:
        payload["signal"] = failure.signal_number
    return payload


def _changed(placed: PlacedInput) -> Failure:
    return Failure("application-error", f"it changed its input {placed.name!r}, which other packages read as well")
