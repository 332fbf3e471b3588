"""Inputs with a locator, through the cache of a site: linked, described with their checksums, and fetched anew when damaged."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from urllib.parse import quote

from tests.kit.real_runs import Place, own_mounts, place_in, wait_until

NAMES = ["a b.dat", "Prüfung €", "new\nline"]


def test_files_from_a_store_are_brought_once_and_read_by_all_packages(place: Place) -> None:
    store = place.folder / "a store"
    store.mkdir()
    for name in NAMES:
        (store / name).write_text(name)
    inputs = [{"name": name, "locator": f"file://{quote(str(store / name))}"} for name in NAMES]
    stage = {"each": {"x": "1..5"}, "run": ["sh", "-c", "cat -- * > out-{x}"], "inputs": inputs, "outputs": ["out-{x}"]}
    place.document(json.dumps({"pilotage": 1, "job": "brought", "stages": [stage]}))
    place.run("run")
    for number in range(1, 6):
        assert sorted((place.folder / f"out-{number}").read_text()) == sorted("".join(NAMES))
    cached = [each for each in (place.folder / ".pilotage/cache").rglob("*") if each.is_file()]
    assert sorted(each.read_text() for each in cached) == sorted(NAMES)
    job = place.told("outputs", "brought")["job"]
    told = {file["name"]: file for file in place.told("status", f"{job}/1.1.1")["inputs"]}
    assert {name: told[name]["origin"] for name in NAMES} == dict.fromkeys(NAMES, "locator")


def test_a_cached_file_that_a_command_changed_is_fetched_anew_for_the_next(place: Place) -> None:
    (place.folder / "store").mkdir()
    (place.folder / "store/a").write_text("right\n")
    given = {"name": "a", "locator": str(place.folder / "store/a")}
    damage = f"test -e {place.folder}/once || (touch {place.folder}/once; chmod u+w a; echo wrong >> a); cat a > first"
    first = {
        "run": ["sh", "-c", damage], "inputs": [given], "outputs": ["first"],
        "retry": {"rules": [{"reason": "application-error", "action": "again", "times": 2}]},
    }  # fmt: skip
    second = {"run": ["sh", "-c", "cat a first > second"], "inputs": [given, {"name": "first"}], "outputs": ["second"]}
    place.document(json.dumps({"pilotage": 1, "job": "damage", "stages": [first, second]}))
    place.run("run")
    assert (place.folder / "second").read_text() == "right\nright\n"
    [cached] = [each for each in (place.folder / ".pilotage/cache").rglob("*") if each.is_file()]
    assert hashlib.sha256(cached.read_bytes()).digest() == hashlib.sha256(b"right\n").digest()


def test_a_full_disk_of_the_cache_is_told_and_delays_only_who_needs_it(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    with own_mounts() as mounts, place_in(tmp_path / "job", mounts=mounts) as place:
        (place.folder / "pilotage.toml").write_text("[engine]\nfetch_delay_seconds = 1\n")
        cache = place.state / "cache"
        cache.mkdir(parents=True)
        place.state.chmod(0o700)
        (place.folder / "store").mkdir()
        stages = []
        for name, size_bytes in (("small", 5), ("big", 4_000_000)):
            (place.folder / "store" / name).write_bytes(bytes(size_bytes))
            given = {"name": "in", "locator": str(place.folder / "store" / name)}
            stages.append({"run": ["sh", "-c", f"wc -c < in > {name}"], "inputs": [given], "outputs": [name]})
        place.document(json.dumps({"pilotage": 1, "job": "full", "stages": stages}))
        mounts.mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(cache))
        process = place.begin("run", "--slots", "1")
        wait_until((place.folder / "small").exists, "the package that needs little space is done")
        wait_until(lambda: "disk-full" in place.run("status", "full").stdout, "the other one says why it waits")
        mounts.mount("-o", "remount,size=8m", str(cache))
        place.ended(process)
        assert (place.folder / "big").read_text().split() == ["4000000"]


def test_an_archive_of_software_is_unpacked_beside_the_inputs(place: Place) -> None:
    script = b'#!/bin/sh\necho reconstructed > "$1"\n'
    with tarfile.open(place.folder / "reco.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("bin/reco")
        member.mode, member.size = 0o755, len(script)
        archive.addfile(member, io.BytesIO(script))
    software = {
        "id": "reco", "archives": [{"locator": str(place.folder / "reco.tar.gz")}],
        "infrastructures": [{"executions": [{"run": ["reco/bin/reco", "{arguments}"]}]}],
    }  # fmt: skip
    stage = {"software": "reco", "arguments": ["out"], "outputs": ["out"]}
    place.document(json.dumps({"pilotage": 1, "job": "soft", "software": [software], "stages": [stage]}))
    place.run("run")
    assert (place.folder / "out").read_text() == "reconstructed\n"
