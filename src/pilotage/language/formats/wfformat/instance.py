"""Reads an instance into values: tasks with their files, and all references resolved."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from pilotage.language.formats.wfformat.schema import LossTally, Shape, number_of
from pilotage.language.text.names import STATE_FOLDER, FreeNames, is_url, tidy_name, why_outside, without_scheme
from pilotage.language.text.patterns import is_pattern
from pilotage.language.text.tree import Listing, Mark, Node, Scalar, Table
from pilotage.model.errors import did_you_mean

# Converts names: ids that WfFormat allows, and file names inside the job's tree.

OWN_SYSTEM = "pilotage"

_TASK_CHARACTERS = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.")
_FILE_CHARACTERS = _TASK_CHARACTERS | frozenset("/:")
_CODED = re.compile(r"(?:#[0-9a-f]{2})+")
_COUNTER = re.compile(r"(?<=.)_(?:ID)?[0-9]+\Z")
_UP = "up"


def task_id(name: str) -> str:
    """The name of a package in the characters of WfFormat ids; others as `#` and their UTF-8 bytes."""
    return _coded(name, _TASK_CHARACTERS)


def file_id(name: str) -> str:
    """The name of a file in the characters of WfFormat file ids."""
    return _coded(name, _FILE_CHARACTERS)


def _coded(name: str, allowed: frozenset[str]) -> str:
    if allowed.issuperset(name):
        return name
    return "".join(
        c if c in allowed else "".join(f"#{byte:02x}" for byte in c.encode("utf-8", "surrogatepass")) for c in name
    )


def decoded(written: str) -> str:
    """The name that `task_id` or `file_id` encoded; any other text stays as it is."""
    if "#" not in written:
        return written
    try:
        return _CODED.sub(
            lambda found: bytes.fromhex(found[0].replace("#", "")).decode("utf-8", "surrogatepass"), written
        )
    except UnicodeDecodeError:
        return written


def name_in_tree(name: str) -> str:
    """A file name inside the job's tree: unchanged if possible, otherwise without its root and with `up` for `..`.

    Empty if the text names no file.
    """
    parts = [part for part in without_scheme(name).split("/") if part not in ("", ".")]
    inside = tidy_name("/".join(parts)) if parts else ""
    if inside == ".." or inside.startswith("../"):
        inside = "/".join(_UP if part == ".." else part for part in inside.split("/"))
    if inside == STATE_FOLDER or inside.startswith(f"{STATE_FOLDER}/"):
        inside = inside[1:]
    return "" if inside == "." else inside


def without_counter(name: str) -> str:
    """The name of a task without its counter: `mProject` for `mProject_ID0000007`."""
    return _COUNTER.sub("", name)


_HINTS_MAX = 5
_HINT_NAMES_MAX = 2000

Nodes = dict[str, Node]


class LocatedText(msgspec.Struct, frozen=True):
    """A text and its position; ids of our own exports are decoded."""

    text: str
    mark: Mark


class LocatedNumber(msgspec.Struct, frozen=True):
    """A number and its position."""

    value: int | float
    mark: Mark


class TaskExecution(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded execution of one task."""

    program: LocatedText | None
    arguments: tuple[str, ...]
    numbers: dict[str, LocatedNumber]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One task: its id, its parents and the ids of its files."""

    id: LocatedText
    name: str
    parents: tuple[str, ...]
    inputs: tuple[LocatedText, ...]
    outputs: tuple[LocatedText, ...]
    executed: TaskExecution | None


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A whole instance."""

    name: LocatedText
    description: str
    created: LocatedText | None
    own: bool  # written by pilotage itself
    tasks: tuple[Task, ...]
    sizes: dict[str, LocatedNumber]  # by the id of the file
    one_sided: tuple[tuple[str, str], ...]  # edges that only one of `parents` and `children` has


def read_instance(tree: Table, shape: Shape) -> Instance:
    """The instance of a valid tree; unknown references are reported."""
    return _InstanceReader(tree, shape).read()


class _InstanceReader:
    """Resolves the references of one instance."""

    def __init__(self, tree: Table, shape: Shape) -> None:
        self._shape = shape
        self._top = _nodes(tree)
        system = self._top.get("runtimeSystem")
        name = system.get("name") if isinstance(system, Table) else None
        self._own = isinstance(name, Scalar) and name.text == OWN_SYSTEM
        self._hints = 0

    def read(self) -> Instance:
        """Read everything, in the order in which faults should be reported."""
        workflow = _nodes(self._top["workflow"])
        specification = _nodes(workflow["specification"])
        tables = [_nodes(item) for item in _items(specification["tasks"])]
        ids = self._unique([self._id(table["id"]) for table in tables], noun="task")
        sizes = self._sizes(specification.get("files"))
        executions = self._executions(workflow.get("execution"), ids)
        parents = [self._references(table["parents"], ids, code="unknown-parent") for table in tables]
        children = [self._references(table["children"], ids, code="unknown-child") for table in tables]
        joined, one_sided = _joined([*ids], parents, children) if len(ids) == len(tables) else ({}, ())
        tasks = []
        for table in tables:
            task_id = self._id(table["id"])
            tasks.append(
                Task(
                    id=task_id,
                    name=_text(table["name"]),
                    parents=tuple(joined.get(task_id.text, ())),
                    inputs=self._files(table.get("inputFiles"), sizes),
                    outputs=self._files(table.get("outputFiles"), sizes),
                    executed=executions.get(task_id.text),
                )
            )
        created = self._top.get("createdAt")
        description = self._top.get("description")
        return Instance(
            name=_located(self._top["name"]),
            description=_text(description) if description else "",
            created=_located(created) if created else None,
            own=self._own,
            tasks=tuple(tasks),
            sizes=sizes or {},
            one_sided=one_sided,
        )

    def _id(self, node: Node) -> LocatedText:
        text = _text(node)
        return LocatedText(decoded(text) if self._own else text, node.mark)

    def _unique(self, ids: Iterable[LocatedText], *, noun: str) -> dict[str, LocatedText]:
        found: dict[str, LocatedText] = {}
        for id_ in ids:
            first = found.setdefault(id_.text, id_)
            if first is not id_:
                message = f"two {noun}s have the id {id_.text[:200]!r}: the first is at line {first.mark.line}"
                self._shape.fault("duplicate-id", message, Scalar("", plain=False, mark=id_.mark))
        return found

    def _sizes(self, node: Node | None) -> dict[str, LocatedNumber] | None:
        """The sizes of all listed files; None if there is no list."""
        if node is None:
            return None
        tables = [_nodes(item) for item in _items(node)]
        self._unique([self._id(table["id"]) for table in tables], noun="file")
        return {self._id(table["id"]).text: _quantity(table["sizeInBytes"]) for table in tables}

    def _files(self, node: Node | None, sizes: dict[str, LocatedNumber] | None) -> tuple[LocatedText, ...]:
        found: dict[str, LocatedText] = {}
        for item in _items(node):
            file = self._id(item)
            found.setdefault(file.text, file)
            if sizes is not None and file.text not in sizes:
                message = f"the file {file.text[:200]!r} is not among 'workflow.specification.files'"
                self._shape.fault("unknown-file", message, item, hint=self._hint(file.text, sizes))
        return tuple(found.values())

    def _references(self, node: Node, ids: dict[str, LocatedText], *, code: str) -> list[str]:
        found: dict[str, None] = {}
        for item in _items(node):
            task_id = self._id(item)
            if task_id.text in ids:
                found.setdefault(task_id.text)
            else:
                message = f"no task has the id {task_id.text[:200]!r}"
                self._shape.fault(code, message, item, hint=self._hint(task_id.text, ids))
        return list(found)

    def _executions(self, node: Node | None, ids: dict[str, LocatedText]) -> dict[str, TaskExecution]:
        if node is None:
            return {}
        tables = [_nodes(item) for item in _items(_nodes(node)["tasks"])]
        executed_ids = [self._id(table["id"]) for table in tables]
        self._unique(executed_ids, noun="executed task")
        found: dict[str, TaskExecution] = {}
        for task_id, table in zip(executed_ids, tables, strict=True):
            if task_id.text not in ids:
                message = f"no task of the specification has the id {task_id.text[:200]!r}"
                where = Scalar("", plain=False, mark=task_id.mark)
                self._shape.fault("unknown-task", message, where, hint=self._hint(task_id.text, ids))
            command = _nodes(table["command"]) if "command" in table else {}
            found[task_id.text] = TaskExecution(
                program=_located(command["program"]) if "program" in command else None,
                arguments=tuple(_text(item) for item in _items(command.get("arguments"))),
                numbers={name: _quantity(value) for name, value in table.items() if name in _NUMBERS},
            )
        return found

    def _hint(self, name: str, known: Iterable[str]) -> str:
        """A similar name, only for the first faults, since the search is slow."""
        self._hints += 1
        if self._hints > _HINTS_MAX:
            return ""
        return did_you_mean(name[:200], [text for text, _ in zip(known, range(_HINT_NAMES_MAX), strict=False)])


_NUMBERS = frozenset({"runtimeInSeconds", "coreCount", "avgCPU", "memoryInBytes", "priority"})


def _joined(
    ids: list[str], parents: list[list[str]], children: list[list[str]]
) -> tuple[dict[str, dict[str, None]], tuple[tuple[str, str], ...]]:
    """The parents of each task from both lists, and the edges that are in only one of them."""
    from_parents = {(parent, task) for task, named in zip(ids, parents, strict=True) for parent in named}
    joined = {task: dict.fromkeys(named) for task, named in zip(ids, parents, strict=True)}
    from_children = [(task, child) for task, named in zip(ids, children, strict=True) for child in named]
    for parent, child in from_children:
        joined[child].setdefault(parent)
    one_sided = from_parents.symmetric_difference(from_children)
    return joined, tuple(sorted(one_sided))


def _nodes(node: Node) -> Nodes:
    return {key.text: value for key, value in node.entries} if isinstance(node, Table) else {}


def _items(node: Node | None) -> tuple[Node, ...]:
    return node.items if isinstance(node, Listing) else ()


def _text(node: Node) -> str:
    return node.text if isinstance(node, Scalar) else ""


def _located(node: Node) -> LocatedText:
    return LocatedText(_text(node), node.mark)


def _quantity(node: Node) -> LocatedNumber:
    return LocatedNumber(number_of(node) or 0, node.mark)


# The files of an instance: names in the job's tree, sizes and producers.

KEYWORD = "workflow.specification.files.id"


class Files:
    """All files of an instance."""

    def __init__(self, instance: Instance, shape: Shape, tally: LossTally) -> None:
        """Give each file a name; files without a valid name and files with two producers are reported."""
        self._shape = shape
        self._tally = tally
        self._names: dict[str, str] = {}
        self._sizes = instance.sizes
        self._own = instance.own
        self._name_all(list(_mentioned(instance)))
        self.makers: dict[str, int] = {}
        for number, task in enumerate(instance.tasks):
            for file in task.outputs:
                self._note_maker(file, number, instance)

    def name(self, file: LocatedText) -> str:
        """The file's name in the job's tree."""
        return self._names.get(file.text, file.text)

    def size_bytes(self, file: LocatedText) -> int | None:
        """The size of a file; None for 0 in our own exports, which means unknown."""
        size = self._sizes.get(file.text)
        return None if size is None or (self._own and not size.value) else int(size.value)

    def locator(self, file: LocatedText) -> str:
        """The original location of an external file, if its name here differs."""
        return file.text if self.name(file) != tidy_name(file.text) else ""

    def _name_all(self, mentioned: list[LocatedText]) -> None:
        free = FreeNames()
        elsewhere: list[LocatedText] = []
        for file in mentioned:
            if is_pattern(file.text) or "\0" in file.text or not name_in_tree(file.text):
                message = (
                    f"{file.text[:200]!r} cannot name a file: it is a pattern, a folder, or contains a NUL character"
                )
                self._shape.fault("bad-file-name", message, Scalar("", plain=False, mark=file.mark))
            elif is_url(file.text) or why_outside(file.text):
                elsewhere.append(file)
            else:
                self._names[file.text] = tidy_name(file.text)
                free.reserve(self._names[file.text])
        for file in elsewhere:
            self._names[file.text] = free.take(name_in_tree(file.text))
        if elsewhere:
            first = elsewhere[0]
            reason = (
                f"files of a job are in its tree: {len(elsewhere):,} names that lead elsewhere were changed to names in it, "
                f"such as {self._names[first.text][:200]!r} for {first.text[:200]!r}"
            )
            self._tally.add(KEYWORD, reason, first.mark)

    def _note_maker(self, file: LocatedText, number: int, instance: Instance) -> None:
        name = self.name(file)
        first = self.makers.setdefault(name, number)
        if first != number:
            one, two = instance.tasks[first].id.text[:200], instance.tasks[number].id.text[:200]
            message = f"two tasks make {name[:200]!r}: {one!r} and {two!r}"
            self._shape.fault("two-makers", message, Scalar("", plain=False, mark=file.mark))


def _mentioned(instance: Instance) -> Iterator[LocatedText]:
    """All files once: the listed ones first, then those that only tasks name."""
    names: set[str] = set()
    for text, size in instance.sizes.items():
        names.add(text)
        yield LocatedText(text, size.mark)
    for task in instance.tasks:
        for file in (*task.inputs, *task.outputs):
            if file.text not in names:
                names.add(file.text)
                yield file
