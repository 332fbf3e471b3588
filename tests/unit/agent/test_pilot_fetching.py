from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from pilotage.agent.attempt.diagnosis import TokenEnded, from_system
from pilotage.agent.attempt.files import KnownFiles
from pilotage.agent.link.connect import connect
from pilotage.agent.link.link import Answer, Link, LinkBroken
from pilotage.agent.pilot import fetch as fetching
from pilotage.agent.pilot.fetch import ServerFetch
from tests.kit.agent_service import AgentService, agent_service

CONTENT = bytes(range(256)) * 40
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentService]:
    monkeypatch.setattr(fetching, "PIECE_BYTES", 1024)
    with agent_service(tmp_path / "agent.sock") as running:
        yield running


@pytest.fixture
def fetch(service: AgentService, tmp_path: Path) -> Iterator[ServerFetch]:
    made = ServerFetch(tmp_path / "content", lambda: connect(service.address))
    yield made
    made.close()


def test_a_captured_file_is_fetched_once_in_pieces_and_can_be_run(service: AgentService, fetch: ServerFetch) -> None:
    service.contents[f"content/{DIGEST}"] = CONTENT
    path = Path(fetch.content(DIGEST))
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o555
    del service.contents[f"content/{DIGEST}"]
    assert fetch.content(DIGEST) == str(path)


def test_a_file_of_the_sites_cache_is_fetched_once_by_all_slots_and_again_when_it_was_removed(
    service: AgentService, fetch: ServerFetch, tmp_path: Path
) -> None:
    target = "cached/ab/abc"
    assert fetch.cached("ab/abc", DIGEST) is None
    service.contents[target] = CONTENT
    assert fetch.cached_here("ab/abc") is None
    with ThreadPoolExecutor(max_workers=4) as slots:
        paths = set(slots.map(lambda _: fetch.cached("ab/abc", DIGEST), range(8)))
    [path] = map(str, paths)
    assert Path(path).read_bytes() == CONTENT
    assert Path(path).stat().st_mode & 0o777 == 0o444
    assert fetch.cached_here("ab/abc") == path
    service.contents[target] = b"another"
    assert fetch.cached("ab/abc", DIGEST) == path
    Path(path).unlink()
    with pytest.raises(OSError, match="expected sha256"):
        fetch.cached("ab/abc", DIGEST)
    assert list((tmp_path / "content").iterdir()) == []


def small_files(service: AgentService, count: int) -> dict[str, int]:
    """Captured files that the service has, and their sizes."""
    sizes = {}
    for number in range(count):
        content = b"%d" % number * number  # the first one is empty
        sha256 = hashlib.sha256(content).hexdigest()
        service.contents[f"content/{sha256}"] = content
        sizes[sha256] = len(content)
    return sizes


def test_many_small_captured_files_come_with_one_request_verified_and_only_once(
    service: AgentService, tmp_path: Path
) -> None:
    sizes, known = small_files(service, 50), KnownFiles()
    fetch = ServerFetch(tmp_path / "content", lambda: connect(service.address), checksums=known)
    fetch.bring(sizes)
    fetch.bring(sizes)
    assert service.asked_for_many == 1
    service.contents.clear()
    for sha256, size_bytes in sizes.items():
        path = Path(fetch.content(sha256))
        assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256
        assert (path.stat().st_size, path.stat().st_mode & 0o777) == (size_bytes, 0o555)
        assert known.is_known(path.stat(), sha256)
    fetch.close()


def test_a_request_for_many_has_bounds_and_leaves_out_large_files(
    service: AgentService, fetch: ServerFetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "AT_ONCE_MAX", 4)
    monkeypatch.setattr(fetching, "SMALL_BYTES", 30)
    sizes = small_files(service, 18)  # the last two have more than 30 bytes
    fetch.bring(sizes)
    assert service.asked_for_many == 4
    monkeypatch.setattr(fetching, "AT_ONCE_BYTES", 30)
    other = {hashlib.sha256(each).hexdigest(): each for each in (b"a" * 15, b"b" * 15, b"c" * 15)}
    service.contents |= {f"content/{sha256}": content for sha256, content in other.items()}
    fetch.bring({sha256: len(content) for sha256, content in other.items()})
    assert service.asked_for_many == 6
    *small, larger, largest = sizes
    service.contents = dict.fromkeys(service.contents, b"another")
    assert [Path(fetch.content(each)).stat().st_size for each in small] == [sizes[each] for each in small]
    for each in (larger, largest):
        with pytest.raises(OSError, match="expected sha256"):
            fetch.content(each)


@pytest.mark.parametrize(
    "falsify, message",
    [
        (lambda answer: answer[:-1], "not whole"),
        (lambda answer: answer + b"0" * 64, "not whole"),
        (lambda answer: b"x" + answer, "not whole"),
        (lambda answer: answer[:-1] + b"?", "expected sha256"),
        (lambda answer: answer + b"%b 1\na" % hashlib.sha256(b"a").hexdigest().encode(), "expected sha256"),
    ],
)
def test_an_answer_that_broke_off_or_has_other_content_is_refused(
    falsify: Callable[[bytes], bytes], message: str, service: AgentService, fetch: ServerFetch
) -> None:
    sizes, service.falsify = small_files(service, 3), falsify
    with pytest.raises(OSError, match=message):
        fetch.bring(sizes)
    for sha256 in sizes:
        assert hashlib.sha256(Path(fetch.content(sha256)).read_bytes()).hexdigest() == sha256


def test_a_service_of_an_earlier_release_is_asked_for_many_once_and_then_for_each(
    service: AgentService, fetch: ServerFetch
) -> None:
    service.answers_many = False
    sizes = small_files(service, 3)
    fetch.bring(sizes)
    fetch.bring(sizes)
    assert service.asked_for_many == 1
    assert [Path(fetch.content(sha256)).stat().st_size for sha256 in sizes] == list(sizes.values())


class BreakingLink:
    """A connection that is lost before the answer to each third request; the ranges that were asked for are kept."""

    def __init__(self, link: Link, asked: list[str]) -> None:
        self._link, self._asked = link, asked

    def send(self, method: str, target: str, body: bytes, *, fields: str = "") -> None:
        self._asked.append(fields.strip())
        self._link.send(method, target, body, fields=fields)

    def wait(self, seconds: float) -> Answer:
        if len(self._asked) % 3 == 0:
            raise LinkBroken("the connection broke")
        return self._link.wait(seconds)

    def close(self) -> None:
        self._link.close()


def test_a_captured_file_goes_on_after_a_broken_connection(service: AgentService, tmp_path: Path) -> None:
    service.contents[f"content/{DIGEST}"] = CONTENT
    asked: list[str] = []
    fetch = ServerFetch(tmp_path / "content", lambda: BreakingLink(connect(service.address), asked))  # type: ignore[arg-type, return-value]
    assert Path(fetch.content(DIGEST)).read_bytes() == CONTENT
    fetch.close()
    pieces = [f"Range: bytes={start}-{start + 1023}" for start in range(0, len(CONTENT) + 1, 1024)]
    assert list(dict.fromkeys(asked)) == pieces
    assert len(asked) > len(pieces)


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 2048])
def test_a_file_of_the_tree_comes_whole_whatever_its_size(size: int, service: AgentService, fetch: ServerFetch) -> None:
    service.contents["files/job?name=a%2Fb%20c"] = CONTENT[:size]
    path = fetch.file("job", "a/b c")
    assert path is not None
    assert Path(path).read_bytes() == CONTENT[:size]
    assert fetch.file("job", "another") is None


def test_what_is_not_what_it_should_be_is_refused_and_not_kept(
    service: AgentService, fetch: ServerFetch, tmp_path: Path
) -> None:
    service.contents[f"content/{DIGEST}"] = b"something else"
    with pytest.raises(OSError, match="expected sha256"):
        fetch.content(DIGEST)
    with pytest.raises(OSError, match="does not have"):
        fetch.content("0" * 64)
    assert list((tmp_path / "content").iterdir()) == []


@pytest.mark.parametrize("size", [0, 1024, 2500])
def test_an_output_is_staged_in_pieces(size: int, service: AgentService, fetch: ServerFetch, tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(CONTENT[:size])
    fetch.stage({"job": "job", "package": "1.1.1", "attempt": 2}, 3, str(tmp_path / "made"))
    assert service.staged == {"job/1.1.1/2/3": bytearray(CONTENT[:size])}


def test_who_shows_a_token_that_has_ended_is_told_so_at_once(
    service: AgentService, fetch: ServerFetch, tmp_path: Path
) -> None:
    service.token_ended = True
    ref = {"job": "job", "package": "1.1.1", "attempt": 2}
    (tmp_path / "made").touch()
    asks: tuple[Callable[[], object], ...] = (
        lambda: fetch.content(DIGEST),
        lambda: fetch.bring({DIGEST: len(CONTENT)}),
        lambda: fetch.file("job", "a"),
        lambda: fetch.stage(ref, 3, str(tmp_path / "made")),
    )
    for ask in asks:
        with pytest.raises(TokenEnded, match="expired") as told:
            ask()
        assert from_system(told.value, doing="staging").reason == "credential-expired"


def test_a_service_that_was_away_in_between_is_asked_again_until_it_is_back(
    service: AgentService, fetch: ServerFetch, tmp_path: Path
) -> None:
    service.contents["files/job?name=a"] = b"a"
    assert fetch.file("job", "a")
    service.stop()
    with ThreadPoolExecutor(max_workers=1) as slot:
        asked = slot.submit(fetch.file, "job", "a")
        with pytest.raises(TimeoutError):
            asked.result(timeout=0.2)
        service.listen(tmp_path / "agent.sock")
        assert asked.result(timeout=10)


def test_nobody_waits_for_a_service_that_is_gone_when_the_pilot_ends_or_patience_is_over(tmp_path: Path) -> None:
    over = Event()
    fetch = ServerFetch(tmp_path / "content", lambda: connect(f"unix:{tmp_path}/agent.sock"), is_over=over.is_set)
    with ThreadPoolExecutor(max_workers=1) as slot:
        asked = slot.submit(fetch.file, "job", "a")
        with pytest.raises(TimeoutError):
            asked.result(timeout=0.2)
        over.set()
        with pytest.raises(FileNotFoundError):
            asked.result(timeout=10)
    hasty = ServerFetch(tmp_path / "content", lambda: connect(f"unix:{tmp_path}/agent.sock"), patience_seconds=0.0)
    with pytest.raises(FileNotFoundError):
        hasty.file("job", "a")
