"""A job carried from its source to its end at a terminal: the service, the signals, the drawing and the summary.

Ctrl-C once stops in good order; twice, at once. A terminal that goes away ends nothing but the drawing.
"""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from pilotage.cli.output import emit, say_to_reader
from pilotage.cli.words import plural
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.app import LoadedJob
    from pilotage.app.following import Following
    from pilotage.app.running import HowToRun, Source, Submitted
    from pilotage.app.session import Session
    from pilotage.model.progress import Progress


class HungUp(BaseException):
    """The terminal is gone."""


class Terminated(BaseException):
    """Somebody asked the process to end."""


@contextmanager
def signals_raised() -> Iterator[None]:
    """Hear of a hang-up and of a request to end as of Ctrl-C: as something that is raised."""

    def hung_up(_number: int, _frame: FrameType | None) -> None:
        raise HungUp

    def terminated(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = {signal.SIGHUP: signal.getsignal(signal.SIGHUP), signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    if before[signal.SIGHUP] != signal.SIG_IGN:  # under nohup it stays ignored
        signal.signal(signal.SIGHUP, hung_up)
    signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def carry_out(source: Source, how: HowToRun, *, before_load: Callable[[], None], detach: bool, as_json: bool) -> int:
    """Run a job from its source to its end; the exit code."""
    gc.enable()  # it may go on for days
    from pilotage.app.session import Session

    with signals_raised():
        session = Session(source.folder, slots=how.slots)
        try:
            before_load()
            brought = _brought(source, how, session)
        except (KeyboardInterrupt, Terminated, HungUp):
            session.give_up()
            say_to_reader("stopped before anything was run; the same command begins again")
            return ExitCode.STOPPED
        except BaseException:
            session.give_up()
            raise
        if not brought.answer.job:
            return _nothing_to_do(brought, as_json=as_json)
        return follow_job(
            brought.answer.job,
            session,
            begin=lambda: _say_beginning(brought, session, how),
            detach=detach,
            as_json=as_json,
        )


def _brought(source: Source, how: HowToRun, session: Session) -> Submitted:
    from pilotage.app.running import bring

    loaded = source.load()
    _count_warnings(loaded, source)
    with session.server() as server:
        return bring(source, loaded, server, how)


def _count_warnings(loaded: LoadedJob, source: Source) -> None:
    count = len(loaded.warnings)
    if count and source.document:
        seen = "1 warning; see it" if count == 1 else f"{count:,} warnings; see them"
        from pilotage.cli.options import command_with

        say_to_reader(f"{seen} with: {command_with('pilotage check', source.document)}")


def _say_beginning(brought: Submitted, session: Session, how: HowToRun) -> None:
    answer = brought.answer
    for job in answer.superseded:
        say_to_reader(f"{job} was not over, and is killed: its document has changed")
    told = f"{answer.job}: {plural(answer.packages, 'package')}"
    if answer.resumed:
        told += "; it was begun before, and goes on"
    elif answer.adopted:
        told += f", {answer.adopted:,} of them made by an earlier run"
    say_to_reader(told)
    if session.started and session.network:
        say_to_reader(
            f"warning: {session.state} is on {session.network}, a network file system: slower, and only as safe as its"
            " locks\n  keep the state on a local disk with: PILOTAGE_JOURNAL_URL=sqlite:DIR"
        )
    if session.was_there and how.slots is not None:
        say_to_reader("a service was here already: its own slots count, and not --slots")


def _nothing_to_do(brought: Submitted, *, as_json: bool) -> int:
    from pilotage.app.results import nothing_to_do

    progress = nothing_to_do(brought.name, packages=brought.answer.packages)
    if as_json:
        emit([_json(summary_object(progress, ExitCode.COMPLETE))])
    else:
        everything = "the package is" if progress.packages == 1 else f"all {progress.packages:,} packages are"
        emit([f"{brought.name}: nothing to do: {everything} there already (--fresh runs everything again)\n"])
    return ExitCode.COMPLETE


def follow_job(
    job: str, session: Session, *, as_json: bool, begin: Callable[[], None] | None = None, detach: bool = False
) -> int:
    """Show a job until it is over, or a signal comes, and do what that means; the exit code."""
    from pilotage.app.following import Following

    following = Following(session.server, job)
    try:
        session.go_on(job)
        if begin is not None:
            begin()
        if detach:
            return _detached(job, as_json=as_json)
        return watch_to_end(following, as_json=as_json)
    except (KeyboardInterrupt, Terminated):
        return _interrupted(job, session, following)
    except HungUp:
        return ExitCode.STOPPED  # nobody is there to be told; the job goes on
    finally:
        following.close()


def _detached(job: str, *, as_json: bool) -> int:
    say_to_reader(f"it goes on by itself; come back to it with: pilotage attach {job}")
    if as_json:
        emit([_json({"job": job})])
    return ExitCode.COMPLETE


def _interrupted(job: str, session: Session, following: Following) -> int:
    """Stop in good order what was started for this run; a second Ctrl-C ends this command at once."""
    try:
        if not session.is_embedded() or session.has_other_work(job):
            say_to_reader(
                f"\nthe service here runs other work, too, and goes on with {job}\n"
                f"  come back to it with: pilotage attach {job}\n  end it with: pilotage kill {job}"
            )
            return ExitCode.STOPPED
        say_to_reader("\nstopping; Ctrl-C again ends this at once")
        following.close()
        if session.stop(job):
            say_to_reader("stopped; the same command goes on where it was")
        else:
            say_to_reader(
                f"the service, or an agent, did not end; look for it with: pilotage doctor\n"
                f"  what is done is kept, and the same command goes on where it was; its log: {session.state}/service.log"
            )
    except (KeyboardInterrupt, Terminated):
        say_to_reader("interrupted")
        return ExitCode.INTERRUPTED
    return ExitCode.STOPPED


def watch_to_end(following: Following, *, as_json: bool) -> int:
    """Show a job until it is over, then say what came of it; the exit code."""
    from pilotage.app.following import exit_code_of
    from pilotage.cli.progress import Silent, shown_here

    shown = Silent() if as_json else shown_here()
    progress: Progress | None = None
    try:
        for progress in following.until_over():
            shown.show(progress, now=time.monotonic())
    finally:
        shown.close()
    assert progress is not None
    code = exit_code_of(progress)
    emit([_json(summary_object(progress, code))] if as_json else summary_lines(progress))
    return code


def summary_object(progress: Progress, code: int) -> dict[str, object]:
    """A job and what came of it, for other programs; every field is there, whatever its value."""
    import msgspec

    found: dict[str, object] = {
        name: msgspec.to_builtins(getattr(progress, name)) for name in progress.__struct_fields__
    }
    return {**found, "exit_code": int(code)}


def summary_lines(progress: Progress) -> Iterator[str]:
    """A job and what came of it, for people."""
    from pilotage.cli.cards import failure_lines
    from pilotage.cli.progress import counts_line
    from pilotage.cli.words import duration, one_line

    begun, ended = progress.submitted_at, progress.finished_at
    took = (
        f" after {duration(round(ended - begun, 1))}"
        if begun is not None and ended is not None and ended >= begun
        else ""
    )
    yield f"{one_line(progress.job)}: {progress.state}{took}: {counts_line(progress)}\n"
    yield from failure_lines(progress)
    if progress.stuck:
        yield f"nothing can move: {one_line(progress.stuck)}\n"
        if progress.next_step:
            yield f"  {one_line(progress.next_step)}\n"
    elif progress.failed or progress.cancelled:
        yield f"try what failed again with: pilotage retry --failed {one_line(progress.job)}\n"
        yield "  that takes programs and inputs as they were; if you have changed them since, run it anew instead\n"


def _json(value: object) -> str:
    from pilotage import app

    return app.json_text(value)
