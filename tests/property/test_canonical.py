"""Canonical → parse → canonical is the identity, for definitions made at random from the very table of the language."""

from __future__ import annotations

from datetime import UTC
from functools import cache
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotage.language import MemoryFolder, Report, write_document
from pilotage.language.parsing.iterations import Each, Values
from pilotage.language.parsing.kinds import (
    Anything,
    Choice,
    Descriptor,
    DocumentParse,
    Expression,
    Kind,
    ListOf,
    MapOf,
    Number,
    Quantity,
    Text,
    YesNo,
)
from pilotage.language.parsing.records import Command, Record, Time, fields_of
from pilotage.language.text.tree import tree_of
from pilotage.language.text.yaml import read_tree
from pilotage.model.jobs.definition import Combination, Definition, Source, Value, plain

rough = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
awkward = st.sampled_from(
    ["no", "010", "1.10", "null", "~", "", " ", "a: b", "- x", "#", "{seed}", "{{", "[a]", "'", '"', "\\", "a\nb\n", "\n", "\t",
     "1e3", "0x1F", "2001-01-01", "y", "=", "<<", "*a", "&a", "!t", "%", "@", "`", "é", "日本", "\u2028", "\x85", "\ufeff", "a b  c", "1_000"]
)  # fmt: skip
texts = st.one_of(awkward, rough)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True).filter(
    lambda n: n not in {"inputs", "outputs", "arguments", "job", "tag", "package"}
)
finite = st.floats(allow_nan=False, allow_infinity=False)
anything = st.recursive(
    st.one_of(texts, st.integers(-(10**30), 10**30), finite, st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)
origins = st.one_of(
    st.fixed_dictionaries({"values": st.lists(texts, max_size=3).map(tuple)}),
    st.fixed_dictionaries({"range": st.sampled_from(["1..3", "001..100", "9..1..-2", "-5..5"])}),
    st.fixed_dictionaries(
        {"files": texts.filter(bool)}, optional={"group": st.integers(1, 9), "stage": texts.filter(bool)}
    ),
    st.fixed_dictionaries({"files": texts.filter(bool), "job": texts.filter(bool)}),
    st.fixed_dictionaries({"csv": texts.filter(bool), "column": texts.filter(bool)}),
    st.fixed_dictionaries({"lines": texts.filter(bool)}),
)
sources = st.one_of(
    st.builds(lambda variable, origin: Source(variable=variable, **origin), names, origins),
    st.builds(lambda table: Source(csv=table), texts.filter(bool)),
)
iterations: st.SearchStrategy[Source | Combination] = st.recursive(
    sources,
    lambda inner: st.builds(
        lambda operator, of: Combination(operator=operator, of=tuple(of)),
        st.sampled_from(["dot", "cross", "flat-cross", "match"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=5,
)


def values_of(kind: Kind) -> st.SearchStrategy[Any]:
    """Values that a kind reads."""
    if isinstance(kind, Record):
        return structs_of(kind.struct)
    if isinstance(kind, ListOf):
        return st.lists(values_of(kind.item), max_size=2).map(tuple)
    if isinstance(kind, MapOf):
        return st.dictionaries(texts, values_of(kind.value), max_size=2)
    if isinstance(kind, Choice):
        return st.sampled_from(kind.words)
    if isinstance(kind, Number):
        least = kind.least if kind.least is not None else kind.above
        if kind.integer:
            return st.integers(int(least) if least is not None else -(10**17), int(kind.most or 10**17))
        return st.floats(
            least,
            kind.most,
            allow_nan=False,
            allow_infinity=False,
            exclude_min=kind.above is not None and least is not None,
        )
    if isinstance(kind, Quantity):
        return st.integers(0, 10**18) if kind.unit == "bytes" else st.floats(0, 10.0**15)
    simple: dict[type, st.SearchStrategy[Any]] = {
        Text: texts,
        YesNo: st.booleans(),
        Anything: anything,
        Expression: st.sampled_from(["", "a+", r"\d{3}", "[^x]*", "(?i)fatal: .*"]),
        Command: st.lists(texts, min_size=1, max_size=3).map(tuple),
        Values: st.lists(texts, max_size=2).map(tuple),
        Each: iterations,
        Time: st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.isoformat()),
        Descriptor: st.none(),
    }
    return simple[type(kind)]


@cache
def structs_of(struct: type[Value]) -> st.SearchStrategy[Any]:
    """Records with any of their fields set."""
    required = {field.name: values_of(field.kind) for field in fields_of(struct) if field.required}
    optional = {
        field.name: st.deferred(lambda kind=field.kind: values_of(kind))  # type: ignore[misc] # bound early on purpose
        for field in fields_of(struct)
        if not field.required and field.name not in ("pilotage", "boutiques")
    }
    chosen = st.lists(st.sampled_from(sorted(optional)), max_size=4, unique=True) if optional else st.just([])
    return chosen.flatmap(lambda fields: st.builds(struct, **required, **{field: optional[field] for field in fields}))


def read(tree: Any) -> Definition:
    report = Report("canonical")
    found = Record(Definition).read(tree, (), DocumentParse(report, MemoryFolder()))
    assert not report.errors, report.errors
    assert isinstance(found, Definition)
    return found


@settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(structs_of(Definition))
def test_the_canonical_text_is_read_back_to_the_same_definition(definition: Definition) -> None:
    text = write_document(definition)
    tree, report = read_tree(text.encode(), file="canonical")
    assert not report.errors, (text, report.errors)
    again = read(tree)
    assert again == definition
    assert write_document(again) == text


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(structs_of(Definition))
def test_plain_data_is_read_back_to_the_same_definition(definition: Definition) -> None:
    assert read(tree_of(plain(definition))) == definition
