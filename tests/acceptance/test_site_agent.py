"""Site agents and relays, with a real service and real pilots: nodes without a way out, a service that is gone for a while, and
agents that are killed at any moment."""

from __future__ import annotations

import getpass
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from pilotage.agent.site.state_folder import LOCK_FILE
from pilotage.model.settings.stores import StoreSettings
from pilotage.model.sites.entry import SiteEntry
from pilotage.service.announcement import left_behind
from tests.engines.capsule import CannotIsolate, Capsule
from tests.engines.slurm import SlurmCluster
from tests.engines.sshd import SshServer
from tests.kit.pilots import wait_until
from tests.kit.process_batch import ProcessBatch, give_dialect, pack_agent
from tests.kit.site_service import AgentProcess, SiteService, service_in

SITE = "lyon"
SYSTEM_PYTHON = "/usr/bin/python3"
SECONDS_MAX = 120.0
PACKAGES = 24
# The last package waits for a file: before, not everything is done, however long a test takes to look.
JOB = """\
pilotage: 1
job: far
stages:
  - each: {{n: 1..{packages}}}
    shell: |
      cat given.txt > out-{{n}}.txt
      sleep 0.3
      while [ {{n}} = {packages} ] && ! [ -e {gate} ]; do sleep 0.1; done
      echo {{n}} >> out-{{n}}.txt
    inputs: [given.txt]
    outputs: ["out-{{n}}.txt"]
"""
# A node sees nothing of the folder that its results go to.
_HIDE = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
_PAUSE = threading.Event()  # never set


class Far:
    """A service, and a site whose nodes are set apart from it."""

    def __init__(self, root: Path, service: SiteService, batch: ProcessBatch, agent: AgentProcess) -> None:
        self.root, self.service, self.batch, self.agent = root, service, batch, agent

    def submit(self) -> None:
        """Have packages run that bring and take files."""
        (self.service.folder / "given.txt").write_text("x" * 300_000)
        (self.service.folder / "pilotage.yaml").write_text(JOB.format(packages=PACKAGES, gate=self.root / "go"))
        self.service.program("submit")

    def made(self) -> int:
        """How many results are there, whole."""
        files = [self.service.folder / f"out-{number}.txt" for number in range(1, PACKAGES + 1)]
        return sum(file.exists() and file.stat().st_size > 300_000 for file in files)

    def wait_for_all(self) -> None:
        """Let the last package end, and wait until every result is there."""
        self.open()
        self.wait_for(PACKAGES)

    def open(self) -> None:
        """Let the last package end."""
        (self.root / "go").touch()

    def wait_for(self, count: int) -> None:
        """Wait until so many results are there."""
        try:
            wait_until(lambda: self.made() >= count, SECONDS_MAX)
        except AssertionError:
            outputs = [f"{each}: {each.read_text()[-1500:]}" for each in (self.root / "site" / "output").glob("*.out")]
            pytest.fail(f"{self.made()} of {PACKAGES}\n{self.agent.log()}\n{self.service.log()}\n{outputs}")

    def doubled(self) -> list[str]:
        """The keys under which more than one was ever submitted."""
        return [name for name, count in Counter(self.batch.keys()).items() if count > 1]


@contextmanager
def far(
    root: Path,
    *options: str,
    within: Sequence[str] = (),
    hidden: bool = True,
    pilots_max: int = 3,
    settle: float = 3.0,
    python: str = sys.executable,
    secure: bool = False,
    cache: str = "",
    stores: Sequence[StoreSettings] = (),
) -> Iterator[Far]:
    """All of it, as long as the block runs; the site agent is started by the test."""
    home = root / "ours" / "home"
    home.mkdir(parents=True)
    hiding = ["unshare", "-m", "sh", "-c", _HIDE, "sh", str(home.parent)] if hidden else []
    batch = ProcessBatch(root / "batch", within=[*within, *hiding], python=python)
    entry = SiteEntry(
        name=SITE, kind="procbatch", started_by="agent", slots=2, pilots_max=pilots_max, idle_seconds=2.0, cache=cache
    )
    archive = pack_agent(root / "agent.pyz")
    give_dialect(home)
    with service_in(home, [entry], secure=secure, stores=stores) as service:
        token = root / "token"
        shutil.copyfile(service.token_for(SITE), token)
        token.chmod(0o600)
        words = [sys.executable, "-I", "-S", str(archive), "site", f"--server={service.url}", f"--site={SITE}"]
        words += [f"--folder={root / 'site'}", f"--token-file={token}", f"--settle={settle}", *options]
        words += [f"--ca-file={service.ca_file}"] if secure else []
        agent = AgentProcess(words, environment=batch.environment(), log=root / "agent.log")
        try:
            yield Far(root, service, batch, agent)
        finally:
            agent.kill()
            batch.end()


@pytest.fixture
def apart() -> Iterator[Capsule]:
    """A network of its own, without a way out."""
    try:
        capsule = Capsule(network=True)
    except CannotIsolate as error:
        pytest.skip(f"privilege: {error}")
    with capsule:
        yield capsule


def joined(capsule: Capsule) -> str:
    """Join a network with ours by a cable that leads to one address here, and nowhere else; that address."""
    number = random.SystemRandom().randrange(1, 250)
    name, here, there = f"pt{os.getpid() % 100000}x{number}", f"10.231.{number}.1", f"10.231.{number}.2"
    for words in (
        ["ip", "link", "add", name, "type", "veth", "peer", "name", "inside", "netns", str(capsule.pid)],
        ["ip", "addr", "add", f"{here}/30", "dev", name],
        ["ip", "link", "set", name, "up"],
        [*capsule.networked, "ip", "addr", "add", f"{there}/30", "dev", "inside"],
        [*capsule.networked, "ip", "link", "set", "inside", "up"],
    ):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"privilege: no network of one's own here: {done.stderr.strip()}")
    return here


def reaches(capsule: Capsule, port: int) -> bool:
    """Whether a process in there could speak to the service."""
    program = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
    done = subprocess.run([*capsule.networked, sys.executable, "-c", program], capture_output=True, check=False)
    return done.returncode == 0


def test_nodes_that_reach_only_the_login_node_work_through_its_relay(tmp_path: Path, apart: Capsule) -> None:
    here = joined(apart)
    with far(tmp_path, f"--listen={here}:0", within=apart.networked) as site:
        assert not reaches(apart, site.service.port)
        site.agent.start()
        site.submit()
        site.wait_for_all()
        assert site.doubled() == []
        assert site.agent.stop() == 0, site.agent.log()
        assert "Traceback" not in site.agent.log()


def test_nodes_that_share_only_a_file_system_work_through_a_folder(tmp_path: Path, apart: Capsule) -> None:
    with far(tmp_path, "--spool", within=apart.networked) as site:
        assert not reaches(apart, site.service.port)
        site.agent.start()
        site.submit()
        site.wait_for_all()
        assert site.doubled() == []
        assert site.agent.stop() == 0, site.agent.log()
        assert "Traceback" not in site.agent.log()
        left = [each for each in (tmp_path / "site" / "relay").rglob("*") if each.is_file()]
        assert len(left) <= 3 * 4, left  # what pilots that live still ask


@pytest.mark.parametrize("way", ["--listen=127.0.0.1:0", "--spool"])
def test_a_service_that_is_gone_for_a_while_in_the_middle_loses_nothing(tmp_path: Path, way: str) -> None:
    with far(tmp_path, way) as site:
        site.agent.start()
        site.submit()
        site.wait_for(PACKAGES // 4)
        site.service.stop(kill=True)
        assert site.made() < PACKAGES
        _PAUSE.wait(3.0)  # pilots and the agent find nobody, again and again
        site.service.start()
        site.wait_for_all()
        assert site.doubled() == []


def test_an_agent_that_is_killed_at_any_moment_doubles_no_pilot(tmp_path: Path) -> None:
    chance = random.Random(20)
    with far(tmp_path, hidden=False, pilots_max=12, settle=0.2) as site:
        site.batch.say("slow")
        site.agent.start()
        site.open()
        site.submit()
        caught = 0
        while site.made() < PACKAGES and caught < 8:
            wait_until(lambda: site.batch.is_asked() or site.made() == PACKAGES, SECONDS_MAX)
            _PAUSE.wait(chance.uniform(0.0, 0.5))
            site.agent.kill()
            caught += 1
            site.agent.start()
        site.wait_for_all()
        assert caught >= 2
        assert site.doubled() == []
        assert site.batch.keys(), "nothing was submitted"


@pytest.mark.parametrize("way", [[], ["--listen=127.0.0.1:0"]])
def test_with_tls_agent_relay_and_pilots_believe_the_service_alone(tmp_path: Path, way: list[str]) -> None:
    with far(tmp_path, *way, secure=True) as site:
        site.agent.start()
        site.submit()
        site.wait_for_all()
        assert site.service.url.startswith("https:")
        assert stat.S_IMODE((tmp_path / "site" / "tokens" / SITE).stat().st_mode) == 0o600
        told = [line for line in site.agent.log().splitlines() if "pilots connect to" in line]
        assert ("connect to https:" in told[0]) == (not way)
        assert site.agent.stop() == 0


def test_one_agent_works_in_a_folder(tmp_path: Path) -> None:
    with far(tmp_path, hidden=False) as site:
        site.agent.start()
        wait_until(lambda: " runs; pilots connect" in site.agent.log())
        second = subprocess.run(site.agent.words, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        assert second.returncode == 3
        assert "runs already" in second.stderr
        site.agent.kill()
        site.agent.start()  # the dead one's lock is no obstacle
        wait_until(lambda: site.agent.log().count(" runs; pilots connect") == 2)


def test_a_batch_system_that_is_full_down_or_refuses_is_told_and_waited_for(tmp_path: Path) -> None:
    with far(tmp_path, hidden=False) as site:
        site.batch.say("down")
        site.agent.start()
        site.submit()
        wait_until(lambda: "does not answer" in site.agent.log())
        site.batch.say("")
        site.wait_for_all()
        assert site.doubled() == []


def test_pilots_in_the_queue_of_a_site_agent_are_withdrawn_when_the_service_stops(tmp_path: Path) -> None:
    with far(tmp_path, hidden=False, pilots_max=1) as site:
        site.batch.say("held")
        site.agent.start()
        site.submit()
        wait_until(lambda: site.batch.queued() == 1, SECONDS_MAX)
        site.service.stop()
        wait_until(lambda: site.batch.queued() == 0, SECONDS_MAX)  # it has heard of it, and may be about to
        assert left_behind(site.service.state) == ()


def test_what_cannot_be_withdrawn_at_a_site_whose_agent_is_gone_is_told(tmp_path: Path) -> None:
    with far(tmp_path, hidden=False, pilots_max=1) as site:
        site.batch.say("held")
        site.agent.start()
        site.submit()
        wait_until(lambda: site.batch.queued() == 1, SECONDS_MAX)
        site.agent.kill()
        site.service.stop()
        told = "site lyon: 1 batch job is not cancelled: its agent did not poll in time; the next service cancels what is left"
        assert left_behind(site.service.state) == (told,)
        assert told in site.service.log()
        site.service.start()
        assert left_behind(site.service.state) == ()
        site.agent.start()
        site.batch.say("")
        site.wait_for_all()


def test_pilots_go_on_when_their_agent_ends(tmp_path: Path) -> None:
    with far(tmp_path, hidden=False) as site:
        site.agent.start()
        site.submit()
        site.wait_for(1)
        assert site.agent.stop() == 0
        site.wait_for_all()


def test_an_ordinary_account_without_anything_installed_is_enough(apart: Capsule) -> None:
    if os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists():
        pytest.skip("privilege: another account is needed, and a Python that it may use")
    root = Path(tempfile.mkdtemp(prefix="pilotage-nobody-"))
    root.chmod(0o755)
    account = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    try:
        with far(root, "--spool", within=apart.networked, hidden=False, python=SYSTEM_PYTHON) as site:
            (root / "site").mkdir(mode=0o700)
            subprocess.run(["chown", "-R", "nobody:nogroup", str(root / "site"), str(root / "batch")], check=True)
            subprocess.run(["chown", "nobody", str(root / "token")], check=True)
            (root / "ours").chmod(0o700)
            site.batch.within([])  # an ordinary account makes no namespaces
            site.agent.words = [*account, SYSTEM_PYTHON, *site.agent.words[1:]]
            site.agent.start()
            site.submit()
            site.wait_for(3)
            site.service.stop()
            _PAUSE.wait(3.0)
            site.service.start()
            site.wait_for_all()
            assert site.doubled() == []
            owners = {each.stat().st_uid for each in (root / "site").rglob("*")}
            assert owners == {(root / "site").stat().st_uid}
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.slow
def test_a_real_slurm_is_served_by_a_site_agent(tmp_path: Path, slurm_cluster: SlurmCluster) -> None:
    home = tmp_path / "home"
    entry = SiteEntry(name=SITE, kind="slurm", started_by="agent", slots=2, pilots_max=3, idle_seconds=2.0)
    archive = pack_agent(tmp_path / "agent.pyz")
    with service_in(home, [entry]) as service:
        words = [sys.executable, "-I", "-S", str(archive), "site", f"--server={service.url}", f"--site={SITE}"]
        words += [f"--folder={tmp_path / 'site'}", f"--token-file={service.token_for(SITE)}", "--listen=127.0.0.1:0"]
        agent = AgentProcess(words, environment=slurm_cluster.environment(), log=tmp_path / "agent.log")
        batch = ProcessBatch(tmp_path / "unused")
        site = Far(tmp_path, service, batch, agent)
        agent.start()
        try:
            site.submit()
            site.wait_for(2)
            agent.kill()
            agent.start()
            site.wait_for_all()
            names = slurm_cluster.command("squeue", "--states=all", "--noheader", "--array", "--format=%j %K").split(
                "\n"
            )
            ours = [name for name in names if name.startswith("pilotage-")]
            assert ours
            assert len(ours) == len({*ours})
        finally:
            agent.kill()
            slurm_cluster.command("scancel", "--full", "--me")


def _ssh_program(root: Path, server: SshServer) -> Path:
    """A folder with an `ssh` in it that knows the way to the test's server as `login`."""
    folder = root / "bin"
    folder.mkdir()
    configuration = root / "ssh_config"
    configuration.write_text(
        f"Host login\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {server.folder}/user\n"
        "  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n  LogLevel ERROR\n"
    )
    program = folder / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {configuration} "$@"\n')
    program.chmod(0o755)
    return folder


def _environment_of_the_agent(folder: Path) -> list[bytes]:
    """The variables of the process that has the lock of the folder; none while it changes hands."""
    try:
        (lock,) = folder.glob(f"*/{LOCK_FILE}")
        return Path(f"/proc/{json.loads(lock.read_bytes())['pid']}/environ").read_bytes().split(b"\0")
    except (ValueError, OSError):
        return []


def test_a_service_that_is_reached_only_over_its_own_ssh_starts_the_agent_and_serves_it(
    tmp_path: Path, ssh_server: SshServer, apart: Capsule, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "ours" / "home"
    home.mkdir(parents=True)
    hiding = ["unshare", "-m", "sh", "-c", _HIDE, "sh", str(home.parent)]
    batch = ProcessBatch(tmp_path / "batch", within=[*apart.networked, *hiding])
    monkeypatch.setenv("PATH", f"{_ssh_program(tmp_path, ssh_server)}:{os.environ['PATH']}")
    give_dialect(home)
    entry = SiteEntry(
        name=SITE,
        kind="procbatch",
        address=f"ssh://{getpass.getuser()}@login",
        started_by="agent",
        folder=str(tmp_path / "site"),
        python=sys.executable,
        setup=(f"export PATH={batch.folder / 'bin'}:$PATH",),
        slots=2,
        pilots_max=3,
        idle_seconds=2.0,
    )
    agent = AgentProcess([], environment={}, log=tmp_path / "unused")
    folder = tmp_path / "site"
    with service_in(home, [entry]) as service:
        site = Far(tmp_path, service, batch, agent)
        try:
            site.submit()
            site.wait_for(PACKAGES // 4)
            service.stop()
            _PAUSE.wait(2.0)
            service.start()
            site.wait_for_all()
            assert site.doubled() == []
            (log,) = folder.glob("*/site-agent.log")
            assert log.read_text().count(" runs; pilots connect") == 1, log.read_text()
            assert "pilots connect to spool:" in log.read_text()
            service.stop()
            service.rewrite(msgspec.structs.replace(entry, setup=(*entry.setup, "export SETUP=second")))
            service.start()  # an agent that was started as the entry said before is started anew
            # One that waits for the lock since before may have it for a moment: it is told to leave, too.
            wait_until(lambda: b"SETUP=second" in _environment_of_the_agent(folder), SECONDS_MAX)
            wait_until(lambda: log.read_text().count(" runs; pilots connect") >= 2, SECONDS_MAX)
            assert "it is restarted, because the entry of its site has changed" in log.read_text()
        finally:
            for lock in folder.glob(f"*/{LOCK_FILE}"):
                os.kill(json.loads(lock.read_bytes())["pid"], signal.SIGKILL)
                shutil.rmtree(f"/tmp/{lock.parent.name}-{os.getuid()}", ignore_errors=True)  # noqa: S108 # where it is
            batch.end()
