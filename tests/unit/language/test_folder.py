from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.language.folder import DiskFolder, Folder, MemoryFolder, NoEarlierJobs

FILES = [
    "a.dat",
    "b.dat",
    "x/c.dat",
    "x/y/d.dat",
    ".hidden",
    ".h/e.dat",
    "sp ace.dat",
    "new\nline.dat",
    "x/[1].dat",
    "é.dat",
]


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "memory":
        return MemoryFolder({name: name for name in FILES})
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return DiskFolder(tmp_path)


@pytest.mark.parametrize(
    "pattern, found",
    [
        ("*.dat", ["a.dat", "b.dat", "new\nline.dat", "sp ace.dat", "é.dat"]),
        ("x/*.dat", ["x/[1].dat", "x/c.dat"]),
        ("x/[[]1].dat", ["x/[1].dat"]),
        ("**/d.dat", ["x/y/d.dat"]),
        ("**", ["a.dat", "b.dat", "new\nline.dat", "sp ace.dat", "x/[1].dat", "x/c.dat", "x/y/d.dat", "é.dat"]),
        (".*", [".hidden"]),
        (".h/*", [".h/e.dat"]),
        ("[ab].dat", ["a.dat", "b.dat"]),
        ("a.dat", ["a.dat"]),
        ("./a.dat", ["a.dat"]),
        ("x", []),
        ("x/*", ["x/[1].dat", "x/c.dat"]),
        ("none/*", []),
        ("a.dat/*", []),
        ("", []),
        ("x**d.dat", ["x/y/d.dat"]),
    ],
)
def test_searching_finds_files_sorted(folder: Folder, pattern: str, found: list[str]) -> None:
    assert folder.glob(pattern) == found


def test_files_are_read(folder: Folder) -> None:
    assert folder.read("x/c.dat") == b"x/c.dat"
    assert folder.read("new\nline.dat") == b"new\nline.dat"


@pytest.mark.parametrize("path", ["none", "x", "", "a\0b", "a.dat/b"])
def test_what_is_no_file_reads_as_none(folder: Folder, path: str) -> None:
    assert folder.read(path) is None


@pytest.mark.parametrize(
    "path, there",
    [("a.dat", True), ("x", True), ("x/y", True), ("x/y/d.dat", True), ("z", False), ("a\0", False), ("x/z", False)],
)
def test_files_and_folders_exist(folder: Folder, path: str, *, there: bool) -> None:
    assert folder.exists(path) is there


@pytest.mark.parametrize(
    "path, is_one", [("x", True), ("x/y", True), ("a.dat", False), ("z", False), ("x\0", False), ("/x", False)]
)
def test_folders_are_told_from_files(folder: Folder, path: str, *, is_one: bool) -> None:
    assert folder.is_folder(path) is is_one


def test_absolute_names_are_looked_up_on_disk(tmp_path: Path) -> None:
    (tmp_path / "a.dat").touch()
    folder = DiskFolder(tmp_path / "elsewhere")
    assert folder.exists(f"{tmp_path}/a.dat")
    assert not folder.exists(f"{tmp_path}/b.dat")
    assert folder.glob(f"{tmp_path}/*.dat") == [f"{tmp_path}/a.dat"]


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").touch()
    for name in ("up", "up2", "up3"):
        (tmp_path / "d" / name).symlink_to(tmp_path)
    assert DiskFolder(tmp_path).glob("**/f") == ["d/f"]


def test_a_link_to_a_folder_is_followed_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "f").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert DiskFolder(tmp_path).glob("link/**") == ["link/f"]
    assert DiskFolder(tmp_path).glob("l*/f") == ["link/f"]


def test_without_a_book_no_job_is_known() -> None:
    assert NoEarlierJobs().outputs("j", "*") is None
