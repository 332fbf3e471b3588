"""Describes packages in the words of their document: names, parameters, commands, and the line that would keep a file.

All of it follows from the definition and the lists of a job. Running jobs are expanded already; the expansion of any
other job is loaded from the book, and the last few are cached.
"""

from __future__ import annotations

import re
import shlex
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from pilotage.book.rows.rows import JobRow, PackageFacts
from pilotage.model.answers import PackageWords, UnmadeTarget
from pilotage.model.errors import PilotageError
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.layout import PackageId
from pilotage.model.jobs.submission import TARGETS
from pilotage.ports import Journal

if TYPE_CHECKING:
    from pilotage.language import Expansion
    from pilotage.language import UnmadeTarget as Unmade
    from pilotage.language.expansion.blocks import Block
    from pilotage.model.jobs.definition import OutputFile

KEPT_MAX = 4
"""Cached expansions of jobs that do not run."""
COMMAND_CHARACTERS_MAX = 400

AtWork = Callable[[str], "Expansion | None"]


class PackageNames:
    """Describes packages. Any thread may use it."""

    def __init__(self, journal: Journal, at_work: AtWork) -> None:
        """Read jobs from a journal; `at_work` returns the expansion of a running one."""
        self._journal = journal
        self._at_work = at_work
        self._guard = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, int], Expansion | None] = OrderedDict()

    def of(self, job: JobRow, place: PackageId) -> PackageWords | None:
        """The description of a package; None if another scheduler runs its job, or its stage is not expanded."""
        expansion = self.layout(job)
        number = _number(expansion, place) if expansion is not None else None
        return words_of(expansion, number) if expansion is not None and number is not None else None

    def find(self, job: JobRow, name: str) -> PackageId | None:
        """The package of a given name in a job, or None."""
        expansion = self.layout(job)
        if expansion is None:
            return None
        for block in expansion.blocks:
            position = _position(block, name)
            if position is not None:
                return expansion.id(block.packages()[position])
        return None

    def keeping(self, job: JobRow, place: PackageId, files: Sequence[str]) -> str:
        """The `outputs` of a package's template including these files, as its document would write it."""
        expansion = self.layout(job)
        number = _number(expansion, place) if expansion is not None else None
        return outputs_line(expansion, number, files) if expansion is not None and number is not None else ""

    def layout(self, job: JobRow) -> Expansion | None:
        """The expansion of a job; None if the book lacks its definition."""
        if job.definition is None or job.place == "purged":
            return None
        found = self._at_work(job.job)
        if found is not None:
            return found
        key = (job.job, job.lists, job.late)
        with self._guard:  # two requests for one job wait for one expansion
            if key not in self._kept:
                self._kept[key] = self._recalled(job)
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
            return self._kept[key]

    def _recalled(self, job: JobRow) -> Expansion | None:
        from pilotage.service.jobs.submission import recall  # importing it takes a while, and few requests need it

        try:
            return recall(self._journal, job).expansion
        except (PilotageError, ValueError):
            return None  # it was only tracked here: it has no definition


def words_of(expansion: Expansion, number: int) -> PackageWords:
    """The description of a package of an expansion."""
    block, position = expansion.locate(number)
    return PackageWords(
        name=block.package_name(position),
        parameters={name: _text(value) for name, value in _iterated(block, position).items()},
        command=_command(expansion, number),
    )


def outputs_line(expansion: Expansion, number: int, files: Sequence[str]) -> str:
    """The `outputs` line that would keep files of a package besides the declared ones.

    Values of its iterations become placeholders. A file whose name would be the same for every package of the template
    gets the tag of its package: two packages cannot make the same file.
    """
    block, position = expansion.locate(number)
    declared = [_declared(output) for binary in block.declared.binaries for output in binary.outputs]
    values = {name: _text(value) for name, value in _iterated(block, position).items()}
    names = [_quoted(_template_of(file, values, many=block.count > 1)) for file in files]
    return f"outputs: [{', '.join(dict.fromkeys([*declared, *names]))}]"


def _declared(output: OutputFile) -> str:
    """An output as a document writes it."""
    if output.name:
        return _quoted(output.name)
    expression = output.expression.replace("'", "''")
    return f"{{expression: '{expression}'{f', folder: {_quoted(output.folder)}' if output.folder else ''}}}"


def _template_of(file: str, values: Mapping[str, str], *, many: bool) -> str:
    """A file name with placeholders for the values of iterations, the longest first."""
    pieces: list[str] = [file]  # text and placeholders in turn
    for name, value in sorted(values.items(), key=lambda each: -len(each[1])):
        for text, attribute in ((value, ""), (value.rpartition("/")[2].partition(".")[0], ".stem")):
            # `1` is not a part of `run17`, but of `run-1.log`.
            found = re.compile(rf"(?<![0-9A-Za-z]){re.escape(text)}(?![0-9A-Za-z])")
            if text and any(found.search(piece) for piece in pieces[::2]):
                pieces = _parted(pieces, found, f"{{{name}{attribute}}}")
                break
    if many and len(pieces) == 1:
        stem, dot, ending = file.rpartition(".")
        pieces = [f"{stem}-" if dot else f"{file}-", "{tag}", f".{ending}" if dot else ""]
    escaped = (text.replace("{", "{{").replace("}", "}}") if at % 2 == 0 else text for at, text in enumerate(pieces))
    return "".join(escaped)


def _parted(pieces: Sequence[str], found: re.Pattern[str], placeholder: str) -> list[str]:
    parted: list[str] = []
    for at, piece in enumerate(pieces):
        if at % 2:
            parted.append(piece)
            continue
        for more, text in enumerate(found.split(piece)):
            parted += [placeholder, text] if more else [text]
    return parted


def _iterated(block: Block, position: int) -> dict[str, str | tuple[str, ...]]:
    item, line = divmod(position, block.line_items.count)
    return {**block.items.values(item), **block.line_items.values(line)}


def _text(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ",".join(value)


def _quoted(name: str) -> str:
    plain = name and not name.startswith(("{", "[", "*", "&", "!", "|", ">", "'", '"', "%", "@", "`", "#", "-", "?"))
    return name if plain and not any(each in name for each in (", ", ": ", " #", "{", "}", "[", "]")) else f'"{name}"'


def _number(expansion: Expansion, place: PackageId) -> int | None:
    layout = expansion.layouts.get(place.stage - 1)
    return layout.number(place) if layout is not None else None


def _position(block: Block, name: str) -> int | None:
    """Which package of a block has a name."""
    if block.package.name:
        from pilotage.language.expansion.blocks import BlockColumns
        from pilotage.language.text.templates import render_column

        names = render_column(block.bound(block.package.name), BlockColumns(block), block.count)
        return names.index(name) if name in names else None
    if name == block.name and block.count == 1 and not block.tag(0):
        return 0
    if not name.startswith(f"{block.name}-"):
        return None
    tag = name[len(block.name) + 1 :]
    if block.items.own_tags is None and block.line_items.count == 1 and block.tag(0) == "0":
        return int(tag) if tag.isdecimal() and str(int(tag)) == tag and int(tag) < block.count else None
    return next((position for position in range(block.count) if block.tag(position) == tag), None)


def _command(expansion: Expansion, number: int) -> str:
    from pilotage.language.expansion.packages import SHELL

    try:
        package = expansion.package(number)
    except (PilotageError, ValueError, LookupError):
        return ""
    commands = []
    for argv in [package.startup] if package.startup else [binary.argv for binary in package.binaries]:
        is_script = argv[: len(SHELL)] == SHELL
        commands.append("; ".join(filter(None, map(str.strip, argv[-1].splitlines()))) if is_script else _joined(argv))
    text = " && ".join(commands)
    return text if len(text) <= COMMAND_CHARACTERS_MAX else f"{text[: COMMAND_CHARACTERS_MAX - 1]}…"


def _joined(argv: Sequence[str]) -> str:
    """A command quoted for a shell; only the beginning of a very long one."""
    length, words = 0, []
    for word in argv:
        words.append(shlex.quote(word))
        length += len(words[-1]) + 1
        if length > COMMAND_CHARACTERS_MAX:
            break
    return " ".join(words)


# Targets of jobs, and which of them were not made: a pattern of an output does not promise a name.

_lists = msgspec.json.Decoder(dict[str, str])
_names = msgspec.json.Decoder(tuple[str, ...])
_ENDED = {"ABORTED": "failed", "CANCELLED": "was cancelled"}


class Targets:
    """The targets of jobs. Any thread may use it."""

    def __init__(self, journal: Journal, package_names: PackageNames) -> None:
        """Read jobs from a journal, and their expansions through `package_names`."""
        self._journal = journal
        self._package_names = package_names
        self._read = lru_cache(maxsize=1024)(self._read_content)

    def of(self, job: JobRow) -> tuple[str, ...]:
        """The target files of a job, or patterns of them; none: all outputs."""
        if f'"{TARGETS}"' not in job.lists:  # most have none
            return ()
        sha256 = _lists.decode(job.lists).get(TARGETS)
        return self._read(sha256) if sha256 is not None else ()

    def unmade(self, job: JobRow) -> tuple[UnmadeTarget, ...]:
        """The targets of a finished job that were not made, and why."""
        expansion = self._package_names.layout(job) if self.of(job) else None
        if expansion is None:
            return ()
        from pilotage.language import unmade_targets
        from pilotage.service.works.manifests import Manifests

        manifests = Manifests(self._journal)

        def made(number: int) -> list[str]:
            facts = self._facts(job, expansion, number)
            attempt = facts.attempts.get(facts.attempt or 0) if facts is not None else None
            if facts is None or attempt is None or attempt.granted_at is None:
                return []
            ref = AttemptRef(job.job, expansion.id(number).dotted, facts.attempt or 0)
            return [file.name for file in manifests.of(ref) or ()]

        return tuple(
            UnmadeTarget(target=each.target, why=self._why(job, expansion, each))
            for each in unmade_targets(expansion, made)
        )

    def stages_left_out(self, job: JobRow) -> frozenset[int]:
        """The stages of a job that none of its targets needs."""
        expansion = self._package_names.layout(job) if self.of(job) else None
        if expansion is None:
            return frozenset()
        from pilotage.language import stages_left_out

        return stages_left_out(expansion)

    def _why(self, job: JobRow, expansion: Expansion, unmade: Unmade) -> str:
        if len(unmade.packages) > 1:
            return f"none of the {len(unmade.packages):,} packages that could make it did"
        if unmade.packages:
            (number,) = unmade.packages
            name = f"{expansion.id(number).dotted} ({expansion.name(number)})"
            facts = self._facts(job, expansion, number)
            how = _ENDED.get(facts.state if facts is not None else job.state)
            return f"{name}, which could make it, {how or 'did not'}"
        stages = " and ".join(f"{stage} ({expansion.stage_names[stage - 1]})" for stage in unmade.stages)
        waits = {late.stage for late in expansion.late} & {*unmade.stages}
        how = "was never expanded" if waits else "was expanded without it"
        return f"stage {stages}, which could make it, {how}" if stages else ""

    def _facts(self, job: JobRow, expansion: Expansion, number: int) -> PackageFacts | None:
        row = self._journal.package(job, expansion.id(number))
        return row.facts if row is not None else None

    def _read_content(self, sha256: str) -> tuple[str, ...]:
        content = self._journal.content(sha256)
        return _names.decode(content) if content is not None else ()
