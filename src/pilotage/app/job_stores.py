"""The stores for the files of jobs, chosen only here: their tree, the index of results, the logs of attempts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pilotage.ports import AttemptLogs, JobTree, PutCopies, ResultsIndex

Learning = Callable[["ResultsIndex"], Callable[[str], bool]]
"""Makes, for an index, the function that updates it from the book with the files of a folder."""

_BESIDE = ("", "-wal")  # SQLite's write-ahead log lies beside it


@dataclass(frozen=True)
class JobStores:
    """The stores of a state folder."""

    tree: JobTree
    index: ResultsIndex
    logs: AttemptLogs
    put_copies: PutCopies

    def close(self) -> None:
        """Close all of them."""
        self.tree.close()  # first, since it writes cached checksums to the index
        self.index.close()
        self.logs.close()
        self.put_copies.close()


def _learn_nothing(_: ResultsIndex) -> Callable[[str], bool]:
    return lambda _: False


def open_job_stores(state: Path, *, learning: Learning = _learn_nothing) -> JobStores:
    """The stores of a state folder; with `learning`, their index is updated from the book."""
    from pilotage.adapters.stores.folder_tree import FolderTree
    from pilotage.adapters.stores.logs import SqliteLogs
    from pilotage.adapters.stores.put_copies import SqlitePutCopies
    from pilotage.adapters.stores.results_index import SqliteResultsIndex
    from pilotage.adapters.stores.work_database import WorkDatabase

    database = WorkDatabase(state)
    index = SqliteResultsIndex(database)
    tree, logs = FolderTree(state, index, learn=learning(index)), SqliteLogs(database)
    return JobStores(tree=tree, index=index, logs=logs, put_copies=SqlitePutCopies(database))


@contextmanager
def copied_job_stores(state: Path, *, learning: Learning = _learn_nothing) -> Iterator[JobStores]:
    """The stores of a state folder, in a copy: not even a cached checksum changes the folder."""
    from pilotage.adapters.stores.work_database import FILE

    with tempfile.TemporaryDirectory(prefix="pilotage-plan-") as made:
        aside = Path(made)
        for ending in _BESIDE:
            if (state / f"{FILE}{ending}").is_file():
                shutil.copyfile(state / f"{FILE}{ending}", aside / f"{FILE}{ending}")
        with closing(open_job_stores(aside, learning=learning)) as stores:
            yield stores
