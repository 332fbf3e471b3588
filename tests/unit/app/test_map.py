"""One command over many items, as a job: replacement strings, files that are inputs, and words that meet no shell."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.app.documents.map import EVERYTHING, MapRequest, map_job
from pilotage.language import ConcretePackage
from pilotage.model.errors import DocumentError, PilotageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    for name in ("a[1].tif", "b.tif", "sub/c d.tar.gz", "convert.sh"):
        (tmp_path / name).write_text(name)
    return tmp_path


def packages(folder: Path, command: str | None, *items: str, **said: object) -> list[ConcretePackage]:
    request = MapRequest(command=command, items=items, **said)  # type: ignore[arg-type]
    return list(map_job(request, folder=folder).expansion.packages())


def commands(folder: Path, command: str | None, *items: str, **said: object) -> list[tuple[str, ...]]:
    return [package.binaries[0].argv for package in packages(folder, command, *items, **said)]


@pytest.mark.parametrize(
    "written, becomes",
    [
        ("{}", "sub/c d.tar.gz"),
        ("{.}", "sub/c d.tar"),
        ("{/}", "c d.tar.gz"),
        ("{//}", "sub"),
        ("{/.}", "c d.tar"),
        ("{#}", "1"),
        ("x{/.}.png", "xc d.tar.png"),
        ("{name}", "{name}"),
        ("{{}}", "{sub/c d.tar.gz}"),
        ("'$(rm -rf {})'", "$(rm -rf sub/c d.tar.gz)"),
    ],
)
def test_replacement_strings_are_those_of_gnu_parallel(folder: Path, written: str, becomes: str) -> None:
    ((program, argument, *_),) = commands(folder, f"echo {written} {{}}", "sub/c d.tar.gz")
    assert (program, argument) == ("echo", becomes)


def test_without_any_replacement_string_the_item_comes_last(folder: Path) -> None:
    assert commands(folder, "wc -l", "b.tif") == [("wc", "-l", "b.tif")]


@given(item=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20))
def test_an_item_is_one_argument_whatever_it_holds(item: str) -> None:
    nowhere = Path("/nonexistent")
    assert commands(nowhere, "echo {}", item) == [("echo", item)]


def test_items_that_are_files_are_inputs_of_their_package_and_others_are_not(folder: Path) -> None:
    found = packages(folder, "echo {#} {}", "7", "a[1].tif", "b.tif", "sub")
    needed = {package.binaries[0].argv[1]: package.needed for package in found}
    assert needed == {"1": [], "2": ["a[1].tif"], "3": ["b.tif"], "4": []}


def test_what_lies_outside_the_folder_is_named_by_its_whole_path(folder: Path) -> None:
    (folder / "inner").mkdir()
    found = commands(folder / "inner", "cat {}", "../b.tif", str(folder / "b.tif"))
    assert found == [("cat", str(folder / "b.tif")), ("cat", str(folder / "b.tif"))]


def test_files_that_the_command_names_itself_are_inputs_too(folder: Path) -> None:
    (package,) = packages(folder, "./convert.sh --like=x {}", "b.tif")
    assert sorted(package.needed) == ["b.tif", "convert.sh"]


def test_declared_outputs_are_made_of_the_item(folder: Path) -> None:
    (package,) = packages(folder, "convert {} {/.}.png", "b.tif", outputs=("{/.}.png",))
    assert package.made == ["b.png"]


def test_without_declared_outputs_every_file_is_taken(folder: Path) -> None:
    (package,) = packages(folder, "convert {}", "b.tif")
    assert package.binaries[0].outputs[0].declared.expression == EVERYTHING


def test_two_items_that_would_make_one_file_are_refused(folder: Path) -> None:
    with pytest.raises(DocumentError, match="two packages make"):
        packages(folder, "convert {} out.png", "a[1].tif", "b.tif", outputs=("out.png",))


def test_words_for_a_shell_are_refused_unless_one_is_asked_for(folder: Path) -> None:
    with pytest.raises(PilotageError, match=r"only a shell understands '\|'") as refused:
        packages(folder, "sort {} | uniq", "b.tif")
    assert "--shell" in refused.value.next_step
    assert commands(folder, "sort {} | uniq > {/.}.txt", "sub/c d.tar.gz", shell=True) == [
        ("/bin/sh", "-c", "sort 'sub/c d.tar.gz' | uniq > 'c d.tar'.txt")
    ]


def test_in_a_shell_an_item_is_quoted(folder: Path) -> None:
    assert commands(folder, "echo {}", "$(touch evil)", shell=True) == [("/bin/sh", "-c", "echo '$(touch evil)'")]


def test_lines_can_be_commands_of_their_own(folder: Path) -> None:
    found = packages(folder, None, "echo a 'b {}'", "cat b.tif")
    assert [package.binaries[0].argv for package in found] == [("echo", "a", "b {}"), ("cat", "b.tif")]
    assert [package.needed for package in found] == [[], ["b.tif"]]
    (whole,) = packages(folder, None, "cat b.tif | wc > n", shell=True)
    assert (whole.binaries[0].argv[2], whole.needed) == ("cat b.tif | wc > n", ["b.tif"])


@pytest.mark.parametrize("command, said", [("echo 'a", "quotes do not match"), ("   ", "empty"), ("''", "empty")])
def test_a_command_that_is_none_is_refused_with_a_reason(folder: Path, command: str, said: str) -> None:
    with pytest.raises(PilotageError, match=said):
        packages(folder, command, "b.tif")


def test_nothing_to_map_over_is_refused(folder: Path) -> None:
    with pytest.raises(PilotageError, match="no items to run the command for"):
        packages(folder, "echo")


@pytest.mark.parametrize("command, name", [("/usr/bin/convert x", "convert"), ("./a b", "a"), ("'(' x", "map")])
def test_a_job_is_called_after_its_command(folder: Path, command: str, name: str) -> None:
    assert map_job(MapRequest(command=command, items=("1",)), folder=folder).definition.job == name


@pytest.mark.parametrize("command", ["", "  "])
@pytest.mark.parametrize("shell", [False, True])
def test_an_empty_command_is_refused_and_no_item_is_taken_for_one(folder: Path, command: str, *, shell: bool) -> None:
    with pytest.raises(PilotageError, match="the command is empty"):
        packages(folder, command, "b.tif", shell=shell)
