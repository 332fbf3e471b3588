from __future__ import annotations

import pytest

from pilotage.language import MemoryFolder, plan_of
from pilotage.language.expansion.software import way_at, ways_of
from pilotage.model.site import Site
from pilotage.service.jobs.refusals import refusals
from tests.kit.jobs import commands, definition_of, edges, expanded, only_fault, refused

SOFTWARE = """\
pilotage: 1
job: j
software:
  - id: reco
    version: p10
    environment: {exported: {A: release, B: release, C: release, D: release, E: release, F: release}, setting: {queue: release}}
    infrastructures:
      - name: grid
        platform: linux-arm
        executions: [{job_type: normal, run: 'arm-reco {threshold} {inputs}'}]
      - name: any
        environment: {B: infrastructure, C: infrastructure, D: infrastructure, E: infrastructure, F: infrastructure}
        executions:
          - job_type: normal
            run: reco --threshold {threshold} {arguments} {inputs}
            environment: {exported: {C: execution, D: execution, E: execution, F: execution}, setting: {queue: execution}}
          - job_type: mpi
            run: mpirun reco {threshold} {inputs}
  - id: reco
    version: p11
    run: reco11 {threshold} {inputs}
"""


def binary(stage: str, head: str = SOFTWARE) -> tuple[str, ...]:
    return commands(expanded(f"stages:\n  - {stage}\n", head=head))[0]


def test_the_first_version_is_taken_where_none_is_asked_for() -> None:
    assert binary("{software: reco, parameters: {threshold: 0.5}}") == ("reco", "--threshold", "0.5")


def test_a_version_is_chosen_by_its_text() -> None:
    assert binary("{software: reco, version: p11, parameters: {threshold: 3}}") == ("reco11", "3")


def test_the_job_type_chooses_the_execution() -> None:
    assert binary("{software: reco, job_type: mpi, parameters: {threshold: 3}}") == ("mpirun", "reco", "3")


def test_the_platform_chooses_the_infrastructure() -> None:
    definition = definition_of(
        {
            "pilotage": 1,
            "job": "j",
            "software": [
                {
                    "id": "s",
                    "infrastructures": [
                        {"name": "any", "platform": "arm", "executions": [{"run": "a"}]},
                        {"name": "any", "platform": "intel", "executions": [{"run": "b"}]},
                    ],
                }
            ],
            "stages": [{"software": "s"}],
        }
    )
    package = definition.stages[0].lines[0].packages[0]
    ways = ways_of(definition, package, package.binaries[0])
    found = way_at(Site(name="here", platform="intel"), package)(ways)
    assert found is not None
    assert found.execution.run == ("b",)
    assert way_at(Site(name="here", platform="mips"), package)(ways) is None


def test_arguments_stand_where_the_description_puts_them() -> None:
    assert binary("{software: reco, parameters: {threshold: 1}, arguments: [-v, 'a b']}") == (
        "reco",
        "--threshold",
        "1",
        "-v",
        "a b",
    )


def test_parameters_hold_placeholders_lists_and_truths() -> None:
    head = "pilotage: 1\njob: j\nsoftware: [{id: s, run: 'p {a} {b} {c} {d}'}]\n"
    text = "stages:\n  - each: {i: 1..2}\n    software: s\n    parameters: {a: 'x-{i}', b: [1, two, '{i}'], c: true, d: 12345678901234567890}\n"
    assert commands(expanded(text, head=head)) == [
        ("p", "x-1", "1", "two", "1", "true", "12345678901234567890"),
        ("p", "x-2", "1", "two", "2", "true", "12345678901234567890"),
    ]


def test_environments_are_joined_and_the_inner_level_wins() -> None:
    text = (
        "environment: {exported: {D: job, E: job, F: job}, setting: {queue: job, account: job}}\n"
        "stages:\n  - packages:\n      - environment: {exported: {E: package, F: package}, setting: {account: package}}\n"
        "        binaries: [{software: reco, parameters: {threshold: 1}, environment: {F: binary}}]\n"
    )
    environment = expanded(text, head=SOFTWARE).package(0).binaries[0].environment
    assert environment.exported == {
        "A": "release", "B": "infrastructure", "C": "execution", "D": "job", "E": "package", "F": "binary"
    }  # fmt: skip
    assert environment.setting == {"queue": "job", "account": "package"}


@pytest.mark.parametrize(
    "stage, code, hint",
    [
        ("{software: recco, parameters: {threshold: 1}}", "unknown-software", "'reco'"),
        ("{software: reco, version: p12, parameters: {threshold: 1}}", "unknown-software-version", "'p11'"),
        ("{software: reco, job_type: mpj, parameters: {threshold: 1}}", "no-execution", "'mpi'"),
        ("{software: reco, parameters: {treshold: 1, threshold: 2}}", "unknown-parameter", "'threshold'"),
        ("{software: reco}", "missing-parameter", ""),
        ("{run: x, version: p10}", "no-software", ""),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused_with_a_near_name(stage: str, code: str, hint: str) -> None:
    fault = only_fault(f"stages:\n  - {stage}\n", head=SOFTWARE)
    assert (fault.code, hint in fault.hint) == (code, True)


@pytest.mark.parametrize(
    "stage, message",
    [
        ("{software: reco, job_type: mpj}", "the software 'reco' has no execution for the job type 'mpj'"),
        (
            "{software: reco, job_type: mpj, platform: linux-arm}",
            "the software 'reco' has no execution for the job type 'mpj' on the platform 'linux-arm'",
        ),
    ],
)
def test_a_missing_execution_names_the_platform_if_one_is_asked_for(stage: str, message: str) -> None:
    assert only_fault(f"stages:\n  - {stage}\n", head=SOFTWARE).message == message


@pytest.mark.parametrize(
    "setting, code",
    [("{quue: long}", "unknown-setting"), ("{cores: many}", "wrong-type"), ("{memory_bytes: 2 bananas}", "wrong-type")],
)
def test_a_setting_that_is_not_documented_is_refused(setting: str, code: str) -> None:
    fault = only_fault(f"stages:\n  - run: x\n    environment: {{setting: {setting}}}\n")
    assert fault.code == code


def test_software_described_twice_is_refused() -> None:
    head = "pilotage: 1\njob: j\nsoftware: [{id: a, run: x}, {id: a, run: y}]\n"
    assert only_fault("stages:\n  - software: a\n", head=head).code == "duplicate-name"


def test_a_catalogue_describes_software_for_many_documents() -> None:
    folder = MemoryFolder(
        {"site.yaml": "software:\n  - {id: reco, version: p9, run: 'old {inputs}'}\n  - {id: sim, run: simulate}\n"}
    )
    head = "catalogue: site.yaml\n" + SOFTWARE
    text = "stages:\n  - {software: sim}\n  - {software: reco, version: p9}\n  - {software: reco, parameters: {threshold: 1}}\n"
    assert [argv[0] for argv in commands(expanded(text, head=head, folder=folder))] == ["simulate", "old", "reco"]


def test_the_documents_own_description_goes_before_the_catalogue() -> None:
    folder = MemoryFolder({"c.yaml": "- {id: a, run: theirs}\n"})
    head = "pilotage: 1\njob: j\ncatalogue: [c.yaml]\nsoftware: [{id: a, run: ours}]\n"
    assert commands(expanded("stages:\n  - software: a\n", head=head, folder=folder)) == [("ours",)]


@pytest.mark.parametrize(
    "content, code",
    [
        (None, "missing-file"),
        ("softwear: []\n", "missing-field"),
        ("software: [{run: x}]\n", "missing-field"),
        ("a: b: c\n", None),
    ],
)
def test_a_bad_catalogue_is_refused_in_its_own_name(content: str | None, code: str | None) -> None:
    folder = MemoryFolder({"c.yaml": content} if content is not None else {})
    faults = refused("stages:\n  - run: a\n", head="pilotage: 1\njob: j\ncatalogue: c.yaml\n", folder=folder)
    assert code is None or [fault.code for fault in faults] == [code]
    assert content is None or {fault.file for fault in faults} == {"c.yaml"}


def test_a_boutiques_descriptor_is_a_description_too() -> None:
    descriptor = (
        '{"name": "t", "description": "d", "tool-version": "1", "schema-version": "0.5", "command-line": "t [N] [F]", "inputs": ['
        '{"id": "n", "name": "n", "type": "Number", "value-key": "[N]", "command-line-flag": "-n"},'
        '{"id": "f", "name": "f", "type": "File", "value-key": "[F]"}]}'
    )
    folder = MemoryFolder({"t.json": descriptor, "in-1": "", "in-2": ""})
    head = "pilotage: 1\njob: j\nsoftware: [{id: t, boutiques: t.json}]\n"
    text = "stages:\n  - each: {i: 1..2}\n    software: t\n    parameters: {n: '{i}', f: 'in-{i}'}\n"
    assert [argv[:2] for argv in commands(expanded(text, head=head, folder=folder))] == [("/bin/sh", "-c")] * 2
    assert "-n 2 in-2" in commands(expanded(text, head=head, folder=folder))[1][2]


def test_parameters_that_a_descriptor_refuses_are_refused_with_their_package() -> None:
    descriptor = (
        '{"name": "t", "description": "d", "tool-version": "1", "schema-version": "0.5", "command-line": "t [N]", "inputs": ['
        '{"id": "n", "name": "n", "type": "Number", "value-key": "[N]", "maximum": 3}]}'
    )
    head = "pilotage: 1\njob: j\nsoftware: [{id: t, boutiques: t.json}]\n"
    text = "stages:\n  - each: {i: 1..5}\n    software: t\n    parameters: {n: '{i}'}\n"
    faults = refused(text, head=head, folder=MemoryFolder({"t.json": descriptor}))
    assert {fault.code for fault in faults} == {"bad-parameters"}
    assert faults[0].message.startswith("t-3")


DESCRIPTOR = """\
{"name": "blur", "description": "d", "tool-version": "1", "schema-version": "0.5", "command-line": "blur [I] [O]",
 "inputs": [{"id": "image", "name": "i", "type": "File", "value-key": "[I]"},
            {"id": "out", "name": "o", "type": "String", "value-key": "[O]"}],
 "output-files": [{"id": "o", "name": "o", "path-template": "[O].png"}],
 "container-image": {"type": "docker", "image": "blur:1"},
 "environment-variables": [{"name": "MODE", "value": "fast"}],
 "suggested-resources": {"ram": 2}}
"""


def test_files_container_variables_and_resources_of_a_descriptor_count() -> None:
    text = """\
software: [{id: blur, boutiques: blur.json}]
stages:
  - {each: {i: 1..2}, run: 'draw {i}', outputs: ['raw-{i}']}
  - {name: b, each: {i: 1..2}, software: blur, parameters: {image: 'raw-{i}', out: 'b-{i}'}}
  - {name: m, run: 'm {inputs}', inputs: ['b-*.png']}
"""
    expansion = expanded(text, folder=MemoryFolder({"blur.json": DESCRIPTOR}))
    assert edges(expansion) == {("draw-0", "b-0"), ("draw-1", "b-1"), ("b-0", "m"), ("b-1", "m")}
    package = expansion.package(2)
    assert package.container is not None
    assert package.container.image == "blur:1"
    assert package.binaries[0].environment.exported == {"MODE": "fast"}
    assert package.declared.resources.memory_bytes is not None


@pytest.mark.parametrize("executor, command", [("grid", "on-the-grid"), ("local", "anywhere"), ("cloud", "anywhere")])
def test_the_executor_chooses_the_infrastructure(executor: str, command: str) -> None:
    document = f"""\
software:
  - id: s
    infrastructures:
      - {{name: any, executions: [{{run: anywhere}}]}}
      - {{name: grid, environment: {{WHERE: grid}}, executions: [{{run: on-the-grid}}]}}
stages: [{{software: s, executor: {executor}}}]
"""
    binary = expanded(document).package(0).binaries[0]
    assert binary.argv == (command,)
    assert binary.environment.exported == ({"WHERE": "grid"} if executor == "grid" else {})


def test_every_way_to_start_it_is_checked_since_any_may_be_taken() -> None:
    head = """\
pilotage: 1
job: j
software:
  - id: reco
    infrastructures:
      - {name: local, executions: [{run: "reco {a}"}]}
      - {name: slurm, executions: [{run: "srun reco {a} {b}"}]}
"""
    fault = only_fault("stages:\n  - {software: reco, parameters: {a: 1}}\n", head=head)
    assert (fault.code, "'b'" in fault.message) == ("missing-parameter", True)


def test_a_setting_that_would_depend_on_the_site_is_refused_unless_the_package_says_it() -> None:
    head = """\
pilotage: 1
job: j
software:
  - id: reco
    environment: {setting: {attempts_max: 4}}
    infrastructures:
      - {name: local, executions: [{run: reco}]}
      - {name: slurm, environment: {setting: {cores: 2}}, executions: [{run: reco}]}
"""
    (fault,) = refusals(expanded("stages:\n  - {software: reco}\n", head=head).definition, file="j.yaml")
    assert (fault.code, "the setting cores of the software 'reco'" in fault.message) == ("not-supported", True)
    said = expanded("stages:\n  - {software: reco, environment: {setting: {cores: 3}}}\n", head=head)
    assert refusals(said.definition, file="j.yaml") == []
    (template,) = plan_of(said).templates
    assert (template.demand.cores_hundredths, template.retry.attempts_max) == (300, 4)
