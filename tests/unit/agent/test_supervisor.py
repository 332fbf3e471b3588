from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.sites.local import LocalSettings, LocalSite
from pilotage.adapters.sites.zipapp import build
from pilotage.agent.processes import descendants, sweep
from pilotage.agent.supervisor import have_files_for
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.resources import Capacity
from tests.kit.agent_service import AgentService, agent_service
from tests.kit.pilots import lives, wait_for_end, wait_until

# It does not heed a SIGTERM, and leaves a daemon behind that does not either and is in a session of its own; a second
# one has dropped its environment, and with that our mark.
STUBBORN = """
trap '' TERM
setsid sh -c 'echo $$ > {0}/marked.new; mv {0}/marked.new {0}/marked; exec sleep 1000' &
env -i setsid sh -c 'echo $$ > {0}/unmarked.new; mv {0}/unmarked.new {0}/unmarked; exec sleep 1000' &
echo $$ > {0}/main.new; mv {0}/main.new {0}/main
sleep 1000
"""
ALL = ("main", "marked", "unmarked")

# Makes files in a folder without end. There are so many at first that more come while they are removed.
UNTIRING = """
import contextlib, itertools, pathlib, sys
folder, told = map(pathlib.Path, sys.argv[1:])
folder.mkdir()
for number in itertools.count():
    with contextlib.suppress(FileNotFoundError):
        (folder / str(number)).touch()
    if number == 10_000:
        told.touch()
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("agent") / "agent.pyz")


class Scene:
    """A service, a site of this computer, and a pilot with a stubborn attempt."""

    def __init__(self, folder: Path, agent: Path, service: AgentService) -> None:
        self.folder = folder
        self.service = service
        self.settings = LocalSettings(
            site="here", state=folder / "state", agent=agent, server=service.address, grace_seconds=1.0,
            capacity=Capacity(cores_hundredths=200), idle_seconds=60.0,
        )  # fmt: skip
        self.site = LocalSite(self.settings)

    def begin(self, key: str = "here-1") -> int:
        self.ref = self.service.give(1, ("/bin/sh", "-c", STUBBORN.format(self.folder)), folder=self.folder)
        self.supervisor = int(self.site.submit_pilots(key)[0])
        wait_until(lambda: all((self.folder / name).exists() for name in ALL))
        (self.agent,) = [pid for pid in descendants(self.supervisor) if _parent(pid) == self.supervisor]
        return self.agent

    def pids(self, *names: str) -> list[int]:
        return [int((self.folder / name).read_text()) for name in names]

    def all_gone(self, *names: str) -> bool:
        return not any(lives(pid) for pid in (*self.pids(*(names or ALL)), self.supervisor, self.agent))

    def clear(self) -> None:
        self.site.listing()
        for name in ALL:
            if (self.folder / name).exists():
                for pid in self.pids(name):
                    if lives(pid):
                        os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def scene(tmp_path: Path, agent: Path) -> Iterator[Scene]:
    with agent_service(tmp_path / "agent.sock", interval_seconds=0.5) as service:
        made = Scene(tmp_path, agent, service)
        try:
            yield made
        finally:
            service.send_away("end of the test")
            for seen in made.site.listing().values():
                if not seen.ended:
                    os.kill(int(seen.native_id), signal.SIGTERM)
            wait_until(lambda: all(seen.ended for seen in made.site.listing().values()))
            made.clear()
            made.site.close()


def test_when_the_agent_dies_nothing_of_it_is_left_and_its_end_is_told(scene: Scene) -> None:
    os.kill(scene.begin(), signal.SIGKILL)
    wait_until(scene.all_gone)
    assert scene.service.types()[-1] == "PilotEnded"
    seen = wait_for_end(scene.site)
    assert (seen.ended, seen.reason) == (True, "killed")
    assert "the agent ended with signal 9" in seen.stderr
    assert scene.site.listing() == {}
    assert [*(scene.folder / "state" / "scratch").iterdir(), *(scene.folder / "state" / "spool").glob("*.*")] == []


def test_when_the_supervisor_dies_the_agent_ends_everything_and_says_so(scene: Scene) -> None:
    scene.begin()
    os.kill(scene.supervisor, signal.SIGKILL)
    wait_until(scene.all_gone)
    assert scene.service.finished[scene.ref]["reason"] == "preempted"
    assert scene.service.types()[-1] == "PilotEnded"
    assert wait_for_end(scene.site).reason == "supervisor-gone"


def _kill_both(scene: Scene) -> None:
    scene.begin()
    os.kill(scene.supervisor, signal.SIGSTOP)  # so that neither has time for the other
    os.kill(scene.agent, signal.SIGKILL)
    os.kill(scene.supervisor, signal.SIGKILL)
    wait_until(lambda: not lives(scene.supervisor) and not lives(scene.agent))
    assert all(map(lives, scene.pids("main", "marked")))


def test_what_survives_both_is_swept_as_soon_as_the_site_sees_that_they_are_gone(scene: Scene) -> None:
    _kill_both(scene)
    assert wait_for_end(scene.site).reason == "killed"
    wait_until(lambda: not any(map(lives, scene.pids("main", "marked"))))
    scene.service.wait_for(lambda: scene.service.types()[-1] == "PilotEnded")
    wait_until(lambda: not list((scene.folder / "state" / "scratch").iterdir()))
    wait_until(lambda: not list((scene.folder / "state" / "spool").glob("*.*")))


def test_what_survives_both_is_swept_when_the_next_pilot_starts(scene: Scene) -> None:
    _kill_both(scene)
    first = scene.service.said[0].exchange.pilot
    scene.site.submit_pilots("here-2")
    wait_until(lambda: not any(map(lives, scene.pids("main", "marked"))))
    scene.service.wait_for(lambda: scene.service.types(first)[-1] == "PilotEnded")
    wait_until(lambda: len(list((scene.folder / "state" / "scratch").iterdir())) == 1)


def test_a_pilot_told_to_end_tells_of_what_it_ran_and_leaves_nothing(scene: Scene) -> None:
    scene.begin()
    os.kill(scene.supervisor, signal.SIGINT)
    os.kill(scene.supervisor, signal.SIGHUP)
    assert lives(scene.supervisor)
    scene.site.cancel("here-1")
    wait_until(scene.all_gone)
    assert scene.service.finished[scene.ref]["reason"] == "preempted"
    assert wait_for_end(scene.site).reason == "terminated"
    assert list((scene.folder / "state" / "scratch").iterdir()) == []


def test_an_agent_that_does_not_heed_is_killed_by_its_supervisor(scene: Scene) -> None:
    os.kill(scene.begin(), signal.SIGSTOP)
    os.kill(scene.supervisor, signal.SIGTERM)
    wait_until(scene.all_gone)
    assert wait_for_end(scene.site).reason == "killed"


def test_a_cancelled_attempt_takes_its_daemons_with_it_and_the_pilot_goes_on(scene: Scene) -> None:
    scene.begin()
    scene.service.wait_for(lambda: any(scene.ref in says.exchange.held for says in scene.service.said))
    scene.service.cancel(scene.ref)
    scene.service.wait_for(lambda: scene.ref in scene.service.finished)
    wait_until(lambda: not any(map(lives, scene.pids(*ALL))))
    other = scene.service.give(2, ("/bin/true",), folder=scene.folder)
    scene.service.wait_for(lambda: other in scene.service.finished)
    assert scene.service.finished[other]["exit_code"] == "SUCCESS"
    assert isinstance(other, AttemptRef)


def test_what_runs_when_a_pilot_gives_up_on_its_service_is_ended_before_its_folder_is_removed(scene: Scene) -> None:
    (scene.folder / "untiring.py").write_text(UNTIRING)
    told = scene.folder / "told"
    command = f"env -i setsid {sys.executable} {scene.folder}/untiring.py $PWD/work {told} & sleep 1000"
    scene.service.give(1, ("/bin/sh", "-c", command), folder=scene.folder)
    hasty = LocalSite(msgspec.structs.replace(scene.settings, outlive_seconds=1.0))
    hasty.submit_pilots("here-1")
    wait_until(told.exists)
    scene.service.stop()
    wait_for_end(hasty)
    hasty.close()
    assert list((scene.folder / "state" / "scratch").iterdir()) == []


def test_sweeping_ends_only_what_carries_the_mark() -> None:
    environment = {"PATH": os.environ["PATH"], "PILOTAGE_MARK": "a-test.1"}
    marked = os.posix_spawn("/bin/sleep", ["sleep", "1000"], environment)
    other = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {**environment, "PILOTAGE_MARK": "a-test.12"})
    try:
        wait_until(lambda: b"PILOTAGE_MARK" in Path(f"/proc/{marked}/environ").read_bytes())
        assert sweep({"a-test.1"}) == [marked]
        assert not lives(marked)
        assert lives(other)
        assert sweep(set()) == []
    finally:
        for pid in (marked, other):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.parametrize(
    "soft, hard, after",
    [(1024, 4096, 1664), (1024, 1200, 1200), (2000, 4096, None), (1024, resource.RLIM_INFINITY, 1664)],
)
def test_an_agent_may_have_as_many_files_open_as_its_slots_need_where_the_system_lets_it(
    soft: int, hard: int, after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    have_files_for(200)
    assert asked == ([] if after is None else [(after, hard)])
