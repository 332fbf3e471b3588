"""Files that are unusual: with odd names in every store, larger than memory should be, than their cache, and changed meanwhile.

`SPARSE_BYTES` makes the large one larger.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

from tests.engines.s3 import S3Server
from tests.engines.sshd import SshServer
from tests.engines.webdav import WebdavServer
from tests.kit.real_runs import Place, wait_until

NAMES = ["a b.dat", "Prüfung €", "new\nline"]
CREDENTIALS = "[default]\naws_access_key_id = AKIA\naws_secret_access_key = secret\n"
SPARSE_BYTES = int(os.environ.get("SPARSE_BYTES", str(256 * 2**20)))
MORE_BYTES_MAX = 32 * 2**20
"""So much memory may transfers take besides, whatever the size of the file."""


def test_names_with_spaces_umlauts_and_line_breaks_come_from_every_store_in_one_job(
    place: Place, s3_server: S3Server, ssh_server: SshServer, webdav_server: WebdavServer, tmp_path: Path
) -> None:
    bucket, there = f"bucket-{uuid4().hex}", tmp_path / "there"
    s3_server.bucket(bucket)
    (tmp_path / "credentials").write_text(CREDENTIALS)
    bases = {
        "folder": f"file://{there}/folder",
        "sftp": f"sftp://{ssh_server.user}@{ssh_server.host}:{ssh_server.port}{there}/sftp",
        "s3": f"s3://{bucket}",
        "dav": f"{webdav_server.url}/{bucket}",
    }
    (place.folder / "pilotage.toml").write_text(
        f"[stores.s3]\nurl = 's3://{bucket}'\nendpoint = '{s3_server.endpoint}'\nregion = 'us-east-1'\n"
        f"credentials_file = '{tmp_path}/credentials'\n"
        f"[stores.sftp]\nurl = '{bases['sftp']}'\nssh_config = '{ssh_server.configuration()}'\n"
    )
    inputs = []
    for kind, base in bases.items():
        folder = webdav_server.folder / bucket if kind == "dav" else there / kind
        folder.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            content = f"{kind} has {name!r}\n"
            if kind == "s3":
                s3_server.write(bucket, quote(name, safe=" ü€") if "\n" in name else name, content.encode())
            else:
                (folder / name).write_text(content)
            inputs.append({"name": f"{kind} {name}", "locator": f"{base}/{quote(name)}"})
    stage = {"run": ["sh", "-c", "cat -- * > all.txt"], "inputs": inputs, "outputs": ["all.txt"]}
    place.document(json.dumps({"pilotage": 1, "job": "names", "stages": [stage]}))
    place.run("run")
    expected = sorted(f"{kind} has {name!r}" for kind in bases for name in NAMES)
    assert sorted((place.folder / "all.txt").read_text().splitlines()) == expected


def test_a_large_file_takes_no_more_memory_than_a_small_one(place: Place, tmp_path: Path) -> None:
    def job(name: str, size_bytes: int) -> None:
        with (tmp_path / name).open("wb") as file:
            file.truncate(size_bytes)
        script = f'test "$(stat -Lc %s {name})" = {size_bytes} && echo seen > seen-{name}'
        given = {"name": name, "locator": f"file://{tmp_path}/{name}", "disposition": "deletable"}
        stage = {"run": ["sh", "-c", script], "inputs": [given], "outputs": [f"seen-{name}"]}
        place.document(json.dumps({"pilotage": 1, "job": name, "stages": [stage]}))
        # It may take longer than a test waits for a command.
        process = place.begin("run")
        process.wait()
        place.ended(process)
        assert (place.folder / f"seen-{name}").read_text() == "seen\n"

    job("small", 4 * 2**20)
    before = peaks(place)
    job("large", SPARSE_BYTES)
    after = peaks(place)
    assert after.keys() & before.keys(), "the same service and agents"
    grown = {pid: after[pid] - before[pid] for pid in after.keys() & before.keys()}
    assert max(grown.values()) < MORE_BYTES_MAX, grown


def peaks(place: Place) -> dict[int, int]:
    """The most memory that the service and its agents have had so far."""
    records = [place.state / "service.json", *(place.state / "pilots").glob("*.json")]
    found = {}
    for pid in (int(json.loads(record.read_text())["pid"]) for record in records):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        found[pid] = int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    return found


def test_a_cache_smaller_than_the_files_of_a_job_is_used_again_and_again(place: Place, tmp_path: Path) -> None:
    limit, size, cache = 1_000_000, 300_000, tmp_path / "cache"
    (place.folder / "sites.yaml").write_text(
        f"pilotage: 1\nsites:\n  - {{name: annex, kind: local, slots: 2, cache: {cache}, cache_bytes: {limit}}}\n"
    )
    (tmp_path / "store").mkdir()
    for number in range(1, 13):
        (tmp_path / "store" / f"in-{number}").write_bytes((b"%d\n" % number).ljust(size, b"."))
    measure = f"find {cache} -type f -printf '%s\\n' | awk '{{{{ s += $1 }}}} END {{{{ print s }}}}' > used-{{n}}"
    stage = {
        "each": {"n": "1..12"},
        "run": ["sh", "-c", f"head -n 1 in > out-{{n}} && {measure}"],
        "inputs": [{"name": "in", "locator": f"file://{tmp_path}/store/in-{{n}}", "size_bytes": size}],
        "outputs": ["out-{n}", "used-{n}"],
        "executor": "annex",
    }
    place.document(json.dumps({"pilotage": 1, "job": "cramped", "stages": [stage]}))
    place.run("run")
    for number in range(1, 13):
        assert (place.folder / f"out-{number}").read_text() == f"{number}\n"
        assert size <= int((place.folder / f"used-{number}").read_text()) <= limit
    files = place.told("files", "list")["files"]
    assert sum(each["size_bytes"] for each in files if each["state"] == "present") <= limit
    assert len(files) < 12, "the first ones went"


def test_a_file_that_its_store_changes_has_one_content_in_a_cache_and_another_one_than_required_is_named(
    place: Place, tmp_path: Path
) -> None:
    file = tmp_path / "in.dat"
    file.write_text("old\n")
    given = {"name": "in.dat", "locator": f"file://{file}"}
    first = {
        "run": ["sh", "-c", f"cat in.dat > one && echo new > {file}"],
        "inputs": [given],
        "outputs": ["one"],
    }
    second = {"run": ["sh", "-c", "cat one in.dat > two"], "inputs": [given, "one"], "outputs": ["two"]}
    place.document(json.dumps({"pilotage": 1, "job": "changed", "stages": [first, second]}))
    place.run("run")
    assert (place.folder / "two").read_text() == "old\nold\n", "one content for all packages of the site"
    told = place.told("status", "changed/1.1.1")
    wanted = next(each["sha256"] for each in told["inputs"] if each["name"] == "in.dat")
    place.run("files", "purge", "in.dat")
    wait_until(lambda: place.told("files", "list")["files"] == [], "the file is purged")
    place.document(json.dumps({"pilotage": 1, "job": "later", "stages": [copying("three", given)]}))
    place.run("run")
    assert (place.folder / "three").read_text() == "new\n"
    exact = copying("four", {**given, "sha256": wanted})
    place.document(json.dumps({"pilotage": 1, "job": "exact", "stages": [exact]}))
    place.run("submit")
    wait_until(lambda: "requires" in place.run("explain", "exact/1.1.1").stdout, "the package says what it lacks")
    explained = place.run("explain", "exact/1.1.1").stdout
    for content in (b"old\n", b"new\n"):
        assert hashlib.sha256(content).hexdigest()[:32] in explained, "messages may be cut off in the second"
    assert not (place.folder / "four").exists()


def copying(name: str, given: dict[str, str]) -> dict[str, object]:
    """A stage that copies its input."""
    return {"run": ["sh", "-c", f"cat in.dat > {name}"], "inputs": [given], "outputs": [name]}
