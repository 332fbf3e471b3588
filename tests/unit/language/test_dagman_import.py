"""DAG files and submit descriptions as definitions: what each command becomes, and what is listed as lost."""

from __future__ import annotations

import pytest

from pilotage.language.expansion.expand import expand
from pilotage.language.expansion.lists import RecordingLists
from pilotage.language.folder import MemoryFolder
from pilotage.language.formats.dagman import Losses, read_dagman
from pilotage.language.parsing.rules import check_rules
from pilotage.language.text.tree import NOWHERE, Report
from pilotage.model.jobs.definition import (
    AbortOn,
    Container,
    Definition,
    InputFile,
    Package,
    Resources,
    Retry,
    RetryRule,
    Script,
)

SUB = "executable = ./prog\nqueue\n"


def read(dag: str, **files: str) -> tuple[Definition | None, Report, Losses]:
    """Read a DAG; other files are given by their names with `__` for `/` and `_` for `.`."""
    named = {name.replace("__", "/").replace("_", "."): text for name, text in files.items()}
    return read_dagman(dag.encode(), file="my.dag", folder=MemoryFolder(named))


def accepted(dag: str, **files: str) -> Definition:
    """Read a DAG that must be accepted, by our own rules and the expander too."""
    definition, report, _ = read(dag, **files)
    assert report.errors == []
    assert definition is not None
    check_rules(definition, report, lambda _: NOWHERE)
    named = {name.replace("__", "/").replace("_", "."): text for name, text in files.items()}
    expand(definition, RecordingLists(MemoryFolder(named)), report)
    assert report.errors == []
    return definition


def packages(definition: Definition) -> list[Package]:
    """All packages in their order."""
    return [package for stage in definition.stages for line in stage.lines for package in line.packages]


def only(dag: str, **files: str) -> Package:
    """The one package of a DAG."""
    found = packages(accepted(dag, **files))
    assert len(found) == 1
    return found[0]


def described(description: str, **files: str) -> Package:
    """The package of a node with an inline description."""
    return only(f"JOB A {{\nexecutable = ./prog\n{description}\n}}\n", **files)


def lost(dag: str, **files: str) -> list[tuple[str, int]]:
    """The keywords of the losses with their lines."""
    definition, report, losses = read(dag, **files)
    assert report.errors == []
    assert definition is not None
    return [(loss.keyword, loss.line) for loss in losses]


class TestStructure:
    def test_a_node_is_a_line_of_one_package_and_depth_is_the_stage(self) -> None:
        text = "".join(f"JOB {n} a.sub\n" for n in "DABC") + "PARENT A CHILD B C\nPARENT B C CHILD D\n"
        definition = accepted(text, a_sub=SUB)
        names = [[line.packages[0].name for line in stage.lines] for stage in definition.stages]
        assert names == [["A"], ["B", "C"], ["D"]]

    def test_the_job_is_called_after_the_file(self) -> None:
        assert accepted("JOB A a.sub\n", a_sub=SUB).job == "my"

    def test_nodes_of_one_submit_file_are_one_activity(self) -> None:
        assert only("JOB A reco.sub\n", reco_sub=SUB).activity == "reco"

    def test_edges_without_files_become_after(self) -> None:
        definition = accepted("JOB A a.sub\nJOB B a.sub\nPARENT A CHILD B\n", a_sub=SUB)
        assert packages(definition)[1].after == ("A",)

    def test_an_edge_that_a_file_implies_is_not_written(self) -> None:
        maker = "executable = ./m\ntransfer_output_files = x.dat\n"
        taker = "executable = ./t\ntransfer_input_files = x.dat\n"
        definition = accepted("JOB A m.sub\nJOB B t.sub\nPARENT A CHILD B\n", m_sub=maker, t_sub=taker)
        assert [package.after for package in packages(definition)] == [(), ()]

    def test_names_that_tell_their_place_are_put_there(self) -> None:
        text = (
            "JOB Stage1Line1Package1A a.sub\nJOB Stage1Line2Package1B a.sub\nJOB Stage1Line2Package2C a.sub\n"
            "JOB Stage2Line1Package1D a.sub\nPARENT Stage1Line2Package1B CHILD Stage1Line2Package2C\n"
        )
        shape = [[len(line.packages) for line in stage.lines] for stage in accepted(text, a_sub=SUB).stages]
        assert shape == [[1, 2], [1]]

    def test_a_line_is_not_believed_where_the_dag_does_not_order_it(self) -> None:
        text = "JOB Stage1Line1Package1 a.sub\nJOB Stage1Line1Package2 a.sub\n"
        shape = [[len(line.packages) for line in stage.lines] for stage in accepted(text, a_sub=SUB).stages]
        assert shape == [[1, 1]]

    def test_each_queued_job_is_a_line(self) -> None:
        sub = "executable = ./prog\narguments = $(x)\nqueue x in (p, q)\n"
        definition = accepted("JOB A a.sub\nJOB B b.sub\nPARENT A CHILD B\n", a_sub=sub, b_sub=SUB)
        found = packages(definition)
        assert [(p.name, p.binaries[0].run) for p in found[:2]] == [("A.0", ("./prog", "p")), ("A.1", ("./prog", "q"))]
        assert found[2].after == ("A.0", "A.1")

    def test_packages_never_share_a_name(self) -> None:
        sub = "executable = ./prog\nqueue 2\n"
        names = [p.name for p in packages(accepted("JOB A.1 b.sub\nJOB A a.sub\n", a_sub=sub, b_sub=SUB))]
        assert names == ["A.1", "A.0", "A.1~2"]

    def test_a_submit_description_of_the_dag_serves_its_splices(self) -> None:
        dag = "SUBMIT-DESCRIPTION d {\nexecutable = ./prog\n}\nSPLICE S s.dag\n"
        assert only(dag, s_dag="JOB A d\n").binaries[0].run == ("./prog",)


class TestNodeProperties:
    @pytest.mark.parametrize(
        "keyword, role", [("FINAL", "final"), ("PROVISIONER", "provisioner"), ("SERVICE", "service")]
    )
    def test_special_nodes_have_their_role(self, keyword: str, role: str) -> None:
        definition = accepted(f"{keyword} F a.sub\nJOB A a.sub\n", a_sub=SUB)
        assert {p.name: p.role for p in packages(definition)} == {"F": role, "A": "work"}

    def test_the_final_node_stands_last(self) -> None:
        definition = accepted("FINAL F a.sub\nJOB A a.sub\nJOB B a.sub\nPARENT A CHILD B\n", a_sub=SUB)
        assert packages(definition)[-1].name == "F"

    def test_retry_counts_the_first_attempt_and_gives_up_on_its_exit_code(self) -> None:
        package = only("JOB A a.sub\nRETRY A 2 UNLESS-EXIT 9\n", a_sub=SUB)
        assert package.retry == Retry(attempts_max=3, rules=(RetryRule(exit_code=9, action="give-up"),))

    def test_numbers_of_a_node_are_kept(self) -> None:
        dag = (
            "JOB A a.sub DONE\nPRIORITY A -3\nCATEGORY A c\nMAXJOBS c 4\nABORT-DAG-ON A 5 RETURN 1\n"
            "SCRIPT DEFER 7 60 PRE A pre.sh $JOB x\nSCRIPT POST A ./post.sh\nSCRIPT HOLD A bin/h\nPRE_SKIP A 8\n"
        )
        definition = accepted(dag, a_sub=SUB)
        package = packages(definition)[0]
        assert definition.limits == {"c": 4}
        assert (package.done, package.priority, package.category) == (True, -3, "c")
        assert package.abort_on == AbortOn(exit_code=5, result=1)
        assert package.scripts.pre == Script(run=("./pre.sh", "A", "x"), defer_exit_code=7, defer_seconds=60)
        assert package.scripts.post == Script(run=("./post.sh",))
        assert package.scripts.hold == Script(run=("bin/h",))
        assert package.scripts.skip_exit_code == 8

    def test_what_a_script_is_told_of_its_node_is_filled_in_now_or_when_it_starts(self) -> None:
        dag = "JOB A a.sub\nRETRY A 2\nSCRIPT POST A p $JOB $RETURN $RETRY $MAX_RETRIES\nSCRIPT PRE A p $RETRY\n"
        scripts = only(dag, a_sub=SUB).scripts
        assert scripts.post == Script(run=("./p", "A", "$RETURN", "$RETRY", "2"))
        assert lost(dag, a_sub=SUB) == []
        _, report, _ = read(dag, a_sub=SUB)
        assert report.warnings == []

    def test_what_only_a_running_dagman_could_tell_a_script_is_warned_of(self) -> None:
        _, report, _ = read("JOB A a.sub\nSCRIPT PRE A p $RETURN x $JOBID\n", a_sub=SUB)
        (warning,) = report.warnings
        assert (warning.code, warning.line) == ("script-macro", 2)
        assert "$RETURN, $JOBID" in warning.message

    def test_a_noop_node_needs_no_submit_file(self) -> None:
        package = only("JOB A nothing NOOP\n")
        assert (package.noop, package.binaries) == (True, ())

    def test_a_sub_dag_is_a_job_of_its_own(self) -> None:
        assert only("SUBDAG EXTERNAL A b.dag DIR in\n", in__b_dag="JOB B b.sub\n").subjob == "in/b.dag"

    def test_a_sub_dag_that_a_node_before_it_can_make_is_only_warned_of(self) -> None:
        definition, report, _ = read("JOB A a.sub\nSUBDAG EXTERNAL B b.dag\nPARENT A CHILD B\n", a_sub=SUB)
        assert definition is not None
        assert [problem.code for problem in report.warnings] == ["late-subdag"]

    def test_vars_fill_the_description(self) -> None:
        sub = "executable = ./prog\narguments = \"'$(who)' $(JOB)\"\nqueue\n"
        package = only('JOB A a.sub\nVARS A who="Eddy Merckx {x}"\n', a_sub=sub)
        assert package.binaries[0].run == ("./prog", "Eddy Merckx {{x}}", "A")


class TestDescription:
    def test_resources_are_taken(self) -> None:
        package = described(
            "request_cpus = 4\nrequest_memory = 2GB\nrequest_disk = 1024\nrequest_gpus = 1\nallowed_job_duration = 60\n"
            "machine_count = 2"
        )
        assert package.resources == Resources(
            cores=4, memory_bytes=2 * 1024**3, scratch_bytes=1024**2, gpus=1, wall_time_seconds=60, nodes=2
        )

    def test_a_container_is_taken(self) -> None:
        assert described("container_image = a.sif").container == Container(image="a.sif")
        assert described("docker_image = b:1").container == Container(image="b:1", engine="docker")

    def test_environment_is_taken(self) -> None:
        assert described("environment = \"A=1 B='x y'\"").environment.exported == {"A": "1", "B": "x y"}

    def test_retries_and_priority_of_the_description_count_where_the_dag_says_nothing(self) -> None:
        package = described("max_retries = 2\npriority = 5")
        assert (package.retry.attempts_max, package.priority) == (3, 5)

    @pytest.mark.parametrize(
        "executable, expected",
        [("prog", "./prog"), ("./prog", "./prog"), ("bin/prog", "bin/prog"), ("/bin/ls", "/bin/ls")],
    )
    def test_a_program_is_never_looked_for_on_the_search_path(self, executable: str, expected: str) -> None:
        assert only(f"JOB A {{\nexecutable = {executable}\n}}\n").binaries[0].run == (expected,)

    def test_paths_are_seen_from_the_folder_of_the_node(self) -> None:
        sub = "executable = p\ninitialdir = run\ntransfer_input_files = x\noutput = o\nqueue\n"
        binary = only("JOB A a.sub DIR d\n", d__a_sub=sub, d__run__x="").binaries[0]
        assert binary.run == ("d/p",)
        assert [file.name for file in binary.inputs] == ["d/run/x"]
        assert binary.stdout == "d/run/o"

    def test_transfer_lists_become_files(self) -> None:
        package = described("transfer_input_files = a.dat, b.dat\ntransfer_output_files = c.dat", a_dat="", b_dat="")
        assert [file.name for file in package.binaries[0].inputs] == ["a.dat", "b.dat"]
        assert [file.name for file in package.binaries[0].outputs] == ["c.dat"]

    def test_standard_streams_become_files(self) -> None:
        binary = described("input = a.dat\noutput = b\nerror = c", a_dat="").binaries[0]
        assert (binary.stdin, binary.stdout, binary.stderr) == ("a.dat", "b", "c")

    def test_an_input_that_nothing_finds_is_left_to_the_program(self) -> None:
        definition, report, _ = read("JOB A {\nexecutable = ./p\ntransfer_input_files = gone\n}\n")
        assert definition is not None
        assert packages(definition)[0].binaries[0].inputs == (InputFile(name="gone", acquisition="self"),)
        assert [problem.code for problem in report.warnings] == ["input-not-found"]

    def test_inputs_from_elsewhere_have_a_locator(self) -> None:
        inputs = described("transfer_input_files = /data/x.dat, https://host/y.dat, ../z.dat").binaries[0].inputs
        assert inputs == (
            InputFile(name="x.dat", locator="/data/x.dat"),
            InputFile(name="y.dat", locator="https://host/y.dat"),
            InputFile(name="z.dat", locator="../z.dat", acquisition="self"),
        )

    def test_a_program_that_another_node_makes_is_an_input(self) -> None:
        dag = "JOB A {\nexecutable = ./cc\ntransfer_output_files = prog\n}\nJOB B {\nexecutable = prog\n}\n"
        assert [file.name for file in packages(accepted(dag))[1].binaries[0].inputs] == ["prog"]


class TestFilesThatContradictTheGraph:
    def test_a_file_has_one_maker(self) -> None:
        sub = "executable = ./p\ntransfer_output_files = x\nqueue\n"
        dag = "JOB A a.sub\nJOB B a.sub\n"
        assert [len(p.binaries[0].outputs) for p in packages(accepted(dag, a_sub=sub))] == [1, 0]
        assert lost(dag, a_sub=sub) == [("transfer_output_files", 2)]

    def test_a_stream_that_several_nodes_write_stays_with_each(self) -> None:
        sub = "executable = ./p\noutput = x\nerror = x\nqueue\n"
        dag = "JOB A a.sub\nJOB B a.sub\n"
        assert [p.binaries[0].stdout for p in packages(accepted(dag, a_sub=sub))] == ["", ""]
        assert lost(dag, a_sub=sub) == [("output", 2), ("error", 3)]

    def test_a_file_that_is_changed_in_place_is_an_input(self) -> None:
        binary = described("transfer_input_files = x\ntransfer_output_files = x", x="").binaries[0]
        assert (len(binary.inputs), len(binary.outputs)) == (1, 0)

    def test_a_file_that_is_needed_before_it_is_made_counts_as_being_there(self) -> None:
        dag = (
            "JOB A {\nexecutable = ./p\ntransfer_input_files = x\n}\n"
            "JOB B {\nexecutable = ./p\ntransfer_output_files = x\n}\nPARENT A CHILD B\n"
        )
        found = packages(accepted(dag, x=""))
        assert (found[1].after, found[1].binaries[0].outputs) == (("A",), ())


class TestRefusals:
    @pytest.mark.parametrize(
        "dag, code",
        [
            ("JOB A gone.sub\n", "missing-submit-file"),
            ("JOB A {\narguments = 1\n}\n", "missing-executable"),
            ('JOB A {\nexecutable = p\narguments = a "b"\n}\n', "bad-arguments"),
            ("JOB A {\nexecutable = p\nenvironment = A\n}\n", "bad-environment"),
            ("JOB A {\nexecutable = p\ntransfer_output_files = a\ntransfer_output_remaps = x\n}\n", "bad-remaps"),
            ("JOB A {\nexecutable = p\narguments = $(x)\nx = $(y)\ny = $(x)\n}\n", "bad-macro"),
            ("JOB A {\nexecutable = p\nqueue 0\n}\n", "no-items"),
            ("SUBDAG EXTERNAL A gone.dag\n", "missing-subdag-file"),
        ],
    )
    def test_a_dag_that_htcondor_could_not_submit_is_refused(self, dag: str, code: str) -> None:
        definition, report, _ = read(dag)
        assert definition is None
        assert [problem.code for problem in report.errors] == [code]

    def test_text_that_is_not_utf8_is_refused_with_its_place(self) -> None:
        _, report, _ = read_dagman(b"JOB A a.sub\nJOB \xff", file="my.dag", folder=MemoryFolder())
        assert [(p.code, p.line, p.column) for p in report.errors] == [("not-utf8", 2, 5)]

    def test_a_nul_byte_is_refused_with_its_place(self) -> None:
        _, report, _ = read_dagman(b"JOB A\0 a.sub\n", file="my.dag", folder=MemoryFolder())
        assert [(p.code, p.line, p.column) for p in report.errors] == [("nul-byte", 1, 6)]

    def test_the_line_of_a_fault_is_shown(self) -> None:
        _, report, _ = read("JOB A gone.sub\n")
        assert report.errors[0].source == "JOB A gone.sub"


class TestLosses:
    @pytest.mark.parametrize(
        "line, keyword",
        [
            ("log = x", "log"),
            ("universe = scheduler", "universe"),
            ("requirements = OpSys", "requirements"),
            ("getenv = true", "getenv"),
            ("notification = always", "notification"),
            ('+Project = "x"', "+ATTRIBUTE"),
            ("request_foobar = 3", "request_…"),
            ("request_memory = ifThenElse(1,2,3)", "request_memory"),
            ("arguments = $(Cluster)", "$(Cluster)"),
            ("use feature : x", "use"),
            ("transfer_output_files = a/b", "transfer_output_files"),
            ("transfer_output_files = /b", "transfer_output_files"),
            ("transfer_input_files = d/", "transfer_input_files"),
            ("output = /tmp/x", "output"),
            ("input = x*", "input"),
        ],
    )
    def test_what_has_no_meaning_here_is_listed(self, line: str, keyword: str) -> None:
        assert [k for k, _ in lost(f"JOB A {{\nexecutable = /bin/p\n{line}\n}}\n", d__x="", b="")] == [keyword]

    @pytest.mark.parametrize(
        "line",
        [
            "universe = vanilla",
            "notification = NEVER",
            "should_transfer_files = YES",
            "when_to_transfer_output = ON_EXIT",
            "output = /dev/null",
            "transfer_executable = false",
        ],
    )
    def test_what_pilotage_does_anyway_is_no_loss(self, line: str) -> None:
        assert lost(f"JOB A {{\nexecutable = /bin/p\n{line}\n}}\n") == []

    def test_a_loss_of_a_submit_file_is_listed_once_at_its_place(self) -> None:
        assert lost("JOB A a.sub\nJOB B a.sub\n", a_sub="executable = p\nlog = l\nqueue\n") == [("log", 2)]

    @pytest.mark.parametrize(
        "line, keyword",
        [
            ("TOLERANCE A 3", "TOLERANCE"),
            ("PRE_SKIP A 3", "PRE_SKIP"),
            ("SCRIPT POST A p $JOBID", "SCRIPT"),
            ("SCRIPT POST A p $MAX_RETRIES", "SCRIPT"),
            ("SCRIPT PRE A p $RETURN", "SCRIPT"),
            ("SCRIPT DEBUG f ALL POST A p", "SCRIPT"),
            ('VARS A +x="1"', "+ATTRIBUTE"),
        ],
    )
    def test_what_a_node_cannot_keep_is_listed(self, line: str, keyword: str) -> None:
        assert [k for k, _ in lost(f"JOB A a.sub\n{line}\n", a_sub=SUB)] == [keyword]

    def test_a_misspelt_command_is_warned_of(self) -> None:
        _, report, _ = read("JOB A a.sub\n", a_sub="executable = p\nout = x\nqueue\n")
        assert [(p.code, p.file, p.line) for p in report.warnings] == [("unused-variable", "a.sub", 2)]


class TestSize:
    def test_a_fault_that_all_jobs_of_a_node_share_is_reported_once(self) -> None:
        _, report, _ = read("JOB A {\nqueue 50\n}\n")
        assert [problem.code for problem in report.errors] == ["missing-executable"]

    def test_fifty_thousand_continued_lines_are_one_command(self) -> None:
        definition, report, _ = read(
            "JOB A a.sub\nJOB B a.sub\nPARENT \\\n" + "A \\\n" * 50_000 + "CHILD B\n", a_sub=SUB
        )
        assert report.errors == []
        assert definition is not None
        assert packages(definition)[1].after == ("A",)

    def test_a_value_that_doubles_itself_without_end_is_refused(self) -> None:
        _, report, _ = read("JOB A a.sub\n", a_sub="x = 0123456789\n" + "x = $(x)$(x)\n" * 30)
        assert "bad-submit-line" in {problem.code for problem in report.errors}

    def test_names_that_packages_share_are_told_apart_by_numbers(self) -> None:
        text = "".join(f'JOB N{i} a.sub\nVARS N{i} pilotage_name="x"\n' for i in range(3))
        assert [package.name for package in packages(accepted(text, a_sub=SUB))] == ["x", "x~2", "x~3"]
