"""Running commands at a site, here and over a real SSH server: as they are, with an end in any case, by one connection."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from pilotage.adapters.sites.batch import LOOK_SECONDS
from pilotage.adapters.sites.commands import (
    CALL_SECONDS_MAX,
    BadAddress,
    Caller,
    LocalCaller,
    Ssh,
    command_line,
    parse_address,
)
from pilotage.agent.batch import Answer, Call, Unknown
from pilotage.agent.batch.submitter import in_login_shell
from pilotage.agent.site.agent import CALL_SECONDS
from pilotage.app.site_setup.testing import CheckFailed, DirectChecks
from pilotage.model.settings.settings import Settings
from pilotage.model.sites.entry import SiteEntry
from pilotage.service.sites.agent_worker import INTERVAL_SECONDS
from tests.engines.debian import ensure_programs
from tests.engines.postgres import free_port
from tests.engines.sshd import SshServer
from tests.kit.pilots import lives, wait_until

TELL = "import sys; sys.stdout.write(repr(sys.argv[1:]) + sys.stdin.read()); sys.stderr.write('odd'); sys.exit(7)"
WORDS = ["plain", "two words", "it's", '"$(id)"', "`id`", "a\nb", "*", "~", "", "-n", "é", "!x"]


@pytest.fixture(params=["here", "ssh"])
def caller(request: pytest.FixtureRequest, tmp_path: Path) -> Caller:
    if request.param == "here":
        return LocalCaller(seconds_max=20.0)
    return _ssh(request.getfixturevalue("ssh_server"), tmp_path)


def _ssh(server: SshServer, state: Path, *, seconds_max: float = 20.0) -> Ssh:
    return Ssh(server.address, state=state, configuration=str(server.configuration()), seconds_max=seconds_max)


def test_words_and_input_reach_a_command_as_they_are_and_its_answer_comes_back(caller: Caller) -> None:
    answer = caller.run(Call((sys.executable, "-c", TELL, *WORDS), "first\nlast é\udcff"))
    caller.close()
    assert answer == (7, f"{WORDS!r}first\nlast é\udcff", "odd")


@pytest.mark.parametrize("shell", ["sh", "bash", "tcsh"])
def test_the_login_shell_of_an_account_may_be_any(shell: str) -> None:
    ensure_programs([shell], packages=[shell] if shell == "tcsh" else ["bash"])
    words = [sys.executable, "-c", TELL, *WORDS, "\\n", "100 %", "two\n\nlines\n"]
    done = subprocess.run([shell, "-c", command_line(words)], input="in", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, f"{words[3:]!r}in", "odd")
    begun = in_login_shell(lambda call: _told(subprocess.run(
        [shell, "-c", command_line(call.argv)], input=call.stdin, capture_output=True, text=True, check=False
    )))  # fmt: skip
    assert begun(Call(("sh", "-c", "cat; exit 3"), "in")) == Answer(3, "in", "")


def _told(done: subprocess.CompletedProcess[str]) -> Answer:
    return Answer(done.returncode, done.stdout, done.stderr)


def test_a_command_that_is_not_there_has_an_answer(caller: Caller) -> None:
    answer = caller.run(Call(("no-such-command-at-all",)))
    caller.close()
    assert answer.exit_status == 127
    assert "no-such-command-at-all" in answer.stderr


def test_what_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    script = f"sleep 600 & echo $$ $! > {file}; echo begun; wait"
    answer = LocalCaller(seconds_max=0.5).run(Call(("sh", "-c", script)))
    assert answer == (None, "begun\n", "")
    wait_until(lambda: not any(lives(int(pid)) for pid in file.read_text().split()))


def test_of_a_command_under_way_no_more_files_are_open_than_its_answer_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_the_command() -> int:
        return sum(file.startswith(str(folder)) for file in _open_files())

    folder, begun = tmp_path / "open", tmp_path / "begun"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    caller = LocalCaller()
    call = Call(("sh", "-c", f"touch {begun}; exec sleep 600"), "what it reads")
    thread = threading.Thread(target=caller.run, args=(call,))
    thread.start()
    try:
        wait_until(begun.exists)
        wait_until(lambda: of_the_command() == 2, 10.0)  # what it prints, and what it complains of
    finally:
        caller.close()
        thread.join()
    assert of_the_command() == 0


def _open_files() -> list[str]:
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(each.readlink()))
    return found


def test_closed_it_breaks_off_what_is_under_way_and_starts_nothing_more(caller: Caller, tmp_path: Path) -> None:
    file = tmp_path / "begun"
    answers: list[object] = []

    def run() -> None:
        try:
            answers.append(
                caller.run(Call(("sh", "-c", f"echo $$ >{file}.new; mv {file}.new {file}; exec sleep 20"))).exit_status
            )
        except Unknown:
            answers.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(file.exists)
    caller.close()
    thread.join(10.0)
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(file.read_text()), signal.SIGKILL)  # what runs on another computer goes on
    assert answers == [None]
    run()
    assert answers == [None, None]
    caller.close()


def test_our_settings_are_not_handed_on_and_messages_are_english(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PILOTAGE_X": "1", "LC_ALL": "fr_FR.UTF-8", "LANGUAGE": "fr"}.items():
        monkeypatch.setenv(name, value)
    told = dict(
        line.partition("=")[::2]
        for line in LocalCaller(environment={"MORE": "x"}).run(Call(("env",))).stdout.split("\n")
    )
    assert not any(name.startswith("PILOTAGE_") for name in told)
    assert (told["LC_MESSAGES"], told["LANG"], told["MORE"]) == ("C", "fr_FR.UTF-8", "x")
    assert "LC_ALL" not in told
    assert "LANGUAGE" not in told


def test_all_commands_use_one_connection_which_is_closed_in_the_end(ssh_server: SshServer, tmp_path: Path) -> None:
    log = ssh_server.folder / "log"
    before = log.read_text().count("Accepted publickey")
    caller = _ssh(ssh_server, tmp_path / ("long" * 30))
    for _ in range(3):
        assert caller.run(Call(("true",))).exit_status == 0
    caller.close()
    assert log.read_text().count("Accepted publickey") == before + 1
    assert not Path(caller._folder).exists()


def test_what_ssh_says_is_told_where_nobody_answers(ssh_server: SshServer, tmp_path: Path) -> None:
    address = f"ssh://127.0.0.1:{free_port()}"
    caller = Ssh(address, state=tmp_path, configuration=str(ssh_server.configuration()))
    with pytest.raises(Unknown, match=r"ssh 127\.0\.0\.1: .*Connection refused"):
        caller.run(Call(("true",)))
    caller.close()


def test_a_computer_that_is_not_known_is_not_spoken_to(ssh_server: SshServer, tmp_path: Path) -> None:
    text = ssh_server.configuration().read_text()
    configuration = tmp_path / "ssh_config"
    configuration.write_text(text.replace("known_hosts", "nobody_is_known"))
    caller = Ssh(ssh_server.address, state=tmp_path, configuration=str(configuration))
    with pytest.raises(Unknown, match="Host key verification failed"):
        caller.run(Call(("true",)))
    caller.close()


def test_what_is_not_answered_in_time_is_not_known(ssh_server: SshServer, tmp_path: Path) -> None:
    caller = _ssh(ssh_server, tmp_path, seconds_max=1.0)
    with pytest.raises(Unknown, match=r"no answer within 1 s \(a start-up file of the shell there"):
        caller.run(Call(("sleep", "5")))
    caller.close()


@pytest.mark.parametrize(
    "address",
    [
        "ssh://-oProxyCommand=x",
        "ssh://-l@host",
        "ssh://us er@host",
        "http://host",
        "host",
        "ssh://",
        "ssh://h:99999",
        "ssh://h;id",
    ],
)
def test_an_address_that_ssh_could_misunderstand_is_refused(address: str) -> None:
    with pytest.raises(BadAddress):
        parse_address(address)


def test_an_address_is_taken_apart() -> None:
    assert parse_address("ssh://me@login.example.org:2222") == ("login.example.org", "me", 2222)
    assert parse_address("ssh://[::1]") == ("::1", "", 0)
    assert os.path.sep not in parse_address("ssh://login")[0]


def test_a_command_that_hangs_is_given_up_so_soon_that_it_is_told_within_a_minute() -> None:
    assert CALL_SECONDS_MAX + LOOK_SECONDS <= 60.0
    assert CALL_SECONDS + INTERVAL_SECONDS <= 60.0


class Impatient(LocalCaller):
    """Waits for a login shell only for a moment."""

    def run(self, call: Call) -> Answer:
        return LocalCaller(seconds_max=0.5).run(call) if "-l" in call.argv else super().run(call)


def test_a_login_shell_that_hangs_is_told_as_such_and_not_as_a_bad_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage.app.sites.connections.caller_for", lambda entry, state: Impatient())
    entry = SiteEntry(name="here", kind="slurm", folder=str(tmp_path / "site"), setup=("sleep 5",))
    looks = DirectChecks(entry, state=tmp_path, settings=Settings())
    with pytest.raises(CheckFailed, match=r"no answer in time: a start-up file of the shell there"):
        dict(looks.each())["install"]()
    looks.close()
