"""The script that a batch system is given, and how a key is told in names: the same for all systems."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

CANNOT_WRITE_STATUS = 73  # the script could not write to its output folder, and started nothing
ANOTHER_AGENT_STATUS = 74  # the file of the agent is not what was put there, and nothing was started
REQUEST_VARIABLE = "PILOTAGE_REQUEST"
_PLAIN = re.compile(r"[A-Za-z0-9.-]")
_ENCODED = re.compile(r"(?:[A-Za-z0-9.-]|_[0-9A-F]{2})*")
# No leading zero, so that adding and taking away come back to the same; at most fifteen digits, which a shell adds exactly.
_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]{0,14})", re.DOTALL)
_NUMBER_MAX = 10**15 - 1
_BREAKS = {"\n": '"$n"', "\r": '"$r"'}


def encoded(key: str) -> str:
    """A key in letters, digits, dots, hyphens and underscores, which every batch system takes in a name."""
    parts = (
        char if _PLAIN.match(char) else "".join(f"_{byte:02X}" for byte in char.encode("utf-8", "surrogateescape"))
        for char in key
    )
    return "".join(parts)


def decoded(text: str) -> str | None:
    """The key that was encoded so; None where it was none."""
    if not _ENCODED.fullmatch(text):
        return None
    first, *others = text.split("_")
    content = first.encode() + b"".join(bytes([int(part[:2], 16)]) + part[2:].encode() for part in others)
    key = content.decode("utf-8", "surrogateescape")
    return key if encoded(key) == text else None


def element_key(key: str, offset: int) -> str | None:
    """The key whose number is greater by so much, or less; None where there is none.

    So the key of an element follows from that of the first of its array and its place, and the other way round.
    """
    match = _NUMBERED.fullmatch(key)
    if offset == 0 or match is None:
        return key if offset == 0 else None
    number = int(match.group(2)) + offset
    return f"{match.group(1)}{number}" if 0 <= number <= _NUMBER_MAX else None


def output_of(folder: str, key: str) -> str:
    """The file to which what has this key prints."""
    return f"{folder}/{encoded(key)}.out"


def script(
    *,
    key: str,
    command: Sequence[str],
    index: str,
    directives: Sequence[str],
    output: str,
    folder: str = "",
    agent: str = "",
    agent_sha256: str = "",
) -> str:
    """A script for `sh` that starts a command and tells it its key; `index` is the place in the array, in shell arithmetic.

    Where the agent's file is another by then, nothing is started: it waited in a folder for hours, and runs in the user's name.
    No line of it but its directives begins with a `#`, whatever the words: some systems look for their mark everywhere.
    """
    lines = _before(key=key, index=index, output=output, folder=folder)
    if agent_sha256:
        lines += _checking(agent, agent_sha256)
    lines.append("exec " + " ".join(map(quoted, command)))
    return "\n".join(["#!/bin/sh", *directives, *lines, ""])


def _before(*, key: str, index: str, output: str, folder: str) -> list[str]:
    lines = ["n=$(printf '\\nx') n=${n%x}", "r=$(printf '\\rx') r=${r%x}"]
    said, written = quoted(key), quoted(output_of(output, key))
    if index:
        match = _NUMBERED.fullmatch(key)
        if match is None:
            raise ValueError(f"the key of an array ends in a number, not {key!r}")
        start, digits = match.groups()
        lines.append(f"i=$(({digits} + {index}))")
        said, written = f'{quoted(start)}"$i"', f'{quoted(f"{output}/{encoded(start)}")}"$i".out'
    lines += [f"{REQUEST_VARIABLE}={said}", f"export {REQUEST_VARIABLE}"]
    if output:
        lines += [f"true >>{written} || exit {CANNOT_WRITE_STATUS}", f"exec >>{written} 2>&1"]
    if folder:
        lines.append(f"cd {quoted(folder)} || exit {CANNOT_WRITE_STATUS}")
    return lines


def _checking(agent: str, sha256: str) -> list[str]:
    """Lines that end the script where a file is not what it was; not where it is gone, or nothing there can tell."""
    file = quoted(agent)
    told = quoted(f"pilotage: {agent} is not the agent that was put there, and is not started: its sha256 is")
    return [
        f"d=$({{ sha256sum <{file} || shasum -a 256 <{file} || openssl dgst -sha256 -r <{file}; }} 2>/dev/null)",
        f'case "$d" in "{sha256}"*|"") ;; *) echo {told} "${{d%% *}}" >&2; exit {ANOTHER_AGENT_STATUS};; esac',
    ]


def quoted(word: str) -> str:
    """A word as `sh` reads it, on one line."""
    if "\0" in word:
        raise ValueError("no process can be given a word with a null character")
    parts = re.split("([\n\r])", word)
    return "".join(_BREAKS.get(part) or shlex.quote(part) for part in parts if part) or "''"
