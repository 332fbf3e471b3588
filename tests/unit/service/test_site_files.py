"""Inputs that were brought to the cache of a site, in work orders."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from pilotage.language import Expansion, MemoryFolder, load
from pilotage.model.exchange.exchange import Assignment, AttemptRef, Work, WorkInput
from pilotage.model.jobs.submission import Origin
from pilotage.model.site import Site
from pilotage.service.works.site_files import NO_SITE, NotAtSite, SiteFiles
from pilotage.service.works.work_orders import compose, compose_every_way

SHA = "ab" * 32
LYON = Site(name="lyon", kind="slurm", platform="x86_64-linux")


class Cached(msgspec.Struct, frozen=True):
    name: str
    sha256: str = SHA
    size_bytes: int = 7


def name_of(locator: str) -> str:
    return f"ab/{hashlib.sha256(locator.encode()).hexdigest()}"


def at_lyon(*locators: str, sha256: str = SHA) -> SiteFiles:
    files = {locator: Cached(name_of(locator), sha256) for locator in locators}
    return SiteFiles(cache="/cache", cached=files.get, visible_seconds=60.0)


def expanded(text: str) -> Expansion:
    return load(text.encode(), file="job.yaml", folder=MemoryFolder(("here",))).job().expansion


def work_of(text: str, number: int, files: SiteFiles, *, site: Site | None = LYON) -> Work:
    expansion = expanded(text)
    assignment = Assignment(ref=AttemptRef("j", expansion.id(number).dotted, 1))
    return compose(
        expansion,
        number,
        assignment,
        Origin(folder="/data"),
        staged="/staged/j",
        manifest_of=lambda _: None,
        site=site,
        files=files,
    )


PLAIN = """
pilotage: 1
job: sweep
stages:
  - each: {x: [a b, ü]}
    run: [cat, "{x}.dat", common]
    inputs:
      - {name: "{x}.dat", locator: "s3://bucket/{x}.dat"}
      - {name: common, locator: "https://host/common"}
      - {name: here}
"""
# Scripts are not of the fast path.
FULL = PLAIN.replace("inputs:", "scripts: {pre: [date]}\n    inputs:")


def cached(name: str, locator: str) -> WorkInput:
    return WorkInput(name=name, sha256=SHA, size_bytes=7, cached=name_of(locator))


@pytest.mark.parametrize("text", [PLAIN, FULL], ids=["plain", "full"])
def test_inputs_with_a_locator_come_from_the_cache_with_name_checksum_and_size(text: str) -> None:
    files = at_lyon("s3://bucket/a b.dat", "s3://bucket/ü.dat", "https://host/common")
    for number, name in enumerate(("a b.dat", "ü.dat")):
        work = work_of(text, number, files)
        assert work.inputs == (
            WorkInput(name="here"),
            cached(name, f"s3://bucket/{name}"),
            cached("common", "https://host/common"),
        )
        assert (work.cache, work.visible_seconds) == ("/cache", 60.0)
        assert msgspec.json.decode(msgspec.json.encode(work), type=Work) == work


@pytest.mark.parametrize("text", [PLAIN, FULL], ids=["plain", "full"])
def test_a_file_that_is_not_in_the_cache_is_told(text: str) -> None:
    with pytest.raises(NotAtSite, match="it is not in the cache at lyon"):
        work_of(text, 0, at_lyon("https://host/common"))


def test_a_file_with_another_content_than_the_document_requires_is_told() -> None:
    text = PLAIN.replace('locator: "https://host/common"', f'locator: "https://host/common", sha256: {"cd" * 32}')
    files = at_lyon("s3://bucket/a b.dat", "https://host/common")
    with pytest.raises(NotAtSite, match="another content at lyon"):
        work_of(text, 0, files)
    assert work_of(text, 0, NO_SITE, site=None).inputs[-1] == WorkInput(name="common", sha256="cd" * 32)


def test_a_work_order_without_such_inputs_names_no_cache() -> None:
    text = "pilotage: 1\njob: j\nstages: [{run: [cat, here], inputs: [here]}, {run: date}]"
    work = work_of(text, 0, at_lyon())
    assert (work.cache, work.visible_seconds) == ("", 60.0)
    work = work_of(text, 1, at_lyon())
    assert (work.cache, work.visible_seconds) == ("", 0.0)


def test_the_key_of_an_attempt_has_the_checksums_of_what_was_brought() -> None:
    expansion = expanded(PLAIN)
    assignment = Assignment(ref=AttemptRef("j", expansion.id(0).dotted, 1))
    files = at_lyon("s3://bucket/a b.dat", "https://host/common")
    [work] = compose_every_way(
        expansion, 0, assignment, Origin(folder="/data"), manifest_of=lambda _: None, site=LYON, files=files
    )
    assert {each.name: each.sha256 for each in work.inputs} == {"here": "", "a b.dat": SHA, "common": SHA}
