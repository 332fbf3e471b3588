"""A real Slurm cluster on this machine: a controller and several nodes, each in a capsule of its own, gone with the tests.

Without accounting, as Debian's packages come; several clusters at once, each with a munge key of its own, so that none
takes the other's users.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.engines.cables import Cable
from tests.engines.capsule import Capsule, kill_in
from tests.engines.debian import ensure_programs
from tests.engines.errors import EngineError
from tests.engines.estates import Estate
from tests.engines.postgres import PORTS

PROGRAMS = ("munged", "sbatch", "scancel", "scontrol", "sinfo", "slurmctld", "slurmd", "squeue")
PACKAGES = ("munge", "slurm-client", "slurm-wlm-basic-plugins", "slurmctld", "slurmd")
START_SECONDS_MAX = 30.0
MEMORY_MEBIBYTES = 16_000  # said, not had
ARRAY_MAX = 1001
_LOOPBACK = "127.0.0.1"
_BINDING = "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny"  # to the loopback, where the network is everybody's
_HEAD, _NODES = "10.77.0.1", "10.77.0.2"  # of a cluster whose nodes reach nothing but its head
_LOOK_SECONDS = 0.05
_PAUSE = threading.Event()  # never set

_CONFIGURATION = """\
ClusterName={name}
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin={confined}
SwitchType=switch/none
MpiDefault=none
{binding}
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=2,batch_sched_delay=0
PriorityType=priority/basic
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SlurmdTimeout={node_seconds}
SlurmctldTimeout=10
BatchStartTimeout=10
MessageTimeout=5
KillWait=2
MinJobAge={remembered_seconds}
InactiveLimit=0
JobRequeue=1
MaxArraySize={array_max}
MaxJobCount={jobs_max}
TreeWidth=64
RebootProgram=/bin/true
DefMemPerCPU=64
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes={names} Default=NO MaxTime=5 State=UP
PartitionName=closed Nodes={names} Default=NO AllowGroups=nobody-is-in-here State=UP
"""
_NODE = (
    "NodeName={node} NodeHostname={host} NodeAddr={address} Port={port} CPUs={cpus} Boards=1 SocketsPerBoard=1"
    f" CoresPerSocket={{cpus}} ThreadsPerCore=1 RealMemory={MEMORY_MEBIBYTES} State=UNKNOWN"
)

_MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
_MEMORY_LIMITS = """\
CgroupAutomount=no
CgroupMountpoint=/sys/fs/cgroup
CgroupPlugin=cgroup/v1
ConstrainRAMSpace=yes
"""


def can_limit_memory() -> bool:
    """Whether jobs can be held to the memory that they asked for: by control groups, of the first version, that are ours."""
    return os.access(_MEMORY_GROUPS / "memory.limit_in_bytes", os.W_OK)


class SlurmCluster:
    """A cluster whose nodes are called NAMEn1, NAMEn2, …; ports from `base_port` to `base_port + nodes` are its own.

    Where no port is named, free ones are found.

    With `network` the whole cluster has a network of its own, without a way out; its commands then go after `within`. With
    `routeless` its nodes have another one, from which nothing but the head is reached. An `estate` has what the computers of
    the cluster share, and nobody else sees. With `hostnames` each node calls itself by its name, as programs that span
    several nodes need it.
    With `memory_limits` the kernel ends what takes more memory than its job asked for; see `can_limit_memory`.
    """

    def __init__(
        self,
        name: str,
        base_port: int = 0,
        nodes: int = 2,
        cpus: int = 8,
        *,
        jobs_max: int = 20_000,
        node_seconds: int = 10,
        network: bool = False,
        hostnames: bool = False,
        memory_limits: bool = False,
        remembered_seconds: int = 300,
        routeless: bool = False,
        estate: Estate | None = None,
    ) -> None:
        """Install Slurm where it is missing, and start a cluster; a node that is silent for so long counts as lost.

        What has ended is listed for `remembered_seconds`, or somewhat longer.
        """
        self._programs = ensure_programs(PROGRAMS, packages=PACKAGES)
        self.name = name
        self._hostnames = hostnames
        self.nodes = [f"{name}n{number}" for number in range(1, nodes + 1)]
        self.folder = estate.share("engine") if estate else Path(tempfile.mkdtemp(prefix=f"pilotage-slurm-{name}-"))
        self.folder.chmod(0o755)  # its users are others
        self._prepare = estate.prepare() if estate else ()
        base_port = base_port or _free_ports(nodes + 1)
        host = socket.gethostname().partition(".")[0]
        written = [
            _NODE.format(
                node=node,
                host=node if hostnames else host,
                address=_NODES if routeless else _LOOPBACK,
                port=base_port + number,
                cpus=cpus,
            )
            for number, node in enumerate(self.nodes, 1)
        ]
        self.configuration = self.folder / "slurm.conf"
        self.configuration.write_text(
            _CONFIGURATION.format(
                name=name,
                host=host,
                address=_HEAD if routeless else _LOOPBACK,
                binding="" if routeless else _BINDING,
                port=base_port,
                folder=self.folder,
                array_max=ARRAY_MAX,
                jobs_max=jobs_max,
                node_seconds=node_seconds,
                remembered_seconds=remembered_seconds,
                confined="task/cgroup" if memory_limits else "task/none",
                nodes="\n".join(written),
                names=f"{name}n[1-{nodes}]",
            )
        )
        hosts = "".join(f"127.0.0.1 {node}\n" for node in self.nodes)
        (self.folder / "hosts").write_text(Path("/etc/hosts").read_text() + hosts)
        (self.folder / "cgroup.conf").write_text(_MEMORY_LIMITS if memory_limits else "CgroupAutomount=no\n")
        for folder in ("state", "spool", "log"):
            (self.folder / folder).mkdir()
        self._head = Capsule(network=network, remove=estate.folder if estate else self.folder, prepare=self._prepare)
        self._beside = self._head
        self._capsules: dict[str, Capsule] = {}
        try:
            if routeless:
                self._beside = Capsule(network=True)
                Cable(self._head, self._beside, here=_HEAD, there=_NODES)
            self._start_munge()
            self.restart_controller()
            for node in self.nodes:
                self.start_node(node)
            self._wait_until_idle()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SlurmCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the cluster with everything that runs in it, and remove its folder; nothing happens the second time."""
        for capsule in self._capsules.values():
            capsule.close()
        self._beside.close()
        self._head.close()
        for node in self.nodes:
            _remove_groups(_MEMORY_GROUPS / f"slurm_{node}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        """What tells Slurm's commands which cluster is meant."""
        return {"SLURM_CONF": str(self.configuration)}

    @property
    def within(self) -> list[str]:
        """What goes before a command that speaks to the cluster; nothing where it shares our network."""
        return self._head.networked

    @property
    def head(self) -> Capsule:
        """Where the controller runs, which is the login node, too."""
        return self._head

    @property
    def capsules(self) -> list[Capsule]:
        """The places in which the controller and the nodes run."""
        return [self._head, *self._capsules.values()]

    def command(self, *words: str) -> str:
        """Run one of Slurm's commands as an administrator; what it printed. Raises `EngineError` where it fails."""
        done = self._command(*words)
        if done.returncode:
            raise EngineError(f"{' '.join(words)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def kill_controller(self) -> None:
        """Kill the controller; nodes and jobs go on."""
        kill_in(self._head, self.folder / "slurmctld.pid")

    def restart_controller(self) -> None:
        """Start the controller, and wait until it answers."""
        self._head.run(self._programs["slurmctld"], "-f", str(self.configuration), environment=self.environment())
        self._wait(lambda: self._command("scontrol", "ping").returncode == 0, "the controller does not answer")

    def start_node(self, node: str) -> None:
        """Start a node, or its daemon where only that is gone."""
        if node not in self._capsules:
            hostname = node if self._hostnames else ""
            self._capsules[node] = Capsule(beside=self._beside, hostname=hostname, prepare=self._prepare)
            if hostname:
                self._capsules[node].run("mount", "--bind", str(self.folder / "hosts"), "/etc/hosts")
        words = (self._programs["slurmd"], "-N", node, "-f", str(self.configuration))
        self._capsules[node].run(*words, environment=self.environment())

    def kill_node(self, node: str) -> None:
        """Kill the daemon of a node; what runs there goes on."""
        kill_in(self._capsules[node], self.folder / f"slurmd-{node}.pid")

    def lose_node(self, node: str) -> None:
        """End everything on a node at once, as when its power fails."""
        self._capsules.pop(node).kill()

    def drain(self, *nodes: str) -> None:
        """Let nodes finish what they have and take nothing more; all of them where none is named."""
        for node in nodes or self.nodes:
            self.command("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=tests")

    def resume(self, *nodes: str) -> None:
        """Let drained or lost nodes work again; all of them where none is named."""
        for node in nodes or self.nodes:
            self.command("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def _command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.within, self._programs[words[0]], *words[1:]],
            env={**os.environ, **self.environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        for each, mode in ((folder, 0o755), (folder / "key", 0o700)):
            each.mkdir(mode=mode)
        (folder / "key" / "munge.key").write_bytes(secrets.token_bytes(1024))
        (folder / "key" / "munge.key").chmod(0o400)
        for each in (folder, folder / "key", folder / "key" / "munge.key"):
            shutil.chown(each, "munge", "munge")
        self._head.run(
            "setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", self._programs["munged"], "--force",
            f"--socket={folder}/socket", f"--key-file={folder}/key/munge.key", f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed",
        )  # fmt: skip

    def _wait_until_idle(self) -> None:
        def is_idle() -> bool:
            states = self._command("sinfo", "-h", "-N", "-p", "main", "-o", "%T").stdout.split()
            return len(states) == len(self.nodes) and set(states) == {"idle"}

        self._wait(is_idle, "the nodes did not come up")

    def _wait(self, what: Callable[[], bool], why: str) -> None:
        until = time.monotonic() + START_SECONDS_MAX
        while not what():
            if time.monotonic() > until:
                raise EngineError(f"{why}: {self.log()}")
            _PAUSE.wait(_LOOK_SECONDS)

    def log(self) -> str:
        """The end of what the controller wrote."""
        file = self.folder / "log" / "slurmctld.log"
        return file.read_text("utf-8", errors="replace")[-4000:] if file.exists() else ""


def _remove_groups(folder: Path) -> None:
    """Remove a control group with those below it; nothing is in them any more."""
    if folder.is_dir():
        for below in folder.iterdir():
            if below.is_dir():
                _remove_groups(below)
        folder.rmdir()


def _free_ports(count: int) -> int:
    """The first of some ports in a row that nothing listens on."""
    for first in random.sample(PORTS, k=100):
        with contextlib.ExitStack() as opened:
            probes = [opened.enter_context(socket.socket()) for _ in range(count)]
            if all(probe.connect_ex(("127.0.0.1", first + place)) for place, probe in enumerate(probes)):
                return first
    raise EngineError(f"no {count} free ports in a row between {PORTS.start} and {PORTS.stop}")
