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

from pilotage.agent.batch.reading import message_of
from pilotage.agent.batch.script import decoded, element_key, encoded, script
from pilotage.agent.batch.values import Answer, Call, Limits, Seen, Unknown, Wanted

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
