"""What is asked of a site, held against what was found there: refused where it could never be, warned of where it may not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pilotage.app.site_adding import OWN_DISKS, CannotLook
from pilotage.model.texts import size_text

if TYPE_CHECKING:
    from pilotage.app.site_adding import Found, FoundQueue
    from pilotage.model.site_entry import SiteEntry


def warnings_of(entry: SiteEntry, found: Found) -> tuple[str, ...]:
    """What may not be as the entry says; raises `CannotLook` for what its batch system would never start."""
    queue = _queue_of(entry, found)
    if queue is not None:
        _refuse_more_than(queue, entry, found)
    return (*_about_folder(entry, found), *_about_limits(entry, found, queue))


def _queue_of(entry: SiteEntry, found: Found) -> FoundQueue | None:
    if entry.queue:
        return next((each for each in found.queues if each.name == entry.queue), None)
    return next((each for each in found.queues if each.is_default), None)


def _refuse_more_than(queue: FoundQueue, entry: SiteEntry, found: Found) -> None:
    """Raise `CannotLook` where one pilot asks for more than any node of its queue has, or longer than it gives."""
    wall_seconds = entry.wall_time_seconds or 0.0
    asked = (
        ("--slots", entry.slots, queue.cores, "cores on one node", str),
        ("--memory", entry.memory_bytes or 0, queue.memory_bytes, "of memory on one node", size_text),
        ("--gpus", entry.gpus, queue.gpus, "GPUs on one node", str),
        ("--wall-time", int(wall_seconds), queue.wall_seconds, "seconds for a job", str),
    )
    for option, wanted, most, what, say in asked:
        if most and wanted > most:
            others = [each.name for each in found.queues if _most(each, option) >= wanted or not _most(each, option)]
            raise CannotLook(
                f"the queue {queue.name!r} has {say(most)} {what}",
                subject=option,
                expected=f"at most {say(most)}",
                got=say(wanted),
                next_step=f"ask for less, or name another queue: --queue {others[0]}" if others else "ask for less",
            )


def _most(queue: FoundQueue, option: str) -> int:
    told = {"--slots": queue.cores, "--memory": queue.memory_bytes, "--gpus": queue.gpus}
    return told.get(option, queue.wall_seconds)


def _about_folder(entry: SiteEntry, found: Found) -> Iterator[str]:
    folder = found.folder
    if folder is None:
        return
    if not folder.writable:
        raise CannotLook(
            "this folder cannot be written" if folder.there else "this folder is not there, and cannot be made",
            subject="--folder",
            got=entry.folder,
            next_step="name a folder that all nodes share, in which you may write: --folder DIR",
        )
    if not folder.there:
        yield f"the folder {entry.folder} is not there yet; it is made when it is first needed"
    if folder.file_system in OWN_DISKS:
        yield (
            f"the folder {entry.folder} is on {folder.file_system}, a disk of the login node alone:"
            " nodes may not see it"
        )


def _about_limits(entry: SiteEntry, found: Found, queue: FoundQueue | None) -> Iterator[str]:
    if entry.gpus and queue is not None and not queue.gpus and any(each.gpus for each in found.queues):
        yield f"the queue {queue.name!r} tells of no GPU, and a pilot asks for {entry.gpus}"
    if entry.pilots_max and found.jobs_max and entry.pilots_max > found.jobs_max:
        yield f"its batch system takes {found.jobs_max} jobs at most, fewer than {entry.pilots_max} pilots"
