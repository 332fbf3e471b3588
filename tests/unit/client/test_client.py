"""The client: how it finds its server, what it makes of answers, and how it merges those of several."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.agent.errors import BadSetting
from pilotage.client import NoServer, Server, ServerError, ServerRefused, ServerUnreachable, find_addresses
from pilotage.client.errors import NotOurServer, ServerTroubled
from pilotage.client.finding import StateFolder, address_in
from pilotage.client.jobs import Jobs
from pilotage.client.queries import BadCursor, Question, count, find
from pilotage.client.server import path_of
from tests.kit.canned_server import Asked, CannedServer, canned_server, event_view, job_view, package_view


@pytest.fixture
def canned() -> Iterator[CannedServer]:
    with canned_server() as server:
        yield server


@pytest.fixture
def server(canned: CannedServer) -> Iterator[Server]:
    connection = Server(canned.url, token=lambda: "secret")
    yield connection
    connection.close()


def unused_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


# --- one server -------------------------------------------------------------------------------------------------------


def test_a_question_carries_its_parameters_and_the_token(canned: CannedServer, server: Server) -> None:
    canned.answer("/v1/jobs", {"jobs": []})
    assert server.get("/v1/jobs", {"query": "a=b c&d", "cursor": None, "limit": 5}) == {"jobs": []}
    assert canned.asked == [Asked("GET", "/v1/jobs", {"query": "a=b c&d", "limit": "5"}, "Bearer secret", None)]


def test_what_is_sent_is_json(canned: CannedServer, server: Server) -> None:
    canned.answer("/v1/subscriptions", {"id": "s1"}, status=201)
    assert server.post("/v1/subscriptions", {"query": "all"}) == {"id": "s1"}
    canned.answer("/v1/subscriptions/s1", b"", status=204)
    assert server.send("DELETE", "/v1/subscriptions/s1") is None
    assert [(asked.method, asked.body) for asked in canned.asked] == [("POST", {"query": "all"}), ("DELETE", None)]


def test_the_parts_of_a_path_are_escaped() -> None:
    assert path_of("jobs", "a/b?c") == "/v1/jobs/a%2Fb%3Fc"


def test_a_refusal_says_what_the_server_said(canned: CannedServer, server: Server) -> None:
    canned.refuse("/v1/jobs/x", 404, "unknown_job", "job x: there is no such job here", "did you mean y?")
    with pytest.raises(ServerRefused) as refusal:
        server.get("/v1/jobs/x")
    assert (refusal.value.status, refusal.value.code, refusal.value.exit_code) == (404, "unknown_job", 2)
    assert str(refusal.value) == "job x: there is no such job here\n  did you mean y?"


def test_a_caret_in_a_hint_stays_below_its_column(canned: CannedServer, server: Server) -> None:
    canned.refuse("/v1/jobs", 400, "bad_query", "query, column 1: no", "x=1\n^")
    with pytest.raises(ServerRefused) as refusal:
        server.get("/v1/jobs")
    assert str(refusal.value).splitlines()[1:] == ["  x=1", "  ^"]


def test_a_server_in_trouble_may_be_asked_again(canned: CannedServer, server: Server) -> None:
    canned.refuse("/v1/jobs", 503, "busy", "too many events wait")
    with pytest.raises(ServerTroubled) as trouble:
        server.get("/v1/jobs")
    assert (trouble.value.retryable, trouble.value.exit_code) == (True, 3)


def test_no_token_is_answered_with_how_to_show_one(canned: CannedServer, server: Server) -> None:
    canned.refuse("/v1/jobs", 401, "unauthenticated", "no token")
    with pytest.raises(ServerRefused, match="--token-file"):
        server.get("/v1/jobs")


@pytest.mark.parametrize(
    "body, status", [(b"<html>", 200), (b"<html>", 404), ({"detail": "no"}, 500), (b"", 302)], ids=str
)
def test_a_stranger_is_not_believed(canned: CannedServer, server: Server, body: Any, status: int) -> None:
    canned.answer("/v1/jobs", body, status=status)
    with pytest.raises(NotOurServer, match="this is not a pilotage server"):
        server.get("/v1/jobs")


@pytest.mark.parametrize("more", [0, 1])
def test_an_answer_without_end_is_not_read_to_its_end(
    canned: CannedServer, server: Server, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr("pilotage.client.server.ANSWER_BYTES_MAX", 20)
    canned.answer("/v1/jobs", b'{"jobs": "%s"}' % (b"x" * (8 + more)))
    if more:
        with pytest.raises(NotOurServer, match="more than 20 bytes"):
            server.get("/v1/jobs")
    else:
        assert server.get("/v1/jobs") == {"jobs": "x" * 8}


def test_the_last_message_about_the_job_itself_says_why_it_was_held(canned: CannedServer, server: Server) -> None:
    events = [
        event_view(package=None, data={"message": "first"}),
        event_view(package=None, data={"message": "last"}),
        event_view(package="1.1.1", data={"message": "of a package"}),
    ]
    canned.answer("/v1/jobs/j/events", {"events": events, "after": 3, "more": False})
    assert Jobs(server).held_for("j") == "last"


def test_nobody_listening_is_said_with_what_to_do() -> None:
    url = unused_url()
    with pytest.raises(ServerUnreachable) as gone:
        Server(url, start_hint="start it").get("/v1/jobs")
    assert str(gone.value) == f"{url}: no answer: connection refused\n  start it"
    assert (gone.value.exit_code, gone.value.retryable) == (3, True)


def test_a_server_that_says_nothing_is_not_waited_for_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Server(f"http://127.0.0.1:{silent.getsockname()[1]}", answer_seconds=0.05)
        with pytest.raises(ServerUnreachable, match="it did not answer in time"):
            server.get("/v1/jobs")


def test_a_connection_that_rested_is_opened_again_for_a_question(canned: CannedServer, server: Server) -> None:
    canned.answer("/v1/jobs", {"jobs": []})
    server.get("/v1/jobs")
    assert server._http is not None
    server._http.sock.shutdown(socket.SHUT_RDWR)
    assert server.get("/v1/jobs") == {"jobs": []}


def test_what_may_have_been_done_is_not_repeated(canned: CannedServer, server: Server) -> None:
    canned.answer("/v1/jobs", {"jobs": []})
    server.get("/v1/jobs")
    assert server._http is not None
    server._http.sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ServerUnreachable):
        server.post("/v1/subscriptions", {})
    assert [asked.method for asked in canned.asked] == ["GET"]


def test_the_lines_of_a_stream_come_until_it_ends(canned: CannedServer, server: Server) -> None:
    canned.answer("/v1/jobs/j/events", b"id: 1\r\ndata: {}\n\n: still here\n\n", hang_up=True)
    assert list(server.lines("/v1/jobs/j/events", quiet_seconds=5)) == ["id: 1", "data: {}", "", ": still here", ""]


def test_a_stream_that_is_refused_says_why(canned: CannedServer, server: Server) -> None:
    canned.refuse("/v1/jobs/j/events", 410, "purged", "this job was purged")
    with pytest.raises(ServerRefused, match="purged"):
        list(server.lines("/v1/jobs/j/events", quiet_seconds=5))


# --- finding it -------------------------------------------------------------------------------------------------------


@pytest.fixture
def service_folder(tmp_path: Path) -> Iterator[Path]:
    """A state folder in which a service runs."""
    file = announce(tmp_path / ".pilotage", "http://127.0.0.1:7001")
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield tmp_path / ".pilotage"


def announce(folder: Path, url: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text("local-token\n")
    file = folder / "service.json"
    file.write_text(json.dumps({"url": url, "pid": 1, "token_file": str(folder / "token")}))
    return file


def found(*named: str, token_files: tuple[str, ...] = (), folders: tuple[Path, ...] = (), **environment: str) -> Any:
    states = [StateFolder(path=folder, usual_url="http://127.0.0.1:7777") for folder in folders]
    return find_addresses(named, token_files=token_files, environment=environment, state_folders=states)


def test_a_named_server_goes_before_the_environment_and_the_folder(service_folder: Path) -> None:
    (address,) = found("http://there:1/", folders=(service_folder,), PILOTAGE_SERVER="http://elsewhere:2")
    assert address.url == "http://there:1"


def test_the_environment_goes_before_the_folder(service_folder: Path) -> None:
    (address,) = found(
        folders=(service_folder,), PILOTAGE_SERVER="http://elsewhere:2", PILOTAGE_TOKEN_FILE="token-of-mine"
    )
    assert (address.url, address.token_file) == ("http://elsewhere:2", "token-of-mine")


def test_the_folder_knows_its_service_and_its_token(service_folder: Path) -> None:
    (address,) = found(folders=(service_folder,))
    assert (address.url, address.runs, address.token_source()()) == ("http://127.0.0.1:7001", True, "local-token")


def test_a_local_token_is_shown_to_its_own_service_only(service_folder: Path) -> None:
    own, other = found("http://127.0.0.1:7001", "http://127.0.0.1:7002", folders=(service_folder,))
    assert (own.token_source()(), other.token_source()()) == ("local-token", "")


def test_the_service_of_a_folder_may_be_called_by_the_name_of_this_computer(service_folder: Path) -> None:
    (address,) = found("http://localhost:7001", folders=(service_folder,))
    assert (address.url, address.token_source()()) == ("http://127.0.0.1:7001", "local-token")
    (other,) = found("http://localhost.example:7001", folders=(service_folder,))
    assert other.token_source()() == ""


def test_a_token_of_the_environment_goes_before_that_of_any_folder(service_folder: Path) -> None:
    named = found(str(service_folder), PILOTAGE_TOKEN="mine")
    nearest = found(folders=(service_folder,), PILOTAGE_TOKEN="mine")
    assert [address.token_source()() for address in (*named, *nearest)] == ["mine", "mine"]


def test_a_book_that_is_not_in_the_usual_folder_is_started_by_its_name(tmp_path: Path) -> None:
    announce(tmp_path / "books", "http://127.0.0.1:7001")
    with pytest.raises(ServerUnreachable, match=f"pilotage serve --background --journal sqlite:{tmp_path}/books`"):
        found(folders=(tmp_path / "books",))[0].server()


def test_a_server_without_its_scheme_is_told_with_it() -> None:
    with pytest.raises(ServerError, match=r"--server http://127\.0\.0\.1:8733"):
        found("127.0.0.1:8733")


def test_a_token_file_goes_before_everything(service_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (address,) = found(folders=(service_folder,), token_files=(str(tmp_path / "mine"),), PILOTAGE_TOKEN="other")
    assert address.token_source()() == "mine"


def test_each_server_may_have_its_own_token_file() -> None:
    addresses = found("http://a", "http://b", token_files=("one", "two"))
    assert [address.token_file for address in addresses] == ["one", "two"]
    with pytest.raises(BadSetting, match="the number of token files does not match"):
        found("http://a", "http://b", "http://c", token_files=("one", "two"))


def test_a_service_that_died_is_known_and_not_spoken_to(tmp_path: Path) -> None:
    announce(tmp_path / ".pilotage", "http://127.0.0.1:7001")
    (address,) = found(folders=(tmp_path / ".pilotage",))
    assert (address.url, address.runs) == ("http://127.0.0.1:7001", False)
    with pytest.raises(ServerUnreachable, match="does not run") as gone:
        address.server()
    assert f"`cd {tmp_path} && pilotage serve --background`" in gone.value.next_step
    assert gone.value.exit_code == 3
    with pytest.raises(BadSetting, match="does not run"):
        address.token_source()()


def test_a_service_that_died_meanwhile_may_come_back(canned: CannedServer, tmp_path: Path) -> None:
    file = announce(tmp_path / ".pilotage", canned.url)
    canned.answer("/v1/jobs", {"jobs": []})
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        server = found(folders=(tmp_path / ".pilotage",))[0].server()
        assert server.get("/v1/jobs") == {"jobs": []}
    with server, pytest.raises(ServerUnreachable, match="does not run"):
        server.get("/v1/jobs")
    assert [asked.authorization for asked in canned.asked] == ["Bearer local-token"]


def test_a_service_that_was_stopped_will_be_where_the_settings_say(tmp_path: Path) -> None:
    announce(tmp_path / ".pilotage", "http://127.0.0.1:7001").unlink()
    (address,) = found(folders=(tmp_path / ".pilotage",))
    assert (address.url, address.runs) == ("http://127.0.0.1:7777", False)


def test_a_service_that_runs_goes_before_a_nearer_one_that_does_not(service_folder: Path, tmp_path: Path) -> None:
    announce(tmp_path / "nearer", "http://127.0.0.1:7003")
    (address,) = found(folders=(tmp_path / "nearer", service_folder))
    assert address.url == "http://127.0.0.1:7001"


def test_a_folder_names_its_service(service_folder: Path) -> None:
    for folder in (service_folder, service_folder.parent):
        (address,) = found(str(folder))
        assert address.url == "http://127.0.0.1:7001"
    with pytest.raises(ServerError, match="no service runs in this folder"):
        found(str(service_folder / "deeper"))


def test_nothing_known_says_how_to_start_a_server(tmp_path: Path) -> None:
    with pytest.raises(NoServer, match="pilotage serve --book-only"):
        found(folders=(tmp_path,))


@pytest.mark.parametrize("content", ["", "{", "{}", '{"url": "ftp://x"}', '{"url": 1}'])
def test_a_service_file_that_says_nothing_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "service.json").write_text(content)
    with pytest.raises(ServerError, match="does not say where the service is"):
        address_in(tmp_path)


def test_the_service_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announce(tmp_path / "theirs", "http://127.0.0.1:7001")
    mine = os.geteuid()
    if mine == 0:
        os.chown(tmp_path / "theirs" / "service.json", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(ServerError, match="belongs to another user"):
        address_in(tmp_path / "theirs")


# --- questions --------------------------------------------------------------------------------------------------------


def jobs(*names: str) -> list[dict[str, Any]]:
    return [job_view(id=name) for name in names]


def test_pages_are_read_until_there_is_enough(canned: CannedServer, server: Server) -> None:
    canned.pages("/v1/jobs", "jobs", jobs(*"abcdefg"), size=2)
    answer = find([server], Question(target="jobs", query="all", limit=5))
    assert [item["id"] for item in answer.items] == list("abcde")
    rest = find([server], Question(target="jobs", query="all", limit=5), cursor=answer.next)
    assert ([item["id"] for item in rest.items], rest.next) == (["f", "g"], None)


@given(
    books=st.lists(st.lists(st.integers(1, 30), unique=True).map(sorted), min_size=2, max_size=3),
    limit=st.integers(1, 12),
    size=st.integers(1, 5),
)
def test_many_books_are_read_as_one_whatever_the_pages(books: list[list[int]], limit: int, size: int) -> None:
    servers = [FakePages(f"http://{number}", book, size=size) for number, book in enumerate(books)]
    shown, cursor = [], None
    while True:
        question = Question(target="packages", query="all", limit=limit)
        answer = find(servers, question, cursor=cursor)  # type: ignore[arg-type]
        shown += [(int(item["id"].rpartition(".")[2]), item["server"]) for item in answer.items]
        assert len(answer.items) == limit or answer.next is None
        cursor = answer.next
        if cursor is None:
            break
    assert shown == sorted((number, server.url) for server in servers for number in server.numbers)


class FakePages:
    """As much of a server as pages need."""

    def __init__(self, url: str, numbers: list[int], *, size: int) -> None:
        self.url = url
        self.numbers = numbers
        self.size = size

    def get(self, path: str, parameters: dict[str, Any]) -> Any:
        assert path == "/v1/packages"
        start = int(parameters["cursor"] or 0)
        end = start + min(self.size, parameters["limit"])
        packages = [{"job": "j", "id": f"1.1.{number}"} for number in self.numbers[start:end]]
        return {"packages": packages, "next": str(end) if end < len(self.numbers) else None}


def test_events_of_several_books_come_as_they_were_received() -> None:
    with canned_server() as one, canned_server() as two:
        one.pages("/v1/events", "events", [event_view(position=n, received=n * 10.0) for n in (1, 2, 3)], size=9)
        two.pages("/v1/events", "events", [event_view(position=n, received=n * 10.0 + 5) for n in (1, 2)], size=9)
        servers = [Server(one.url), Server(two.url)]
        answer = find(servers, Question(target="events", query="all", limit=10))
        for server in servers:
            server.close()
    assert [item["received"] for item in answer.items] == [10.0, 15.0, 20.0, 25.0, 30.0]


def test_a_server_that_fails_is_named_and_the_others_are_shown(canned: CannedServer, server: Server) -> None:
    canned.pages("/v1/jobs", "jobs", jobs("a"), size=5)
    gone = Server(unused_url())
    answer = find([gone, server], Question(target="jobs", query="all", limit=5))
    assert [(item["id"], item["server"]) for item in answer.items] == [("a", canned.url)]
    assert [(failure.server, type(failure.error)) for failure in answer.failures] == [(gone.url, ServerUnreachable)]


def test_jobs_that_were_not_searched_are_counted_over_all_servers() -> None:
    with canned_server() as one, canned_server() as two:
        for each, number in ((one, 2), (two, 3)):
            each.answer("/v1/packages", {"packages": [], "next": None, "sealed_jobs": number})
            each.answer("/v1/counts/packages", {"count": 0, "sealed_jobs": number})
        question = Question(target="packages", query="site=oslo", limit=5)
        with Server(one.url) as first, Server(two.url) as second:
            assert find([first], question).sealed_jobs == count([first], question).sealed_jobs == 2
            assert find([first, second], question).sealed_jobs == count([first, second], question).sealed_jobs == 5


def test_a_wrong_question_is_wrong_everywhere(canned: CannedServer, server: Server) -> None:
    canned.refuse("/v1/jobs", 400, "bad_query", "no such attribute")
    with pytest.raises(ServerRefused, match="no such attribute"):
        find([server, Server(unused_url())], Question(target="jobs", query="x=1", limit=5))


def test_counts_add_up(canned: CannedServer, server: Server) -> None:
    canned.answer("/v1/counts/packages", {"count": 3})
    gone = Server(unused_url())
    told = count([server, server, gone], Question(target="packages", query="all", limit=1))
    assert (told.count, told.counts, len(told.failures)) == (3, {canned.url: 3}, 1)
    with pytest.raises(ServerUnreachable):
        count([gone], Question(target="packages", query="all", limit=1))


def test_words_and_records_are_asked_for_with_packages_only(canned: CannedServer, server: Server) -> None:
    canned.answer("/v1/packages", {"packages": [], "next": None})
    canned.answer("/v1/jobs", {"jobs": [], "next": None})
    for question in (
        Question(target="packages", query="all", limit=5),
        Question(target="packages", query="all", limit=5, binaries=True),
        Question(target="jobs", query="all", limit=5, binaries=True),
    ):
        find([server], question)
    plain = {"query": "all", "limit": "5"}
    assert [asked.parameters for asked in canned.asked] == [
        {**plain, "words": "1"}, {**plain, "words": "1", "binaries": "1"}, plain,
    ]  # fmt: skip


@given(text=st.text(max_size=60))
def test_what_is_no_cursor_is_refused(text: str) -> None:
    servers: Any = [FakePages("http://a", [1], size=1), FakePages("http://b", [2], size=1)]
    if text:
        with pytest.raises(BadCursor):
            find(servers, Question(target="packages", query="all", limit=1), cursor=text)


def test_a_cursor_of_other_servers_is_refused() -> None:
    servers: Any = [FakePages(f"http://{name}", [1, 2], size=1) for name in "abc"]
    question = Question(target="packages", query="all", limit=1)
    answer = find(servers[:2], question)
    assert answer.next is not None
    with pytest.raises(BadCursor, match="belongs to other servers"):
        find(servers[1:], question, cursor=answer.next)


def test_a_cursor_with_anything_else_in_it_is_refused() -> None:
    servers: Any = [FakePages(f"http://{name}", [1, 2], size=1) for name in "ab"]
    question = Question(target="packages", query="all", limit=1)
    answer = find(servers, question)
    assert answer.next is not None
    with pytest.raises(BadCursor, match="not a cursor"):
        find(servers, question, cursor=f"!!!!{answer.next}")


def test_a_package_sorts_by_its_numbers(canned: CannedServer, server: Server) -> None:
    canned.pages("/v1/packages", "packages", [package_view(job="j", id=place) for place in ("1.2.1", "1.10.1")], size=1)
    answer = find([server, server], Question(target="packages", query="all", limit=9))
    assert [item["id"] for item in answer.items] == ["1.2.1", "1.2.1", "1.10.1", "1.10.1"]
