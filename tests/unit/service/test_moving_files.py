"""What people are told of files on their way: only of those that their job waits for, and only when it takes long."""

from __future__ import annotations

import msgspec

from pilotage.model.exchange.operations import FetchFile, SubmitPilot
from pilotage.service.transfers.ledger import Kind, TransferStatus
from pilotage.service.transfers.moving_files import TOLD_AFTER_SECONDS, FilesMoving, files_moving
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import bag, site, with_files

A = "s3://store/a"


def status(key: str, *, kind: Kind = "fetch", locator: str = A, job: str = "") -> TransferStatus:
    return TransferStatus(
        kind=kind,
        key=key,
        locator=locator,
        store="s3",
        site="a",
        job=job,
        bytes_done=2_000_000,
        total_bytes=5_000_000,
        bytes_per_second=1e6,
        seconds=TOLD_AFTER_SECONDS,
        tries=1,
        fault="",
    )


def test_long_transfers_of_the_job_are_counted_and_others_are_not() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}))
        [wanted] = small.take(FetchFile)
        small.take(SubmitPilot)
        engine, slow = small.core.engine, status(wanted.key)
        assert files_moving(engine, JOB, [slow]) == FilesMoving(summary="fetching 1 file (1.91 MiB of 4.77 MiB)")
        unsized = msgspec.structs.replace(slow, total_bytes=None)
        assert files_moving(engine, JOB, [slow, unsized]).summary == "fetching 2 files (3.81 MiB)"
        short = msgspec.structs.replace(slow, seconds=TOLD_AFTER_SECONDS - 1.0)
        of_others = status("fetch.99.0"), status("copy", kind="store", job="other"), status("send", kind="send")
        assert files_moving(engine, JOB, [short, *of_others]) == FilesMoving()
        assert files_moving(engine, "other", [slow]) == FilesMoving()
        copy = status("copy", kind="store", job=JOB)
        assert files_moving(engine, JOB, [copy]).summary == "storing 1 file (1.91 MiB of 4.77 MiB)"


def test_the_fault_of_a_transfer_that_is_tried_again_is_told_at_once() -> None:
    with Small(site()) as small:
        small.submit(with_files(bag(1), {"1.1.1": [A]}))
        [wanted] = small.take(FetchFile)
        small.take(SubmitPilot)
        engine, fault = small.core.engine, "store-unreachable: no route"
        late = msgspec.structs.replace(status(wanted.key), seconds=0.5, fault=fault)
        told = f"{A} has not come to a yet; the last try failed: {fault}"
        assert files_moving(engine, JOB, [late]) == FilesMoving(trouble=told)
        copy = msgspec.structs.replace(status("copy", kind="store", job=JOB), seconds=0.5, fault=fault)
        assert files_moving(engine, JOB, [copy]).trouble == f"{A} is not stored yet; the last try failed: {fault}"
