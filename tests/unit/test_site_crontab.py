"""The line in the user's crontab: put there once, known again, removed alone; with a `crontab` that keeps a file."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pilotage.adapters.sites.zipapp import build

CRONTAB = """\
#!/bin/sh
if [ "$1" = -l ]; then
  if [ -f {file} ]; then cat {file}; else echo "no crontab for you" >&2; exit 1; fi
elif [ "$1" = - ]; then cat >{file}; else exit 2; fi
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    program = tmp_path / "bin" / "crontab"
    program.parent.mkdir()
    program.write_text(CRONTAB.format(file=shlex.quote(str(tmp_path / "table"))))
    program.chmod(0o755)
    return tmp_path / "table"


def call(tmp_path: Path, *words: str, folder: str = "site", path: str = "") -> subprocess.CompletedProcess[str]:
    agent = build(tmp_path / "agent.pyz")
    return subprocess.run(
        [sys.executable, "-I", "-S", str(agent), "site", "--server=https://far:1", "--site=lyon",
         f"--folder={tmp_path / folder}", "--spool", *words],
        env={**os.environ, "PATH": path or f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_line_is_put_there_once_and_removed_alone(tmp_path: Path, table: Path) -> None:
    others = "MAILTO=me\n5 * * * * other # pilotage site agent elsewhere\n"
    table.write_text(others)
    first = call(tmp_path, "--install-cron")
    assert (first.returncode, first.stdout) == (0, "the agent of site lyon is put into your crontab\n")
    again = call(tmp_path, "--install-cron")
    assert (again.returncode, again.stdout) == (0, "the agent of site lyon is already in your crontab\n")
    lines = table.read_text().splitlines()
    assert "\n".join(lines[:2]) + "\n" == others
    assert len(lines) == 3
    assert lines[2].startswith("@reboot ")
    assert "token" not in lines[2]
    changed = call(tmp_path, "--install-cron", "--scheduler=slurm")
    assert "put into" in changed.stdout
    assert len(table.read_text().splitlines()) == 3
    assert call(tmp_path, "--uninstall-cron").stdout == "the agent of site lyon is removed from your crontab\n"
    assert table.read_text() == others
    assert call(tmp_path, "--uninstall-cron").stdout == "the agent of site lyon is not in your crontab\n"


def test_the_line_is_read_by_a_shell_as_it_was_meant(tmp_path: Path, table: Path) -> None:
    odd = "a 'b' 100% $(x)"
    assert call(tmp_path, "--install-cron", folder=odd).returncode == 0
    (line,) = table.read_text().splitlines()
    assert "%" not in line.replace("\\%", "")
    command = line.removeprefix("@reboot ").replace("\\%", "%")
    words = shlex.split(command, comments=True)
    assert f"--folder={tmp_path / odd}" in words
    assert words[-2:] == [f">>{tmp_path / odd}/site-agent.log", "2>&1"]
    assert call(tmp_path, "--uninstall-cron", folder=odd).returncode == 0
    assert table.read_text() == ""


def test_without_a_folder_it_works_in_one_of_its_site_below_the_home_of_its_user(tmp_path: Path, table: Path) -> None:
    agent = build(tmp_path / "agent.pyz")
    words = [sys.executable, "-I", "-S", str(agent), "site", "--server=https://far:1", "--install-cron"]
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path / "home")}
    for name in ("lyon", "lyon-2"):
        assert subprocess.run([*words, f"--site={name}"], env=env, timeout=60, check=False).returncode == 0
        assert (tmp_path / "home" / ".pilotage-site" / name).is_dir()
        assert f"--folder={tmp_path}/home/.pilotage-site/{name} " in table.read_text()
    bad = subprocess.run([*words, "--site=../x"], env=env, timeout=60, check=False, capture_output=True, text=True)
    assert bad.returncode == 1
    assert "no name of a site" in bad.stderr


def test_where_there_is_no_crontab_it_is_said(tmp_path: Path) -> None:
    said = call(tmp_path, "--install-cron", path=str(tmp_path))
    assert said.returncode == 1
    assert "there is no crontab here" in said.stderr
    assert "Traceback" not in said.stderr


def test_where_cron_is_forbidden_it_is_said(tmp_path: Path, table: Path) -> None:
    program = table.parent / "bin" / "crontab"
    program.write_text('#!/bin/sh\necho "you are not allowed to use this program" >&2\nexit 1\n')
    said = call(tmp_path, "--install-cron")
    assert said.returncode == 1
    assert "not allowed" in said.stderr
