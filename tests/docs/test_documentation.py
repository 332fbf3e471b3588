"""Every page does what it says, every command is documented, and every link leads somewhere."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import click
import pytest

from tests.docs.pages import BadPage, Command, steps
from tests.docs.reader import Reader, Surprise

ROOT = Path(__file__).resolve().parents[2]
PAGES = [Path("README.md"), *sorted(page.relative_to(ROOT) for page in (ROOT / "docs").rglob("*.md"))]
LINKING = [*PAGES, *(page for page in map(Path, ("CHANGELOG.md", "CONTRIBUTING.md")) if (ROOT / page).exists())]
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    assert (ROOT / page).is_file(), f"{page} is missing"
    text = (ROOT / page).read_text(encoding="utf-8")
    reader = Reader(ROOT, tmp_path)
    try:
        for step in steps(text):
            reader.follow(step)
    except (BadPage, Surprise) as reason:
        pytest.fail(f"{page}, {reason}", pytrace=False)
    finally:
        reader.leave()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_command_of_the_page_is_shown_with_an_output_that_could_be_any(page: Path) -> None:
    commands = [step for step in steps((ROOT / page).read_text(encoding="utf-8")) if isinstance(step, Command)]
    vague = [each.text for each in commands if each.output and not "".join(each.output).replace("...", "").strip()]
    assert [text for text in vague if not text.startswith("make ")] == []


@pytest.mark.parametrize("page", LINKING, ids=str)
def test_the_links_of_the_page_lead_somewhere(page: Path) -> None:
    targets = LINK.findall((ROOT / page).read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    assert [target for target in local if not (ROOT / page.parent / unquote(target)).exists()] == []


def test_every_command_is_in_the_reference() -> None:
    reference = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").rglob("*.md"))
    assert [name for name in _commands(_program(), name="pilotage") if not re.search(rf"\b{name}\b", reference)] == []


def _program() -> click.Group:
    """The click group behind the console script, which may itself be wrapped in a plain function."""
    cli = importlib.import_module("pilotage.cli")
    groups = [value for value in (cli.main, *vars(cli).values()) if isinstance(value, click.Group)]
    assert groups, "pilotage.cli offers no click group"
    return groups[0]


def _commands(command: click.Command, *, name: str) -> Iterator[str]:
    """The full name of every command that a user can type and that is not hidden."""
    if not isinstance(command, click.Group):
        yield name
        return
    context = click.Context(command)
    for word in command.list_commands(context):
        inner = command.get_command(context, word)
        if inner is not None and not inner.hidden:
            yield from _commands(inner, name=f"{name} {word}")
