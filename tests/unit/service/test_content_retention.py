"""Files that were sent are removed some days after no job uses them, and not before."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import msgspec

from pilotage.adapters.stores.content_store import FolderContent
from pilotage.model.jobs.submission import Captured, Origin
from pilotage.service.journal.content_retention import remove_unused_content
from pilotage.service.journal.writer import Batch
from tests.kit.running_jobs import running_services
from tests.kit.served_book import event, registered

DAY = 86_400.0
DATA = b"sent"
SHA256 = hashlib.sha256(DATA).hexdigest()


def test_content_stays_as_long_as_its_job_is_in_the_book(tmp_path: Path) -> None:
    content = FolderContent(tmp_path)
    content.append(SHA256, DATA, by="ann", offset=0, size_bytes=len(DATA))
    content.complete(SHA256, by="ann", size_bytes=len(DATA))
    folder = content.place("ab" * 16, {"in": Captured(sha256=SHA256, content=False)})
    unused = content.place("cd" * 16, {"in": Captured(sha256=SHA256, content=False)})
    with running_services(tmp_path) as (services, _):
        journal, backend = services.journal, services.backend
        assert backend is not None
        origin = journal.put_content(msgspec.json.encode(Origin(folder=folder, sent_from="/far")))
        job = registered(1, "j")
        job["data"] |= {"definition": "ab" * 32, "lists": {"origin": origin}}
        services.start()
        try:
            checked, refused, _ = services.codec.read_batch(
                msgspec.json.encode({"events": [job, event(2, "Cleared", {"by": "user"}, job="j")]})
            )
            assert not refused
            services.writer.submit(Batch(checked)).result(60.0)

            def removed(after_days: float) -> int:
                now = time.time() + after_days * DAY
                return remove_unused_content(content, journal, backend.folder_of, now=now, content_days=7.0)

            assert removed(0.5) == 0  # its job may be registered yet
            assert removed(2.0) == 1
            assert content.folders() == [folder] != [unused]
            assert removed(100.0) == 0
            journal.purge("j", at=time.time())
            assert removed(2.0) == 1
            assert (content.folders(), content.size(SHA256)) == ([], len(DATA))
            assert removed(8.0) == 1
            assert content.size(SHA256) is None
        finally:
            services.stop()
