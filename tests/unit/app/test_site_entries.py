"""`sites.yaml` as a file: which one holds, and how an entry is written into it or taken out, with the rest left alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.adapters.settings.settings_files import (
    SITES_BYTES_MAX,
    SitesFileError,
    read_file,
    sites_file,
    write_file,
)
from pilotage.app.documents.documents import examine
from pilotage.app.sites.entries import SiteRefused, add_entry, known_sites, remove_entry, schema
from pilotage.model.errors import DocumentError
from pilotage.model.sites.entry import SiteEntry

COMMENTED = """\
# my clusters
pilotage: 1
sites:
  # the big one
  - name: lyon
    kind: slurm   # version 22
    queue: long

  # the old one
  - name: farm
    kind: gridengine
"""


def entry(name: str, **fields: object) -> SiteEntry:
    return msgspec.convert({"name": name, "kind": "slurm", **fields}, SiteEntry)


def names(file: Path) -> list[str]:
    return [each.name for each in known_sites(file).entries]


def test_the_file_of_the_project_holds_before_the_users_own_and_a_named_one_before_both(tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    environment = {"HOME": str(home)}
    own = home / ".config" / "pilotage" / "sites.yaml"
    assert sites_file(environment=environment, folder=project) == project / "sites.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("pilotage: 1\n")
    assert sites_file(environment=environment, folder=project) == own
    project.mkdir()
    (project / "sites.yaml").write_text("pilotage: 1\n")
    assert sites_file(environment=environment, folder=project) == project / "sites.yaml"
    assert sites_file(environment=environment, folder=project, named="others.yaml") == project / "others.yaml"
    assert sites_file(environment=environment, folder=project, named="~/o.yaml") == home / "o.yaml"
    assert sites_file(environment={"XDG_CONFIG_DIRS": "relative"}, folder=home) == home / "sites.yaml"


def test_an_entry_is_added_behind_the_others_and_every_other_line_stays(tmp_path: Path) -> None:
    file = tmp_path / "sites.yaml"
    file.write_text(COMMENTED)
    added = add_entry(file, entry("oslo", queue="short", setup=["module load python"]))
    assert file.read_text() == COMMENTED + added
    assert names(file) == ["lyon", "farm", "oslo"]
    assert known_sites(file).entry("oslo").setup == ("module load python",)


def test_the_first_entry_makes_the_file(tmp_path: Path) -> None:
    file = tmp_path / "not" / "yet" / "sites.yaml"
    assert add_entry(file, entry("lyon")) == file.read_text()
    assert names(file) == ["lyon"]
    remove_entry(file, "lyon")
    assert names(file) == []
    add_entry(file, entry("oslo"))
    assert names(file) == ["oslo"]


def test_a_name_that_is_taken_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    file = tmp_path / "sites.yaml"
    file.write_text(COMMENTED)
    with pytest.raises(SiteRefused, match="there is a site of this name"):
        add_entry(file, entry("lyon"))
    with pytest.raises(DocumentError, match="bad-name"):
        add_entry(file, entry("no good name"))
    assert file.read_text() == COMMENTED


def test_an_entry_is_removed_with_its_own_lines_alone(tmp_path: Path) -> None:
    file = tmp_path / "sites.yaml"
    file.write_text(COMMENTED)
    assert remove_entry(file, "lyon").queue == "long"
    text = file.read_text()
    assert names(file) == ["farm"]
    assert "# the old one\n  - name: farm" in text
    assert text.startswith("# my clusters\npilotage: 1\n")
    with pytest.raises(SiteRefused, match="did you mean"):
        remove_entry(file, "fram")


def test_what_is_written_in_another_way_is_left_to_its_writer(tmp_path: Path) -> None:
    file = tmp_path / "sites.yaml"
    text = "pilotage: 1\nsites: [{name: a, kind: slurm}, {name: b, kind: slurm}]\n"
    file.write_text(text)
    for change in (lambda: add_entry(file, entry("c")), lambda: remove_entry(file, "a")):
        with pytest.raises(SiteRefused, match="cannot be changed automatically"):
            change()
    assert file.read_text() == text


def test_a_file_that_somebody_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "sites.yaml"
    file.write_text("pilotage: 1\n")
    kept = read_file(file)
    file.write_text("pilotage: 1\nsites: []\n")
    with pytest.raises(SitesFileError, match="was changed meanwhile"):
        write_file(file, "x", before=kept)
    assert [each.name for each in tmp_path.iterdir()] == ["sites.yaml"]


@pytest.mark.parametrize("more", [0, 1])
def test_a_file_is_read_up_to_the_largest_size(tmp_path: Path, more: int) -> None:
    file = tmp_path / "sites.yaml"
    file.write_bytes(b"#" * (SITES_BYTES_MAX + more))
    if more:
        with pytest.raises(SitesFileError, match=f"larger than {SITES_BYTES_MAX} bytes"):
            read_file(file)
    else:
        found = read_file(file)
        assert found is not None
        assert len(found.content) == SITES_BYTES_MAX


@given(st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), unique=True, min_size=1, max_size=5), st.data())
def test_what_is_added_and_removed_in_any_order_is_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[str], data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("sites") / "sites.yaml"
    wanted = [name for name in wanted if name != "local"]
    for name in wanted:
        add_entry(file, entry(name, queue=data.draw(st.sampled_from(["", "a", "b: c", "# d"]))))
    left = list(wanted)
    for name in data.draw(st.permutations(wanted)):
        assert names(file) == left
        remove_entry(file, name)
        left.remove(name)
    assert not wanted or names(file) == []


def test_sites_and_their_kinds_are_executors_that_documents_may_name(tmp_path: Path) -> None:
    (tmp_path / "sites.yaml").write_text(COMMENTED)
    document = tmp_path / "pilotage.yaml"
    document.write_text(
        "pilotage: 1\njob: a\nstages:\n  - {run: [echo], executor: NAME, outputs: [x]}\n".replace("NAME", "lyon")
    )
    assert examine(str(document)).report.warnings == []
    document.write_text(document.read_text().replace("lyon", "oslo"))
    assert [each.code for each in examine(str(document)).report.warnings] == ["unknown-executor"]


def test_the_schema_has_every_field_and_refuses_others() -> None:
    told = schema()
    assert told["properties"]["pilotage"] == {"const": 1, "description": "The version of the language."}
    site = told["$defs"]["SiteEntry"]
    assert {*site["properties"]} >= {*SiteEntry.__struct_fields__, "memory", "wall_time"}
    assert (site["additionalProperties"], told["additionalProperties"]) == (False, False)
    assert {"required": ["name"]} in site["allOf"]
