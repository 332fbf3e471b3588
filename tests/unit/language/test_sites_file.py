"""`sites.yaml`: what it may say, what is refused and how, and that what is written is read back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.language.parsing.sites import read_sites, write_sites
from pilotage.model.jobs.definition import plain
from pilotage.model.sites.entry import SITES_MAX, Location, SiteEntry, SitesFile, site_of

WHOLE = b"""\
pilotage: 1
sites:
  - name: lyon
    kind: slurm
    address: ssh://me@login.example:2222
    queue: long
    account: biomed
    directives: [--constraint=avx2]
    slots: 4
    memory: 8 GiB
    wall_time: 2h
    scratch: 50 GB
    pilots_max: 20
    platform: x86_64-linux
    speed: 1.5
    data_handling: [sam]
    stores: ["s3://results/"]
    software: [gate/9.1]
    location: {latitude: 45.75, longitude: 4.85, place: Lyon}
    initial_score: 2
  - {name: farm, kind: gridengine, started_by: agent, mode: bound}
"""


def entry(**fields: object) -> SiteEntry:
    return msgspec.convert({"name": "lyon", "kind": "slurm", **fields}, SiteEntry)


def codes(text: str) -> list[str]:
    found, report = read_sites(text.encode(), file="sites.yaml")
    assert (found is None) == bool(report.errors)
    return [problem.code for problem in report.errors]


def one(fields: str) -> str:
    return f"pilotage: 1\nsites:\n  - {{{fields}}}\n"


def test_every_field_is_read_with_its_unit() -> None:
    found, report = read_sites(WHOLE, file="sites.yaml")
    assert report.errors == []
    assert found is not None
    lyon, farm = found.sites
    assert (lyon.memory_bytes, lyon.wall_time_seconds, lyon.scratch_bytes) == (8 * 2**30, 7200, 50 * 10**9)
    assert lyon.location == Location(latitude=45.75, longitude=4.85, place="Lyon")
    assert (farm.started_by, farm.mode, farm.slots) == ("agent", "bound", 1)


def test_the_engine_knows_of_a_site_what_one_pilot_has() -> None:
    site = site_of(entry(slots=4, memory_bytes=2**30, wall_time_seconds=7200.0, pilots_max=3, nodes_max=2))
    assert (site.capacity.cores_hundredths, site.capacity.memory_bytes) == (400, 2**30)
    assert (site.wall_seconds, site.pilots_max, site.nodes) == (7200.0, 3, 2)


def test_the_cache_of_a_site_has_a_folder_and_a_size() -> None:
    found, report = read_sites(one("name: lyon, kind: slurm, cache: ~/cache, cache_bytes: 2 GiB").encode(), file="s")
    assert found is not None, report
    (lyon,) = found.sites
    assert (lyon.cache, lyon.cache_bytes, site_of(lyon).cache_bytes) == ("~/cache", 2 * 2**30, 2 * 2**30)
    assert read_sites(write_sites(found).encode(), file="s")[0] == found


def test_this_computer_has_the_slots_that_are_written_and_a_cluster_ten_pilots() -> None:
    here = site_of(entry(name="annex", kind="local", slots=2))
    assert (here.pilots_max, here.capacity.cores_hundredths) == (1, 200)
    assert site_of(entry(name="annex", kind="local", slots=2, pilots_max=3)).pilots_max == 3
    assert site_of(entry(slots=2)).pilots_max == 10


@pytest.mark.parametrize(
    "text, code",
    [
        ("sites: []", "unknown-version"),
        ("pilotage: 2\nsites: []", "unknown-version"),
        ("[]", "wrong-type"),
        (one("name: lyon"), "missing-field"),
        (one("name: lyon, kind: slurm, platfrom: x"), "unknown-field"),
        (one("name: lyon, kind: slurm, slots: 0"), "out-of-range"),
        (one("name: lyon, kind: slurm, location: {latitude: 91, longitude: 0}"), "out-of-range"),
        (one("name: 1st, kind: slurm"), "bad-name"),
        (one("name: local, kind: slurm"), "bad-name"),
        (one("name: lyon, kind: slurm}\n  - {name: lyon, kind: pbs"), "duplicate-name"),
        (one("name: lyon, kind: slurm, address: login.example"), "bad-address"),
        (one("name: lyon, kind: slurm, address: ssh://-oProxyCommand=x"), "bad-address"),
        (one("name: lyon, kind: slurm, address: 'ssh://me:secret@host'"), "bad-address"),
        (one("name: here, kind: local, mode: bound"), "misplaced-field"),
        (one("name: here, kind: local, nodes_max: 2"), "misplaced-field"),
        (one("name: lyon, kind: slurm, mode: pilot"), "unknown-choice"),
        (one('name: lyon, kind: slurm, directives: ["--exclusive\\n#SBATCH --qos=x"]'), "bad-text"),
        (one("name: lyon, kind: slurm, folder: ~bob/x"), "bad-path"),
        (one(r'name: lyon, kind: slurm, directives: ["--exclusive", "--a\n--b"]'), "bad-text"),
        (one("name: here, kind: local, started_by: agent"), "misplaced-field"),
        (one("name: here, kind: local, queue: long"), "misplaced-field"),
        (one("name: here, kind: local, account: ours"), "misplaced-field"),
        (one("name: here, kind: local, directives: [--exclusive]"), "misplaced-field"),
        (one("name: here, kind: local, folder: /tmp/x"), "misplaced-field"),
        (one("name: here, kind: local, python: python3.12"), "misplaced-field"),
        (one("name: here, kind: local, setup: [module load x]"), "misplaced-field"),
        (one("name: local, kind: local, pilots_max: 10"), "misplaced-field"),
        (one("name: lyon, kind: slurm, python: ''"), "bad-text"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, code: str) -> None:
    assert codes(text) == [code]


@pytest.mark.parametrize(
    "fields",
    [
        "name: lyon, kind: slurm, folder: ~/x",
        "name: lyon, kind: slurm, folder: '~'",
        "name: lyon, kind: slurm, folder: x~y",
        r'name: lyon, kind: slurm, setup: ["if true; then\n\tmodule load x\nfi"]',
        "name: local, kind: local, pilots_max: 1",
        "name: annex, kind: local, pilots_max: 10, python: python3",
    ],
)
def test_what_looks_like_it_and_can_be_is_taken(fields: str) -> None:
    assert codes(one(fields)) == []


def test_every_fault_of_a_file_is_told_at_once_and_where() -> None:
    text = "pilotage: 1\nsites:\n  - {name: 1st, kind: slurm}\n  - {name: b, kind: slurm, address: nowhere}\n"
    _, report = read_sites(text.encode(), file="sites.yaml")
    assert [(problem.line, problem.code) for problem in report.errors] == [(3, "bad-name"), (4, "bad-address")]


def test_a_kind_that_is_no_batch_system_is_refused_where_it_stands_with_the_nearest() -> None:
    text = "pilotage: 1\nsites:\n  - {name: here, kind: local}\n  - name: lyon\n    kind: slrum\n"
    found, report = read_sites(text.encode(), file="sites.yaml", kinds=lambda: ("slurm", "pbs"))
    assert found is None
    [problem] = report.errors
    assert (problem.code, problem.line, problem.column) == ("unknown-choice", 5, 11)
    assert problem.hint == "did you mean 'slurm'?"


def test_an_empty_file_is_answered_with_how_to_add_a_site() -> None:
    _, report = read_sites(b" \n", file="sites.yaml")
    [problem] = report.errors
    assert (problem.code, problem.hint) == ("empty-document", "add a site with: pilotage site add NAME")


def test_a_field_that_is_written_twice_names_the_key_that_came_first() -> None:
    text = one("name: lyon, kind: slurm, memory: 1 GiB, memory_bytes: 5")
    _, report = read_sites(text.encode(), file="sites.yaml")
    assert [each.message for each in report.errors] == ["'memory_bytes' is the same field as 'memory'"]


NAMES = st.from_regex(r"[a-z][a-z0-9._-]{0,20}", fullmatch=True).filter(lambda name: name != "local")
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=12)
ENTRIES = st.builds(
    SiteEntry,
    name=NAMES,
    kind=st.sampled_from(["slurm", "gridengine", "pbs"]),
    address=st.sampled_from(["", "ssh://host", "ssh://me@host:22"]),
    mode=st.sampled_from(["pilots", "bound"]),
    queue=WORDS,
    directives=st.lists(WORDS, max_size=3).map(tuple),
    slots=st.integers(1, 1000),
    memory_bytes=st.none() | st.integers(0, 2**45),
    speed=st.floats(0.01, 100).map(lambda value: round(value, 3)),
    initial_score=st.none() | st.floats(-10, 10).map(lambda value: round(value, 3)),
    users=st.lists(WORDS, max_size=2).map(tuple),
)


@given(st.lists(ENTRIES, max_size=4, unique_by=lambda each: each.name))
def test_what_is_written_is_read_back(entries: list[SiteEntry]) -> None:
    file = SitesFile(sites=tuple(entries))
    found, report = read_sites(write_sites(file).encode(), file="sites.yaml")
    assert report.errors == []
    assert plain(found) == plain(file)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_whatever_the_bytes_reading_never_raises(data: bytes) -> None:
    found, report = read_sites(data, file="sites.yaml")
    assert found is not None or report.errors


def test_more_sites_than_a_service_can_look_after_are_refused_at_once_and_hundreds_are_not() -> None:
    def many(count: int) -> str:
        return "pilotage: 1\nsites:\n" + "".join(f"  - {{name: s{n}, kind: slurm}}\n" for n in range(count))

    assert codes(many(SITES_MAX)) == []
    assert codes(many(60_000)) == ["too-many-sites"]
    _, report = read_sites(many(60_000).encode(), file="sites.yaml")
    [problem] = report.errors
    assert problem.message == "a service can have at most 1,000 sites; the file has 60,000"
    assert problem.line == SITES_MAX + 3
