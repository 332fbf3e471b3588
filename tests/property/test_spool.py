"""Whatever is torn, and whoever writes and reads in whatever order: no whole event is lost, no number is given twice."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pilotage.agent.delivery.courier import Reader
from pilotage.agent.delivery.spool import Spool
from pilotage.agent.delivery.stream import Stream, segment_file
from pilotage.agent.durable_files import counters_of, line_of, text_of

SERVER = "http://127.0.0.1:8700"


def rest(value: str) -> bytes:
    return json.dumps({"type": "Noted", "data": {"text": value}}, ensure_ascii=False)[1:].encode()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(values=st.lists(texts, min_size=1, max_size=4), garbage=st.binary(max_size=40))
@settings(max_examples=15)
def test_a_file_cut_at_any_byte_keeps_every_whole_event(values: list[str], garbage: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        queue = Spool(Path(folder)).queue(SERVER)
        stream = queue.stream("application")
        for value in values:
            stream.append(rest(value))
        stream.close()
        segment = segment_file(stream.folder, 1)
        content = segment.read_bytes()
        header = content.index(b"\n") + 1
        for cut in range(header, len(content) + 1):
            torn = content[:cut] + garbage.replace(b"\n", b"")
            with segment.open("rb+") as file:  # in place: another file would be a copy
                file.write(torn)
                file.truncate()
            whole = content[:cut].count(b"\n") - 1
            stream = Stream(stream.folder)
            assert stream.append(rest("next")) == whole + 1
            stream.close()
            lines = segment.read_bytes().splitlines(keepends=True)
            assert b"".join(lines[:-1]) == content[: len(b"".join(lines[:-1]))]
            assert [counters_of(text_of(line[:-1]) or b"") for line in lines[1:]] == [
                (n, 0) for n in range(1, whole + 2)
            ]


@given(text=st.binary(max_size=200), at=st.integers(0, 10_000), change=st.integers(1, 255))
def test_a_changed_byte_is_noticed(text: bytes, at: int, change: int) -> None:
    line = bytearray(line_of(text)[:-1])
    assert text_of(bytes(line)) == text
    line[at % len(line)] ^= change
    assert text_of(bytes(line)) is None


class Writing(RuleBasedStateMachine):
    """Two writers come and go, lines are torn, a reader reads ahead of what it acknowledges and starts again."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.queue = Spool(Path(self.folder.name)).queue(SERVER)
        self.streams: list[Stream | None] = [None, None]
        self.written: dict[int, str] = {}
        self.sent: dict[int, str] = {}
        self.reader: Reader | None = None

    def stream(self, which: int) -> Stream:
        stream = self.streams[which]
        if stream is None:
            stream = self.streams[which] = self.queue.stream("application", segment_bytes=400)
        return stream

    @rule(which=st.integers(0, 1), value=texts)
    def append(self, which: int, value: str) -> None:
        number = self.stream(which).append(rest(value))
        assert number == len(self.written) + 1
        self.written[number] = value

    @rule(which=st.integers(0, 1))
    def restart_writer(self, which: int) -> None:
        stream, self.streams[which] = self.streams[which], None
        if stream is not None:
            stream.close()

    @rule(torn=st.binary(min_size=1, max_size=30))
    def die_while_writing(self, torn: bytes) -> None:
        stream = self.stream(0)
        stream.catch_up()
        with segment_file(stream.folder, stream.place.segment).open("ab") as file:
            file.write(torn.replace(b"\n", b"-"))

    @rule(events_max=st.integers(1, 5), size_max_bytes=st.integers(10, 600), acknowledge=st.booleans())
    @precondition(lambda self: self.written)
    def send(self, *, events_max: int, size_max_bytes: int, acknowledge: bool) -> None:
        if self.reader is None:
            self.reader = Reader(self.stream(0).folder)
        self.reader.reload()
        batch = self.reader.next_batch(events_max=events_max, size_max_bytes=size_max_bytes)
        if batch is None:
            return
        assert batch.damaged == []
        for text in batch.texts:
            event = json.loads(text)
            # The server would call it a conflict if a number came again with something else.
            assert self.sent.setdefault(event["n"], event["data"]["text"]) == event["data"]["text"]
        if acknowledge:
            self.reader.acknowledge(batch)

    @rule()
    def restart_reader(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.reader = None

    @invariant()
    def what_was_sent_is_what_was_written_without_gaps(self) -> None:
        assert list(self.sent) == list(range(1, len(self.sent) + 1))
        assert all(self.written[number] == value for number, value in self.sent.items())

    def teardown(self) -> None:
        self.restart_reader()
        if self.written:
            reader = Reader(self.stream(0).folder)
            reader.reload()
            while (batch := reader.next_batch(events_max=100, size_max_bytes=10_000)) is not None:
                self.sent.update({json.loads(text)["n"]: json.loads(text)["data"]["text"] for text in batch.texts})
                reader.acknowledge(batch)
            reader.close()
            assert self.sent == self.written
        for which in (0, 1):
            self.restart_writer(which)
        self.folder.cleanup()


TestWriting = Writing.TestCase
TestWriting.settings = settings(max_examples=40, stateful_step_count=30)
