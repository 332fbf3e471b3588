"""The servers that tests start: they start, crash, recover, and are gone when the tests are."""

from __future__ import annotations

import os
import select
import shutil
import signal
import smtplib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from pathlib import Path

import psycopg
import pytest

from tests.engines import debian, postgres_programs
from tests.engines.errors import EngineError
from tests.engines.postgres import PostgresServer
from tests.engines.smtp import BreakOff, Hang, MailServer
from tests.engines.watchdog import processes_of

PROGRAMS = ("initdb", "pg_ctl", "postgres")


def insert(url: str, *, value: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (value integer)")
        connection.execute("INSERT INTO kept VALUES (%s)", (value,))


def kept(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT value FROM kept ORDER BY value")]


def test_a_database_is_fresh_and_its_server_is_new_enough(postgres_server: PostgresServer, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.info.server_version >= 150_000
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
        assert connection.info.encoding == "utf-8"
    insert(postgres_url, value=1)
    assert postgres_server.database() != postgres_url


def test_a_database_can_be_copied_from_a_template(postgres_server: PostgresServer, postgres_url: str) -> None:
    insert(postgres_url, value=7)
    copy = postgres_server.database(template=postgres_url.rpartition("/")[2])
    assert kept(copy) == [7]
    postgres_server.drop(copy)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        kept(copy)


def test_a_database_is_reached_through_the_socket_too(postgres_server: PostgresServer, postgres_url: str) -> None:
    insert(postgres_url, value=3)
    assert kept(postgres_server.socket_url(postgres_url.rpartition("/")[2])) == [3]


def test_nobody_gets_in_without_the_password(postgres_server: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(postgres_server.url(), password="wrong")


def test_what_was_committed_is_there_after_a_crash(postgres_server: PostgresServer, postgres_url: str) -> None:
    insert(postgres_url, value=1)
    with psycopg.connect(postgres_url) as held:
        held.execute("INSERT INTO kept VALUES (2)")  # not committed
        postgres_server.restart()
        with pytest.raises(psycopg.OperationalError):
            held.execute("SELECT 1")
    assert "not properly shut down" in postgres_server.log()
    assert kept(postgres_url) == [1]


def test_a_stopped_server_refuses_and_comes_back_where_it_was(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    insert(postgres_url, value=1)
    postgres_server.stop()
    assert not postgres_server.is_running
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(postgres_url)
    postgres_server.ensure_running()
    assert kept(postgres_url) == [1]


def test_a_durable_server_waits_for_the_disk_and_closes_without_trace() -> None:
    with PostgresServer(durable=True) as server, psycopg.connect(server.url()) as connection:
        settings = "fsync", "full_page_writes", "synchronous_commit"
        assert [connection.execute(f"SHOW {name}").fetchone() for name in settings] == [("on",)] * 3
        assert processes_of(server.folder)
    assert processes_of(server.folder) == []
    assert not server.folder.exists()
    server.close()


def test_a_server_does_not_outlive_tests_that_are_killed(root: Path) -> None:
    program = (
        "import sys; from tests.engines.postgres import PostgresServer\n"
        "server = PostgresServer()\n"
        "print(server.folder, server._watchdog.pid, flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        folder_text, watchdog = tests.stdout.readline().split()
        folder = Path(folder_text)
        assert processes_of(folder)
        watchdog_ends = os.pidfd_open(int(watchdog))
        tests.send_signal(signal.SIGKILL)
    try:
        waiting = select.poll()
        waiting.register(watchdog_ends, select.POLLIN)
        assert waiting.poll(30_000), "the watchdog is still there"
    finally:
        os.close(watchdog_ends)
    assert processes_of(folder) == []
    assert not folder.exists()


def make_programs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 16.2'\n")
        (folder / name).chmod(0o755)
    return folder


def test_the_newest_complete_postgresql_is_found(tmp_path: Path) -> None:
    make_programs(tmp_path / "9.6" / "bin", *PROGRAMS)
    make_programs(tmp_path / "14" / "bin", *PROGRAMS)
    fifteen = make_programs(tmp_path / "15" / "bin", *PROGRAMS)
    make_programs(tmp_path / "17" / "bin", "pg_ctl")
    assert postgres_programs.find_programs(debian=tmp_path, search="") == fifteen


def test_postgresql_is_found_on_the_path(tmp_path: Path) -> None:
    sixteen = make_programs(tmp_path / "somewhere", *PROGRAMS)
    assert postgres_programs.find_programs(debian=tmp_path / "none", search=str(sixteen)) == sixteen
    (sixteen / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 13.2'\n")
    assert postgres_programs.find_programs(debian=tmp_path / "none", search=str(sixteen)) is None


def test_who_may_not_install_postgresql_is_told_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(postgres_programs, "find_programs", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EngineError, match="apt-get install postgresql"):
        postgres_programs.postgres_programs()


def test_root_installs_postgresql_without_a_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    programs = tmp_path / "16" / "bin"
    no_cluster = tmp_path / "createcluster.d" / "tests.conf"
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert "create_main_cluster = false" in no_cluster.read_text()
        commands.append(command)
        if "install" in command:
            make_programs(programs, *PROGRAMS)
        return subprocess.CompletedProcess(command, 0, "", "")

    find = postgres_programs.find_programs
    monkeypatch.setattr(postgres_programs, "find_programs", lambda: find(debian=tmp_path, search=""))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(postgres_programs, "NO_CLUSTER", no_cluster)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/usr/bin/{name}" if path is None else None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", run)
    assert postgres_programs.postgres_programs() == programs
    assert [("update" in command, "postgresql" in command) for command in commands] == [(True, False), (False, True)]
    assert not no_cluster.exists()


def test_a_program_is_not_taken_while_another_worker_installs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ThreadPoolExecutor(1) as other:
        with debian.one_at_a_time():
            asked = other.submit(debian.ensure_programs, ["sh"], packages=[])
            with pytest.raises(TimeoutError):
                asked.result(timeout=0.2)
        assert asked.result().keys() == {"sh"}


def send(server: MailServer, *recipients: str, subject: str = "hello") -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "book@example.org", ", ".join(recipients), subject
    message.set_content("a letter\n")
    with smtplib.SMTP(server.host, server.port, timeout=30) as client:
        client.send_message(message)


def test_mail_is_kept_in_order_with_its_envelope(mail_server: MailServer) -> None:
    send(mail_server, "a@example.org", "b@example.org", subject="größer")
    send(mail_server, "c@example.org", subject="second")
    first, second = mail_server.wait_for(2)
    assert (first.sender, first.recipients) == ("book@example.org", ("a@example.org", "b@example.org"))
    assert first.message["Subject"] == "größer"
    assert first.message.get_content() == "a letter\n"
    assert second.message["Subject"] == "second"


@pytest.mark.parametrize("reply", ["451 4.3.0 later", "550 5.7.1 never", "500 what?"])
def test_mail_is_refused_once_as_planned(mail_server: MailServer, reply: str) -> None:
    mail_server.plan(reply)
    with pytest.raises(smtplib.SMTPDataError) as refused:
        send(mail_server, "a@example.org")
    assert refused.value.smtp_code == int(reply[:3])
    assert mail_server.mails == ()
    send(mail_server, "a@example.org")
    mail_server.wait_for(1)


def test_one_recipient_of_two_is_refused(mail_server: MailServer) -> None:
    mail_server.refused_recipients["gone@example.org"] = "550 5.1.1 no such user"
    with smtplib.SMTP(mail_server.host, mail_server.port, timeout=10) as client:
        refused = client.sendmail("book@example.org", ["gone@example.org", "a@example.org"], "Subject: x\r\n\r\ny")
    assert list(refused) == ["gone@example.org"]
    assert mail_server.wait_for(1)[0].recipients == ("a@example.org",)


def test_a_server_that_hangs_never_answers(mail_server: MailServer) -> None:
    mail_server.plan(Hang())
    with ThreadPoolExecutor() as pool:
        sending = pool.submit(send, mail_server, "a@example.org")
        mail_server.wait_for_plan()
        assert not sending.done()
        mail_server.stop()
        with pytest.raises(smtplib.SMTPServerDisconnected):
            sending.result()
    assert mail_server.mails == ()


def test_a_server_may_keep_a_mail_and_not_say_so(mail_server: MailServer) -> None:
    mail_server.plan(BreakOff())
    with pytest.raises(smtplib.SMTPServerDisconnected):
        send(mail_server, "a@example.org")
    mail_server.wait_for(1)


def test_a_mail_server_that_was_away_comes_back_where_it_was(mail_server: MailServer) -> None:
    with smtplib.SMTP(mail_server.host, mail_server.port, timeout=10) as client:
        client.noop()
        mail_server.stop()
        with pytest.raises(smtplib.SMTPServerDisconnected):
            client.noop()
    with pytest.raises(ConnectionRefusedError):
        send(mail_server, "a@example.org")
    mail_server.start()
    send(mail_server, "a@example.org")
    mail_server.wait_for(1)
    with pytest.raises(AssertionError, match="expected 2 mails, got 1"):
        mail_server.wait_for(2, timeout_seconds=0)


def test_answers_that_nobody_asked_for_are_told() -> None:
    with MailServer() as server:
        server.plan("451 later")
        assert server.planned == ("451 later",)
        with pytest.raises(AssertionError, match="451 later"):
            server.wait_for_plan(timeout_seconds=0)
