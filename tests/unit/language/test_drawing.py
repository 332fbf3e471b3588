from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.language import Expansion, MemoryFolder, load
from pilotage.language.drawing import DRAWINGS, draw
from pilotage.language.drawing.exports import quoted
from pilotage.language.drawing.file_count import count_files
from pilotage.language.drawing.picture import (
    ACTIVITIES_MAX,
    Arrow,
    Box,
    Picture,
    cells,
    clipped,
    padded,
    picture_of,
    shortened,
)
from pilotage.language.drawing.svg import draw_picture, lay_out
from pilotage.language.expansion.edge_files import EdgeFiles
from pilotage.language.text.patterns import is_pattern

SVG = "{http://www.w3.org/2000/svg}"

SWEEP = """
stages:
  - each: {{seed: 1..{count}}}
    run: ./simulate {{seed}}
    outputs: [sim-{{seed}}.dat]
  - run: ./merge {{inputs}}
    inputs: [sim-*.dat]
    outputs: [result.dat]
"""
LATE = """
stages:
  - run: ./split
    outputs: ["part-*.dat"]
  - name: work
    each: {part: part-*.dat}
    run: ./work {part}
    inputs: ["{part}"]
"""
BEHIND = (
    LATE
    + """
    outputs: ["done-{part.stem}.dat"]
  - name: merge
    run: ./merge {inputs}
    inputs: [done-*.dat]
"""
)


def expanded(body: str, files: tuple[str, ...] = ()) -> Expansion:
    text = f"pilotage: 1\njob: trial\n{body}"
    loaded = load(text.encode(), file="pilotage.yaml", folder=MemoryFolder(files))
    assert loaded.expansion is not None, loaded.report.errors
    return loaded.expansion


def drawn(body: str, drawing: str, columns: int = 80) -> str:
    chosen = next(known for known in DRAWINGS if known == drawing)
    return "".join(draw(expanded(body), chosen, columns=columns))


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_json_has_every_package_and_an_edge_per_pair() -> None:
    assert json.loads(drawn(SWEEP.format(count=2), "json")) == {
        "packages": [
            {"id": "trial/001/001/001", "name": "simulate-0", "activity": "simulate", "stage": 1, "line": 1},
            {"id": "trial/001/002/001", "name": "simulate-1", "activity": "simulate", "stage": 1, "line": 2},
            {"id": "trial/002/001/001", "name": "merge", "activity": "merge", "stage": 2, "line": 1},
        ],
        "edges": [
            {"from": "trial/001/001/001", "to": "trial/002/001/001", "files": ["sim-1.dat"]},
            {"from": "trial/001/002/001", "to": "trial/002/001/001", "files": ["sim-2.dat"]},
        ],
    }


def test_json_joins_two_files_of_one_pair_in_one_edge() -> None:
    body = "stages:\n  - {run: a, outputs: [x, y, z]}\n  - {run: b, inputs: [x, y]}\n"
    assert [edge["files"] for edge in json.loads(drawn(body, "json"))["edges"]] == [["x", "y"]]


def test_json_has_edges_without_files() -> None:
    body = "stages:\n  - packages: [{run: a}, {run: b}]\n"
    assert [edge["files"] for edge in json.loads(drawn(body, "json"))["edges"]] == [[]]


def test_json_of_many_packages_is_whole() -> None:
    graph = json.loads(drawn(SWEEP.format(count=1203), "json"))
    assert len(graph["packages"]) == 1204
    assert len(graph["edges"]) == 1203


def test_the_files_of_edges_agree_with_the_expansion() -> None:
    expansion = expanded(SWEEP.format(count=5))
    listed = {(e["from"], e["to"]): e["files"] for e in json.loads("".join(draw(expansion, "json")))["edges"]}
    asked = {
        (expansion.path(a), expansion.path(b)): EdgeFiles(expansion).between(a, b)
        for a, b, _ in expansion.graph.edges()
    }
    assert listed == asked


def test_a_group_takes_its_own_files_only() -> None:
    body = (
        SWEEP.format(count=4)
        + "  - each: {part: {files: sim-*.dat, group: 2}}\n    run: ./m {part}\n    inputs: ['{part}']\n"
    )
    edges = [edge for edge in json.loads(drawn(body, "json"))["edges"] if "/003/" in edge["to"]]
    assert [(edge["to"][-7:-4], edge["files"]) for edge in edges] == [
        ("001", ["sim-1.dat"]),
        ("001", ["sim-2.dat"]),
        ("002", ["sim-3.dat"]),
        ("002", ["sim-4.dat"]),
    ]


def test_json_tells_of_stages_that_are_not_known_yet() -> None:
    assert json.loads(drawn(BEHIND, "json"))["late"] == [
        {
            "stage": 2,
            "name": "work",
            "patterns": ["part-*.dat"],
            "after": ["trial/001/001/001"],
            "before": ["trial/003/001/001"],
        }
    ]


def test_json_of_a_job_without_such_stages_has_its_two_keys_only() -> None:
    assert json.loads(drawn(SWEEP.format(count=1), "json")).keys() == {"packages", "edges"}


# --- text -------------------------------------------------------------------------------------------------------------


def test_text_shows_a_late_stage_in_its_place_and_who_waits_for_it() -> None:
    assert drawn(BEHIND, "text") == (
        "trial: 2 packages in 3 stages, 0 edges\n"
        "\n"
        "stage 1: split (1 package)\n"
        "  split\n"
        "\n"
        "stage 2: work (packages not known yet)\n"
        "  work   ← split (part-*.dat)\n"
        "\n"
        "stage 3: merge (1 package)\n"
        "  merge  ← work (done-*.dat)\n"
    )


def test_text_shows_every_package_of_a_small_job() -> None:
    assert drawn(SWEEP.format(count=2), "text") == (
        "trial: 3 packages in 2 stages, 2 edges\n"
        "\n"
        "stage 1: simulate (2 packages)\n"
        "  simulate-0\n"
        "  simulate-1\n"
        "\n"
        "stage 2: merge (1 package)\n"
        "  merge       ← simulate-0 (sim-1.dat), simulate-1 (sim-2.dat)\n"
    )


def test_text_shows_the_activities_of_a_large_job() -> None:
    assert drawn(SWEEP.format(count=2000), "text") == (
        "trial: 2,001 packages in 2 stages, 2,000 edges\n"
        "drawn by activity; --format json lists every package\n"
        "\n"
        "stage 1: simulate (2,000 packages)\n"
        "  simulate  × 2,000\n"  # noqa: RUF001
        "\n"
        "stage 2: merge (1 package)\n"
        "  merge         × 1  ← simulate (2,000 edges: sim-{seed}.dat)\n"  # noqa: RUF001
    )


@pytest.mark.parametrize("columns", [40, 50, 79, 120])
def test_text_is_no_wider_than_asked(columns: int) -> None:
    body = "stages:\n  - each: {i: 1..30}\n    run: ./a-program-with-a-long-name {i}\n    outputs: ['部品-{i}.dat']\n"
    body += "  - name: a-stage-with-quite-a-long-name-of-its-own\n    run: ./b\n    inputs: ['部品-*.dat']\n"
    assert max(cells(line) for line in drawn(body, "text", columns).splitlines()) <= columns


def test_text_shows_a_stage_that_is_not_known_yet() -> None:
    text = drawn(LATE, "text")
    assert "stage 2: work (packages not known yet)\n  work   ← split (part-*.dat)\n" in text


def test_many_activities_are_not_all_drawn() -> None:
    lines = "".join(f"      - run: ./program{i}\n" for i in range(ACTIVITIES_MAX + 50))
    text = drawn(f"stages:\n  - lines:\n{lines}", "text")
    assert "51 other activities" in text
    assert len(text.splitlines()) < ACTIVITIES_MAX + 10


# --- DOT --------------------------------------------------------------------------------------------------------------


def test_dot_has_nodes_by_stage_and_edges_with_files() -> None:
    text = drawn(SWEEP.format(count=1), "dot")
    assert text.startswith('digraph "trial" {')
    assert '"trial/001/001/001" [label="simulate-0"' in text
    assert '  "trial/001/001/001" -> "trial/002/001/001" [label="sim-1.dat"];' in text
    assert text.count("{") == text.count("}")


def test_dot_dashes_edges_without_files() -> None:
    assert "[style=dashed]" in drawn("stages:\n  - packages: [{run: a}, {run: b}]\n", "dot")


def test_dot_leads_through_a_stage_that_is_not_known_yet() -> None:
    text = drawn(BEHIND, "dot")
    assert '"trial/002" [label="work (not known yet)"' in text
    assert '"trial/001/001/001" -> "trial/002" [label="part-*.dat"];' in text
    assert '"trial/002" -> "trial/003/001/001" [label="done-*.dat"];' in text


@given(st.text())
def test_dot_keeps_any_text_in_its_quotes(text: str) -> None:
    assert re.fullmatch(r'"(?:[^"\\\n]|\\\\|\\")*"', quoted(text))


# --- SVG --------------------------------------------------------------------------------------------------------------


def rectangles(text: str) -> list[tuple[float, float, float, float]]:
    boxes = [g.find(f"{SVG}rect") for g in ET.fromstring(text).iter(f"{SVG}g") if g.get("class") == "box"]
    sides = ("x", "y", "width", "height")
    return [(*(float(box.get(side, "")) for side in sides),) for box in boxes if box is not None]  # type: ignore[misc] # four


def test_svg_tells_paths_and_files_when_pointed_at() -> None:
    titles = [
        "".join(title.itertext()) for title in ET.fromstring(drawn(SWEEP.format(count=2), "svg")).iter(f"{SVG}title")
    ]
    assert "simulate-0\nstage 1: simulate\nactivity simulate\ntrial/001/001/001" in titles
    assert "simulate-0 → merge\nsim-1.dat" in titles


def test_svg_of_a_large_job_is_small() -> None:
    text = drawn(SWEEP.format(count=5000), "svg")
    assert len(rectangles(text)) == 2
    assert "5,000 packages" in text


def test_svg_is_self_contained() -> None:
    text = drawn(SWEEP.format(count=3), "svg")
    assert re.findall(r"https?://[^\s\"]+", text) == ["http://www.w3.org/2000/svg"]
    assert "<script" not in text


def test_svg_dashes_a_stage_that_is_not_known_yet() -> None:
    text = drawn(LATE, "svg")
    assert "not known yet" in text
    assert 'stroke-dasharray="5 4"' in text


def test_svg_has_arrows_out_of_a_stage_that_is_not_known_yet() -> None:
    titles = ["".join(title.itertext()) for title in ET.fromstring(drawn(BEHIND, "svg")).iter(f"{SVG}title")]
    assert "work → merge\ndone-*.dat" in titles


def test_svg_survives_names_with_signs() -> None:
    body = "stages:\n  - {name: a<b&\"c\", run: x, outputs: ['<&>.dat']}\n  - {run: y, inputs: ['<&>.dat']}\n"
    titles = ["".join(title.itertext()) for title in ET.fromstring(drawn(body, "svg")).iter(f"{SVG}title")]
    assert any("<&>.dat" in title for title in titles)


def box(position: int) -> Box:
    return Box(label=f"b{position}", stage=1, stage_name="s", activity="a", count=1, paths=(f"t/{position}",))


@st.composite
def pictures(draw_: st.DrawFn) -> Picture:
    """Any graph, with loops as a summary can have them."""
    count = draw_(st.integers(0, 12))
    pairs = draw_(st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30))
    arrows = [
        Arrow(source=a, target=b, edges=1, files=("f",)) for a, b in sorted(pairs) if a != b and max(a, b) < count
    ]
    return Picture(
        job="j",
        boxes=tuple(map(box, range(count))),
        arrows=tuple(arrows),
        packages=count,
        edges=len(arrows),
        stages=1,
        summarised=False,
    )


@given(pictures())
def test_every_forward_arrow_leads_to_a_later_layer(picture: Picture) -> None:
    laid = lay_out(picture, [28.0] * len(picture.boxes), gap=16.0, bend_height=6.0)
    forward = [arrow for i, arrow in enumerate(picture.arrows) if i not in laid.backward]
    assert [a for a in forward if laid.layers[a.source] >= laid.layers[a.target]] == []


@given(pictures())
def test_no_two_boxes_overlap_and_all_are_on_the_sheet(picture: Picture) -> None:
    text = draw_picture(picture)
    root: Any = ET.fromstring(text)
    width, height = float(root.get("width")), float(root.get("height"))
    boxes = rectangles(text)
    assert len(boxes) == len(picture.boxes)
    assert [b for b in boxes if b[0] < 0 or b[1] < 40 or b[0] + b[2] > width or b[1] + b[3] > height] == []
    for i, (x, y, w, h) in enumerate(boxes):
        for other_x, other_y, other_w, other_h in boxes[:i]:
            apart = x + w <= other_x or other_x + other_w <= x or y + h <= other_y + 0.2 or other_y + other_h <= y + 0.2
            assert apart


# --- what is common ---------------------------------------------------------------------------------------------------


def test_a_picture_of_a_large_job_counts_edges_within_an_activity() -> None:
    body = "stages:\n  - each: {i: 1..200}\n    packages:\n      - {activity: same, run: a}\n      - {activity: same, run: b}\n"
    picture = picture_of(expanded(body), packages_max=10, edges_max=10)
    assert [(box.label, box.count, box.inner) for box in picture.boxes] == [("same", 400, 200)]


@pytest.mark.parametrize(
    "body, files, count",
    [
        (SWEEP.format(count=10), (), 11),
        ("run: ./a\ninputs: [x.dat]\nstdin: y.dat\nstdout: z.dat\n", ("x.dat", "y.dat"), 3),
        ("each: {f: '*.dat'}\nrun: ./a {f}\ninputs: ['{f}', common.cfg]\n", ("a.dat", "b.dat", "common.cfg"), 3),
        ("run: ./a {inputs}\ninputs: ['*.dat']\n", ("a.dat", "b.dat"), 2),
        ("each: {i: 1..5}\nrun: ./a\ninputs: [x.dat]\n", ("x.dat",), 1),
        ("each: {p: {files: '*.dat', group: 2}}\nrun: ./a\ninputs: ['{p}']\n", ("a.dat", "b.dat", "c.dat"), 3),
        (LATE, (), 0),
    ],
    ids=["made-and-needed", "streams", "iterated", "pattern", "shared", "groups", "late"],
)
def test_files_are_counted_once(body: str, files: tuple[str, ...], count: int) -> None:
    expansion = expanded(body, files)
    written_out = {name for package in expansion.packages() for name in (*package.made, *package.needed)}
    assert count_files(expansion) == len({name for name in written_out if not is_pattern(name)}) == count


def test_a_text_is_measured_in_cells() -> None:
    assert [cells("abc"), cells("日本"), cells("e\u0301")] == [3, 4, 1]
    assert padded("日", 4) == "日  "


@given(st.text(), st.integers(1, 60))
def test_a_clipped_text_fits(text: str, room: int) -> None:
    assert cells(clipped(text, room)) <= room
    assert cells(shortened(text, room)) <= room


def test_a_shortened_name_keeps_both_ends() -> None:
    assert shortened("fertilizer_increase_ID0000063.dat", 16) == "fertiliz…063.dat"


def test_no_arrow_of_a_diamond_is_drawn_backward() -> None:
    boxes = tuple(
        Box(label=name, stage=1, stage_name="s", activity="s", count=1, paths=(name,)) for name in ("a", "b", "c", "d")
    )
    arrows = tuple(
        Arrow(source=source, target=target, edges=1, files=()) for source, target in ((0, 1), (0, 2), (1, 3), (2, 3))
    )
    picture = Picture(job="j", boxes=boxes, arrows=arrows, packages=4, edges=4, stages=1, summarised=False)
    laid = lay_out(picture, [1.0] * 4, gap=1.0, bend_height=0.5)
    assert laid.backward == frozenset()
    assert laid.layers == (0, 1, 1, 2)


def test_a_stage_that_has_a_name_is_drawn_under_it_and_not_under_its_interpreter() -> None:
    text = (
        "pilotage: 1\njob: j\nstages:\n  - {name: simulate, each: {i: 1..3000}, run: 'python3 s.py {i}', outputs: ['s-{i}']}\n"
        "  - {name: merge, run: python3 m.py, inputs: ['s-*'], outputs: [m]}\n"
        "  - name: both\n    lines: [{run: python3 a.py, inputs: [m]}, {run: cat m, inputs: [m]}]\n"
    )
    expansion = load(text.encode(), file="pilotage.yaml", folder=MemoryFolder()).expansion
    assert expansion is not None
    drawn = "".join(draw(expansion, "text"))
    assert "  simulate  \u00d7 3,000" in drawn
    assert "← simulate (3,000 edges: s-{i})" in drawn
    labels = [box.label for box in picture_of(expansion, packages_max=10, edges_max=10).boxes]
    assert labels == ["simulate", "merge", "a.py", "cat"]
    small = picture_of(expansion, packages_max=10_000, edges_max=10_000)
    assert {box.activity for box in small.boxes} == {"simulate", "merge", "both"}
