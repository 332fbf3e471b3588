"""The book as a user meets it: a real service, real processes beside it, and what happens when one of them goes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage import Producer
from pilotage.service.announcement import find_service
from tests.engines.postgres import free_port
from tests.kit.command_line import can_be_typed, typed
from tests.kit.real_runs import end_service
from tests.kit.waiting import wait_until

PROGRAM = Path(sys.executable).with_name("pilotage")
SHAPE = '[{"templates":[{"lines":3,"activities":["simulate"]}]}]'


class Desk:
    """A folder with a home of its own, in which commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "home").mkdir()

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PILOTAGE_", "XDG_")) and name not in ("COLUMNS", "NO_COLOR")
        }
        path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
        return kept | {"HOME": str(self.folder / "home"), "PATH": path, "LC_ALL": "C.UTF-8"}

    def run(self, *words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        given = self.environment | environment
        if can_be_typed(words, given):
            return typed(words, folder=self.folder, environment=given, stdin=stdin)
        done = subprocess.run(
            [str(PROGRAM), *words],
            cwd=self.folder,
            env=given,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def said(self, *words: str, **environment: str) -> str:
        """What a command prints that must succeed."""
        done = self.run(*words, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(PROGRAM), *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def service(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder / ".pilotage" / "service.json").read_text())
        return found

    def log(self, *events: tuple[str, dict[str, object], dict[str, object]]) -> None:
        """Log events as the service, which is quicker than a command for each."""
        told = self.service()
        with Producer(
            str(told["url"]),
            source="service",
            token_file=str(told["token_file"]),
            spool=self.folder / "spool",
            environment={},
        ) as producer:
            for name, data, about in events:
                producer.log(name, data, **about)  # type: ignore[arg-type]
            producer.flush()

    def register(self, job: str) -> None:
        """A job of three packages, of which the first runs."""
        first = {"job": job, "package": "1.1.1", "attempt": 1}
        self.log(
            ("JobRegistered", {"owner": "anna", "name": "sweep", "stages": json.loads(SHAPE)}, {"job": job}),
            ("JobAccepted", {}, {"job": job}),
            ("AttemptCreated", {"site": "lyon"}, first),
            ("AttemptStarted", {"node": "n17"}, first),
        )


@contextlib.contextmanager
def served(desk: Desk) -> Iterator[str]:
    """The service of a folder, in the background; its address."""
    said = desk.said("serve", "--book-only", "--port", "0", "--background")
    try:
        yield said.split()[-1]
    finally:
        if find_service(desk.folder / ".pilotage") is not None:
            end_service(desk.folder / ".pilotage")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk without a service."""
    if not PROGRAM.exists():
        pytest.skip("the program pilotage: install the project into this environment")
    return Desk(tmp_path / "desk")


@pytest.fixture(scope="module")
def served_desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk with a service, shared by all tests that leave it running."""
    if not PROGRAM.exists():
        pytest.skip("the program pilotage: install the project into this environment")
    desk = Desk(tmp_path_factory.mktemp("served") / "desk")
    with served(desk):
        yield desk


@pytest.fixture
def job(served_desk: Desk, request: pytest.FixtureRequest) -> str:
    """A job at the shared desk that is the test's own."""
    name = f"job-{zlib.crc32(request.node.name.encode()):08x}"
    served_desk.register(name)
    return name


def test_a_script_tracks_its_job_from_registration_to_query(served_desk: Desk) -> None:
    desk = served_desk
    desk.said("log", "JobRegistered", "--job", "sweep-1", "owner=anna", "name=sweep", f"stages={SHAPE}")
    about = ("--job", "sweep-1", "--package", "1.1.1", "--attempt", "1")
    desk.said("log", "AttemptCreated", "--source", "service", *about, "site=bari")
    desk.said("log", "AttemptStarted", *about, "node=n17")
    desk.said("tag", "study=A12", "sweep-1/001/001/001", "--now")
    assert desk.said("status", "sweep-1").startswith("sweep-1: RUNNING\n")
    told = json.loads(desk.said("query", "state=RUNNING and site=bari and tag.study=A12", "--json"))
    found = [(package["job"], package["id"], package["node"]) for package in told["packages"]]
    assert found == [("sweep-1", "1.1.1", "n17")]
    # A query that names its job finds the packages that nothing was heard of, too.
    assert desk.said("query", "--count", "job=sweep-1") == "3\n"
    types = [event["type"] for event in json.loads(desk.said("events", "sweep-1", "--json"))["events"]]
    assert types == ["JobRegistered", "AttemptCreated", "AttemptStarted", "Tagged"]
    (flow,) = json.loads(desk.said("statistics", "--json", "--site", "bari"))["flows"]
    assert flow["entries"]["RUNNING"] == 1


def test_a_job_of_a_server_elsewhere_is_tagged_by_its_name(served_desk: Desk, tmp_path: Path) -> None:
    served_desk.log(("JobRegistered", {"owner": "anna", "name": "far", "stages": json.loads(SHAPE)}, {"job": "far-1"}))
    elsewhere, told = Desk(tmp_path / "elsewhere"), served_desk.service()
    there = ("--server", str(told["url"]), "--token-file", str(told["token_file"]))
    assert elsewhere.run("tag", "study=A13", "far", *there, "--now").stderr == ""
    assert json.loads(served_desk.said("status", "far-1", "--json"))["job"]["tags"] == {"study": "A13"}
    # Nobody answers at port 1, so nobody says whether it is a name.
    away = elsewhere.run("tag", "study=A14", "far", "--server", "http://127.0.0.1:1")
    assert away.returncode == 0
    assert away.stderr.startswith("warning: far is used as the id of a job, not as a name: ")


def test_a_running_package_tags_itself(served_desk: Desk, job: str) -> None:
    environment = {
        "PILOTAGE_SERVER": str(served_desk.service()["url"]),
        "PILOTAGE_TOKEN_FILE": str(served_desk.service()["token_file"]),
        "PILOTAGE_JOB": job,
        "PILOTAGE_PACKAGE": "1.2.1",
        "PILOTAGE_ATTEMPT": "1",
        "PILOTAGE_SPOOL": str(served_desk.folder / "spool-of-the-node"),
    }
    served_desk.said("tag", "quality=good", "--now", **environment)
    told = json.loads(served_desk.said("status", f"{job}/1.2.1", "--json"))
    assert told["package"]["tags"] == {"quality": "good"}


def test_a_command_below_the_folder_finds_the_service(served_desk: Desk, job: str) -> None:
    below = served_desk.folder / "deep" / "deeper"
    below.mkdir(parents=True)
    done = subprocess.run(
        [str(PROGRAM), "status", job], cwd=below, env=served_desk.environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_unknown_job_is_answered_with_a_near_one(served_desk: Desk, job: str) -> None:
    done = served_desk.run("status", f"{job}x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: job {job}x: there is no such job here\n  did you mean {job}?\n"


def test_without_the_token_nothing_is_told(served_desk: Desk, job: str) -> None:
    done = served_desk.run("status", job, PILOTAGE_TOKEN="wrong-token-of-somebody")
    assert done.returncode == 2
    assert "no token, or an unknown one" in done.stderr


def test_following_shows_what_a_courier_brings_and_both_end_quietly(served_desk: Desk, job: str) -> None:
    following = served_desk.begin("events", job, "--follow", "--json")
    assert following.stdout is not None
    seen = [json.loads(following.stdout.readline())["type"] for _ in range(4)]
    served_desk.said("log", "Noted", "text=news", "--job", job, "--no-deliver")
    courier = served_desk.begin("courier")
    news = json.loads(following.stdout.readline())
    for each in (courier, following):
        each.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=60)
    assert (seen[0], news["data"], following.returncode, err) == ("JobRegistered", {"text": "news"}, 130, "")
    _, err = courier.communicate(timeout=60)
    assert (courier.returncode, err) == (130, "")


def test_a_follower_whose_reader_left_ends(served_desk: Desk, job: str) -> None:
    following = served_desk.begin("events", job, "--follow")
    assert following.stdout is not None
    for _ in range(4):
        following.stdout.readline()
    following.stdout.close()
    served_desk.log(("Noted", {"text": "news"}, {"job": job}))
    assert following.wait(timeout=60) == 0
    assert following.stderr is not None
    assert following.stderr.read() == ""
    following.stderr.close()


def test_a_second_service_is_refused_and_says_where_the_first_is(served_desk: Desk) -> None:
    url = served_desk.service()["url"]
    for words in (("serve", "--book-only"), ("serve", "--book-only", "--background"), ("book", "check")):
        done = served_desk.run(*words)
        assert (done.returncode, f"serve --stop`, or ask it: it answers at {url}" in done.stderr) == (2, True), (
            done.stderr
        )


def test_two_books_are_asked_as_one(served_desk: Desk, tmp_path: Path) -> None:
    other = Desk(tmp_path / "other")
    with served(other):
        served_desk.register("two-a")
        other.register("two-b")
        served_desk.register("two-c")
        both = ("job in (two-a, two-b, two-c)", "--jobs", "--server", ".", "--server", str(other.folder))
        first = json.loads(served_desk.said("query", "--json", "--limit", "2", *both))
        assert [job["id"] for job in first["jobs"]] == ["two-a", "two-b"]
        rest = json.loads(served_desk.said("query", "--json", "--cursor", first["next"], *both))
        assert [job["id"] for job in rest["jobs"]] == ["two-c"]
        assert served_desk.said("query", "--count", *both) == "3\n"


def test_what_is_logged_and_followed_survives_the_death_of_the_service(desk: Desk) -> None:
    (desk.folder / "pilotage.toml").write_text(f"[service]\nport = {free_port()}\n")
    desk.said("serve", "--book-only", "--background")
    try:
        desk.register("sweep-1")
        following = desk.begin("events", "sweep-1", "--follow", "--json")
        assert following.stdout is not None
        assert [json.loads(following.stdout.readline())["position"] for _ in range(4)] == [1, 2, 3, 4]
        os.kill(int(str(desk.service()["pid"])), signal.SIGKILL)
        desk.said("log", "Noted", "text=meanwhile", "--job", "sweep-1")
        assert desk.run("courier", "--once").returncode == 3
        desk.said("serve", "--book-only", "--background")
        assert desk.said("courier", "--once").splitlines()[1].split()[1:] == ["1", "0", "0"]
        news = json.loads(following.stdout.readline())
        assert (news["position"], news["data"]) == (5, {"text": "meanwhile"})
        following.send_signal(signal.SIGINT)
        following.communicate(timeout=60)
    finally:
        desk.run("serve", "--stop")


def test_a_service_ends_in_good_order_and_is_then_not_found(desk: Desk) -> None:
    serving = desk.begin("serve", "--book-only", "--port", "0")
    assert serving.stdout is not None
    assert serving.stdout.readline().startswith("serving sqlite:")
    serving.send_signal(signal.SIGTERM)
    _, err = serving.communicate(timeout=60)
    assert (serving.returncode, err) == (0, "")
    done = desk.run("kill", "x")
    assert (done.returncode, "does not run" in done.stderr) == (3, True)
    looked = desk.run("status", "x")  # its book is there all the same
    assert (looked.returncode, "there is no such job here" in looked.stderr) == (2, True)
    assert desk.run("serve", "--stop").returncode == 2


def test_what_is_logged_while_the_service_is_stopped_arrives_when_it_is_back(desk: Desk) -> None:
    with served(desk) as url:
        desk.register("sweep-1")
    desk.said("log", "Noted", "text=meanwhile", "--job", "sweep-1")
    with served(desk) as again:
        assert again == url
        assert desk.said("courier", "--once").splitlines()[1].split()[1:] == ["1", "0", "0"]
        assert "meanwhile" in desk.said("events", "sweep-1", "--query", "type=Noted")
    with socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))), served(desk) as elsewhere:
        assert elsewhere != url


def test_a_service_is_stopped_from_below_its_folder(desk: Desk) -> None:
    (desk.folder / "below").mkdir()
    desk.said("serve", "--book-only", "--port", "0", "--background")
    stopped = subprocess.run(
        [str(PROGRAM), "serve", "--stop"],
        cwd=desk.folder / "below",
        env=desk.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert stopped.stderr == f"stopped {desk.service()['url']}\n"
    assert desk.run("serve", "--stop").returncode == 2


def test_a_book_in_postgresql_is_served_and_looked_after(desk: Desk, postgres_url: str) -> None:
    journal = ("--journal", postgres_url)
    desk.said("serve", "--book-only", "--port", "0", "--background", *journal)
    try:
        desk.register("sweep-1")
        assert desk.said("status", "sweep-1").startswith("sweep-1: RUNNING\n")
        assert desk.said("query", "state=RUNNING and site=lyon", "--count") == "1\n"
        assert "another process" in desk.run("book", "check", *journal).stderr
    finally:
        desk.run("serve", "--stop")
    assert desk.said("book", "check", *journal) == "4 events: sound\n"
    assert desk.run("book", "retain", *journal).stderr == "nothing is due\n"


def test_a_service_that_cannot_start_says_why(desk: Desk) -> None:
    done = desk.run("serve", "--book-only", "--background", "--host", "192.0.2.1")
    assert done.returncode == 2
    assert "cannot listen" in done.stderr


@pytest.fixture
def usual_port_taken() -> Iterator[None]:
    """We have the usual port: services of other tests may have it for a while, and let it go."""
    ours: list[socket.socket] = []

    def take() -> bool:
        with contextlib.suppress(OSError):
            ours.append(socket.create_server(("127.0.0.1", 8642)))
        return bool(ours)

    wait_until(take, lambda: "somebody keeps the usual port", seconds=240.0)
    with ours[0]:
        yield


@pytest.mark.usefixtures("usual_port_taken")
def test_a_service_whose_usual_port_is_taken_says_so_and_takes_another(desk: Desk) -> None:
    done = desk.run("serve", "--book-only", "--background")
    try:
        assert (done.returncode, "another program uses port 8642" in done.stderr) == (0, True), done.stderr
        url = str(desk.service()["url"])
        assert done.stdout.endswith(f"at {url}\n")
        assert not url.endswith(":8642")
        assert desk.said("query", "state=RUNNING", "--count") == "0\n"
    finally:
        desk.run("serve", "--stop")
    serving = desk.begin("serve", "--book-only")
    assert serving.stdout is not None
    assert serving.stdout.readline().endswith(f"at {url}\n")  # the one that it had
    serving.send_signal(signal.SIGTERM)
    assert "another program uses port 8642" in serving.communicate(timeout=60)[1]


@pytest.mark.usefixtures("usual_port_taken")
@pytest.mark.parametrize("words, settings", [(("--port", "8642"), ""), ((), "[service]\nport = 8642\n")])
def test_a_port_that_somebody_asked_for_is_not_exchanged(desk: Desk, words: tuple[str, ...], settings: str) -> None:
    (desk.folder / "pilotage.toml").write_text(settings)
    done = desk.run("serve", "--book-only", "--background", *words)
    assert done.returncode == 2
    assert "127.0.0.1:8642" in done.stderr
    assert "choose another port with --port, or 0 for any free one" in done.stderr


def test_a_book_is_looked_after_while_nobody_serves_it(desk: Desk, tmp_path: Path) -> None:
    with served(desk):
        desk.register("sweep-1")
        granted = [{"job": "sweep-1", "package": f"1.{line}.1", "attempt": 1} for line in (1, 2, 3)]
        desk.log(*(("CommitGranted", {}, about) for about in granted))
        desk.register("sweep-2")
    assert desk.said("book", "check") == "11 events: sound\n"
    assert "nothing is due" in desk.run("book", "retain", "--dry-run").stderr
    desk.said("book", "seal", "sweep-1")
    assert json.loads(desk.said("book", "rebuild", "--json"))["sound"] is True
    dumped = desk.said("book", "dump", "sweep-1")

    other = Desk(tmp_path / "other")
    assert other.run("book", "check").returncode == 2
    assert other.run("book", "load", "-", stdin=dumped).stderr == "loaded job sweep-1\n"
    assert other.said("book", "dump", "sweep-1") == dumped
    assert "known here already" in other.run("book", "load", "-", stdin=dumped).stderr

    assert "this job is not over, got RUNNING" in desk.run("book", "purge", "sweep-1", "sweep-2").stderr
    assert "would be purged" in desk.run("book", "purge", "sweep-1", "--dry-run").stderr
    assert desk.said("book", "dump", "sweep-1") == dumped
    desk.said("book", "purge", "sweep-1", "sweep-2", "--force")
    done = desk.run("book", "dump", "sweep-1")
    assert (done.returncode, "this job was purged" in done.stderr) == (2, True)


def test_a_damaged_book_is_told_and_put_right(desk: Desk) -> None:
    with served(desk):
        desk.register("sweep-1")
    with contextlib.closing(sqlite3.connect(desk.folder / ".pilotage" / "book.sqlite")) as book:
        book.execute("UPDATE jobs SET running = 5")
        book.commit()
    done = desk.run("book", "check")
    told = ["4 events: 1 difference", "  jobs  sweep-1  differs in running"]
    assert (done.returncode, done.stdout.splitlines()) == (1, told)
    assert "pilotage book rebuild" in done.stderr
    desk.said("book", "rebuild")
    assert desk.said("book", "check") == "4 events: sound\n"


def test_a_file_of_another_book_is_read(desk: Desk, reference_data: Path) -> None:
    file = min((reference_data / "glite_lb" / "ulm_events").iterdir())
    (job,) = json.loads(desk.said("book", "import-ulm", str(file), "--json"))["jobs"]
    assert job.keys() == {"id", "state", "events", "resubmissions", "destination"}
    done = desk.run("book", "import-ulm", "-", stdin=f"no line\n{file.read_text()}")
    assert (done.returncode, "<stdin>:1:1: error: " in done.stderr) == (2, True), done.stderr
    assert job["id"] in done.stdout


def test_the_help_of_the_program_is_quick_to_import(desk: Desk) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(PROGRAM), "--help"], cwd=desk.folder, capture_output=True, check=True
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert imported.isdisjoint(
        {"msgspec", "sqlite3", "litestar", "http.client", "pilotage.app", "pilotage.cli.book.query"}
    )
