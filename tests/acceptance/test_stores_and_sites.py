"""Jobs whose files lie in real stores: brought to each site once, copied to several, disposed of; stores fail meanwhile."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.engines.capsule import CannotIsolate
from tests.engines.postgres import free_port
from tests.engines.s3 import S3Server
from tests.engines.slurm import SlurmCluster
from tests.engines.sshd import SshServer
from tests.kit.cluster_runs import SITE, ClusterRun, cluster_run, ssh_for
from tests.kit.real_runs import Place, wait_until
from tests.kit.web_proxy import Answer, WebProxy

NUMBERS = 20
MANY = 100  # packages in each of two stages
FAR = "nantes"
CREDENTIALS = "[default]\naws_access_key_id = AKIA\naws_secret_access_key = secret\n"


class Stores:
    """An S3 server behind a proxy, and an SFTP server; each has data to read, and an archive."""

    def __init__(self, s3: S3Server, proxy: WebProxy, ssh: SshServer, folder: Path) -> None:
        self.s3, self.proxy, self.folder = s3, proxy, folder
        self.bucket = f"bucket-{uuid4().hex}"
        self._ssh = ssh
        s3.bucket(self.bucket)
        s3.write(self.bucket, "data/common.txt", b"common\n")
        (folder / "data").mkdir(parents=True)
        for number in range(1, NUMBERS + 1):
            (folder / "data" / f"part {number}.txt").write_text(f"part {number}\n")
        (folder / "credentials").write_text(CREDENTIALS)

    @property
    def common(self) -> str:
        return f"s3://{self.bucket}/data/common.txt"

    @property
    def sftp(self) -> str:
        return f"sftp://{self._ssh.user}@{self._ssh.host}:{self._ssh.port}{self.folder}"

    def settings(self, *, vault: str = "", vault_ssh: Path | None = None, tries: int = 3) -> str:
        """The stores, of which the S3 server is the first archive; the second is an SFTP server, or another."""
        configuration = vault_ssh or (None if vault else self._ssh.configuration())
        return f"""\
[stores.s3]
url = "s3://{self.bucket}"
endpoint = "{self.proxy.url}"
region = "us-east-1"
credentials_file = "{self.folder}/credentials"

[stores.tape]
url = "s3://{self.bucket}/tape"
endpoint = "{self.proxy.url}"
region = "us-east-1"
credentials_file = "{self.folder}/credentials"

[stores.vault]
url = "{vault or self.sftp + "/vault"}"
{f'ssh_config = "{configuration}"' if configuration else ""}

[stores.lab]
url = "{self.sftp}/data"
ssh_config = "{self._ssh.configuration()}"

[files]
archive = ["tape", "vault"]
transfer_tries_max = {tries}

"""

    def document(self, *, before: str = "true", retry: str = "") -> str:
        """A job of two stages: the first makes files that go when the second has read them, whose results are stored twice."""
        return f"""\
pilotage: 1
job: stored
stages:
  - name: first
    each: {{n: 1..{NUMBERS}}}
    shell: {before}; cat common.txt part.txt > mid-{{n}}.txt
    inputs:
      - {{name: common.txt, locator: "{self.common}"}}
      - {{name: part.txt, locator: "{self.sftp}/data/part%20{{n}}.txt", disposition: deletable}}
    outputs: [{{name: "mid-{{n}}.txt", dispositions: [forward, deletable]}}]
  - name: second
    each: {{n: 1..{NUMBERS}}}
    shell: cat common.txt mid-{{n}}.txt > out-{{n}}.txt
    inputs:
      - {{name: common.txt, locator: "{self.common}"}}
      - "mid-{{n}}.txt"
    outputs: [{{name: "out-{{n}}.txt", dispositions: [store], replicas: 2}}]
"""

    def many(self, constants: str, *, before: str) -> str:
        """The same job with more packages and another common input, which comes by SFTP."""
        text = self.document(before=before).replace(f"1..{NUMBERS}", f"1..{MANY}")
        return text.replace("    inputs:\n", f'    inputs:\n      - {{name: constants.txt, locator: "{constants}"}}\n')

    def reads(self, key: str) -> int:
        """How often the content of an object was read, whole or in part."""
        return sum(each.startswith(f"GET /{self.bucket}/{key}") for each in self.proxy.asked)

    def copies(self) -> list[dict[str, bytes]]:
        """What each archive has, by the last part of its name."""
        vault = self.folder / "vault"
        return [
            {key.rpartition("/")[2]: content for key, content in self.s3.content(self.bucket, "tape").items()},
            {path.name: path.read_bytes() for path in vault.rglob("*") if path.is_file()} if vault.is_dir() else {},
        ]


@pytest.fixture
def stores(s3_server: S3Server, ssh_server: SshServer, tmp_path: Path) -> Iterator[Stores]:
    with WebProxy(s3_server.port) as proxy:
        yield Stores(s3_server, proxy, ssh_server, tmp_path / "stores")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    try:
        found = SlurmCluster("f", nodes=1, cpus=4, hostnames=True)
    except CannotIsolate as error:
        pytest.skip(f"privilege: {error}")
    with found:
        yield found


def site_events(place: Place, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """What the book has of a type of events, in order: site and data; nothing while there is no book yet."""
    asked = "SELECT site, data FROM events WHERE type = ? ORDER BY position"
    try:
        with closing(sqlite3.connect(f"file:{place.state}/book.sqlite?mode=ro", uri=True)) as book:
            return [(site, json.loads(data)) for site, data in book.execute(asked, (kind,))]
    except sqlite3.OperationalError:
        return []


def results(number: int) -> bytes:
    return f"common\ncommon\npart {number}\n".encode()


EXPECTED = {f"out-{number}.txt": results(number) for number in range(1, NUMBERS + 1)}


def test_files_are_brought_to_each_site_once_stored_twice_and_disposed_of(
    stores: Stores, cluster: SlurmCluster, tmp_path: Path
) -> None:
    entry = {"mode": "pilots", "pilots_max": 1, "idle_seconds": 60}
    with cluster_run(tmp_path, cluster, entry, slots=2, settings=stores.settings()) as run:
        place = run.place
        # The first packages wait until both sites have their file.
        both = f"while ! test -e {tmp_path}/go; do sleep 0.05; done"
        place.document(stores.document(before=both))
        process = place.begin("run")
        wait_until(
            lambda: {site for site, data in fetched(place) if stores.common in data} == {"local", SITE},
            "both sites have the common file",
        )
        (tmp_path / "go").touch()
        place.ended(process)
        check_results(place, stores)
        fetches = Counter(each for each in fetched(place) if each[1] == stores.common)
        assert fetches == {("local", stores.common): 1, (SITE, stores.common): 1}
        assert stores.reads("data/common.txt") == 2
        commands_tell_the_truth(run, stores)


def test_a_network_that_is_cut_and_restored_delays_fetches_and_copies_only(stores: Stores, place: Place) -> None:
    (place.folder / "pilotage.toml").write_text(stores.settings())
    stores.proxy.is_cut = True
    place.document(stores.document())
    process = place.begin("run", "--slots", "2")
    wait_until(lambda: any("common.txt" in each for each in stores.proxy.asked), "the common file is tried")
    wait_until(lambda: moved(place), "another store is not affected")
    stores.proxy.rule = cut_at_the_fourth_copy(stores.proxy)
    stores.proxy.is_cut = False
    place.ended(process)
    assert stores.proxy.cut_requests == 0
    check_results(place, stores)


def test_two_hundred_packages_at_three_sites_outlast_a_cut_network_and_a_killed_store(
    stores: Stores, cluster: SlurmCluster, ssh_server: SshServer, tmp_path: Path
) -> None:
    (stores.folder / "data" / "constants.txt").write_text("constants\n")
    for number in range(1, MANY + 1):
        (stores.folder / "data" / f"part {number}.txt").write_text(f"part {number}\n")
    constants = f"{stores.sftp}/data/constants.txt"
    entry = {"mode": "pilots", "pilots_max": 1, "idle_seconds": 60}
    with ExitStack() as stack:
        vault = stack.enter_context(SshServer())
        far = stack.enter_context(SlurmCluster("g", nodes=1, cpus=4, hostnames=True))
        programs = ssh_for(ssh_server, far, tmp_path / "bin")
        run = stack.enter_context(
            cluster_run(
                tmp_path,
                cluster,
                entry,
                slots=2,
                settings=stores.settings(
                    vault=f"sftp://{vault.user}@{vault.host}:{vault.port}{stores.folder}/vault",
                    vault_ssh=vault.configuration(),
                    tries=8,
                ),
                others=[{"name": FAR, "address": ssh_server.address, "folder": tmp_path / "far"}],
                environment={"PATH": f"{programs}:{os.environ['PATH']}"},
            )
        )
        stack.callback(far.command, "scancel", "--user", str(os.geteuid()))
        place = run.place
        both = f"while ! test -e {tmp_path}/go; do sleep 0.05; done; test -s constants.txt"
        place.document(stores.many(constants, before=both))
        process = place.begin("run")
        common = {(site, each) for site in ("local", SITE, FAR) for each in (stores.common, constants)}
        wait_until(lambda: common <= {*fetched(place)}, "all sites have the common files")
        (tmp_path / "go").touch()
        wait_until(lambda: granted(place) >= MANY // 4, "a quarter of the first stage is done")
        stores.proxy.is_cut = True
        vault.kill()
        cut_at, moved_at = len(stores.proxy.asked), transferred(place)
        wait_until(lambda: len(stores.proxy.asked) > cut_at, "something is asked of the store that is cut off")
        wait_until(lambda: failing(place) >= {"s3", "sftp"}, "transfers with both stores say that they are tried again")
        vault.start()
        stores.proxy.is_cut = False
        place.ended(process)
        assert moved_at < transferred(place)
        expected = {f"out-{number}.txt": results(number) for number in range(1, MANY + 1)}
        assert {path.name: path.read_bytes() for path in place.folder.glob("out-*.txt")} == expected
        assert stores.copies() == [expected, expected]
        counted = Counter(fetched(place))
        assert {each: counted[each] for each in common} == dict.fromkeys(common, 1)
        assert stores.reads("data/common.txt") == 3
        assert granted(place) == 2 * MANY
        assert {data["site"] for _, data in site_events(place, "AttemptCreated")} == {"local", SITE, FAR}


def granted(place: Place) -> int:
    """The packages that are done."""
    return len(site_events(place, "CommitGranted"))


def transferred(place: Place) -> int:
    """The files that came to sites, and the copies of outputs that went to stores."""
    stored = sum(len(data["copies"]) for _, data in site_events(place, "OutputsStored"))
    return len(fetched(place)) + stored


def failing(place: Place) -> set[str]:
    """The schemes of the transfers under way whose last try failed."""
    return {each["file"].partition(":")[0] for each in place.told("status").get("transfers", []) if each["fault"]}


def cut_at_the_fourth_copy(proxy: WebProxy) -> Callable[[BaseHTTPRequestHandler], Answer | None]:
    """A rule that lets three copies be written to the archive, and ends what is asked next without an answer."""
    copies = count(1)

    def rule(request: BaseHTTPRequestHandler) -> Answer | None:
        if request.command == "PUT" and "/tape/" in request.path and next(copies) == 4:
            proxy.cut_requests = 5
        return None

    return rule


def moved(place: Place) -> bool:
    """Whether a file of the SFTP server has come."""
    return any(locator.startswith("sftp:") for _, locator in fetched(place))


def test_a_store_that_is_gone_for_good_is_named_for_each_copy_and_another_takes_its_place(
    stores: Stores, place: Place
) -> None:
    settings, port = place.folder / "pilotage.toml", free_port()
    settings.write_text(stores.settings(vault=f"sftp://nobody@127.0.0.1:{port}/vault"))
    place.document(stores.document())
    told = place.told("run", "--slots", "2", code=1)
    job = told["job"]
    assert stores.copies() == [EXPECTED, {}]
    for number in (1, NUMBERS):
        explained = place.run("explain", f"{job}/2.{number}.1").stdout
        assert f"out-{number}.txt to sftp://nobody@127.0.0.1:{port}/vault" in explained
        assert "store-unreachable" in explained
        assert "1 copies are there" in explained
        assert "no other archive store is left for it" in explained
    place.run("serve", "--stop")
    settings.write_text(stores.settings())
    place.run("serve", "--slots", "2", "--background")
    for number in range(1, NUMBERS + 1):
        place.run("release", f"{job}/2.{number}.1")
    place.run("attach", job)
    check_results(place, stores)


def test_a_third_archive_takes_the_copies_of_one_that_is_gone_for_good(stores: Stores, place: Place) -> None:
    gone, third = f"sftp://nobody@127.0.0.1:{free_port()}/vault", stores.folder / "third"
    text = stores.settings(vault=gone).replace('["tape", "vault"]', '["tape", "vault", "third"]')
    (place.folder / "pilotage.toml").write_text(f'{text}\n[stores.third]\nurl = "file://{third}"\n')
    place.document(stores.document())
    job = place.told("run", "--slots", "2")["job"]
    assert stores.copies() == [EXPECTED, {}]
    assert {path.name: path.read_bytes() for path in third.rglob("out-*.txt")} == EXPECTED
    explained = place.run("explain", f"{job}/2.1.1").stdout
    assert f"a copy of out-1.txt is at file://{third}/{job}/out-1.txt instead of {gone}/{job}/out-1.txt" in explained
    assert "store-unreachable" in explained or "nobody@127.0.0.1" in explained


def test_copies_of_attempts_that_are_never_granted_leave_their_store_when_the_job_is_killed(
    stores: Stores, place: Place
) -> None:
    (place.folder / "pilotage.toml").write_text(stores.settings(vault=f"sftp://nobody@127.0.0.1:{free_port()}/vault"))
    place.document(stores.document())
    job = place.told("run", "--slots", "2", code=1)["job"]
    other = f"tape/{job}/of-others.txt"
    stores.s3.write(stores.bucket, other, b"stays")
    assert stores.copies()[0] == EXPECTED | {"of-others.txt": b"stays"}
    place.run("kill", job)
    wait_until(lambda: stores.s3.keys(stores.bucket, "tape") == [other], "the copies are removed")


def fetched(place: Place) -> list[tuple[str, str]]:
    """The files that came, each with its site."""
    return [(site, each["locator"]) for site, data in site_events(place, "FilesFetched") for each in data["files"]]


def check_results(place: Place, stores: Stores) -> None:
    """Every result is in the folder and twice in the archives, and what was deletable is gone."""
    made = {path.name: path.read_bytes() for path in place.folder.glob("out-*.txt")}
    assert made == EXPECTED
    assert stores.copies() == [EXPECTED, EXPECTED]
    wait_until(lambda: not list(place.folder.glob("mid-*.txt")), "the intermediate files are disposed of")
    wait_until(
        lambda: {each["locator"] for each in place.told("files", "list")["files"]} == {stores.common},
        "the deletable inputs are gone",
    )


def commands_tell_the_truth(run: ClusterRun, stores: Stores) -> None:
    """A second run makes and stores no result again; then the caches are purged."""
    place = run.place
    ran = len(run.events("AttemptFinished"))
    told = place.told("run")
    assert told["state"] == "DONE"
    again = run.events("AttemptFinished")[ran:]
    second = [each["data"] for each in again if each["package"].startswith("2.")]
    assert [each["reason"] for each in second] == ["made-before"] * NUMBERS
    listed = place.told("files", "list")["files"]
    assert {(each["site"], each["state"], each["wish"]) for each in listed} == {
        ("local", "present", "retain-temporarily"),
        (SITE, "present", "retain-temporarily"),
    }
    reasons = place.told("files", "why", stores.common)["files"]
    assert [(each["goes"], each["needs"]) for each in reasons] == [("when-purged", [])] * 2
    told = place.told("files", "purge", "common.txt", "--dry-run")
    assert (told["changed"], told["changed_bytes"], told["kept"]) == (2, 2 * len("common\n"), 0)
    place.run("files", "purge", "common.txt")
    wait_until(lambda: place.told("files", "list")["files"] == [], "the caches are empty")
    causes = {each["cause"] for _, data in site_events(place, "RemovalsOrdered") for each in data["files"]}
    assert causes == {"deletable", "purged"}
