"""Nodes by name: whether one is among those that a package may run on, and whether a site may have one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

NODE_NAME = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,255}")
"""What names a node, or several: letters, digits, `.`, `_`, `-`, and `*`, `?`, `[…]` as in names of files."""
NODE_NAME_FORM = "letters, digits, '.', '_' and '-', and '*', '?' and '[…]' as in names of files"

_WILD = re.compile(r"[*?\[]")


def is_named(node: str, names: Iterable[str]) -> bool:
    """Whether a node is one of those that are named; what follows the first dot of its name need not be said."""
    node = node.lower()
    return bool(node) and any(_means(each.lower(), node) for each in names)


def _means(name: str, node: str) -> bool:
    short = node.partition(".")[0]
    if fnmatchcase(node, name) or fnmatchcase(short, name):
        return True
    return node == short and not _WILD.search(name) and name.partition(".")[0] == node


def can_mean(one: str, other: str) -> bool:
    """Whether two names or patterns can mean the same node; of two patterns their fixed beginnings must agree."""
    one, other = one.lower(), other.lower()
    ends = [found.start() if (found := _WILD.search(each)) else None for each in (one, other)]
    if None in ends:
        return _means(one, other) if ends[1] is None else _means(other, one)
    return one[: ends[0]].startswith(other[: ends[1]]) or other[: ends[1]].startswith(one[: ends[0]])
