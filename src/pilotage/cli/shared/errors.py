"""Turns errors into messages and exit codes: 0 complete, 1 packages failed, 2 bad input, 3 stopped, 130 interrupted.

The message goes to standard error. With `--json`, the error is also printed to standard output, as the JSON object that
the service would answer.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.shared.output import emit, finish, print_message, reason
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.model.errors import PilotageError

_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")

ErrorObject = dict[str, Any]


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line has the option `--json`, before any `--`."""
    options = words[: words.index("--")] if "--" in words else words
    return "--json" in options


def exit_code_of(run: Callable[[], object], *, as_json: bool = False) -> int:
    """Run a command, show its error if it fails, and return the exit code of the process."""
    try:
        code, error = _guarded(run)
    except KeyboardInterrupt:
        print_message("interrupted")
        code, error = ExitCode.INTERRUPTED, error_object("interrupted", "interrupted")
    if error is not None and as_json:
        emit_error(error)
    return finish() or code


def error_object(code: str, message: str, hint: str = "", **more: object) -> ErrorObject:
    """An error as a JSON object: its code, its message, and the next step."""
    # An argument of the command line may contain bytes that are not UTF-8.
    plain = (text.encode("utf-8", "backslashreplace").decode() for text in (message, hint))
    return {"code": code, **dict(zip(("message", "hint"), plain, strict=True)), **more}


def emit_error(error: ErrorObject, **beside: object) -> None:
    """Print an error as the JSON object of a command, beside other fields."""
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
        usage = io.StringIO()
        fault.show(usage)
        print_message(usage.getvalue().rstrip("\n"))
        return ExitCode.BAD_INPUT, error_object("usage", fault.format_message(), _help_of(fault))
    except MemoryError:
        message = "there is not enough memory"
        print_message(f"error: {message}")
        return ExitCode.BAD_INPUT, error_object("no_memory", message)
    except OSError as error:
        # The operating system failed, not the program: a folder is gone, or a disk cannot be read.
        message = (f"{error.filename}: " if error.filename else "") + reason(error)
        print_message(f"error: {message}")
        return ExitCode.BAD_INPUT, error_object("system", message)
    except Exception as error:  # noqa: BLE001 # show_error raises every error again that is not an expected one
        return show_error(error)
    return (result if isinstance(result, int) else 0), None


def _help_of(fault: click.ClickException) -> str:
    context = fault.ctx if isinstance(fault, click.UsageError) else None
    return f"see: {context.command_path} --help" if context is not None else ""


def show_error(error: Exception) -> tuple[int, ErrorObject]:
    """Print an expected error; any other is a bug and is raised again."""
    # Imported here, so that a command that succeeds does not pay for it.
    from pilotage.cli.shared.problems import show_problems
    from pilotage.model.errors import DocumentError, PilotageError

    if isinstance(error, DocumentError):
        import msgspec

        show_problems(error.problems, severity="error")
        if len(error.problems) > 1:
            print_message(error.what)
        problems = [msgspec.to_builtins(each) for each in error.problems]
        return error.exit_code, error_object("bad_document", error.what, problems=problems)
    if isinstance(error, PilotageError):
        print_message(f"error: {error}")
        return error.exit_code, object_of_error(error)
    # The agent runs where pilotage is not installed, so its errors are not PilotageErrors, but have the same fields.
    from pilotage.client.errors import AgentError

    if isinstance(error, AgentError):
        print_message(f"error: {error}")
        return ExitCode.STOPPED if error.retryable else ExitCode.BAD_INPUT, object_of_error(error)
    raise error


def object_of_error(error: PilotageError | Any) -> ErrorObject:
    """An expected error as a JSON object; its code is that of the server, or else the name of its class."""
    message = f"{error.subject}: {error.what}" if error.subject else error.what
    message += f"; expected {error.expected}" if error.expected else ""
    message += f", got {error.got}" if error.got else ""
    code = getattr(error, "code", "") or _CAPITAL.sub("_", type(error).__name__).lower()
    return error_object(code, message, error.next_step)
