"""The shipped examples do what they say: their commands, run in the order of the graph, make the files they declare."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from pilotage.language import DiskFolder, Expansion, load
from pilotage.language.text.patterns import is_pattern, matches


def expansion_in(folder: Path) -> Expansion:
    document = folder / "pilotage.yaml"
    loaded = load(document.read_bytes(), file=document.name, folder=DiskFolder(folder))
    assert loaded.report.errors == []
    assert loaded.report.warnings == []
    assert loaded.expansion is not None
    return loaded.expansion


def run_in_order(expansion: Expansion, folder: Path) -> None:
    """Run every package after those it waits for, and hold what it made against what it declared."""
    order = expansion.graph.order()
    assert order is not None
    produced: dict[int, tuple[str, ...]] = {}
    for number in order.tolist():
        package = expansion.package(number, produced)
        assert not [given for binary in package.binaries for given in binary.inputs if given.awaited]
        for name in package.needed:
            assert (folder / name).exists(), f"{package.name} needs {name}"
        for binary in package.binaries:
            subprocess.run(binary.argv, cwd=folder, check=True)
        there = [str(path.relative_to(folder)) for path in folder.rglob("*")]
        appeared = [name for made in package.made if is_pattern(made) for name in there if matches(made, name)]
        assert [made for made in package.made if not is_pattern(made) and not (folder / made).exists()] == []
        produced[number] = tuple(appeared)


def test_the_commands_of_reconstruction_make_the_files_it_declares(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "reconstruction"
    shutil.copytree(root / "examples" / "reconstruction", folder)
    run_in_order(expansion_in(folder), folder)
    assert (folder / "all-run001.root").read_text("utf-8").endswith("total 9\n")


def test_the_commands_of_a_shorter_sweep_make_the_files_it_declares(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    shutil.copytree(root / "examples" / "sweep", folder)
    document = folder / "pilotage.yaml"
    document.write_text(document.read_text("utf-8").replace("1..1000", "1..20"), "utf-8")
    run_in_order(expansion_in(folder), folder)
    assert (folder / "result.dat").read_text("utf-8").startswith("walks 20 ")


def test_reconstruction_has_n_lines_and_then_three_n(root: Path) -> None:
    expansion = expansion_in(root / "examples" / "reconstruction")
    raw_files = len(list((root / "examples" / "reconstruction" / "raw").glob("*.raw")))
    assert [expansion.layouts[stage].lines for stage in (0, 1)] == [raw_files, 3 * raw_files]


def test_reconstruction_waits_for_the_reco_of_its_own_raw_file_only(root: Path) -> None:
    expansion = expansion_in(root / "examples" / "reconstruction")
    waits = {
        expansion.path(n): [expansion.path(p) for p in expansion.graph.predecessors(n).tolist()] for n in range(12)
    }
    assert waits["reco001/002/004/001"] == ["reco001/001/002/001"]
    assert all(len(before) == 1 for path, before in waits.items() if path.startswith("reco001/002/"))


def test_reconstruction_is_written_in_under_sixty_lines(root: Path) -> None:
    assert len((root / "examples/reconstruction/pilotage.yaml").read_text("utf-8").splitlines()) < 60
