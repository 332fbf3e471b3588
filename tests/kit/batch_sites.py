"""Sites with a real batch system, as adapters reach them: on this computer, and over a real SSH server."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from pilotage.adapters.sites.batch import BatchSettings, BatchSite
from pilotage.adapters.sites.commands import Caller, LocalCaller, Ssh
from pilotage.adapters.sites.install import site_prefix
from pilotage.agent.batch import dialects
from pilotage.model.sites.entry import SiteEntry
from tests.engines.gridengine import GridEngine
from tests.engines.slurm import SlurmCluster
from tests.engines.sshd import SshServer
from tests.kit.pilots import wait_until

NOBODY = "http://127.0.0.1:9"
"""Where nobody answers: a pilot says so, and goes on trying."""
END_SECONDS_MAX = 60.0

OpenBatch = Callable[..., BatchSite]


def slurm_here(cluster: SlurmCluster) -> Caller:
    return LocalCaller(within=cluster.within, environment=cluster.environment())


def gridengine_here(cell: GridEngine) -> Caller:
    return LocalCaller(within=cell.within, environment=cell.environment())


def slurm_over_ssh(cluster: SlurmCluster, server: SshServer, state: Path) -> Caller:
    configuration = str(server.configuration())
    return Ssh(server.address, state=state, environment=cluster.environment(), configuration=configuration)


@contextlib.contextmanager
def batch_site(folder: Path, kind: str, make_caller: Callable[[], Caller]) -> Iterator[OpenBatch]:
    """What opens a site in an empty folder; nothing runs there any more after the block."""
    prefix = site_prefix(folder / "state", "here")
    entry = SiteEntry(name="here", kind=kind, folder=str(folder / "site"), python=sys.executable)
    usual = BatchSettings(
        entry=entry, prefix=prefix, server=lambda: NOBODY, token=lambda: "s3cret", grace_seconds=1.0, settle_seconds=0.0
    )
    opened: list[BatchSite] = []

    def open_site(caller: Caller | None = None, *, entry: SiteEntry | None = None, **settings: Any) -> BatchSite:
        chosen = msgspec.structs.replace(usual, entry=entry or usual.entry, **settings)
        opened.append(BatchSite(chosen, dialects()[kind](prefix), caller or make_caller()))
        return opened[-1]

    yield open_site
    last = open_site()
    last.cancel(*last.listing())
    wait_until(lambda: not last.listing(), END_SECONDS_MAX)
    for site in opened:
        site.close()
