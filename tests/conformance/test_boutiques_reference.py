"""Every file of the Boutiques reference data, against the committed table and against bosh itself."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.language import boutiques
from pilotage.language.text.tree import Report, tree_of
from tests.conformance.bosh import Answer, Bosh, ours, running_bosh

TABLE = Path(__file__).with_name("boutiques_verdicts.csv")
NASTY_TEXT = 'it\'s "nice", $HOME; # é *.nii.gz'
# bosh loses the character after < or > in a condition: `n>10` is taken for `n > 0`
GLUED = re.compile(r"[<>](?![=\s])")

Row = dict[str, str]


@pytest.fixture(scope="module")
def texts(reference_data: Path) -> dict[str, str]:
    """The text of every file, by its path from the folder."""
    folder = reference_data / "boutiques"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def bosh(reference_data: Path) -> Iterator[Bosh]:
    with running_bosh() as process:
        yield process


def answer_for(row: Row, texts: dict[str, str]) -> Answer:
    if row["role"] == "invocation":
        return ours(texts[row["descriptor"]], texts[row["path"]])
    return ours(texts[row["path"]])


def bosh_answer_for(row: Row, texts: dict[str, str], bosh: Bosh) -> Answer:
    if row["role"] == "invocation":
        return bosh.ask(texts[row["descriptor"]], texts[row["path"]])
    return bosh.ask(texts[row["path"]])


def test_the_table_names_each_file_of_the_folder_once(texts: dict[str, str], rows: list[Row]) -> None:
    assert sorted(row["path"] for row in rows) == sorted(texts)


def test_each_file_is_accepted_or_refused_as_the_table_says(texts: dict[str, str], rows: list[Row]) -> None:
    found = {row["path"]: answer_for(row, texts) for row in rows}
    said = {row["path"]: (row["verdict"], row["code"]) for row in rows}
    assert {path: (answer.verdict, " ".join(answer.codes)) for path, answer in found.items()} == said


def test_each_verdict_is_that_of_bosh_unless_the_table_says_why_not(
    texts: dict[str, str], rows: list[Row], bosh: Bosh
) -> None:
    theirs = {row["path"]: bosh_answer_for(row, texts, bosh) for row in rows}
    differing = {row["path"] for row in rows if theirs[row["path"]].verdict != row["verdict"]}
    assert differing == {row["path"] for row in rows if row["why"]}


def disagreements(pairs: list[tuple[str, str, str]], bosh: Bosh) -> list[str]:
    """What we say differently of pairs (name, descriptor, invocation)."""
    found = []
    for name, descriptor, invocation in pairs:
        theirs = bosh.ask(descriptor, invocation)
        mine = ours(descriptor, invocation, directory=theirs.directory)
        if theirs.verdict == "crash" and conditions_of(descriptor):
            continue  # bosh puts values into conditions as program text: a quote in one breaks it
        same = (mine.verdict, mine.command) == (theirs.verdict, theirs.command)
        if same and not any(GLUED.search(text) for text in conditions_of(descriptor)):
            same = mine.outputs == theirs.outputs
        if not same:
            found.append(f"{name} with {invocation}:\n  bosh {theirs}\n  ours {mine}")
    return found


def conditions_of(descriptor: str) -> list[str]:
    outputs = json.loads(descriptor).get("output-files", [])
    return [text for output in outputs for entry in output.get("conditional-path-template", []) for text in entry]


def usable(texts: dict[str, str], rows: list[Row]) -> dict[str, str]:
    """The descriptors that are accepted."""
    return {
        row["path"]: texts[row["path"]] for row in rows if (row["role"], row["verdict"]) == ("descriptor", "accept")
    }


def test_command_lines_and_refusals_are_those_of_bosh_for_every_pair_of_a_folder(
    texts: dict[str, str], rows: list[Row], bosh: Bosh
) -> None:
    descriptors = usable(texts, rows)
    invocations = [row for row in rows if row["role"] == "invocation"]
    pairs = [
        (f"{path} {row['path']}", text, texts[row["path"]])
        for path, text in descriptors.items()
        for row in invocations
        if Path(row["path"]).parent == Path(path).parent or row["descriptor"] == path
    ]
    assert len(pairs) > 80
    assert disagreements(pairs, bosh) == []


def test_command_lines_are_those_of_bosh_with_the_fewest_and_with_the_most_inputs(
    texts: dict[str, str], rows: list[Row], bosh: Bosh
) -> None:
    pairs = []
    for path, text in usable(texts, rows).items():
        tool = descriptor_of(text)
        fewest = smallest_invocation(tool)
        most = grown_invocation(tool, fewest)
        pairs += [(path, text, json.dumps(values)) for values in (fewest, most) if values]
    assert len(pairs) > 100
    assert disagreements(pairs, bosh) == []


def test_refusals_are_those_of_bosh_when_one_input_is_spoilt(
    texts: dict[str, str], rows: list[Row], bosh: Bosh
) -> None:
    pairs = []
    for path, text in usable(texts, rows).items():
        tool = descriptor_of(text)
        base = smallest_invocation(tool)
        pairs += [(path, text, json.dumps(values)) for values in spoilt(tool, base) if values]
    assert len(pairs) > 300
    assert disagreements(pairs, bosh) == []


def test_every_file_is_read_without_an_exception_whatever_its_role(texts: dict[str, str]) -> None:
    tool = descriptor_of(texts["boutiques/schema/examples/example1/example1_docker.json"])
    for text in texts.values():
        report = Report("invocation.json")
        boutiques.check_invocation(tool, boutiques.parse_invocation(text, report), report)
        assert report.errors or boutiques.command_line(tool, boutiques.parse_invocation(text, report))


def descriptor_of(text: str) -> boutiques.Descriptor:
    tool = boutiques.parse_descriptor(text, Report("descriptor.json"))
    assert tool is not None
    return tool


def is_fine(tool: boutiques.Descriptor, values: dict[str, Any]) -> bool:
    report = Report("invocation.json")
    boutiques.check_invocation(tool, boutiques.read_invocation(tree_of(values), report), report)
    return not report.errors


def value_for(input_: boutiques.Input) -> Any:
    """Something that the input takes."""
    if input_.is_list:
        return [item_for(input_)] * int(input_.min_list_entries or min(2, input_.max_list_entries or 2))
    return item_for(input_)


def item_for(input_: boutiques.Input) -> Any:
    if input_.value_choices:
        return input_.value_choices[-1]
    if input_.type == "Number":
        number = input_.minimum if input_.minimum is not None else input_.maximum if input_.maximum is not None else 7
        step = (1 if input_.exclusive_minimum else -1 if input_.exclusive_maximum else 0) if input_.integer else 0.5
        return number + step if is_within(input_, number + step) else number
    return {"Flag": True, "File": "some data/sub-01.nii.gz", "String": NASTY_TEXT}[input_.type]


def is_within(input_: boutiques.Input, number: float) -> bool:
    least = input_.minimum if input_.minimum is not None else -1e9
    most = input_.maximum if input_.maximum is not None else 1e9
    return bool(least <= number <= most)


def smallest_invocation(tool: boutiques.Descriptor) -> dict[str, Any]:
    """The inputs that are not optional, and one of each group where one is required with all that this one requires."""
    values = {input_.id: value_for(input_) for input_ in tool.inputs if not input_.optional}
    by_id = {input_.id: input_ for input_ in tool.inputs}
    groups = {group.id: group for group in tool.groups}
    wanted = [group.members[0] for group in tool.groups if group.one_is_required]
    while wanted and not is_fine(tool, values):
        id_ = wanted.pop(0)
        if id_ in groups:
            id_ = groups[id_].members[0]
        if id_ not in values:
            values[id_] = value_for(by_id[id_])
            wanted += by_id[id_].requires_inputs or ()
    return values


def grown_invocation(tool: boutiques.Descriptor, values: dict[str, Any]) -> dict[str, Any]:
    """All that the rules of the descriptor let stand together, in the order of the descriptor."""
    for _ in range(2):  # a second time for inputs whose requirements came later
        for input_ in tool.inputs:
            more = {**values, input_.id: value_for(input_)}
            if input_.id not in values and is_fine(tool, more):
                values = more
    return values


def spoilt(tool: boutiques.Descriptor, base: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Invocations with one thing changed, most of them for the worse."""
    yield {**base, "nobody_knows_this": 1}
    for input_ in tool.inputs[:2]:
        yield {id_: value for id_, value in base.items() if id_ != input_.id}
        yield {**base, input_.id: None}
        yield {**base, input_.id: value_for(input_)}
        yield {
            **base,
            input_.id: [] if input_.is_list else {"String": 3, "File": 3, "Flag": "x", "Number": "3"}[input_.type],
        }
        if input_.type == "Number":
            least, most = input_.minimum, input_.maximum
            number = most if most is not None else least if least is not None else 0
            for spoilt_number in (number, number + 0.5, -1e9, True):
                yield {**base, input_.id: [spoilt_number] if input_.is_list else spoilt_number}
