"""The store for the files of jobs, chosen here and nowhere else: their tree, the index of results, the logs of attempts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pilotage.ports import AttemptLogs, JobTree, ResultsIndex

Learning = Callable[["ResultsIndex"], Callable[[str], bool]]
"""Makes, for an index, what has it learn from the book which files of a folder are ours."""

_BESIDE = ("", "-wal")  # what SQLite has not moved into its file yet lies beside it


@dataclass(frozen=True)
class JobStores:
    """Where a state folder keeps the files of jobs, and what it remembers of them."""

    tree: JobTree
    index: ResultsIndex
    logs: AttemptLogs

    def close(self) -> None:
        """Close all three."""
        self.tree.close()  # it hands the index what it remembers of files
        self.index.close()
        self.logs.close()


def _learn_nothing(_: ResultsIndex) -> Callable[[str], bool]:
    return lambda _: False


def open_job_stores(state: Path, *, learning: Learning = _learn_nothing) -> JobStores:
    """The stores of a state folder; by `learning`, their index gets from the book what it has lost."""
    from pilotage.adapters.stores.folder_tree import FolderTree
    from pilotage.adapters.stores.logs import SqliteLogs
    from pilotage.adapters.stores.results_index import SqliteResultsIndex
    from pilotage.adapters.stores.work_database import WorkDatabase

    database = WorkDatabase(state)
    index = SqliteResultsIndex(database)
    return JobStores(tree=FolderTree(state, index, learn=learning(index)), index=index, logs=SqliteLogs(database))


@contextmanager
def copied_job_stores(state: Path, *, learning: Learning = _learn_nothing) -> Iterator[JobStores]:
    """The stores of a state folder, looked at in a copy: not even a checksum that is remembered changes the folder."""
    from pilotage.adapters.stores.work_database import FILE

    with tempfile.TemporaryDirectory(prefix="pilotage-plan-") as made:
        aside = Path(made)
        for ending in _BESIDE:
            if (state / f"{FILE}{ending}").is_file():
                shutil.copyfile(state / f"{FILE}{ending}", aside / f"{FILE}{ending}")
        with closing(open_job_stores(aside, learning=learning)) as stores:
            yield stores
