"""`pilotage completion`: scripts that let a shell complete commands, options and file names."""

from __future__ import annotations

import click

from pilotage.cli.output import emit

SHELLS = ("bash", "zsh", "fish")

# Bash takes `--format=s` for three words; they are one again before anybody looks at them. Its answer must be the part
# behind the sign, which is what click gives for an option with its value.
_BASH = """\
_pilotage_completion() {
    local words=() word type value glued=0 IFS=$'\\n'
    COMPREPLY=()
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if ((${#words[@]})) && { [[ $word == = && ${words[-1]} == --* ]] || ((glued)); }; then
            words[-1]+=$word
            glued=$((! glued))
        else
            words+=("$word")
            glued=0
        fi
    done
    while IFS=, read -r type value; do
        case $type in
            plain) COMPREPLY+=("$value") ;;
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
        esac
    done < <(COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) _PILOTAGE_COMPLETE=bash_complete "$1")
}

complete -F _pilotage_completion pilotage
"""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes pilotage's words in a shell.

    Read it once per session, for instance with `source <(pilotage completion bash)`.
    """
    if shell == "bash":
        emit([_BASH])
        return
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root()
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click knows no completion for {shell}")
    complete = kind(root.command, {}, "pilotage", "_PILOTAGE_COMPLETE")
    emit([complete.source()])
