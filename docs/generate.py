"""Writes the generated parts of the documentation anew: `make docs`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from graphlib import TopologicalSorter
from pathlib import Path

import click

from pilotage.app.documents.retry_rules import rules_table
from pilotage.cli.jobs.run import run
from pilotage.language.parsing.schema import reference_tables, sites_tables
from pilotage.model.reference import compound_table, event_tables, state_diagram, state_table, transition_table
from pilotage.model.settings.settings import settings_tables
from pilotage.provenance.index.attributes import attribute_table

FOLDER = Path(__file__).parent
SOURCE = FOLDER.parent / "src" / "pilotage"
ROOMS = tuple(sorted(folder.parent.name for folder in SOURCE.glob("*/__init__.py")))
LEAF = "agent.expressions"
"""The one module that rooms beside and below the agent import, too: it only computes, so it makes no arrow."""


@cache
def _imports() -> dict[str, frozenset[str]]:
    """What each module imports, by its name below `pilotage`; a folder stands for its `__init__`."""
    texts = {_name(file): file.read_text("utf-8") for file in SOURCE.rglob("*.py")}
    return {name: frozenset(_imported(text, frozenset(texts))) for name, text in texts.items()}


def _name(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def _imported(text: str, modules: frozenset[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pilotage."):
            home = str(node.module).removeprefix("pilotage.")
            for alias in node.names:
                found = f"{home}.{alias.name}"
                yield found if found in modules else home


def arrows(folder: str = "") -> dict[str, set[str]]:
    """Which children of a folder import which of their siblings; of the whole program without a folder."""
    start = f"{folder}." if folder else ""
    inside = {name.removeprefix(start): targets for name, targets in _imports().items() if name.startswith(start)}
    found: dict[str, set[str]] = {name.partition(".")[0]: set() for name in inside if name}
    if not folder:
        found = {room: set() for room in ROOMS}
    for name, targets in inside.items():
        child = name.partition(".")[0]
        siblings = {each.removeprefix(start).partition(".")[0] for each in targets - {LEAF} if each.startswith(start)}
        if child in found:
            found[child] |= (siblings & found.keys()) - {child}
    return found


def drawing(folder: str = "") -> str:
    """The arrows of a folder as a Mermaid picture; an arrow that others imply is left out."""
    found = arrows(folder)
    below: dict[str, set[str]] = {}
    for child in TopologicalSorter(found).static_order():
        below[child] = found[child].union(*(below[each] for each in found[child]))
    lines = ["```mermaid", "flowchart TD"]
    for child, targets in sorted(found.items()):
        drawn = sorted(each for each in targets if not any(each in below[other] for other in targets - {each}))
        lines += [f"    {child} --> {each}" for each in drawn] or [f"    {child}"]
    return "\n".join([*lines, "```", ""])


def rooms_table() -> str:
    """Every room with the sentence of its `__init__` and the rooms it imports."""
    rows = ["| room | what it does | imports |", "|---|---|---|"]
    for room, targets in sorted(arrows().items()):
        sentence = (ast.get_docstring(ast.parse((SOURCE / room / "__init__.py").read_text("utf-8"))) or "").partition(
            "\n"
        )[0]
        named = ", ".join(f"`{each}`" for each in sorted(targets)) or "nothing"
        rows.append(f"| [`{room}`](architecture/{room}.md) | {sentence} | {named} |")
    return "\n".join([*rows, ""])


def folders_table(room: str) -> str:
    """The folders and modules of a room: each folder with its sentence, and what others may use of it."""
    rows = ["| folder | what it does | modules |", "|---|---|---|"]
    for file in sorted((SOURCE / room).rglob("__init__.py")):
        sentence = (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").partition("\n")[0]
        names = sorted(each.stem for each in file.parent.glob("*.py") if each != file)
        if names:
            rows.append(f"| `{file.parent.relative_to(SOURCE)}/` | {sentence} | {', '.join(names)} |")
    return "\n".join([*rows, ""])


def option_table() -> str:
    """The options of `pilotage run` with what help says of each."""
    rows = ["| option | meaning |", "|---|---|"]
    for option in run.params:
        if isinstance(option, click.Option) and not option.hidden:
            value = option.metavar or ("" if option.is_flag else "|".join(option.type.choices))  # type: ignore[attr-defined]
            word = f"{', '.join(option.opts)} {value}".rstrip().replace("|", "\\|")
            rows.append(f"| `{word}` | {option.help} |")
    return "\n".join(rows) + "\n"


PARTS: dict[str, Callable[[], str]] = {
    "fields": reference_tables,
    "options": option_table,
    "rules": rules_table,
    "events": event_tables,
    "states": state_table,
    "diagram": state_diagram,
    "transitions": transition_table,
    "compounds": compound_table,
    "settings": settings_tables,
    "sites": sites_tables,
    "attributes of records": attribute_table,
    "rooms": rooms_table,
    "arrows": drawing,
    **{f"arrows of {room}": partial(drawing, room) for room in ROOMS},
    **{f"folders of {room}": partial(folders_table, room) for room in ROOMS},
}
PART = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end of generated -->)", re.DOTALL)
PAGES = (
    *(
        FOLDER / page
        for page in (
            "reference/cli.md",
            "reference/document.md",
            "reference/events.md",
            "explanation/engine.md",
            "explanation/states.md",
            "reference/provenance-find.md",
            "reference/settings.md",
            "reference/sites.md",
            "ARCHITECTURE.md",
        )
    ),
    *(FOLDER / "architecture" / f"{room}.md" for room in ROOMS),
)


def with_tables(page: str) -> str:
    """The page with its generated parts as they should be."""
    return PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", page)


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(with_tables(each.read_text("utf-8")), "utf-8")
