"""Locators in documents: which are taken, and that no secret is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.language import MemoryFolder
from pilotage.language.folder import CachedFile
from pilotage.language.text.locators import (
    cached_part,
    cached_value,
    input_fault,
    is_cached_value,
    locator_fault,
    locator_of,
    name_in_locator,
    origin_of,
    scheme_of,
    shown_locator,
    target_fault,
)
from pilotage.language.text.templates import part_of_name
from pilotage.model.locators import locator_below, parse_locator
from tests.kit.jobs import OneJob, again, commands, expanded, loaded, only_fault, refused


@pytest.mark.parametrize(
    "locator",
    [
        "s3://bucket/a/b.dat",
        "s3://bucket/",
        "sftp://me@host:22/a%20b",
        "https://host/x?download=1&name=a",
        "http://[::1]:8080/x",
        "file:///data/x",
        "/data/a b",
        "/data/user:name@x",
        "store:abc",
        "job:J1/a/b.root",
        "gs://bucket/x",
        "S3://Bucket/x",
    ],
)
def test_a_locator_without_secrets_is_taken(locator: str) -> None:
    assert locator_fault(locator) is None


@pytest.mark.parametrize(
    "locator, secret",
    [
        ("https://me:geheim@host/x", "geheim"),
        ("sftp://me:ge:heim@host/x", "heim"),
        ("https://me:ge@heim@host/x", "heim"),
        ("https://b.s3.amazonaws.com/x?X-Amz-Date=1&X-Amz-Signature=geheim", "geheim"),
        ("https://h/x?sig=geheim", "geheim"),
        ("https://h/x?access_token=geheim", "geheim"),
        ("https://h/x?TOKEN=geheim", "geheim"),
        ("s3://b/x?AWSAccessKeyId=geheim", "geheim"),
        ("https://h/x?X-Goog-Credential=geheim", "geheim"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(locator: str, secret: str) -> None:
    fault = locator_fault(locator)
    assert fault is not None
    assert (fault.code, "[stores.NAME]" in fault.hint) == ("secret-in-locator", True)
    assert secret not in fault.message
    assert secret not in shown_locator(locator)
    found = only_fault(f"stages:\n  - run: a\n    inputs: [{{name: x, locator: '{locator}', acquisition: self}}]\n")
    assert found.code == "secret-in-locator"


@pytest.mark.parametrize(
    "locator", ["data/x", "x", "..", "s3:x", "s3:///x", "https:/x", "/data/../x", "s3://b/a/%2E%2e/x", "file:///a\x01"]
)
def test_what_is_no_locator_is_refused(locator: str) -> None:
    fault = locator_fault(locator)
    assert fault is not None
    assert fault.code == "bad-locator"


@given(st.text())
def test_any_text_is_a_locator_or_is_refused_in_one_line(text: str) -> None:
    fault = locator_fault(text)
    assert fault is not None or scheme_of(text)
    assert fault is None or "\n" not in repr(fault.message)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_password_never_gets_through(user: str, password: str) -> None:
    user, password = (text.translate({ord(c): None for c in "/?#"}) for text in (user, password))
    fault = locator_fault(f"https://{user}:{password}@host/x")
    assert fault is not None


schemes = st.sampled_from(["s3", "sftp", "http", "https", "file", "S3"])


@given(schemes, st.text(st.characters(exclude_categories=["Cs"])))
def test_whatever_is_taken_is_understood_by_stores(scheme: str, rest: str) -> None:
    locator = f"{scheme}://{rest}"
    if locator_fault(locator) is None:
        assert parse_locator(locator).scheme == scheme.lower()


@given(st.sampled_from(["s3://b/x/", "https://h/", "/data/", "sftp://me@h/~/"]), st.text(min_size=1))
def test_names_are_added_as_stores_add_them(folder: str, name: str) -> None:
    assert locator_of(folder, name) == locator_below(folder, name)


parts = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1).filter(
    lambda part: part.strip(".") != ""
)


@given(st.sampled_from(["s3://b/x/", "https://h/", "/data/", "file:///d/"]), st.lists(parts, min_size=1, max_size=3))
def test_the_name_of_a_file_is_found_again_in_its_locator(folder: str, path: list[str]) -> None:
    name = "/".join(path)
    assert name_in_locator(locator_of(folder, name)) == path[-1]


@given(st.sampled_from(["farm", "a-b"]), st.text(min_size=1), st.integers(0, 2**60))
def test_a_file_of_a_cache_knows_its_locator_and_its_size(site: str, locator: str, size_bytes: int) -> None:
    value = cached_value(site=site, locator=locator, size_bytes=size_bytes)
    assert is_cached_value(value)
    assert origin_of(value) == locator
    assert cached_part(value, "size") == part_of_name(value, "size") == str(size_bytes)


def test_parts_of_the_name_of_a_cached_file() -> None:
    value = cached_value(site="farm", locator="s3://b/run%201/a%20b.tar.gz", size_bytes=7)
    assert [part_of_name(value, part) for part in ("name", "stem", "suffix")] == ["a b.tar.gz", "a b.tar", ".gz"]


SHA256 = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "locator, taken",
    [
        (f"store:{SHA256}", True),
        (f"cache:farm/store:{SHA256}#bytes=3", True),
        ("cache:farm/s3://b/x", True),
        ("s3://b/x", True),
        ("store:", False),
        ("store:abc", False),
        (f"store:{SHA256.upper()}", False),
        (f"STORE:{SHA256}", False),
        (f"store://{SHA256}", False),
        ("cache:farm", False),
        ("cache:farm/x", False),
        ("cache:farm/store:abc", False),
        ("cache:farm/https://me:geheim@host/x", False),
    ],
)
def test_what_is_read_is_a_file_of_a_store_or_a_content_by_its_sha256(locator: str, taken: bool) -> None:  # noqa: FBT001
    fault = input_fault(locator)
    assert (fault is None) is taken
    assert fault is None or (fault.code in ("bad-locator", "secret-in-locator") and "geheim" not in fault.message)


@pytest.mark.parametrize(
    "locator, taken",
    [
        ("store:", True),
        ("s3://b/", True),
        (f"store:{SHA256}", False),
        ("job:j/x", False),
        ("cache:farm/s3://b/x", False),
    ],
)
def test_outputs_are_stored_in_stores_or_by_their_content(locator: str, taken: bool) -> None:  # noqa: FBT001
    fault = target_fault(locator)
    assert (fault.code if fault is not None else "") == ("" if taken else "bad-locator")


# In documents.


@pytest.mark.parametrize(
    "stage, code",
    [
        ("inputs: [{name: x, locator: 'store:'}]", "bad-locator"),
        ("inputs: [{name: x, locator: 'store:{n}'}]", "bad-locator"),
        ("inputs: [{name: x, locator: '{place}/x'}]", "bad-locator"),
        ("outputs: [{name: 'x{n}', locator: 'job:j/{n}'}]", "bad-locator"),
        ("outputs: [{name: 'x{n}', locator: '{place}/'}]", "bad-locator"),
    ],
)
def test_locators_of_the_service_itself_are_checked_also_in_values(stage: str, code: str) -> None:
    document = f"parameters: {{place: 'cache:farm'}}\nstages:\n  - each: {{n: [a, b]}}\n    run: go\n    {stage}\n"
    assert only_fault(document).code == code


def test_any_number_of_outputs_are_stored_by_their_content() -> None:
    document = "stages:\n  - each: {n: 1..3}\n    run: go\n    outputs: [{name: 'x{n}', locator: 'store:'}, {expression: '.*[.]log', locator: 'store:'}]\n"
    assert expanded(document).count == 3


@pytest.mark.parametrize(
    "given, code",
    [
        ("name: 'x*', locator: 's3://b/x'", "bad-input"),
        ("name: x, sha256: '0123'", "bad-checksum"),
        (f"name: x, sha256: '{'a' * 64}'", "bad-input"),
        ("name: x, locator: 'data/x'", "bad-locator"),
        ("name: x, locator: '{u}', sha256: z", "bad-checksum"),
    ],
)
def test_faulty_inputs_are_refused(given: str, code: str) -> None:
    stages = f"stages:\n  - each: {{u: ['s3://b/x']}}\n    run: a {{u}}\n    inputs: [{{{given}}}]\n"
    assert code in {fault.code for fault in refused(stages)}


@pytest.mark.parametrize("locator", ["s3://b/x", "sftp://h/x", "/data/x"])
def test_files_with_a_locator_may_have_to_be_there(locator: str) -> None:
    text = f"stages:\n  - run: a\n    inputs: [{{name: x, locator: '{locator}', acquisition: none}}]\n"
    assert loaded(text).report.errors == []


@pytest.mark.parametrize("value", ["https://u:pw@h/x", "https://h/x?token=1", "data/x"])
@pytest.mark.parametrize(
    "field", ["inputs: [{name: x, locator: '{u}'}]", "outputs: [{name: 'x{tag}', locator: '{u}'}]"]
)
def test_secrets_in_the_values_of_a_list_are_refused_too(field: str, value: str) -> None:
    stages = f"stages:\n  - each: {{u: ['s3://b/x', '{value}']}}\n    run: a\n    {field}\n"
    fault = only_fault(stages)
    assert fault.code == ("bad-locator" if value == "data/x" else "secret-in-locator")
    assert fault.line == 6


def test_an_output_that_may_be_several_files_needs_a_folder() -> None:
    for output in ("name: 'x-*'", "expression: 'x'"):
        fault = only_fault(f"stages:\n  - run: a\n    outputs: [{{{output}, locator: 's3://b/x'}}]\n")
        assert (fault.code, "end it with /" in fault.hint) == ("bad-output", True)


@pytest.mark.parametrize(
    "archives",
    [
        "[{locator: x.tar}]",
        "[{locator: 's3://b/'}]",
        "[{locator: 's3://b/x.tar', sha256: z}]",
        "[{locator: 's3://b/x.tar'}, {locator: 's3://b/y.tar', platform: a}]",
        "[{locator: 's3://b/x.tar', platform: a}, {locator: 's3://b/y.tar', platform: a}]",
        "[{locator: 's3://b/x.tar', folder: ../x}]",
        "[{locator: 's3://me:pw@b/x.tar'}]",
    ],
)
def test_faulty_archives_of_software_are_refused(archives: str) -> None:
    faults = refused(f"software: [{{id: s, run: x, archives: {archives}}}]\nstages: [{{software: s}}]\n")
    assert len(faults) == 1


# Lists over the cache of a site.


class Farm(OneJob):
    """A site with some files in its cache."""

    def __init__(self, *files: CachedFile) -> None:
        super().__init__("", [])
        self.cached = files

    def cached_files(self, site: str) -> list[CachedFile] | None:
        return list(self.cached) if site == "farm" else None


MERGE = """\
stages:
  - each: {part: {files: "*.root", site: farm, group: 2}}
    run: merge {inputs} --bytes {part.size}
    inputs: [{name: "{part.name}", locator: "{part}", disposition: release}]
    outputs: ["all-{tag}.root"]
"""
FARM = Farm(
    CachedFile("job:J1/b%20b.root", 20),
    CachedFile("s3://raw/x/a.root", 10),
    CachedFile("s3://raw/x/c.root", 30),
    CachedFile("s3://raw/x/d.dat", 40),
)


def test_a_job_iterates_over_the_cached_files_of_a_site() -> None:
    expansion = expanded(MERGE, jobs=FARM)
    assert commands(expansion) == [
        ("merge", "a.root", "b b.root", "--bytes", "10", "20"),
        ("merge", "c.root", "--bytes", "30"),
    ]
    assert commands(again(expansion)) == commands(expansion)
    assert expansion.package(0).binaries[0].inputs[0].locators == ("s3://raw/x/a.root", "job:J1/b%20b.root")


def test_a_pattern_with_a_slash_is_one_of_locators() -> None:
    stages = MERGE.replace('"*.root"', '"s3://raw/**"')
    assert [len(package.binaries[0].inputs[0].names) for package in expanded(stages, jobs=FARM).packages()] == [2, 1]


def test_two_cached_files_of_one_name_do_not_fit_into_one_package() -> None:
    farm = Farm(CachedFile("s3://a/x.root", 1), CachedFile("s3://b/x.root", 2), CachedFile("s3://b/y.root", 3))
    fault = only_fault(MERGE, jobs=farm)
    assert fault.code == "two-files"
    assert "s3://a/x.root and s3://b/x.root" in fault.message
    assert expanded(MERGE.replace("group: 2", "group: 1"), jobs=farm).count == 3


def test_two_inputs_of_one_name_have_one_locator() -> None:
    stages = "stages:\n  - run: a\n    inputs: [{name: x, locator: 's3://a/x'}, {name: x, locator: 's3://b/x'}]\n"
    assert only_fault(stages).code == "two-files"


@pytest.mark.parametrize(
    "change, code",
    [
        (("site: farm", "site: fram"), "unknown-site"),
        (("*.root", "*.none"), "empty-list"),
        (("site: farm", "site: farm, job: j"), "bad-iteration"),
        (('files: "*.root", site: farm', "values: [x, y]"), "unknown-placeholder"),
    ],
)
def test_faulty_lists_of_cached_files_are_refused(change: tuple[str, str], code: str) -> None:
    assert code in {fault.code for fault in refused(MERGE.replace(*change), jobs=FARM, folder=MemoryFolder())}
