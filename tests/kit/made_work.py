"""What tests of the index of results and of logs put there."""

from __future__ import annotations

from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef, LogText
from pilotage.ports import MadeWork, SeenFile, StoredFile, WorkFields

FOLDER = "/data"


def sha(number: int) -> str:
    """A checksum by its number."""
    return f"{number:064x}"


def made(
    number: int, *, place: str = "1.1.1", argv: str = "a", names: tuple[str, ...] = ("out",), document: str = "d"
) -> MadeWork:
    """What a job made."""
    return MadeWork(
        key=sha(number),
        fields=WorkFields(argv=argv, software="s", environment="e", outputs="o", inputs={"in": sha(9)}),
        folder=FOLDER,
        document=document,
        ref=AttemptRef(f"job-{number}", place, number),
        manifest=tuple(OutputFile(name=name, size_bytes=number, sha256=sha(number)) for name in names),
    )


def seen(name: str, number: int, *, modified_ns: int = 5) -> SeenFile:
    """A file with the checksum of that number."""
    file = StoredFile(name=name, size_bytes=number, modified_ns=modified_ns, inode=2**64 - 1)
    return SeenFile(file=file, sha256=sha(number))


def log(attempt: int, stream: str, head: str, *, package: str = "1.1.1", job: str = "j") -> LogText:
    """What an attempt printed."""
    return LogText(ref=AttemptRef(job, package, attempt), stream=stream, head=head)
