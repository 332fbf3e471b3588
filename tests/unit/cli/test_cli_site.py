"""`pilotage site` where no service runs: what is written down, what is found by looking, and what is packed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.sites.commands import LocalCaller
from pilotage.agent.batch import Answer, Call, Unknown
from pilotage.app.site_setup.discovery import PYTHONS, DiscoveryFailed, RequestedValues, discover, entry_from
from pilotage.app.sites.entries import written_sites
from pilotage.cli.sites.site import LATE_SECONDS, probe_wait_seconds
from pilotage.model.settings.engine import EngineSettings
from pilotage.service.http.routes.sites import SiteDetail, SiteView
from tests.kit.command_line import in_an_empty_folder, refused, run

SINFO = "up|infinite|64|256000|10|(null)|main*\nup|5:00|8|16000|2|gpu:a100:4(S:0-1)|short\n"
CONFIG = "MaxArraySize = 1001\nMaxJobCount = 5\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)


class Cluster:
    """A login node that answers as a test says."""

    def __init__(self, **said: str) -> None:
        self.said = {"home": "/home/me", "writable": "yes", "kind": "nfs", "platform": "x86_64-linux", **said}
        self.paths: tuple[tuple[str, str, str, str], ...] = ()
        self.pythons = {"python3": "3.6.8", "python3.11": "3.11.4"}
        self.schedulers = {"sbatch": "slurm 22.05.8"}
        self.reach = "yes"
        self.limits = True
        self.answers = True

    def run(self, call: Call) -> Answer:
        if call.argv == ("sh",) and "SCRATCH" in call.stdin:
            return Answer(0, "\n".join("pilotage-found:path " + "\t".join(cells) for cells in self.paths))
        if call.argv == ("sh",):
            lines = [f"pilotage-found:{name} {value}" for name, value in self.said.items() if value]
            lines += [f"pilotage-found:python {name} {told}" for name, told in self.pythons.items()]
            return Answer(0, "\n".join(["welcome to this cluster", *lines]))
        if call.argv[0] in self.pythons:
            return Answer(0, f"{self.reach}\n")
        if "sbatch" in self.schedulers and call.argv[0] == "squeue":
            return Answer(0) if self.answers else Answer(1, "", "Unable to contact slurm controller")
        if call.argv[0] in self.schedulers:
            return Answer(0, f"{self.schedulers[call.argv[0]]}\n")
        if "sbatch" in self.schedulers and call.argv[0] in ("sinfo", "scontrol"):
            return Answer(0, SINFO if call.argv[0] == "sinfo" else CONFIG) if self.limits else Answer(1, "", "down")
        return Answer(127, "", f"{call.argv[0]}: command not found")

    def close(self) -> None:
        """Nothing is open."""


def test_what_is_found_and_what_follows_from_it() -> None:
    found = discover(Cluster(), server="https://here:8642")
    assert (found.kind, found.version, found.way_out, found.array_max) == ("slurm", "22.05.8", "yes", 1001)
    assert [(each.name, each.is_default, each.wall_seconds) for each in found.queues] == [
        ("main", True, 0),
        ("short", False, 300),
    ]
    entry = entry_from("lyon", "ssh://me@lyon", found, RequestedValues())
    assert (entry.queue, entry.python, entry.wall_time_seconds, entry.started_by) == (
        "",
        "python3.11",
        86_400,
        "service",
    )
    assert (entry.pilots_max, entry.platform) == (5, "x86_64-linux")
    short = entry_from("lyon", "", found, RequestedValues(queue="short", slots=4))
    assert (short.queue, short.wall_time_seconds, short.slots) == ("short", 300, 4)


def test_a_pilot_asks_for_its_share_of_the_memory_of_a_node() -> None:
    found = discover(Cluster())
    assert [(each.name, each.core_memory_bytes >> 20, each.gpus) for each in found.queues] == [
        ("main", 4000, 0),
        ("short", 2000, 4),
    ]
    assert entry_from("lyon", "", found, RequestedValues(slots=4)).memory_bytes == 16_000 << 20
    asked = entry_from("lyon", "", found, RequestedValues(queue="short", memory_bytes=7, gpus=2))
    assert (asked.memory_bytes, asked.gpus) == (7, 2)
    silent = Cluster()
    silent.limits = False
    assert (
        entry_from("lyon", "", discover(silent, chosen=RequestedValues(kind="slurm")), RequestedValues()).memory_bytes
        is None
    )


def test_files_go_where_the_nodes_are_surest_to_see_them() -> None:
    cluster = Cluster(user="me")
    cluster.paths = (
        ("SCRATCH", "yes", "lustre", "/scratch/me"),
        ("WORK", "no", "lustre", "/group/work"),
        ("VSC_SCRATCH", "yes", "lustre", "/scratch/me"),
        ("PATH", "yes", "lustre", "/bin"),
    )

    def folder(kind: str, writable: str = "yes") -> str:
        cluster.said |= {"kind": kind, "writable": writable}
        return entry_from("lyon", "", discover(cluster), RequestedValues()).folder

    assert [each.variable for each in discover(cluster).paths] == ["WORK", "SCRATCH"]
    assert folder("nfs") == ""
    assert folder("xfs") == "/scratch/me/.pilotage-site-me"  # a disk of the login node
    assert folder("nfs", writable="") == "/scratch/me/.pilotage-site-me"
    cluster.paths = (("SCRATCH", "yes", "tmpfs", "/scratch/me"),)
    assert folder("xfs") == ""
    assert folder("xfs", writable="") == "/scratch/me/.pilotage-site-me"
    assert entry_from("lyon", "", discover(cluster), RequestedValues(folder="/mine")).folder == "/mine"


def test_variables_are_those_of_a_login_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("two words", "closed"):
        (tmp_path / name).mkdir()
    (tmp_path / "closed" / "file").touch()
    (tmp_path / ".profile").write_text(
        f"echo welcome; read -r answer\nexport SCRATCH='{tmp_path}/two words' WORK={tmp_path}/gone"
        f" WORKDIR={tmp_path}/closed/file WRKDIR=elsewhere\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/sh")
    here = LocalCaller()

    class Login(Cluster):
        def run(self, call: Call) -> Answer:
            return here.run(call) if call.argv == ("sh",) else super().run(call)

    found = discover(Login(), chosen=RequestedValues(kind="slurm"))
    (scratch,) = found.paths
    assert (scratch.variable, scratch.path, scratch.writable) == ("SCRATCH", f"{tmp_path}/two words", True)
    assert scratch.file_system
    assert [*(tmp_path / "two words").iterdir()] == []
    monkeypatch.setenv("SHELL", "/no/such/shell")
    assert discover(Login(), chosen=RequestedValues(kind="slurm")).paths == ()


def test_what_is_found_and_chosen_is_shown_with_what_only_the_test_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(user="me", kind="xfs")
    cluster.paths = (("SCRATCH", "yes", "lustre", "/scratch/me"), ("WORK", "no", "lustre", "/group/work"))
    monkeypatch.setattr("pilotage.app.sites.connections.caller_for", lambda *_, **__: cluster)
    shown = run("site", "add", "lyon", "--slots", "2", "--gpus", "1").stdout
    for words in (
        "$WORK      /group/work on lustre, not writable",
        "$SCRATCH   /scratch/me on lustre",
        "64 cores a node  250 GiB a node",
        "at most 5, of 2 slots, 7.81 GiB, 1 GPU, 1 d each",
        "/scratch/me/.pilotage-site-me",
        "test it: pilotage site test lyon\n  only a pilot proves that the nodes",
    ):
        assert words in shown, shown
    assert "a size such as" in refused("site", "add", "lille", "--memory", "much")
    assert (
        json.loads(run("site", "add", "lille", "--memory", "3 GiB", "--json").stdout)["entry"]["memory_bytes"]
        == 3 << 30
    )


def test_a_cluster_that_does_not_reach_the_service_gets_a_site_agent() -> None:
    cluster = Cluster()
    cluster.reach = "no: No route to host"
    found = discover(cluster, server="https://here:8642")
    assert (found.way_out, entry_from("lyon", "", found, RequestedValues()).started_by) == (
        "no: No route to host",
        "agent",
    )
    known = discover(Cluster(), server="http://127.0.0.1:1", why_not="no: it listens here alone")
    assert entry_from("lyon", "", known, RequestedValues()).started_by == "agent"


def test_what_is_missing_is_named_with_what_to_do() -> None:
    old = Cluster()
    old.pythons = {"python3": "3.6.8"}
    with pytest.raises(DiscoveryFailed, match=r"python3 is 3.6.8"):
        entry_from("lyon", "", discover(old), RequestedValues())
    named = RequestedValues(python="/opt/python3")
    with pytest.raises(DiscoveryFailed, match="there is no such command"):
        entry_from("lyon", "", discover(old, chosen=named), named)
    old.pythons["/opt/python3"] = "3.6.8"
    with pytest.raises(DiscoveryFailed, match=r"/opt/python3 is 3.6.8"):
        entry_from("lyon", "", discover(old, chosen=named), named)
    old.pythons["/opt/python3"] = "3.8.2"
    assert entry_from("lyon", "", discover(old, chosen=named), named).python == "/opt/python3"
    with pytest.raises(DiscoveryFailed, match="cannot be written"):
        entry_from("lyon", "", discover(Cluster(writable="")), RequestedValues())
    with pytest.raises(DiscoveryFailed, match="did you mean 'short'"):
        entry_from("lyon", "", discover(Cluster()), RequestedValues(queue="shrot"))
    bare = Cluster()
    bare.schedulers = {}
    with pytest.raises(DiscoveryFailed, match="no batch system was found"):
        discover(bare)
    with pytest.raises(DiscoveryFailed, match="did you mean 'slurm'"):
        discover(Cluster(), chosen=RequestedValues(kind="slrum"))


def test_of_two_batch_systems_the_one_that_answers_is_taken() -> None:
    both = Cluster()
    both.schedulers = {"qstat": "SGE 8.1.9", **both.schedulers}
    assert discover(both).kind == "slurm"
    both.limits = False
    found = discover(both, chosen=RequestedValues(kind="slurm"))
    assert (found.kind, found.queues, "down" in found.unknown) == ("slurm", (), True)


def test_a_batch_system_that_does_not_answer_is_not_chosen_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Cluster()
    dead.schedulers = {"qstat": "SGE 8.1.9"}  # its commands are there, and nothing else of it
    monkeypatch.setattr("pilotage.app.sites.connections.caller_for", lambda *_, **__: dead)
    for words in ([], ["--kind", "gridengine"]):
        told = refused("site", "add", "farm", *words)
        assert "no batch system answers there" in told
        assert "gridengine 8.1.9: qstat printed an incomplete document" in told
        assert "--setup 'module load" in told
    dead.schedulers, dead.answers = {"sbatch": "slurm 22.05.8"}, False
    assert "slurm 22.05.8: Unable to contact slurm controller" in refused("site", "add", "farm")
    assert not (tmp_path / "sites.yaml").exists()


def test_what_is_asked_for_and_was_found_not_to_be_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    monkeypatch.setattr("pilotage.app.sites.connections.caller_for", lambda *_, **__: cluster)
    for words, message, hint in (
        (["--slots", "65"], "the queue 'main' has 64 cores on one node", "ask for less"),
        (["--slots", "64", "--queue", "short"], "the queue 'short' has 8 cores on one node", "--queue main"),
        (["--memory", "1 TiB"], "the queue 'main' has 250 GiB of memory on one node", "ask for less"),
        (["--wall-time", "86400", "--queue", "short"], "the queue 'short' has 300 seconds for a job", "--queue main"),
        (["--gpus", "5", "--queue", "short"], "the queue 'short' has 4 GPUs on one node", "--queue main"),
    ):
        told = refused("site", "add", "lyon", *words)
        assert message in told
        assert hint in told
    cluster.said["folder"] = "no no ext2/ext3"
    assert "does not exist, and cannot be created" in refused("site", "add", "lyon", "--folder", "/scrtach/me")
    cluster.said["folder"] = "yes no nfs"
    assert "this folder is not writable" in refused("site", "add", "lyon", "--folder", "/scratch")
    assert "can only mean your own home folder" in refused("site", "add", "lyon", "--folder", "~bob/x")
    assert not (tmp_path / "sites.yaml").exists()


def test_what_may_not_be_as_it_is_asked_for_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(folder="no yes tmpfs")
    monkeypatch.setattr("pilotage.app.sites.connections.caller_for", lambda *_, **__: cluster)
    words = ["--folder", "/local/me", "--pilots", "6", "--gpus", "1"]
    warned = [
        "the folder /local/me does not exist yet; it is created when first needed",
        "the folder /local/me is on tmpfs, a disk of the login node only: nodes may not see it",
        "the queue 'main' reports no GPU, but a pilot asks for 1",
        "its batch system takes 5 jobs at most, fewer than 6 pilots",
    ]
    assert json.loads(run("site", "add", "lyon", *words, "--dry-run", "--json").stdout)["warnings"] == warned
    assert run("site", "add", "lyon", *words).stderr.splitlines() == [f"warning: {each}" for each in warned]


@pytest.mark.parametrize("folder, told", [("there", "yes yes"), ("new/er", "no yes"), ("file", "no no")])
def test_a_folder_that_is_asked_for_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, told: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    here = LocalCaller()

    class Login(Cluster):
        def run(self, call: Call) -> Answer:
            return here.run(call) if call.argv == ("sh",) else super().run(call)

    found = discover(Login(), chosen=RequestedValues(folder=folder)).folder
    assert found is not None
    assert f"{'yes' if found.there else 'no'} {'yes' if found.writable else 'no'}" == told
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith(".pilotage")) == []


def test_lines_of_setup_come_before_all_that_is_looked_at_there_and_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "module"
    folder.mkdir()
    for name, said in {"sbatch": "slurm 22.05.8", "squeue": "", "sinfo": SINFO, "scontrol": CONFIG}.items():
        (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
        (folder / name).chmod(0o755)
    (folder / "python3").write_text("#!/bin/sh\necho 3.13.1\n")
    (folder / "python3").chmod(0o755)
    tools = tmp_path / "tools"  # a computer without Slurm
    tools.mkdir()
    for each in Path("/usr/bin").iterdir():
        if each.name not in ("sbatch", "squeue", "sinfo", "scontrol", "sacct", "scancel"):
            (tools / each.name).symlink_to(each)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tools))
    assert "no batch system was found there" in refused("site", "add", "lyon", "--kind", "slurm")
    told = json.loads(run("site", "add", "lyon", "--setup", f"PATH={folder}:$PATH", "--setup", "true", "--json").stdout)
    assert (told["found"]["kind"], told["entry"]["setup"]) == ("slurm", [f"PATH={folder}:$PATH", "true"])
    assert told["found"]["pythons"][0] == {"word": "python3", "version": "3.13.1"}
    assert f"PATH={folder}:$PATH" in (tmp_path / "sites.yaml").read_text()


def test_a_login_node_that_is_not_reached_is_told_in_the_words_of_ssh() -> None:
    class Away(Cluster):
        def run(self, call: Call) -> Answer:
            raise Unknown("ssh lyon: Permission denied (publickey)")

    with pytest.raises(DiscoveryFailed, match="Permission denied"):
        discover(Away())
    assert "python3.8" in PYTHONS


def test_sites_are_listed_from_their_file_where_no_service_runs(tmp_path: Path) -> None:
    assert "there are no sites" in run("site", "list").stdout
    (tmp_path / "sites.yaml").write_text("pilotage: 1\nsites:\n  - {name: lyon, kind: slurm}\n")
    assert run("site", "list").stdout.split("\n")[1].split()[:4] == ["lyon", "slurm", "not", "served"]
    told = json.loads(run("site", "list", "--json").stdout)
    assert [(each["site"], each["status"]) for each in told["sites"]] == [("lyon", "not served")]
    shown = json.loads(run("site", "show", "lyon", "--json").stdout)
    assert (shown["site"]["status"], shown["entry"]) == ("not served", {"name": "lyon", "kind": "slurm"})
    assert run("site", "explain", "lyon").stdout.split("\n")[:2] == [
        "lyon: not served",
        "  no service runs here, so no site gets work",
    ]
    explained = json.loads(run("site", "explain", "lyon", "--json").stdout)
    assert (explained["site"], explained["status"], explained["reasons"]) == ("lyon", "not served", [])
    assert "no such site in this file" in refused("site", "show", "lille")
    assert "did you mean 'lyon'" in refused("site", "show", "loyn")
    (tmp_path / "sites.yaml").write_text("pilotage: 1\nsites:\n  - {name: lyon, kidn: slurm}\n")
    assert "did you mean 'kind'" in refused("site", "list")


def test_pilots_are_shown_as_queued_and_live_and_told_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sites.yaml").write_text("pilotage: 1\nsites:\n  - {name: lyon, kind: slurm}\n")
    told = written_sites(None)
    told["sites"][0] |= {"status": "candidate", "pilots_queued": 2, "pilots_live": 3, "slots": 12, "used": 7}
    monkeypatch.setattr("pilotage.cli.sites.site._all_sites", lambda *_: told)
    head, line = run("site", "list").stdout.splitlines()
    shown = dict(zip(head.split(), line.split(), strict=True))
    assert (shown["PILOTS"], shown["SLOTS"], shown["USED"]) == ("2/3", "12", "7")
    (site,) = json.loads(run("site", "list", "--json").stdout)["sites"]
    assert (site["pilots_queued"], site["pilots_live"]) == (2, 3)


def test_every_field_of_a_listed_site_is_told_by_the_service_and_from_the_file_and_documented(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "sites.yaml").write_text("pilotage: 1\nsites:\n  - {name: lyon, kind: slurm}\n")
    told = json.loads(run("site", "list", "--json").stdout)
    fields = [field.name for field in msgspec.structs.fields(SiteView)]
    assert sorted(told["sites"][0]) == sorted(fields)
    _, page = re.split(r"With `--json` it\s+prints `file`", (root / "docs/reference/cli.md").read_text("utf-8"))
    rows = [line.split("|")[1] for line in page.split("\n\n")[1].splitlines()[2:]]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(fields)


def test_one_site_is_shown_from_the_file_in_the_form_that_a_service_has_for_it(tmp_path: Path) -> None:
    (tmp_path / "sites.yaml").write_text("pilotage: 1\nsites:\n  - {name: lyon, kind: slurm}\n")
    shown = json.loads(run("site", "show", "lyon", "--json").stdout)
    assert sorted(shown) == sorted(field.name for field in msgspec.structs.fields(SiteDetail))
    assert sorted(shown["site"]) == sorted(field.name for field in msgspec.structs.fields(SiteView))


def test_a_site_is_removed_and_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("pilotage: 1\nsites:\n  - name: lyon\n    kind: slurm\n")
    assert "did you mean 'lyon'" in refused("site", "remove", "loyn", "--sites", "mine.yaml")
    assert json.loads(run("site", "remove", "lyon", "--sites", "mine.yaml", "--json").stdout)["removed"] is True
    assert (tmp_path / "mine.yaml").read_text() == "pilotage: 1\nsites: []\n"


def test_a_file_that_is_named_and_not_there_is_refused_but_for_a_site_that_is_added() -> None:
    for words in (["list"], ["remove", "lyon"], ["test", "lyon"]):
        assert "there is no such file of sites" in refused("site", *words, "--sites", "mine.yaml")
    assert "no batch system" in refused("site", "add", "lyon", "--sites", "mine.yaml", "--kind", "dirac")


def test_a_bad_name_address_or_kind_is_refused_before_anything_is_called(tmp_path: Path) -> None:
    assert "cannot name a site" in refused("site", "add", "no good")
    assert "ssh://HOST" in refused("site", "add", "lyon", "http://lyon")
    assert "this kind of batch system is unknown" in refused("site", "add", "lyon", "--kind", "slrum")
    assert not (tmp_path / "sites.yaml").exists()


def test_the_schema_of_the_file_is_printed() -> None:
    told = json.loads(run("schema", "--sites").stdout)
    assert "SiteEntry" in told["$defs"]


def test_the_agent_is_started_from_one_file_which_is_made(tmp_path: Path) -> None:
    told = json.loads(run("site", "agent", "--json", "--server", "https://x", "--site", "lyon").stdout)
    assert told["command"][-4:] == ["--server", "https://x", "--site", "lyon"]
    assert Path(told["command"][3]).is_file()


def test_a_token_is_for_a_site_that_is_written_down_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    assert "no such site" in refused("site", "token", "lyon", "--output", "t")
    (tmp_path / "sites.yaml").write_text("pilotage: 1\nsites:\n  - {name: lyon, kind: slurm}\n")
    run("site", "token", "lyon", "--output", "t")
    file = tmp_path / "t"
    assert (file.stat().st_mode & 0o777, file.read_text().count(".")) == (0o600, 2)


def test_a_probe_is_waited_for_until_its_service_gives_it_up(tmp_path: Path) -> None:
    assert probe_wait_seconds() == EngineSettings().probe_timeout_seconds + LATE_SECONDS
    (tmp_path / "pilotage.toml").write_text("[engine]\nprobe_timeout_seconds = 5\n")
    assert probe_wait_seconds() == 5 + LATE_SECONDS


def test_probes_are_of_sites_that_are_named_or_of_all() -> None:
    assert "--all" in refused("site", "probe")
    assert "--all" in refused("site", "probe", "lyon", "--all")
