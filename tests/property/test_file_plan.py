"""The plan of a job's files says of every package what the package by itself does, whatever the lists and the platforms."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.language import Expansion, MemoryFolder
from pilotage.language.file_plan import brought_files, file_plan_of
from tests.kit.jobs import again, expanded

FOLDER = MemoryFolder(
    {"names.txt": b"a\nb c\na%\n\xc3\xa9\nf\n", "urls.csv": b"url,name\ns3://b/1,n1\n/d/x y,n2\ns3://b/1,n3\n"}
)
LISTS = [
    "{i: 1..7}",
    "{i: {lines: names.txt}}",
    "{i: {lines: names.txt, group: 2}}",
    "{cross: {i: 1..3, k: [a, b, a]}}",
    "{csv: urls.csv}",
]
PLATFORMS = ("", "x86", "arm", "sparc")
SOFTWARE = """\
software:
  - {id: both, run: x, archives: [{platform: x86, locator: "s3://s/x.tar"}, {platform: arm, locator: "s3://s/a.tar"}]}
  - {id: one, run: x, archives: [{locator: "s3://s/one.tar"}]}
  - {id: shared, run: x, archives: [{platform: arm, locator: "s3://s/one.tar"}]}
  - {id: none, run: x}
"""


def _inputs(each: str) -> list[str]:
    """The inputs that fit an iteration."""
    fixed = ['{name: c, locator: "s3://b/1"}', '{name: c2, locator: "s3://b/{job}", disposition: deletable}', "plain"]
    if "csv" in each:
        return [*fixed, '{name: "{name}", locator: "{url}"}', '{name: "in/{name}", locator: "s3://b/"}']
    if "group" in each:
        return [
            *fixed,
            '{name: "{i}", locator: "s3://b/{i}"}',
            '{name: "{i.name}", locator: /d/, disposition: release}',
        ]
    named = ['{name: "x-{i}", locator: "s3://b/{i}"}', '{name: "d/{i}", locator: "s3://b/"}']
    named.append('{name: t, locator: "s3://b/{tag}/{package}"}')
    if "cross" in each:
        named.append('{name: "k-{k}", locator: "s3://b/{k}", disposition: retain-indefinitely}')
    return [*fixed, *named]


def _named(given: str) -> str:
    """The name of an input; two of one package would be called the same."""
    return given.partition(",")[0].replace(".name", "")


@st.composite
def stages(draw: st.DrawFn) -> str:
    """A stage with some inputs from stores."""
    each = draw(st.sampled_from(LISTS))
    chosen = draw(st.lists(st.sampled_from(_inputs(each)), unique_by=_named, max_size=3))
    command = draw(st.sampled_from(["run: x", "software: both", "software: one", "software: shared", "software: none"]))
    platform = draw(st.sampled_from(["", "platform: arm\n    "])) if command != "run: x" else ""
    noop = draw(st.sampled_from(["", "", "noop: true\n    "]))
    return f"  - each: {each}\n    {command}\n    {platform}{noop}inputs: [{', '.join(chosen)}]\n"


@settings(deadline=None, max_examples=150)
@given(st.lists(stages(), min_size=1, max_size=3))
def test_the_plan_agrees_with_every_package(given: list[str]) -> None:
    files = MemoryFolder(
        {"names.txt": FOLDER.read("names.txt") or b"", "urls.csv": FOLDER.read("urls.csv") or b"", "plain": b""}
    )
    expansion = expanded(f"{SOFTWARE}stages:\n{''.join(given)}", folder=files)
    _check(expansion)
    _check(again(expansion))


def _check(expansion: Expansion) -> None:
    plan = file_plan_of(expansion)
    wanted = {
        (package, platform): {file.locator for file in brought_files(expansion, package, platform=platform)}
        for package in range(expansion.count)
        for platform in PLATFORMS
    }
    if plan is None:
        assert not any(wanted.values())
        return
    locators = list(plan.locators)
    assert locators == [plan.locators[file] for file in range(plan.count)]
    assert len(set(locators)) == len(locators) == plan.count
    # What one package needs of an archive, the plan may say of all that use it: a site may get one too many.
    archives = {"s3://s/one.tar", "s3://s/a.tar", "s3://s/x.tar"}
    for (package, platform), expected in wanted.items():
        found = {locators[file] for file in plan.needed(package, platform=platform)}
        assert found - archives == expected - archives
        assert expected <= found
        assert all(package in plan.users.of(file) for file in plan.needs.of(package))
    assert sum(len(plan.users.of(file)) for file in range(plan.count)) == len(plan.needs.others)
    seen = [locators[file] for package in range(expansion.count) for file in plan.needs.few(package)]
    assert set(seen) == set(locators)
