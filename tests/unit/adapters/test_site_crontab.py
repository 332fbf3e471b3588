"""The line in the user's crontab: put there once, known again, removed alone; with a `crontab` that keeps a file."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pilotage.adapters.sites.zipapp import build
from pilotage.agent.site.state_folder import LOCK_FILE
from tests.kit.pilots import wait_until

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
    assert (first.returncode, first.stdout) == (0, "the site agent of lyon is added to your crontab\n")
    again = call(tmp_path, "--install-cron")
    assert (again.returncode, again.stdout) == (0, "the site agent of lyon is already in your crontab\n")
    lines = table.read_text().splitlines()
    assert "\n".join(lines[:2]) + "\n" == others
    assert [line.partition(" /")[0] for line in lines[2:]] == ["@reboot", "*/5 * * * *"]
    assert "token" not in "".join(lines[2:])
    changed = call(tmp_path, "--install-cron", "--scheduler=slurm")
    assert "added to" in changed.stdout
    assert len(table.read_text().splitlines()) == 4
    assert call(tmp_path, "--uninstall-cron").stdout == "the site agent of lyon is removed from your crontab\n"
    assert table.read_text() == others
    assert call(tmp_path, "--uninstall-cron").stdout == "the site agent of lyon is not in your crontab\n"


def test_the_line_is_read_by_a_shell_as_it_was_meant(tmp_path: Path, table: Path) -> None:
    odd = "a 'b' 100% $(x)"
    assert call(tmp_path, "--install-cron", folder=odd).returncode == 0
    for line in table.read_text().splitlines():
        assert "%" not in line.replace("\\%", "")
        words = shlex.split(command_in(line), comments=True)
        assert f"--folder={tmp_path / odd}" in words
        script = words[words.index("-c") + 1]
        assert shlex.split(script)[-2:] == [f">>{tmp_path / odd}/site-agent.log", "2>&1"]
        assert words[-2:] == [">/dev/null", "2>&1"]
    assert call(tmp_path, "--uninstall-cron", folder=odd).returncode == 0
    assert table.read_text() == ""


def test_the_line_names_the_files_that_it_was_given_so_that_cron_finds_them_from_any_folder(
    tmp_path: Path, table: Path
) -> None:
    assert call(tmp_path, "--install-cron", "--token-file=a/token", "--ca-file=ca.pem").returncode == 0
    for line in table.read_text().splitlines():
        words = shlex.split(command_in(line), comments=True)
        assert {f"--token-file={Path.cwd()}/a/token", f"--ca-file={Path.cwd()}/ca.pem"} <= {*words}


def command_in(line: str) -> str:
    """What cron runs of a line."""
    return line.removeprefix("@reboot ").removeprefix("*/5 * * * * ").replace("\\%", "%")


def test_what_cron_runs_starts_the_agent_in_a_login_shell_where_it_was_killed_and_leaves_one_alone_that_runs(
    tmp_path: Path, table: Path
) -> None:
    (tmp_path / ".profile").write_text("echo Welcome; export CLUSTER=lyon\n")
    call(tmp_path, "--install-cron")
    line = table.read_text().splitlines()[1]
    log = tmp_path / "site" / "site-agent.log"

    def run() -> subprocess.Popen[bytes]:
        bare = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
        return subprocess.Popen(["/bin/sh", "-c", command_in(line)], env=bare)

    def works(count: int) -> bool:
        return log.exists() and log.read_text().count("the site agent of lyon runs") == count

    started: list[subprocess.Popen[bytes]] = []
    try:
        for number in (1, 2):
            started.append(run())
            wait_until(lambda number=number: works(number))  # type: ignore[misc]
            environment = Path(f"/proc/{holder(tmp_path / 'site')}/environ").read_bytes()
            assert b"CLUSTER=lyon" in environment.split(b"\0")
            said = log.read_text()
            assert run().wait(60) == 0  # and not a word
            assert log.read_text().replace(said, "").count("runs already") == 0
            os.kill(holder(tmp_path / "site"), signal.SIGKILL)
            started.pop().wait(60)
        assert "Welcome" not in log.read_text()
    finally:
        for each in started:
            os.kill(holder(tmp_path / "site"), signal.SIGKILL)
            each.wait(60)


def holder(folder: Path) -> int:
    """The process of the agent of a folder."""
    pid: int = json.loads((folder / LOCK_FILE).read_bytes())["pid"]
    return pid


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
    assert "not a valid site name" in bad.stderr


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
