"""The files that packages bring to their site: which, how often, and under which name."""

from __future__ import annotations

import numpy as np
import pytest

from pilotage.language import MemoryFolder, plan_of
from pilotage.language.file_checks import files_summary
from pilotage.language.file_plan import BroughtFile, brought_files, file_plan_of
from pilotage.language.text.locators import cached_value
from pilotage.model.jobs.file_plan import FilePlan, Wish
from tests.kit.jobs import definition_of, expanded, grown, only_fault


def planned(stages: str, **given: object) -> FilePlan:
    """The files of a document that has some."""
    plan = plan_of(expanded(stages, **given)).files  # type: ignore[arg-type]
    assert plan is not None
    return plan


def needs(plan: FilePlan, package: int) -> list[str]:
    """The locators that a package needs."""
    return [plan.locators[file] for file in plan.needs.few(package)]


def test_a_job_without_locators_has_no_plan_of_files() -> None:
    stages = "stages:\n  - run: a\n    inputs: [{name: x, acquisition: self, locator: 's3://b/x'}, y]\n"
    assert plan_of(expanded(stages, folder=MemoryFolder({"y": b""}))).files is None


def test_a_constant_locator_is_one_file_for_all_packages() -> None:
    plan = planned(
        "stages:\n  - each: {i: 1..1000}\n    run: a {i}\n    inputs: [{name: x, locator: 's3://b/x', size: 3 MB}]\n"
    )
    assert list(plan.locators) == ["s3://b/x"]
    assert plan.users.of(0).tolist() == list(range(1000))
    assert plan.sizes_bytes.tolist() == [3_000_000]


def test_a_locator_for_each_package_is_computed_when_asked_for() -> None:
    plan = planned("stages:\n  - each: {i: 1..1000}\n    run: a\n    inputs: [{name: x, locator: 's3://b/{i}.dat'}]\n")
    assert plan.count == 1000
    assert (plan.locators[0], plan.locators[999]) == ("s3://b/1.dat", "s3://b/1000.dat")
    assert (needs(plan, 41), plan.users.of(41).tolist()) == (["s3://b/42.dat"], [41])


def test_packages_of_several_stages_share_the_files_they_name() -> None:
    plan = planned("""\
stages:
  - each: {i: 1..3}
    run: a
    inputs: [{name: "raw-{i}", locator: "s3://b/{i}"}, {name: cal, locator: "s3://b/cal"}]
  - each: {k: [2, 3, 4]}
    run: b
    inputs: [{name: other, locator: "s3://b/{k}"}]
""")
    assert sorted(plan.locators) == ["s3://b/1", "s3://b/2", "s3://b/3", "s3://b/4", "s3://b/cal"]
    shared = list(plan.locators).index("s3://b/2")
    assert plan.users.of(shared).tolist() == [1, 3]
    assert needs(plan, 5) == ["s3://b/4"]


def test_the_name_of_the_file_is_added_to_the_locator_of_a_folder() -> None:
    stages = (
        "stages:\n  - each: {i: [a b, é]}\n    run: x\n    inputs: [{name: 'in/{i}.dat', locator: 's3://b/raw/'}]\n"
    )
    assert list(planned(stages).locators) == ["s3://b/raw/in/a%20b.dat", "s3://b/raw/in/%C3%A9.dat"]
    path = stages.replace("s3://b/raw/", "/data/")
    assert list(planned(path).locators) == ["/data/in/a b.dat", "/data/in/é.dat"]


def test_files_of_one_package_have_the_names_of_the_document() -> None:
    expansion = expanded(
        "stages:\n  - each: {i: 1..2}\n    run: a\n    inputs:\n"
        f"      - {{name: 'in-{{i}}', locator: 'https://h/x/{{i}}?a=b', sha256: '{'AB' * 32}'}}\n"
    )
    assert brought_files(expansion, 1) == [BroughtFile("in-2", "https://h/x/2?a=b", "ab" * 32)]


GROUPED = """\
stages:
  - each: {part: {lines: parts.txt, group: 2}}
    run: merge {inputs}
    inputs: [{name: "{part}", locator: "s3://b/{part}"}]
"""


def test_a_list_of_names_has_a_locator_for_each() -> None:
    folder = MemoryFolder({"parts.txt": b"a\nb\nc\n"})
    expansion = expanded(GROUPED, folder=folder)
    plan = plan_of(expansion).files
    assert plan is not None
    assert [needs(plan, 0), needs(plan, 1)] == [["s3://b/a", "s3://b/b"], ["s3://b/c"]]
    assert expansion.package(0).binaries[0].argv == ("merge", "a", "b")
    assert [each.name for each in brought_files(expansion, 0)] == ["a", "b"]
    assert list(planned(GROUPED.replace("s3://b/{part}", "s3://b/"), folder=folder).locators) == list(plan.locators)


@pytest.mark.parametrize(
    "fields",
    [
        'name: "{part}", locator: "s3://b/one"',
        'name: one, locator: "s3://b/{part}"',
        'name: "{part}", locator: "s3://b/{other}"',
    ],
)
def test_lists_of_names_and_locators_must_fit(fields: str) -> None:
    stages = f"""\
stages:
  - each: {{cross: {{part: {{lines: parts.txt, group: 2}}, other: {{lines: parts.txt, group: 2}}}}}}
    run: merge {{part}} {{other}}
    inputs: [{{{fields}}}]
"""
    assert only_fault(stages, folder=MemoryFolder({"parts.txt": b"a\nb\nc\n"})).code == "list-in-text"


@pytest.mark.parametrize(
    "wishes, wish",
    [
        (["", "deletable"], Wish.RETAIN_TEMPORARILY),
        (["deletable", "deletable"], Wish.DELETABLE),
        (["retain-temporarily", "retain-indefinitely"], Wish.RETAIN_INDEFINITELY),
        (["release", "deletable"], Wish.DELETABLE),
    ],
)
def test_the_greatest_wish_of_the_job_holds(wishes: list[str], wish: Wish) -> None:
    given = "".join(
        f"  - run: a\n    inputs: [{{name: x, locator: 's3://b/x'{f', disposition: {each}' if each else ''}}}]\n"
        for each in wishes
    )
    plan = planned(f"stages:\n{given}")
    assert (plan.wishes.tolist(), plan.released.tolist()) == ([wish], ["release" in wishes])


def test_files_keep_their_numbers_when_the_job_grows() -> None:
    first = expanded("""\
stages:
  - each: {i: 1..2}
    run: a
    inputs: [{name: x, locator: "s3://b/{i}"}]
    outputs: ["part-{i}-*"]
  - each: {p: part-*}
    run: b {p}
    inputs: ["{p}", {name: y, locator: "s3://b/{p.stem}"}, {name: z, locator: "s3://b/2"}]
""")
    before = plan_of(first).files
    after = plan_of(grown(first, 2, ["part-1-a", "part-2-a", "part-2-b"])).files
    assert before is not None
    assert after is not None
    assert list(before.locators) == list(after.locators)[: before.count] == ["s3://b/1", "s3://b/2"]
    assert set(after.locators) == {*before.locators, "s3://b/part-1-a", "s3://b/part-2-a", "s3://b/part-2-b"}
    assert len(after.users.of(1)) == 4


def test_packages_that_do_not_run_need_no_files() -> None:
    stages = "stages:\n  - {run: a, noop: true, inputs: [{name: x, locator: 's3://b/x'}]}\n  - run: b\n"
    assert file_plan_of(expanded(stages)) is None


SOFTWARE = """\
software:
  - id: reco
    archives:
      - {platform: x86_64-linux, locator: "s3://soft/reco-x86.tar.gz", size: 2 GB}
      - {platform: aarch64-linux, locator: "s3://soft/reco-arm.tar.gz", folder: bin/reco}
    run: reco/bin/reco {inputs}
stages:
  - each: {i: 1..3}
    software: reco
    inputs: [{name: x, locator: "s3://b/{i}"}]
"""


def test_archives_of_software_are_files_of_the_site_by_its_platform() -> None:
    expansion = expanded(SOFTWARE)
    plan = plan_of(expansion).files
    assert plan is not None

    def at(platform: str) -> list[str]:
        return sorted(plan.locators[file] for file in plan.needed(1, platform=platform))

    assert at("x86_64-linux") == at("") == ["s3://b/2", "s3://soft/reco-x86.tar.gz"]
    assert at("aarch64-linux") == ["s3://b/2", "s3://soft/reco-arm.tar.gz"]
    assert at("sparc") == ["s3://b/2"]
    assert plan.sizes_bytes[list(plan.locators).index("s3://soft/reco-x86.tar.gz")] == 2 * 10**9
    assert plan.software is not None
    assert sorted(plan.locators[int(file)] for file in np.flatnonzero(plan.software)) == [
        "s3://soft/reco-arm.tar.gz",
        "s3://soft/reco-x86.tar.gz",
    ]
    arm = brought_files(expansion, 1, platform="aarch64-linux")
    assert arm[1] == BroughtFile("bin/reco", "s3://soft/reco-arm.tar.gz", "", unpacked=True)
    assert brought_files(expansion, 0)[1].name == "reco"
    assert plan_of(expansion).templates[0].software == ()


def test_a_package_that_names_its_platform_needs_only_its_archive() -> None:
    plan = planned(SOFTWARE.replace("    software: reco\n", "    software: reco\n    platform: aarch64-linux\n"))
    assert max(plan.locators) == "s3://soft/reco-arm.tar.gz"
    assert [plan.locators[file] for file in plan.needed(0, platform="")][-1] == "s3://soft/reco-arm.tar.gz"


def test_a_file_of_a_cache_is_brought_from_where_it_came() -> None:
    values = [cached_value(site="farm", locator=f"job:J1/part-{i}.root", size_bytes=10 * i) for i in (1, 2)]
    stages = f"""\
stages:
  - each: {{part: {{values: {values}, group: 2}}}}
    run: merge {{inputs}}
    inputs: [{{name: "{{part.name}}", locator: "{{part}}", disposition: release}}]
"""
    plan = planned(stages)
    assert list(plan.locators) == ["job:J1/part-1.root", "job:J1/part-2.root"]
    assert plan.sizes_bytes.tolist() == [10, 20]
    assert plan.released.all()


def test_a_million_locators_are_not_kept_as_texts() -> None:
    import tracemalloc

    expansion = expanded(
        "stages:\n  - each: {i: 1..200000}\n    run: a\n    inputs: [{name: x, locator: 's3://b/{i}'}]\n"
    )
    tracemalloc.start()
    plan = file_plan_of(expansion)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan is not None
    assert plan.count == 200_000
    assert kept < 50 * 200_000  # a text alone takes 60 bytes
    assert peak < 250 * 200_000
    assert np.all(np.diff(plan.needs.others) == 1)


def test_outputs_are_stored_or_disposed_of_by_template() -> None:
    stages = """\
stages:
  - run: a
    outputs: [{name: x, locator: "s3://b/x"}]
  - run: b
    outputs: [{name: y, dispositions: [store, deletable]}]
  - run: c
    outputs: [{name: z, replicas: 2}]
  - run: d
    outputs: [{name: w, dispositions: [forward, retain-temporarily]}]
"""
    templates = plan_of(expanded(stages)).templates
    assert [(each.stores_outputs, each.disposes_outputs) for each in templates] == [
        (True, False),
        (True, True),
        (True, False),
        (False, False),
    ]


def test_an_input_that_a_package_makes_does_not_come_from_a_store() -> None:
    stages = "stages:\n  - run: a\n    outputs: [x]\n  - run: b\n    inputs: [{name: x, locator: 's3://b/x'}]\n"
    assert only_fault(stages).code == "made-and-fetched"


def test_only_files_that_a_package_fetches_itself_bind_it_to_the_stores_of_a_site() -> None:
    stages = """\
stages:
  - run: a
    inputs: [{name: x, locator: "s3://b/x"}, {name: y, locator: "https://h/y", acquisition: self}]
    outputs: [{name: z, locator: "s3://b/z"}]
"""
    assert plan_of(expanded(stages)).templates[0].locators == ("https://h/y",)


def test_the_definition_keeps_what_the_document_says_of_files() -> None:
    tree = {"pilotage": 1, "job": "j", "stages": [{"run": "a", "inputs": [{"name": "x", "locator": "s3://b/x"}]}]}
    given = definition_of(tree).stages[0].lines[0].packages[0].binaries[0].inputs[0]
    assert (given.acquisition, given.brought) == ("", True)


@pytest.mark.parametrize(
    "stages, told",
    [
        ("inputs: [{name: x, locator: 's3://b/{i}', size: 2 MiB}]", "3 files, 6 MiB, are brought to the site"),
        ("inputs: [{name: x, locator: 's3://b/x'}]", "1 file is brought to the site"),
        (
            "inputs: [{name: x, locator: 's3://b/{i}', size: 1 MiB}, {name: y, locator: 's3://b/y'}]",
            "4 files, 3 MiB or more, are brought to the site",
        ),
        ("outputs: [{name: 'o-{i}', replicas: 2}, 'p-{i}']", "3 outputs are stored twice"),
        ("outputs: [{name: 'o-{i}-*', dispositions: [store]}]", "3 or more outputs are stored"),
        ("outputs: ['p-{i}']", ""),
    ],
)
def test_what_a_job_moves_is_told_in_a_sentence(stages: str, told: str) -> None:
    expansion = expanded(f"stages:\n  - each: {{i: 1..3}}\n    run: a {{i}}\n    {stages}\n")
    assert files_summary(expansion, file_plan_of(expansion)) == told


def test_only_packages_that_run_count() -> None:
    stages = "inputs: [{name: x, locator: 's3://b/{i}'}]\n    outputs: [{name: 'o-{i}', dispositions: [store]}]"
    expansion = expanded(f"stages:\n  - each: {{i: 1..3}}\n    run: a {{i}}\n    {stages}\n")
    running = np.array([False, True, False])
    told = files_summary(expansion, file_plan_of(expansion), running=running)
    assert told == "1 file is brought to the site; 1 output is stored"


def test_the_checksums_that_a_document_requires_are_known_for_each_file() -> None:
    plan = planned(f"""\
stages:
  - each: {{i: [1, 2]}}
    run: a
    inputs: [{{name: "raw-{{i}}", locator: "s3://b/{{i}}"}}, {{name: cal, locator: "s3://b/cal", sha256: "{"AB" * 32}"}}]
  - each: {{k: [2, 3]}}
    run: b
    inputs: [{{name: other, locator: "s3://b/{{k}}", sha256: "{"0" * 63}{{k}}"}}]
""")
    assert plan.checksums is not None
    assert dict(zip(plan.locators, plan.checksums, strict=True)) == {
        "s3://b/1": "",
        "s3://b/2": "0" * 63 + "2",
        "s3://b/3": "0" * 63 + "3",
        "s3://b/cal": "ab" * 32,
    }
    assert planned("stages:\n  - run: a\n    inputs: [{name: x, locator: 's3://b/x'}]\n").checksums is None
