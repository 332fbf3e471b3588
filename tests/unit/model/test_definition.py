"""Every field of the two schemas this language grew from can be said, and is found again where it belongs."""

from __future__ import annotations

from pilotage.model.jobs.definition import plain
from tests.kit.jobs import definition_of, expanded

D0 = """\
pilotage: 1
job: reco001
id: reco001-fnal
owner: reco@fnal.gov
created: 2001-03-05T14:00:00-06:00
priority: 5
hold: true
software:
  - {id: reco, version: p10.15.01, infrastructures: [{platform: linux-i386, executions: [{invoking_script: ./start-reco}]}]}
stages:
  - name: reco
    lines:
      - name: first
        early_start: true
        packages:
          - startup_script: wrap.sh
            startup_parameters: [reco.sh, analyze.sh, '{inputs}']
            node_restriction: [farm01, farm02]
            platform: linux-i386
            binaries:
              - software: reco
                version: p10.15.01
                data_handling: true
                cpu_percent: 99
                arguments: [-rcp, run.rcp]
                inputs:
                  - name: raw1.dat
                    locator: sam://station/raw
                    size: 2 GB
                    acquisition: prefetch
                    disposition: deletable
                outputs:
                  - name: reco1.dat
                    locator: https://store.fnal.gov/reco
                    size: 1 GB
                    dispositions: [forward, store, retain-temporarily]
                work: 10 KB
                run_time: 6h
              - invoking_script: ./analyze.sh
                inputs: [{name: reco1.dat, acquisition: none, disposition: retain-indefinitely}]
                outputs: [{name: root1.root, dispositions: [retain-indefinitely]}]
"""


def test_the_whole_schema_of_the_experiment_can_be_said() -> None:
    expansion = expanded("", head=D0)
    job = expansion.definition
    assert (job.job, job.id, job.owner, job.created) == (
        "reco001",
        "reco001-fnal",
        "reco@fnal.gov",
        "2001-03-05T14:00:00-06:00",
    )
    assert (job.priority, job.hold) == (5, True)
    line = job.stages[0].lines[0]
    assert (job.stages[0].name, line.name, line.early_start) == ("reco", "first", True)
    package = expansion.package(0)
    assert package.path == "reco001/001/001/001"
    assert package.startup == ("wrap.sh", "reco.sh", "analyze.sh", "raw1.dat", "reco1.dat")
    assert package.declared.node_restriction == ("farm01", "farm02")
    assert package.declared.platform == "linux-i386"
    reco, analyze = package.binaries
    assert (reco.declared.software, reco.declared.version, reco.declared.data_handling) == ("reco", "p10.15.01", True)
    assert (reco.declared.cpu_percent, reco.declared.work_bytes, reco.declared.run_time_seconds) == (99, 10_000, 21_600)
    assert reco.argv == ("./start-reco", "-rcp", "run.rcp")
    given = reco.inputs[0]
    assert (given.names, given.locator, given.declared.size_bytes) == (("raw1.dat",), "sam://station/raw", 2 * 10**9)
    assert (given.declared.acquisition, given.declared.disposition) == ("prefetch", "deletable")
    made = reco.outputs[0]
    assert (made.name, made.locator, made.declared.size_bytes) == ("reco1.dat", "https://store.fnal.gov/reco", 10**9)
    assert made.declared.dispositions == ("forward", "store", "retain-temporarily")
    assert analyze.argv == ("./analyze.sh",)
    assert analyze.declared.invoking_script == "./analyze.sh"
    assert analyze.inputs[0].declared.disposition == "retain-indefinitely"


MORE = """\
pilotage: 1
job: more
limits: {io: 2}
stages:
  - run: mpi-program
    cores: 4
    memory: 2 GiB
    gpus: 1
    nodes: 8
    wall_time: 1-12:00:00
    scratch: 5 GB
    container: {image: 'docker://repo/image:1.10', engine: apptainer}
    retry:
      attempts_max: 5
      rules:
        - {reason: out-of-memory, action: more-memory, memory_factor: 2, times: 3}
        - {exit_code: 3, action: elsewhere}
        - {pattern: 'licen[cs]e', action: later}
    failure_patterns: ['FATAL', {pattern: 'NaN', file: log.txt, reason: diverged}]
    progress: {files: [log.txt], stalled_after: 10 min}
    side_effects: true
    category: io
"""


def test_resources_containers_retries_and_watches_can_be_said() -> None:
    package = expanded("", head=MORE).package(0).declared
    resources = package.resources
    assert (resources.cores, resources.memory_bytes, resources.gpus, resources.nodes) == (4, 2 * 2**30, 1, 8)
    assert (resources.wall_time_seconds, resources.scratch_bytes) == (129_600, 5 * 10**9)
    assert package.container is not None
    assert (package.container.image, package.container.engine) == ("docker://repo/image:1.10", "apptainer")
    assert [rule.action for rule in package.retry.rules] == ["more-memory", "elsewhere", "later"]
    assert [(f.pattern, f.file, f.reason) for f in package.failure_patterns] == [
        ("FATAL", "stderr", "failure-pattern"),
        ("NaN", "log.txt", "diverged"),
    ]
    assert package.progress is not None
    assert (package.progress.files, package.progress.stalled_after_seconds) == (("log.txt",), 600)
    assert (package.side_effects, package.category) == (True, "io")


GASW = """\
pilotage: 1
job: gasw
software:
  - id: gate
    version: '6.2'
    environment: {exported: {LEVEL: release, SHARED: release}, setting: {attempts_max: '5'}}
    infrastructures:
      - name: grid
        environment: {LEVEL: infrastructure}
        executions:
          - {job_type: normal, run: 'gate.sh {macro} {events}', environment: {LEVEL: execution}}
          - {job_type: mpi-mpich2, run: 'mpirun gate {macro} {events}'}
stages:
  - software: gate
    job_type: mpi-mpich2
    executor: local
    parameters: {macro: main.mac, events: 1000}
    inputs: [{name: main.mac, locator: 'lfn:/grid/biomed/main.mac', acquisition: prefetch}]
    outputs:
      - {expression: '.*[.]root$', folder: results}
      - {name: out.tgz, locator: 'lfn:/grid/biomed/out', replicas: 3}
"""


def test_the_whole_input_of_the_execution_service_can_be_said() -> None:
    expansion = expanded("", head=GASW)
    package = expansion.package(0)
    binary = package.binaries[0]
    assert package.declared.executor == "local"
    assert binary.declared.parameters == {"macro": "main.mac", "events": 1000}
    assert binary.argv == ("mpirun", "gate", "main.mac", "1000")
    assert binary.inputs[0].locator == "lfn:/grid/biomed/main.mac"
    expression, upload = binary.outputs
    assert (expression.declared.expression, expression.declared.folder, expression.name) == (
        r".*[.]root$",
        "results",
        "results/**",
    )
    assert (upload.locator, upload.declared.replicas) == ("lfn:/grid/biomed/out", 3)
    assert binary.environment.exported == {"LEVEL": "infrastructure", "SHARED": "release"}
    assert binary.environment.setting == {"attempts_max": "5"}
    normal = expanded("", head=GASW.replace("    job_type: mpi-mpich2\n    executor", "    executor"))
    assert normal.package(0).binaries[0].environment.exported["LEVEL"] == "execution"


def test_the_imported_fields_of_other_formats_can_be_said() -> None:
    definition = definition_of(
        {
            "pilotage": 1,
            "job": "j",
            "stages": [
                {
                    "name": "a",
                    "lines": [
                        {
                            "packages": [
                                {
                                    "name": "A",
                                    "run": "x",
                                    "role": "final",
                                    "scripts": {"pre": "p.sh", "post": {"run": ["q.sh", "{tag}"]}, "skip_exit_code": 2},
                                    "abort_on": {"exit_code": 3, "result": 1},
                                    "noop": True,
                                    "done": True,
                                    "priority": -7,
                                },
                                {"name": "B", "subjob": "inner.dag", "after": ["A"]},
                            ]
                        }
                    ],
                }
            ],
        }
    )
    first, second = definition.stages[0].lines[0].packages
    assert first.scripts.pre is not None
    assert first.scripts.post is not None
    assert (first.scripts.pre.run, first.scripts.post.run, first.scripts.skip_exit_code) == (
        ("p.sh",),
        ("q.sh", "{tag}"),
        2,
    )
    assert first.abort_on is not None
    assert (first.abort_on.exit_code, first.abort_on.result, first.priority) == (3, 1, -7)
    assert (second.subjob, second.after) == ("inner.dag", ("A",))


def test_what_has_its_default_is_left_out_of_the_canonical_form() -> None:
    definition = definition_of({"pilotage": 1, "job": "j", "priority": 0, "stages": [{"run": "x", "cores": 1}]})
    assert plain(definition) == {
        "pilotage": 1,
        "job": "j",
        "stages": [{"lines": [{"packages": [{"binaries": [{"run": ["x"]}]}]}]}],
    }
