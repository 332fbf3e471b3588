"""What a run would do, asked of the service that runs here, or found out without one; nothing is written."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pilotage.adapters.settings_files import load_settings, state_folder
from pilotage.app.running import HowToRun, Source, submission
from pilotage.app.session import running_service

if TYPE_CHECKING:
    from pilotage.model.submission import RunPlan, Submission

_BESIDE = ("", "-wal")  # what SQLite has not moved into its file yet lies beside it


def plan_run(source: Source, how: HowToRun) -> RunPlan:
    """The plan of a document; raises `DocumentError` for its faults."""
    loaded = source.load()
    # Nothing is kept: what a job would bring along is only known by its checksum.
    sent = submission(source, loaded, how, keep=lambda data: hashlib.sha256(data).hexdigest())
    server = running_service(source.folder) if how.slots is None else None
    if server is None:
        return _without_a_service(source, sent, slots=how.slots or len(os.sched_getaffinity(0)))
    from pilotage.client.jobs import Jobs

    with server:
        return Jobs(server).plan(sent)


def _without_a_service(source: Source, sent: Submission, *, slots: int) -> RunPlan:
    from pilotage.adapters.stores.folder import FolderStore
    from pilotage.adapters.work_index import FILE, SqliteWorkIndex
    from pilotage.service.running.planning import plan

    settings = load_settings(environment=os.environ, folder=source.folder, flags={})
    state = state_folder(settings, folder=source.folder)
    with tempfile.TemporaryDirectory(prefix="pilotage-plan-") as made:
        aside = Path(made)
        # Looked at in a copy: not even a checksum that is remembered changes the folder.
        for ending in _BESIDE:
            if (state / f"{FILE}{ending}").is_file():
                shutil.copyfile(state / f"{FILE}{ending}", aside / f"{FILE}{ending}")
        index = SqliteWorkIndex(aside)
        try:
            return plan(sent, store=FolderStore(aside, index), index=index, slots=slots)
        finally:
            index.close()
