"""A job carried from its source to its end at a terminal: the service, the signals, the drawing and the summary.

Ctrl-C once stops in good order; twice, at once. A terminal that goes away ends nothing but the drawing.
"""

from __future__ import annotations

import functools
import gc
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.shared.output import emit, one_line, plural, say_to_reader
from pilotage.model.exit_codes import ExitCode
from pilotage.model.jobs.run_options import declared_options

if TYPE_CHECKING:
    from pilotage.app import LoadedJob
    from pilotage.app.jobs.submit import RunSettings, Source, Submitted
    from pilotage.app.jobs.watch import JobWatcher
    from pilotage.app.service.session import Session
    from pilotage.model.answers import Progress
    from pilotage.model.jobs.run_options import RunOption

AGAIN, WITHOUT_FRESH = "the same command", "the same command without --fresh"
"""What goes on with a job that was stopped: `--fresh` would start everything anew."""


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


AtEnd = Callable[["JobWatcher"], None]
"""What is done for a job that is over, before its summary is told."""


def carry_out(
    source: Source,
    how: RunSettings,
    *,
    before_load: Callable[[], None],
    detach: bool,
    as_json: bool,
    at_end: AtEnd | None = None,
) -> int:
    """Run a job from its source to its end; the exit code."""
    from pilotage.app.jobs.submit import submit_to
    from pilotage.app.service.session import Session

    with signals_raised():
        session, sent = Session(source.folder, slots=how.slots, sites=how.sites), False
        try:
            session.join()
            before_load()
            loaded = _loaded(source)
            session.server().close()  # from here on it may have been sent
            sent = True
            brought = submit_to(session.server, source, loaded, how)
        except (KeyboardInterrupt, Terminated, HungUp):
            session.give_up()
            if sent:
                say_to_reader("stopped while the job was submitted: it may have begun, and go on; see: pilotage status")
            else:
                say_to_reader("stopped before anything was run; the same command begins again")
            if as_json:
                _emit_stopped(ExitCode.STOPPED)
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
            again=WITHOUT_FRESH if how.fresh else AGAIN,
            at_end=at_end,
        )


def _loaded(source: Source) -> LoadedJob:
    from pilotage.cli.shared.options import say_warnings

    loaded = source.load()
    if source.document:
        say_warnings(loaded, source.document)
    return loaded


def _say_beginning(brought: Submitted, session: Session, how: RunSettings) -> None:
    from pilotage.model.jobs.submission import CHANGED

    answer = brought.answer
    for job in answer.superseded:
        if how.fresh:
            say_to_reader(
                f"{job} was not over, and is killed: --fresh starts everything anew\n"
                f"  to go on with {job} instead: pilotage kill {answer.job}, then pilotage retry --failed {job}\n"
                "  to run only what is missing: the same command without --fresh"
            )
        elif answer.in_the_way:
            say_to_reader(f"{job} was not over, and is killed: what is not ours is replaced by another job")
        else:
            again = answer.run_again.get(job) or "otherwise"
            why = "its document has changed" if again == CHANGED else f"its document is run again {again}"
            say_to_reader(f"{job} was not over, and is killed: {why}")
    told = f"{answer.job}: {plural(answer.packages, 'package')}"
    if answer.resumed:
        told += "; it was begun before, and goes on"
        for option in declared_options():
            if option.name not in _ACTED_ON and getattr(how, option.name):
                told += f" as it was begun, with or without --{option.name.replace('_', '-')}"
    elif answer.adopted:
        told += f", {answer.adopted:,} of them made by an earlier run"
    if answer.remade:
        told += f"; {plural(answer.remade, 'package')} of it run again, since what they made is gone"
    say_to_reader(told)
    if answer.in_the_way:
        name = one_line(answer.in_the_way[0])
        others = f", and of {len(answer.in_the_way) - 1:,} others" if len(answer.in_the_way) > 1 else ""
        say_to_reader(f"what is there of {name}{others} is kept beside it, as {name}.~1~, unless the new one is equal")
    if session.started and session.network:
        say_to_reader(
            f"warning: {session.state} is on {session.network}, a network file system: slower, and only as safe as its"
            " locks\n  keep the state on a local disk with: PILOTAGE_JOURNAL_URL=sqlite:DIR"
        )
    said = [word for word, given in (("slots", how.slots is not None), ("sites", how.sites)) if given]
    if session.was_there and said:
        words = " and ".join(said)
        say_to_reader(f"a service was here already: its own {words} count, and not --{' and --'.join(said)}")


def _nothing_to_do(brought: Submitted, *, as_json: bool) -> int:
    from pilotage.app.jobs.results import nothing_to_do

    progress = nothing_to_do(brought.name, packages=brought.answer.packages)
    if as_json:
        emit([_json(summary_object(progress, ExitCode.COMPLETE))])
    else:
        everything = "the package is" if progress.packages == 1 else f"all {progress.packages:,} packages are"
        emit([f"{brought.name}: nothing to do: {everything} there already (--fresh runs everything again)\n"])
    return ExitCode.COMPLETE


def follow_job(
    job: str,
    session: Session,
    *,
    as_json: bool,
    begin: Callable[[], None] | None = None,
    detach: bool = False,
    again: str = AGAIN,
    at_end: AtEnd | None = None,
) -> int:
    """Show a job until it is over, or a signal comes, and do what that means; the exit code. `again` is what goes on."""
    from pilotage.app.jobs.watch import JobWatcher

    gc.enable()  # it may go on for days, and what was imported before is here to stay
    following = JobWatcher(session.server, job)
    try:
        session.follow(job)
        if begin is not None:
            begin()
        if detach:
            return _detached(job, as_json=as_json)
        return watch_to_end(following, as_json=as_json, at_end=at_end)
    except (KeyboardInterrupt, Terminated):
        return _interrupted(job, session, following, again=again, as_json=as_json)
    except HungUp:
        return ExitCode.STOPPED  # nobody is there to be told; the job goes on
    finally:
        following.close()


def _detached(job: str, *, as_json: bool) -> int:
    say_to_reader(f"it goes on by itself; come back to it with: pilotage attach {job}")
    if as_json:
        emit([_json({"job": job})])
    return ExitCode.COMPLETE


def _interrupted(job: str, session: Session, following: JobWatcher, *, again: str, as_json: bool) -> int:
    """Stop in good order what was started for this run; a second Ctrl-C ends this command at once."""
    code = _stopped(job, session, following, again=again)
    if as_json:
        _emit_stopped(code, job, again=again)
    return code


def _emit_stopped(code: int, job: str = "", *, again: str = AGAIN) -> None:
    """Say to programs that there is no result."""
    from pilotage.cli.shared.errors import emit_error, error_object

    word = "interrupted" if code == ExitCode.INTERRUPTED else "stopped"
    emit_error(error_object(word, f"{word} before the job was over", f"{again} goes on"), job=job)


def _elsewhere(session: Session, job: str) -> str:
    """A line about what stopping does not end; none where all of it does, or nobody answers."""
    from pilotage.app.jobs.watch import goes_on_elsewhere
    from pilotage.app.service.session import STOP_SECONDS
    from pilotage.model.errors import PilotageError

    try:
        with session.server(answer_seconds=STOP_SECONDS) as server:
            told = goes_on_elsewhere(server, job)
    except PilotageError:
        return ""
    return f"\n  {told}" if told else ""


def _stopped(job: str, session: Session, following: JobWatcher, *, again: str) -> int:
    try:
        followed = session.is_followed_elsewhere(job)
        if followed or not session.is_embedded():
            why = "another terminal shows it, too" if followed else "the service here was not started for a run"
            say_to_reader(
                f"\n{why}: {job} goes on\n"
                f"  come back to it with: pilotage attach {job}\n  end it with: pilotage kill {job}"
            )
            return ExitCode.STOPPED
        say_to_reader("\nstopping; Ctrl-C again ends this at once")
        following.close()
        session.hold(job)
        shared = session.is_shared(job)
        elsewhere = "" if shared else _elsewhere(session, job)
        if shared and session.end_attempts(job):
            say_to_reader(f"stopped; {again} goes on where it was\n  the service stays: it has other work")
        elif not shared and session.stop():
            say_to_reader(f"stopped; {again} goes on where it was{elsewhere}")
        else:
            say_to_reader(
                f"the service, or an agent, did not end; look for it with: pilotage doctor\n"
                f"  what is done is kept, and {again} goes on where it was; its log: {session.state}/service.log"
            )
    except (KeyboardInterrupt, Terminated):
        say_to_reader("interrupted")
        return ExitCode.INTERRUPTED
    return ExitCode.STOPPED


def watch_to_end(following: JobWatcher, *, as_json: bool, at_end: AtEnd | None = None) -> int:
    """Show a job until it is over, then say what came of it; the exit code."""
    from pilotage.app.jobs.watch import exit_code_of
    from pilotage.cli.shared.progress import Silent, shown_here

    shown = Silent() if as_json else shown_here()
    progress: Progress | None = None
    try:
        for progress in following.until_over():
            shown.show(progress, now=time.monotonic())
    finally:
        shown.close()
    assert progress is not None
    code = exit_code_of(progress)
    if at_end is not None:
        at_end(following)
    if as_json:
        emit([_json(summary_object(progress, code))])
    else:
        killed_for = following.killed_for() if progress.state == "CANCELLED" else ""
        emit(summary_lines(progress, killed_for=killed_for))
    return code


def summary_object(progress: Progress, code: int) -> dict[str, object]:
    """A job and what came of it, for other programs; every field is there, whatever its value."""
    import msgspec

    found: dict[str, object] = {
        name: msgspec.to_builtins(getattr(progress, name)) for name in progress.__struct_fields__
    }
    return {**found, "exit_code": int(code)}


def summary_lines(progress: Progress, *, killed_for: str = "") -> Iterator[str]:
    """A job and what came of it, for people; `killed_for` was said when it was killed."""
    from pilotage.cli.shared.output import duration, one_line
    from pilotage.cli.shared.progress import counts_line, failure_lines, undeclared_lines, unmade_lines
    from pilotage.model.jobs.submission import SUPERSEDED

    begun, ended = progress.submitted_at, progress.finished_at
    took = (
        f" after {duration(round(ended - begun, 1))}"
        if begun is not None and ended is not None and ended >= begun
        else ""
    )
    lost = progress.failed or progress.given_up
    state = "DONE with failures" if progress.state == "DONE" and lost else progress.state
    state = "DONE without all targets" if state == "DONE" and progress.unmade else state
    yield f"{one_line(progress.job)}: {state}{took}: {counts_line(progress)}\n"
    if killed_for:
        yield f"killed: {one_line(killed_for)}\n"
    if progress.given_up:
        yield f"given up: {one_line(progress.given_up)}\n"
    yield from failure_lines(progress)
    yield from unmade_lines(progress)
    yield from undeclared_lines(progress)
    if killed_for.startswith(SUPERSEDED):
        return  # what took its place makes what it would have made
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


# How a job is run, as options of the commands that run one: those of the job are declared in `model.jobs.run_options`.
#
# An option has the name of the field of `RunSettings` that it sets. Commands get all of them as one argument, `how`.

Command = Callable[..., Any]
Option = Callable[[Command], Command]

_OF_THE_SERVICE: dict[str, Option] = {
    "slots": click.option(
        "--slots",
        type=click.IntRange(0, 100_000),
        metavar="N",
        help="Run N packages at once here; without it one for each core, with 0 only at other sites.",
    ),
    "sites": click.option(
        "--sites", metavar="FILE", help="Read the sites from FILE; without it sites.yaml here, or in your settings."
    ),
}
_FAIL_FAST: dict[str, Option] = {
    "fail_fast": click.option("--fail-fast", is_flag=True, help="The same as --max-failures 1.")
}
_ACTED_ON = ("fresh", "replace")
"""The options that act on a job that goes on, too; the others hold as it was begun."""


def _option_of(option: RunOption) -> Option:
    """An option of the job on the command line: a flag, or a number from 1 on."""
    word = f"--{option.name.replace('_', '-')}"
    if option.kind is bool:
        return click.option(word, is_flag=True, help=option.description)
    return click.option(word, type=click.IntRange(min=1), metavar="N", help=option.description)


_OF_THE_JOB = {option.name: _option_of(option) for option in declared_options()} | _FAIL_FAST


def job_options(command: Command) -> Command:
    """What can be said of a job that any service runs; the command is given it as `how`."""
    return _collected(_OF_THE_JOB, command)


def run_options(command: Command) -> Command:
    """The same, and what can be said of the service that is started for it; the command is given it as `how`."""
    return _collected(_OF_THE_SERVICE | _OF_THE_JOB, command)


def end_options(command: Command) -> Command:
    """`--detach` and `--json`: what the end of a run is for who began it."""
    detach = click.option(
        "--detach", is_flag=True, help="End when the job has begun; `pilotage attach` comes back to it."
    )
    as_json = click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object at the end, for other programs."
    )
    return detach(as_json(command))


def _collected(options: dict[str, Option], command: Command) -> Command:
    @functools.wraps(command)
    def with_how(*words: Any, **more: Any) -> Any:
        said = {name: more.pop(name) for name in options}
        return command(*words, how=_how(**said), **more)

    decorated: Command = with_how
    for option in reversed(options.values()):
        decorated = option(decorated)
    return decorated


def _how(*, fail_fast: bool, sites: str | None = None, **said: Any) -> RunSettings:
    from pathlib import Path

    from pilotage.app.jobs.submit import RunSettings

    if fail_fast:
        said["max_failures"] = 1
    if sites:  # the service runs in the folder of the document, and the word is meant for the current one
        said["sites"] = str(Path(sites).expanduser().absolute())
    return RunSettings(only_if_needed=True, **{name: value for name, value in said.items() if value is not None})
