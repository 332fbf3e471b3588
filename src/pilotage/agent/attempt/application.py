"""The application phase: runs the binaries of a package in order, or its startup script, and its pre and post scripts."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from pilotage.agent.allocation import lost_node
from pilotage.agent.attempt import diagnosis
from pilotage.agent.attempt.commands import Files
from pilotage.agent.attempt.containers import engine_failure, remove_container
from pilotage.agent.attempt.diagnosis import Failure
from pilotage.agent.attempt.environment import OWN_NAMES, PLACE_NAMES, own_entries, spool_name, threads_of
from pilotage.agent.attempt.files import check_name, make_parents
from pilotage.agent.attempt.logs import last_lines_of
from pilotage.agent.attempt.outputs import KeptWork
from pilotage.agent.attempt.watcher import NO_LIMITS, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pilotage.agent.attempt.collected import Collected, Printed
    from pilotage.agent.attempt.commands import CommandEnd, Commands
    from pilotage.agent.attempt.containers import ContainerCommand
    from pilotage.agent.attempt.environment import Environments, SlotToken
    from pilotage.agent.attempt.logs import LogFile, LogScans
    from pilotage.agent.attempt.watcher import Watch
    from pilotage.agent.attempt.workplace import Workplace

_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh", "busybox"})
_NO_COMMAND = 127  # exit status of a shell for an unknown command
_DEFER_LOOK_SECONDS = 0.2  # how often a deferred script checks whether its attempt was stopped
NAME_CHARACTERS_MAX = 256
BINARIES_MAX = 1000
"""At most so many binaries of a package are recorded; the AttemptFinished event has no space for more."""


def limits_of(demand: Mapping[str, Any], work: Mapping[str, Any], folder: str) -> Limits:
    """The limits of an attempt that runs in a folder."""
    if not demand and not work.get("stalled_after_seconds"):
        return NO_LIMITS
    return Limits(
        wall_seconds=demand.get("wall_seconds", 0.0),
        memory_bytes=demand.get("memory_bytes", 0),
        stalled_after_seconds=work.get("stalled_after_seconds", 0.0),
        watched=tuple(work.get("watched", ())),
        folder=folder,
    )


class Application:
    """The commands of one attempt."""

    def __init__(
        self,
        workplace: Workplace,
        assignment: Mapping[str, Any],
        work: Mapping[str, Any],
        *,
        watch: Watch,
        commands: Commands,
        environments: Environments,
        scratch: str,
        token: SlotToken,
        logs: Sequence[LogFile],
        script_logs: Mapping[str, Sequence[LogFile]] | None = None,
        scans: LogScans | None,
    ) -> None:
        """Take the attempt and the resources of its slot; `script_logs` belong to its `pre` and `post` scripts."""
        self._workplace = workplace
        self._assignment = assignment
        self._work = work
        self._watch = watch
        self._commands = commands
        self._environments = environments
        self._scratch = scratch
        self._token = token
        self._logs = self._last_logs = logs
        self._script_logs = script_logs or {}
        self._scans = scans
        self._demand: Mapping[str, Any] = assignment.get("demand") or {}
        self._ours = own_entries(assignment, work, scratch=scratch, spools=workplace.spools)
        self._marks = [workplace.mark, *self._ours[:3]]  # pilot, job, package and attempt
        self._stderr_file = ""
        self._provenance: Mapping[str, Any] = work.get("provenance") or {}
        self._kept: KeptWork | None = None
        self.container_digest = ""
        self.binaries: list[dict[str, Any]] = []  # if there are several: when each ran, how long, how it ended

    def run(self, inputs: Sequence[str]) -> Failure | None:
        """Run the binaries in order until one fails; returns the failure, also one found in the logs."""
        self._last_logs = self._logs
        self._watch.application_began(limits_of(self._demand, self._work, self._scratch))
        try:
            failure = self._run_all(inputs)
        except Failure as stopped:
            if self._watch.stopped is not None:
                return stopped
            failure = stopped
        finally:
            self._watch.application_ended()
        if self._scans is not None:
            found = self._scans.look(self._logs, self._scratch)
            if found is not None:
                if failure is not None:
                    found.exit_status, found.signal_number = failure.exit_status, failure.signal_number
                return found
        return failure

    def run_pre(self) -> bool:
        """Run the pre script; returns whether to run the package at all. Raises `Failure`."""
        ended = self._run_script("pre", [], {})
        if ended.exit_status is not None and ended.exit_status == self._work.get("pre_skip_exit_code"):
            return False
        failure = self.failure_of(ended, "its pre script")
        if failure is not None:
            raise failure
        return True

    def run_post(self, failure: Failure | None) -> Failure | None:
        """Run the post script, whose exit code decides; it gets the exit code of the application."""
        if self._watch.stopped is not None:
            return failure
        status = 0
        if failure is not None:
            status = failure.exit_status if failure.exit_status is not None else -(failure.signal_number or 1)
        reason = failure.reason if failure is not None else ""
        extra = [b"PILOTAGE_EXIT_STATUS=%d" % status, os.fsencode(f"PILOTAGE_REASON={reason}")]
        ended = self._run_script("post", extra, {"$RETURN": str(status)})
        script_failure = self.failure_of(ended, "its post script")
        if script_failure is None:
            self._last_logs = self._logs  # a later failure does not come from the script
        return script_failure

    def collect(self, inputs: Sequence[str], place: Callable[[Sequence[Mapping[str, Any]]], None]) -> Collected:
        """Collect what the document asks for besides outputs, after the commands; `place` brings files into the folder."""
        from pilotage.agent.attempt import collected

        fields: dict[str, Any] = {}
        logs: list[dict[str, Any]] = []
        said = self._provenance
        if said.get("core_bytes"):
            try:
                fields, logs, _ = collected.take_cores(
                    self._scratch, said["core_bytes"], self._workplace.known, without=inputs
                )
            except OSError as error:
                fields["custom_fault"] = f"its core files cannot be taken: {error}"
        software = self._probe(said.get("probes") or {})
        if said.get("script"):
            found = self._run_collector(said, place)
            if "custom_fault" in fields and "custom_fault" in found:
                found["custom_fault"] = f"{fields['custom_fault']}; {found['custom_fault']}"
            fields.update(found)
        return collected.Collected(fields, logs, software)

    def _probe(self, probes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """The versions of the package's software, if they were not told for its job yet."""
        from pilotage.agent.attempt.collected import PROBE_SECONDS_MAX, first_line

        container, versions = self._work.get("container") or {}, self._workplace.versions
        image = container.get("image", "")
        found: dict[str, str] = {}
        for name, probe in probes.items():

            def ask(probe: Mapping[str, Any] = probe) -> str:
                printed = self._run_briefly(probe["argv"], probe.get("environment") or {}, PROBE_SECONDS_MAX)
                return first_line(printed)

            if versions.is_news(self._assignment["ref"]["job"], name, image):
                found[name] = versions.find(name, image, ask)
        return found

    def _run_collector(
        self, said: Mapping[str, Any], place: Callable[[Sequence[Mapping[str, Any]]], None]
    ) -> dict[str, str]:
        """Run the script of the document that collects data; its file is there only as long as it runs."""
        from pilotage.agent.attempt.collected import SCRIPT_SECONDS_MAX, script_fields

        files = [each for each in said.get("files") or () if not os.path.lexists(f"{self._scratch}/{each['name']}")]
        try:
            place(files)
            program, *rest = said["script"]
            if "/" not in program and os.path.isfile(f"{self._scratch}/{program}"):
                program = f"./{program}"  # the file that came with the job, not a program of the node
            printed = self._run_briefly([program, *rest], {}, SCRIPT_SECONDS_MAX, contain=False)
        except (Failure, OSError) as fault:
            return {"custom_fault": f"its provenance script cannot be run: {fault}"}
        finally:
            for each in files:
                with contextlib.suppress(OSError):
                    os.unlink(f"{self._scratch}/{each['name']}")
        return script_fields(printed)

    def _run_briefly(
        self, argv: Sequence[str], asked: Mapping[str, str], seconds_max: float, *, contain: bool = True
    ) -> Printed:
        from pilotage.agent.attempt.collected import SCRIPT_BYTES_MAX, run_briefly

        environment = self._environments.make(self._ours, asked, threads=0)
        container = self._work.get("container") if contain else None
        if container:
            (argv, _), environment = self._contain(container, argv, environment, asked)
        return run_briefly(
            argv,
            environment=environment,
            folder=self._scratch,
            cleanup=self._workplace.cleanup,
            marks=self._marks,
            seconds_max=seconds_max,
            bytes_max=SCRIPT_BYTES_MAX,
            is_stopped=lambda: self._watch.stopped is not None,
        )

    def forget_kept(self) -> None:
        """Remove the kept outputs of finished binaries."""
        if self._kept is not None:
            self._kept.forget()

    def last_lines(self, characters_max: int) -> str:
        """The end of the last command's stderr, or of its stdout if stderr is empty."""
        with contextlib.suppress(OSError):
            if self._stderr_file:
                text = _end_of(os.path.join(self._scratch, self._stderr_file), characters_max)
                if text:
                    return text
            return last_lines_of(self._last_logs, characters_max)
        return ""

    def _run_all(self, inputs: Sequence[str]) -> Failure | None:
        work = self._work
        binaries: Sequence[Mapping[str, Any]] = work.get("binaries", ())
        if work.get("startup"):
            asked: dict[str, str] = {}
            for binary in binaries:
                asked.update(binary.get("environment") or {})
            binaries = [{"argv": work["startup"], "environment": asked}]
        first = 0
        if len(binaries) > 1 and work.get("kept"):
            # If the service's folder is not visible, this pilot keeps them in its own, which is removed with it.
            is_visible = self._workplace.visibility.of(work).staged
            kept = work["kept"] if is_visible else f"{self._workplace.scratch}/kept/{os.path.basename(work['kept'])}"
            self._kept = KeptWork(self._assignment, work, kept)
            first = self._kept.resume(self._scratch)
        for number in range(first, len(binaries)):
            binary = binaries[number]
            what = repr(binary["argv"][0]) if binary["argv"] else "the command"
            if len(binaries) > 1:
                what = f"binary {number + 1} of {len(binaries)}, {binary.get('name') or what},"
            failure = self._run_binary(binary, what) if len(binaries) == 1 else self._run_one(number, binary, what)
            if failure is not None:
                return failure
            if self._kept is not None and number + 1 < len(binaries):
                self._kept.keep(number, self._scratch, without=inputs)
        return None

    def _run_one(self, number: int, binary: Mapping[str, Any], what: str) -> Failure | None:
        """Run one of several binaries, and record how it ended."""
        noted: dict[str, Any] = {"number": number + 1, "started_at": time.time()}
        if binary.get("name"):
            noted["name"] = binary["name"][:NAME_CHARACTERS_MAX]
        began = time.monotonic()
        failure: Failure | None = None
        try:
            failure = self._run_binary(binary, what)
        except Failure as stopped:
            failure = stopped
            raise
        finally:
            noted["seconds"] = time.monotonic() - began
            if failure is None:
                noted["exit_status"] = 0
            else:
                _note_failure(noted, failure)
            del self.binaries[BINARIES_MAX - 1 :]  # keep the last of very many, since it may have failed
            self.binaries.append(noted)
        return failure

    def blame(self, failure: Failure) -> None:
        """Mark the binary that should have made a missing output as failed."""
        if failure.binary is None:
            return
        for noted in self.binaries:
            if noted["number"] == failure.binary + 1 and "reason" not in noted:
                noted["reason"] = failure.reason

    def _run_binary(self, binary: Mapping[str, Any], what: str) -> Failure | None:
        asked = binary.get("environment") or {}
        environment = self._environments.make(self._ours, asked, threads=threads_of(self._demand))
        argv: Sequence[str] = binary["argv"]
        removal: tuple[str, ...] = ()
        container = self._work.get("container")
        if container:
            (argv, removal), environment = self._contain(container, argv, environment, asked)
        files, opened = self._open_files(binary)
        try:
            ended = self._commands.run(
                argv,
                environment=environment,
                folder=self._scratch,
                files=files,
                marks=self._marks,
                is_container=bool(container),
                core_bytes=self._provenance.get("core_bytes", 0),
            )
        finally:
            for descriptor in opened:
                os.close(descriptor)
            if removal and (self._watch.stopped is not None or self._commands.left_behind):
                remove_container(removal)
        if self._demand.get("nodes", 1) > 1 and ended.exit_status != 0 and (lost := lost_node()):
            number, status = ended.signal_number, ended.exit_status
            message = f"{what} lost a node of its batch job: {lost}"
            return Failure("platform-failure", message, exit_status=status, signal_number=number)
        if container and ended.exit_status:
            lines, status = self.last_lines(2000), ended.exit_status
            failed = engine_failure(argv[0], container["image"], exit_status=status, last_lines=lines)
            if failed is not None:
                return failed
        if container:  # by now the engine has its image
            folder, known = self._work["folder"], self._workplace.known
            self.container_digest = self._workplace.engines.digest(container, folder=folder, known=known)
        failure = self.failure_of(ended, what, argv=binary["argv"], in_container=bool(container))
        if failure is not None and failure.reason == "application-error":
            meaning = (binary.get("error_codes") or {}).get(str(failure.exit_status))
            if meaning:
                failure.message += f": {meaning}"
        return failure

    def _contain(
        self, container: Mapping[str, Any], argv: Sequence[str], environment: list[bytes], asked: Mapping[str, str]
    ) -> tuple[ContainerCommand, list[bytes]]:
        """A command in its container, and its environment, in which the token file has another path."""
        ref, workplace = self._assignment["ref"], self._workplace
        try:
            token_file = self._token.plain_file()
            spool = os.path.join(workplace.spools, spool_name(ref)) if workplace.spools else ""
            if spool:
                os.makedirs(spool, mode=0o700, exist_ok=True)  # removed with the attempt, if empty
        except OSError as error:
            raise diagnosis.from_system(error, doing="preparing the folders of a container") from error
        readable = [token_file, workplace.environment.get("PILOTAGE_CA_FILE", "")]
        if any(each.get("unpacked") for each in self._work.get("inputs", ())):
            readable.append(workplace.software().root)
        wrapped = workplace.engines.wrap(
            container,
            argv,
            scratch=self._scratch,
            folder=self._work["folder"],
            is_visible=workplace.visibility.shows(self._work),
            key=f"pilotage-{ref['job']}-{ref['package']}-{ref['attempt']}-{os.getpid()}",
            variables={*OWN_NAMES, *PLACE_NAMES, *asked, "OMP_NUM_THREADS"},
            writable=[spool] if spool else [],
            readable=[each for each in readable if each],
            gpus=self._demand.get("gpus", 0),
        )
        own = b"PILOTAGE_TOKEN_FILE="
        others = [each for each in environment if not each.startswith(own)]
        return wrapped, [*others, own + os.fsencode(token_file)]

    def _open_files(self, binary: Mapping[str, Any]) -> tuple[Files, list[int]]:
        """The streams of a command, and which of them to close after it: the log, or files of the package."""
        stdin, stdout, stderr = self._workplace.null(), self._logs[0].descriptor, self._logs[1].descriptor
        self._stderr_file = binary.get("stderr", "")
        opened: list[int] = []
        try:
            if binary.get("stdin"):
                stdin = self._open(binary["stdin"], os.O_RDONLY, opened)
            if binary.get("stdout"):
                stdout = self._open(binary["stdout"], _WRITING, opened)
            if binary.get("stderr"):
                is_same = binary["stderr"] == binary.get("stdout")
                stderr = stdout if is_same else self._open(binary["stderr"], _WRITING, opened)
        except Failure:
            for descriptor in opened:
                os.close(descriptor)
            raise
        return Files(stdin, stdout, stderr), opened

    def _open(self, name: str, flags: int, opened: list[int]) -> int:
        check_name(name)
        try:
            if flags != os.O_RDONLY:
                make_parents(self._scratch, name)
            opened.append(os.open(os.path.join(self._scratch, name), flags | os.O_CLOEXEC, 0o666))
        except OSError as error:
            if flags == os.O_RDONLY:
                raise Failure("missing-input", f"its stdin {name!r} cannot be read: {error}") from error
            raise diagnosis.from_system(error, doing=f"making {name!r} for its output") from error
        return opened[-1]

    def _run_script(self, which: str, extra: list[bytes], words: Mapping[str, str]) -> CommandEnd:
        """Run a script in the document's folder, again while it asks for that; `words` are values of placeholders.

        Its output does not belong to the application, and has logs of its own.
        """
        folder, script, what = self._work["folder"], self._work[which], f"its {which} script"
        if not self._workplace.visibility.shows(self._work):
            raise Failure("platform-failure", f"{what} runs in {folder}, which is not visible here")
        self._stderr_file = ""
        environment = self._environments.make(self._ours + extra, {}, threads=0)
        self._last_logs = logs = self._script_logs[which]
        files = Files(self._workplace.null(), logs[0].descriptor, logs[1].descriptor)
        words = {"$RETRY": str(self._assignment["ref"]["attempt"] - 1), **words}
        argv = [*script["argv"][:1], *(words.get(word, word) for word in script["argv"][1:])]
        while True:
            try:
                ended = self._commands.run(argv, environment=environment, folder=folder, files=files, marks=self._marks)
            except Failure as failure:
                failure.message = f"{what}: {failure.message}"
                raise
            defer = script.get("defer_exit_code")
            if defer is None or ended.exit_status != defer:
                return ended
            self._wait(script.get("defer_seconds", 0.0))

    def _wait(self, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            self._commands.check()
            time.sleep(min(_DEFER_LOOK_SECONDS, max(ends_at - time.monotonic(), 0)))
        self._commands.check()

    def failure_of(
        self, ended: CommandEnd, what: str, *, argv: Sequence[str] = (), in_container: bool = False
    ) -> Failure | None:
        """The failure of a command that ended, or None."""
        if ended.exit_status == 0:
            return None
        number, status = ended.signal_number, ended.exit_status
        if number == signal.SIGKILL or status == 128 + signal.SIGKILL:
            limit = self._demand.get("memory_bytes", 0)
            peak = max(self._commands.peak_bytes, self._watch.peak_bytes)
            if self._workplace.kernel_kills.claim() or (limit and peak >= limit):
                message = f"{what} was killed by the kernel (out of memory) after using {diagnosis.size_text(peak)}"
                return Failure("out-of-memory", message, exit_status=status, signal_number=number)
        if number is not None:
            return diagnosis.of_signal(number, what=what)
        if status is None:
            return Failure("application-error", f"{what} ended with an unknown status")
        failure = diagnosis.of_exit_status(status, what=what)
        last_lines = self.last_lines(2000)
        if diagnosis.looks_full(self._scratch, last_lines):
            return Failure("disk-full", f"{failure.message}: the disk is full", exit_status=status)
        is_shell = in_container or (bool(argv) and os.path.basename(argv[0]) in _SHELLS)
        if status == _NO_COMMAND and is_shell and "not found" in last_lines:
            return Failure("command-not-found", f"{failure.message}: it did not find a command", exit_status=status)
        return failure


def _note_failure(noted: dict[str, Any], failure: Failure) -> None:
    noted["reason"] = failure.reason
    if failure.exit_status is not None:
        noted["exit_status"] = failure.exit_status
    if failure.signal_number is not None:
        noted["signal"] = failure.signal_number


_WRITING = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _end_of(path: str, characters_max: int) -> str:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4 * characters_max))
        return file.read().decode("utf-8", "replace").rstrip()[-characters_max:]
