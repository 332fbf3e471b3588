"""The submit language: macros, conditions, queue statements, quoting."""

from __future__ import annotations

import pytest

from pilotage.language.folder import MemoryFolder
from pilotage.language.formats.dagman.macros import Notes, expand
from pilotage.language.formats.dagman.node_commands import Variable
from pilotage.language.formats.dagman.submit import SubmitJob, SubmitReader, holds, parse_statements, physical_lines
from pilotage.language.formats.dagman.values import (
    InvalidValue,
    join_arguments,
    size_bytes,
    split_arguments,
    split_environment,
    split_list,
    split_remaps,
)
from pilotage.language.losses import Losses
from pilotage.language.text.tree import NOWHERE, Report


def queued(text: str, *, prepended: str = "", appended: str = "", **files: str) -> tuple[list[SubmitJob], Report]:
    """Run a description; `prepended` or `appended` is the value that VARS gives to `v`."""
    folder = MemoryFolder({name.replace("_", "."): content for name, content in files.items()})
    report = Report("a.sub")
    reader = SubmitReader(folder, report, Losses())
    variables = {}
    if prepended or appended:
        variables["v"] = Variable(value=prepended or appended, append=bool(appended), file="d", mark=NOWHERE)
    jobs = reader.jobs(
        parse_statements(physical_lines(text), report, file="a.sub"),
        file="a.sub",
        directory="",
        given={"job": "A"},
        variables=variables,
        notes=Notes(),
    )
    return jobs, report


def texts(text: str, name: str = "arguments", **files: str) -> list[str]:
    """The value of one command in every queued job."""
    jobs, report = queued(text, **files)
    assert report.errors == []
    return [job.text(name) for job in jobs]


def codes(text: str) -> list[str]:
    """The codes of the faults of a description."""
    return [problem.code for problem in queued(text)[1].errors]


class TestStatements:
    def test_names_have_one_spelling(self) -> None:
        jobs, _ = queued("Executable = x\n+Attr = 1\nMY.Other = 2\nqueue\n")
        assert {"executable", "my.attr", "my.other"} <= set(jobs[0].table)

    def test_lines_are_continued_without_a_gap(self) -> None:
        assert texts("arguments = a \\\n   # no \\\n   b\\\nc\nqueue\n") == ["a bc"]

    def test_a_comment_ends_a_continuation_unless_it_continues_itself(self) -> None:
        assert texts("arguments = a \\\n# no\ninput = b\nqueue\n") == ["a"]

    def test_a_block_keeps_its_lines_but_white_space_around_them_and_comments(self) -> None:
        assert texts("arguments @=end\none\n  two # x\n\n# c\n@end\nqueue\n") == ["one\ntwo # x"]

    def test_a_description_without_a_queue_statement_queues_one_job(self) -> None:
        assert texts("arguments = 1\n") == ["1"]

    def test_each_queue_statement_takes_the_values_of_its_place(self) -> None:
        assert texts("arguments = 1\nqueue\narguments = 2\nqueue 2\n") == ["1", "2", "2"]

    @pytest.mark.parametrize("line", ["nonsense", "= 1", "arguments @=end", "queue x in (", "1a = 2"])
    def test_a_line_that_is_no_statement_is_refused(self, line: str) -> None:
        assert codes(line + "\n") == ["bad-submit-line"]

    def test_an_included_file_sets_values(self) -> None:
        assert texts("include : other.sub\nqueue\n", other_sub="arguments = 7\n") == ["7"]

    def test_a_missing_include_is_refused_unless_it_may_be_absent(self) -> None:
        assert codes("include : gone\n") == ["missing-submit-file"]
        assert codes("include ifexist : gone\n") == []

    def test_the_output_of_a_command_is_never_included(self) -> None:
        assert codes("include command : ls\n") == ["include-command"]

    def test_a_description_that_includes_itself_is_refused(self) -> None:
        _, report = queued("include : a.sub\n", a_sub="include : a.sub\n")
        assert [problem.code for problem in report.errors] == ["too-deep"]

    def test_error_and_warning_statements_speak(self) -> None:
        _, report = queued("error : no\nwarning : hm\n")
        assert [p.code for p in report.errors + report.warnings] == ["submit-error", "submit-warning"]


class TestConditions:
    @pytest.mark.parametrize(
        "condition, chosen",
        [
            ("true", "1"),
            ("0", "3"),
            ("defined name", "1"),
            ("! defined name", "3"),
            ("defined nothing", "3"),
            ("version >= 8.1.6", "1"),
            ("version < 8.0", "3"),
            ("$(name)", "1"),
        ],
    )
    def test_one_branch_is_chosen(self, condition: str, chosen: str) -> None:
        text = (
            f"name = yes\nif {condition}\narguments = 1\nelif false\narguments = 2\nelse\narguments = 3\nendif\nqueue\n"
        )
        assert texts(text) == [chosen]

    def test_branches_nest(self) -> None:
        text = "if false\nif true\narguments = 1\nelse\narguments = 2\nendif\nelif true\narguments = 3\nendif\nqueue\n"
        assert texts(text) == ["3"]

    @pytest.mark.parametrize("text", ["if true\n", "else\n", "endif\n", "if a == b\nendif\n"])
    def test_a_bad_condition_is_refused(self, text: str) -> None:
        assert codes(text + "arguments = 1\n") == ["bad-condition"]

    @pytest.mark.parametrize(
        "condition", ["!!true", "!" * 100_000 + "true", "a == b", "", "version > 8", "defined a b"]
    )
    def test_a_condition_that_htcondor_does_not_understand_is_none_here(self, condition: str) -> None:
        assert holds(condition, {"a": "1"}) is None


class TestMacros:
    @pytest.mark.parametrize(
        "text, expected",
        [
            ("$(a)", "1"),
            ("$(A)-$(b)", "1-x1y"),
            ("$(missing:7)", "7"),
            ("$(empty:7)", "7"),
            ("$(missing:$(a))", "1"),
            ("$(missing)", ""),
            ("$(DOLLAR)(a)", "$(a)"),
            ("$ 5 $x $(not a name)", "$ 5 $x $(not a name)"),
            ("$(a", "$(a"),
            ("$$(Memory)", "$$(Memory)"),
            ("$$([a + b(c)])", "$$([a + b(c)])"),
            ("$(RETRY)", "$(RETRY)"),
            ("$Fn(path)", "name.tar"),
            ("$Fx(path)", ".gz"),
            ("$Fpnx(path)", "some/dir/name.tar.gz"),
            ("$Fdnx(path)", "dir/name.tar.gz"),
            ("$Fqn(path)", '"name.tar"'),
            ("$BASENAME(path)", "name.tar.gz"),
            ("$BASENAME(path,.gz)", "name.tar"),
            ("$DIRNAME(path)", "some/dir/"),
            ("$Fbp(path)", "some/dir"),
            ("$Fqan(path)", "'name.tar'"),
            ("$INT(a,%03d)", "001"),
            ("$(a )", "$(a )"),
            ("$INT(a)", "1"),
            ("$SUBSTR(path,5,3)", "dir"),
            ("$SUBSTR(path,-2)", "gz"),
            ("$CHOICE(a,x,y,z)", "y"),
            ("$CHOICE(a,list)", "q r"),
            ("$CHOICE(true,x,y)", "y"),
            ("$CHOICE(IsLinux,x,y)", "y"),
            ("$CHOICE(False,x,y)", "x"),
            ("$CHOICE(iswindows,x,y)", "x"),
            ("$CHOICE(0,$(a),y)", "1"),
            ("$CHOICE(1,x,y)", "y"),
            ("$RANDOM_CHOICE(5,6)", "5"),
            ("$RANDOM_INTEGER(3,9)", "3"),
            ("$ENV(HOME)", "$ENV(HOME)"),
            ("$ENV(HOME:/there)", "/there"),
        ],
    )
    def test_a_macro_is_replaced(self, text: str, expected: str) -> None:
        table = {"a": "1", "b": "x$(a)y", "empty": "", "path": "some/dir/name.tar.gz", "list": "p, q r"}
        assert expand(text, table, Notes()) == expected

    @pytest.mark.parametrize("text", ["$CHOICE(2,x,y)", "$CHOICE(1000000,x,y)", "$CHOICE(1,one)"])
    def test_a_choice_that_is_not_there_is_a_fault(self, text: str) -> None:
        notes = Notes()
        assert expand(text, {"one": "x"}, notes) == ""
        assert notes.losses == {}
        assert notes.faults == [f"{text} has no such choice"]

    @pytest.mark.parametrize(
        "text, keyword",
        [
            ("$(Cluster)", "$(Cluster)"),
            ("$(dag_status)", "$(DAG_STATUS)"),
            ("$$(x)", "$$(…)"),
            ("$ENV(x)", "$ENV(…)"),
            ("$RANDOM_CHOICE(1,2)", "$RANDOM_…(…)"),
            ("$EVAL(x)", "$FUNCTION(…)"),
            ("$CHOICE(some,1,2)", "$CHOICE(…)"),
            ("$Ff(x)", "$F…(…)"),
        ],
    )
    def test_what_only_htcondor_knows_is_noted(self, text: str, keyword: str) -> None:
        notes = Notes()
        expand(text, {}, notes)
        assert list(notes.losses) == [keyword]

    def test_macros_that_speak_of_each_other_are_a_fault(self) -> None:
        notes = Notes()
        expand("$(a)", {"a": "$(b)", "b": "$(a)"}, notes)
        assert len(notes.faults) == 1

    def test_macros_that_explode_are_a_fault(self) -> None:
        table = {f"m{i}": f"$(m{i + 1})$(m{i + 1})" for i in range(23)} | {"m23": "x" * 100}
        notes = Notes()
        assert len(expand("$(m0)", table, notes)) < 2_000_000
        assert notes.faults != []

    def test_a_value_that_speaks_of_itself_means_the_one_before(self) -> None:
        assert texts("arguments = 1\narguments = $(ARGUMENTS) 2\nqueue\n") == ["1 2"]

    def test_values_are_looked_up_when_they_are_used(self) -> None:
        assert texts("arguments = $(late)\nlate = 9\nqueue\n") == ["9"]

    def test_vars_stand_before_the_description_and_appended_ones_after_it(self) -> None:
        assert [job.text("v") for job in queued("queue\n", prepended="p")[0]] == ["p"]
        assert [job.text("v") for job in queued("v = own\nqueue\n", prepended="p")[0]] == ["own"]
        assert [job.text("v") for job in queued("v = own\nqueue\n", appended="p")[0]] == ["p"]


class TestQueue:
    @pytest.mark.parametrize(
        "statement, expected",
        [
            ("queue 3", ["0//", "1//", "2//"]),
            ("queue x in (a, b c)", ["0/a/", "1/b/", "2/c/"]),
            ("queue x in a, b", ["0/a/", "1/b/"]),
            ("queue 2 x in (a b)", ["0/a/", "1/a/", "2/b/", "3/b/"]),
            ("queue x in (\n a\n # no\n b, c\n)", ["0/a/", "1/b/", "2/c/"]),
            ("queue x,y from (\n a, 1 2\n b 3\n c\n)", ["0/a/1 2", "1/b/3", "2/c/"]),
            ("queue x from (\n a b\n)", ["0/a b/"]),
            ("queue x y from list.txt", ["0/p/1", "1/q/2"]),
            ("queue x in [1:] (a, b, c)", ["0/b/", "1/c/"]),
            ("queue x in [::2] (a, b, c)", ["0/a/", "1/c/"]),
            ("queue x in [-1] (a, b, c)", ["0/c/"]),
            ("queue x matching *.dat", ["0/one.dat/", "1/two.dat/"]),
            ("queue x matching files t*.dat o*.dat", ["0/one.dat/", "1/two.dat/"]),
            ("queue $(n)", ["0//", "1//"]),
            ("queue x in ($(l))", ["0/u/", "1/v/"]),
            ("Queue 0", []),
        ],
    )
    def test_jobs_are_queued_with_their_values(self, statement: str, expected: list[str]) -> None:
        text = f"x =\ny =\nn = 2\nl = u v\narguments = $(Process)/$(x)/$(y)\n{statement}\n"
        files = {"list_txt": "# head\np, 1\n\nq 2\n", "one_dat": "", "two_dat": ""}
        assert texts(text, **files) == expected

    def test_without_a_variable_the_item_has_a_name(self) -> None:
        assert texts("arguments = $(Item)$(ItemIndex)\nqueue in (a, b)\n") == ["a0", "b1"]

    @pytest.mark.parametrize(
        "statement, code",
        [
            ("queue many", "bad-queue"),
            ("queue x! in (a)", "bad-queue"),
            ("queue x in [::0] (a)", "bad-queue"),
            ("queue x in ()", "no-items"),
            ("queue x matching *.none", "no-items"),
            ("queue x matching dirs *", "queue-folders"),
            ("queue x from gone.txt", "missing-list-file"),
            ("queue x from ls |", "queue-command"),
            ("queue 999999999", "queue-too-large"),
        ],
    )
    def test_a_bad_queue_statement_is_refused(self, statement: str, code: str) -> None:
        assert codes(statement + "\n") == [code]


class TestFields:
    @pytest.mark.parametrize(
        "text, expected",
        [
            ("", ()),
            ("a  b\tc", ("a", "b", "c")),
            ('say \\"hi\\"', ("say", '"hi"')),
            ("it's", ("it's",)),
            ('""', ()),
            ('"3 simple arguments"', ("3", "simple", "arguments")),
            ("\"one 'two with spaces' 3\"", ("one", "two with spaces", "3")),
            ("\"one '''two''' ''\"", ("one", "'two'", "")),
            ('"one ""two"""', ("one", '"two"')),
            ("\"x'y z'w\"", ("xy zw",)),
        ],
    )
    def test_arguments_are_split(self, text: str, expected: tuple[str, ...]) -> None:
        assert split_arguments(text) == expected

    @pytest.mark.parametrize("text", ['a "b" c', '"a', '"a" b', '"a \'b"'])
    def test_bad_quoting_of_arguments_is_named(self, text: str) -> None:
        assert isinstance(split_arguments(text), InvalidValue)

    def test_joined_arguments_are_split_into_the_same(self) -> None:
        arguments = ("", "a", "b c", "it's", 'say "hi"', "\n\t", "''", "$x")
        assert split_arguments(f'"{join_arguments(arguments)}"') == arguments

    @pytest.mark.parametrize(
        "text, expected",
        [
            ("A=1;B=x y", {"A": "1", "B": "x y"}),
            ("\"A=1 B='x y' C='it''s' D=\"\"q\"\"\"", {"A": "1", "B": "x y", "C": "it's", "D": '"q"'}),
            ("", {}),
        ],
    )
    def test_environment_is_split(self, text: str, expected: dict[str, str]) -> None:
        assert split_environment(text) == expected

    def test_an_environment_without_an_equals_sign_is_named(self) -> None:
        assert isinstance(split_environment("A"), InvalidValue)

    def test_lists_and_remaps_are_split(self) -> None:
        assert split_list(' "a, b c ,,d" ') == ("a", "b c", "d")
        assert split_remaps('"a = x/a ; b\\=c=y"') == {"a": "x/a", "b=c": "y"}
        assert isinstance(split_remaps("a"), InvalidValue)

    @pytest.mark.parametrize(
        "text, expected",
        [("2", 2048), ("2 MB", 2 * 1024**2), ("1.5G", 3 * 1024**3 // 2), ("7B", 7), ("ifThenElse(a,1,2)", None)],
    )
    def test_sizes_have_units(self, text: str, expected: int | None) -> None:
        assert size_bytes(text, unit=1024) == expected


@pytest.mark.parametrize(
    "text", ["include : sub\nqueue\n", "include ifexist : sub\nqueue\n", "queue x from sub\n", "queue x from ./sub\n"]
)
def test_a_folder_in_the_place_of_a_file_is_told_as_such(text: str) -> None:
    report = Report("a.sub")
    reader = SubmitReader(MemoryFolder(["sub/file"]), report, Losses())
    statements = parse_statements(physical_lines(text), report, file="a.sub")
    reader.jobs(statements, file="a.sub", directory="", given={}, variables={}, notes=Notes())
    assert ["cannot be read as a file" in problem.message for problem in report.errors] == [True]
