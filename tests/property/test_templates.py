from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from pilotage.language.text.templates import (
    Placeholder,
    parse_template,
    part_of_name,
    render,
    render_column,
    render_shell,
)

texts = st.text(st.sampled_from("ab{}%$'\" \n.é"), max_size=8)
names = st.from_regex(r"[a-z_][a-z0-9_-]{0,3}", fullmatch=True)


def escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


@given(texts)
def test_any_text_can_be_said_with_doubled_braces(text: str) -> None:
    template = parse_template(escaped(text))
    assert template.fault == ""
    assert render(template, {}) == text


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_has_a_fault_but_never_raises(text: str) -> None:
    template = parse_template(text)
    assert template.fault or isinstance(render(template, {p.name: "" for p in template.placeholders}), str)
    assert parse_template(text, "shell").fault == "" or parse_template(text, "shell").placeholders


@given(st.lists(st.one_of(texts, st.builds(Placeholder, names)), max_size=5), st.dictionaries(names, texts))
def test_what_was_put_together_is_taken_apart(parts: list[str | Placeholder], values: dict[str, str]) -> None:
    text = "".join(str(part) if isinstance(part, Placeholder) else escaped(part) for part in parts)
    known = {part.name: values.get(part.name, "?") for part in parts if isinstance(part, Placeholder)}
    expected = "".join(known[part.name] if isinstance(part, Placeholder) else part for part in parts)
    assert render(parse_template(text), known) == expected


@given(st.lists(st.tuples(texts, texts), max_size=4), texts, texts)
def test_columns_agree_with_single_texts(rows: list[tuple[str, str]], before: str, between: str) -> None:
    template = parse_template(f"{escaped(before)}{{a}}{escaped(between)}{{b.stem}}")
    columns = {"a": [a for a, _ in rows], "b": [b for _, b in rows]}
    assert render_column(template, columns, len(rows)) == [render(template, {"a": a, "b": b}) for a, b in rows]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12))
def test_a_shell_gives_a_value_back(value: str) -> None:
    assert shlex.split(render_shell("p {v}", {"v": value})) == ["p", value]


@given(st.text(st.sampled_from("ab./"), max_size=10))
def test_name_parts_join_to_the_name(value: str) -> None:
    name = part_of_name(value, "name")
    assert part_of_name(value, "stem") + part_of_name(value, "suffix") == name
    assert value.endswith(name)
