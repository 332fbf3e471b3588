"""Turns libyaml's events into a growing tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pilotage.language.text.growth import GrowthStopped, Kind, TreeGrowth
from pilotage.language.text.tree import Mark, Scalar

if TYPE_CHECKING:
    from yaml.error import YAMLError


def feed_yaml(text: str, *, growth: TreeGrowth, braces: tuple[str, str], last: Mark) -> YAMLError | None:
    """Deliver libyaml's events to `growth`; the syntax error that ended them, or None at the end of the document.

    `braces` are the two characters that stand for `{` and `}` in the text, or empty; `last` is the end of the text.
    """
    import yaml  # takes ten milliseconds, which a command that reads no YAML does not spend

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    feed = _Feed(growth, braces=braces, last=last)
    take: dict[type, Callable[[Any], None]] = {
        yaml.ScalarEvent: feed.scalar,
        yaml.MappingStartEvent: feed.mapping,
        yaml.SequenceStartEvent: feed.sequence,
        yaml.MappingEndEvent: feed.end,
        yaml.SequenceEndEvent: feed.end,
        yaml.AliasEvent: feed.alias,
        yaml.DocumentStartEvent: feed.document,
    }
    following, end = loader.get_event, yaml.StreamEndEvent
    try:
        while (kind := type(event := following())) is not end:
            if kind in take:
                take[kind](event)
    except yaml.YAMLError as error:
        return error
    finally:
        loader.dispose()
    feed.finish()
    return None


class _Feed:
    """One method for each event that matters."""

    def __init__(self, growth: TreeGrowth, *, braces: tuple[str, str], last: Mark) -> None:
        self._growth = growth
        self._left, self._right = braces
        self._last = last
        self._documents = 0

    def scalar(self, event: Any) -> None:
        begin, value = event.start_mark, event.value
        mark = Mark(begin.line + 1, begin.column + 1)
        if self._left and self._left in value:
            value = value.replace(self._left, "{").replace(self._right, "}")
        elif not value and mark.line > self._last.line:  # where libyaml puts an absent value at the end of the text
            mark = self._last
        if event.tag is not None:
            self._refuse_tag(event.tag, mark)
        self._growth.scalar(Scalar(value, not event.style, mark), anchor=event.anchor)

    def mapping(self, event: Any) -> None:
        self._open("flow" if event.flow_style else "block", event)

    def sequence(self, event: Any) -> None:
        self._open("list", event)

    def end(self, _event: Any) -> None:
        self._growth.close()

    def alias(self, event: Any) -> None:
        self._growth.alias(event.anchor, _mark_of(event))

    def document(self, event: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            self._growth.fault(
                "several-documents",
                "a second document begins here; a file holds one",
                _mark_of(event),
                hint="remove the `---` line, or put the second document into a file of its own",
            )
            raise GrowthStopped

    def finish(self) -> None:
        root = self._growth.root
        if root is None or (isinstance(root, Scalar) and root.plain and root.text == ""):
            self._growth.root = None
            self._growth.fault(
                "empty-document",
                "the document is empty",
                Mark(1, 1),
                hint="begin with `pilotage: 1`; `pilotage init` writes a first document",
            )

    def _open(self, kind: Kind, event: Any) -> None:
        mark = _mark_of(event)
        if event.tag is not None:
            self._refuse_tag(event.tag, mark)
        self._growth.open(kind, mark, anchor=event.anchor)

    def _refuse_tag(self, tag: str, mark: Mark) -> None:
        shown = tag.replace("tag:yaml.org,2002:", "!!")[:40]
        self._growth.fault(
            "tag", f"tags such as `{shown}` are not read", mark, hint="leave it out; quote the value if it is a text"
        )


def _mark_of(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)
