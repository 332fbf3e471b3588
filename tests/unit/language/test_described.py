"""What a job takes from a Boutiques descriptor besides the command line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.language.boutiques import output_paths
from pilotage.language.expansion.software import filled_parameters
from pilotage.language.expansion.tool_outputs import boutiques_values
from pilotage.language.expansion.tool_software import (
    BoutiquesTool,
    container_of,
    known_values,
    resources_of,
    tool_of_descriptor,
    tool_of_software,
    with_described_files,
)
from pilotage.language.text.names import tidy_name
from pilotage.language.text.patterns import literal, matches
from pilotage.language.text.templates import parse_template, render
from pilotage.model.errors import DocumentError
from pilotage.model.jobs.definition import (
    Binary,
    Container,
    Definition,
    InputFile,
    OutputFile,
    Package,
    Resources,
    Software,
)

INPUTS = [
    {"id": "image", "name": "i", "type": "File", "value-key": "[IMAGE]"},
    {"id": "label", "name": "l", "type": "String", "value-key": "[LABEL]", "optional": True},
    {"id": "width", "name": "w", "type": "Number", "value-key": "[WIDTH]", "optional": True},
    {"id": "more", "name": "m", "type": "File", "value-key": "[MORE]", "list": True, "optional": True},
]


def descriptor(*outputs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A descriptor whose outputs are named and numbered."""
    listed = [{"id": f"out{n}", "name": "o", **kebab(output)} for n, output in enumerate(outputs)]
    made = {"output-files": listed} if listed else {}
    value = {"name": "blur", "tool-version": "1", "description": "d", "schema-version": "0.5", "inputs": INPUTS}
    return {**value, "command-line": "blur [IMAGE] [LABEL] [WIDTH] [MORE]", **made, **kebab(fields)}


def kebab(fields: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in fields.items()}


def tool(*outputs: dict[str, Any], **fields: Any) -> BoutiquesTool:
    return BoutiquesTool(descriptor(*outputs, **fields))


def known(**values: list[str]) -> Any:
    return values.get


def names(found: tuple[OutputFile, ...] | tuple[InputFile, ...]) -> list[str]:
    return [one.name for one in found]


def said(template: str, parameters: dict[str, object], *stripped: str, **values: list[str]) -> str:
    """The one output that is said, or why it is not."""
    output: dict[str, Any] = {"path_template": template}
    if stripped:
        output["path_template_stripped_extensions"] = list(stripped)
    found = tool(output)
    named = names(found.outputs(parameters, known(**values)))
    return named[0] if named else f"not said: {found.unsupported(parameters, known(**values))[0]}"


class TestCommand:
    def test_it_is_the_line_of_bosh_in_the_descriptors_shell(self) -> None:
        found = tool(shell="/bin/bash")
        assert found.argv({"image": "a b", "width": "2"}) == ("/bin/bash", "-c", "blur 'a b' 2")

    def test_what_bosh_refuses_is_refused(self) -> None:
        assert tool().refusals({"image": "a", "width": "wide"}) == ["width: expected a number, found the text 'wide'"]
        with pytest.raises(DocumentError):
            tool().command({})

    def test_a_descriptor_is_read_once(self) -> None:
        text = descriptor()
        assert tool_of_descriptor(text) is tool_of_descriptor(text)
        assert tool_of_software(Software(id="a", boutiques=text)) is tool_of_descriptor(text)
        assert tool_of_descriptor(text).command({"image": "a"}) == "blur a"

    def test_only_some_descriptors_are_kept(self) -> None:
        first = descriptor()
        before = tool_of_descriptor(first)
        others = [descriptor() for _ in range(64)]
        assert len({id(tool_of_descriptor(other)) for other in others}) == 64
        assert tool_of_descriptor(first) is not before

    def test_software_without_a_descriptor_is_not_described(self) -> None:
        assert tool_of_software(Software(id="a")) is None
        assert tool_of_software(None) is None


def test_variables_are_fixed_or_come_from_inputs() -> None:
    variables = [
        {"name": "MODE", "value": "fast"},
        {"name": "W", "value": "[WIDTH]"},
        {"name": "L", "value": "[LABEL]"},
    ]
    found = tool(environment_variables=variables)
    assert found.environment({"image": "a", "width": "2"}) == {"MODE": "fast", "W": "2"}


@pytest.mark.parametrize(
    "image, container",
    [
        ({"type": "docker", "image": "lab/blur:1"}, Container(image="lab/blur:1")),
        ({"type": "docker", "image": "lab/blur:1", "index": "docker://"}, Container(image="lab/blur:1")),
        ({"type": "docker", "image": "lab/blur:1", "index": "hub.example.org/"}, Container(image="hub.example.org/lab/blur:1")),
        ({"type": "docker", "image": "hub.example.org/b", "index": "hub.example.org"}, Container(image="hub.example.org/b")),
        ({"type": "singularity", "image": "lab/blur"}, Container(image="shub://lab/blur", engine="apptainer")),
        ({"type": "singularity", "image": "lab/blur", "index": "docker://"}, Container(image="docker://lab/blur", engine="apptainer")),
        ({"type": "singularity", "image": "blur.sif"}, Container(image="blur.sif", engine="apptainer")),
        ({"type": "singularity", "image": "a{b}"}, Container(image="shub://a{{b}}", engine="apptainer")),
        ({"type": "rootfs", "url": "https://example.org/root.tar"}, None),
    ],
)  # fmt: skip
def test_the_image_says_its_engine(image: dict[str, str], container: Container | None) -> None:
    assert tool(container_image=image).container == container


def test_what_an_image_says_in_vain_is_told() -> None:
    image = {"type": "rootfs", "url": "https://example.org/r", "working-directory": "/w", "container-hash": "0"}
    assert len(tool(container_image=image).unsupported({"image": "a"})) == 3
    options = {"type": "docker", "image": "b", "container-opts": ["--gpus", "all"]}
    assert "'--gpus all'" in tool(container_image=options).unsupported({"image": "a"})[0]


def test_an_entrypoint_that_is_not_started_is_told_and_the_command_line_runs_alone() -> None:
    image = {"type": "docker", "image": "b", "entrypoint": True}
    (told,) = tool(container_image=image).unsupported({"image": "a"})
    assert told == "container-image: the entrypoint of the image is ignored; only the command line runs"
    assert tool(container_image={**image, "entrypoint": False}).unsupported({"image": "a"}) == []


def test_an_exit_code_means_what_the_descriptor_says_first() -> None:
    codes = [{"code": 3, "description": "no  such\nsubject"}, {"code": 3, "description": "other"}]
    assert tool(error_codes=codes).error_codes == {"3": "no such subject"}


def test_suggested_resources_are_in_our_units_and_an_estimate_is_no_limit() -> None:
    found = tool(suggested_resources={"cpu-cores": 4, "ram": 1.5, "disk-space": 2, "nodes": 2, "walltime-estimate": 60})
    assert found.resources == Resources(cores=4, memory_bytes=1_500_000_000, nodes=2, scratch_bytes=2_000_000_000)
    assert found.run_time_seconds == 60
    assert tool().resources == Resources()


class TestOutputs:
    @pytest.mark.parametrize(
        "template, parameters, expected",
        [
            ("out.txt", {}, "out.txt"),
            ("out-[LABEL].txt", {"label": "a"}, "out-a.txt"),
            ("out-[LABEL].txt", {"label": "{run}"}, "out-{run}.txt"),
            ("[IMAGE].txt", {"image": "{raw}"}, "{raw}.txt"),
            ("x/[IMAGE].txt", {"image": "{raw}"}, "x/{raw.name}.txt"),
            ("x/[IMAGE].txt", {"image": "raw/{run}.dat"}, "x/{run.name}.dat.txt"),
            ("x/[IMAGE].txt", {"image": "{raw.stem}.dat"}, "x/{raw.stem}.dat.txt"),
            ("x/[IMAGE].txt", {"image": "{folder}/a.dat"}, "x/a.dat.txt"),
            ("out-{n}.txt", {}, "out-{{n}}.txt"),
            ("out-[LABEL].txt", {"label": "a{{b}}*"}, "out-a{{b}}[*].txt"),
            ("out-*.txt", {}, "out-*.txt"),
            ("out/**", {}, "out/*"),
            ("[LABEL]/[WIDTH].txt", {"label": "{tag}", "width": "{tag}"}, "{tag}/{tag}.txt"),
        ],
    )
    def test_values_stand_in_their_paths(self, template: str, parameters: dict[str, object], expected: str) -> None:
        assert said(template, {"image": "i", **parameters}) == expected

    @pytest.mark.parametrize(
        "value, raw, expected",
        [
            ("{run}.nii.gz", ["1", "2"], "x/{run}.out"),
            ("raw/{run}.nii", ["1", "2"], "x/{run}.out"),
            ("{run}", ["raw/a.nii", "raw/b.nii"], "x/{run.stem}.out"),
            ("{run.name}", ["raw/a.nii", "raw/b.nii"], "x/{run.stem}.out"),
            ("{run}", ["raw/a.dat", "raw/b.dat"], "x/{run.name}.out"),
        ],
    )
    def test_stripped_extensions_are_said_as_stems(self, value: str, raw: list[str], expected: str) -> None:
        assert said("x/[IMAGE].out", {"image": value}, ".nii.gz", ".nii", run=raw) == expected

    def test_a_path_that_begins_with_a_file_keeps_its_folder(self) -> None:
        raw = ["raw/a.nii", "b.nii"]
        assert said("[IMAGE].out", {"image": "{run}"}, ".nii", run=raw) == "{run.parent}/{run.stem}.out"

    def test_a_value_that_all_packages_share_is_as_if_it_were_written(self) -> None:
        assert said("x/[IMAGE].out", {"image": "{c}"}, ".nii.gz", c=["raw/a.nii.gz"]) == "x/a.out"

    @pytest.mark.parametrize(
        "template, parameters, values, reason",
        [
            ("x/[IMAGE].out", {"image": "{run}"}, ["a.nii.gz", "b.nii.gz"], "not its last suffix"),
            ("x/[IMAGE].out", {"image": "{late}"}, [], "not known yet"),
            ("x/[IMAGE].out", {"image": "{run}"}, ["a.nii", "b.dat"], "not its last suffix"),
            ("x/[IMAGE].out", {"image": "a-{run}"}, ["a/b", "b"], "may contain folders"),
            ("x/[IMAGE].out", {"image": "{run.parent}"}, ["a/b/c", "b/c/d"], "may contain folders"),
            ("x-[WIDTH].out", {"width": "{run}"}, ["007", "008"], "write differently"),
            ("x-[LABEL].out", {"label": "{run}"}, ["a", ""], "is empty for some"),
            ("x-[LABEL].out", {}, [], "'label' in its path, which is not given"),
            ("/x/[LABEL].out", {"label": "a"}, [], "outside the job's tree: it is absolute"),
            ("[LABEL]/", {"label": "a"}, [], "it names a folder"),
            ("[LABEL]", {"label": "{run}"}, ["/a", "b"], "outside the job's tree for some"),
        ],
    )
    def test_what_cannot_be_said_exactly_is_not_said(
        self, template: str, parameters: dict[str, object], values: list[str], reason: str
    ) -> None:
        found = said(template, {"image": "i", **parameters}, ".nii", ".gz", **({"run": values} if values else {}))
        assert found.startswith("not said: output-files: 'out0' ")
        assert reason in found

    def test_an_optional_output_is_not_awaited(self) -> None:
        found = tool({"path_template": "a", "optional": True})
        assert found.outputs({"image": "i"}) == ()
        assert found.unsupported({"image": "i"}) == ["output-files: 'out0' is optional"]

    def test_a_list_is_a_pattern(self) -> None:
        found = tool({"path_template": "out/[LABEL]-*.txt", "list": True})
        assert names(found.outputs({"image": "i", "label": "{run}"})) == ["out/{run}-*.txt"]

    def test_conditions_on_given_values_are_decided(self) -> None:
        choice = [{"width > 2": "wide-[LABEL].txt"}, {"default": "narrow.txt"}]
        found = tool({"conditional_path_template": choice})
        assert names(found.outputs({"image": "i", "width": 3, "label": "{run}"})) == ["wide-{run}.txt"]
        assert names(found.outputs({"image": "i", "width": "{w}"}, known(w=["1"]))) == ["narrow.txt"]

    def test_conditions_on_placeholders_are_not_decided(self) -> None:
        found = tool({"conditional_path_template": [{"width > 2": "wide.txt"}, {"default": "narrow.txt"}]})
        assert found.outputs({"image": "i", "width": "{w}"}) == ()
        assert found.unsupported({"image": "i", "width": "{w}"}) == ["output-files: 'out0' depends on 'width'"]

    def test_a_path_in_another_path_is_said_where_it_is_plain(self) -> None:
        outputs = {"path_template": "[LABEL].txt", "value_key": "[O]"}, {"path_template": "[O].gz"}
        line = "blur [IMAGE] [LABEL] [WIDTH] [MORE] [O]"
        found = tool(*outputs, command_line=line)
        assert names(found.outputs({"image": "i", "label": "a"})) == ["a.txt", "a.txt.gz"]
        assert names(found.outputs({"image": "i", "label": "{run}"})) == ["{run}.txt"]
        assert "'out1' has the path of the output 'out0'" in found.unsupported({"image": "i", "label": "{run}"})[0]

    def test_a_configuration_file_is_no_output_and_is_told(self) -> None:
        found = tool({"path_template": "blur.cfg", "file_template": ["width = [WIDTH]"]})
        assert found.outputs({"image": "i", "width": 2}) == ()
        assert found.unsupported({"image": "i"}) == ["file-template: the configuration file 'out0' is not written"]

    def test_a_strange_character_of_a_descriptor_is_not_taken_for_a_placeholder(self) -> None:
        assert said("x\U000f0000.txt", {"image": "i"}).startswith("not said")
        assert said("x-[LABEL].txt", {"image": "i", "label": "\U000f0000{a}"}) == "x-\ufffd{a}.txt"


class TestInputs:
    def test_files_and_lists_of_files_are_needed(self) -> None:
        parameters = {"image": "{raw}", "more": ["a.dat", "x/{run}.dat", "a.dat"], "label": "not-a-file"}
        assert names(tool().inputs(parameters)) == ["{raw}", "a.dat", "x/{run}.dat"]

    @pytest.mark.parametrize("value", ["/opt/atlas.nii", "https://example.org/a", "~/a", ""])
    def test_files_elsewhere_are_not_of_the_job(self, value: str) -> None:
        assert tool().inputs({"image": value}) == ()
        assert tool().inputs({"image": "{f}"}, known(f=[value, value + "2"])) == () or not value

    def test_a_name_with_special_characters_is_one_file(self) -> None:
        (name,) = names(tool().inputs({"image": "a[1]*.dat"}))
        assert matches(name, "a[1]*.dat")
        assert not matches(name, "a1x.dat")

    def test_the_default_of_an_input_is_a_file_too(self) -> None:
        inputs = [{"id": "m", "name": "m", "type": "File", "value-key": "[M]", "default-value": "{mask}.nii"}]
        assert names(tool(inputs=inputs, command_line="x [M]").inputs({})) == ["{{mask}}.nii"]

    def test_an_input_that_names_an_output_is_not_needed(self) -> None:
        found = tool({"path_template": "[IMAGE]"})
        assert found.inputs({"image": "{o}.dat"}) == ()
        assert names(found.outputs({"image": "{o}.dat"})) == ["{o}.dat"]


class TestTogether:
    def test_what_the_document_declares_wins_by_name(self) -> None:
        found = tool(
            {"path_template": "a.txt"}, {"path_template": "b.txt"}, suggested_resources={"walltime-estimate": 9}
        )
        own_output, own_input = OutputFile(name="./a.txt", replicas=2), InputFile(name="i", acquisition="self")
        binary = Binary(
            software="s", parameters={"image": "i", "more": ["j", "a.txt"]}, inputs=(own_input,), outputs=(own_output,)
        )
        joined = with_described_files(binary, found)
        assert joined.outputs == (own_output, OutputFile(name="b.txt"))
        assert joined.inputs == (own_input, InputFile(name="j"))
        assert joined.run_time_seconds == 9

    def test_a_package_has_the_image_that_all_its_binaries_name(self) -> None:
        image = {"type": "docker", "image": "b"}
        definition = Definition(job="j", software=(Software(id="s", boutiques=descriptor(container_image=image)),))
        one, other = Binary(software="s"), Binary(run=("x",))
        assert container_of(definition, Package(binaries=(one, one))) == Container(image="b")
        assert container_of(definition, Package(binaries=(one, other))) is None
        assert container_of(definition, Package(binaries=(one,), container=Container(image="own"))) == Container(
            image="own"
        )

    def test_a_package_has_the_most_that_is_suggested_where_it_asks_for_nothing(self) -> None:
        software = [
            Software(id=str(n), boutiques=descriptor(suggested_resources={"cpu-cores": n, "ram": n})) for n in (2, 4)
        ]
        definition = Definition(job="j", software=tuple(software))
        both = (Binary(software="2"), Binary(software="4"), Binary(run=("x",)))
        assert resources_of(definition, Package(binaries=both)) == Resources(cores=4, memory_bytes=4 * 10**9)
        own = Resources(cores=3, memory_bytes=1, gpus=1, wall_time_seconds=5, scratch_bytes=7, nodes=2)
        assert resources_of(definition, Package(binaries=both, resources=own)) == own

    def test_the_values_of_a_block_are_known_but_not_lists_and_tags(self) -> None:
        from tests.kit.jobs import expanded

        text = "variables: {c: x}\nstages:\n  - each: {cross: [{i: 1..2}, {g: {values: [a, b], group: 2}}]}\n    run: x {i} {g} {c}\n"
        found = known_values(expanded(text).blocks[0])
        assert (found("i"), found("c")) == ({"1", "2"}, {"x"})
        assert (found("g"), found("tag")) == (None, None)


NAME = st.text(alphabet="ab./-*0", min_size=1, max_size=8)
VALUE = st.sampled_from(
    ["{v}", "{v}.nii", "d/{v}.a", "p-{v}", "{v.name}", "{v.stem}.nii", "{v.parent}/x.a", "{v}{u}", "q.nii", "{u}/{v}"]
)
PATH = st.sampled_from(
    ["[IMAGE].o", "o/[IMAGE].o", "[LABEL].o", "o-[LABEL]-[IMAGE]", "[LABEL]/[MORE].o", "o-[WIDTH].o"]
)


@settings(max_examples=200, deadline=None)
@given(
    template=PATH, image=VALUE, label=VALUE, more=st.lists(VALUE, min_size=1, max_size=2), data=st.data(),
    stripped=st.lists(st.sampled_from([".nii", ".a", ".nii.a"]), max_size=2, unique=True),
)  # fmt: skip
def test_what_is_said_is_what_bosh_would_look_for(
    template: str, image: str, label: str, more: list[str], stripped: list[str], data: st.DataObject
) -> None:
    values = data.draw(st.lists(NAME, min_size=1, max_size=3), label="v")
    others = data.draw(st.lists(st.sampled_from(["1", "2.50", "u"]), min_size=1, max_size=2), label="u")
    parameters: dict[str, object] = {"image": image, "label": label, "more": more, "width": "{u}"}
    output: dict[str, Any] = {
        "path_template": template,
        **({"path_template_stripped_extensions": stripped} if stripped else {}),
    }
    found = tool(output)
    for name in names(found.outputs(parameters, known(v=values, u=others))):
        for v in values:
            for u in others:
                filled = filled_parameters(parameters, {"v": v, "u": u})
                (path,) = output_paths(found.descriptor, boutiques_values(found.descriptor, filled))
                assert path.path is not None
                written = parse_template(name)
                text = tidy_name(render(written, {"v": v, "u": u}))
                as_pattern = tidy_name(render(written, {"v": v, "u": u}, quote=literal))
                assert text == tidy_name(path.path) or matches(as_pattern, tidy_name(path.path))
