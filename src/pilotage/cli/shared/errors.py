"""From errors to texts and exit codes: 0 complete, 1 packages failed, 2 bad input, 3 stopped, 130 interrupted.

People read an error beside the output. Where a command was asked for `--json`, programs find it on standard output, too, in
the same form as the service answers it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.shared.output import emit, finish, reason, say_to_reader
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.model.errors import PilotageError

_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")

ErrorObject = dict[str, Any]


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for an answer that programs read; behind `--` there are no options."""
    said = words[: words.index("--")] if "--" in words else words
    return "--json" in said


def exit_code_of(run: Callable[[], object], *, as_json: bool = False) -> int:
    """Run something, show what goes wrong with it, and answer the exit code of the process."""
    try:
        code, error = _guarded(run)
    except KeyboardInterrupt:
        say_to_reader("interrupted")
        code, error = ExitCode.INTERRUPTED, error_object("interrupted", "interrupted")
    if error is not None and as_json:
        emit_error(error)
    return finish() or code


def error_object(code: str, message: str, hint: str = "", **more: object) -> ErrorObject:
    """An error for programs: a word for what it is, a sentence, and what to do next."""
    # A word of the command line may have bytes that are no text.
    plain = (text.encode("utf-8", "backslashreplace").decode() for text in (message, hint))
    return {"code": code, **dict(zip(("message", "hint"), plain, strict=True)), **more}


def emit_error(error: ErrorObject, **beside: object) -> None:
    """Print an error as the one object of a command, with what else is known."""
    from pilotage import app

    emit([app.json_text({**beside, "error": error})])


def _guarded(run: Callable[[], object]) -> tuple[int, ErrorObject | None]:
    try:
        result = run()
    except click.exceptions.Exit as end:
        return end.exit_code, None
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as fault:
        said = io.StringIO()
        fault.show(said)
        say_to_reader(said.getvalue().rstrip("\n"))
        return ExitCode.BAD_INPUT, error_object("usage", fault.format_message(), _help_of(fault))
    except MemoryError:
        told = "there is not enough memory for this"
        say_to_reader(f"error: {told}")
        return ExitCode.BAD_INPUT, error_object("no_memory", told)
    except OSError as error:
        # The system, not the program: a folder that is gone, a disk that cannot be read.
        told = (f"{error.filename}: " if error.filename else "") + reason(error)
        say_to_reader(f"error: {told}")
        return ExitCode.BAD_INPUT, error_object("system", told)
    except Exception as error:  # noqa: BLE001 # what is not ours is raised again
        return show(error)
    return (result if isinstance(result, int) else 0), None


def _help_of(fault: click.ClickException) -> str:
    context = fault.ctx if isinstance(fault, click.UsageError) else None
    return f"see: {context.command_path} --help" if context is not None else ""


def show(error: Exception) -> tuple[int, ErrorObject]:
    """Show an error of ours; any other is a fault of the program and goes on as it is."""
    # Only now: a command that succeeds need not know what can go wrong.
    from pilotage.cli.shared.problems import show_problems
    from pilotage.model.errors import DocumentError, PilotageError

    if isinstance(error, DocumentError):
        import msgspec

        show_problems(error.problems, severity="error")
        if len(error.problems) > 1:
            say_to_reader(error.what)
        problems = [msgspec.to_builtins(each) for each in error.problems]
        return error.exit_code, error_object("bad_document", error.what, problems=problems)
    if isinstance(error, PilotageError):
        say_to_reader(f"error: {error}")
        return error.exit_code, told_object(error)
    # The agent runs where pilotage is not installed, so its errors are no PilotageErrors; they speak the same words.
    from pilotage.client.errors import AgentError

    if isinstance(error, AgentError):
        say_to_reader(f"error: {error}")
        return ExitCode.STOPPED if error.retryable else ExitCode.BAD_INPUT, told_object(error)
    raise error


def told_object(error: PilotageError | Any) -> ErrorObject:
    """An error of ours for programs, under the word that the server had for it, or its own name."""
    message = f"{error.subject}: {error.what}" if error.subject else error.what
    message += f"; expected {error.expected}" if error.expected else ""
    message += f", got {error.got}" if error.got else ""
    code = getattr(error, "code", "") or _CAPITAL.sub("_", type(error).__name__).lower()
    return error_object(code, message, error.next_step)
