"""The files of an instance, each with its one name inside the job's tree, its size, and who makes it."""

from __future__ import annotations

from collections.abc import Iterator

from pilotage.language.text.names import FreeNames, is_url
from pilotage.language.text.paths import tidy_name, why_outside
from pilotage.language.text.patterns import is_pattern
from pilotage.language.text.tree import Scalar
from pilotage.language.wfformat.instance import Instance, Said
from pilotage.language.wfformat.names import name_in_tree
from pilotage.language.wfformat.shape import LossTally, Shape

KEYWORD = "workflow.specification.files.id"


class Files:
    """Knows every file of an instance."""

    def __init__(self, instance: Instance, shape: Shape, tally: LossTally) -> None:
        """Give each file its name; those that cannot have one, and those with two makers, are noted as faults."""
        self._shape = shape
        self._tally = tally
        self._names: dict[str, str] = {}
        self._sizes = instance.sizes
        self._own = instance.own
        self._name_all(list(_mentioned(instance)))
        self.makers: dict[str, int] = {}
        for number, task in enumerate(instance.tasks):
            for said in task.outputs:
                self._note_maker(said, number, instance)

    def name(self, said: Said) -> str:
        """The file's name in the job's tree."""
        return self._names.get(said.text, said.text)

    def size_bytes(self, said: Said) -> int | None:
        """The file's size; our own exports write 0 where it is not known."""
        size = self._sizes.get(said.text)
        return None if size is None or (self._own and not size.value) else int(size.value)

    def locator(self, said: Said) -> str:
        """Where a file from outside was said to be, if its name here does not tell any more."""
        return said.text if self.name(said) != tidy_name(said.text) else ""

    def _name_all(self, mentioned: list[Said]) -> None:
        free = FreeNames()
        elsewhere: list[Said] = []
        for said in mentioned:
            if is_pattern(said.text) or "\0" in said.text or not name_in_tree(said.text):
                message = f"{said.text[:200]!r} cannot name a file: it is a pattern, a folder, or holds a NUL character"
                self._shape.fault("bad-file-name", message, Scalar("", plain=False, mark=said.mark))
            elif is_url(said.text) or why_outside(said.text):
                elsewhere.append(said)
            else:
                self._names[said.text] = tidy_name(said.text)
                free.reserve(self._names[said.text])
        for said in elsewhere:
            self._names[said.text] = free.take(name_in_tree(said.text))
        if elsewhere:
            first = elsewhere[0]
            reason = (
                f"a job's files lie in its tree: {len(elsewhere):,} names that lead elsewhere became names in it, "
                f"such as {self._names[first.text][:200]!r} for {first.text[:200]!r}"
            )
            self._tally.add(KEYWORD, reason, first.mark)

    def _note_maker(self, said: Said, number: int, instance: Instance) -> None:
        name = self.name(said)
        first = self.makers.setdefault(name, number)
        if first != number:
            one, two = instance.tasks[first].id.text[:200], instance.tasks[number].id.text[:200]
            message = f"two tasks make {name[:200]!r}: {one!r} and {two!r}"
            self._shape.fault("two-makers", message, Scalar("", plain=False, mark=said.mark))


def _mentioned(instance: Instance) -> Iterator[Said]:
    """Every file once: the listed ones first, then those that only tasks name."""
    seen: set[str] = set()
    for text, size in instance.sizes.items():
        seen.add(text)
        yield Said(text, size.mark)
    for task in instance.tasks:
        for said in (*task.inputs, *task.outputs):
            if said.text not in seen:
                seen.add(said.text)
                yield said
