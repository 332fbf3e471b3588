"""The DAG language: lines, commands, names, splices, and everything that is refused."""

from __future__ import annotations

import pytest

from pilotage.language.folder import MemoryFolder
from pilotage.language.formats.dagman.assembly import assemble
from pilotage.language.formats.dagman.node_commands import Dag, DagNode
from pilotage.language.losses import Losses
from pilotage.language.text.tree import Report


def read(text: str, **files: str) -> tuple[Dag, Report, Losses]:
    """Assemble a DAG; other files are given by their names with `_` for `.`."""
    report, losses = Report("main.dag", text.split("\n")), Losses()
    folder = MemoryFolder({name.replace("_", "."): content for name, content in files.items()})
    dag = assemble(text, report, losses, file="main.dag", folder=folder)
    return dag, report, losses


def accepted(text: str, **files: str) -> Dag:
    """Assemble a DAG that must be accepted."""
    dag, report, _ = read(text, **files)
    assert report.errors == []
    return dag


def codes(text: str, **files: str) -> list[str]:
    """The codes of the faults of a DAG."""
    return [problem.code for problem in read(text, **files)[1].errors]


def node(dag: Dag, name: str) -> DagNode:
    """The node with a name."""
    return next(node for node in dag.nodes if node.name == name)


def edges(dag: Dag) -> set[str]:
    """The edges as `parent>child`."""
    return {f"{dag.nodes[a].name}>{dag.nodes[b].name}" for a, b in dag.edges}


class TestLines:
    def test_keywords_are_read_in_any_case_and_with_either_dash(self) -> None:
        dag = accepted("job A a.sub\naBoRt_dag-ON A 3 Return 1\nPRE-SKIP A 4\n")
        assert node(dag, "A").abort is not None
        skip = node(dag, "A").pre_skip
        assert skip is not None
        assert skip.number == 4

    def test_a_backslash_continues_a_line_across_comments_and_blank_lines(self) -> None:
        dag = accepted("JOB A a.sub\nJOB B b.sub\nPARENT A \\\n# between\n\n  CHILD \\\n  B\n")
        assert edges(dag) == {"A>B"}

    def test_comments_begin_with_a_hash_or_two_slashes(self) -> None:
        assert len(accepted("# one\n // two\nJOB A a.sub\n").nodes) == 1

    def test_a_fault_behind_a_continuation_is_reported_at_its_physical_line(self) -> None:
        problem = read("JOB A a.sub\nPARENT A \\\n   CHILD \\\n      Missing\n")[1].errors[0]
        assert (problem.code, problem.line, problem.column) == ("unknown-node", 4, 7)

    def test_every_faulty_line_is_reported(self) -> None:
        assert codes("JBO A a.sub\nJOB B\nRETRY B x\n") == ["unknown-command", "missing-word", "bad-number"]

    def test_an_unknown_command_names_the_near_one(self) -> None:
        assert read("JBO A a.sub\n")[1].errors[0].hint == "did you mean 'JOB'?"

    def test_windows_line_ends_are_white_space(self) -> None:
        assert edges(accepted("JOB A a.sub\r\nJOB B b.sub\r\nPARENT A CHILD B\r\n")) == {"A>B"}

    def test_a_quote_without_its_end_is_refused(self) -> None:
        assert codes('JOB A "a.sub\n') == ["unterminated-quote"]


class TestNodes:
    def test_options_follow_the_submit_description_in_any_order(self) -> None:
        found = node(accepted('JOB A "my file.sub" DONE dir "some where" Noop\n'), "A")
        assert (found.done, found.noop, found.directory) == (True, True, "some where")

    def test_an_inline_description_ends_at_its_brace_and_options_follow_it(self) -> None:
        found = node(accepted("JOB A {\n executable = x\n # no\n arguments = 1\n} NOOP\n"), "A")
        assert found.noop
        assert [line.text for line in found.command.description.lines] == ["executable = x", "arguments = 1"]  # type: ignore[union-attr]  # inline by construction

    def test_an_inline_description_can_have_a_closing_word(self) -> None:
        dag = accepted("SUBMIT-DESCRIPTION d @=end\n}\n@end\nJOB A d\n")
        assert [line.text for line in dag.descriptions["d"].lines] == ["}"]

    @pytest.mark.parametrize("opening", ["{", "@=", "@=end"])
    def test_an_inline_description_without_its_end_is_refused(self, opening: str) -> None:
        assert codes(f"JOB A {opening}\nexecutable = x\n") == (
            ["bad-inline", "unknown-command"] if opening == "@=" else ["bad-inline"]
        )

    @pytest.mark.parametrize(
        "line, code",
        [
            ("JOB Parent a.sub", "reserved-name"),
            ("JOB all_nodes a.sub", "reserved-name"),
            ("JOB A+B a.sub", "illegal-name"),
            ("JOB A a.sub NOPE", "unexpected-word"),
            ("JOB A a.sub DIR", "missing-word"),
            ("JOB A x.dag.condor.sub", "nested-dag"),
            ("SUBDAG A a.dag", "missing-word"),
        ],
    )
    def test_a_bad_node_is_refused(self, line: str, code: str) -> None:
        assert codes(line)[0] == code

    def test_a_name_is_given_once(self) -> None:
        assert codes("JOB A a.sub\nSUBDAG EXTERNAL A a.dag\n") == ["duplicate-name"]

    def test_a_dag_without_nodes_is_refused(self) -> None:
        assert codes("# nothing\n") == ["no-nodes"]

    def test_a_rejected_dag_is_refused(self) -> None:
        assert codes("JOB A a.sub\nREJECT\n") == ["rejected"]

    @pytest.mark.parametrize("keyword", ["FINAL", "PROVISIONER"])
    def test_there_is_one_final_and_one_provisioner_node(self, keyword: str) -> None:
        assert codes(f"{keyword} A a.sub\n{keyword} B b.sub\n") == ["second-special-node"]

    def test_service_nodes_may_be_many(self) -> None:
        assert [n.kind for n in accepted("SERVICE A a.sub\nSERVICE B b.sub\n").nodes] == ["service", "service"]


class TestProperties:
    def test_commands_may_come_before_their_node(self) -> None:
        assert node(accepted("PRIORITY A 7\nJOB A a.sub\n"), "A").priority == 7

    def test_retry_has_an_exit_code_that_ends_it(self) -> None:
        retry = node(accepted("JOB A a.sub\nRETRY A 3 UNLESS-EXIT 42\n"), "A").retry
        assert retry is not None
        assert (retry.times, retry.unless_exit) == (3, 42)

    def test_a_script_keeps_its_arguments_and_its_deferral(self) -> None:
        dag = accepted("JOB A a.sub\nSCRIPT DEFER 4 30 DEBUG log ALL pre A check.sh  'x y' $JOB\n")
        script = node(dag, "A").scripts["pre"]
        assert (script.script.text, script.defer_status, script.defer_seconds) == ("check.sh  'x y' $JOB", 4, 30)

    def test_vars_values_lose_their_quotes_and_escapes(self) -> None:
        dag = accepted('JOB A a.sub\nVARS A one="a b" two = "say \\"\\\\hi\\"" +Three=\'x\'\n')
        values = {name: variable.value for name, variable in node(dag, "A").variables.items()}
        assert values == {"one": "a b", "two": 'say "\\hi"', "My.Three": "x"}

    def test_later_vars_replace_earlier_ones_in_their_place(self) -> None:
        dag = accepted('JOB A a.sub\nVARS A APPEND x="1"\nVARS A x="2"\n')
        assert (node(dag, "A").variables["x"].value, node(dag, "A").variables["x"].append) == ("2", True)

    @pytest.mark.parametrize("pair", ['"x"=1', "x", "x=", '="1"', 'queue_it="1"', 'x=="1"', '+="1"'])
    def test_a_bad_pair_of_vars_is_refused(self, pair: str) -> None:
        assert codes(f"JOB A a.sub\nVARS A {pair}\n") == ["bad-pair"]

    def test_all_nodes_leaves_out_special_nodes_and_splices(self) -> None:
        dag = accepted(
            "JOB A a.sub\nFINAL F f.sub\nSPLICE S s.dag\nRETRY ALL_NODES 2\nPRIORITY all-nodes 1\n",
            s_dag="JOB B b.sub\n",
        )
        assert [(n.name, n.priority) for n in dag.nodes] == [("A", 1), ("F", None), ("S+B", None)]

    @pytest.mark.parametrize("line", ["RETRY F 1", "PRIORITY F 1", "CATEGORY F c", "ABORT-DAG-ON F 1", "DONE F"])
    def test_a_final_node_cannot_have_everything(self, line: str) -> None:
        assert codes(f"JOB A a.sub\nFINAL F f.sub\n{line}\n") == ["special-node"]

    @pytest.mark.parametrize("line", ["PARENT A CHILD F", "PARENT F CHILD A"])
    def test_a_final_node_is_neither_parent_nor_child(self, line: str) -> None:
        assert codes(f"JOB A a.sub\nFINAL F f.sub\n{line}\n") == ["special-node"]

    def test_an_unknown_node_names_the_near_one(self) -> None:
        problem = read("JOB Reco a.sub\nRETRY Rceo 1\n")[1].errors[0]
        assert (problem.code, problem.hint) == ("unknown-node", "did you mean 'Reco'?")

    @pytest.mark.parametrize(
        "line, keyword",
        [
            ("CONFIG c", "CONFIG"),
            ("DOT d.dot UPDATE DONT-OVERWRITE INCLUDE h", "DOT"),
            ("JOBSTATE_LOG l", "JOBSTATE_LOG"),
            ("NODE-STATUS-FILE n 30 ALWAYS-UPDATE", "NODE_STATUS_FILE"),
            ("SET_JOB_ATTR a = 1", "SET_JOB_ATTR"),
            ("ENV GET HOME", "ENV"),
            ("SAVE_POINT_FILE A", "SAVE_POINT_FILE"),
            ("MAXJOBS c 0", "MAXJOBS"),
            ("WEAK PARENT A CHILD B", "WEAK PARENT"),
        ],
    )
    def test_what_has_no_meaning_here_is_listed(self, line: str, keyword: str) -> None:
        _, report, losses = read(f"JOB A a.sub\nJOB B b.sub\n{line}\n")
        assert report.errors == []
        assert [(loss.keyword, loss.line) for loss in losses] == [(keyword, 3)]

    @pytest.mark.parametrize(
        "line, code",
        [
            ("RETRY A -1", "bad-number"),
            ("RETRY A 1 UNLESS 2", "unexpected-word"),
            ("ABORT-DAG-ON A 1 RETURN 256", "bad-number"),
            ("PRE_SKIP A 256", "bad-number"),
            ("TOLERANCE A many", "bad-number"),
            ("SCRIPT A x.sh", "bad-option"),
            ("SCRIPT PRE A", "missing-word"),
            ("SCRIPT DEBUG f SOME PRE A x", "bad-option"),
            ("PARENT A B", "missing-word"),
            ("PARENT CHILD A", "missing-word"),
            ("PARENT A CHILD", "missing-word"),
            ("PARENT A CHILD A CHILD", "missing-word"),
            ("PARENT A CHILD CHILD", "missing-word"),
            ("WEAK A CHILD A", "missing-word"),
            ("CATEGORY A", "missing-word"),
            ("MAXJOBS c -1", "bad-number"),
            ("ENV USE x", "bad-option"),
            ("REJECT now", "unexpected-word"),
            ("DOT d.dot SOMETIMES", "unexpected-word"),
            ("SAVE_POINT_FILE ALL_NODES", "reserved-name"),
            ("PIN_IN A 0", "bad-number"),
        ],
    )
    def test_a_malformed_command_is_refused(self, line: str, code: str) -> None:
        assert codes(f"JOB A a.sub\n{line}\n") == [code]

    @pytest.mark.parametrize("line", ["TOLERANCE A 3", "TOLERANCE A 10% FAIL-FAST", "TOLERANCE A 10 % wait"])
    def test_tolerance_is_understood(self, line: str) -> None:
        assert node(accepted(f"JOB A a.sub\n{line}\n"), "A").tolerance is not None


class TestGraph:
    def test_every_parent_is_joined_to_every_child_once(self) -> None:
        text = "".join(f"JOB {n} x.sub\n" for n in "ABCD") + "PARENT A B A CHILD C D\n"
        assert edges(accepted(text)) == {"A>C", "A>D", "B>C", "B>D"}

    def test_a_cycle_is_refused_with_its_loop(self) -> None:
        text = "".join(f"JOB {n} x.sub\n" for n in "ABCD") + "PARENT A CHILD B\nPARENT B CHILD C\nPARENT C CHILD B\n"
        problem = read(text)[1].errors[0]
        assert problem.code == "cycle"
        assert "B → C → B" in problem.message or "C → B → C" in problem.message

    def test_a_node_that_waits_for_itself_is_a_cycle(self) -> None:
        assert codes("JOB A a.sub\nPARENT A CHILD A\n") == ["cycle"]


class TestOtherFiles:
    def test_an_included_file_is_read_as_if_it_stood_there(self) -> None:
        dag = accepted("JOB A a.sub\nINCLUDE b.dag\n", b_dag="JOB B b.sub\nPARENT A CHILD B\n")
        assert edges(dag) == {"A>B"}

    @pytest.mark.parametrize("line", ["INCLUDE b.dag", "SPLICE S b.dag"])
    def test_a_file_that_brings_in_itself_is_refused(self, line: str) -> None:
        assert "recursive-dag" in codes(f"JOB A a.sub\n{line}\n", b_dag=f"{line}\n")

    @pytest.mark.parametrize("line", ["INCLUDE gone.dag", "SPLICE S gone.dag"])
    def test_a_missing_file_is_refused(self, line: str) -> None:
        assert codes(f"JOB A a.sub\n{line}\n") == ["missing-dag-file"]

    @pytest.mark.parametrize("line", ["INCLUDE sub", "SPLICE S sub", "INCLUDE ./sub"])
    def test_a_folder_in_the_place_of_a_file_is_told_as_such(self, line: str) -> None:
        text = f"JOB A a.sub\n{line}\n"
        report = Report("main.dag", text.split("\n"))
        assemble(text, report, Losses(), file="main.dag", folder=MemoryFolder(["sub/b.dag"]))
        assert [(p.code, "cannot be read as a file" in p.message) for p in report.errors] == [
            ("missing-dag-file", True)
        ]

    def test_nodes_of_a_splice_have_its_name_before_theirs(self) -> None:
        dag = accepted("SPLICE S s.dag\n", s_dag="SPLICE T t.dag\n", t_dag="JOB A a.sub\n")
        assert [n.name for n in dag.nodes] == ["S+T+A"]

    def test_a_splice_is_joined_at_its_first_and_last_nodes(self) -> None:
        dag = accepted(
            "JOB A a.sub\nJOB Z z.sub\nSPLICE S s.dag\nPARENT A CHILD S\nPARENT S CHILD Z\n",
            s_dag="JOB B b.sub\nJOB C c.sub\nJOB D d.sub\nPARENT B CHILD C D\n",
        )
        assert edges(dag) == {"A>S+B", "S+B>S+C", "S+B>S+D", "S+C>Z", "S+D>Z"}

    def test_folders_of_splices_and_nodes_add_up(self) -> None:
        report, losses = Report("main.dag"), Losses()
        folder = MemoryFolder({"in/s.dag": "JOB A a.sub DIR deep\nJOB B b.sub DIR /abs\n"})
        dag = assemble("SPLICE S s.dag DIR in\n", report, losses, file="main.dag", folder=folder)
        assert [n.directory for n in dag.nodes] == ["in/deep", "/abs"]

    def test_categories_belong_to_their_splice_unless_they_begin_with_a_plus(self) -> None:
        dag = accepted(
            "SPLICE S s.dag\nMAXJOBS S+own 5\nMAXJOBS +all 2\n",
            s_dag="JOB A a.sub\nJOB B b.sub\nCATEGORY A own\nCATEGORY B +all\nMAXJOBS own 9\nMAXJOBS +all 9\n",
        )
        assert [n.category for n in dag.nodes] == ["S+own", "+all"]
        assert dag.limits == {"S+own": 5, "+all": 2}

    def test_pins_of_two_splices_are_connected_number_by_number(self) -> None:
        dag = accepted(
            "SPLICE S s.dag\nSPLICE T t.dag\nCONNECT S T\n",
            s_dag="JOB A a.sub\nJOB B b.sub\nPIN_OUT A 1\nPIN_OUT B 2\n",
            t_dag="JOB C c.sub\nJOB D d.sub\nPIN_IN C 1\nPIN_IN D 1\nPIN_IN D 2\n",
        )
        assert edges(dag) == {"S+A>T+C", "S+A>T+D", "S+B>T+D"}

    @pytest.mark.parametrize(
        "left, right, code",
        [
            ("", "PIN_IN B 1", "pin-mismatch"),
            ("PIN_OUT A 1", "", "pin-mismatch"),
            ("PIN_OUT A 1\nPIN_OUT A 2", "PIN_IN B 1", "pin-mismatch"),
            ("PIN_OUT A 2", "PIN_IN B 2", "pin-mismatch"),
            ("PIN_OUT A 1", "JOB C c.sub\nPIN_IN B 1", "orphan-node"),
        ],
    )
    def test_pins_that_do_not_fit_are_refused(self, left: str, right: str, code: str) -> None:
        files = {"s_dag": f"JOB A a.sub\n{left}\n", "t_dag": f"JOB B b.sub\n{right}\n"}
        assert codes("SPLICE S s.dag\nSPLICE T t.dag\nCONNECT S T\n", **files) == [code]

    def test_a_splice_without_nodes_cannot_be_connected(self) -> None:
        assert codes("JOB A a.sub\nSPLICE S s.dag\nPARENT A CHILD S\n", s_dag="# empty\n") == ["empty-splice"]

    @pytest.mark.parametrize("keyword", ["FINAL", "PROVISIONER", "SERVICE"])
    def test_a_splice_has_no_special_nodes(self, keyword: str) -> None:
        files = {"s_dag": f"JOB A a.sub\n{keyword} F f.sub\n"}
        assert codes("SPLICE S s.dag\n", **files) == ["special-node-in-splice"]

    def test_splices_that_multiply_without_end_are_refused(self) -> None:
        files = {f"d{i}.dag": f"SPLICE A d{i + 1}.dag\nSPLICE B d{i + 1}.dag\n" for i in range(60)}
        report = Report("main.dag")
        folder = MemoryFolder({**files, "d60.dag": "JOB A a.sub\n"})
        assemble("SPLICE S d0.dag\n", report, Losses(), file="main.dag", folder=folder)
        assert {problem.code for problem in report.errors} == {"too-deep"}
