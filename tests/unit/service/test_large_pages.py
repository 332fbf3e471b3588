"""Large pages are asked for where memory is full, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.service.process import GROWN_BYTES, LargePages, stretches

PAGE = 0x200000
SMAPS = """\
aaaac0000000-aaaac0101000 r-xp 00000000 fe:00 1234                       /usr/bin/python3
Size:               1028 kB
Rss:                1028 kB
aaaad0001000-aaaad0a01000 rw-p 00000000 00:00 0                          [heap]
Size:              10240 kB
KernelPageSize:        4 kB
Rss:               10000 kB
VmFlags: rd wr mr mw me ac
ffff80000000-ffff80800000 rw-p 00000000 00:00 0
Size:               8192 kB
Rss:                  16 kB
ffff90000000-ffff90800000 rw-p 00000000 fe:00 77                         /tmp/file of somebody
Rss:                8192 kB
ffffa0000000-ffffa0400000 rw-p 00000000 00:00 0
Rss:                4096 kB
ffffb0100000-ffffb0300000 rw-p 00000000 00:00 0
Rss:                2048 kB
"""


def kernel(folder: Path, enabled: str) -> Path:
    folder.mkdir()
    (folder / "enabled").write_text(enabled)
    (folder / "hpage_pmd_size").write_text(f"{PAGE}\n")
    return folder


def test_what_is_full_and_its_own_is_asked_for_from_boundary_to_boundary() -> None:
    found = list(stretches(SMAPS, page_bytes=PAGE))
    assert found == [(0xAAAAD0200000, 0xAAAAD0A00000), (0xFFFFA0000000, 0xFFFFA0400000)]


def test_who_has_not_grown_does_not_ask_again(tmp_path: Path) -> None:
    process = tmp_path / "process"
    process.mkdir()
    (process / "smaps").write_text("1000000000-1000400000 rw-p 00000000 00:00 0\nRss: 4096 kB\n")
    pages = LargePages(process=process, settings=kernel(tmp_path / "kernel", "always [madvise] never"))
    asked = []
    for resident_pages in (GROWN_BYTES, GROWN_BYTES, 2 * GROWN_BYTES):
        (process / "statm").write_text(f"1 {resident_pages} 1 1 0 1 0")
        asked.append(pages.ask())
    assert asked == [2 * PAGE, 0, 2 * PAGE]


@pytest.mark.parametrize("enabled", ["always madvise [never]", ""])
def test_where_nobody_wants_them_or_nobody_knows_them_nothing_is_asked_for(tmp_path: Path, enabled: str) -> None:
    settings = kernel(tmp_path / "kernel", enabled)
    if not enabled:
        (settings / "enabled").unlink()
    assert LargePages(settings=settings).ask() == 0


def test_this_process_may_ask_and_goes_on() -> None:
    kept = [bytearray(1000) for _ in range(40_000)]
    pages = LargePages()
    pages.ask()
    assert pages.ask() == 0
    assert not any(map(any, kept[::100]))
