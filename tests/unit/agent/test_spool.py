from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pilotage.agent import durable_files
from pilotage.agent.delivery.courier import Reader
from pilotage.agent.delivery.spool import Acknowledged, Queue, Spool, default_spool, normal_server, write_acknowledged
from pilotage.agent.delivery.stream import Stream, StreamRetired, segment_file, segments_of
from pilotage.agent.durable_files import counters_of, line_of, text_of
from pilotage.agent.errors import BadSetting, SpoolError, SpoolFull

SERVER = "http://127.0.0.1:8700"
REST = b'"type":"Noted","time":1.5,"data":{"text":"a"}}'


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Spool(tmp_path / "spool").queue(SERVER)


def texts(folder: Path) -> list[bytes]:
    """The events of all segments of a stream, and a proof that every line is whole."""
    found = []
    for first in segments_of(folder):
        content = segment_file(folder, first).read_bytes()
        assert content.endswith(b"\n")
        for line in content.splitlines():
            text = text_of(line)
            assert text is not None, line
            if text.startswith(b'{"source"'):
                found.append(text)
    return found


def numbers(folder: Path) -> list[int]:
    return [counters[0] for text in texts(folder) if (counters := counters_of(text))]


def append(queue: Queue, count: int = 1, **settings: int) -> list[int]:
    """What a short-lived process does."""
    stream = queue.stream("application", **settings)
    try:
        return [stream.append(REST) for _ in range(count)]
    finally:
        stream.close()


def test_an_event_is_a_line_that_people_can_read(queue: Queue) -> None:
    append(queue)
    (folder,) = queue.streams()
    header, line = segment_file(folder, 1).read_text().splitlines()
    assert json.loads(header[9:])["spool"] == "pilotage"
    event = json.loads(line[9:])
    assert event == {
        "source": "application", "stream": folder.name.partition(".")[2], "n": 1, "seen": 0,
        "type": "Noted", "time": 1.5, "data": {"text": "a"},
    }  # fmt: skip
    assert json.loads((queue.folder / "queue.json").read_text())["server"] == SERVER


def test_the_files_are_for_their_owner_only(queue: Queue) -> None:
    append(queue)
    assert {path.stat().st_mode & 0o077 for path in queue.folder.rglob("*")} == {0}


def test_numbers_count_on_from_process_to_process_and_over_segments(queue: Queue) -> None:
    assert [append(queue, 3, segment_bytes=300) for _ in range(4)] == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    (folder,) = queue.streams()
    assert len(segments_of(folder)) > 3
    assert numbers(folder) == list(range(1, 13))


def test_two_writers_that_take_turns_count_in_one_sequence(queue: Queue) -> None:
    one, other = queue.stream("application", segment_bytes=500), queue.stream("application", segment_bytes=500)
    assert [stream.append(REST) for _ in range(10) for stream in (one, other)] == list(range(1, 21))
    one.close()
    other.close()
    assert numbers(one.folder) == list(range(1, 21))


def test_the_position_seen_never_falls_along_a_stream(queue: Queue) -> None:
    one, other = queue.stream("application", segment_bytes=300), queue.stream("application", segment_bytes=300)
    for stream, seen in ((one, 40), (other, 7), (one, 41), (other, 0), (other, 0), (one, 0)):
        stream.append(REST, seen=seen)
    one.close()
    other.close()
    assert [json.loads(text)["seen"] for text in texts(one.folder)] == [40, 40, 41, 41, 41, 41]


WRITER = """
import sys
from pathlib import Path
from pilotage.agent.delivery.spool import Spool
stream = Spool(Path(sys.argv[1])).queue(sys.argv[2]).stream("application", segment_bytes=4000)
for number in range(int(sys.argv[3])):
    n = stream.append(b'"type":"Noted","time":1.5,"data":{"writer":"%b","number":%d}}' % (sys.argv[4].encode(), number))
    sys.stdout.write(f"{n}\\n")
    sys.stdout.flush()
"""


def writer(queue: Queue, *, count: int, name: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(queue.folder.parent), SERVER, str(count), name]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_processes_that_append_at_once_lose_nothing_and_share_no_number(queue: Queue) -> None:
    writers = [writer(queue, count=300, name=name) for name in "abcd"]
    told = [[int(line) for line in process.communicate(timeout=100)[0].split()] for process in writers]
    (folder,) = queue.streams()
    assert sorted(n for each in told for n in each) == numbers(folder) == list(range(1, 1201))
    events = [json.loads(text) for text in texts(folder)]
    for name in "abcd":
        mine = [event["data"]["number"] for event in events if event["data"]["writer"] == name]
        assert mine == list(range(300))


def test_processes_cancelled_at_any_moment_lose_nothing_they_were_told_is_written(queue: Queue) -> None:
    chance = random.Random(7)
    told: list[int] = []
    for round_number in range(12):
        pair = [writer(queue, count=100_000, name=f"{round_number}-{which}") for which in range(2)]
        for process in pair:
            assert process.stdout is not None
            told += [int(process.stdout.readline()) for _ in range(chance.randrange(1, 60))]
        for process in pair:
            process.send_signal(signal.SIGKILL)
        for process in pair:
            process.wait(100)
            assert process.stdout is not None
            # By the same reader as before: `communicate` would begin behind what that has read ahead, in the middle of a line.
            with process.stdout as rest:
                told += [int(line) for line in rest if line.endswith("\n")]
    append(queue)  # cuts what the last ones left torn
    (folder,) = queue.streams()
    written = numbers(folder)
    assert written == list(range(1, len(written) + 1))
    assert len(told) == len(set(told))
    assert set(told) <= set(written)


def test_threads_share_a_stream(queue: Queue) -> None:
    stream = queue.stream("application", segment_bytes=2000)
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.extend(stream.append(REST) for _ in range(200))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.close()
    assert sorted(got) == numbers(stream.folder) == list(range(1, 801))


def test_a_torn_line_is_cut_and_its_number_given_again(queue: Queue) -> None:
    append(queue, 2)
    (folder,) = queue.streams()
    whole = segment_file(folder, 1).read_bytes()
    with segment_file(folder, 1).open("ab") as file:
        file.write(line_of(b'{"source":"application","stream":"x","n":3,')[:-1])
    assert append(queue) == [3]
    assert segment_file(folder, 1).read_bytes().startswith(whole)
    assert numbers(folder) == [1, 2, 3]


def test_a_torn_line_is_cut_by_a_writer_that_was_there_before(queue: Queue) -> None:
    stream = queue.stream("application")
    stream.append(REST)
    with segment_file(stream.folder, 1).open("ab") as file:
        file.write(b"\0" * 5000)
    assert stream.append(REST) == 2
    stream.close()
    assert numbers(stream.folder) == [1, 2]


def test_a_finished_line_that_is_damaged_ends_the_stream_since_its_number_may_have_been_sent(queue: Queue) -> None:
    append(queue, 2)
    (folder,) = queue.streams()
    content = segment_file(folder, 1).read_bytes()
    segment_file(folder, 1).write_bytes(content[:-20] + b"#" + content[-19:])
    assert append(queue) == [1]
    assert len(queue.streams()) == 2
    assert content[:-20] in segment_file(folder, 1).read_bytes(), "nothing that was finished is removed"


def test_a_stream_shorter_than_what_the_server_has_is_not_counted_on(queue: Queue) -> None:
    append(queue, 2)
    (folder,) = queue.streams()
    write_acknowledged(folder, Acknowledged(1, 10_000, 9))
    assert append(queue) == [1]
    assert len(queue.streams()) == 2


def test_a_copied_spool_gets_a_stream_of_its_own(queue: Queue, tmp_path: Path) -> None:
    append(queue, 2)
    (folder,) = queue.streams()
    shutil.copytree(queue.folder.parent, tmp_path / "copy")
    copied = Spool(tmp_path / "copy").queue(SERVER)
    assert append(copied) == [1]
    assert len(copied.streams()) == 2
    assert append(queue) == [3]
    assert queue.streams() == [folder]


def test_a_spool_of_another_host_gets_a_stream_of_this_one(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    append(queue, 2)
    here = os.uname()
    elsewhere = os.uname_result(("Linux", "elsewhere", *here[2:]))
    monkeypatch.setattr(os, "uname", lambda: elsewhere)
    assert append(queue) == [1]
    assert any("elsewhere-" in folder.name for folder in queue.streams())


def test_a_writer_that_died_between_two_segments_is_followed(queue: Queue) -> None:
    stream = queue.stream("application", segment_bytes=10)
    stream.append(REST, seen=5)
    stream.append(REST)
    stream.close()
    segment_file(stream.folder, 2).unlink()  # as if the power went before it was made
    assert append(queue, 2) == [2, 3]
    assert json.loads(texts(stream.folder)[-1])["seen"] == 5


def test_every_source_has_a_stream_of_its_own(queue: Queue) -> None:
    append(queue)
    agent = queue.stream("agent")
    assert agent.append(REST) == 1
    agent.close()
    assert sorted(folder.name.partition(".")[0] for folder in queue.streams()) == ["agent", "application"]
    with pytest.raises(BadSetting, match="unknown source"):
        queue.stream("nobody")


FULL = """
import json, resource, sys
from pathlib import Path
from pilotage.agent.errors import SpoolFull
from pilotage.agent.delivery.spool import Spool
stream = Spool(Path(sys.argv[1])).queue(sys.argv[2]).stream("application")
rest = b'"type":"Noted","time":1.5,"data":{"text":"%b"}}' % (b"x" * 100)
told = [stream.append(rest)]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
problem = ""
while not problem:
    try:
        told.append(stream.append(rest))
    except SpoolFull as error:
        problem = str(error)
whole = next(stream.folder.glob("*.segment")).read_bytes().endswith(b"}\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
told.append(stream.append(rest))
print(json.dumps([told, problem, whole]))
"""


@pytest.mark.parametrize("size_bytes", [2000, 2001, 2222])
def test_where_there_is_no_room_nothing_is_written_and_the_spool_stays_whole(queue: Queue, size_bytes: int) -> None:
    command = [sys.executable, "-c", FULL, str(queue.folder.parent), SERVER, str(size_bytes)]
    told, problem, whole = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=100).stdout)
    assert "no room while appending an event" in problem
    assert "make room" in problem
    assert whole
    (folder,) = queue.streams()
    assert told == numbers(folder) == list(range(1, len(told) + 1))


def test_a_full_disk_is_told_apart_from_other_failures(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = queue.stream("application")
    descriptor = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(stream, "_end", os.lseek(stream._descriptor, 0, os.SEEK_END))
    monkeypatch.setattr(
        "pilotage.agent.delivery.stream.write_all", lambda _, content: durable_files.write_all(descriptor, content)
    )
    with pytest.raises(SpoolFull, match="No space left"):
        stream.append(REST)
    os.close(descriptor)
    stream.close()


def test_a_disk_that_fails_retires_the_stream_and_logging_goes_on_in_another(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = queue.stream("application")
    stream.append(REST)

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(SpoolError, match="Input/output error"):
            stream.sync()
    with pytest.raises(StreamRetired):
        stream.append(REST)
    stream.close()
    assert append(queue) == [1]
    assert len(queue.streams()) == 2


def test_a_forked_child_does_not_let_go_of_its_parents_lock(tmp_path: Path) -> None:
    with durable_files.locked(tmp_path / "lock"):
        child = os.fork()
        if child == 0:
            os._exit(7 if durable_files._locks else 0)
        assert os.waitpid(child, 0)[1] == 0
        with durable_files.locked_if_free(tmp_path / "lock") as mine:
            assert not mine
    with durable_files.locked_if_free(tmp_path / "lock") as mine:
        assert mine


def test_a_reader_goes_through_the_segments_and_deletes_what_is_done_with(queue: Queue) -> None:
    append(queue, 20, segment_bytes=500)
    (folder,) = queue.streams()
    assert len(segments_of(folder)) > 2
    assert queue.pending() == 20
    reader = Reader(folder)
    reader.reload()
    got = []
    while (batch := reader.next_batch(events_max=3, size_max_bytes=10_000)) is not None:
        got += [json.loads(text)["n"] for text in batch.texts]
        reader.acknowledge(batch)
    reader.close()
    assert got == list(range(1, 21))
    assert len(segments_of(folder)) == 1
    assert queue.pending() == 0
    assert append(queue) == [21]
    assert queue.pending() == 1


def test_a_reader_leaves_a_torn_line_alone(queue: Queue) -> None:
    append(queue)
    (folder,) = queue.streams()
    with segment_file(folder, 1).open("ab") as file:
        file.write(b"0123")
    reader = Reader(folder)
    reader.reload()
    batch = reader.next_batch(events_max=10, size_max_bytes=50)  # smaller than the line
    assert batch is not None
    assert (len(batch.texts), batch.damaged) == (1, [])
    reader.acknowledge(batch)
    assert reader.next_batch(events_max=10, size_max_bytes=50) is None
    reader.close()


def test_what_is_read_for_sending_is_on_disk_first(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = queue.stream("application")
    stream.append(REST)
    synced: list[int] = []
    real = os.fdatasync

    def watch(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", watch)
    reader = Reader(stream.folder)
    reader.reload()
    segment = segment_file(stream.folder, 1).stat().st_ino
    assert reader.next_batch(events_max=10, size_max_bytes=1000) is not None
    assert synced == [segment]
    stream.append(REST)
    assert reader.next_batch(events_max=10, size_max_bytes=1000) is not None
    assert synced == [segment, segment]
    reader.close()
    stream.close()


def test_a_segment_of_another_version_is_neither_sent_nor_counted_on(queue: Queue) -> None:
    append(queue)
    (folder,) = queue.streams()
    header, _, rest = segment_file(folder, 1).read_bytes().partition(b"\n")
    newer = line_of(header[9:].replace(b'"version":1', b'"version":2'))
    segment_file(folder, 1).write_bytes(newer + rest)
    reader = Reader(folder)
    reader.reload()
    with pytest.raises(SpoolError, match="another version"):
        reader.next_batch(events_max=1, size_max_bytes=1000)
    reader.close()
    assert append(queue) == [1]
    assert len(queue.streams()) == 2


@pytest.mark.parametrize(
    "written, normal",
    [
        ("http://Host:80/", "http://host"),
        ("https://host:443", "https://host"),
        ("http://host:8700/book/", "http://host:8700/book"),
        ("http://[::1]:8700", "http://[::1]:8700"),
    ],
)
def test_a_server_has_one_queue_however_it_is_written(written: str, normal: str, tmp_path: Path) -> None:
    assert normal_server(written) == normal
    assert Spool(tmp_path).queue(written).folder == Spool(tmp_path).queue(normal).folder


@pytest.mark.parametrize("server", ["", "host:8700", "ftp://host", "http://", "http://me:secret@host", "http://h:x"])
def test_what_is_no_server_is_refused(server: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="base URL"):
        Spool(tmp_path).queue(server)


def test_queues_are_found_again_and_nothing_is_made_by_looking(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    assert spool.queues() == []
    assert not spool.folder.exists()
    append(spool.queue(SERVER))
    append(spool.queue("http://other"))
    (spool.folder / "stray").write_text("")
    assert sorted(queue.server for queue in spool.queues()) == [SERVER, "http://other"]


def test_the_spool_is_where_the_environment_says() -> None:
    assert default_spool({"PILOTAGE_SPOOL": "here", "HOME": "/h"}) == Path("here")
    assert default_spool({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/pilotage/spool")
    assert default_spool({"HOME": "/h"}) == Path("/h/.local/state/pilotage/spool")


def test_the_stream_tells_when_it_is_closed(queue: Queue) -> None:
    stream: Stream = queue.stream("application")
    stream.close()
    with pytest.raises(SpoolError, match="closed"):
        stream.append(REST)
