"""Takes over from dead pilots: delivers their events, removes their scratch folders, kills their processes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pilotage.agent.durable_files import counters_of, text_of
from pilotage.agent.link.connect import UNAUTHENTICATED
from pilotage.agent.pilot.spool import DRAFT_SUFFIX, EVENTS_SUFFIX, LOCK_SUFFIX, TOKEN_SUFFIX, encode, release
from pilotage.agent.processes import sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from pilotage.agent.link.connect import Credentials
    from pilotage.agent.link.link import Link

ANSWER_SECONDS = 30.0
SETTLE_SECONDS = 10.0  # how long `settle` waits for a service that is starting
AGAIN_SECONDS = (0.05, 1.0)
BATCH_EVENTS = 1000
SEQUENCE = 1 << 40  # greater than that of any exchange of the pilot itself


class DeadPilot(NamedTuple):
    """A dead pilot; the descriptor holds its lock."""

    pilot: str
    site: str
    request: str
    descriptor: int


def find_dead_pilots(spool: Path) -> list[DeadPilot]:
    """Find the pilots of a spool folder whose lock is free, and lock it, so that only one process reports their end."""
    found = []
    for draft in spool.glob(f".*{DRAFT_SUFFIX}"):
        _remove_if_free(draft)
    for file in sorted(spool.glob(f"*{LOCK_SUFFIX}")):
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        dead_pilot = _read_dead_pilot(descriptor)
        if dead_pilot is not None:
            found.append(dead_pilot)
        else:
            os.close(descriptor)
    return found


def _remove_if_free(draft: Path) -> None:
    """Remove a draft lock whose writer died; a writer that is still alive starts over."""
    with contextlib.suppress(OSError):
        descriptor = os.open(draft, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(draft)):
                draft.unlink()
        finally:
            os.close(descriptor)


def _read_dead_pilot(descriptor: int) -> DeadPilot | None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink == 0:
            return None  # another process was faster
        record = json.loads(os.pread(descriptor, 4096, 0))
        return DeadPilot(record["pilot"], record["site"], record["request"], descriptor)
    except (OSError, ValueError, KeyError):
        return None


def clean_up(dead_pilot: DeadPilot, *, scratch: Path) -> None:
    """Kill the processes of a dead pilot and remove its scratch folder."""
    import shutil

    sweep({dead_pilot.pilot})
    shutil.rmtree(scratch / dead_pilot.pilot, ignore_errors=True)


def own_credentials(dead_pilot: DeadPilot, *, spool: Path, token_file: str) -> Credentials:
    """The credentials of a dead pilot: its own token, kept beside its events; the given one if it had none yet."""
    from pilotage.agent.link.connect import Credentials

    return Credentials(token_file, spool / f"{dead_pilot.pilot}{TOKEN_SUFFIX}")


def deliver(
    dead_pilot: DeadPilot,
    *,
    spool: Path,
    credentials: Credentials,
    connect: Callable[[Credentials], Link],
    reason: str = "killed",
) -> bool:
    """Deliver the events of a dead pilot, its end last; returns whether the service has all, and the files are removed."""
    texts = _events(spool / f"{dead_pilot.pilot}{EVENTS_SUFFIX}")
    last = counters_of(texts[-1]) if texts else None
    if texts and last is not None:
        if b'"type":"PilotEnded"' not in texts[-1]:
            texts.append(_ended(dead_pilot.pilot, n=last[0] + 1, seen=last[1], reason=reason))
        link = None
        try:
            link = connect(credentials)
            for number in range(0, len(texts), BATCH_EVENTS):
                if not _tell(link, credentials, dead_pilot, texts[number : number + BATCH_EVENTS], number):
                    return False
        except (OSError, ValueError):
            return False
        finally:
            if link is not None:
                link.close()
    release(spool, dead_pilot.pilot)
    return True


def has_results(dead_pilot: DeadPilot, *, spool: Path) -> bool:
    """Tell whether a dead pilot left an attempt's end, which may be undelivered."""
    return any(b'"type":"AttemptFinished"' in text for text in _events(spool / f"{dead_pilot.pilot}{EVENTS_SUFFIX}"))


def settle(
    state: Path, *, token_file: str, connect: Callable[[Credentials], Link], patience_seconds: float = SETTLE_SECONDS
) -> bool:
    """Clean up after the dead pilots of a state folder, and deliver their events; returns whether all are delivered.

    Retries for a while if the service does not answer: it may have died with the pilots, and be about to return.
    """
    spool = state / "spool"
    left = find_dead_pilots(spool)
    for each in left:
        clean_up(each, scratch=state / "scratch")
    shown = {each.pilot: own_credentials(each, spool=spool, token_file=token_file) for each in left}
    until, again_seconds = time.monotonic() + patience_seconds, AGAIN_SECONDS[0]
    while True:
        delivered = [
            each for each in left if deliver(each, spool=spool, credentials=shown[each.pilot], connect=connect)
        ]
        for each in delivered:
            left.remove(each)
            release_lock(each)
        if not left or time.monotonic() >= until or not spool.is_dir():
            break
        time.sleep(again_seconds)
        again_seconds = min(2.0 * again_seconds, AGAIN_SECONDS[1])
    for each in left:
        release_lock(each)
    return not left


def release_lock(dead_pilot: DeadPilot) -> None:
    """Release the lock."""
    with contextlib.suppress(OSError):
        os.close(dead_pilot.descriptor)


def _events(file: Path) -> list[bytes]:
    """The valid lines of an events file up to the first damaged one; later lines were never acknowledged."""
    texts = []
    try:
        content = file.read_bytes()
    except OSError:
        return []
    for line in content.split(b"\n")[:-1]:
        text = text_of(line)
        if text is None:
            break
        texts.append(text)
    return texts


def _ended(pilot: str, *, n: int, seen: int, reason: str) -> bytes:
    event: dict[str, Any] = {"source": "agent", "stream": pilot, "n": n, "seen": seen, "type": "PilotEnded"}
    event.update({"time": time.time(), "pilot": pilot, "data": {"reason": reason}})
    return encode(event).encode()


def _tell(link: Link, credentials: Credentials, dead_pilot: DeadPilot, texts: list[bytes], number: int) -> bool:
    exchange: dict[str, Any] = {"pilot": dead_pilot.pilot, "site": dead_pilot.site, "sequence": SEQUENCE + number}
    exchange["leaving"] = "gone"
    last = counters_of(texts[-1])
    # If the pilot died before its first answer, or its token has expired, the first answer brings a token for the rest.
    for _ in range(3):
        shown, ended = credentials(), encode(credentials.ended).encode()
        parts = (encode(exchange).encode()[:-1], b",".join(texts), ended)
        body = b'{"exchange":%b,"events":[%b]},"ended_token":%b}' % parts
        link.send("POST", "/agent/exchange", body, fields="Content-Type: application/json\r\n")
        answer = link.wait(ANSWER_SECONDS)
        if answer.status == UNAUTHENTICATED and credentials.refused():
            continue
        if answer.status != 200:
            return False
        credentials.take(answer.fields)
        if last is not None and int(json.loads(answer.body)["reply"].get("acknowledged", 0)) >= last[0]:
            return True
        if credentials() == shown:
            return False
    return False
