"""The granted files of jobs as a store: read as they were granted or not at all, by whoever may read the job."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from pilotage.book.rows.rows import JobRow
from pilotage.language import DiskFolder, load
from pilotage.model.events.payloads import AccessRule
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.file_plan import Wish
from pilotage.ports.store import AccessDenied, FileChanged, NotInStore, Store
from pilotage.service.jobs.refusals import KnownStores, others_files_refused
from pilotage.service.jobs.resubmission import folder_of
from pilotage.service.works.job_files import JobFiles
from pilotage.service.works.kept_outputs import KeptOutputs
from tests.kit.earlier_work import Place
from tests.kit.small_service import SmallService
from tests.unit.service.test_removing import here, service

__all__ = ["here", "service"]

DOCUMENT = """
pilotage: 1
job: make
stages:
  - run: make
    outputs:
      - {name: "deep/a b.dat", dispositions: [retain-temporarily]}
      - {name: plain.dat}
      - {name: read.dat}
      - {name: gone.dat, dispositions: [forward, deletable]}
  - run: merge
    inputs: [{name: read.dat, disposition: retain-indefinitely}, plain.dat, {name: gone.dat, disposition: deletable}]
    outputs: [all.dat]
"""
MADE = {"deep/a b.dat": "content", "plain.dat": "plain", "read.dat": "read", "gone.dat": "gone"}


def files_of(here: Place) -> JobFiles:
    return JobFiles(here.journal, here.tree, folder_of=lambda row: folder_of(here.journal, row))


def test_a_granted_file_is_read_by_its_job_and_its_encoded_name(here: Place, service: SmallService) -> None:
    job = service.submit(DOCUMENT).job
    store: Store = files_of(here)
    locator = f"job:{job}/deep/a%20b.dat"
    assert store.stat(locator) is None, "nothing is granted yet"
    service.succeed("1.1.1", MADE)
    found = store.stat(locator)
    assert found is not None
    assert (found.size_bytes, found.sha256) == (7, hashlib.sha256(b"content").hexdigest())
    assert b"".join(store.read(locator, version=found.version)) == b"content"
    assert b"".join(store.read(locator, offset=3)) == b"tent"
    assert store.checksum(locator) == found.sha256
    assert [each.locator for each in store.list(f"job:{job}/deep")] == [locator]
    assert store.stat(f"job:{job}/all.dat") is None


def test_what_was_changed_since_is_not_given_out(here: Place, service: SmallService) -> None:
    job = service.submit(DOCUMENT).job
    service.succeed("1.1.1", MADE)
    store = files_of(here)
    (here.folder / "plain.dat").write_text("PLAIN")
    with pytest.raises(FileChanged, match="changed since"):
        store.stat(f"job:{job}/plain.dat")
    with pytest.raises(FileChanged):
        list(store.read(f"job:{job}/plain.dat"))
    (here.folder / "plain.dat").unlink()
    assert store.stat(f"job:{job}/plain.dat") is None


def test_there_is_no_store_of_an_unknown_job_and_none_takes_files(here: Place, tmp_path: object) -> None:
    store = files_of(here)
    with pytest.raises(NotInStore, match="no job of this service"):
        store.stat("job:nobody/a.dat")
    with pytest.raises(AccessDenied, match="only read"):
        store.put("/etc/hostname", "job:nobody/a.dat")
    with pytest.raises(AccessDenied, match="only read"):
        store.delete("job:nobody/a.dat")


def test_outputs_are_kept_as_they_or_their_readers_wish_the_longest_first(here: Place, service: SmallService) -> None:
    job = service.submit(DOCUMENT).job
    service.succeed("1.1.1", MADE)
    keeper = KeptOutputs(service.jobs.get, service.manifests)
    retained = keeper.retained(AttemptRef(job, "1.1.1", 1))
    assert {each.locator: each.wish for each in retained} == {
        f"job:{job}/deep/a%20b.dat": Wish.RETAIN_TEMPORARILY,
        f"job:{job}/read.dat": Wish.RETAIN_INDEFINITELY,
    }
    templates = service.engine.state.jobs.by_id[job].plan.templates
    assert [(each.retains_outputs, each.disposes_outputs) for each in templates] == [(True, True), (False, False)]


@pytest.mark.parametrize(
    "locator, told",
    [
        ("job:secret/a.dat", "bob may not read the job secret"),
        ("job:shared/a.dat", ""),
        ("job:own/a.dat", ""),
        ("{each}", "bob may not read the job secret"),
        ("job:nobody/", "no job of this service has the id 'nobody'"),
    ],
)
def test_files_of_jobs_that_the_owner_may_not_read_are_refused_by_name(here: Place, locator: str, told: str) -> None:
    rules = msgspec.json.encode([AccessRule(principal="bob", rights=("read",))]).decode()
    rows = {
        "secret": JobRow(job_id=1, job="secret", owner="ada"),
        "shared": JobRow(job_id=2, job="shared", owner="ada", access=rules),
        "own": JobRow(job_id=3, job="own", owner="bob"),
    }
    value = "cache:farm/job:secret/a.dat#bytes=3"
    text = f"""
pilotage: 1
job: read
stages:
  - each: {{each: ["{value}"]}}
    run: read
    inputs: [{{name: a.dat, locator: "{locator}"}}]
"""
    loaded = load(text.encode(), file="job.yaml", folder=DiskFolder(here.folder))
    assert loaded.expansion is not None, loaded.report.errors
    known = KnownStores(find_job=rows.get)
    found = others_files_refused(loaded.expansion, owner="bob", stores=known, file="job.yaml")
    assert [each.message for each in found if told not in each.message] == []
    assert bool(found) == bool(told)


def test_only_the_owner_of_files_may_release_them(here: Place) -> None:
    rules = msgspec.json.encode([AccessRule(principal="bob", rights=("read",))]).decode()
    row = JobRow(job_id=2, job="shared", owner="ada", access=rules)
    inputs = 'inputs: [{name: a.dat, locator: "job:shared/a.dat", disposition: release}]'
    text = f"pilotage: 1\njob: read\nstages: [{{run: read, {inputs}}}]\n"
    loaded = load(text.encode(), file="job.yaml", folder=DiskFolder(here.folder))
    assert loaded.expansion is not None, loaded.report.errors
    known = KnownStores(find_job={"shared": row}.get)
    [refused] = others_files_refused(loaded.expansion, owner="bob", stores=known, file="job.yaml")
    assert refused.message == "bob may not release the files of the job shared, which belong to ada"
    assert others_files_refused(loaded.expansion, owner="ada", stores=known, file="job.yaml") == []
