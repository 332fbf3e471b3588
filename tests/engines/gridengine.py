"""A real Grid Engine on this machine, in a network of its own since its daemons listen everywhere; gone with the tests.

Its root, cell and spool lie in a temporary folder: nothing of an installed cell is touched, and several may run at once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.engines.capsule import Capsule, kill_in
from tests.engines.debian import ensure_programs
from tests.engines.errors import EngineError
from tests.engines.estates import Estate

PROGRAMS = ("qacct", "qconf", "qdel", "qmod", "qstat", "qsub", "sge_execd", "sge_qmaster")
PACKAGES = ("gridengine-client", "gridengine-exec", "gridengine-master")
OWNER = "sgeadmin"
HOST = "localhost"
START_SECONDS_MAX = 40.0
ARRAY_MAX = 1000
_SHARED = Path("/usr/share/gridengine")
_PROGRAMS = Path("/usr/lib/gridengine")
_LOOK_SECONDS = 0.05
_PAUSE = threading.Event()  # never set

_BOOTSTRAP = """\
admin_user              {owner}
default_domain          none
ignore_fqdn             false
spooling_method         berkeleydb
spooling_lib            libspoolb
spooling_params         {root}/spool/database
binary_path             /usr/sbin
qmaster_spool_dir       {root}/spool/qmaster
security_mode           none
listener_threads        2
worker_threads          2
scheduler_threads       1
"""
_SETTINGS = {
    "execd_spool_dir": "{root}/spool/execd",
    "mailer": "/bin/true",
    "min_uid": "0",
    "min_gid": "0",
    "load_report_time": "00:00:01",
    "max_unheard": "00:00:15",
    "reschedule_unknown": "00:00:00",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 accounting_flush_time=00:00:00 joblog=false",
    "max_aj_tasks": str(ARRAY_MAX),
}
_SCHEDULER = {
    "schedule_interval": "0:0:1",
    "flush_submit_sec": "1",
    "flush_finish_sec": "1",
    "load_adjustment_decay_time": "0:0:0",
    "job_load_adjustments": "NONE",
}
_PARALLEL = """\
pe_name            smp
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $pe_slots
control_slaves     FALSE
job_is_first_task  TRUE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""


class GridEngine:
    """A cell with one execution host, whose queue `main.q` has some slots; its commands go after `within`."""

    def __init__(self, slots: int = 8, *, estate: Estate | None = None) -> None:
        """Install Grid Engine where it is missing, and start a cell, in an estate of its own or in sight of all; `close` ends it."""
        self._programs = ensure_programs(PROGRAMS, packages=PACKAGES)
        self.folder = estate.share("engine") if estate else Path(tempfile.mkdtemp(prefix="pilotage-gridengine-"))
        self.folder.chmod(0o755)
        self._prepare = estate.prepare() if estate else ()
        self._make_folders()
        self._head = Capsule(
            network=True, hostname=HOST, remove=estate.folder if estate else self.folder, prepare=self._prepare
        )
        self._node: Capsule | None = None
        try:
            self._initialise()
            self.restart_master()
            self._configure(slots)
            self.start_node()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> GridEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the cell with everything that runs in it, and remove its folder; nothing happens the second time."""
        if self._node is not None:
            self._node.close()
        self._head.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        """What tells Grid Engine's commands which cell is meant."""
        ports = {"SGE_QMASTER_PORT": "6444", "SGE_EXECD_PORT": "6445"}
        return {"SGE_ROOT": str(self.folder), "SGE_CELL": "default", **ports}

    @property
    def head(self) -> Capsule:
        """Where the master runs, which is the login node, too."""
        return self._head

    @property
    def within(self) -> list[str]:
        """What goes before a command that speaks to the cell."""
        return self._head.within

    def command(self, *words: str) -> str:
        """Run one of Grid Engine's commands as an administrator; what it printed. Raises `EngineError` where it fails."""
        return self._head.run(self._programs[words[0]], *words[1:], environment=self.environment())

    def kill_master(self) -> None:
        """Kill the master; what runs goes on."""
        kill_in(self._head, self.folder / "spool" / "qmaster" / "qmaster.pid")

    def restart_master(self) -> None:
        """Start the master, and wait until it answers."""
        self._head.run(self._programs["sge_qmaster"], environment=self.environment())
        self._wait(lambda: self._answers("qconf", "-sh"), "the master does not answer")

    def start_node(self) -> None:
        """Start the execution host, or its daemon where only that is gone, and wait until its queue takes jobs."""
        if self._node is None:
            self._node = Capsule(beside=self._head, hostname=HOST, prepare=self._prepare)
        self._node.run(self._programs["sge_execd"], environment=self.environment())

        def is_ready() -> bool:
            # Queue, type, slots, load, architecture and, where something is wrong, states.
            lines = [line.split() for line in self.command("qstat", "-f").splitlines() if line.startswith("main.q")]
            return any(len(line) == 5 and line[3] != "-NA-" for line in lines)

        self._wait(is_ready, "the execution host does not come up")

    def kill_node(self) -> None:
        """Kill the daemon of the execution host; what runs there goes on."""
        assert self._node is not None
        kill_in(self._node, self.folder / "spool" / "execd" / HOST / "execd.pid")

    def lose_node(self) -> None:
        """End everything on the execution host at once, as when its power fails."""
        assert self._node is not None
        self._node.kill()
        self._node = None

    def drain(self) -> None:
        """Let the host finish what it has and take nothing more."""
        self.command("qmod", "-d", "*")

    def resume(self) -> None:
        """Let it work again."""
        self.command("qmod", "-e", "*")

    def _make_folders(self) -> None:
        for name in ("spool/database", "spool/qmaster", "spool/execd", "default/common", "run"):
            (self.folder / name).mkdir(parents=True)
        for name in ("util", "utilbin", "lib", "bin"):
            (self.folder / name).symlink_to(_SHARED / "util" if name == "util" else _PROGRAMS)
        common = self.folder / "default" / "common"
        (common / "bootstrap").write_text(_BOOTSTRAP.format(owner=OWNER, root=self.folder))
        (common / "act_qmaster").write_text(f"{HOST}\n")
        settings = {name: value.format(root=self.folder) for name, value in _SETTINGS.items()}
        (self.folder / "configuration").write_text(_changed((_SHARED / "default-configuration").read_text(), settings))
        for path in (self.folder, *self.folder.rglob("*")):
            if not path.is_symlink():
                shutil.chown(path, OWNER, OWNER)

    def _initialise(self) -> None:
        resources = _SHARED / "util" / "resources"
        database = self.folder / "spool" / "database"
        for words in (
            ("spoolinit", "berkeleydb", "libspoolb", str(database), "init"),
            ("spooldefaults", "configuration", str(self.folder / "configuration")),
            ("spooldefaults", "complexes", str(resources / "centry")),
            ("spooldefaults", "usersets", str(resources / "usersets")),
            ("spooldefaults", "managers", OWNER, "root"),
        ):
            owner = ("setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", "--init-groups")
            self._head.run(*owner, str(_PROGRAMS / words[0]), *words[1:], environment=self.environment())

    def _configure(self, slots: int) -> None:
        self.command("qconf", "-ah", HOST)
        self.command("qconf", "-as", HOST)
        self._add("-Ahgrp", f"group_name @allhosts\nhostlist {HOST}\n")
        self._add("-Ap", _PARALLEL)
        self._add("-Msconf", _changed(self.command("qconf", "-ssconf"), _SCHEDULER))
        self._add("-Aq", _QUEUE.format(slots=slots))

    def _add(self, option: str, text: str) -> None:
        file = self.folder / "added"
        file.write_text(text)
        self.command("qconf", option, str(file))

    def _answers(self, *words: str) -> bool:
        done = subprocess.run(
            [*self.within, self._programs[words[0]], *words[1:]],
            env={**os.environ, **self.environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def _wait(self, what: Callable[[], bool], why: str) -> None:
        until = time.monotonic() + START_SECONDS_MAX
        while not what():
            if time.monotonic() > until:
                raise EngineError(f"{why}: {self.log()}")
            _PAUSE.wait(_LOOK_SECONDS)

    def log(self) -> str:
        """The end of what the daemons wrote."""
        files = sorted((self.folder / "spool").rglob("messages"))
        return "".join(file.read_text("utf-8", errors="replace")[-2000:] for file in files)


_QUEUE = """\
qname                 main.q
hostlist              @allhosts
seq_no                0
load_thresholds       NONE
suspend_thresholds    NONE
nsuspend              1
suspend_interval      00:05:00
priority              0
min_cpu_interval      00:05:00
processors            UNDEFINED
qtype                 BATCH INTERACTIVE
ckpt_list             NONE
pe_list               smp
rerun                 FALSE
slots                 {slots}
tmpdir                /tmp
shell                 /bin/csh
prolog                NONE
epilog                NONE
shell_start_mode      posix_compliant
starter_method        NONE
suspend_method        NONE
resume_method         NONE
terminate_method      NONE
notify                00:00:60
owner_list            NONE
user_lists            NONE
xuser_lists           NONE
subordinate_list      NONE
complex_values        NONE
projects              NONE
xprojects             NONE
calendar              NONE
initial_state         default
s_rt                  INFINITY
h_rt                  INFINITY
s_cpu                 INFINITY
h_cpu                 INFINITY
s_fsize               INFINITY
h_fsize               INFINITY
s_data                INFINITY
h_data                INFINITY
s_stack               INFINITY
h_stack               INFINITY
s_core                INFINITY
h_core                INFINITY
s_rss                 INFINITY
h_rss                 INFINITY
s_vmem                INFINITY
h_vmem                INFINITY
"""


def _changed(text: str, settings: dict[str, str]) -> str:
    """A configuration with some of its lines changed."""
    for name, value in settings.items():
        text = re.sub(rf"^{name}\s.*$", f"{name} {value}", text, flags=re.MULTILINE)
    return text
