"""Commands of a batch system in the environment that its users work in: a login shell, then the site's own lines of setup.

Neither a command over ssh nor one that cron starts has that by itself: `sbatch` is not found there, or it speaks to a system
that was switched off years ago. What a profile or a setup prints is no part of the answer, and neither of them is given the
input of the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilotage.agent.batch.values import Answer, Call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Run = Callable[[Call], Answer]
    """Runs a command to its end."""

_BEGINS = "pilotage-command-begins"
_NOT_FOUND = 127
# The descriptors 8 and 9 keep the command's own input and output while the profile and the setup are read.
_ENTER = """\
exec 8<&0 9>&1 </dev/null >&2
shell=bash
command -v bash >/dev/null 2>&1 || shell=sh
exec "$shell" -l -c "$0" "$shell" "$@"
"""
# A profile may choose a language; messages must be in one that we can read, and LC_ALL would overrule that.
_GO_ON = f"""\
if [ -n "${{LC_ALL:-}}" ]; then LANG=$LC_ALL LC_CTYPE=$LC_ALL; export LANG LC_CTYPE; unset LC_ALL; fi
unset LANGUAGE
LC_MESSAGES=C
export LC_MESSAGES
echo {_BEGINS} >&2
exec <&8 >&9 8<&- 9>&-
exec "$@"
"""


def in_login_shell(run: Run, setup: Sequence[str] = ()) -> Run:
    """What runs commands as `run` does, but in a login shell and after these lines of setup."""
    script = "\n".join([*setup, _GO_ON])

    def run_there(call: Call) -> Answer:
        return _of_the_command(run(Call(("sh", "-c", _ENTER, script, *call.argv), call.stdin)))

    return run_there


def _of_the_command(answer: Answer) -> Answer:
    """The answer without what was printed before the command began; where that was not found, it may say why."""
    before, begun, after = answer.stderr.partition(f"{_BEGINS}\n")
    if not begun:
        return answer
    return answer._replace(stderr=f"{after}{before}" if answer.exit_status == _NOT_FOUND else after)
