"""From errors to texts and exit codes: 0 complete, 1 packages failed, 2 bad input, 3 stopped, 130 interrupted."""

from __future__ import annotations

import io
from collections.abc import Callable

import click

from pilotage.cli.output import finish, reason, say_to_reader
from pilotage.model.exit_codes import ExitCode


def exit_code_of(run: Callable[[], object]) -> int:
    """Run something, show what goes wrong with it, and answer the exit code of the process."""
    try:
        code = _guarded(run)
        return finish() or code
    except KeyboardInterrupt:
        say_to_reader("interrupted")
        return ExitCode.INTERRUPTED


def _guarded(run: Callable[[], object]) -> int:
    try:
        result = run()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as fault:
        said = io.StringIO()
        fault.show(said)
        say_to_reader(said.getvalue().rstrip("\n"))
        return ExitCode.BAD_INPUT
    except MemoryError:
        say_to_reader("error: there is not enough memory for this")
        return ExitCode.BAD_INPUT
    except OSError as error:
        # The system, not the program: a folder that is gone, a disk that cannot be read.
        where = f"{error.filename}: " if error.filename else ""
        say_to_reader(f"error: {where}{reason(error)}")
        return ExitCode.BAD_INPUT
    except Exception as error:  # noqa: BLE001 # what is not ours is raised again
        return show(error)
    return result if isinstance(result, int) else 0


def show(error: Exception) -> int:
    """Show an error of ours; any other is a fault of the program and goes on as it is."""
    # Only now: a command that succeeds need not know what can go wrong.
    from pilotage.cli.problems import show_problems
    from pilotage.model.errors import DocumentError, PilotageError

    if isinstance(error, DocumentError):
        show_problems(error.problems, severity="error")
        if len(error.problems) > 1:
            say_to_reader(error.what)
        return error.exit_code
    if isinstance(error, PilotageError):
        say_to_reader(f"error: {error}")
        return error.exit_code
    # The agent runs where pilotage is not installed, so its errors are no PilotageErrors; they speak the same words.
    from pilotage.client.errors import AgentError

    if isinstance(error, AgentError):
        say_to_reader(f"error: {error}")
        return ExitCode.STOPPED if error.retryable else ExitCode.BAD_INPUT
    raise error
