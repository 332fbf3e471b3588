"""Builds a tree from the events of a parser, without recursion and within limits; also the parser of JSON.

The parsers of YAML and JSON both feed a `TreeBuilder`, which checks the rules that both share: duplicate keys, nesting, the
number of values and aliases.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NoReturn

import msgspec

from pilotage.language.text.tree import Listing, Mark, Node, Report, Scalar, Table
from pilotage.model.errors import did_you_mean

DEPTH_MAX = 64
NODES_MAX = 4_000_000
ALIASED_NODES_MAX = 10_000
PROBLEMS_MAX = 100

Kind = Literal["list", "block", "flow"]

_DROPPED = Scalar("", plain=True)  # replaces a rejected key, so that its value is read and dropped


class ReadingStopped(Exception):
    """Reading the document was stopped; its report says why."""


class _Open:
    """A collection that is not closed yet; a list has `items`, a mapping has `entries`."""

    __slots__ = ("anchor", "entries", "extra", "flow", "height", "items", "key", "mark", "nodes_before")

    def __init__(self, kind: Kind, mark: Mark, *, anchor: str | None, nodes_before: int) -> None:
        self.mark = mark
        self.anchor = anchor
        self.nodes_before = nodes_before  # to compute its size at its end
        self.extra = 0  # nodes that it contains through aliases
        self.height = 1
        self.items: list[Node] | None = [] if kind == "list" else None
        self.entries: list[tuple[Scalar, Node]] = []
        self.key: Scalar | None = None
        self.flow = kind == "flow"


class _Anchored:
    """A node with an anchor, and the number of nodes and levels that each alias of it adds."""

    __slots__ = ("height", "node", "size")

    def __init__(self, node: Node, *, size: int, height: int) -> None:
        self.node = node
        self.size = size
        self.height = height


class TreeBuilder:
    """Receives scalars, starts and ends of collections, and aliases; at the end, `root` is the tree."""

    def __init__(self, report: Report) -> None:
        """Faults go to the report."""
        self.root: Node | None = None
        self._report = report
        self._stack: list[_Open] = []
        self._nodes = 0
        self._aliased = 0
        self._anchors: dict[str, _Anchored] = {}
        self._unfinished: dict[str, _Open] = {}  # open collections with an anchor

    def scalar(self, node: Scalar, *, anchor: str | None = None) -> None:
        """Add a value, or a key where a key is expected."""
        self._nodes += 1
        if self._nodes > NODES_MAX:
            self._refuse_number(node.mark)
        if anchor is not None and self._is_new(anchor, node.mark):
            self._anchors[anchor] = _Anchored(node, size=1, height=0)
        self._place(node)

    def open(self, kind: Kind, mark: Mark, *, anchor: str | None = None) -> None:
        """Start a list, a block mapping or a flow mapping."""
        if len(self._stack) >= DEPTH_MAX:
            self.fault(
                "too-deep",
                f"nested deeper than {DEPTH_MAX} levels",
                mark,
                hint="a job needs fewer than ten; is this really a job document?",
            )
            raise ReadingStopped
        opened = _Open(kind, mark, anchor=anchor, nodes_before=self._nodes)
        if anchor is not None and self._is_new(anchor, mark):
            self._unfinished[anchor] = opened
        self._stack.append(opened)
        self._nodes += 1
        if self._nodes > NODES_MAX:
            self._refuse_number(mark)

    def close(self) -> None:
        """End the innermost open collection."""
        closed = self._stack.pop()
        node: Node
        if closed.items is not None:
            node = Listing(tuple(closed.items), closed.mark)
        else:
            entries = closed.entries
            if len({key.text for key, _ in entries}) < len(entries):
                entries = self._without_duplicates(entries)
            node = Table(tuple(entries), closed.mark)
        if closed.anchor is not None and self._unfinished.get(closed.anchor) is closed:
            del self._unfinished[closed.anchor]
            size = self._nodes - closed.nodes_before + closed.extra
            self._anchors[closed.anchor] = _Anchored(node, size=size, height=closed.height)
        if self._stack:
            parent = self._stack[-1]
            parent.extra += closed.extra
            if parent.height <= closed.height:
                parent.height = closed.height + 1
        self._place(node)

    @property
    def innermost(self) -> Mark | None:
        """The start of the innermost open collection."""
        return self._stack[-1].mark if self._stack else None

    def abandon(self) -> None:
        """Close all open collections, since the rest of the text cannot be read."""
        self.root = None
        for opened in self._stack:
            self._without_duplicates(opened.entries)

    def alias(self, name: str, mark: Mark) -> None:
        """Add the node of an anchor once more."""
        anchored = self._anchors.get(name)
        if anchored is None:
            self._refuse_alias(name, mark)
            self._place(Scalar(f"*{name}", plain=False, mark=mark))  # a text, so that no second fault follows
            return
        if len(self._stack) + anchored.height > DEPTH_MAX:
            self.fault("too-deep", f"with the alias `*{name}`, nested deeper than {DEPTH_MAX} levels", mark)
            raise ReadingStopped
        self._aliased += anchored.size
        if self._aliased > ALIASED_NODES_MAX:
            self.fault(
                "too-many-aliases",
                f"aliases repeat more than {ALIASED_NODES_MAX:,} values in all",
                mark,
                hint="iterate with `each`, or write the list to a file and iterate over its lines",
            )
            raise ReadingStopped
        if self._stack:
            parent = self._stack[-1]
            parent.extra += anchored.size
            parent.height = max(parent.height, anchored.height + 1)
        self._place(anchored.node)

    def fault(self, code: str, message: str, mark: Mark, *, hint: str = "") -> None:
        """Report a fault; after a hundred of them, stop reading."""
        self._report.error(code, message, mark, hint=hint)
        if len(self._report.errors) >= PROBLEMS_MAX:
            raise ReadingStopped

    def _place(self, node: Node) -> None:
        if not self._stack:
            self.root = node
            return
        parent = self._stack[-1]
        if parent.items is not None:
            parent.items.append(node)
        elif parent.key is None:
            parent.key = self._checked_key(node)
        else:
            key, parent.key = parent.key, None
            if key is not _DROPPED:
                if parent.flow and key.plain and ":" in key.text:
                    key, node = self._with_space(key, node)
                parent.entries.append((key, node))

    def _checked_key(self, node: Node) -> Scalar:
        if not isinstance(node, Scalar):
            what = "list" if isinstance(node, Listing) else "mapping"
            self.fault("complex-key", f"a key must be a text, not a {what}", node.mark, hint="quote it if it is a text")
        elif not node.plain or node.text not in ("", "<<"):
            return node
        elif node.text == "":
            self.fault("empty-key", "a key is missing before `:`", node.mark, hint='an empty text is written ""')
        else:
            self.fault(
                "merge-key",
                "merge keys (`<<`) are not read",
                node.mark,
                hint="write out the keys here; fields that several stages share can be given once, one level up",
            )
        return _DROPPED

    def _without_duplicates(self, entries: list[tuple[Scalar, Node]]) -> list[tuple[Scalar, Node]]:
        firsts: dict[str, Scalar] = {}
        kept = []
        for key, node in entries:
            first = firsts.setdefault(key.text, key)
            if first is key:
                kept.append((key, node))
                continue
            self.fault(
                "duplicate-key",
                f"the key {quoted(key.text)} is twice in one mapping: first on line {first.mark.line}",
                key.mark,
                hint="keep one of them",
            )
        return kept

    def _refuse_number(self, mark: Mark) -> NoReturn:
        self.fault(
            "too-large",
            f"more than {NODES_MAX:,} values in one document",
            mark,
            hint="iterate with `each` over a range, a CSV column or the lines of a file instead of writing all out",
        )
        raise ReadingStopped

    def _with_space(self, key: Scalar, value: Node) -> tuple[Scalar, Node]:
        """Report `{seed:1..9}`, which is one key "seed:1..9" without a value, and split it as intended."""
        if not (isinstance(value, Scalar) and value.plain and value.text == ""):
            return key, value
        name, _, rest = key.text.partition(":")
        self.fault(
            "missing-space",
            f"{quoted(key.text)} is one key without a value: a space must follow the colon",
            key.mark,
            hint=f"write `{clipped(name)}: {clipped(rest)}`, or quote all of it if it is a text",
        )
        mark = Mark(key.mark.line, key.mark.column + len(name) + 1)
        if value.mark.line != key.mark.line:  # a key of several lines
            mark = value.mark
        return Scalar(name, plain=True, mark=key.mark), Scalar(rest, plain=True, mark=mark)

    def _is_new(self, anchor: str, mark: Mark) -> bool:
        named = self._anchors.get(anchor) or self._unfinished.get(anchor)
        if named is None:
            return True
        first = named.mark if isinstance(named, _Open) else named.node.mark
        self.fault(
            "duplicate-anchor",
            f"the anchor `&{clipped(anchor)}` is defined twice: first on line {first.line}",
            mark,
            hint="give each its own name",
        )
        return False

    def _refuse_alias(self, name: str, mark: Mark) -> None:
        opened = self._unfinished.get(name)
        if opened is not None:
            self.fault(
                "alias-cycle",
                f"`*{clipped(name)}` is inside the node that it names, which begins on line {opened.mark.line}",
                mark,
                hint="a node cannot contain itself: write it out",
            )
            return
        near = did_you_mean(name, self._anchors) if len(self._anchors) <= PROBLEMS_MAX else ""
        self.fault(
            "unknown-alias",
            f"`*{clipped(name)}` names no anchor before it",
            mark,
            hint=f'quote it if it is a pattern: "*{clipped(name)}"' + (f"; {near}" if near else ""),
        )


def clipped(text: str) -> str:
    """The text, shortened for a message."""
    return text if len(text) <= 60 else text[:59] + "…"


def quoted(text: str) -> str:
    """The text in quotes, on one line and shortened for a message."""
    return repr(clipped(text))


# The parser of JSON.
#
# In theory JSON is YAML, but libyaml rejects escaped surrogate pairs and keys over 1,024 characters, and the parser in
# pure Python rejects tabs. So a text that is entirely JSON is read here.

# One token; `lastindex` is its kind. Possessive quantifiers store no backtracking state, which would take gigabytes for a
# text with millions of escapes.
_TOKEN = re.compile(
    r"""
    [ \t\n\r]*
    (?:
        ( [{\[] )
      | ( [}\]] )
      | "( [^"\\\x00-\x1f]*+ )"
      | ( "[^"\\\x00-\x1f]*+ (?: \\ (?: ["\\/bfnrt] | u[0-9a-fA-F]{4} ) [^"\\\x00-\x1f]*+ )*+ " )
      | ( -? (?: 0 | [1-9][0-9]* ) (?: \.[0-9]+ )? (?: [eE] [-+]? [0-9]+ )? | true | false | null )
    )
    """,
    re.VERBOSE,
)
_OPENING, _CLOSING, _TEXT, _ESCAPED_TEXT, _BARE = range(1, 6)
_COMMA_OR_COLON = re.compile(r"[ \t\n\r]*([,:]?)")

# What is expected next.
_VALUE, _VALUE_OR_END, _KEY, _KEY_OR_END, _END = range(5)


def looks_like_json(text: str) -> bool:
    """Whether a text may be JSON; a YAML document in block style never begins like this."""
    return text.lstrip(" \t\r\n").startswith(("{", "[", '"'))


def feed_json(text: str, *, line_starts: Sequence[int], builder: TreeBuilder) -> bool:
    """Parse the whole text into `builder`; False if it is not JSON, and then `builder` is unusable."""
    machine = _Machine(builder)
    position, line = 0, 0
    line_ends = [*line_starts[1:], len(text) + 1]
    while token := _TOKEN.match(text, position):
        kind = token.lastindex or 0
        begin = token.start(kind) - (1 if kind == _TEXT else 0)
        while line_ends[line] <= begin:
            line += 1
        mark = Mark(line + 1, begin - line_starts[line] + 1)
        sign, position = "", token.end()
        if kind != _OPENING and (separator := _COMMA_OR_COLON.match(text, position)):
            sign, position = separator[1], separator.end()
        if not machine.take(kind, token[kind], mark=mark, sign=sign):
            return False
        if not machine.opened:
            return not sign and position == len(text)
    return False


class _Machine:
    """The state machine of JSON: tracks what is expected next."""

    def __init__(self, builder: TreeBuilder) -> None:
        self.opened: list[str] = []
        self._builder = builder
        self._due = _VALUE

    def take(self, kind: int, value: str, *, mark: Mark, sign: str) -> bool:
        """Process one token and the comma or colon after it; False if JSON does not allow it here."""
        if kind == _OPENING:
            if self._due > _VALUE_OR_END:
                return False
            self._builder.open("flow" if value == "{" else "list", mark)
            self.opened.append(value)
            self._due = _KEY_OR_END if value == "{" else _VALUE_OR_END
            return True
        if kind == _CLOSING:
            if self._due in (_VALUE, _KEY) or self.opened[-1] + value not in ("{}", "[]"):
                return False
            self._builder.close()
            self.opened.pop()
            return self._go_on(sign)
        if kind == _ESCAPED_TEXT:
            try:
                value = msgspec.json.decode(value, type=str)
            except msgspec.DecodeError:  # half a surrogate pair; the YAML reader will report it
                return False
        if self._due in (_KEY, _KEY_OR_END):
            self._builder.scalar(Scalar(value, plain=False, mark=mark))
            self._due = _VALUE
            return kind != _BARE and sign == ":"
        if self._due == _END:
            return False
        self._builder.scalar(Scalar(value, plain=kind == _BARE, mark=mark))
        return self._go_on(sign)

    def _go_on(self, sign: str) -> bool:
        if sign == ",":
            self._due = _KEY if self.opened and self.opened[-1] == "{" else _VALUE
        else:
            self._due = _END
        return sign != ":"
