"""Matches regular expressions of users in time linear in the text.

Python's own matcher backtracks, and `(a+)+$` can take exponential time. An expression with few ways to try is left to
it. Any other becomes an automaton that reads each character once: it tracks all states the text may have led to, and
caches the transitions between such sets (Thompson 1968). Backreferences and lookaround together with unlimited
repetition, which no automaton can match, are refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

try:  # Python 3.11 on
    from re import _compiler as _sre_compile  # type: ignore[attr-defined]
    from re import _constants as _sre
    from re import _parser as _sre_parse
except ImportError:
    import sre_compile as _sre_compile
    import sre_constants as _sre
    import sre_parse as _sre_parse

_WAYS_MAX = 1000  # ways to try an expression at one position, up to which Python's matcher is used
_WIDTH_MAX = 1000  # of a match
_STATES_MAX = 5000
_NODES_KEPT_MAX = 1000
_ANSWERS_KEPT_MAX = 50_000
_LOOKS = frozenset(
    getattr(_sre, name)
    for name in ("ASSERT", "ASSERT_NOT", "GROUPREF", "GROUPREF_EXISTS", "ATOMIC_GROUP", "POSSESSIVE_REPEAT")
    if hasattr(_sre, name)
)
_REPEATS = frozenset(
    getattr(_sre, name) for name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") if hasattr(_sre, name)
)

_EMPTY_IS_NO_BOUNDARY = re.search(r"\B", "") is not None  # differs between versions of Python

_ALPHABETS = int(re.ASCII | re.LOCALE | re.UNICODE)

Flags = int
if TYPE_CHECKING:  # Python 3.8 cannot evaluate these types
    Tests = Callable[[str], Any]
    Matcher = Callable[[str], object]  # its truth tells whether a text matches


class UnboundedExpression(ValueError):
    """The time to match this expression has no known bound."""


class Expression:
    """A regular expression that matches in time linear in the text.

    `search` tells whether it matches anywhere in a text, `fullmatch` whether it matches the whole.
    """

    __slots__ = ("fullmatch", "search")

    def __init__(self, *, search: Matcher, fullmatch: Matcher) -> None:
        self.search = search
        self.fullmatch = fullmatch


@lru_cache(maxsize=1024)
def compile_expression(expression: str) -> Expression:
    """An expression of Python's `re`; raises `re.error`, or `UnboundedExpression` with the reason."""
    compiled = re.compile(expression)
    tree = _sre_parse.parse(expression)
    if _ways(tree) <= _WAYS_MAX and tree.getwidth()[1] <= _WIDTH_MAX:
        return Expression(search=compiled.search, fullmatch=compiled.fullmatch)  # the quickest
    automaton = _Automaton(tree, tree.state.flags)
    return Expression(search=automaton.search, fullmatch=automaton.fullmatch)


def _ways(tree: Any) -> int:
    """Number of ways to try an expression at one position, up to a little more than the limit."""
    ways = 1
    for operation, argument in tree:
        ways = min(ways * _ways_of(operation, argument), _WAYS_MAX + 1)
    return ways


def _ways_of(operation: Any, argument: Any) -> int:
    if operation is _sre.BRANCH:
        return sum(_ways(each) for each in argument[1])
    if operation is _sre.SUBPATTERN:
        return _ways(argument[3])
    if operation in _REPEATS:
        least, most, body = argument
        if most is _sre.MAXREPEAT or most > _WAYS_MAX:
            return _WAYS_MAX + 1
        each = _ways(body)
        return sum(min(each**times, _WAYS_MAX + 1) for times in range(least, most + 1))
    if operation in (_sre.ASSERT, _sre.ASSERT_NOT):
        return _ways(argument[1])
    if operation is _sre.GROUPREF_EXISTS:
        return _ways(argument[1]) + (_ways(argument[2]) if argument[2] else 1)
    if operation in _LOOKS and operation is not _sre.GROUPREF:
        return _ways(argument)
    return 1


class _State:
    """A state of the automaton: consumes a character that passes a test, or moves on without one."""

    __slots__ = ("anchor", "targets", "test")

    def __init__(self, targets: list[int], *, test: Tests | None = None, anchor: _Anchor | None = None) -> None:
        self.targets = targets
        self.test = test  # of a character
        self.anchor = anchor  # position where it may move on


class _Anchor:
    """An anchor: a `^`, a `$` or a word boundary."""

    __slots__ = ("_flags", "_what")

    def __init__(self, what: Any, flags: Flags) -> None:
        self._what = what
        self._flags = flags

    def holds(self, before: str, after: str, *, is_last: bool) -> bool:
        """Tell whether the anchor matches between two characters, either of which may be missing."""
        what, lines = self._what, bool(self._flags & re.MULTILINE)
        if what is _sre.AT_BEGINNING_STRING or (what is _sre.AT_BEGINNING and not lines):
            return not before
        if what is _sre.AT_BEGINNING:
            return not before or before == "\n"
        if what is _sre.AT_END_STRING:
            return not after
        if what is _sre.AT_END:
            return not after or (after == "\n" and (lines or is_last))
        if not before and not after:  # whether \B matches an empty text depends on the version of Python
            return what is not _sre.AT_BOUNDARY and _EMPTY_IS_NO_BOUNDARY
        differs = self._is_word(before) != self._is_word(after)
        return differs if what is _sre.AT_BOUNDARY else not differs

    def _is_word(self, character: str) -> bool:
        if self._flags & re.ASCII and not character.isascii():
            return False
        return character.isalnum() or character == "_"


class _Node:
    """A set of states that a text may have led to, with the transitions computed so far."""

    __slots__ = ("following", "states")

    def __init__(self, states: frozenset[int]) -> None:
        self.states = states
        self.following: dict[Any, _Node | None] = {}


class _Automaton:
    """Follows all states at once, so that no character is read twice."""

    def __init__(self, tree: Any, flags: Flags) -> None:
        self._states: list[_State] = [_State([])]  # the first is the end
        self._start = self._sequence(tree, 0, flags)
        self._looks_around = any(state.anchor is not None for state in self._states)
        self._needed = _needed_text(tree, flags)
        self._nodes: dict[tuple[bool, frozenset[int]], _Node] = {}
        self._answers = 0

    def search(self, text: str) -> bool:
        """Tell whether it matches anywhere in a text."""
        return self._needed in text and self._run(text, anywhere=True)

    def fullmatch(self, text: str) -> bool:
        """Tell whether it matches a whole text."""
        return self._needed in text and self._run(text, anywhere=False)

    # --- matching ---------------------------------------------------------------------------------------------------

    def _run(self, text: str, *, anywhere: bool) -> bool:
        if self._answers > _ANSWERS_KEPT_MAX or len(self._nodes) > _NODES_KEPT_MAX:
            self._nodes, self._answers = {}, 0
        node = self._node(frozenset((self._start,)), anywhere=anywhere)
        before = ""
        last = len(text) - 1
        for position, character in enumerate(text):
            key: Any = character
            if self._looks_around:
                key = (before, character, position == last) if character == "\n" else (before, character)
            try:
                following = node.following[key]
            except KeyError:
                following = self._step(node, before, character, is_last=position == last, anywhere=anywhere)
                node.following[key] = following
                self._answers += 1
            if following is None:
                return True
            if not following.states:
                return False
            node, before = following, character
        return 0 in self._reached(node.states, before, "", is_last=True)

    def _step(self, node: _Node, before: str, after: str, *, is_last: bool, anywhere: bool) -> _Node | None:
        """The node after a character; None if a match was found before it."""
        reached = self._reached(node.states, before, after, is_last=is_last)
        if anywhere and 0 in reached:
            return None
        states = {self._start} if anywhere else set()
        for number in reached:
            state = self._states[number]
            if state.test is not None and state.test(after):
                states.update(state.targets)
        return self._node(frozenset(states), anywhere=anywhere)

    def _node(self, states: frozenset[int], *, anywhere: bool) -> _Node:
        found = self._nodes.get((anywhere, states))
        if found is None:
            found = _Node(states)
            if len(self._nodes) <= _NODES_KEPT_MAX:
                self._nodes[anywhere, states] = found
        return found

    def _reached(self, states: frozenset[int], before: str, after: str, *, is_last: bool) -> set[int]:
        """All states reachable without a character."""
        reached = set(states)
        waiting = list(states)
        while waiting:
            state = self._states[waiting.pop()]
            if state.test is not None:
                continue
            if state.anchor is not None and not state.anchor.holds(before, after, is_last=is_last):
                continue
            for target in state.targets:
                if target not in reached:
                    reached.add(target)
                    waiting.append(target)
        return reached

    # --- making -----------------------------------------------------------------------------------------------------

    def _add(self, state: _State) -> int:
        if len(self._states) >= _STATES_MAX:
            raise UnboundedExpression("it repeats too much: write smaller numbers in its { }")
        self._states.append(state)
        return len(self._states) - 1

    def _sequence(self, tree: Any, following: int, flags: Flags) -> int:
        for operation, argument in reversed(list(tree)):
            following = self._one(operation, argument, following, flags)
        return following

    def _one(self, operation: Any, argument: Any, following: int, flags: Flags) -> int:
        if operation in _LOOKS:
            raise UnboundedExpression(
                "backreferences, (?=…), (?!…), (?<…), (?>…) and x++ cannot be matched in bounded time where it repeats without limit"
            )
        if operation is _sre.BRANCH:
            return self._add(_State([self._sequence(each, following, flags) for each in argument[1]]))
        if operation is _sre.SUBPATTERN:
            _, added, removed, body = argument
            return self._sequence(body, following, _changed(flags, added, removed))
        if operation in _REPEATS:
            least, most, body = argument
            return self._repeat(least, most, body, following, flags)
        if operation is _sre.AT:
            return self._add(_State([following], anchor=_Anchor(argument, flags)))
        return self._add(_State([following], test=_test(operation, argument, flags)))

    def _repeat(self, least: int, most: int, body: Any, following: int, flags: Flags) -> int:
        if most is _sre.MAXREPEAT:
            again = self._add(_State([following]))
            start = self._sequence(body, again, flags)
            self._states[again].targets.append(start)
            if not least:
                start = again
            least = max(least - 1, 0)
        else:
            start = following
            for _ in range(most - least):
                start = self._add(_State([self._sequence(body, start, flags), following]))
        for _ in range(least):
            start = self._sequence(body, start, flags)
        return start


def _changed(flags: Flags, added: Flags, removed: Flags) -> Flags:
    """The flags inside a group that changes them; a group has one alphabet."""
    if added & _ALPHABETS:
        flags &= ~_ALPHABETS
    return (flags | added) & ~removed


def _test(operation: Any, argument: Any, flags: Flags) -> Tests:
    """The test for one character, as Python's own matcher would do it."""
    if operation is _sre.LITERAL and not flags & re.IGNORECASE:
        return chr(argument).__eq__
    state = _sre_parse.State()
    state.flags = flags
    compiled: re.Pattern[str] = _sre_compile.compile(_sre_parse.SubPattern(state, [(operation, argument)]), 0)
    return compiled.match


def _needed_text(tree: Any, flags: Flags) -> str:
    """The longest literal in every match, as far as easily seen: a quick search for it comes first."""
    best, run = "", ""
    for operation, argument in tree:
        if operation is _sre.LITERAL and not flags & re.IGNORECASE:
            run += chr(argument)
            continue
        best, run = max(best, run, key=len), ""
        inner: str | Any = ""
        if operation is _sre.SUBPATTERN:
            inner = _needed_text(argument[3], _changed(flags, argument[1], argument[2]))
        elif operation in _REPEATS and argument[0] > 0:
            inner = _needed_text(argument[2], flags)
        best = max(best, inner, key=len)
    return max(best, run, key=len)
