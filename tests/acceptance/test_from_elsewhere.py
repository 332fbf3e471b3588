"""A job from a computer whose folder the service does not see: its inputs are sent, and its results are fetched."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import pilotage
from pilotage.service.announcement import find_service
from tests.kit.real_runs import SECONDS_MAX, Mounts, Place, end_service, own_mounts, own_seconds, place_in

DOCUMENT = r"""
pilotage: 1
job: far
stages:
  - name: one
    each: {file: {files: "*.dat"}}
    inputs: ["{file}", common.bin, "in a/ü \n x.txt", tools/add.sh]
    outputs: ["out put/{file.stem}.sum"]
    run: tools/add.sh "{file}" "out put/{file.stem}.sum"
  - name: two
    inputs: ["out put/*.sum"]
    outputs: ["total \u00e9\n.txt"]
    run:
      - sh
      - -c
      - 'cat "out put/"*.sum > "$(printf "total \303\251\n.txt")"'
"""
SCRIPT = """#!/bin/sh
set -e
test -x "$0"
cat "$1" common.bin "in a/"* | sha256sum > "$2"
"""
LARGE_BYTES = 40 * 2**20


def prepare(folder: Path) -> None:
    """A document with inputs of all kinds: small and large, by pattern, a link, in a folder, with odd names."""
    (folder / "pilotage.yaml").write_text(DOCUMENT)
    (folder / "tools").mkdir()
    (folder / "tools" / "add.sh").write_text(SCRIPT)
    (folder / "tools" / "add.sh").chmod(0o755)
    (folder / "in a").mkdir()
    (folder / "in a" / "ü \n x.txt").write_text("odd\n")
    (folder / "a.dat").write_text("a\n")
    (folder / "b.dat").write_text("b\n")
    (folder.parent / "outside").write_text("outside\n")
    (folder / "c.dat").symlink_to(folder.parent / "outside")
    with (folder / "common.bin").open("wb") as file:
        for number in range(LARGE_BYTES // 2**20):
            file.write(hashlib.sha256(b"%d" % number).digest() * 2**15)


def sums(folder: Path) -> dict[str, str]:
    """The content of each output."""
    rest = (folder / "common.bin").read_bytes() + (folder / "in a" / "ü \n x.txt").read_bytes()
    made = {}
    for name in ("a", "b", "c"):
        data = (folder / f"{name}.dat").read_bytes() + rest
        made[f"out put/{name}.sum"] = f"{hashlib.sha256(data).hexdigest()}  -\n"
    return made | {"total é\n.txt": "".join(made.values())}


def found(folder: Path) -> dict[str, str]:
    return {str(each.relative_to(folder)): each.read_text() for each in folder.rglob("*") if each.is_file()}


class Far:
    """A service that does not see the folder of its client."""

    def __init__(self, service: Place, client: Place) -> None:
        self.service, self.client = service, client

    def connect(self) -> None:
        """Have the client use the service by its address alone."""
        served = find_service(self.service.seen(self.service.state))
        assert served is not None
        self.client.environment["PILOTAGE_SERVER"] = served.url
        self.client.environment["PILOTAGE_TOKEN"] = self.service.seen(self.service.state / "token").read_text().strip()


@contextmanager
def far_service(tmp_path: Path, *, mounts: Mounts) -> Iterator[Far]:
    home, folder = tmp_path / "service", tmp_path / "client"
    home.mkdir()
    folder.mkdir()
    prepare(folder)
    # Where the service runs, another folder has the name of the client's, with another file of the same name in it; and the
    # client does not see the folder of the service.
    mounts.mount("-t", "tmpfs", "tmpfs", str(folder))
    mounts.mount("-t", "tmpfs", "tmpfs", str(home))
    (mounts.seen(folder) / "a.dat").write_text("of the service\n")
    with ExitStack() as stack:
        service = stack.enter_context(place_in(home, mounts=mounts))
        client = stack.enter_context(place_in(folder))
        service.run("serve", "--background", "--port", "0", "--slots", "2")
        far = Far(service, client)
        far.connect()
        yield far


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    with own_mounts() as mounts, far_service(tmp_path, mounts=mounts) as made:
        yield made


def told(far: Far, *arguments: str, code: int = 0) -> Any:
    return json.loads(far.client.ended(far.client.begin(*arguments, "--json"), code=code).stdout)


def finished(far: Far, job: str) -> None:
    far.client.ended(far.client.begin("watch", job))


def test_a_job_runs_with_inputs_that_were_sent_and_its_results_are_fetched(far: Far, tmp_path: Path) -> None:
    folder = far.client.folder
    before = sorted(folder.rglob("*"))
    answer = told(far, "submit")
    # The captured script goes with the submission; the rest is sent once for each content.
    assert answer["sent"] == {"files": 5, "bytes": LARGE_BYTES + 16, "there": 0}
    assert sorted(folder.rglob("*")) == before
    finished(far, answer["job"])
    refused = far.client.ended(far.client.begin("outputs", answer["job"]), code=1)
    assert "--to DIR" in refused.stderr
    there = tmp_path / "results"
    done = told(far, "outputs", answer["job"], "--to", str(there))
    assert (done["problems"], done["cleared"]) == (0, True)
    assert found(there) == sums(folder)
    # The same again: nothing is sent, all results are there, and none is fetched again.
    again = told(far, "submit")
    assert again["sent"] == {"files": 0, "bytes": 0, "there": 5}
    assert again["adopted"] == again["packages"] == 4
    inodes = {each: each.stat().st_ino for each in there.rglob("*")}
    finished(far, again["job"])
    assert told(far, "outputs", again["job"], "--to", str(there))["problems"] == 0
    assert {each: each.stat().st_ino for each in there.rglob("*")} == inodes
    # Another input is another folder: the results of the earlier job stay as they are.
    (folder / "a.dat").write_text("changed\n")
    third = told(far, "submit")
    assert third["sent"]["files"] == 1
    finished(far, third["job"])
    refused = far.client.ended(far.client.begin("outputs", third["job"], "--to", str(there)), code=1)
    assert "another file is there already" in refused.stderr
    assert "--replace" in refused.stderr
    assert told(far, "outputs", third["job"], "--to", str(there), "--replace")["problems"] == 0
    assert found(there) == sums(folder)
    assert told(far, "outputs", again["job"], "--to", str(tmp_path / "earlier"))["problems"] == 0


class Cable:
    """Between client and service: forwards so many bytes of what is sent, or of what is answered, and then stalls."""

    def __init__(self, url: str) -> None:
        self.target = urlsplit(url)
        self.up_bytes = self.down_bytes = 2**60
        self.stalled = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._threads.append(threading.Thread(target=self._join, args=(client,)))
                self._threads[-1].start()

    def _join(self, client: socket.socket) -> None:
        with client, socket.create_connection((self.target.hostname, self.target.port)) as service:
            up = threading.Thread(target=self._forward, args=(client, service, "up_bytes"))
            up.start()
            self._forward(service, client, "down_bytes")
            up.join()

    def _forward(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                left = getattr(self, name)
                if left <= 0:
                    self.stalled.set()
                    continue
                setattr(self, name, left - len(data))
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cable(far: Far) -> Iterator[Cable]:
    made = Cable(far.client.environment["PILOTAGE_SERVER"])
    far.client.environment["PILOTAGE_SERVER"] = made.url
    yield made
    made.close()


def interrupted(far: Far, cable: Cable, number: int, *arguments: str) -> None:
    """Call the program, and end it with a signal when the cable stalls."""
    cable.stalled.clear()
    process = far.client.begin(*arguments)
    assert cable.stalled.wait(SECONDS_MAX)
    process.send_signal(number)
    process.communicate()
    assert process.returncode != 0


def received(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.iterdir()) if folder.is_dir() else 0


def test_an_upload_that_is_interrupted_goes_on_also_after_a_restart_of_the_service(far: Far, cable: Cable) -> None:
    uploads = far.service.seen(far.service.state / "content" / "uploads")
    piece = 8 * 2**20
    sent_bytes = []
    for number in (signal.SIGINT, signal.SIGKILL):
        cable.up_bytes = piece + 2**20
        interrupted(far, cable, number, "submit")
        sent_bytes.append(received(uploads))
    assert piece <= sent_bytes[0] < sent_bytes[1] < LARGE_BYTES
    end_service(far.service.seen(far.service.state))
    far.service.run("serve", "--background", "--port", "0", "--slots", "2")
    far.connect()
    answer = told(far, "submit")
    assert received(uploads) == 0
    finished(far, answer["job"])
    assert told(far, "outputs", answer["job"], "--to", "results")["problems"] == 0
    assert found(far.client.folder / "results") == sums(far.client.folder)


LARGE = """
pilotage: 1
job: large
stages:
  - inputs: [common.bin]
    outputs: [copy.bin]
    run: cp common.bin copy.bin
"""


def test_a_download_that_is_interrupted_goes_on(far: Far, cable: Cable) -> None:
    far.client.document(LARGE)
    job = told(far, "submit")["job"]
    finished(far, job)
    there = far.client.folder / "results"
    sizes = []
    for number in (signal.SIGINT, signal.SIGKILL):
        cable.down_bytes = 12 * 2**20
        interrupted(far, cable, number, "outputs", job, "--to", "results")
        (draft,) = there.iterdir()
        sizes.append(draft.stat().st_size)
    assert 2**20 < sizes[0] < sizes[1] < LARGE_BYTES  # not all that was carried is written yet
    # The rest comes through a cable that would not carry the whole file again.
    cable.down_bytes = LARGE_BYTES - sizes[1] + 2**20
    assert told(far, "outputs", job, "--to", "results")["problems"] == 0
    assert [each.name for each in there.iterdir()] == ["copy.bin"]
    assert (there / "copy.bin").read_bytes() == (far.client.folder / "common.bin").read_bytes()


def test_a_draft_that_is_not_the_beginning_of_the_file_is_received_anew(far: Far, cable: Cable) -> None:
    far.client.document(LARGE)
    job = told(far, "submit")["job"]
    finished(far, job)
    cable.down_bytes = 12 * 2**20
    interrupted(far, cable, signal.SIGINT, "outputs", job, "--to", "results")
    (draft,) = (far.client.folder / "results").iterdir()
    with draft.open("r+b") as file:
        file.write(b"damaged")
    cable.down_bytes = 2**60
    assert told(far, "outputs", job, "--to", "results")["problems"] == 0
    assert (far.client.folder / "results" / "copy.bin").read_bytes() == (far.client.folder / "common.bin").read_bytes()


def peak_bytes(process: int | str) -> int:
    """The most memory that a process has used."""
    line = next(each for each in Path(f"/proc/{process}/status").read_text().splitlines() if each.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def test_a_large_file_costs_no_memory(far: Far) -> None:
    far.client.document(LARGE)
    (far.client.folder / "common.bin").write_bytes(b"small")
    told(far, "submit")
    served = find_service(far.service.seen(far.service.state))
    assert served is not None
    before = peak_bytes(served.pid)
    with (far.client.folder / "common.bin").open("wb") as file:
        file.truncate(200 * 2**20)
    job = told(far, "submit")["job"]
    finished(far, job)
    fetching = far.client.begin("outputs", job, "--to", "results")
    done = far.client.ended(fetching)
    assert "1 file verified of 1" in done.stdout
    assert (far.client.folder / "results" / "copy.bin").stat().st_size == 200 * 2**20
    assert peak_bytes(served.pid) - before < 64 * 2**20


def test_python_submits_from_elsewhere_and_fetches_queries_steers_and_subscribes(
    far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTAGE_TOKEN", far.client.environment["PILOTAGE_TOKEN"])
    client = pilotage.Client(far.client.environment["PILOTAGE_SERVER"])
    subscription = client.subscribe(target="jobs", states=["DONE", "CANCELLED"])
    result = client.submit(far.client.folder / "pilotage.yaml").wait().raise_for_failures()
    there = tmp_path / "results"
    files = client.outputs(result.job, to=there)
    assert {Path(each.path).relative_to(there).as_posix(): each.received for each in files} == dict.fromkeys(
        sums(far.client.folder), True
    )
    assert found(there) == sums(far.client.folder)
    assert not any(each.received or each.problem for each in client.outputs(result.job, to=there))
    client.clear(result.job)
    assert [(job.id, job.state) for job in client.jobs("state=CLEARED")] == [(result.job, "CLEARED")]
    assert [each.id for each in client.packages(job=result.job)] == ["1.1.1", "1.2.1", "1.3.1", "2.1.1"]
    assert client.count("packages", f"job={result.job}") == 4
    assert len(client.package(result.job, "2.1.1").inputs) == 3
    types = [each.type for each in client.events(job=result.job)]
    assert types.count("CommitGranted") == 4
    assert next(client.follow(result.job, "type=CommitGranted")).package is not None
    notice = next(iter(subscription))
    assert (notice.data["job"], notice.data["state"]) == (result.job, "DONE")
    assert [each.id for each in client.subscriptions()] == [subscription.id]
    assert subscription.refresh(validity_seconds=60.0).state.expires_at < time.time() + 61
    other = client.submit(pilotage.Job("long").stage(run=f"sleep {own_seconds()}"), folder=far.client.folder)
    client.hold(other.job, message="wait")
    client.release(other.job)
    assert client.operate_on("hold", "all", job=other.job).found == 1
    client.kill(other.job, message="enough")
    assert other.wait().state == "CANCELLED"
    assert {each.data["state"] for each in subscription.notices(wait_seconds=30.0)} == {"CANCELLED"}
    subscription.end()
    assert client.subscriptions() == []


def test_a_folder_that_the_service_sees_is_used_in_place(tmp_path: Path) -> None:
    with place_in(tmp_path) as place:
        (tmp_path / "common.bin").write_text("x")
        place.document(LARGE)
        place.run("serve", "--background", "--port", "0", "--slots", "1")
        answer = place.told("submit")
        assert "sent" not in answer
        place.run("watch", answer["job"])
        assert (tmp_path / "copy.bin").read_text() == "x"
        assert not (place.state / "folders").exists()
