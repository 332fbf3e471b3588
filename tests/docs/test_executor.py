"""The executor of the documentation sees what it should: steps in order, wildcards, wrong output, unseen commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import BadPage, Command, Enter, Script, Write, steps
from tests.docs.reader import Reader, Surprise, compare, recipe_of

ROOT = Path(__file__).resolve().parents[2]

PAGE = """
# A page
<!-- folder: examples/x -->
<!-- file: job.yaml -->
```yaml
a: 1
```
1. In a list:
   ```console
   $ cat job.yaml
   a: 1
   $ cat <<END
   > two
   > END
   two
   ```
<!-- exit: 3 -->
```console
$ true
$ exit \\
3
```
<!-- run -->
```python
print("hi")
```
<!-- output -->
```text
hi
```
```json
{"not": "run"}
```
"""


def read(tmp_path: Path, page: str) -> Reader:
    reader = Reader(ROOT, tmp_path)
    for step in steps(page):
        reader.follow(step)
    return reader


def test_a_page_is_read_in_order() -> None:
    assert steps(PAGE) == [
        Enter(3, "examples/x"),
        Write(5, "job.yaml", "a: 1\n"),
        Command(10, "cat job.yaml", ("a: 1",)),
        Command(12, "cat <<END\ntwo\nEND", ("two",)),
        Command(19, "true", ()),
        Command(20, "exit \\\n3", (), exit_code=3),
        Script(24, 'print("hi")\n', ("hi",)),
    ]


@pytest.mark.parametrize(
    "page, reason",
    [
        ("```bash\npilotage check\n```", "show commands as"),
        ("```text\n$ pilotage check\n```", "show commands as"),
        ("```\nx\n```", "does not name its language"),
        ("```console\npilotage check\n```", "begins with a command"),
        ("```console\n```", "begins with a command"),
        ("```yaml\nx: 1", "never ends"),
        ("<!-- file: x -->\nnothing", "no block follows"),
        ("<!-- run -->\n```yaml\nx: 1\n```", "goes before a python block"),
        ("<!-- output -->\n```text\nx\n```", "belongs after a python block"),
    ],
)
def test_a_page_that_hides_something_is_refused(page: str, reason: str) -> None:
    with pytest.raises(BadPage, match=reason):
        steps(page)


def test_commands_share_a_folder_and_cd_lasts(tmp_path: Path) -> None:
    page = "<!-- file: a/b.txt -->\n```text\nhi\n```\n```console\n$ cd a\n$ cat b.txt\nhi\n$ cat b.txt >&2\nhi\n```\n"
    assert read(tmp_path, page).cwd.name == "a"


def test_the_environment_is_the_readers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_ANYTHING", "leaks")
    home = tmp_path / "home"
    page = f'```console\n$ echo "${{PILOTAGE_ANYTHING-none}} $HOME $NO_COLOR"\nnone {home} 1\n```\n'
    assert read(tmp_path, page).home == home


@pytest.mark.parametrize(
    "page",
    [
        "```console\n$ echo one\ntwo\n```",
        "```console\n$ echo one\n```",
        "```console\n$ true\nsomething\n```",
        "```console\n$ false\n```",
        "<!-- exit: 2 -->\n```console\n$ true\n```",
        "<!-- run -->\n```python\nraise SystemExit(1)\n```",
        '<!-- run -->\n```python\nprint("unseen")\n```',
        "<!-- folder: src -->",
        "<!-- folder: examples/no-such-example -->",
        "```console\n$ make no-such-target\n```",
    ],
)
def test_a_page_that_lies_is_found_out(tmp_path: Path, page: str) -> None:
    with pytest.raises(Surprise):
        read(tmp_path, page)


def test_what_is_for_another_machine_is_not_run(tmp_path: Path) -> None:
    page = "```console\n$ git clone nowhere\n$ make test\n... passed\n```"
    assert list(read(tmp_path, page).cwd.iterdir()) == []


@pytest.mark.parametrize(
    "shown, printed",
    [
        (("a", "...", "d"), "a\nb\nc\nd\n"),
        (("a", "...", "b"), "a\nb\n"),
        (("...",), ""),
        (("took ...",), "took 3.1 s\n"),
        (("a", ""), "a  \n\n"),
        ((), "\n"),
    ],
)
def test_wildcards_and_blanks_match(shown: tuple[str, ...], printed: str) -> None:
    compare("x", expected=shown, printed=printed, codes=(0, 0))


@pytest.mark.parametrize(
    "shown, printed", [(("a", "...", "d"), "a\nb\n"), (("a...",), "b\n"), (("a.c",), "abc\n"), (("a",), "a\nb\n")]
)
def test_a_wildcard_does_not_match_everything(shown: tuple[str, ...], printed: str) -> None:
    with pytest.raises(Surprise):
        compare("x", expected=shown, printed=printed, codes=(0, 0))


def test_the_recipe_of_a_target_leaves_out_the_making_of_the_environment() -> None:
    recipe = recipe_of(ROOT, target="demo")
    assert [line for line in recipe if line.startswith("pilotage run ")]
    assert [line for line in recipe if "pip install" in line] == []


def test_a_demo_that_prints_something_else_is_found_out(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "examples").mkdir(parents=True)
    (root / "Makefile").write_text("demo:\n\t@true\n\techo one\n", encoding="utf-8")
    reader = Reader(root, tmp_path / "reader")
    honest, lying = (steps(f"```console\n$ make demo\necho one\n{told}\n```") for told in ("one", "two"))
    reader.follow(honest[0])
    with pytest.raises(Surprise, match="make demo"):
        reader.follow(lying[0])
