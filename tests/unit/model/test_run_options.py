"""The options of a run are declared once: commands, Python functions and what is sent follow."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import click
import pytest

import pilotage
from pilotage.cli import main
from pilotage.model.jobs.run_options import RunKeywords, declared_options, given_options
from pilotage.model.jobs.submission import Origin, Submission


def test_the_keywords_are_the_options() -> None:
    assert get_type_hints(RunKeywords) == {option.name: option.kind for option in declared_options()}


def test_every_option_is_explained_in_a_sentence() -> None:
    assert all(option.description[:1].isupper() and option.description.endswith(".") for option in declared_options())


@pytest.mark.parametrize("name", ["run", "map", "submit"])
def test_every_option_is_one_of_the_command_line(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    words = {word: each for each in command.params if isinstance(each, click.Option) for word in each.opts}
    for option in declared_options():
        said = words[f"--{option.name.replace('_', '-')}"]
        assert (said.help, said.is_flag) == (option.description, option.kind is bool)


@pytest.mark.parametrize("function", ["run", "arun", "stream", "submit", "Client.submit"])
def test_every_option_is_named_where_notebooks_look_for_keywords(function: str) -> None:
    found: object = pilotage
    for name in function.split("."):
        found = getattr(found, name)
    assert callable(found)
    shown = inspect.signature(found).parameters
    assert {option.name: option.default for option in declared_options()}.items() <= {
        name: each.default for name, each in shown.items()
    }.items()
    assert not [each for each in shown.values() if each.kind is inspect.Parameter.VAR_KEYWORD]


def test_a_keyword_that_is_no_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="frsh"):
        pilotage.run("pilotage.yaml", frsh=True)  # type: ignore[call-arg]


def test_every_option_is_sent_and_kept() -> None:
    names = {option.name for option in declared_options()}
    assert names <= {*Submission.__struct_fields__} & {*Origin.__struct_fields__}
    assert given_options(Origin(folder="/x", fresh=True)) == {
        option.name: option.name == "fresh" or option.default for option in declared_options()
    }
