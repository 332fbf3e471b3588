"""Jobs made at random: expanding again from the definition and its recorded lists gives the same job, also after growth."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.language import Expansion, MemoryFolder, RecordingLists, Report, expand
from pilotage.language.expansion.edge_files import EdgeFiles
from pilotage.language.text.patterns import matches
from tests.kit.jobs import again, definition_of, grown, picture

FOLDER = {"t.csv": "e\nlow\nhigh\n", "l.txt": "one\ntwo\n", "r1.raw": "", "r2.raw": "", "cfg": ""}
own = st.sampled_from(
    [
        None,
        {"i": "1..3"},
        {"i": "08..10"},
        {"i": ["a", "b*", "[c]"]},
        {"i": {"csv": "t.csv", "column": "e"}},
        {"i": {"lines": "l.txt"}},
        {"i": "*.raw"},
    ]
)


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Stages that make names or patterns and take what earlier ones make, one by one, in groups, or all at once."""
    stages: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 5))):
        stage: dict[str, Any] = {"name": f"s{number}"}
        earlier = draw(st.sampled_from([None, *range(number)]))
        how = draw(st.sampled_from(["each", "all", "group", "cross", "match"]))
        pattern = f"s{earlier}-**"
        inputs = ["cfg"] if draw(st.booleans()) else []
        placeholder = "{tag}"
        if earlier is None:
            each = draw(own)
            if each:
                stage["each"] = each
                placeholder = "{i}-{tag}"
        elif how == "each":
            stage["each"] = {"f": pattern}
            inputs.append("{f}")
            placeholder = "{tag}-{f.name}"
        elif how == "group":
            stage["each"] = {"part": {"files": pattern, "group": 2}}
            inputs.append("{part}")
        elif how == "cross":
            stage["each"] = {"cross": [{"f": pattern}, {"k": ["x", "y"]}]}
            inputs.append("{f}")
            placeholder = "{k}-{tag}"
        elif how == "match":
            stage["each"] = {"match": [{"f": pattern}, {"cross": [{"k": "1..3"}, {"m": ["p"]}]}]}
            inputs.append("{f}")
        else:
            inputs.append(pattern)
        output = f"s{number}-{placeholder}" + draw(st.sampled_from(["", "-*", ".d/x"]))
        second = draw(st.booleans())
        binary = {"run": "p {inputs} {tag} {package}", "inputs": inputs, "outputs": [output]}
        stage["packages"] = (
            [binary, {"run": "q {inputs}", "inputs": [output], "outputs": [f"t{number}-{{tag}}"]}]
            if second
            else [binary]
        )
        stages.append(stage)
    return {"pilotage": 1, "job": "j", "stages": stages}


def expanded(document: dict[str, Any]) -> Expansion | None:
    definition = definition_of(document)
    return expand(definition, RecordingLists(MemoryFolder(FOLDER)), Report("job"))


@settings(max_examples=40)
@given(jobs())
def test_expanding_again_is_identical(document: dict[str, Any]) -> None:
    expansion = expanded(document)
    assert expansion is not None
    assert picture(again(expansion)) == picture(expansion)


@settings(max_examples=40)
@given(jobs(), st.data())
def test_expanding_again_after_growth_is_identical(document: dict[str, Any], data: st.DataObject) -> None:
    found = expanded(document)
    assert found is not None
    expansion: Expansion = found
    while expansion.late:
        ready = [late for late in expansion.late if not late.stages]
        assert ready
        late = data.draw(st.sampled_from(ready))
        produced = [
            output.replace("*", data.draw(st.sampled_from(["1", "2.x", "*"]))).replace("[", "").replace("]", "")
            for package in late.packages
            for output in expansion.outputs(package)
            for _ in range(data.draw(st.integers(0, 2)))
        ]
        before = expansion.late
        expansion = grown(expansion, late.stage, produced)
        assert expansion.late != before
        assert picture(again(expansion)) == picture(expansion)
    assert expansion.graph.order() is not None


@settings(max_examples=40)
@given(jobs())
def test_every_edge_has_a_reason_and_every_need_an_edge(document: dict[str, Any]) -> None:
    """An oracle that compares every pair of packages by what they make and need."""
    expansion = expanded(document)
    assert expansion is not None
    packages = list(expansion.packages())
    joined = {(s, t) for s, t, _ in expansion.graph.edges()}
    for consumer in packages:
        for name in (
            name for binary in consumer.binaries for given_input in binary.inputs for name in given_input.names
        ):
            makers = [p.number for p in packages if name in p.made and p.number != consumer.number]
            assert all((maker, consumer.number) in joined for maker in makers)
    for source, target in joined:
        maker, consumer = packages[source], packages[target]
        in_line = maker.id.stage == consumer.id.stage and maker.id.line == consumer.id.line
        assert in_line or EdgeFiles(expansion).between(source, target)


@settings(max_examples=40)
@given(jobs())
def test_places_names_and_numbers_are_unique(document: dict[str, Any]) -> None:
    expansion = expanded(document)
    assert expansion is not None
    numbers = range(expansion.count)
    assert [expansion.number(expansion.path(number)) for number in numbers] == list(numbers)
    assert len({expansion.name(number) for number in numbers}) == expansion.count
    assert all(matches("j/*/*/*", expansion.path(number)) for number in numbers)
