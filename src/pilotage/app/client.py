"""A client of a running service, for Python: `pilotage.Client` submits jobs, fetches results, queries, steers and subscribes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import msgspec

from pilotage.app.api import with_run_options
from pilotage.app.jobs.results import HandedFile, Result, hand_over
from pilotage.app.jobs.submit import RunSettings, source_of, submit_anywhere
from pilotage.app.jobs.watch import JobWatcher
from pilotage.app.state_folder import state_folders
from pilotage.client import find_addresses
from pilotage.client.jobs import Jobs, Log
from pilotage.client.server import Parameters, Server, path_of
from pilotage.model.answers import Explanation, HealingHistory, Progress
from pilotage.model.exchange.operations import (
    Accepted,
    AnyOperation,
    Drop,
    Hold,
    Kill,
    OperatedOn,
    OperationOn,
    Release,
    Replicate,
    Reschedule,
    Restart,
    Restore,
)
from pilotage.model.jobs.run_options import RunKeywords

if TYPE_CHECKING:
    from pilotage.app.jobs.elsewhere import Transferred
    from pilotage.app.jobs.kept_files import KeptFile
    from pilotage.language import LoadedJob
    from pilotage.language.builder import Job
    from pilotage.reading.views import EventView, JobView, PackageDetail, PackageView

Found = TypeVar("Found")
Target = Literal["jobs", "packages", "events"]
OnTransfer = Callable[["Transferred"], None]

PAGE_ROWS = 1000
WAIT_SECONDS = 30.0
"""How long one request waits for the next events or notices."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A notification of a change, as a CloudEvent: `data` has the job or package, its new state, and the rest."""

    id: str
    type: str
    subject: str
    time: str
    data: dict[str, Any]


class SubscriptionState(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as the server keeps it; `fault` is that of the last delivery, if it failed."""

    id: str
    target: str
    query: str
    states: tuple[str, ...]
    attributes: tuple[str, ...]
    transport: str
    address: str
    created_at: float
    expires_at: float
    fault: str


class Subscription:
    """A subscription to changes. Iterating over it yields each `Notice` as it comes, and acknowledges those before."""

    def __init__(self, connect: Callable[[], Server], state: SubscriptionState, *, secret: str = "") -> None:
        """`connect` returns a connection; `secret` signs the webhooks of a new subscription."""
        self._connect = connect
        self._after = ""
        self.state = state
        self.secret = secret

    @property
    def id(self) -> str:
        """The id of the subscription."""
        return self.state.id

    def __iter__(self) -> Iterator[Notice]:
        """Yield notices until the subscription ends; a notice that was yielded is acknowledged by asking for the next."""
        while True:
            yield from self.notices(wait_seconds=WAIT_SECONDS)

    def notices(self, *, wait_seconds: float = 0.0) -> list[Notice]:
        """The next notices, after waiting for them up to so long; acknowledges those of the last call."""
        asked: Parameters = {"after": self._after or None, "wait_seconds": wait_seconds or None}
        with self._connect() as server:
            page = server.get(path_of("subscriptions", self.id, "notices"), asked)
        self._after = page["after"]
        return msgspec.convert(page["notices"], list[Notice])

    def refresh(self, *, validity_seconds: float | None = None) -> Subscription:
        """Let it expire so long from now, by default as long as the server's settings say; returns itself."""
        with self._connect() as server:
            body = {} if validity_seconds is None else {"validity_seconds": validity_seconds}
            answer = server.post(path_of("subscriptions", self.id, "refresh"), body)
        self.state = msgspec.convert(answer, SubscriptionState)
        return self

    def end(self) -> None:
        """End the subscription, with its notices."""
        with self._connect() as server:
            server.send("DELETE", path_of("subscriptions", self.id))

    def __repr__(self) -> str:
        return f"<Subscription {self.id}: {self.state.target} {self.state.query or 'all'}, by {self.state.transport}>"


class Client:
    """A client of a running service, for Python: submit jobs, fetch results, query the book, steer jobs, and subscribe.

    Without a URL it uses the server that PILOTAGE_SERVER names, or the one that runs in the current folder or above it.
    Every method opens a connection of its own, so that threads can share a client.
    """

    def __init__(self, server: str | None = None, *, token_file: str | None = None) -> None:
        """Choose the server; opens no connection yet. Raises `NoServer` if none is known."""
        (self._address,) = find_addresses(
            [server] if server else [],
            token_files=[token_file] if token_file else [],
            environment=os.environ,
            state_folders=state_folders(environment=os.environ, folder=Path.cwd()),
        )

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._address.url

    # Jobs and their results.

    @with_run_options
    def submit(
        self,
        job: Job | LoadedJob | str | os.PathLike[str],
        *,
        folder: str | Path | None = None,
        parameters: Mapping[str, Any] | None = None,
        targets: str | Sequence[str] = (),
        on_transfer: OnTransfer | None = None,
        **options: Unpack[RunKeywords],
    ) -> Result:
        """Submit a job there and return at once; `Result.wait` waits for it.

        If the service does not see the folder, every file that the job reads is sent, unless the service has it, and
        `outputs` fetches the results. `on_transfer` is called every few seconds with the progress of what takes long.
        """
        source = source_of(job, folder=folder, schemes=None, parameters=parameters, targets=targets)
        loaded = source.load()
        with self._address.server() as server:
            brought = submit_anywhere(source, loaded, server, RunSettings(**options), report=on_transfer)
        return self.result(brought.answer.job, folder=source.folder)

    def result(self, job: str, *, folder: str | Path | None = None) -> Result:
        """A job of that service by id, as it is now; raises `ServerRefused` if there is none."""
        following = JobWatcher(self._address.server, job)
        try:
            return Result(following, following.progress(), folder=Path(folder or ".").absolute())
        finally:
            following.close()

    def outputs(
        self,
        job: str,
        *,
        to: str | Path | None = None,
        replace: bool = False,
        on_transfer: OnTransfer | None = None,
    ) -> list[HandedFile]:
        """Verify the results of a job, and put them into the folder `to`; each has its `path`, or a `problem`.

        Files that are not on this computer are received from the service; an interrupted call goes on when it is
        repeated. Another file of the same name is left alone, unless `replace`.
        """
        from pilotage.app.jobs.elsewhere import Receiver

        with self._address.server() as server:
            receive = Receiver(server, job, report=on_transfer)
            folder = Path(to).absolute() if to is not None else None
            return list(hand_over(Jobs(server).outputs(job), to=folder, replace=replace, receive=receive))

    def put(self, file: str | os.PathLike[str], *, on_transfer: OnTransfer | None = None) -> str:
        """Send a file to the service, which keeps it until you drop it; returns its locator, for inputs of your jobs."""
        from pilotage.app.jobs.kept_files import put_files

        with self._address.server() as server:
            (done,) = put_files(server, [Path(file)], report=on_transfer)
        return done.locator

    def kept(self) -> list[KeptFile]:
        """The files that the service keeps for you: those that you put there, and outputs that your jobs stored there."""
        from pilotage.app.jobs.kept_files import kept_files

        with self._address.server() as server:
            return kept_files(server)

    def drop_kept(self, locator: str) -> bool:
        """Let a file go that the service keeps for you; whether it was kept."""
        from pilotage.app.jobs.kept_files import drop_files

        with self._address.server() as server:
            return not drop_files(server, [locator])

    def clear(self, job: str) -> None:
        """Record that the results of a finished job were handed over; the service may purge it some days later."""
        with self._address.server() as server:
            Jobs(server).clear(job)

    def progress(self, job: str) -> Progress:
        """How far a job is."""
        with self._address.server() as server:
            return Jobs(server).progress(job)

    def explain(self, job: str, package: str) -> Explanation:
        """Why a package is in its state."""
        with self._address.server() as server:
            return Jobs(server).explain(job, package)

    def healing(self, job: str, *, limit: int | None = None) -> HealingHistory:
        """What healing saw in a job and did about it: the last decisions, or all; the newest last."""
        with self._address.server() as server:
            return Jobs(server).healing(job, limit=limit)

    def logs(self, job: str, package: str, *, attempt: int | None = None) -> list[Log]:
        """What a package printed, attempt by attempt."""
        with self._address.server() as server:
            return Jobs(server).logs(job, package, attempt=attempt)

    # Queries.

    def jobs(self, query: str = "") -> Iterator[JobView]:
        """The jobs that a query finds, by id; by default all that you may read."""
        from pilotage.reading.views import JobView

        return self._pages(path_of("jobs"), "jobs", JobView, query)

    def packages(self, query: str = "", *, job: str = "") -> Iterator[PackageView]:
        """The packages that a query finds, of one job or of all; such as `state=RUNNING and site=lyon`."""
        from pilotage.reading.views import PackageView

        path = path_of("jobs", job, "packages") if job else path_of("packages")
        return self._pages(path, "packages", PackageView, query)

    def package(self, job: str, package: str) -> PackageDetail:
        """A package with all its attempts and inputs."""
        from pilotage.reading.views import PackageDetail

        with self._address.server() as server:
            return msgspec.convert(server.get(path_of("jobs", job, "packages", package)), PackageDetail)

    def count(self, target: Target, query: str = "") -> int:
        """How many jobs, packages or events a query finds."""
        with self._address.server() as server:
            count: int = server.get(path_of("counts", target), {"query": query or None})["count"]
            return count

    def events(self, query: str = "", *, job: str = "") -> Iterator[EventView]:
        """The events that a query finds, of one job or of all, by position."""
        from pilotage.reading.views import EventView

        if not job:
            return self._pages(path_of("events"), "events", EventView, query)
        return self._events_of(job, query, after=0, wait_seconds=0.0)

    def follow(self, job: str, query: str = "", *, after: int = 0) -> Iterator[EventView]:
        """The events of a job after a position, and then each as it comes; ends only when the caller does."""
        return self._events_of(job, query, after=after, wait_seconds=WAIT_SECONDS)

    def _events_of(self, job: str, query: str, *, after: int, wait_seconds: float) -> Iterator[EventView]:
        from pilotage.reading.views import EventsAfter

        with self._address.server() as server:
            while True:
                asked: Parameters = {
                    "query": query or None,
                    "after": after,
                    "limit": PAGE_ROWS,
                    "wait_seconds": wait_seconds or None,
                }
                page = msgspec.convert(server.get(path_of("jobs", job, "events"), asked), EventsAfter)
                yield from page.events
                after = page.after
                if not page.more and not wait_seconds:
                    return

    def _pages(self, path: str, name: str, kind: type[Found], query: str) -> Iterator[Found]:
        cursor: str | None = None
        with self._address.server() as server:
            while True:
                asked: Parameters = {"query": query or None, "cursor": cursor, "limit": PAGE_ROWS}
                page = server.get(path, asked)
                for item in page[name]:
                    yield msgspec.convert(item, kind)
                cursor = page["next"]
                if cursor is None:
                    return

    # Operations.

    def kill(self, job: str, *, package: str = "", message: str = "") -> Accepted:
        """Cancel a job, or one package of it."""
        return self.operate(Kill(job=job, package=package, message=message))

    def hold(self, job: str, *, package: str = "", message: str = "") -> Accepted:
        """Start nothing more of a job, or of one package, until it is released."""
        return self.operate(Hold(job=job, package=package, message=message))

    def release(self, job: str, *, package: str = "") -> Accepted:
        """Continue what was held."""
        return self.operate(Release(job=job, package=package))

    def restart(self, job: str, *, package: str = "", message: str = "", activity: str = "") -> Accepted:
        """Run a package again, or every failed or cancelled package of a job, or an activity that was stopped."""
        return self.operate(Restart(job=job, package=package, message=message, activity=activity))

    def reschedule(self, job: str, *, package: str, message: str = "") -> Accepted:
        """Give up the running attempts of a package, and try it again, at another site if there is one."""
        return self.operate(Reschedule(job=job, package=package, message=message))

    def replicate(self, job: str, *, package: str) -> Accepted:
        """Start one more attempt of a running package beside those it has."""
        return self.operate(Replicate(job=job, package=package))

    def drop(self, job: str, *, stage: int, line: int, force: bool = False, remove_files: bool = False) -> Accepted:
        """Leave a line out of a job, even if others have read its outputs (`force`), and remove its files on request."""
        return self.operate(Drop(job=job, stage=stage, line=line, force=force, remove_files=remove_files))

    def restore(self, job: str, *, stage: int, line: int) -> Accepted:
        """Take a dropped line back."""
        return self.operate(Restore(job=job, stage=stage, line=line))

    def operate(self, operation: AnyOperation) -> Accepted:
        """Carry out an operation, once; it is in the book when this returns. Raises `ServerRefused`."""
        with self._address.server() as server:
            return Jobs(server).operate(operation)

    def operate_on(
        self,
        operation: str,
        where: str,
        *,
        target: Literal["packages", "jobs"] = "packages",
        job: str = "",
        message: str = "",
    ) -> OperatedOn:
        """Carry out `kill`, `hold` … on everything that a query finds; `all` means everything."""
        wanted = OperationOn(operation=operation, where=where, target=target, job=job, message=message)
        with self._address.server() as server:
            return Jobs(server).operate_on(wanted)

    # Subscriptions.

    def subscribe(
        self,
        query: str = "",
        *,
        target: Literal["packages", "jobs"] = "packages",
        states: Sequence[str] = (),
        attributes: Sequence[str] = (),
        validity_seconds: float | None = None,
        transport: Literal["poll", "webhook", "mail"] = "poll",
        address: str = "",
        secret: str = "",
    ) -> Subscription:
        """Be notified of changes from now on; by default of every change of state of a package.

        With `poll`, iterate over the subscription; other notices go to `address`, webhooks signed with the `secret`.
        """
        wanted = {
            "query": query,
            "target": target,
            "states": tuple(states),
            "attributes": tuple(attributes),
            "validity_seconds": validity_seconds,
            "transport": transport,
            "address": address,
            "secret": secret,
        }
        with self._address.server() as server:
            answer = server.post(path_of("subscriptions"), wanted)
        state = msgspec.convert(answer["subscription"], SubscriptionState)
        return Subscription(self._address.server, state, secret=answer["secret"])

    def subscriptions(self) -> list[Subscription]:
        """Your subscriptions, oldest first."""
        with self._address.server() as server:
            answer = server.get(path_of("subscriptions"))
        found = msgspec.convert(answer["subscriptions"], list[SubscriptionState])
        return [Subscription(self._address.server, each) for each in found]
