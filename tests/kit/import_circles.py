"""Which modules import each other in a circle: at the top, inside functions, or for types alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath


def circle(texts: Mapping[str, str]) -> list[str]:
    """One circle among some files, as the modules on it; empty where there is none."""
    modules = {module_of(path): text for path, text in texts.items()}
    graph = {module: {each for each in imported(text, modules) if each != module} for module, text in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as found:
        return list(reversed(found.args[1]))
    return []


def module_of(path: str) -> str:
    """The dotted name of the module that a file is."""
    parts = PurePosixPath(path).with_suffix("").parts
    names = parts[1:] if parts[0] == "src" else parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imported(text: str, modules: Mapping[str, str]) -> Iterator[str]:
    """The modules that a file imports, of those that there are; a name that is none belongs to the module it is taken from."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                named = f"{node.module}.{alias.name}"
                if named in modules:
                    yield named
                elif node.module in modules:
                    yield node.module
