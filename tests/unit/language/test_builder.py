"""Jobs built in Python say what documents say."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from pilotage.language import MemoryFolder, read_document
from pilotage.language.builder import Job
from pilotage.language.parsing import python_types as s
from pilotage.language.parsing.records import names_below, names_of
from pilotage.model.errors import DocumentError
from pilotage.model.jobs import definition as d
from tests.kit.jobs import SWEEP


def sweep() -> Job:
    return (
        Job("sweep")
        .stage(
            each={"seed": range(1, 1001)},
            run="./simulate --seed {seed} --out sim-{seed}.dat",
            outputs=["sim-{seed}.dat"],
        )
        .stage(run="./merge {inputs} --out result.dat", inputs=["sim-*.dat"], outputs=["result.dat"])
    )


def test_a_built_job_is_the_same_as_the_written_one() -> None:
    document, _ = read_document(SWEEP.encode(), file="pilotage.yaml", folder=MemoryFolder())
    assert document is not None
    assert sweep().definition() == document.definition


def test_the_canonical_text_of_a_built_job_reads_back_as_the_job() -> None:
    document, _ = read_document(sweep().canonical.encode(), file="pilotage.yaml", folder=MemoryFolder())
    assert document is not None
    assert document.definition == sweep().definition()


def test_a_built_job_is_expanded_in_its_folder() -> None:
    expansion = sweep().load(MemoryFolder()).expansion
    assert expansion is not None
    assert expansion.count == 1001


def test_faults_of_a_built_job_point_at_its_text() -> None:
    job = Job("bad").stage(run="./a", outputs="../out.dat").stage(run="./b {nothing}")
    with pytest.raises(DocumentError) as refused:
        job.load(MemoryFolder())
    lines = job.text.splitlines()
    assert {(p.code, lines[p.line - 1].strip(" -")) for p in refused.value.problems} == {
        ("outside-tree", "outputs: ../out.dat"),
        ("unknown-placeholder", "run: ./b {nothing}"),
    }


def test_records_of_the_model_may_stand_for_mappings() -> None:
    rule = d.RetryRule(reason="out-of-memory", action="more-memory", memory_factor=2)
    job = Job("model").stage(run="./a", retry={"rules": [rule]})
    assert job.definition().stages[0].lines[0].packages[0].retry.rules == (rule,)


def test_software_is_described_on_the_job() -> None:
    job = (
        Job("described").software(id="sim", version="1.10", run="./sim {n}").stage(software="sim", parameters={"n": 3})
    )
    assert [(software.id, software.version) for software in job.definition().software] == [("sim", "1.10")]


RECORDS: list[tuple[Any, type[d.Value]]] = [
    (s.EnvironmentFields, d.Environment),
    (s.InputFields, d.InputFile),
    (s.OutputFields, d.OutputFile),
    (s.ContainerFields, d.Container),
    (s.RetryRuleFields, d.RetryRule),
    (s.RetryFields, d.Retry),
    (s.FailurePatternFields, d.FailurePattern),
    (s.ProgressFields, d.Progress),
    (s.ScriptFields, d.Script),
    (s.ScriptsFields, d.Scripts),
    (s.AbortOnFields, d.AbortOn),
    (s.ResourcesFields, d.Resources),
    (s.SourceFields, d.Source),
    (s.BinaryFields, d.Binary),
    (s.PackageFields, d.Package),
    (s.LineFields, d.Line),
    (s.StageFields, d.Stage),
    (s.ExecutionFields, d.Execution),
    (s.InfrastructureFields, d.Infrastructure),
    (s.SoftwareFields, d.Software),
    (s.ComparisonFields, d.Comparison),
]


@pytest.mark.parametrize("spoken, record", RECORDS, ids=[record.__name__ for _, record in RECORDS])
def test_the_builder_has_every_field_of_the_document(spoken: Any, record: type[d.Value]) -> None:
    expected = names_of(record) | names_below(record)
    if record is d.Package:
        expected |= names_of(d.Resources)
    assert set(get_type_hints(spoken)) == expected
    assert not spoken.__required_keys__  # the document has defaults, or says what is missing


def test_the_head_of_a_built_job_has_every_field_of_the_document() -> None:
    assert set(get_type_hints(s.JobFields)) == (names_of(d.Definition) | {"catalogue"}) - {"pilotage", "job", "stages"}
