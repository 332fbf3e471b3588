"""What need not be run: packages that were asked for in the same way before, and whose files are still in place.

Packages are looked at so that each follows those whose files it takes: the inputs of a package are known when all of
these were adopted, and with them its key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from pilotage.language import Expansion
from pilotage.language.expansion.blocks import Block
from pilotage.model.errors import PilotageError
from pilotage.model.exchange import Assignment, AttemptRef, InputSource
from pilotage.model.graph import EdgeKind
from pilotage.model.payloads import OutputFile
from pilotage.model.submission import Origin
from pilotage.ports import FileStore, MadeWork, WorkFields, WorkIndex
from pilotage.service.running.keys import changed, completed, fields_of, key_of
from pilotage.service.running.works import compose_every_way

NEVER = "never made"

_TOGETHER = 1000  # so many are looked for at once
_FILES = int(EdgeKind.FILE | EdgeKind.PATTERN)


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """A package whose outputs are there already: what they are, and which attempt made them once."""

    number: int
    package: str  # dotted
    manifest: tuple[OutputFile, ...]
    maker: AttemptRef
    message: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about a package: it is adopted, or what changed since it was last made."""

    number: int
    adopted: Adopted | None = None
    changed: str = ""


class _Asked(msgspec.Struct, frozen=True):
    """A package with its key."""

    number: int
    fields: WorkFields
    key: str


def adopt(
    expansion: Expansion,
    origin: Origin,
    *,
    store: FileStore,
    index: WorkIndex,
    granted: Mapping[int, tuple[OutputFile, ...]] | None = None,
    numbers: Collection[int] | None = None,
) -> list[Adopted]:
    """The packages that need not be run. Where nothing was made in the folder before, nothing is looked at.

    For a job that has grown, `numbers` are the new packages, and `granted` has the manifests of those before them.
    """
    said_done = any(block.package.done for block in expansion.blocks)
    if not said_done and not index.knows(origin.folder):
        return []
    without = _surely_new(expansion, origin, index)
    if len(without) == len(expansion.blocks):
        return []
    earlier = Earlier(expansion, origin, store=store, index=index, granted=granted)
    found = [each.adopted for each in earlier.verdicts(numbers, without=without) if each.adopted is not None]
    again = run_again_last(expansion, [*(each.number for each in found), *(granted or ())])
    return [each for each in found if each.number not in again] if again else found


def run_again_last(expansion: Expansion, adopted: Collection[int]) -> set[int]:
    """What runs last, of which nothing is adopted where anything else has to run."""
    last = {number for block in expansion.blocks if block.package.role == "final" for number in block.packages()}
    last -= expansion.left_out
    if not last or (not expansion.late and len(last.union(adopted)) == expansion.wanted):
        return set()
    return last


def may_be_there(expansion: Expansion, origin: Origin, index: WorkIndex) -> bool:
    """Whether anything that a job is to make can have been made before."""
    if origin.fresh or not index.knows(origin.folder):
        return False
    return len(_surely_new(expansion, origin, index)) < len(expansion.blocks) or bool(expansion.late)


def _surely_new(expansion: Expansion, origin: Origin, index: WorkIndex) -> frozenset[int]:
    """The blocks, by their `id`, of which nothing can have been made before.

    What makes no file has the name of its document in its key: it is looked for only where that document was run. What
    makes some is looked for only where any was made.
    """
    ran = index.knows(origin.folder, document=expansion.definition.job)
    made = index.knows_files(origin.folder)
    if ran and made:
        return frozenset()
    blocks = [block for block in expansion.blocks if not block.package.done]
    return frozenset(
        id(block) for block in blocks if not (ran or _makes_files(block)) or not (made or _may_make_none(block))
    )


def _makes_files(block: Block) -> bool:
    return any(binary.outputs or binary.stdout or binary.stderr for binary in block.package.binaries)


def _may_make_none(block: Block) -> bool:
    """Whether a package of a block may be done without a file: it has none to make, an expression, or a script, decides."""
    package = block.package
    if package.noop or package.scripts.pre or package.scripts.post or not _makes_files(block):
        return True
    return any(output.expression for binary in package.binaries for output in binary.outputs)


def said_to_be_done(expansion: Expansion) -> list[Adopted]:
    """The packages that the document says were done before; also a fresh run does not run them."""
    blocks = [block for block in expansion.blocks if block.package.done]
    numbers = (number for block in blocks for number in block.packages())
    return [_done(expansion, number) for number in numbers if number not in expansion.left_out]


class Earlier:
    """Looks at packages one after the other, and at many of them with one question."""

    def __init__(
        self,
        expansion: Expansion,
        origin: Origin,
        *,
        store: FileStore,
        index: WorkIndex,
        granted: Mapping[int, tuple[OutputFile, ...]] | None = None,
        explain: bool = False,
    ) -> None:
        """With `explain`, it is said of what is not adopted why, and the field that changed is looked for."""
        self._expansion = expansion
        self._origin = origin
        self._store = store
        self._index = index
        self._explain = explain
        self._manifests: dict[int, tuple[OutputFile, ...]] = dict(granted or {})
        self._waiting: dict[int, _Asked] = {}
        self._behind_late = {id(expansion.blocks[position]) for position in expansion.late_waits}

    def verdicts(self, numbers: Collection[int] | None = None, *, without: Collection[int] = ()) -> Iterator[Verdict]:
        """What is found out about every package, or about some; each follows those whose files it takes.

        Nothing is said of packages that are left out, nor of those of blocks that are left out by their `id`.
        """
        order, left_out = self._expansion.graph.order(), self._expansion.left_out
        for number in order.tolist() if order is not None else ():
            if (numbers is not None and number not in numbers) or number in left_out:
                continue
            block = self._expansion.block(number)
            if without and id(block) in without:
                continue
            if block.package.done:
                self._manifests[number] = ()
                yield Verdict(number=number, adopted=_done(self._expansion, number))
                continue
            producers = self._producers(number)
            if self._waiting and any(producer in self._waiting for producer in producers):
                yield from self._settle()
            missing = next((each for each in producers if each not in self._manifests), None)
            if missing is not None:
                waits = f"waits for {self._expansion.id(missing).dotted}" if self._explain else ""
                yield Verdict(number=number, changed=waits)
            elif id(block) in self._behind_late:
                yield Verdict(number=number, changed="waits for a stage that is not laid out yet")
            else:
                yield from self._ask(number, producers)
            if len(self._waiting) >= _TOGETHER:
                yield from self._settle()
        yield from self._settle()

    def _ask(self, number: int, producers: list[int]) -> Iterator[Verdict]:
        """Work out the key of a package; it is looked for together with others."""
        expansion = self._expansion
        inputs = tuple(InputSource(expansion.id(producer).dotted, 1) for producer in producers)
        assignment = Assignment(ref=AttemptRef("", expansion.id(number).dotted, 1), inputs=inputs)
        try:
            work, *others = compose_every_way(
                expansion, number, assignment, self._origin, manifest_of=self._manifests.get
            )
            fields = completed(fields_of(work, *others), self._checksum)
        except PilotageError as fault:
            yield Verdict(number=number, changed=fault.what)
            return
        if fields is None:
            unknown = next(each.name for each in work.inputs if not each.sha256 and self._checksum(each.name) is None)
            yield Verdict(number=number, changed=f"missing input {unknown}")
            return
        self._waiting[number] = _Asked(number, fields, key_of(fields))

    def _settle(self) -> Iterator[Verdict]:
        """Look for everything that waits."""
        waiting, self._waiting = list(self._waiting.values()), {}
        if not waiting:
            return
        found = self._index.find(self._origin.folder, [asked.key for asked in waiting])
        faults = out_of_place(found.values(), self._origin.folder, store=self._store, index=self._index)
        latest = self._latest(waiting, found)
        for asked in waiting:
            made = found.get(asked.key)
            place = self._expansion.id(asked.number).dotted
            if made is not None and asked.key not in faults:
                self._manifests[asked.number] = made.manifest
                adopted = Adopted(
                    number=asked.number,
                    package=place,
                    manifest=made.manifest,
                    maker=made.ref,
                    message=made_before(made.ref),
                )
                yield Verdict(number=asked.number, adopted=adopted)
            elif made is not None:
                yield Verdict(number=asked.number, changed=faults[asked.key])
            else:
                before = latest.get(place)
                why = changed(before, asked.fields) if before else NEVER
                yield Verdict(number=asked.number, changed=why)

    def _latest(self, waiting: list[_Asked], found: Mapping[str, MadeWork]) -> dict[str, WorkFields]:
        """What was asked for in the run before, of those that are not found."""
        if not self._explain:
            return {}
        places = [self._expansion.id(asked.number).dotted for asked in waiting if asked.key not in found]
        return self._index.latest(self._origin.folder, self._expansion.definition.job, places)

    def _checksum(self, name: str) -> str | None:
        return self._store.checksum(self._origin.folder, name)

    def _producers(self, number: int) -> list[int]:
        """The packages whose files one takes."""
        found: list[int] = []
        for segment in self._expansion.graph.segments:
            start, end = segment.predecessors.span(number)
            numbers, kinds = segment.predecessors.numbers, segment.kind_numbers
            found += [numbers[at] for at in range(start, end) if kinds[at] & _FILES]
        return found


def made_before(maker: AttemptRef) -> str:
    """What is said of a package that need not be run."""
    return f"made before, by attempt {maker.attempt} of {maker.job}/{maker.package}"


def out_of_place(found: Collection[MadeWork], folder: str, *, store: FileStore, index: WorkIndex) -> dict[str, str]:
    """What is wrong with the files of what was made, by key."""
    there = store.look_up(folder, {file.name for made in found for file in made.manifest})
    seen = index.seen(folder, list(there))
    faults: dict[str, str] = {}
    for made in found:
        for file in made.manifest:
            stored, known = there.get(file.name), seen.get(file.name)
            if stored is None:
                faults[made.key] = f"missing output {file.name}"
            elif known is not None and known.is_still(stored):
                if known.sha256 != file.sha256:
                    faults[made.key] = f"changed output {file.name}"
            elif stored.size_bytes != file.size_bytes or store.checksum(folder, file.name) != file.sha256:
                faults[made.key] = f"changed output {file.name}"
            if made.key in faults:
                break
    return faults


def _done(expansion: Expansion, number: int) -> Adopted:
    place = expansion.id(number).dotted
    return Adopted(
        number=number,
        package=place,
        manifest=(),
        maker=AttemptRef(expansion.definition.job, place, 1),
        message="the document says that it was done before",
    )
