"""A real crontab and a real cron: an ordinary account puts its site agent there, and the computer's start brings it up."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.adapters.sites.zipapp import build
from tests.engines.debian import ensure_programs
from tests.kit.pilots import wait_until
from tests.kit.real_runs import Mounts, own_mounts

SYSTEM_PYTHON = "/usr/bin/python3"
ACCOUNT = "daemon"  # an ordinary one with a home, which any Debian has
SECONDS_MAX = 90.0
OTHERS = "MAILTO=me\n5 * * * * true # another line\n"


class Account:
    """An account of its own on a computer whose crontabs, and whatever runs by them, nobody else sees."""

    def __init__(self, mounts: Mounts, folder: Path) -> None:
        self.mounts, self.folder = mounts, folder
        self.site = folder / "a site, 100%"
        self.agent = build(folder / "agent.pyz")
        self.agent.chmod(0o644)

    def call(self, *words: str, said: str = "") -> str:
        """Run something as this account; what it printed."""
        user = ["setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups"]
        done = subprocess.run(
            [*self.mounts.prefix, *user, *words], input=said, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    def site_agent(self, word: str) -> str:
        """Call the agent of the site with a word."""
        about = ["site", "--server=https://127.0.0.1:9", "--site=lyon", f"--folder={self.site}", "--spool"]
        return self.call(SYSTEM_PYTHON, "-I", "-S", str(self.agent), *about, word)

    def log(self) -> str:
        """What the agent said that cron started."""
        file = self.site / "site-agent.log"
        return file.read_text() if file.exists() else ""

    def processes(self) -> list[int]:
        """Everything that runs for this site."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    words = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if f"--folder={self.site}".encode() in words:
                    found.append(int(entry.name))
        return found


@pytest.fixture
def account() -> Iterator[Account]:
    if os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists():
        pytest.skip("privilege: another account is needed, and a Python that it may use")
    ensure_programs(["crontab", "cron"], packages=["cron"])
    folder = Path(tempfile.mkdtemp(prefix="pilotage-cron-"))
    folder.chmod(0o755)
    shutil.chown(folder, ACCOUNT)
    try:
        with own_mounts() as mounts:
            mounts.small(Path("/var/spool/cron"), "1m")
            mounts.small(Path("/run"), "1m")  # where cron notes that the computer has started
            crontabs = mounts.seen(Path("/var/spool/cron/crontabs"))
            crontabs.mkdir()
            shutil.chown(crontabs, "root", "crontab")
            crontabs.chmod(0o1730)
            mounts.seen(Path("/var/spool/cron")).chmod(0o755)
            found = Account(mounts, folder)
            yield found
            for pid in found.processes():
                os.kill(pid, 9)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_line_is_put_into_a_real_crontab_once_and_removed_alone(account: Account) -> None:
    assert account.site_agent("--uninstall-cron") == "the site agent of lyon is not in your crontab\n"
    account.call("crontab", "-", said=OTHERS)
    assert account.site_agent("--install-cron") == "the site agent of lyon is added to your crontab\n"
    assert account.site_agent("--install-cron") == "the site agent of lyon is already in your crontab\n"
    lines = account.call("crontab", "-l").splitlines(keepends=True)
    assert ("".join(lines[:2]), len(lines)) == (OTHERS, 4)
    assert account.site_agent("--uninstall-cron") == "the site agent of lyon is removed from your crontab\n"
    assert account.call("crontab", "-l") == OTHERS


def test_a_real_cron_starts_the_agent_when_the_computer_starts(account: Account) -> None:
    account.site_agent("--install-cron")
    assert account.processes() == []
    cron = subprocess.Popen([*account.mounts.prefix, "cron", "-f"], stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: "the site agent of lyon runs" in account.log(), SECONDS_MAX)
        owners = {Path(f"/proc/{pid}").stat().st_uid for pid in account.processes()}
        assert owners == {account.folder.stat().st_uid}
    finally:
        cron.terminate()
        cron.wait(30)
