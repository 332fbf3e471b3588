from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.sites.local import LocalSettings, LocalSite
from pilotage.adapters.sites.zipapp import archive, build, build_in
from pilotage.agent.processes import descendants
from pilotage.model.resources import Capacity, Demand
from pilotage.model.version import VERSION
from pilotage.ports import SubmissionRefused
from tests.kit.agent_service import AgentService, agent_service
from tests.kit.pilots import lives, wait_for_end, wait_until
from tests.kit.pythons import pythons


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("agent") / "agent.pyz")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[AgentService]:
    with agent_service(tmp_path / "agent.sock", interval_seconds=0.5) as running:
        yield running


@pytest.fixture
def settings(tmp_path: Path, agent: Path, service: AgentService) -> LocalSettings:
    capacity = Capacity(cores_hundredths=100)
    return LocalSettings(
        site="here", state=tmp_path / "state", agent=agent, server=service.address, grace_seconds=1.0, capacity=capacity
    )


def _finish(site: LocalSite) -> None:
    for key in site.listing():
        site.cancel(key)
    wait_until(lambda: not site.listing())
    site.close()


@pytest.mark.parametrize("interpreter", pythons(range(8, 14)) or [sys.executable])
def test_the_agent_runs_under_every_python_of_this_computer(
    interpreter: str, agent: Path, tmp_path: Path, service: AgentService
) -> None:
    ref = service.give(1, ("/bin/true",), folder=tmp_path)
    words = [
        interpreter,
        "-I",
        "-S",
        str(agent),
        "pilot",
        "--request=here-1",
        "--site=here",
        f"--state={tmp_path}/state",
    ]
    started = subprocess.Popen([*words, f"--server={service.address}", "--slots=1"], stderr=subprocess.PIPE)
    try:
        service.wait_for(lambda: ref in service.finished)
        service.send_away("done")
        _, said = started.communicate(timeout=20)
    finally:
        started.kill()
        started.wait()
    assert service.finished[ref]["exit_code"] == "SUCCESS", said
    assert started.returncode == 0
    assert b"Traceback" not in said


def test_equal_sources_make_equal_archives_in_every_process() -> None:
    program = "import sys; from pilotage.adapters.sites.zipapp import archive; sys.stdout.buffer.write(archive())"
    seeds = ({**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2"))
    made = [subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=env) for env in seeds]
    assert made[0].stdout == made[1].stdout == archive()


def test_entries_of_the_archive_are_plain_files_of_no_particular_time(agent: Path) -> None:
    entries = zipfile.ZipFile(agent).infolist()
    assert {each.external_attr >> 16 for each in entries} == {0o644}
    assert {each.date_time for each in entries} == {(1980, 1, 1, 0, 0, 0)}


def test_the_archive_holds_the_agent_and_nothing_else(agent: Path) -> None:
    modules = {name for name in zipfile.ZipFile(agent).namelist() if name.endswith(".py")}
    assert {"__main__.py", "pilotage/__init__.py", "pilotage/agent/pilot/pilot.py"} <= modules
    assert all(name.startswith("pilotage/agent/") for name in modules - {"__main__.py", "pilotage/__init__.py"})
    said = subprocess.run([sys.executable, "-I", "-S", agent, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"pilotage-agent {VERSION}\n"


def test_an_old_python_reads_the_first_file_of_the_archive_and_says_which_one_is_needed(agent: Path) -> None:
    source = zipfile.ZipFile(agent).read("__main__.py").decode()
    read = ast.parse(source, feature_version=(3, 6))
    before = read.body[: [type(node) for node in read.body].index(ast.If)]
    assert [ast.unparse(node) for node in before] == ["import sys"]
    older = (
        "import runpy, sys; sys.version_info = (3, 6, 8, 'final', 0); "
        f"sys.argv = ['agent', 'pilot']; runpy.run_path({str(agent)!r}, run_name='__main__')"
    )
    said = subprocess.run([sys.executable, "-I", "-c", older], capture_output=True, text=True, check=False)
    needed = f"pilotage-agent: Python 3.8 or newer is needed, this is 3.6: {sys.executable}\n"
    assert (said.returncode, said.stdout, said.stderr) == (1, "", needed)


def test_an_archive_that_is_there_is_left_alone_and_a_damaged_one_is_replaced(tmp_path: Path) -> None:
    file = build(tmp_path / "agent.pyz")
    inode = file.stat().st_ino
    assert build(file).stat().st_ino == inode
    file.write_bytes(b"something else")
    assert build(file).read_bytes() == archive()
    assert [entry.name for entry in tmp_path.iterdir()] == ["agent.pyz"]
    content = bytearray(archive())
    content[len(content) // 2] ^= 1  # its end tells what it should be, and its middle is not that
    file.write_bytes(content)
    assert build(file).read_bytes() == archive()


def test_an_agent_is_held_against_its_digest_before_it_is_started(
    settings: LocalSettings, service: AgentService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = build(tmp_path / "own.pyz")
    site = LocalSite(msgspec.structs.replace(settings, agent=file))
    file.write_text("import sys; sys.exit('I am somebody else')")
    site.submit_pilots("here-1")
    service.wait_for(lambda: service.said)
    assert file.read_bytes() == archive()
    _finish(site)
    site = LocalSite(msgspec.structs.replace(settings, agent=file))
    file.unlink()
    monkeypatch.setattr("pilotage.adapters.sites.zipapp._MAIN", "# another version was installed meanwhile\n")
    with pytest.raises(SubmissionRefused, match=r"own\.pyz has changed since it was written: restart the service"):
        site.submit_pilots("here-2")
    assert not site.listing()
    site.close()


@contextmanager
def waiting(words: list[str], *, folder: Path) -> Iterator[None]:
    """A process with these words in its command, as long as the block runs."""
    waits = "import sys; print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-I", "-c", waits, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder) as running:
        assert running.stdout is not None
        running.stdout.readline()
        yield
        running.communicate()


def test_an_agent_of_a_state_folder_is_named_by_what_is_in_it_and_stays_as_long_as_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_in(tmp_path)
    assert build_in(tmp_path) == first
    (tmp_path / "agent-0.0.pyz").write_bytes(b"of a version before")
    with waiting([str(first)], folder=tmp_path):
        monkeypatch.setattr("pilotage.adapters.sites.zipapp._MAIN", "# the code changes, the version does not\n")
        second = build_in(tmp_path)
        assert {entry.name for entry in tmp_path.iterdir()} == {first.name, second.name}
        assert first.name != second.name
    elsewhere = tmp_path / "elsewhere" / first.name  # of another folder, by the same name
    with waiting([str(elsewhere)], folder=tmp_path):
        assert build_in(tmp_path) == second
        assert [entry.name for entry in tmp_path.iterdir()] == [second.name]
    first.write_bytes(b"once more")
    with waiting([first.name], folder=tmp_path):
        build_in(tmp_path)
        assert first.exists()  # nobody knows from where it was meant


def test_a_pilot_has_what_the_site_gives_and_its_stderr_is_told_when_it_ends(
    settings: LocalSettings, service: AgentService
) -> None:
    site = LocalSite(settings)
    site.submit_pilots("here-1")
    service.wait_for(lambda: service.said)
    exchange = service.said[0].exchange
    assert exchange.pilot.startswith("here-1.")
    assert (exchange.site, exchange.capacity.cores_hundredths) == ("here", 100)
    assert exchange.capacity.memory_bytes > 0
    assert exchange.capacity.scratch_bytes > 0
    service.send_away("no more work")
    ended = wait_for_end(site)
    assert ended.reason == "no more work"
    assert "leaving: no more work" in ended.stderr
    assert list((settings.state / "pilots").iterdir()) == []
    assert list((settings.state / "scratch").iterdir()) == []
    site.close()


def test_what_was_started_before_a_site_was_let_go_of_leaves_no_dead_process_behind(
    settings: LocalSettings, service: AgentService
) -> None:
    first = LocalSite(settings)
    (pid,) = first.submit_pilots("here-1")
    service.wait_for(lambda: service.said)
    first.close()
    second = LocalSite(settings)
    service.send_away("no more work")
    wait_for_end(second)
    wait_until(lambda: not second.listing() and not Path("/proc", pid).exists())
    second.close()


def test_an_agent_for_one_attempt_runs_it_and_ends(
    settings: LocalSettings, service: AgentService, tmp_path: Path
) -> None:
    ref = service.give(1, ("/bin/true",), folder=tmp_path)
    site = LocalSite(settings)
    site.submit_attempt("job:1.1.1:1", ref=ref, demand=Demand(cores_hundredths=200, memory_bytes=1 << 20))
    ended = wait_for_end(site)
    assert ended.reason == "finished"
    assert service.finished[ref]["exit_code"] == "SUCCESS"
    exchange = service.said[0].exchange
    assert (exchange.serves, exchange.capacity.cores_hundredths, exchange.backlog) == (ref, 200, 0)
    site.close()


def test_a_pilot_that_cannot_start_is_told_with_what_it_said(settings: LocalSettings, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pyz"
    broken.write_text("raise SystemExit('no such thing')")
    site = LocalSite(msgspec.structs.replace(settings, agent=broken))
    site.submit_pilots("here-1")
    ended = wait_for_end(site)
    assert (ended.reason, ended.stderr) == ("failed", "no such thing")
    site.close()


def test_an_interpreter_that_is_not_there_is_a_refusal(settings: LocalSettings) -> None:
    site = LocalSite(msgspec.structs.replace(settings, interpreter="/nowhere/python"))
    with pytest.raises(SubmissionRefused) as refused:
        site.submit_pilots("here-1")
    assert refused.value.reason == "platform-failure"
    assert site.listing() == {}
    site.close()


def test_a_pilot_whose_starter_died_before_it_wrote_anything_down_is_found(
    settings: LocalSettings, service: AgentService
) -> None:
    site = LocalSite(settings)
    native_id = site.submit_pilots("here-1")[0]
    record = settings.state / "pilots" / "here-1.json"
    wait_until(lambda: "pilot" in json.loads(record.read_text() or "{}"))
    again = LocalSite(settings)
    assert again.submit_pilots("here-1")[0] == native_id
    assert again.listing()["here-1"].native_id == native_id
    _finish(again)
    _finish(site)


def test_a_process_number_that_is_another_s_now_is_left_alone(settings: LocalSettings) -> None:
    site = LocalSite(settings)
    pid = int(site.submit_pilots("here-1")[0])
    record = settings.state / "pilots" / "here-1.json"
    wait_until(lambda: "pilot" in json.loads(record.read_text() or "{}"))
    other = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {})
    said = json.loads(record.read_text())
    record.write_text(json.dumps({**said, "pid": other}))
    site.cancel("here-1")
    assert lives(other)
    assert lives(pid)
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    record.write_text(json.dumps(said))
    _finish(site)


def test_a_supervisor_that_does_not_heed_is_killed_by_the_site_with_everything_below_it(
    settings: LocalSettings, service: AgentService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage.adapters.sites.local.OVERDUE_SECONDS", 0.0)
    service.give(
        1, ("/bin/sh", "-c", f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 1000"), folder=tmp_path
    )
    site = LocalSite(settings)
    pid = int(site.submit_pilots("here-1")[0])
    wait_until((tmp_path / "pid").exists)
    os.kill(pid, signal.SIGSTOP)
    site.cancel("here-1")
    wait_for_end(site)
    assert not lives(pid)
    wait_until(lambda: not lives(int((tmp_path / "pid").read_text())))
    site.close()


def test_the_end_of_a_pilot_is_told_although_its_record_was_removed_by_a_service_that_died(
    settings: LocalSettings, service: AgentService
) -> None:
    site = LocalSite(settings)
    site.submit_pilots("here-1")
    record = settings.state / "pilots" / "here-1.json"
    wait_until(lambda: "pilot" in json.loads(record.read_text() or "{}"))
    said = json.loads(record.read_text())
    service.wait_for(lambda: service.types(said["pilot"]))
    both = (said["pid"], *descendants(said["pid"]))
    for pid in both:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(lives, both)))
    record.unlink()
    service.stop()
    assert site.listing() == {}  # nobody can be told yet; who is to tell it waits
    service.listen(settings.state.parent / "agent.sock")
    service.wait_for(lambda: service.types(said["pilot"])[-1] == "PilotEnded")
    wait_until(lambda: not site.listing() and not list((settings.state / "spool").iterdir()))
    site.close()


def test_the_environment_of_the_service_is_not_that_of_the_agent(
    settings: LocalSettings, service: AgentService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTAGE_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    service.give(1, ("/bin/sh", "-c", f"env > {tmp_path}/environment"), folder=tmp_path)
    site = LocalSite(settings)
    site.submit_pilots("here-1")
    service.wait_for(lambda: service.finished)
    said = (tmp_path / "environment").read_text()
    assert "PILOTAGE_TOKEN=" not in said
    assert "PILOTAGE_MARK=here-1." in said
    assert "PYTHONPATH=/nowhere" in said  # the user's own, for the user's programs
    _finish(site)
    shutil.rmtree(settings.state)


@pytest.mark.parametrize("refused_from", [0, 2])
def test_of_several_pilots_those_before_a_refusal_count_and_without_any_it_is_told(
    settings: LocalSettings, monkeypatch: pytest.MonkeyPatch, refused_from: int
) -> None:
    started: list[str] = []

    def submit(_: LocalSite, key: str) -> str:
        if len(started) == refused_from:
            raise SubmissionRefused("too many processes", reason="platform-failure")
        started.append(key)
        return f"native of {key}"

    monkeypatch.setattr(LocalSite, "_submit_pilot", submit)
    site = LocalSite(settings)
    if refused_from == 0:
        with pytest.raises(SubmissionRefused, match="too many processes"):
            site.submit_pilots("here-1", count=3)
    else:
        assert site.submit_pilots("here-1", count=3) == ["native of here-1", "native of here-2"]
    site.close()
