"""The site agent's records in a small file, so that it may die at any moment without losing or doubling a submission.

A submission is recorded before it is made, and its result afterwards. A submission without a result may or may not be
queued: the agent looks for its key in the listings.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.batch.pilot_job import OUTPUT_FOLDER, STATE_FOLDER, PilotJobTemplate
from pilotage.agent.durable_files import FILE_MODE, FOLDER_MODE, read_small, replace_file
from pilotage.agent.processes import started_at
from pilotage.agent.resources import resources_of_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FORGET_SECONDS = 600.0

ASKED = "asked"  # about to be submitted
SUBMITTED = "submitted"
GONE = "gone"
FAILED = "failed"  # refused

FILE_EFFECTS = frozenset(("fetch-file", "remove-file"))


class SubmissionRecord(NamedTuple):
    """The record of one key."""

    state: str
    at: float  # when it reached this state, in seconds since 1970
    native_id: str = ""
    reason: str = ""
    text: str = ""  # its last output, or the message of the batch system
    absent_at: float = 0.0  # since when the service no longer mentions it
    seconds: float = 0.0  # duration of its submission; 0: unknown
    scheduler: str = ""  # the batch system it was submitted to; empty: the one that the entry names


class SiteRecords:
    """Records by key, and the last answer of the service; `save` makes them durable."""

    def __init__(self, file: Path) -> None:
        """Read the records of an earlier process; an unreadable file counts as empty: the batch system has the rest."""
        self._file = file
        try:
            content = json.loads(read_small(file) or b"{}")
            self.records = {str(key): SubmissionRecord(*fields) for key, fields in content.get("records", {}).items()}
        except (ValueError, TypeError, AttributeError):
            content, self.records = {}, {}
        self.entry: dict[str, Any] | None = content.get("entry")
        self.prefix: str = content.get("prefix", "")
        self.port: int = content.get("port", 0)  # of the relay
        self.expected: set[str] = set(content.get("expected", ()))
        self.effects: list[dict[str, Any]] = content.get("effects", [])
        self.file_effects: list[
            dict[str, Any]
        ] = []  # not written down: the service repeats them, and a locator is private
        self.unheard: set[str] = set()  # pilots that have not contacted the service, by its last answer
        self.scheduler = ""  # the current batch system
        self._saved = b""

    def save(self) -> None:
        """Write everything to disk; raises `OSError`."""
        fields = {
            "entry": self.entry,
            "prefix": self.prefix,
            "port": self.port,
            "expected": sorted(self.expected),
            "effects": self.effects,
            "records": self.records,
        }
        content = json.dumps(fields).encode()
        if content != self._saved:
            replace_file(self._file, content)
            self._saved = content

    def take_answer(self, hears: dict[str, Any]) -> None:
        """Take an answer of the service; forget keys that it has not mentioned for a while."""
        self.expected = set(hears.get("expected") or ())
        effects = list(hears.get("effects") or ())
        self.effects = [each for each in effects if each.get("type") not in FILE_EFFECTS]
        self.file_effects = [each for each in effects if each.get("type") in FILE_EFFECTS]
        self.unheard = set(hears.get("unheard") or ())
        self.entry = hears.get("entry") or self.entry
        self.prefix = str(hears.get("prefix") or self.prefix)
        spoken_of = self.expected | {str(each.get("key")) for each in self.effects}
        now = time.time()
        for key, record in list(self.records.items()):
            if key in spoken_of:
                if record.absent_at:
                    self.records[key] = record._replace(absent_at=0.0)
            elif not record.absent_at or record.absent_at > now:
                self.records[key] = record._replace(absent_at=now)
            elif record.state != SUBMITTED and now > record.absent_at + FORGET_SECONDS:
                del self.records[key]

    def note(
        self, key: str, state: str, *, native_id: str = "", reason: str = "", text: str = "", seconds: float = 0.0
    ) -> None:
        """Set the state of a key; known fields stay."""
        before = self.records.get(key)
        if before is not None and before.state == state and state != ASKED:
            return
        native_id = native_id or (before.native_id if before is not None else "")
        scheduler = before.scheduler if before is not None and before.state != ASKED else self.scheduler
        self.records[key] = SubmissionRecord(
            state, time.time(), native_id, reason, text, seconds=seconds, scheduler=scheduler
        )

    def age_seconds(self, key: str) -> float:
        """How long ago a key reached its state; never negative, if the clock was set back."""
        return max(0.0, time.time() - self.records[key].at)


# The folder of a service at a site, on the file system that its nodes share:
#
# FOLDER/
#   agent-VERSION-DIGEST.pyz     the agent that pilots are started with
#   ca.pem, tokens/              closed to others
#   state/, output/              of the pilots
#   relay/                       for nodes without a network
#   cache/                       files that were brought to the site, unless its entry names another folder
#   address.json                 the current address, for pilots that were started with another
#   site-agent.json, .lock, .log

MEMORY_FILE = "site-agent.json"
RELAY_FOLDER = "relay"
CACHE_FOLDER = "cache"
ADDRESS_FILE = "address.json"
KEEP_SECONDS = 86_400.0
_NAMED_DIGITS = 12


class SiteFolder:
    """The folder of a site agent."""

    def __init__(self, folder: Path, *, site: str, version: str, token_file: str = "", ca_file: str = "") -> None:
        self.folder = folder
        self.site = site
        self.server = ""  # the address that pilots connect to
        self._version = version
        self._given_token_file = token_file
        self._given_ca_file = ca_file
        self.pilot_token_file = str(folder / "tokens" / site)
        self.own_token_file = folder / "tokens" / f"{site}.site-agent"
        self.agent_file: Path | None = None  # known once installed, since its digest is part of its name
        self._agent_sha256 = ""
        self._kept_at = 0.0
        self.ca_file = folder / "ca.pem"
        self.relay_folder = folder / RELAY_FOLDER
        self._announcement = ""  # its path, once written

    def make(self) -> None:
        """Make missing folders; raises `OSError`."""
        for each in ("", OUTPUT_FOLDER, STATE_FOLDER, "tokens"):
            (self.folder / each).mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)

    def install(self, agent: Path) -> None:
        """Copy the agent and the service's CA certificate to where nodes find them; raises `OSError`.

        Files in the folder stay as they are: their names contain their digests.
        """
        content = agent.read_bytes()
        self._agent_sha256 = hashlib.sha256(content).hexdigest()
        if agent.resolve().parent == self.folder.resolve():
            self.agent_file = agent
        else:
            self.agent_file = self.folder / f"agent-{self._version}-{self._agent_sha256[:_NAMED_DIGITS]}.pyz"
            _put(self.agent_file, content, mode=0o700)
        self.keep_agent()
        if self._given_ca_file:
            _put(self.ca_file, Path(self._given_ca_file).read_bytes(), mode=FILE_MODE)

    def keep_agent(self) -> None:
        """Touch the agent's file once a day: a service removes old ones by age. Raises `OSError` if it is gone."""
        now = time.time()
        if self.agent_file is not None and not self._kept_at <= now < self._kept_at + KEEP_SECONDS:
            os.utime(self.agent_file)
            self._kept_at = now

    def keep_pilot_token(self, token: str) -> None:
        """Write the token that pilots read; raises `OSError`."""
        _put(Path(self.pilot_token_file), token.encode("ascii") + b"\n", mode=FILE_MODE)

    def announce(self) -> None:
        """Announce the current address to pilots, running ones too; raises `OSError`."""
        file = self.folder / ADDRESS_FILE
        announcement = {"url": self.server, "ca_file": self._pilot_ca_file}
        _put(file, json.dumps(announcement).encode() + b"\n", mode=FILE_MODE)
        self._announcement = str(file)

    @property
    def _pilot_ca_file(self) -> str:
        """The CA file for pilots; only needed if they connect to the service itself."""
        return str(self.ca_file) if self.server.startswith("https:") and self._given_ca_file else ""

    def job_template(self, entry: Mapping[str, Any]) -> PilotJobTemplate:
        """The template of pilot jobs, from the JSON of the site's entry."""
        token_file = self.pilot_token_file if os.path.exists(self.pilot_token_file) else self._given_token_file
        return PilotJobTemplate(
            site=self.site,
            folder=str(self.folder),
            agent=str(self.agent_file or ""),
            agent_sha256=self._agent_sha256,
            server=self.server,
            token_file=os.path.abspath(token_file) if token_file else "",
            ca_file=self._pilot_ca_file,
            announcement=self._announcement,
            python=str(entry.get("python") or "python3"),
            setup=tuple(entry.get("setup") or ()),
            resources=resources_of_entry(entry),
            wall_seconds=float(entry.get("wall_time_seconds") or 0.0),
            idle_seconds=float(entry.get("idle_seconds", 300.0)),
            queue=str(entry.get("queue") or ""),
            account=str(entry.get("account") or ""),
            parallel=str(entry.get("parallel_environment") or ""),
            directives=tuple(entry.get("directives") or ()),
        )


def _put(file: Path, content: bytes, *, mode: int) -> None:
    """Write a file atomically, unless it has this content."""
    with contextlib.suppress(OSError):
        if hashlib.sha256(file.read_bytes()).digest() == hashlib.sha256(content).digest():
            return
    draft = file.with_name(f".{file.name}-{os.urandom(6).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as target:
            target.write(content)
            target.flush()
            os.fsync(descriptor)
        draft.replace(file)
    except OSError:
        draft.unlink()
        raise


# One agent per site folder: a lock that works on any shared file system, also after a crash.
#
# The lock is a file that is hard-linked into place, at which only one process can succeed. It names its holder, which
# renews its time. It is taken over from a dead process of this computer, and from a process of another computer that
# has not renewed it for a while; ages are measured by the clock of the file system.

RENEW_SECONDS = 10.0
STALE_SECONDS = 90.0
LOCK_FILE = "site-agent.lock"


class AlreadyRuns(OSError):
    """Another agent uses this folder; the message says where it runs."""


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


class FolderLock:
    """The lock of a folder, from `take` to `release`."""

    def __init__(
        self, folder: Path, *, renew_seconds: float = RENEW_SECONDS, lost: Callable[[], object] | None = None
    ) -> None:
        """Take the folder; `lost` is called if another process takes the lock away."""
        self._folder = folder
        self._file = folder / LOCK_FILE
        self._renew_seconds = renew_seconds
        self._lost = lost
        own = os.getpid()
        self._id = os.urandom(8).hex()
        self._content = {
            "id": self._id, "host": os.uname().nodename, "boot": _boot(), "pid": own, "started": started_at(own),
        }  # fmt: skip
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lock", daemon=True)

    def take(self) -> None:
        """Take the lock; raises `AlreadyRuns`, or another `OSError`."""
        draft = self._folder / f".{LOCK_FILE}-{self._id}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            os.write(descriptor, json.dumps(self._content).encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            for _ in range(10):
                # On a network the reply to a successful link may be lost: the link count tells.
                with contextlib.suppress(FileExistsError):
                    os.link(draft, self._file)
                if os.stat(draft).st_nlink == 2:
                    break
                held = _read(self._file)
                if held is not None and not _is_dead(self._folder, held):
                    raise AlreadyRuns(
                        f"an agent of {self._folder} runs already: process {held.get('pid')} on {held.get('host')}"
                    )
                if held is not None:
                    self._set_aside(held)
            else:
                raise AlreadyRuns(f"the lock of {self._folder} is taken again and again")
        finally:
            draft.unlink()
        self._thread.start()

    def release(self) -> None:
        """Release the lock."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._is_ours():
            with contextlib.suppress(OSError):
                self._file.unlink()

    def _set_aside(self, held: dict[str, Any]) -> None:
        """Remove the lock of a dead process; if another lock is in its place by then, put that back."""
        aside = self._folder / f".{LOCK_FILE}-{self._id}-dead"
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._file, aside)
            if (_read(aside) or {}).get("id") != held.get("id"):
                with contextlib.suppress(FileExistsError):
                    os.link(aside, self._file)
            aside.unlink()

    def _is_ours(self) -> bool:
        return (_read(self._file) or {}).get("id") == self._id

    def _renew(self) -> None:
        while not self._ending.wait(self._renew_seconds):
            try:
                if not self._is_ours():
                    if self._lost is not None:
                        self._lost()
                    return
                os.utime(self._file)
            except OSError:
                continue  # the file system does not answer: it will later, or another agent takes over


def _read(file: Path) -> dict[str, Any] | None:
    """The content of a lock; None if there is none."""
    try:
        content = json.loads(file.read_bytes() or b"{}")
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _is_dead(folder: Path, held: dict[str, Any]) -> bool:
    if held.get("host") == os.uname().nodename:
        pid = held.get("pid")
        if held.get("boot") != _boot():
            return True
        return not isinstance(pid, int) or not held.get("started") or started_at(pid) != held["started"]
    return _age_seconds(folder) > STALE_SECONDS


def _age_seconds(folder: Path) -> float:
    probe = folder / f".now-{os.urandom(6).hex()}"
    probe.touch(mode=FILE_MODE)
    try:
        return probe.stat().st_mtime - (folder / LOCK_FILE).stat().st_mtime
    except FileNotFoundError:
        return 0.0
    finally:
        probe.unlink()
