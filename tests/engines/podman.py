"""A real podman with a store of its own, and an image made of a static busybox: nothing is fetched from anywhere."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from tests.engines.debian import ensure_programs
from tests.engines.errors import EngineError

IMAGE = "localhost/pilotage-tests:1"
COMMANDS = ("sh", "cat", "echo", "id", "ls", "sleep", "touch", "env", "pwd", "grep", "wget")
SECONDS_MAX = 120

# No more than this process may have itself: who is not quite root could not give it to a container.
_CONFIGURATION = """\
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_STORAGE = """\
[storage]
driver = "vfs"
graphroot = "{folder}/store"
runroot = "{folder}/run"
"""


class CannotRun(EngineError):
    """The system does not let podman run a container."""


class Podman:
    """A podman whose images and containers are in a folder of the tests, known to whoever has its `environment`."""

    def __init__(self) -> None:
        """Install it where it is missing, make the image, and see whether a container runs; raises `CannotRun`."""
        packages = ["podman", "runc", "busybox-static"]
        programs = ensure_programs(["podman", "runc", "busybox"], packages=packages)
        self.program = programs["podman"]
        self.folder = Path(tempfile.mkdtemp(prefix="pilotage-podman-"))
        files = min(1024, _hard(resource.RLIMIT_NOFILE))
        processes = min(4096, _hard(resource.RLIMIT_NPROC))
        (self.folder / "containers.conf").write_text(_CONFIGURATION.format(files=files, processes=processes))
        (self.folder / "storage.conf").write_text(_STORAGE.format(folder=self.folder))
        self.environment = {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }
        try:
            self._make_image(Path(programs["busybox"]))
            tried = self.run("run", "--rm", "--network", "none", IMAGE, "/bin/echo", "ready")
            if tried.returncode or tried.stdout != "ready\n":
                raise CannotRun(f"podman cannot run here: {tried.stderr.strip()}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Podman:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call podman."""
        return subprocess.run(
            [self.program, *arguments],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    def containers(self) -> list[str]:
        """The names of all containers, whether they run or not."""
        return self.run("ps", "--all", "--format", "{{.Names}}").stdout.split()

    def close(self) -> None:
        """End what still runs, and remove the store."""
        self.run("rm", "--all", "--force", "--time", "0")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make_image(self, busybox: Path) -> None:
        programs = self.folder / "image" / "bin"
        programs.mkdir(parents=True)
        shutil.copy(busybox, programs / "busybox")
        for name in COMMANDS:
            (programs / name).symlink_to("busybox")
        archive = self.folder / "image.tar"
        subprocess.run(["tar", "-C", str(programs.parent), "-cf", str(archive), "."], check=True)
        made = self.run("import", str(archive), IMAGE)
        if made.returncode:
            raise CannotRun(f"podman cannot make an image here: {made.stderr.strip()}")


def _hard(which: int) -> int:
    limit = resource.getrlimit(which)[1]
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit
