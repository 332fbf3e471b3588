"""Runs a job at a terminal: starts the service, submits, shows progress, handles signals, prints the summary.

The first Ctrl-C stops the job cleanly, the second at once. If the terminal is closed, the job keeps running.
"""

from __future__ import annotations

import functools
import gc
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.shared.output import emit, one_line, plural, print_message
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
"""The command that continues a stopped job: with `--fresh` it would start from the beginning."""


class HungUp(BaseException):
    """The terminal was closed (SIGHUP)."""


class Terminated(BaseException):
    """The process was asked to end (SIGTERM)."""


@contextmanager
def signals_raised() -> Iterator[None]:
    """Raise SIGHUP and SIGTERM as exceptions, as Python does for Ctrl-C."""

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
"""Called when a job has ended, before its summary is printed."""
Summarize = Callable[["Progress", int], None]
"""Prints the summary of a job that has ended with an exit code."""


def run_job(
    source: Source,
    how: RunSettings,
    *,
    before_load: Callable[[], None],
    detach: bool,
    as_json: bool,
    at_end: AtEnd | None = None,
    summarize: Summarize | None = None,
) -> int:
    """Run a job to its end and return the exit code; `summarize` prints another summary than the usual one."""
    from pilotage.app.jobs.submit import submit_to
    from pilotage.app.service.session import Session

    with signals_raised():
        session, sent = Session(source.folder, slots=how.slots, sites=how.sites), False
        try:
            session.join()
            before_load()
            loaded = _loaded(source)
            session.server().close()  # from here on the job may have been submitted
            sent = True
            brought = submit_to(session.server, source, loaded, how)
        except (KeyboardInterrupt, Terminated, HungUp):
            session.give_up()
            if sent:
                print_message("stopped during the submission: the job may be running; see: pilotage status")
            else:
                print_message("stopped before anything ran; the same command starts it again")
            if as_json:
                _emit_stopped(ExitCode.STOPPED)
            return ExitCode.STOPPED
        except BaseException:  # whatever ends this run, a service started for it must not be left behind
            session.give_up()
            raise
        if not brought.answer.job:
            return _nothing_to_do(brought, as_json=as_json)
        return follow_job(
            brought.answer.job,
            session,
            begin=lambda: _print_start(brought, session, how),
            detach=detach,
            as_json=as_json,
            again=WITHOUT_FRESH if how.fresh else AGAIN,
            at_end=at_end,
            summarize=summarize,
        )


def _loaded(source: Source) -> LoadedJob:
    from pilotage.cli.shared.options import say_warnings

    loaded = source.load()
    if source.document:
        say_warnings(loaded, source.document)
    return loaded


def _print_start(brought: Submitted, session: Session, how: RunSettings) -> None:
    from pilotage.model.jobs.submission import CHANGED

    answer = brought.answer
    for job in answer.superseded:
        if how.fresh:
            print_message(
                f"{job} had not ended and is killed: --fresh runs everything again\n"
                f"  to continue {job} instead: pilotage kill {answer.job}, then pilotage retry --failed {job}\n"
                "  to run only what is missing: the same command without --fresh"
            )
        elif answer.in_the_way:
            print_message(f"{job} had not ended and is killed: another job replaces files that pilotage did not make")
        else:
            again = answer.run_again.get(job) or "otherwise"
            why = "its document has changed" if again == CHANGED else f"its document runs again {again}"
            print_message(f"{job} had not ended and is killed: {why}")
    line = f"{answer.job}: {plural(answer.packages, 'package')}"
    if answer.resumed:
        line += "; it was started before and continues"
        for option in declared_options():
            if option.name not in _EFFECTIVE_LATER and getattr(how, option.name):
                line += f" as it was started, with or without --{option.name.replace('_', '-')}"
    elif answer.adopted:
        line += f", {answer.adopted:,} of them made by an earlier run"
    if answer.remade:
        line += f"; {plural(answer.remade, 'package')} of it run again, since their outputs are gone"
    print_message(line)
    if answer.in_the_way:
        name = one_line(answer.in_the_way[0])
        others = f", and {len(answer.in_the_way) - 1:,} others" if len(answer.in_the_way) > 1 else ""
        print_message(f"the existing {name}{others} will be kept as {name}.~1~, unless the new file is equal")
    if session.started and session.network:
        print_message(
            f"warning: {session.state} is on {session.network}, a network file system: slower, and only as safe as its"
            " locks\n  keep the state on a local disk with: PILOTAGE_JOURNAL_URL=sqlite:DIR"
        )
    ignored = [word for word, given in (("slots", how.slots is not None), ("sites", how.sites)) if given]
    if session.was_there and ignored:
        words = " and ".join(ignored)
        print_message(f"a service was running already: its own {words} apply, not --{' and --'.join(ignored)}")


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
    summarize: Summarize | None = None,
) -> int:
    """Show a job until it ends or a signal comes, and return the exit code; `again` is the command that continues it."""
    try:  # from the first line on: the job is submitted, and a signal may come while the watcher is imported
        from pilotage.app.jobs.watch import JobWatcher

        gc.enable()  # this may run for days; the frozen imports are never collected
        with closing(JobWatcher(session.server, job)) as following:
            session.follow(job)
            if begin is not None:
                begin()
            if detach:
                return _detached(job, as_json=as_json)
            return watch_to_end(following, as_json=as_json, at_end=at_end, summarize=summarize)
    except (KeyboardInterrupt, Terminated):
        return _interrupted(job, session, again=again, as_json=as_json)
    except HungUp:
        return ExitCode.STOPPED  # there is no terminal for a message; the job keeps running


def _detached(job: str, *, as_json: bool) -> int:
    print_message(f"it keeps running; return to it with: pilotage attach {job}")
    if as_json:
        emit([_json({"job": job})])
    return ExitCode.COMPLETE


def _interrupted(job: str, session: Session, *, again: str, as_json: bool) -> int:
    """Stop cleanly what was started for this run; a second Ctrl-C ends this command at once."""
    code = _stopped(job, session, again=again)
    if as_json:
        _emit_stopped(code, job, again=again)
    return code


def _emit_stopped(code: int, job: str = "", *, again: str = AGAIN) -> None:
    """Print the error object of a run that was stopped."""
    from pilotage.cli.shared.errors import emit_error, error_object

    word = "interrupted" if code == ExitCode.INTERRUPTED else "stopped"
    emit_error(error_object(word, f"{word} before the job had ended", f"{again} continues it"), job=job)


def _still_running_elsewhere(session: Session, job: str) -> str:
    """A line about attempts that keep running elsewhere; empty if there are none, or the service does not answer."""
    from pilotage.app.jobs.watch import goes_on_elsewhere
    from pilotage.app.service.session import STOP_SECONDS
    from pilotage.model.errors import PilotageError

    try:
        with session.server(answer_seconds=STOP_SECONDS) as server:
            notice = goes_on_elsewhere(server, job)
    except PilotageError:
        return ""
    return f"\n  {notice}" if notice else ""


def _stopped(job: str, session: Session, *, again: str) -> int:
    try:
        followed = session.is_followed_elsewhere(job)
        if followed or not session.is_embedded():
            why = "another terminal shows it, too" if followed else "the service here was not started for a run"
            print_message(
                f"\n{why}: {job} keeps running\n"
                f"  return to it with: pilotage attach {job}\n  end it with: pilotage kill {job}"
            )
            return ExitCode.STOPPED
        print_message("\nstopping; Ctrl-C again exits at once")
        session.hold(job)
        shared = session.is_shared(job)
        elsewhere = "" if shared else _still_running_elsewhere(session, job)
        if shared and session.end_attempts(job):
            print_message(
                f"stopped; {again} continues where it stopped\n  the service keeps running: it has other jobs"
            )
        elif not shared and session.stop():
            print_message(f"stopped; {again} continues where it stopped{elsewhere}")
        else:
            print_message(
                f"the service or an agent did not stop; find it with: pilotage doctor\n"
                f"  finished packages are kept, and {again} continues where it stopped; its log: {session.state}/service.log"
            )
    except (KeyboardInterrupt, Terminated):
        print_message("interrupted")
        return ExitCode.INTERRUPTED
    return ExitCode.STOPPED


def watch_to_end(
    following: JobWatcher, *, as_json: bool, at_end: AtEnd | None = None, summarize: Summarize | None = None
) -> int:
    """Show a job until it ends, print its summary, and return the exit code."""
    from pilotage.app.jobs.watch import exit_code_of
    from pilotage.cli.shared.progress import TroubleOnly, choose_display

    display = TroubleOnly() if as_json else choose_display()
    progress: Progress | None = None
    try:
        for progress in following.until_over():
            display.show(progress, now=time.monotonic())
    finally:
        display.close()
    assert progress is not None
    code = exit_code_of(progress)
    if at_end is not None:
        at_end(following)
    if summarize is not None:
        summarize(progress, code)
    elif as_json:
        emit([_json(summary_object(progress, code))])
    else:
        killed_for = following.killed_for() if progress.state == "CANCELLED" else ""
        emit(summary_lines(progress, killed_for=killed_for))
    return code


def summary_object(progress: Progress, code: int) -> dict[str, object]:
    """The summary of a job as a JSON object, with all fields."""
    import msgspec

    found: dict[str, object] = {
        name: msgspec.to_builtins(getattr(progress, name)) for name in progress.__struct_fields__
    }
    return {**found, "exit_code": int(code)}


def summary_lines(progress: Progress, *, killed_for: str = "") -> Iterator[str]:
    """The summary of a job as lines of text; `killed_for` is the message of the kill."""
    from pilotage.cli.shared.output import duration, one_line
    from pilotage.cli.shared.progress import counts_line, failure_lines, stale_lines, undeclared_lines, unmade_lines
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
    yield from stale_lines(progress)
    yield from undeclared_lines(progress)
    if killed_for.startswith(SUPERSEDED):
        return  # the job that replaced it makes its outputs
    if progress.stuck:
        yield f"nothing can move: {one_line(progress.stuck)}\n"
        if progress.next_step:
            yield f"  {one_line(progress.next_step)}\n"
    elif progress.failed or progress.cancelled:
        yield f"retry the failed packages with: pilotage retry --failed {one_line(progress.job)}\n"
        yield "  this uses the programs and inputs as submitted; if you have changed them, run the document again instead\n"


def _json(value: object) -> str:
    from pilotage import app

    return app.json_text(value)


# The options of the commands that run a job. Those of the job itself are declared in `model.jobs.run_options`.
#
# Each option has the name of the field of `RunSettings` that it sets. Commands get all of them as one argument, `how`.

Command = Callable[..., Any]
Option = Callable[[Command], Command]

_SERVICE_OPTIONS: dict[str, Option] = {
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
_ANNOTATIONS: dict[str, Option] = {
    "annotate": click.option(
        "--annotate",
        multiple=True,
        metavar="NAME=VALUE",
        help="Keep a name and a value with the job, as a tag; NAME=@FILE keeps the content of a file. May be repeated.",
    )
}
_EFFECTIVE_LATER = ("fresh", "replace")
"""The options that also affect a job that continues; for the others, those of its start count."""


def _option_of(option: RunOption) -> Option:
    """A declared option of the job as an option of click: a flag, or a number from 1 on."""
    word = f"--{option.name.replace('_', '-')}"
    if option.kind is bool:
        return click.option(word, is_flag=True, help=option.description)
    return click.option(word, type=click.IntRange(min=1), metavar="N", help=option.description)


_JOB_OPTIONS = {option.name: _option_of(option) for option in declared_options()} | _FAIL_FAST | _ANNOTATIONS


def job_options(command: Command) -> Command:
    """Add the options of the job; the command receives them as `how`."""
    return _collected(_JOB_OPTIONS, command)


def run_options(command: Command) -> Command:
    """Add the options of the job and of the service that is started for it; the command receives them as `how`."""
    return _collected(_SERVICE_OPTIONS | _JOB_OPTIONS, command)


def end_options(command: Command) -> Command:
    """`--detach` and `--json`."""
    detach = click.option(
        "--detach", is_flag=True, help="Return when the job has started; `pilotage attach` shows it again."
    )
    as_json = click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object at the end, for other programs."
    )
    return detach(as_json(command))


def _collected(options: dict[str, Option], command: Command) -> Command:
    @functools.wraps(command)
    def with_how(*words: Any, **more: Any) -> Any:
        values = {name: more.pop(name) for name in options}
        return command(*words, how=_how(**values), **more)

    decorated: Command = with_how
    for option in reversed(options.values()):
        decorated = option(decorated)
    return decorated


def _how(*, fail_fast: bool, annotate: Sequence[str], sites: str | None = None, **values: Any) -> RunSettings:
    from pathlib import Path

    from pilotage.app.jobs.submit import RunSettings, annotations_of

    if annotate:
        values["annotations"] = annotations_of(annotate)

    if fail_fast:
        values["max_failures"] = 1
    if sites:  # relative to the current folder; the service runs in the folder of the document
        values["sites"] = str(Path(sites).expanduser().absolute())
    return RunSettings(only_if_needed=True, **{name: value for name, value in values.items() if value is not None})
