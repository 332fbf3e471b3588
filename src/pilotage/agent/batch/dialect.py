"""The interface of batch systems.

A dialect makes calls (the words of a command, and its input) and parses their answers. The caller runs them: here, over
ssh, or at the site; with a time limit, with English messages (`LC_ALL=C`), and without secrets in the environment,
since some systems pass it on to the jobs. A call without an answer has an answer, too, with `exit_status` None.

Each batch job has our own key in its name, since batch systems may reuse native ids after a crash. Cancelling requires
that both name and id match.
"""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar

from pilotage.agent.batch.values import Answer, BatchJob, BatchRequest, Call, Limits, Unknown, message_of

# The batch script, and how a key is encoded in names: the same for all systems.

CANNOT_WRITE_STATUS = 73  # the script could not write to its output folder, and started nothing
ANOTHER_AGENT_STATUS = 74  # the agent's file has changed since it was installed, and nothing was started
REQUEST_VARIABLE = "PILOTAGE_REQUEST"
_PLAIN = re.compile(r"[A-Za-z0-9.-]")
_ENCODED = re.compile(r"(?:[A-Za-z0-9.-]|_[0-9A-F]{2})*")
# No leading zero, so that adding and subtracting are inverse; at most fifteen digits, which a shell adds exactly.
_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]{0,14})", re.DOTALL)
_NUMBER_MAX = 10**15 - 1
_BREAKS = {"\n": '"$n"', "\r": '"$r"'}


def encoded(key: str) -> str:
    """Encode a key in letters, digits, dots, hyphens and underscores, which every batch system accepts in a name."""
    parts = (
        char if _PLAIN.match(char) else "".join(f"_{byte:02X}" for byte in char.encode("utf-8", "surrogateescape"))
        for char in key
    )
    return "".join(parts)


def decoded(text: str) -> str | None:
    """Decode a key; None if the text is not an encoded key."""
    if not _ENCODED.fullmatch(text):
        return None
    first, *others = text.split("_")
    content = first.encode() + b"".join(bytes([int(part[:2], 16)]) + part[2:].encode() for part in others)
    key = content.decode("utf-8", "surrogateescape")
    return key if encoded(key) == text else None


def element_key(key: str, offset: int) -> str | None:
    """The key whose number is greater (or less) by `offset`; None if it has no number, or it would be out of range.

    So the key of an array element follows from the first key of its array and its index, and the other way round.
    """
    match = _NUMBERED.fullmatch(key)
    if offset == 0 or match is None:
        return key if offset == 0 else None
    number = int(match.group(2)) + offset
    return f"{match.group(1)}{number}" if 0 <= number <= _NUMBER_MAX else None


def output_of(folder: str, key: str) -> str:
    """The output file of a key."""
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
    """A script for `sh` that starts a command with its key; `index` is the array index, in shell arithmetic.

    It starts nothing if the agent's file has changed: that may have lain in a folder for hours, and runs as the user.
    Only its directives begin with a `#`, whatever the words: some systems search all lines for their directives.
    """
    lines = _before(key=key, index=index, output=output, folder=folder)
    if agent_sha256:
        lines += _checking(agent, agent_sha256)
    lines.append("exec " + " ".join(map(quoted, command)))
    return "\n".join(["#!/bin/sh", *directives, *lines, ""])


def _before(*, key: str, index: str, output: str, folder: str) -> list[str]:
    lines = ["n=$(printf '\\nx') n=${n%x}", "r=$(printf '\\rx') r=${r%x}"]
    quoted_key, written = quoted(key), quoted(output_of(output, key))
    if index:
        match = _NUMBERED.fullmatch(key)
        if match is None:
            raise ValueError(f"the key of an array ends in a number, not {key!r}")
        start, digits = match.groups()
        lines.append(f"i=$(({digits} + {index}))")
        quoted_key, written = f'{quoted(start)}"$i"', f'{quoted(f"{output}/{encoded(start)}")}"$i".out'
    lines += [f"{REQUEST_VARIABLE}={quoted_key}", f"export {REQUEST_VARIABLE}"]
    if output:
        lines += [f"true >>{written} || exit {CANNOT_WRITE_STATUS}", f"exec >>{written} 2>&1"]
    if folder:
        lines.append(f"cd {quoted(folder)} || exit {CANNOT_WRITE_STATUS}")
    return lines


def _checking(agent: str, sha256: str) -> list[str]:
    """Lines that end the script if a file has changed; not if it is gone, or the node cannot compute a checksum."""
    file = quoted(agent)
    message = quoted(f"pilotage: {agent} has changed since it was installed, and is not started: its sha256 is")
    return [
        f"d=$({{ sha256sum <{file} || shasum -a 256 <{file} || openssl dgst -sha256 -r <{file}; }} 2>/dev/null)",
        f'case "$d" in "{sha256}"*|"") ;; *) echo {message} "${{d%% *}}" >&2; exit {ANOTHER_AGENT_STATUS};; esac',
    ]


def quoted(word: str) -> str:
    """Quote a word for `sh`, on one line."""
    if "\0" in word:
        raise ValueError("an argument cannot contain a null character")
    parts = re.split("([\n\r])", word)
    return "".join(_BREAKS.get(part) or shlex.quote(part) for part in parts if part) or "''"


_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,39}")


class Dialect(ABC):
    """One batch system; its only state is the prefix that marks our jobs.

    Whatever an answer contains, methods raise only `Refused`, `Busy` and `Unknown`.
    """

    name: ClassVar[str] = ""
    experimental: ClassVar[bool] = True  # our tests never ran it on a real system
    mark: ClassVar[str] = ""  # prefix of directives in a script
    index_variable: ClassVar[str] = ""  # environment variable with the index of an array element
    first_index: ClassVar[int] = 0
    version_words: ClassVar[tuple[str, ...]] = ()  # a command that shows whether the system is installed
    version_pattern: ClassVar[str] = ""  # finds the version in its output
    places: ClassVar[bool] = False  # whether it can restrict a job to `hosts`
    harmless: ClassVar[str] = ""  # matches each output line of a cancellation that found no job

    def __init__(self, prefix: str) -> None:
        """Take the prefix, which must be a letter followed by at most 39 letters, digits and hyphens."""
        if not _PREFIX.fullmatch(prefix):
            raise ValueError(f"a prefix is a letter followed by letters, digits and hyphens, not {prefix!r}")
        self.prefix = prefix

    @abstractmethod
    def submit(self, wanted: BatchRequest) -> Call:
        """The call that submits; `submitted` parses the answer."""

    @abstractmethod
    def submitted(self, wanted: BatchRequest, answer: Answer) -> dict[str, str]:
        """The native id of each element by key. Raises `Refused`, `Busy`, `Unknown`."""

    @abstractmethod
    def listing(self) -> Call:
        """The call that lists all our jobs; `listed` parses the answer."""

    @abstractmethod
    def listed(self, answer: Answer) -> dict[str, BatchJob]:
        """All our jobs, by key; also ended ones while the system lists them. Raises `Unknown`."""

    def history(self, native_ids: Mapping[str, str]) -> Call | None:
        """The call that asks how jobs ended that are no longer listed, by key and native id (empty if unknown).

        None if the system keeps no history. The call may be expensive for the site, and lag some seconds: use it for
        missing jobs, not at every listing.
        """
        return None

    def remembered(self, answer: Answer) -> dict[str, BatchJob]:
        """Ended jobs by key; may contain more or fewer than asked for. Raises `Unknown`."""
        return {}

    def errors(self, native_ids: Collection[str]) -> Call | None:
        """The call that asks why jobs with reason `error` could not start; None if the system cannot tell."""
        return None

    def errors_told(self, answer: Answer) -> dict[str, str]:
        """The system's messages by native id, as far as it has any."""
        return {}

    @abstractmethod
    def cancel(self, native_ids: Mapping[str, str]) -> Call:
        """The call that cancels jobs by both key and native id; `cancelled` parses the answer."""

    def cancelled(self, answer: Answer) -> None:
        """Raise `Unknown`, unless all jobs are gone or about to end."""
        lines = f"{answer.stdout}\n{answer.stderr}".split("\n")
        others = [line for line in lines if line.strip() and not re.search(self.harmless, line)]
        if answer.exit_status is None or (answer.exit_status and (others or not any(lines))):
            raise Unknown(message_of(answer))

    @abstractmethod
    def limits(self) -> list[Call]:
        """The calls that ask for the limits of the site; `limited` parses the answers."""

    @abstractmethod
    def limited(self, answers: Sequence[Answer]) -> Limits:
        """The limits of the site. Raises `Unknown`."""

    def is_here(self) -> Call:
        """The call that shows whether this batch system is installed; `version` parses the answer."""
        return Call(self.version_words)

    def version(self, answer: Answer) -> str:
        """The installed version; empty if another system answered."""
        match = re.search(self.version_pattern, f"{answer.stdout}\n{answer.stderr}", re.MULTILINE)
        return match.group(1) if match and answer.exit_status is not None else ""

    def job_name(self, key: str) -> str:
        """The job name of a key."""
        return f"{self.prefix}.{encoded(key)}"

    def key(self, job_name: str, index: int | None = None) -> str | None:
        """The key of a job name and array index; None if the job is not ours."""
        start = f"{self.prefix}."
        first = decoded(job_name[len(start) :]) if job_name.startswith(start) else None
        if first is None or index is None:
            return first
        return element_key(first, index - self.first_index)

    def array_name(self, key: str, index: int | None) -> str:
        """The name of the array in which a key has this index, or of the single job with this key."""
        first = key if index is None else element_key(key, self.first_index - index)
        return self.job_name(key if first is None else first)

    def ids(self, wanted: BatchRequest, native_id: Callable[[int], str]) -> dict[str, str]:
        """The native id of each element by key, made from its array index."""
        keys = (element_key(wanted.key, offset) for offset in range(wanted.count))
        return {key: native_id(self.first_index + offset) for offset, key in enumerate(keys) if key is not None}

    def script(self, wanted: BatchRequest, *, index: str = "", folder: str = "") -> str:
        """The script that starts the command; it changes to `folder` if the system has no option for that."""
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
    """Several commands as one call, which fails if one of them does; it keeps all their output."""
    lines = [" ".join(map(shlex.quote, words)) + " || failed=1" for words in commands]
    return Call(("sh",), "\n".join([*lines, "exit ${failed:-0}", ""]))
