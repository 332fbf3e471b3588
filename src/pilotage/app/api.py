"""Runs jobs from Python: `pilotage.run`, `arun`, `stream`, `submit`, `plan` and `clean`, with callbacks."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from pilotage.app.jobs.results import Output, Result, output_of
from pilotage.app.jobs.submit import RunSettings, Source, source_of, submit_to
from pilotage.app.jobs.watch import JobWatcher
from pilotage.app.service.session import Session
from pilotage.model.answers import Progress
from pilotage.model.jobs.run_options import RunKeywords, declared_options

if TYPE_CHECKING:
    from pilotage.language import LoadedJob
    from pilotage.language.builder import Job
    from pilotage.model.answers import ObsoleteFiles
    from pilotage.model.jobs.submission import RunPlan

OutputCallback = Callable[[Output], object]
Watched = Callable[[Progress], object]
Function = TypeVar("Function", bound=Callable[..., object])


def with_run_options(function: Function) -> Function:
    """Name each of the `**options` in the signature of a function, where notebooks and `help` look for keywords."""
    signature = inspect.signature(function)
    named = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    named += [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.kind.__name__
        )
        for each in declared_options()
    ]
    function.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
    return function


def plan(
    job: Job | LoadedJob | str | os.PathLike[str],
    *,
    folder: str | Path | None = None,
    parameters: Mapping[str, Any] | None = None,
    targets: str | Sequence[str] = (),
    slots: int | None = None,
    fresh: bool = False,
) -> RunPlan:
    """What a run would do, and what it would cost; runs and writes nothing."""
    from pilotage.app.preview import plan_run

    source = source_of(job, folder=folder, parameters=parameters, targets=targets)
    return plan_run(source, RunSettings(slots=slots, fresh=fresh))


@with_run_options
def submit(
    job: Job | LoadedJob | str | os.PathLike[str],
    *,
    folder: str | Path | None = None,
    parameters: Mapping[str, Any] | None = None,
    targets: str | Sequence[str] = (),
    slots: int | None = None,
    **options: Unpack[RunKeywords],
) -> Result:
    """Submit a job to run in the background and return at once; `Result.wait` waits for it."""
    how = RunSettings(slots=slots, **options)
    result, following = _submitted(
        source_of(job, folder=folder, parameters=parameters, targets=targets), how, stop=None
    )
    following.close()
    return result


@with_run_options
def run(
    job: Job | LoadedJob | str | os.PathLike[str],
    *,
    folder: str | Path | None = None,
    parameters: Mapping[str, Any] | None = None,
    targets: str | Sequence[str] = (),
    slots: int | None = None,
    on_finished: OutputCallback | None = None,
    on_failed: OutputCallback | None = None,
    on_progress: Watched | None = None,
    **options: Unpack[RunKeywords],
) -> Result:
    """Run a job here and wait for its end.

    `job` is the path of a document, or a job built in Python whose files are in `folder`. Only packages that the files
    `targets` need are run; none: all. `on_finished` and `on_failed` are called with the `Output` of each package as it
    ends, `on_progress` with the progress of the job. The options are those of `pilotage run`, whose `--help` explains
    them. Raises `DocumentError` for faults of the document; failed packages raise nothing: see `Result.ok`.
    """
    how = RunSettings(slots=slots, **options)
    return _run(
        source_of(job, folder=folder, parameters=parameters, targets=targets),
        how,
        Callbacks(on_finished, on_failed, on_progress),
        stop=None,
    )


@with_run_options
async def arun(
    job: Job | LoadedJob | str | os.PathLike[str],
    *,
    folder: str | Path | None = None,
    parameters: Mapping[str, Any] | None = None,
    targets: str | Sequence[str] = (),
    slots: int | None = None,
    on_finished: OutputCallback | None = None,
    on_failed: OutputCallback | None = None,
    on_progress: Watched | None = None,
    **options: Unpack[RunKeywords],
) -> Result:
    """Run a job as `run` does, as a coroutine; if cancelled, it stops waiting, and the job continues.

    The callbacks are called in another thread.
    """
    stop = threading.Event()
    how = RunSettings(slots=slots, **options)
    calls = Callbacks(on_finished, on_failed, on_progress)
    try:
        return await asyncio.to_thread(
            lambda: _run(source_of(job, folder=folder, parameters=parameters, targets=targets), how, calls, stop=stop)
        )
    except asyncio.CancelledError:
        stop.set()
        raise


@with_run_options
def stream(
    job: Job | LoadedJob | str | os.PathLike[str],
    *,
    folder: str | Path | None = None,
    parameters: Mapping[str, Any] | None = None,
    targets: str | Sequence[str] = (),
    slots: int | None = None,
    **options: Unpack[RunKeywords],
) -> Iterator[Output]:
    """Run a job, and yield the `Output` of each package as it ends; those of earlier runs come first."""
    how = RunSettings(slots=slots, **options)
    _, following = _submitted(source_of(job, folder=folder, parameters=parameters, targets=targets), how, stop=None)
    try:
        for package in following.packages():
            yield output_of(following, package)
    finally:
        following.close()


def obsolete_files(
    job: Job | LoadedJob | str | os.PathLike[str],
    *,
    folder: str | Path | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> ObsoleteFiles:
    """The files of earlier runs that a job no longer makes, and which of them must stay; removes nothing."""
    from pilotage.app import clean as cleaning

    return cleaning.obsolete_files(source_of(job, folder=folder, parameters=parameters))


def clean(
    job: Job | LoadedJob | str | os.PathLike[str],
    *,
    folder: str | Path | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> ObsoleteFiles:
    """Remove what `obsolete_files` finds, if unchanged; returns the outcome."""
    from pilotage.app import clean as cleaning

    source = source_of(job, folder=folder, parameters=parameters)
    return cleaning.remove_obsolete(source, cleaning.obsolete_files(source))


class Callbacks:
    """The callbacks for a running job; GASW's notification."""

    def __init__(
        self, finished: OutputCallback | None, failed: OutputCallback | None, progress: Watched | None
    ) -> None:
        """Take the callbacks, or None."""
        self._finished = finished
        self._failed = failed
        self._progress = progress

    @property
    def want_packages(self) -> bool:
        """Whether any callback is for single packages."""
        return self._finished is not None or self._failed is not None

    def tell(self, output: Output) -> None:
        """Report a package that ended."""
        wanted = self._finished if output.ok else self._failed
        if wanted is not None:
            wanted(output)

    def look(self, progress: Progress) -> None:
        """Report the progress of the job."""
        if self._progress is not None:
            self._progress(progress)


def _submitted(source: Source, how: RunSettings, *, stop: threading.Event | None) -> tuple[Result, JobWatcher]:
    session = Session(source.folder, slots=how.slots)
    try:
        loaded = source.load()
        brought = submit_to(session.server, source, loaded, how)
    except BaseException:
        session.give_up()
        raise
    following = JobWatcher(session.server, brought.answer.job, stop=stop)
    return Result(following, following.progress(), folder=source.folder), following


def _run(source: Source, how: RunSettings, calls: Callbacks, *, stop: threading.Event | None) -> Result:
    result, following = _submitted(source, how, stop=stop)
    reported: set[str] = set()
    try:
        with _shown_in_notebook(result) as shown:
            for progress in following.until_over():
                result.progress = progress
                calls.look(progress)
                shown()
                if calls.want_packages:
                    _tell_new(following, calls, reported)
    finally:
        following.close()
    return result


def _tell_new(following: JobWatcher, calls: Callbacks, reported: set[str]) -> None:
    for package in following.finished():
        if package not in reported:
            reported.add(package)
            calls.tell(output_of(following, package))


@contextmanager
def _shown_in_notebook(result: Result) -> Iterator[Callable[[], None]]:
    """Show a result if this is a notebook, and yield a function that draws it again; elsewhere nothing is shown."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    handle: Any = None
    if type(shell).__name__ == "ZMQInteractiveShell":
        handle = import_module("IPython.display").display(result, display_id=True)

    def draw() -> None:
        if handle is not None:
            handle.update(result)

    try:
        yield draw
    finally:
        draw()
