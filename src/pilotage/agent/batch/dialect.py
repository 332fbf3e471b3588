"""What every dialect of a batch system promises.

A dialect makes calls (the words of a command, and its input) and reads answers. Somebody else runs the calls: here, over
ssh, or at the site; with a time limit, in an environment in which the messages are English (`LC_ALL=C`), and without
secrets in it: some systems hand it on to what they start. A call that was not answered has an answer too, with
`exit_status` None.

What is started carries our own key in its name, since batch systems give a native id to another after a crash. To cancel
something, name and id must both be right.
"""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar

from pilotage.agent.batch.values import Answer, Call, Limits, Seen, Unknown, Wanted, message_of

# The script that a batch system is given, and how a key is told in names: the same for all systems.

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


_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,39}")


class Dialect(ABC):
    """One batch system's language; it keeps nothing but the prefix that tells our things from others'.

    Whatever text an answer holds, only `Refused`, `Busy` and `Unknown` are raised.
    """

    name: ClassVar[str] = ""
    experimental: ClassVar[bool] = True  # never tried on a real system by our tests
    mark: ClassVar[str] = ""  # what begins a line of a script that is for the batch system
    index_variable: ClassVar[str] = ""  # where an element of an array finds its number
    first_index: ClassVar[int] = 0
    version_words: ClassVar[tuple[str, ...]] = ()  # a command that tells whether the system is here
    version_pattern: ClassVar[str] = ""  # and what is found in its answer then
    places: ClassVar[bool] = False  # whether it can be told the `hosts` of what is wanted
    harmless: ClassVar[str] = ""  # what is said, line by line, when there is nothing to cancel any more

    def __init__(self, prefix: str) -> None:
        """Take the prefix, which must be a letter followed by at most 39 letters, digits and hyphens."""
        if not _PREFIX.fullmatch(prefix):
            raise ValueError(f"a prefix is a letter followed by letters, digits and hyphens, not {prefix!r}")
        self.prefix = prefix

    @abstractmethod
    def submit(self, wanted: Wanted) -> Call:
        """How to start something; `submitted` reads the answer."""

    @abstractmethod
    def submitted(self, wanted: Wanted, answer: Answer) -> dict[str, str]:
        """The native id of each element by its key. Raises `Refused`, `Busy`, `Unknown`."""

    @abstractmethod
    def listing(self) -> Call:
        """How to ask for everything of ours that is there; `listed` reads the answer."""

    @abstractmethod
    def listed(self, answer: Answer) -> dict[str, Seen]:
        """Everything of ours that is there, by key; ended ones too while the system shows them. Raises `Unknown`."""

    def history(self, native_ids: Mapping[str, str]) -> Call | None:
        """How to ask how things ended that a listing has no more, by key and native id (empty where it is not known).

        None where nothing remembers. It may cost the site much, and be some seconds behind: it is for what is missing from
        a listing, not for every look.
        """
        return None

    def remembered(self, answer: Answer) -> dict[str, Seen]:
        """What the history tells, by key: no more than was asked for need be in it. Raises `Unknown`."""
        return {}

    def errors(self, native_ids: Collection[str]) -> Call | None:
        """How to ask why things could not be started whose reason is `error`; None where the system cannot tell."""
        return None

    def errors_told(self, answer: Answer) -> dict[str, str]:
        """The system's own words for that, by native id, of those that it has any for."""
        return {}

    @abstractmethod
    def cancel(self, native_ids: Mapping[str, str]) -> Call:
        """How to end what has these keys and native ids, both; `cancelled` reads the answer."""

    def cancelled(self, answer: Answer) -> None:
        """Nothing, if all of it is ended or about to be, or was not there. Raises `Unknown`."""
        said = f"{answer.stdout}\n{answer.stderr}".split("\n")
        others = [line for line in said if line.strip() and not re.search(self.harmless, line)]
        if answer.exit_status is None or (answer.exit_status and (others or not any(said))):
            raise Unknown(message_of(answer))

    @abstractmethod
    def limits(self) -> list[Call]:
        """How to ask what the site allows; `limited` reads the answers."""

    @abstractmethod
    def limited(self, answers: Sequence[Answer]) -> Limits:
        """What the site allows. Raises `Unknown`."""

    def is_here(self) -> Call:
        """How to ask whether this batch system is here; `version` reads the answer."""
        return Call(self.version_words)

    def version(self, answer: Answer) -> str:
        """The version that is here; nothing where it is not this system that answered."""
        told = re.search(self.version_pattern, f"{answer.stdout}\n{answer.stderr}", re.MULTILINE)
        return told.group(1) if told and answer.exit_status is not None else ""

    def job_name(self, key: str) -> str:
        """The name that something goes by at the site."""
        return f"{self.prefix}.{encoded(key)}"

    def key(self, job_name: str, index: int | None = None) -> str | None:
        """The key of a name and the number of an element in its array; None where it is none of ours."""
        start = f"{self.prefix}."
        first = decoded(job_name[len(start) :]) if job_name.startswith(start) else None
        if first is None or index is None:
            return first
        return element_key(first, index - self.first_index)

    def array_name(self, key: str, index: int | None) -> str:
        """The name of the array in which a key has this index, or of what has this key and is no array."""
        first = key if index is None else element_key(key, self.first_index - index)
        return self.job_name(key if first is None else first)

    def ids(self, wanted: Wanted, native_id: Callable[[int], str]) -> dict[str, str]:
        """The native id of each element by its key, made from the index that it has in its array."""
        keys = (element_key(wanted.key, offset) for offset in range(wanted.count))
        return {key: native_id(self.first_index + offset) for offset, key in enumerate(keys) if key is not None}

    def script(self, wanted: Wanted, *, index: str = "", folder: str = "") -> str:
        """The script that starts a command under its key; in a folder, where the system cannot be told that."""
        index = index or f"${{{self.index_variable}}} - {self.first_index}"
        return script(
            key=wanted.key,
            command=wanted.command,
            index=index if wanted.count > 1 else "",
            directives=[f"{self.mark} {each}" for each in wanted.directives] if self.mark else (),
            output=wanted.output,
            folder=folder,
            agent=wanted.agent,
            agent_sha256=wanted.agent_sha256,
        )


def one_after_another(commands: Sequence[Sequence[str]]) -> Call:
    """Several commands as one call, which fails where one of them does and says all that they say."""
    lines = [" ".join(map(shlex.quote, words)) + " || failed=1" for words in commands]
    return Call(("sh",), "\n".join([*lines, "exit ${failed:-0}", ""]))
