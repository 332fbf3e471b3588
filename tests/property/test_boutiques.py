"""Boutiques descriptors that nobody wrote: bosh is the oracle, and no input whatever may raise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from pilotage.language import boutiques
from pilotage.language.boutiques.invocation import faults
from pilotage.language.boutiques.values import value_of
from pilotage.language.text.tree import Report, tree_of
from tests.conformance.bosh import Bosh, ours, running_bosh

TEXT = st.text(alphabet="ab '\"$;*./\\é☃\n[]", max_size=6)
NUMBER = st.one_of(st.integers(-5, 15), st.sampled_from([0.5, 1.0, 2.5, 1e-7, 1e22, 10**30]))
MAYBE = st.sampled_from([None, True, False])
IDS = ("a", "b", "c", "d_1")
KEYS = {"a": "[A]", "b": "[B]", "c": "[C]", "d_1": "[D]"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@pytest.fixture(scope="module")
def bosh() -> Iterator[Bosh]:
    with running_bosh() as process:
        yield process


def present(**fields: Any) -> dict[str, Any]:
    """Fields by their Boutiques names, without those that are None."""
    return {name.replace("_", "-"): value for name, value in fields.items() if value is not None}


def some(draw: st.DrawFn, strategy: st.SearchStrategy[Any]) -> Any:
    """A value half of the time."""
    return draw(strategy) if draw(st.booleans()) else None


@st.composite
def inputs(draw: st.DrawFn, id_: str) -> dict[str, Any]:
    kind = draw(st.sampled_from(["String", "File", "Flag", "Number"]))
    optional = True if kind == "Flag" else draw(MAYBE)
    flag = "-" + id_ if kind == "Flag" else some(draw, st.sampled_from(["-x", "--long", ""]))
    is_list = None if kind == "Flag" else draw(MAYBE)
    others = st.lists(st.sampled_from([other for other in IDS if other != id_]), max_size=2, unique=True)
    # text only for a String: bosh fails on a number there, or writes '' for 0
    choice: st.SearchStrategy[Any] | None = {"String": TEXT, "Number": NUMBER}.get(kind)
    choices = None if choice is None else some(draw, st.lists(choice, min_size=1, max_size=3, unique=True))
    numeric = kind == "Number"
    minimum = some(draw, NUMBER) if numeric else None
    return present(
        id=id_,
        name=id_,
        type=kind,
        optional=optional,
        value_key=some(draw, st.just(KEYS[id_])) if draw(st.integers(0, 4)) == 0 else KEYS[id_],
        command_line_flag=flag,
        command_line_flag_separator=None if flag is None else some(draw, st.sampled_from(["=", "", " "])),
        list=is_list,
        list_separator=None if is_list is None else some(draw, st.sampled_from([",", "", " -x "])),
        min_list_entries=None if is_list is None else some(draw, st.integers(0, 2)),
        max_list_entries=None if is_list is None else some(draw, st.integers(0, 3)),
        integer=draw(MAYBE) if numeric else None,
        minimum=minimum,
        exclusive_minimum=None if minimum is None else draw(MAYBE),
        maximum=some(draw, NUMBER) if numeric else None,
        value_choices=choices,
        requires_inputs=some(draw, others) if optional and draw(st.integers(0, 3)) == 0 else None,
        disables_inputs=some(draw, others) if optional and draw(st.integers(0, 3)) == 0 else None,
        default_value=draw(values(kind)) if draw(st.integers(0, 5)) == 0 else None,
    )


def values(kind: str) -> st.SearchStrategy[Any]:
    single: st.SearchStrategy[Any] = {"String": TEXT, "File": TEXT, "Flag": st.booleans(), "Number": NUMBER}[kind]
    return single


@st.composite
def descriptors(draw: st.DrawFn) -> dict[str, Any]:
    ids = IDS[: draw(st.integers(1, 4))]
    listed = [draw(inputs(id_)) for id_ in ids]
    keys = [KEYS[id_] for id_ in ids]
    line = "tool" + "".join(draw(st.sampled_from([" ", " -k=", "", "  "])) + key for key in keys)
    outputs = []
    for name in draw(st.sampled_from([(), ("out",), ("out", "log")])):
        template = "".join(draw(st.lists(st.sampled_from([*keys, "x", "/", "[OUT]", " "]), min_size=1, max_size=3)))
        path = {"path-template": template + name}
        if draw(st.integers(0, 2)) == 0:
            condition = draw(st.sampled_from(["a == b", "a > 3", "(a > 3) and c", "a != 'x'", "b"]))
            path = {"conditional-path-template": [{condition: template + "1"}, {"default": template + name}]}  # type: ignore[dict-item]  # one of two shapes
        outputs.append(
            present(
                id=name,
                name=name,
                optional=draw(st.booleans()),
                value_key=some(draw, st.just(f"[{name.upper()}]")),
                command_line_flag=some(draw, st.just("-o")),
                path_template_stripped_extensions=some(draw, st.just([".", "a"])),
                uses_absolute_path=some(draw, st.booleans()),
            )
            | path
        )
        if "value-key" in outputs[-1]:
            line += f" {outputs[-1]['value-key']}"
    members = st.lists(st.sampled_from(ids), min_size=min(2, len(ids)), max_size=3, unique=True)
    rules = ("mutually_exclusive", "one_is_required", "all_or_none")
    groups = [
        present(id=f"g{n}", name="g", members=draw(members), **{rule: some(draw, st.booleans()) for rule in rules})
        for n in range(draw(st.integers(0, 1)))
    ]
    parts = {"inputs": listed, "output-files": outputs, "groups": groups}
    head = {"name": "t", "tool-version": "1", "description": "d", "schema-version": "0.5", "command-line": line}
    return head | {name: part for name, part in parts.items() if part}


@st.composite
def invocations(draw: st.DrawFn, descriptor: dict[str, Any]) -> dict[str, Any]:
    given_values: dict[str, Any] = {}
    for input_ in descriptor["inputs"]:
        if input_.get("optional") and draw(st.booleans()):
            continue
        single = values(input_["type"])
        if "value-choices" in input_ and draw(st.integers(0, 9)):
            single = st.sampled_from(input_["value-choices"])
        if draw(st.integers(0, 20)) == 0:
            single = st.sampled_from([None, 1, "1", True, [], 1.0])
        given_values[input_["id"]] = draw(st.lists(single, max_size=3) if input_.get("list") else single)
    return given_values


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_bosh_says_the_same_of_any_small_descriptor_and_invocation(bosh: Bosh, data: st.DataObject) -> None:
    descriptor = data.draw(descriptors())
    invocation = data.draw(invocations(descriptor))
    text, given_text = json.dumps(descriptor), json.dumps(invocation)
    theirs = bosh.ask(text, given_text)
    mine = ours(text, given_text, directory=theirs.directory)
    event(f"bosh: {theirs.verdict}, we: {mine.verdict}")
    if theirs.verdict == "crash" or (not invocation and mine.verdict == "refuse"):
        return  # nothing to compare: bosh failed, or let an empty invocation pass unseen
    if mine.codes == ("condition-unknown-name",):
        return  # documented: we refuse a name that bosh fails over only when it comes to evaluate it
    assert (mine.verdict, mine.command) == (theirs.verdict, theirs.command), (theirs, mine)
    assert mine.outputs == theirs.outputs, (theirs, mine)


@given(JSON, JSON)
@example({"inputs": [{"value-choices": [{}]}]}, [])
def test_no_json_makes_the_readers_raise(descriptor: Any, invocation: Any) -> None:
    report = Report("descriptor.json")
    assert boutiques.read_descriptor(tree_of(descriptor), report) is None
    assert report.errors
    boutiques.read_invocation(tree_of(invocation), report)


@settings(max_examples=300)
@given(st.data())
def test_no_spoilt_descriptor_makes_the_readers_raise(data: st.DataObject) -> None:
    descriptor = data.draw(descriptors())
    part: Any = descriptor
    for _ in range(data.draw(st.integers(0, 3))):
        if isinstance(part, (dict, list)) and part:
            steps = list(part) if isinstance(part, dict) else list(range(len(part)))
            step = data.draw(st.sampled_from(steps))
            if not isinstance(part[step], (dict, list)) or data.draw(st.booleans()):
                part[step] = data.draw(JSON)
                break
            part = part[step]
    report = Report("descriptor.json")
    tool = boutiques.read_descriptor(tree_of(descriptor), report)
    assert (tool is None) == bool(report.errors)
    if tool is not None:
        invocation = boutiques.read_invocation(tree_of(data.draw(JSON)), report)
        boutiques.check_invocation(tool, invocation, report)
        assert boutiques.command_line(tool, invocation).strip()


@settings(max_examples=300)
@given(st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \n\t\\u', max_size=30))
@example('"\\ud83d\\ude00"')
@example('{"a": 1,}')
@example("[" * 500)
@example('"' + "\\" * 999)
def test_text_is_json_to_us_exactly_when_it_is_to_the_standard_library(text: str) -> None:
    try:
        expected = json.loads(text, parse_constant=lambda name: json.loads(f"not {name}"))
    except (ValueError, RecursionError):
        expected = ValueError
    report = Report("text.json")
    node = boutiques.read_json(text, report)
    assert (node is None) == (expected is ValueError)


@given(JSON)
def test_json_text_becomes_the_nodes_of_its_value(value: Any) -> None:
    text = json.dumps(value, indent=2)
    if "NaN" in text or "Infinity" in text:
        return
    report = Report("text.json")
    node = boutiques.read_json(text, report)
    assert node is not None
    first, second = Report("one"), Report("two")
    from_text = value_of(node, first)
    assert from_text == value_of(tree_of(value), second)
    assert [p.code for p in first.errors] == [p.code for p in second.errors]


SCALARS = st.sampled_from([None, True, False, 0, 1, 1.0, 2.5, "", "a", "bb"])
INSTANCES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner), max_leaves=5
)
TYPES = st.sampled_from(["array", "boolean", "integer", "null", "number", "object", "string"])


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A schema of a few keywords, with schemas inside."""
    several = st.lists(inner, min_size=1, max_size=2)
    names = st.lists(st.sampled_from("ab"), min_size=1, max_size=2, unique=True)
    size = st.integers(0, 2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
            "enum": st.just([1, "a", False]),
            "minimum": st.integers(0, 2),
            "maximum": st.integers(0, 2),
            **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"), size),
            "uniqueItems": st.booleans(),
            "items": inner,
            "properties": st.dictionaries(st.sampled_from("ab"), inner),
            "additionalProperties": st.booleans() | inner,
            "required": names,
            "dependencies": st.dictionaries(st.sampled_from("ab"), inner | names),
            **dict.fromkeys(("allOf", "anyOf", "oneOf"), several),
            "not": inner,
        },
    )


@given(INSTANCES, st.recursive(st.just({}), keywords, max_leaves=5))
def test_our_part_of_json_schema_is_that_of_the_reference_library(value: Any, schema: Any) -> None:
    expected = jsonschema.Draft4Validator(schema).is_valid(value)
    assert (list(faults(value, schema)) == []) == expected
