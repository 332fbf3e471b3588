"""Finds packages that need not run: an earlier run had the same inputs and command, and its outputs are unchanged.

Packages are examined after their producers: the inputs of a package, and with them its key, are known when all its
producers are adopted.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from zlib import crc32

import msgspec

from pilotage.language import Expansion
from pilotage.language.expansion.blocks import Block
from pilotage.model.errors import PilotageError
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import (
    Assignment,
    AttemptRef,
    InputSource,
    Work,
    WorkBinary,
    WorkInput,
    WorkScript,
)
from pilotage.model.jobs.graph import EdgeKind
from pilotage.model.jobs.submission import Origin
from pilotage.ports import JobTree, MadeWork, ResultsIndex, StoreError, WorkFields
from pilotage.service.works.site_files import NO_SITE, NotAtSite, SiteFiles, refuse_unknown
from pilotage.service.works.stored_copies import disposed_results
from pilotage.service.works.work_orders import compose_every_way

# The key of a package: equal keys give equal outputs, so valid results are reused.
#
# The key is computed from fields, and each field is stored with it: for a package that must run, the changed field is
# named.

Checksum = Callable[[str], str | None]
"""Returns the sha256 of a file by its name in the job's tree; None if there is none."""

INPUTS_MAX = 1000
"""More inputs than this are one field: a changed one is not named."""

_canonical = msgspec.json.Encoder(order="deterministic").encode
_DIGITS = 32
_NAMED_DIGITS = 8  # of a program, only to name it
_NAMED_MAX = 5  # variables to name


def fields_of(work: Work, *others: Work) -> WorkFields:
    """The fields of a work order; an input whose checksum is unknown has an empty one.

    If the command of a package depends on the site, its key covers all variants: it is the same at every site, and one
    site's result is not made again at another.
    """
    if others:
        return _together([_fields_of(each) for each in (work, *others)])
    return _fields_of(work)


def _together(ways: Sequence[WorkFields]) -> WorkFields:
    return WorkFields(
        argv=_digest([each.argv for each in ways]),
        software=_digest([each.software for each in ways]),
        environment=_digest([each.environment for each in ways]),
        variables=_digests_together(each.variables for each in ways),
        outputs=ways[0].outputs,
        inputs=ways[0].inputs,
        programs={name: digest for each in ways for name, digest in each.programs.items()},
    )


def _digests_together(ways: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The digests of variables by name, which change if one changes in any variant."""
    found: dict[str, list[str]] = {}
    for at, each in enumerate(ways):
        for name, digest in each.items():
            found.setdefault(name, []).append(f"{at}={digest}")
    return {name: f"{crc32(chr(0).join(each).encode()):08x}" for name, each in found.items()}


def _fields_of(work: Work) -> WorkFields:
    commands, environment, makes = [], [], False
    for each in work.binaries:
        commands.append((each.argv, each.stdin, each.stdout, each.stderr))
        environment.append(each.environment)
        makes = makes or bool(each.outputs or each.stdout or each.stderr)
    programs: dict[str, str] = {}
    inputs: dict[str, str] = {}
    for given in (*work.inputs, *_files(work.pre), *_files(work.post)) if work.pre or work.post else work.inputs:
        (programs if given.executable else inputs)[given.name] = given.sha256
    container = (work.container.image, work.container.engine) if work.container is not None else ()
    known: dict[str, str] = {}
    if work.software or container or programs:
        known = {work.software: ""} if work.software else {}
        if work.container is not None:
            known[work.container.image] = work.container.engine
        known.update((name, sha256[:_NAMED_DIGITS]) for name, sha256 in programs.items())
    return WorkFields(
        argv=_digest((commands, work.startup, _argv(work.pre), _argv(work.post))),
        software=_digest((work.software, container, programs)) if known else _NONE,
        environment=_digest(environment) if len(environment) != 1 or environment[0] else _USUAL,
        variables=_variables(environment) if any(environment) else {},
        # A package without outputs runs as often as it is written: two equal commands are two.
        outputs=_digest([_outputs(each) for each in work.binaries] if makes else work.path),
        inputs=_joined(inputs),
        programs=known,
    )


def completed(fields: WorkFields, checksum: Checksum) -> WorkFields | None:
    """The fields with the missing checksums of inputs; None if an input does not exist."""
    if all(fields.inputs.values()):
        return fields
    inputs: dict[str, str] = {}
    for name, known in fields.inputs.items():
        sha256 = known or checksum(name)
        if not sha256:
            return None
        inputs[name] = sha256
    return msgspec.structs.replace(fields, inputs=_joined(inputs))


def key_of(fields: WorkFields) -> str:
    """The key of some fields."""
    if fields.programs or fields.variables:
        fields = msgspec.structs.replace(fields, programs={}, variables={})
    return hashlib.sha256(_canonical(fields)).hexdigest()


def is_complete(fields: WorkFields) -> bool:
    """Whether the checksum of every input is known: only then is the key meaningful."""
    return all(fields.inputs.values())


def changed(before: WorkFields, now: WorkFields) -> str:
    """The first field that changed: `argv`, `software a.sh`, `environment A`, `input a.dat`, `outputs`."""
    if before.argv != now.argv:
        return "argv"
    if before.software != now.software:
        return f"software {_changed_programs(before.programs, now.programs)}".rstrip()
    if before.environment != now.environment:
        return f"environment {_changed_variables(before, now)}".rstrip()
    for name, sha256 in now.inputs.items():
        if before.inputs.get(name) != sha256:
            return f"input {name}"
    for name in before.inputs:
        if name not in now.inputs:
            return f"input {name}"
    return "outputs" if before.outputs != now.outputs else ""


def _changed_programs(before: dict[str, str], now: dict[str, str]) -> str:
    """The names of the changed programs; of all, if the earlier ones are unknown."""
    if not before:
        return " or ".join(now)
    other = [name for name, digest in now.items() if before.get(name) != digest]
    return ", ".join(other or [name for name in before if name not in now])


def _variables(environments: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The variables of all binaries, each with a digest that changes if any of its values does."""
    values: dict[str, list[str]] = {}
    for at, environment in enumerate(environments):
        for name, value in environment.items():
            values.setdefault(name, []).append(f"{at}={value}")
    # Only to name them: the sha256 of all variables says whether anything changed.
    return {name: f"{crc32(chr(0).join(each).encode('utf-8', 'surrogateescape')):08x}" for name, each in values.items()}


def _changed_variables(before: WorkFields, now: WorkFields) -> str:
    """The variables that are new, gone or changed; empty if the earlier ones are unknown."""
    if not before.variables and before.environment != _USUAL:
        return ""
    names = sorted({*before.variables, *now.variables})
    other = [name for name in names if before.variables.get(name) != now.variables.get(name)]
    more = f" and {len(other) - _NAMED_MAX:,} more" if len(other) > _NAMED_MAX else ""
    return ", ".join(other[:_NAMED_MAX]) + more


def _joined(inputs: dict[str, str]) -> dict[str, str]:
    """The inputs as stored: very many become one field, once all checksums are known."""
    if len(inputs) <= INPUTS_MAX or not all(inputs.values()):
        return inputs
    return {f"(one of {len(inputs):,})": _digest(inputs)}


def _outputs(binary: WorkBinary) -> list[tuple[str | bool, ...]]:
    # Keys of results that are not stored stay as they were before there were stores.
    return [
        (each.name, each.expression, each.folder, each.pattern, *((each.stored,) if each.stored else ()))
        for each in binary.outputs
    ]


def _argv(script: WorkScript | None) -> tuple[str, ...]:
    return script.argv if script is not None else ()


def _files(script: WorkScript | None) -> tuple[WorkInput, ...]:
    return script.files if script is not None else ()


def _digest(value: object) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()[:_DIGITS]


_NONE = _digest(("", (), {}))
_USUAL = _digest([{}])

NEVER = "never made"

_TOGETHER = 1000  # looked up together
_FILES = int(EdgeKind.FILE | EdgeKind.PATTERN)


class EarlierResult(msgspec.Struct, frozen=True, kw_only=True):
    """A package with existing outputs: its manifest, and the attempt that made them."""

    number: int
    package: str  # dotted
    manifest: tuple[OutputFile, ...]
    maker: AttemptRef
    message: str = ""
    disposed: bool = False  # some of its outputs were removed on purpose


class ReuseResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a package: adopted, or what changed since it was last made."""

    number: int
    adopted: EarlierResult | None = None
    changed: str = ""


class _KeyedPackage(msgspec.Struct, frozen=True):
    """A package with its key."""

    number: int
    fields: WorkFields
    key: str


def adopt(
    expansion: Expansion,
    origin: Origin,
    *,
    tree: JobTree,
    index: ResultsIndex,
    granted: Mapping[int, tuple[OutputFile, ...]] | None = None,
    numbers: Collection[int] | None = None,
    files: SiteFiles = NO_SITE,
) -> list[EarlierResult]:
    """The packages that need not run. If the folder has no earlier results, nothing is examined.

    For a job that has grown, `numbers` are the new packages, and `granted` has the manifests of the earlier ones. `files` has
    the contents of files that are brought to sites.
    """
    any_declared = any(block.package.done for block in expansion.blocks)
    if not any_declared and not index.knows(origin.folder):
        return []
    without = _surely_new(expansion, origin, index)
    if len(without) == len(expansion.blocks):
        return []
    earlier = ReuseSearch(expansion, origin, tree=tree, index=index, granted=granted, files=files)
    found = [each.adopted for each in earlier.verdicts(numbers, without=without) if each.adopted is not None]
    if remade := needed_again(expansion, found, [*(each.number for each in found), *(granted or ())]):
        found = [each for each in found if each.number not in remade]
    again = final_packages(expansion, [*(each.number for each in found), *(granted or ())])
    return [each for each in found if each.number not in again] if again else found


def final_packages(expansion: Expansion, adopted: Collection[int]) -> set[int]:
    """The final packages; none of them is adopted if anything else has to run."""
    last = {number for block in expansion.blocks if block.package.role == "final" for number in block.packages()}
    last -= expansion.left_out
    if not last or (not expansion.late and len(last.union(adopted)) == expansion.wanted):
        return set()
    return last


def needed_again(expansion: Expansion, found: Sequence[EarlierResult], adopted: Collection[int]) -> set[int]:
    """The packages that must run again because one that runs reads outputs of theirs that were removed on purpose.

    `found` has producers before their consumers; all other packages than the `adopted` ones run.
    """
    there, again = {*adopted, *expansion.left_out}, set[int]()
    for each in reversed(found):
        if each.disposed and any(
            consumer not in there for consumer in expansion.graph.successors(each.number).tolist()
        ):
            there.discard(each.number)
            again.add(each.number)
    return again


def may_be_there(expansion: Expansion, origin: Origin, index: ResultsIndex) -> bool:
    """Whether any output of a job can exist from an earlier run."""
    if origin.fresh or not index.knows(origin.folder):
        return False
    return len(_surely_new(expansion, origin, index)) < len(expansion.blocks) or bool(expansion.late)


def _surely_new(expansion: Expansion, origin: Origin, index: ResultsIndex) -> frozenset[int]:
    """The blocks, by their `id`, that cannot have earlier results.

    The key of a package without outputs contains the name of its document: it is looked up only if that document ran
    before. Packages with outputs are looked up only if any file was made.
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
    """Whether a package of a block may end without a file: it has no outputs, or an expression or a script decides."""
    package = block.package
    if package.noop or package.scripts.pre or package.scripts.post or not _makes_files(block):
        return True
    return any(output.expression for binary in package.binaries for output in binary.outputs)


def declared_done(expansion: Expansion) -> list[EarlierResult]:
    """The packages that the document declares as done before; a fresh run does not run them either."""
    blocks = [block for block in expansion.blocks if block.package.done]
    numbers = (number for block in blocks for number in block.packages())
    return [_done(expansion, number) for number in numbers if number not in expansion.left_out]


class ReuseSearch:
    """Examines packages in order, looking up many with one query."""

    def __init__(
        self,
        expansion: Expansion,
        origin: Origin,
        *,
        tree: JobTree,
        index: ResultsIndex,
        granted: Mapping[int, tuple[OutputFile, ...]] | None = None,
        files: SiteFiles = NO_SITE,
        explain: bool = False,
    ) -> None:
        """With `explain`, also say why a package is not adopted, and which field changed."""
        self._expansion = expansion
        self._origin = origin
        self._tree = tree
        self._index = index
        self._files = files
        self._explain = explain
        self._manifests: dict[int, tuple[OutputFile, ...]] = dict(granted or {})
        self._waiting: dict[int, _KeyedPackage] = {}
        self._behind_late = {id(expansion.blocks[position]) for position in expansion.late_waits}

    @property
    def manifests(self) -> Mapping[int, tuple[OutputFile, ...]]:
        """The manifests of the packages that are adopted, as far as they were examined."""
        return self._manifests

    def verdicts(
        self, numbers: Collection[int] | None = None, *, without: Collection[int] = ()
    ) -> Iterator[ReuseResult]:
        """The result for every package, or for some; producers come before their consumers.

        Packages and blocks (by `id`) that are left out have none.
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
                yield ReuseResult(number=number, adopted=_done(self._expansion, number))
                continue
            producers = self._producers(number)
            if self._waiting and any(producer in self._waiting for producer in producers):
                yield from self._settle()
            missing = next((each for each in producers if each not in self._manifests), None)
            if missing is not None:
                waits = f"waits for {self._expansion.id(missing).dotted}" if self._explain else ""
                yield ReuseResult(number=number, changed=waits)
            elif id(block) in self._behind_late:
                yield ReuseResult(number=number, changed="waits for a stage that is not expanded yet")
            else:
                yield from self._ask(number, producers)
            if len(self._waiting) >= _TOGETHER:
                yield from self._settle()
        yield from self._settle()

    def _ask(self, number: int, producers: list[int]) -> Iterator[ReuseResult]:
        """Compute the key of a package; it is looked up together with others."""
        expansion = self._expansion
        inputs = tuple(InputSource(expansion.id(producer).dotted, 1) for producer in producers)
        assignment = Assignment(ref=AttemptRef("", expansion.id(number).dotted, 1), inputs=inputs)
        try:
            work, *others = compose_every_way(
                expansion, number, assignment, self._origin, manifest_of=self._manifests.get, files=self._files
            )
            refuse_unknown(work.inputs)
            fields = completed(fields_of(work, *others), self._checksum)
        except NotAtSite as fault:
            yield ReuseResult(number=number, changed=f"input to bring {fault.subject}")
            return
        except PilotageError as fault:
            yield ReuseResult(number=number, changed=fault.what)
            return
        if fields is None:
            unknown = next(each.name for each in work.inputs if not each.sha256 and self._checksum(each.name) is None)
            yield ReuseResult(number=number, changed=f"missing input {unknown}")
            return
        self._waiting[number] = _KeyedPackage(number, fields, key_of(fields))

    def _settle(self) -> Iterator[ReuseResult]:
        """Look up all waiting packages."""
        waiting, self._waiting = list(self._waiting.values()), {}
        if not waiting:
            return
        found = self._index.find(self._origin.folder, [asked.key for asked in waiting])
        faults = changed_outputs(found.values(), self._origin.folder, tree=self._tree, index=self._index)
        faulty = [made for key, made in found.items() if key in faults]
        disposed = disposed_results(faulty, self._origin.folder, tree=self._tree, index=self._index)
        latest = self._latest(waiting, found)
        for asked in waiting:
            made = found.get(asked.key)
            place = self._expansion.id(asked.number).dotted
            if made is not None and (asked.key not in faults or asked.key in disposed):
                self._manifests[asked.number] = made.manifest
                adopted = EarlierResult(
                    number=asked.number,
                    package=place,
                    manifest=made.manifest,
                    maker=made.ref,
                    message=made_before(made.ref),
                    disposed=asked.key in disposed,
                )
                yield ReuseResult(number=asked.number, adopted=adopted)
            elif made is not None:
                yield ReuseResult(number=asked.number, changed=faults[asked.key])
            else:
                before = latest.get(place)
                why = changed(before, asked.fields) if before else NEVER
                yield ReuseResult(number=asked.number, changed=why)

    def _latest(self, waiting: list[_KeyedPackage], found: Mapping[str, MadeWork]) -> dict[str, WorkFields]:
        """The fields of the latest run, for packages without a result."""
        if not self._explain:
            return {}
        places = [self._expansion.id(asked.number).dotted for asked in waiting if asked.key not in found]
        return self._index.latest(self._origin.folder, self._expansion.definition.job, places)

    def _checksum(self, name: str) -> str | None:
        return self._tree.checksum(self._origin.folder, name)

    def _producers(self, number: int) -> list[int]:
        """The producers of a package."""
        found: list[int] = []
        for segment in self._expansion.graph.segments:
            start, end = segment.predecessors.span(number)
            numbers, kinds = segment.predecessors.numbers, segment.kind_numbers
            found += [numbers[at] for at in range(start, end) if kinds[at] & _FILES]
        return found


def made_before(maker: AttemptRef) -> str:
    """The message for a package that need not run."""
    return f"made before, by attempt {maker.attempt} of {maker.job}/{maker.package}"


def changed_outputs(found: Collection[MadeWork], folder: str, *, tree: JobTree, index: ResultsIndex) -> dict[str, str]:
    """The faults of the output files of earlier results, by key."""
    there = tree.look_up(folder, {file.name for made in found for file in made.manifest})
    known_files = index.known_files(folder, list(there))
    faults: dict[str, str] = {}
    for made in found:
        for file in made.manifest:
            stored, known = there.get(file.name), known_files.get(file.name)
            if stored is None:
                faults[made.key] = f"missing output {file.name}"
            elif known is not None and known.is_still(stored):
                if known.sha256 != file.sha256:
                    faults[made.key] = f"changed output {file.name}"
            elif stored.size_bytes != file.size_bytes or tree.checksum(folder, file.name) != file.sha256:
                faults[made.key] = f"changed output {file.name}"
            if made.key in faults:
                break
    return faults


def _done(expansion: Expansion, number: int) -> EarlierResult:
    place = expansion.id(number).dotted
    return EarlierResult(
        number=number,
        package=place,
        manifest=(),
        maker=AttemptRef(expansion.definition.job, place, 1),
        message="the document declares it as done before",
    )


# Computes checksums of large inputs in the background, so that their packages can be reused, too.

log = logging.getLogger(__name__)

WAITING_MAX = 100_000
"""The most packages that may wait for checksums; beyond it the earliest run again next time."""


class Completer:
    """A thread that completes results with the checksums of their inputs, and records them in the index."""

    def __init__(
        self,
        tree: JobTree,
        index: ResultsIndex,
        *,
        waiting_max: int = WAITING_MAX,
        reading: threading.Lock | None = None,
    ) -> None:
        """Read files under the lock `reading`: what another thread has read of a large file is known then."""
        self._reading = reading or threading.Lock()
        self._tree = tree
        self._index = index
        self._waiting: deque[MadeWork] = deque(maxlen=waiting_max)
        self._change = threading.Condition()
        self._stopping = False
        self._busy = False
        self._thread = threading.Thread(target=self._run, name="completer", daemon=True)

    def complete(self, made: Iterable[MadeWork]) -> None:
        """Complete and record these results, some time soon."""
        with self._change:
            self._waiting.extend(made)
            if self._thread.ident is None and self._waiting:
                self._thread.start()
            self._change.notify_all()

    def settle(self) -> None:
        """Wait until nothing is pending."""
        with self._change:
            self._change.wait_for(lambda: self._stopping or not (self._waiting or self._busy))

    def stop(self) -> None:
        """End after the present one; the others are not recorded."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _completed(self, made: MadeWork) -> WorkFields | None:
        """The fields with every checksum; None if an input is no longer the file that the package read."""
        names = [name for name, sha256 in made.fields.inputs.items() if not sha256]
        if not self._is_as_placed(made, names):
            return None
        fields = completed(made.fields, partial(self._checksum, made.folder))
        return fields if self._is_as_placed(made, names) else None

    def _checksum(self, folder: str, name: str) -> str | None:
        with self._reading:
            return self._tree.checksum(folder, name)

    def _is_as_placed(self, made: MadeWork, names: Sequence[str]) -> bool:
        there, placed = self._tree.look_up(made.folder, names), made.placed
        return there.keys() == placed.keys() and all(file.is_like(placed[name]) for name, file in there.items())

    def _run(self) -> None:
        while True:
            with self._change:
                self._busy = False
                self._change.notify_all()
                self._change.wait_for(lambda: self._stopping or self._waiting)
                if self._stopping:
                    return
                made = self._waiting.popleft()
                self._busy = True
            try:
                fields = self._completed(made)
                if fields is not None:
                    self._index.keep([msgspec.structs.replace(made, key=key_of(fields), fields=fields)])
            except StoreError as fault:
                log.warning("%s was not recorded for later runs: %s", made.ref, fault)
