"""A site with a batch system that we can reach: agents are submitted as batch jobs under our keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from pilotage.adapters.closed_folders import make_closed
from pilotage.adapters.sites.commands import Caller
from pilotage.adapters.sites.install import Installation
from pilotage.agent.batch import Answer, Busy, Call, Dialect, Refused, Unknown
from pilotage.agent.batch.pilot_job import OUTPUT_FOLDER, PilotJobTemplate
from pilotage.agent.batch.submitter import ARRAY_MAX, SETTLE_SECONDS, Submitter, in_login_shell
from pilotage.agent.resources import resources_of_entry
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.reports import Noticed
from pilotage.model.resources import Demand
from pilotage.model.sites.entry import SiteEntry
from pilotage.ports import SeenAtSite, SiteBusy, SiteUnreachable, SubmissionRefused

LOOK_SECONDS = 10.0
_DOUBTFUL = frozenset(("failed", "platform-failure", "vanished"))
"""Ends that may mean a missing or wrong installation at the site; a system that forgets soon says no more."""
_NEXT_STEPS = {
    "bad-queue": "name another `queue` in the site's entry",
    "bad-account": "name another `account` in the site's entry",
    "bad-resources": "ask for less in the site's entry: slots, memory, GPUs, or wall time",
    "not-allowed": "ask the site's operators what you may use",
}


def runs_commands(entry: SiteEntry, caller: Caller) -> Callable[[Call], Answer]:
    """A function that runs commands of a site's batch system in the environment of its users.

    Over ssh that is a login shell; here it is our own environment, unless the entry has lines of setup.
    """
    return in_login_shell(caller.run, entry.setup) if entry.address or entry.setup else caller.run


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a batch site and its agents."""

    entry: SiteEntry
    prefix: str  # of our job names there: see `site_prefix`
    server: Callable[[], str]  # our address, as its nodes reach it
    token: Callable[[], str] = str  # for its agents
    ca_file: Callable[[], Path | None] = lambda: None  # the CA certificate that agents trust
    notes: Path | None = None  # file with the keys of unanswered submissions, for the next process
    look_seconds: float = LOOK_SECONDS
    settle_seconds: float = SETTLE_SECONDS
    grace_seconds: float = 10.0
    array_max: int = ARRAY_MAX


class BatchSite:
    """Submits agents to a batch system; see `SiteAccess`."""

    def __init__(self, settings: BatchSettings, dialect: Dialect, caller: Caller) -> None:
        """Take the settings; jobs of an earlier process are found by their keys."""
        self._settings = settings
        self._caller = caller
        self._installation = Installation(
            caller,
            folder=settings.entry.folder,
            prefix=settings.prefix,
            ca_file=settings.ca_file,
            token=settings.token,
            server=settings.server,
        )
        self._submitter = Submitter(
            dialect,
            runs_commands(settings.entry, caller),
            self._job_template,
            output=self._output,
            array_max=settings.array_max,
            settle_seconds=settings.settle_seconds,
            unsure=_noted(settings.notes),
            note=partial(_note, settings.notes) if settings.notes is not None else None,
        )

    @property
    def look_seconds(self) -> float:
        """Seconds between two listings."""
        return self._settings.look_seconds

    def submit_pilots(self, key: str, *, count: int = 1) -> list[str]:
        """Submit pilots with consecutive keys, unless they exist; returns the native ids of the first ones."""
        with self._port_errors():
            return self._submitter.submit_pilots(key, count)

    def submit_attempt(self, key: str, *, ref: AttemptRef, demand: Demand) -> str:
        """Submit an agent for one attempt, unless it exists; returns its native id."""
        serves = f"{ref.job}:{ref.package}:{ref.attempt}"
        with self._port_errors():
            return self._submitter.submit_attempt(key, serves=serves, demand=msgspec.to_builtins(demand))

    def cancel(self, *keys: str) -> None:
        """Cancel the batch jobs of these keys."""
        with self._port_errors():
            self._submitter.cancel(*keys)

    def listing(self, expected: Collection[str] = ()) -> Mapping[str, SeenAtSite]:
        """All present batch jobs, and those that ended since the last listing, by key."""
        with self._port_errors():
            listed = self._submitter.listing(expected)
            if listed:  # queued agents read the token when they start, and all read our current address
                self._installation.ensure()
            else:
                self._installation.refresh()
        if any(each.reason in _DOUBTFUL for each in listed.values()):
            self._installation.doubt()
        return {
            key: SeenAtSite(native_id=each.native_id, ended=each.ended, reason=each.reason, stderr=each.stderr)
            for key, each in listed.items()
        }

    def notice(self, unheard: Collection[str]) -> list[Noticed]:
        """Held batch jobs, and silent ones with the end of their output."""
        with self._port_errors():
            return msgspec.convert([each._asdict() for each in self._submitter.notice(unheard)], list[Noticed])

    def scheduler(self) -> str:
        """The batch system and its version."""
        with self._port_errors():
            return self._submitter.scheduler()

    def close(self) -> None:
        """Close the connection; batch jobs go on."""
        self._caller.close()

    def _output(self) -> str:
        return f"{self._installation.ensure()}/{OUTPUT_FOLDER}"

    def _job_template(self) -> PilotJobTemplate:
        entry, installation = self._settings.entry, self._installation
        folder = installation.ensure()
        return PilotJobTemplate(
            site=entry.name,
            folder=folder,
            agent=installation.agent,
            agent_sha256=installation.agent_sha256,
            server=self._settings.server(),
            token_file=installation.token_file,
            ca_file=installation.ca_file,
            announcement=installation.announcement,
            python=entry.python,
            setup=entry.setup,
            resources=resources_of_entry(msgspec.structs.asdict(entry)),
            wall_seconds=entry.wall_time_seconds or 0.0,
            idle_seconds=entry.idle_seconds,
            grace_seconds=self._settings.grace_seconds,
            queue=entry.queue,
            account=entry.account,
            parallel=entry.parallel_environment,
            directives=entry.directives,
        )

    @contextmanager
    def _port_errors(self) -> Iterator[None]:
        """Turn errors of the batch system into errors of the port."""
        site = self._settings.entry.name
        try:
            yield
        except Unknown as error:
            raise SiteUnreachable(str(error), subject=site) from error
        except Busy as error:
            raise SiteBusy(str(error), subject=site) from error
        except Refused as error:
            raise SubmissionRefused(
                str(error), reason=error.reason, subject=site, next_step=_NEXT_STEPS.get(error.reason, "")
            ) from error
        except ValueError as error:  # this system has no option for a setting of the entry
            raise SubmissionRefused(str(error), reason="bad-resources", subject=site) from error
        except OSError as error:  # nothing is submitted that cannot be recorded first
            raise SiteUnreachable(f"cannot record the submission: {error}", subject=site) from error


def _noted(file: Path | None) -> list[str]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[str]) if file is not None else []
    except (OSError, msgspec.DecodeError):
        return []


def _note(file: Path, keys: Collection[str]) -> None:
    draft = file.with_name(f".{file.name}.draft")
    make_closed(file.parent)
    draft.write_bytes(msgspec.json.encode([*keys]))
    draft.replace(file)
