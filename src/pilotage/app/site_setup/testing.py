"""Tests a site with one real pilot: if it fails, names the hop where it stopped, with the pilot's own output.

First it checks the login node and its batch system directly, which finds most faults at once. Then it submits a job of
one package for this site to the service, and watches the service start a pilot, hear from it, and get the result. If
pilots run or wait there already, it starts one more before, and watches that: the package may go to any of the others.
"""

from __future__ import annotations

import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pilotage.adapters.settings.settings_files import state_folder
from pilotage.agent.batch import Answer, BatchError, Call, Dialect, output_of
from pilotage.agent.batch.pilot_job import OUTPUT_FOLDER
from pilotage.client import Server, ServerRefused
from pilotage.client.jobs import Jobs
from pilotage.client.server import Parameters, path_of
from pilotage.model.errors import PilotageError, install_again, missing_parts
from pilotage.model.exchange.operations import Kill
from pilotage.model.sites.entry import StartedBy
from pilotage.model.states import FINAL_NAMES

if TYPE_CHECKING:
    from pilotage.adapters.sites.install import Installation
    from pilotage.model.settings.settings import Settings
    from pilotage.model.sites.entry import SiteEntry


# The hops between here and a result at a site, and which of them failed according to the pilot's output.

HopName = Literal[
    "reach", "scheduler", "install", "service", "submit", "starts", "python", "server", "exchange", "package", "outputs"
]
HOPS: dict[HopName, str] = {
    "reach": "the login node is reached",
    "scheduler": "the batch system answers",
    "install": "the agent is installed and starts there",
    "service": "the service knows the site",
    "submit": "a pilot is submitted",
    "starts": "the batch system starts it",
    "python": "Python starts the agent on the node",
    "server": "the node reaches the service",
    "exchange": "the service accepts its messages",
    "package": "it runs a package",
    "outputs": "its output comes back",
}
"""Every hop in order, and what is true when it is passed."""

_SAYS = re.compile(r"pilotage-agent: ")
_TOO_OLD = re.compile(r"Python 3\.\d+ or newer is needed")
_PYTHON = re.compile(
    r"command not found|: not found|No such file or directory|Permission denied|SyntaxError|ModuleNotFoundError|ImportError"
    r"|cannot execute|can't open file|Traceback|bad interpreter|module: (command )?not found",
)
_DENIED = re.compile(r"HTTP 40[13]|is not taken|is rejected")
_ANSWERED = re.compile(
    r"HTTP [0-9]{3}|its answer cannot be understood|it answers somebody else|the answer is (malformed|for another)"
)
_UNHEARD = re.compile(r"no answer from the service|did not answer|certificate|refused|unreachable|timed out|resolve")
_NOT_SHARED = re.compile(r"could not write to")
_NOT_STARTED = re.compile(r"the batch system could not start it")


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """One hop: whether it was passed, how long it took, and what was seen."""

    hop: HopName
    ok: bool
    seconds: float
    message: str = ""
    stderr: str = ""  # the pilot's own output, or that of the failed command
    hint: str = ""  # what to do about a failure


def failed_at(stderr: str, *, reason: str = "") -> HopName:
    """The hop at which a pilot ended without contacting the service, from its output and its batch system's reason."""
    if _NOT_STARTED.search(stderr):
        return "starts"
    if _TOO_OLD.search(stderr):
        return "python"
    if _DENIED.search(stderr) or _ANSWERED.search(stderr):
        return "exchange"
    if _SAYS.search(stderr):
        return "server"
    if _NOT_SHARED.search(stderr) or reason in ("platform-failure", "cancelled", "preempted", "held"):
        return "starts"
    if _PYTHON.search(stderr):
        return "python"
    if _UNHEARD.search(stderr):
        return "server"
    return "python" if stderr.strip() else "starts"


def hint_for(hop: HopName, stderr: str, *, started_by: StartedBy = "service") -> str:
    """What to do about a failed hop; with a site agent, that may be what is missing."""
    if hop == "starts" and _NOT_SHARED.search(stderr):
        return "set `folder` in the site's entry to one on a disk that all nodes share"
    if started_by == "agent" and hop in _AGENT_HINTS:
        return _AGENT_HINTS[hop]
    return _HINTS.get(hop, "")


_AGENT_HINTS: dict[HopName, str] = {
    "submit": "check that its site agent runs there and reaches the service; then that its `queue` accepts pilots",
    "server": "have its site agent relay for the nodes: start it with --spool, or with --listen HOST:PORT",
}


_HINTS: dict[HopName, str] = {
    "reach": "try `ssh` by hand: it must log you in without a prompt",
    "scheduler": "check that its commands work in a login shell there; load what they need in `setup` of the entry",
    "install": "set another `folder` or `python` in the site's entry",
    "service": "start the service again: pilotage serve --stop, then pilotage serve",
    "submit": "set another `queue` or `account` in the site's entry, or ask for less",
    "starts": "see what the batch system says of it; a longer --timeout waits for a longer queue",
    "python": "set a `python` that the nodes have, or lines of `setup` that load one",
    "server": "let the nodes reach it (service.address, --host), or let a site agent relay: `started_by: agent`",
    "exchange": "remove the site's folder there; clocks may differ by a minute at most",
    "package": "see its log: the pilot's node runs it",
    "outputs": "see the log of the service",
}


# Checks a site directly, without its service: its login node, its batch system, and what a pilot prints there.

TAIL_BYTES = 4000


class CheckFailed(PilotageError):
    """A check at a site failed; `got` has the output of the failed command."""


class DirectChecks:
    """Checks a site with its own caller; nothing at a site that cannot be reached from here."""

    def __init__(self, entry: SiteEntry, *, state: Path, settings: Settings) -> None:
        """Take its entry; calls nothing yet. Raises `UnknownKind`."""
        from pilotage.adapters.sites.batch import runs_commands
        from pilotage.adapters.sites.install import site_prefix
        from pilotage.app.sites.connections import caller_for, refuse_unknown_kind

        self._entry = entry
        self._state = state
        self._settings = settings
        self._folder = ""
        self._dialect: Dialect | None = None
        kinds = refuse_unknown_kind(entry)
        # A site agent without an address was started by hand, somewhere unknown.
        if entry.kind in kinds and (entry.address or entry.started_by == "service"):
            self._dialect = kinds[entry.kind](site_prefix(state, entry.name))
        self._caller = caller_for(entry, state=state)
        self._commands = runs_commands(entry, self._caller)  # for the batch system, run in the same way as submissions

    def close(self) -> None:
        """Close the connection."""
        self._caller.close()

    def each(self) -> Iterator[tuple[HopName, Callable[[], str]]]:
        """The hops that can be checked, in order; each check returns what it saw, or raises `CheckFailed`."""
        if self._dialect is None:
            return
        yield "reach", self._reach
        yield "scheduler", partial(self._scheduler, self._dialect)
        if self._entry.started_by == "service":
            yield "install", self._install

    def state(self, key: str) -> str:
        """The state of a key in the batch system: queued, running or ended, with its own word; empty if not listed."""
        if self._dialect is None:
            return ""
        try:
            listed = self._dialect.listed(self._commands(self._dialect.listing())).get(key)
        except BatchError:
            return ""
        if listed is None:
            return ""
        word = "held" if listed.reason == "held" else listed.state
        return word if word == "running" else f"{word}, {listed.detail}" if listed.detail else word

    def words(self, key: str) -> str:
        """The last lines that the batch job of a key has printed so far."""
        if self._dialect is None or not self._folder:
            return ""
        file = output_of(f"{self._folder}/{OUTPUT_FOLDER}", key)
        try:
            answer = self._caller.run(Call(("sh",), f"tail -c {TAIL_BYTES} {shlex.quote(file)} 2>/dev/null\nexit 0\n"))
        except BatchError:
            return ""
        return answer.stdout.strip()

    def _run(self, call: Call, run: Callable[[Call], Answer] | None = None) -> Answer:
        from pilotage.adapters.sites.commands import MAY_WAIT

        try:
            answer = (run or self._caller.run)(call)
        except BatchError as error:
            raise CheckFailed("it cannot be reached", got=str(error)) from error
        if answer.exit_status is None:
            raise CheckFailed(f"no answer in time: {MAY_WAIT}", got=answer.stderr.strip())
        return answer

    def _reach(self) -> str:
        answer = self._run(Call(("sh",), "hostname 2>/dev/null || uname -n\n"))
        if answer.exit_status != 0:
            raise CheckFailed("its shell does not answer properly", got=answer.stderr or str(answer.exit_status))
        return answer.stdout.strip().splitlines()[-1] if answer.stdout.strip() else ""

    def _scheduler(self, dialect: Dialect) -> str:
        answer = self._run(dialect.is_here(), self._commands)
        version = dialect.version(answer)
        if not version:
            raise CheckFailed(f"{dialect.name} was not found", got=answer.stderr.strip() or answer.stdout.strip())
        try:
            dialect.listed(self._commands(dialect.listing()))
        except BatchError as error:
            raise CheckFailed(f"{dialect.name} {version} does not answer", got=str(error)) from error
        return f"{dialect.name} {version}"

    def _install(self) -> str:
        installation = self._installation()
        try:
            self._folder = installation.ensure()
        except (BatchError, ValueError) as error:
            raise CheckFailed("the agent cannot be installed there", got=str(error)) from error
        words = [self._entry.python, "-I", "-S", installation.agent, "--version"]
        script = "\n".join([*self._entry.setup, f"exec {shlex.join(words)}", ""])
        answer = self._run(Call(("bash", "-l", "-s") if self._entry.setup else ("sh",), script))
        if answer.exit_status != 0:
            raise CheckFailed(
                f"{self._entry.python} does not start the agent on the login node", got=answer.stderr.strip()
            )
        return f"{self._folder}, {answer.stdout.strip().splitlines()[-1]}"

    def _installation(self) -> Installation:
        from pilotage.adapters.sites.install import Installation, site_prefix
        from pilotage.app.service.credentials import tokens_of
        from pilotage.app.sites.connections import ca_file_of

        tokens = tokens_of(self._state, self._settings)
        return Installation(
            self._caller,
            folder=self._entry.folder,
            prefix=site_prefix(self._state, self._entry.name),
            ca_file=partial(ca_file_of, self._state),
            token=partial(tokens.for_pilot, self._entry.name),
        )


TEST_FOLDER = "site-test"
"""The prefix of the temporary folder for the result of a test."""
OUTPUT = "site-test.txt"
ORDER: tuple[HopName, ...] = ("submit", "starts", "python", "server", "exchange", "package")
"""The hops checked through the service: passing one of them implies the earlier ones."""
BY_HAND = "it hibernates (by-hand)"
"""How the service's message begins for a site that an operator hibernated."""
LOOK_SECONDS = 0.5
KNOWN_SECONDS = 15.0
LET_GO_LOOKS = 20
PILOTS_MAX = 1000
"""Pilots to search whose names begin like the watched one."""
NOT_THERE = ("gone", "removed", "leaving")
"""The status of a site that the book knows, but the service's file does not."""
DOCUMENT = """\
pilotage: 1
job: site-test
stages:
  - outputs: [{output}]
    executor: {site}
    retry: {{attempts_max: 2}}
    shell: echo "$PILOTAGE_SITE" > {output}
"""


class HopFailed(Exception):
    """A hop was not passed."""

    def __init__(self, hop: HopName, message: str, *, stderr: str = "", hint: str = "") -> None:
        """Say which, why, with whose output, and what to do if that is not the usual advice."""
        super().__init__(message)
        self.hop = hop
        self.stderr = stderr
        self.hint = hint


class SiteTest:
    """The test of one site."""

    def __init__(
        self,
        entry: SiteEntry,
        *,
        settings: Settings,
        folder: Path,
        seconds_max: float,
        tell: Callable[[Hop], None],
        sites: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take its entry, the folder of its service, and a function to report each hop to; calls nothing yet.

        `sites` is the file for a service started for this test; empty: the default one.
        """
        self._entry = entry
        self._settings = settings
        self._folder = folder
        self._state = state_folder(settings, folder=folder).absolute()
        self._until = time.monotonic() + seconds_max
        self._tell = tell
        self._sites = sites
        self._sleep = sleep
        self._begun = time.monotonic()
        self._looks = DirectChecks(entry, state=self._state, settings=settings)
        self.hops: list[Hop] = []

    def run(self) -> bool:
        """Go through all hops, up to the first failure; whether all passed."""
        try:
            if missing := missing_parts():
                raise HopFailed("service", f"not installed: {', '.join(missing)}", hint=install_again(missing))
            self._by_looking()
            with self._served() as server:
                self._through(server)
        except HopFailed as failed:
            hint = failed.hint or hint_for(failed.hop, failed.stderr, started_by=self._entry.started_by)
            self._tell_of(
                Hop(hop=failed.hop, ok=False, seconds=0.0, message=str(failed), stderr=failed.stderr, hint=hint)
            )
        finally:
            self._looks.close()
        return all(each.ok for each in self.hops)

    def _note(self, hop: HopName, message: str = "") -> None:
        self._tell_of(Hop(hop=hop, ok=True, seconds=0.0, message=message))

    def _tell_of(self, hop: Hop) -> None:
        now = time.monotonic()
        timed = msgspec.structs.replace(hop, seconds=round(now - self._begun, 3), stderr=hop.stderr.strip())
        self._begun = now
        self.hops.append(timed)
        self._tell(timed)

    # --- directly -----------------------------------------------------------------------------------------------------

    def _by_looking(self) -> None:
        for hop, look in self._looks.each():
            try:
                self._note(hop, look())
            except PilotageError as fault:
                raise HopFailed(hop, fault.what, stderr=fault.got) from fault

    # --- through the service ------------------------------------------------------------------------------------------

    @contextmanager
    def _served(self) -> Iterator[Server]:
        """A connection to the service of the folder, which is started if none runs."""
        from pilotage.app.service.session import Session

        try:
            session = Session(self._folder, sites=self._sites)
            server = session.server()
        except PilotageError as fault:
            raise HopFailed("service", str(fault)) from fault
        with server:
            yield server

    def _through(self, server: Server) -> None:
        before = self._known(server)
        place = self._folder / f"{TEST_FOLDER}-{self._entry.name}-{int(time.time() * 1000):x}"
        place.mkdir(mode=0o700)
        job, passed = "", set[HopName]()
        try:
            others = before["site"]["pilots_live"] + before["site"]["pilots_queued"]
            if others and self._entry.mode == "pilots":
                self._follow_trial(server, passed)
            job = self._submitted(server, place)
            self._follow(server, job, before, passed)
            self._outputs(server, job, place)
        finally:
            self._tidy(server, job, place)

    def _known(self, server: Server) -> dict[str, Any]:
        """The site in the service's list; waits for it, since the service checks the file every few seconds."""
        until = time.monotonic() + KNOWN_SECONDS
        name, found = self._entry.name, None
        while found is None:
            with suppress(ServerRefused):
                found = server.get(path_of("sites", name))
            if found is None or found["site"]["status"] in NOT_THERE:
                found = None
                if time.monotonic() > until:
                    listed = server.get(path_of("sites"))
                    not_there = f"it is not in its file of sites, {listed['file']}"
                    raise HopFailed("service", f"the service does not know it: {listed['fault'] or not_there}")
                self._sleep(LOOK_SECONDS)
        closed: str = found["site"]["closed"]
        if closed.startswith(BY_HAND):
            raise HopFailed("service", closed, hint=f"wake it first: pilotage site wake {name}")
        if closed:
            with suppress(ServerRefused):
                server.post(path_of("sites", name, "wake"), {"message": "it is being tested"})
        self._note("service", server.url)
        return dict(found)

    def _submitted(self, server: Server, place: Path) -> str:
        from pilotage.app.jobs.submit import RunSettings, document_source, submit_loaded

        document = place / "pilotage.yaml"
        document.write_text(DOCUMENT.format(site=self._entry.name, output=OUTPUT), "utf-8")
        source = document_source(document)
        return submit_loaded(source, source.load(), server, RunSettings(fresh=True)).answer.job

    def _follow_trial(self, server: Server, passed: set[HopName]) -> None:
        """Start a pilot next to the existing ones, and watch until the service hears from it."""
        path = path_of("sites", self._entry.name)
        try:
            key = f"{self._entry.name}-trial-{server.post(f'{path}/try')['operation']}"
        except ServerRefused as refused:
            raise HopFailed("submit", str(refused)) from refused
        while "exchange" not in passed:
            asked: Parameters = {"after": key[:-1], "limit": PILOTS_MAX}
            listed = server.get(path_of("pilots"), asked)["pilots"]
            detail = server.get(path)
            pilots = [row for row in listed if key in (row["pilot"], row["request"])]
            self._see(passed, detail, pilots, [])
            if "exchange" in passed:
                return
            if time.monotonic() > self._until:
                self._give_up(passed, detail["site"], pilots)
            self._sleep(LOOK_SECONDS)

    def _follow(self, server: Server, job: str, before: dict[str, Any], passed: set[HopName]) -> None:
        """Watch the pilot and the package; each hop is recorded when something shows that it was passed."""
        old = {row["pilot"] for row in before["pilots"]}
        while True:
            state = server.get(path_of("jobs", job))["state"]
            detail = server.get(path_of("sites", self._entry.name))
            pilots = [row for row in detail["pilots"] if row["pilot"] not in old]
            attempts = server.get(path_of("jobs", job, "packages", "1.1.1"))["attempts"]
            if "exchange" not in passed:
                self._see(passed, detail, pilots, attempts)
            lost = next((each for each in attempts if each.get("lost_at") is not None), None)
            if lost is not None and self._entry.mode == "bound":
                self._lost(server, job, passed, lost)
            if state in FINAL_NAMES or (attempts and attempts[-1].get("exit_code") == "SUCCESS"):
                break
            failed = next((each for each in attempts if each.get("exit_code") not in (None, "SUCCESS")), None)
            if failed is not None:
                raise HopFailed(
                    "package", failed.get("reason") or failed["exit_code"], stderr=failed["exit_message"] or ""
                )
            if time.monotonic() > self._until:
                self._give_up(passed, detail["site"], pilots)
            self._sleep(LOOK_SECONDS)
        if state in ("ABORTED", "CANCELLED"):
            raise HopFailed("package", f"its job is {state}")
        self._pass(passed, "exchange")
        self._pass(passed, "package")

    def _see(
        self, passed: set[HopName], detail: dict[str, Any], pilots: list[dict[str, Any]], attempts: list[dict[str, Any]]
    ) -> None:
        """Record passed hops, from pilots and attempts in the book, and from the listing of the batch system."""
        if any(each.get("running_at") or each.get("started_at") for each in (*attempts, *pilots)):
            self._pass(passed, "exchange")
            return
        for row in pilots:
            if row["ended_at"] is not None:
                words = row["stderr"] or ""
                hop = failed_at(words, reason=row["reason"] or "") if row["native_id"] else "submit"
                self._pass_before(passed, hop)
                raise HopFailed(hop, row["reason"] or "it ended", stderr=words)
        queued = next((row["pilot"] for row in pilots if row["native_id"]), "")
        if queued or any(each.get("queued_at") for each in attempts):
            self._pass(passed, "submit")
            # The service's own observation takes longer, and is the only one if the site cannot be checked from here.
            state, words = next(
                ((each["state"], each.get("words", "")) for each in detail["noticed"] if each["key"] == queued),
                ("", ""),
            )
            state_now = self._looks.state(queued) if queued else ""
            state_now = state_now or (f"{state}, {words}" if state == "held" else state)
            if state_now == "running":
                self._pass(passed, "starts")
            elif state_now.startswith("held"):
                raise HopFailed("starts", f"it cannot start by itself: {state_now}")
            self._denied(passed, queued, words)
        elif detail["site"]["says"]:
            raise HopFailed("submit", detail["site"]["says"])

    def _lost(self, server: Server, job: str, passed: set[HopName], attempt: dict[str, Any]) -> None:
        """The batch job of a package is gone: its output is in the event of the loss."""
        asked: Parameters = {"query": "type=AttemptLost"}
        events = server.get(path_of("jobs", job, "packages", "1.1.1", "events"), asked)["events"]
        words = events[-1]["data"].get("message", "") if events else ""
        hop = failed_at(words) if attempt.get("native_id") else "submit"
        self._pass_before(passed, hop)
        raise HopFailed(hop, attempt.get("lost_reason") or "it is lost", stderr=words)

    def _denied(self, passed: set[HopName], key: str, noticed: str) -> None:
        """A running pilot that cannot contact the service prints why, and keeps trying: do not wait for it."""
        words = self._looks.words(key) or noticed if key and "starts" in passed else ""
        hop = failed_at(words) if words else "starts"
        if hop in ("server", "exchange") and words.count("no answer from the service") + words.count("HTTP ") > 0:
            self._pass_before(passed, hop)
            raise HopFailed(hop, "the pilot runs, but cannot contact the service", stderr=words)

    def _give_up(self, passed: set[HopName], site: dict[str, Any], pilots: list[dict[str, Any]]) -> None:
        hop = next((each for each in ORDER if each not in passed), ORDER[-1])
        key = next((row["pilot"] for row in pilots), "")
        state = self._looks.state(key) if key else ""
        why = site["closed"] or site["says"] or (f"the batch system says: {state}" if state else "")
        message = "timed out" + (f"; {why}" if why else "")
        raise HopFailed(hop, message, stderr=self._looks.words(key) if key else "")

    def _pass_before(self, passed: set[HopName], hop: HopName) -> None:
        if hop in ORDER[1:]:
            self._pass(passed, ORDER[ORDER.index(hop) - 1])

    def _pass(self, passed: set[HopName], hop: HopName, message: str = "") -> None:
        """Record a hop, and earlier ones that nothing showed by itself."""
        for each in ORDER[: ORDER.index(hop) + 1]:
            if each not in passed:
                passed.add(each)
                self._note(each, message)

    def _outputs(self, server: Server, job: str, place: Path) -> None:
        file = place / OUTPUT
        while not file.exists() and time.monotonic() < self._until:
            if stuck := server.get(path_of("jobs", job, "progress")).get("stuck"):
                raise HopFailed("outputs", stuck)
            self._sleep(LOOK_SECONDS)
        got = file.read_text("utf-8").strip() if file.exists() else ""
        if got and got != self._entry.name:
            kind = f"{self._entry.name!r} is also the kind of that site: hibernate it while this one is tested"
            raise HopFailed("outputs", f"the package ran at {got}, not here; {kind}")
        if not got:
            raise HopFailed("outputs", f"{OUTPUT} has not arrived")
        self._note("outputs")

    def _tidy(self, server: Server, job: str, place: Path) -> None:
        if job:
            with suppress(PilotageError):  # it is over
                Jobs(server).operate(Kill(job=job, message="the test of the site is over"))
            self._let_go(server, job)
        shutil.rmtree(place, ignore_errors=True)

    def _let_go(self, server: Server, job: str) -> None:
        """Have the book purge the job, once nothing of it runs; if that takes long, retention does it later."""
        for _ in range(LET_GO_LOOKS):
            try:
                server.post(path_of("jobs", job, "clear"))
                server.post(path_of("jobs", job, "purge"))
            except PilotageError:
                self._sleep(LOOK_SECONDS)
            else:
                return
