"""Whatever is put into a document, reading it answers: with a job, or with faults that have a code and a place."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotage.language import MemoryFolder, Report, load, read_definition, write_document
from pilotage.language.parsing.records import fields_of, names_below, names_of
from pilotage.language.text.tree import tree_of
from pilotage.model.jobs import definition as d

FOLDER = MemoryFolder({"t.csv": "a,b\n1,2\n", "l.txt": "x\n", "r.raw": "", "cfg": "", "d/e": ""})
words = st.sampled_from(
    ["x", "no", "1..3", "1..", "*", "*.raw", "r.raw", "{i}", "{", "}", "{i.stem}", "{tag}", "../x", "/x", "", "a/b", "o-{i}", "o-*", "t.csv", "l.txt",
     "2 GiB", "90s", "-1", "1e999", "true", "dot", "s", "a\0b", "(", "final", "again", "{inputs}", "{arguments}", "cfg", "a" * 300, "[", "1", "0.5"]
)  # fmt: skip
keys = st.sampled_from(
    sorted(
        names_of(d.Definition)
        | names_below(d.Definition)
        | names_of(d.Source)
        | {"dot", "cross", "match", "flat-cross", "bogus", "i", "x", "catalogue"}
    )
)
junk: st.SearchStrategy[Any] = st.recursive(
    st.one_of(words, st.integers(-3, 10**20), st.floats(), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)
likely = st.fixed_dictionaries(
    {"run": words},
    optional={
        "name": words,
        "each": st.one_of(
            junk, st.dictionaries(st.sampled_from(["i", "x", "dot", "cross", "match"]), junk, max_size=2)
        ),
        "inputs": st.lists(words, max_size=3),
        "outputs": st.lists(words, max_size=3),
        "after": st.lists(words, max_size=2),
        "stdin": words,
        "software": words,
        "parameters": junk,
        "packages": junk,
        "environment": junk,
        "memory": words,
        "container": words,
    },
)
documents = st.fixed_dictionaries(
    {"pilotage": st.just(1), "job": st.sampled_from(["j", "j", "j", "no way"])},
    optional={
        "stages": st.lists(st.one_of(likely, likely, junk), max_size=4),
        "software": st.one_of(junk, st.just([{"id": "s", "run": "x {i}"}])),
        "variables": st.one_of(junk, st.just({"v": "1"})),
        "environment": junk,
        "catalogue": words,
        "bogus": junk,
    },
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(documents)
def test_any_tree_gives_a_job_or_faults(document: Any) -> None:
    found, report = read_definition(tree_of(document), Report("tree"), folder=FOLDER)
    assert (found is None) == bool(report.errors)
    for problem in report.errors + report.warnings:
        assert problem.code
        assert problem.message
    if found is None:
        return
    text = write_document(found.definition)
    result = load(text.encode(), file="job.yaml", folder=FOLDER, source_format="yaml")
    assert result.document is not None or result.report.errors
    if result.document is not None:
        assert result.document.definition == found.definition
    if result.expansion is not None:
        for package in result.expansion.packages():
            assert all("\0" not in word for binary in package.binaries for word in binary.argv)
            assert result.expansion.number(package.path) == package.number
        assert result.expansion.graph.order() is not None


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_any_bytes_behind_a_good_head_give_an_answer(data: bytes) -> None:
    result = load(b"pilotage: 1\njob: j\nrun: x\n" + data, file="job.yaml", folder=FOLDER, source_format="yaml")
    assert (result.expansion is None) == bool(result.report.errors)


@settings(max_examples=150)
@given(st.text(st.sampled_from("pilotage: 1\njb-[]{}\"'#&*!|>%@`,?xy\t"), max_size=60))
def test_any_text_that_looks_like_yaml_gives_an_answer(text: str) -> None:
    result = load(text.encode(), file="job.yaml", folder=FOLDER, source_format="yaml")
    assert (result.expansion is None) == bool(result.report.errors)


def test_every_field_of_the_language_says_what_it_is_for() -> None:
    structs = [s for s in vars(d).values() if isinstance(s, type) and issubclass(s, d.Value) and s is not d.Value]
    missing = [f"{s.__name__}.{f.name}" for s in structs for f in fields_of(s) if not f.description]
    assert missing == ["Combination.operator", "Combination.of"]
