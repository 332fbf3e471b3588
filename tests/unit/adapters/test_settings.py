"""Settings: sources in their order, faults by name, and nothing that prints a password."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.pretty import pretty_repr

from pilotage.adapters.settings.settings_files import load_settings, settings_files, state_folder
from pilotage.agent.attempt.environment import OWN_NAMES
from pilotage.app.service.serve import engine_settings
from pilotage.model.exit_codes import ExitCode
from pilotage.model.settings import settings as configuration
from pilotage.model.settings.engine import EngineSettings, HealingSettings, RestartSettings
from pilotage.model.settings.layers import OTHER_VARIABLES, SHORT_VARIABLES, SettingsError
from pilotage.model.settings.settings import (
    SETTINGS,
    BadJournalAddress,
    JournalAddress,
    Settings,
    parse_journal_address,
    settings_tables,
    without_password,
)
from pilotage.model.settings.stores import StoreSettings
from tests.kit.reaching import share

GENERATED = re.compile(r"<!-- generated: settings -->\n(.*?)<!-- end of generated -->", re.DOTALL)


class Machine:
    """A system's, a user's and a project's folder, and an environment."""

    def __init__(self, folder: Path) -> None:
        self.system, self.home, self.project = folder / "etc", folder / "home", folder / "project"
        self.environment = {"HOME": str(self.home), "XDG_CONFIG_DIRS": str(self.system), "PATH": "/usr/bin"}
        self.project.mkdir()

    def write(self, text: str, *, into: str = "project") -> Path:
        file = {
            "system": self.system / "pilotage",
            "user": self.home / ".config" / "pilotage",
            "project": self.project,
        }[into] / "pilotage.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        return file

    def load(self, **flags: object) -> Settings:
        named = {name.replace("__", "."): value for name, value in flags.items()}
        return load_settings(environment=self.environment, folder=self.project, flags=named)

    def faults(self, **flags: object) -> str:
        with pytest.raises(SettingsError) as refused:
            self.load(**flags)
        assert refused.value.exit_code == ExitCode.BAD_INPUT
        return str(refused.value)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_sources_everything_has_its_default(machine: Machine) -> None:
    settings = machine.load()
    assert settings.journal.address == JournalAddress(kind="sqlite", folder=f"{machine.project}/.pilotage")
    assert msgspec.structs.replace(settings, journal=Settings().journal) == Settings()
    assert (settings.service.host, settings.service.port) == ("127.0.0.1", 8642)
    assert settings.service.batch_bytes_max == 8 * 1024 * 1024


def test_each_source_wins_over_those_before_it(machine: Machine) -> None:
    machine.write("[service]\nport = 1\nbatch_events_max = 11\n[book]\nskew_seconds = 11", into="system")
    assert machine.load().service.port == 1
    machine.write("[service]\nport = 2\nbatch_events_max = 12", into="user")
    assert machine.load().service.port == 2
    machine.write("[service]\nport = 3\n", into="project")
    assert machine.load().service.port == 3
    machine.environment["PILOTAGE_SERVICE_PORT"] = "4"
    assert machine.load(service__port=None).service.port == 4
    settings = machine.load(service__port=5)
    assert settings.service.port == 5
    # A source speaks only of what it names.
    assert (settings.service.batch_events_max, settings.book.skew_seconds) == (12, 11.0)


def test_files_stand_where_xdg_puts_them(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_DIRS": "/first:relative:/second", "XDG_CONFIG_HOME": "/mine", "HOME": "/home/me"}
    assert [str(file) for file in settings_files(environment=environment, folder=Path("/project"))] == [
        "/second/pilotage/pilotage.toml",
        "/first/pilotage/pilotage.toml",
        "/mine/pilotage/pilotage.toml",
        "/project/pilotage.toml",
    ]
    environment = {"XDG_CONFIG_DIRS": "", "XDG_CONFIG_HOME": "relative", "HOME": "/home/me"}
    assert [str(file) for file in settings_files(environment=environment, folder=Path("/project"))] == [
        "/etc/xdg/pilotage/pilotage.toml",
        "/home/me/.config/pilotage/pilotage.toml",
        "/project/pilotage.toml",
    ]
    assert len(list(settings_files(environment={}, folder=Path("/project")))) == 2


SHARES = ("engine.provisioning_within", "healing.threshold", "healing.waste_max")
"""Settings that are at most one."""


def test_every_setting_has_a_variable_and_none_is_one_of_the_others(machine: Machine) -> None:
    variables = [row.variable for row in SETTINGS.values()]
    assert len(set(variables)) == len(variables)
    assert not OTHER_VARIABLES & {*variables, *SHORT_VARIABLES}
    samples = {"whole number": "7", "number": "7.5", "text": "a@b", "list of texts": "owner, tag.study"}
    for row in SETTINGS.values():
        # The choice of sites has numbers that must go together, and others are shares of one.
        sample = samples[row.kind] if row.section != "selection" and row.name not in SHARES else str(row.default)
        machine.environment[row.variable] = row.choices[-1] if row.choices else sample
    machine.environment |= {
        "PILOTAGE_NOTIFICATIONS_CLUSTER_MANAGEMENT": "a@b,c@d",
        "PILOTAGE_NOTIFICATIONS_GRID_CONTROL": "",
        "PILOTAGE_JOURNAL_URL": "sqlite:/x",
        "PILOTAGE_FILES_ARCHIVE": "",
    }
    settings = machine.load()
    assert settings.query.indexed == ("owner", "tag.study")
    assert settings.notifications.cluster_management == ("a@b", "c@d")
    assert settings.notifications.grid_control == ()
    assert settings.retention.cleared_after_days == 7.5
    assert settings.engine.fairness == "first-come"


def test_variables_of_agents_and_tests_are_left_alone(machine: Machine) -> None:
    before = machine.load()
    machine.environment |= dict.fromkeys(OTHER_VARIABLES, "anything")
    machine.environment["_PILOTAGE_COMPLETE"] = "bash_complete"
    assert machine.load() == before


@pytest.mark.parametrize(
    "text, fault",
    [
        ("[service]\nprot = 1", "service.prot: there is no such setting; did you mean 'service.port'?"),
        ("[servce]\nport = 1", "servce: there is no such section; did you mean 'service'?"),
        (
            "port = 1",
            "port: there is no such section; known here: book, engine, files, healing, journal, notifications, ",
        ),
        ("service = 1", "service: this is a section, not a setting; write [service] and its keys below"),
        ("[service]\nport = '1'", "service.port: expected a whole number, got '1'"),
        ("[service]\nport = true", "service.port: expected a whole number, got true"),
        ("[service]\nport = 1.0", "service.port: expected a whole number, got 1"),
        ("[service]\nport = -1", "service.port: expected at least 0, got -1"),
        ("[service]\nport = 65536", "service.port: expected at most 65535, got 65536"),
        ("[service]\nhost = ''", "service.host: expected an address to listen on"),
        ("[service]\nhost = 'ü..ö'", "service.host: expected an address to listen on"),
        ("[engine]\nfairness = 'fair'", "engine.fairness: expected slowdown or first-come, got 'fair'"),
        ("[service.port]\nx = 1", "service.port: expected a whole number, got a table"),
        ("[book]\nskew_seconds = nan", "book.skew_seconds: expected a number, got nan"),
        ("[book]\nskew_seconds = inf", "book.skew_seconds: expected a number, got inf"),
        ("[book]\nskew_seconds = true", "book.skew_seconds: expected a number, got true"),
        ("[query]\nindexed = 'owner'", "query.indexed: expected a list of texts, got 'owner'"),
        ("[query]\nindexed = ['owner', 1]", "query.indexed: expected a list of texts, got a list"),
        ("[query]\nindexed = ['a b']", "query.indexed: expected names such as owner or tag.study, got 'a b'"),
        ("[query]\npage_rows = 1001", "query.page_rows: 1001 is more than query.page_rows_max, which is 1000"),
        ("[service]\ntag_bytes_max = 4194305", "service.tag_bytes_max: 4194305 is more than service.event_bytes_max"),
        (
            "[service]\nevent_bytes_max = 8388609",
            "service.event_bytes_max: 8388609 is more than service.batch_bytes_max",
        ),
        ("[notifications]\nvalidity_seconds = 1e6", "notifications.validity_seconds: 1000000 is more than "),
        ("[notifications]\nsmtp_host = 'x'", "notifications.smtp_host: mail needs a sender"),
        ("[notifications]\ngrid_control = ['x']", "notifications.grid_control: expected an address such as "),
        ('[notifications]\nsmtp_from = "a@b\\nBcc: c@d"', "notifications.smtp_from: expected printable characters"),
        ("[journal]\nurl = 'mysql:x'", "journal.url: this is not the address of a journal; expected sqlite:DIR"),
        ("[service]\nport = 1979-05-27", "service.port: expected a whole number, got a date"),
        ("[service\n", "is not TOML: "),
        ("stores = 1", "stores: this is no store; write [stores.NAME]"),
        ("[stores]\ntape = 1", "stores.tape: this is no store; write [stores.NAME]"),
        ("[stores.tape]\nurl = '/x'\ntoken_file = '/a'", "stores.tape.token_file: a store of file locators has no"),
        ("[stores.tape]\nconcurrency = 3", "stores.tape.url: a store needs the url of its files"),
        ("[stores.tape]\nurl = '/x'\nconcurrency = 0", "stores.tape.concurrency: expected at least 1, got 0"),
        ("[stores.tape]\nurl = '/x'\nuser_name = 'a'", "stores.tape.user_name: there is no such setting of a store"),
        ("[stores.tape]\nurl = 'https://a:b@c/'", "stores.tape.url: a locator holds no password"),
        ("[stores.tape]\nurl = 'https://c/'\nuser = 'a'", "stores.tape.user: user and password_file belong together"),
        ("[stores.tape]\nurl = 'https://c/'\ntoken_file = 't'", "stores.tape.token_file: expected an absolute path"),
        ("[stores.tape]\nurl = 's3://x'\nendpoint = 'host'", "stores.tape.endpoint: expected a URL such as"),
        ("[stores.'Tape 1']\nurl = '/x'", "stores.Tape 1: the name of a store has small letters"),
        ("[files]\narchive = ['tape']", "files.archive: there is no [stores.tape]"),
    ],
)
def test_a_fault_names_its_file_and_its_setting(machine: Machine, text: str, fault: str) -> None:
    file = machine.write(text)
    told = machine.faults()
    assert told.startswith(f"{file}: {fault}")
    assert len(told.splitlines()) == 1


def test_a_file_that_is_not_text_or_not_a_file_is_refused_by_name(machine: Machine) -> None:
    file = machine.write("")
    file.write_bytes(b"x = '\xff'")
    (machine.home / ".config" / "pilotage" / "pilotage.toml").mkdir(parents=True)
    user, project = machine.faults().splitlines()
    assert user.startswith(f"{machine.home}/.config/pilotage/pilotage.toml: cannot be read: Is a directory")
    assert project == f"{file}: is not UTF-8: byte 6 is 0xff"
    file.write_bytes(b"#" * (1024 * 1024 + 1))
    assert "larger than 1048576 bytes" in machine.faults()


def test_a_store_is_a_table_of_its_own_and_a_later_file_changes_single_keys(machine: Machine) -> None:
    machine.write("[stores.tape]\nurl = 's3://tape/run3'\nconcurrency = 2\n[stores.disk]\nurl = '/data'\n", into="user")
    machine.write("[stores.tape]\nendpoint = 'http://here'\n[files]\narchive = ['tape', 'disk']\n")
    settings = machine.load()
    assert settings.stores == (
        StoreSettings(name="disk", url="/data"),
        StoreSettings(name="tape", url="s3://tape/run3", concurrency=2, endpoint="http://here"),
    )
    assert settings.files.archive == ("tape", "disk")


def test_faults_of_all_sources_are_told_at_once(machine: Machine) -> None:
    system = machine.write("[service]\nport = 'x'", into="system")
    machine.environment |= {
        "PILOTAGE_SERVICE_PROT": "1",
        "PILOTAGE_service_port": "1",
        "PILOTAGE_BOOK_SKEW_SECONDS": "",
    }
    assert machine.faults(service__prot=1).splitlines() == [
        f"{system}: service.port: expected a whole number, got 'x'",
        "environment: PILOTAGE_BOOK_SKEW_SECONDS: expected a number, got ''",
        "environment: PILOTAGE_SERVICE_PROT: no setting has this variable; did you mean 'PILOTAGE_SERVICE_PORT'?",
        "environment: PILOTAGE_service_port: no setting has this variable; did you mean 'PILOTAGE_SERVICE_PORT'?",
        "command line: service.prot: there is no such setting; did you mean 'service.port'?",
    ]


def test_a_limit_that_contradicts_a_default_is_told_where_it_was_set(machine: Machine) -> None:
    machine.environment["PILOTAGE_SERVICE_BATCH_BYTES_MAX"] = "1000"
    assert machine.faults() == (
        "defaults: service.event_bytes_max: 4194304 is more than service.batch_bytes_max, which is 1000"
    )


def test_two_variables_for_one_setting_must_agree(machine: Machine) -> None:
    machine.environment |= {"PILOTAGE_JOURNAL": "sqlite:a", "PILOTAGE_JOURNAL_URL": "sqlite:b"}
    assert "contradicts PILOTAGE_JOURNAL: give only one of them" in machine.faults()
    machine.environment["PILOTAGE_JOURNAL_URL"] = "sqlite:a"
    assert machine.load().journal.address.folder == f"{machine.project}/a"


@pytest.mark.parametrize(
    "url, folder", [("sqlite:b", "project/b"), ("sqlite:/b", "/b"), ("sqlite:~/b", "home/b"), ("sqlite:~", "home")]
)
def test_a_journals_folder_is_made_absolute(machine: Machine, tmp_path: Path, url: str, folder: str) -> None:
    settings = machine.load(journal__url=url)
    assert settings.journal.address.folder == str(tmp_path / folder)
    assert state_folder(settings, folder=machine.project) == tmp_path / folder


def test_a_book_in_postgresql_has_its_state_in_the_project(machine: Machine) -> None:
    settings = machine.load(journal__url="postgres://u:secret@h/db")
    assert settings.journal.url == "postgresql://u:secret@h/db"
    assert state_folder(settings, folder=machine.project) == machine.project / ".pilotage"


def test_settings_are_never_shown_with_a_password(machine: Machine) -> None:
    settings = machine.load(journal__url="postgresql://u:secret@h/db?sslpassword=secret")
    for shown in (
        repr(settings),
        str(settings.journal),
        repr(settings.journal.address),
        str(settings.journal.address),
        pretty_repr(settings),
        pretty_repr(settings.journal.address),
        machine.faults(journal__url="postgresq://u:secret@h/db"),
        machine.faults(service__port="postgresql://u:secret@h/db"),
    ):
        assert "secret" not in shown
    assert settings.journal.address.url == "postgresql://u:secret@h/db?sslpassword=secret"


@given(password=st.text(max_size=30), scheme=st.sampled_from(["postgresql", "postgres", "postgresq"]))
def test_no_password_is_shown_however_it_is_written(password: str, scheme: str) -> None:
    assert without_password(f"{scheme}://u:{password}@h:5432/db?x=1") == f"{scheme}://u:***@h:5432/db?x=1"


# By chance alone a text is hardly ever an address: some of these are, and some nearly so.
addresses = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="sqlitepog:/@ ", max_size=20),
    st.builds("{}:{}".format, st.sampled_from(["sqlite", "Sqlite", "postgresql"]), st.text(max_size=12)),
    st.builds("sqlite:{}".format, st.text("ab/.~ é", max_size=12)),
    st.builds(
        "{}://{}".format, st.sampled_from(["postgresql", "postgres", "sqlite"]), st.text("uh:@/?=5\n ", max_size=12)
    ),
)


def is_address(text: str) -> bool:
    """Whether a text is taken as one."""
    try:
        parse_journal_address(text)
    except BadJournalAddress:
        return False
    return True


def test_enough_of_these_texts_are_addresses() -> None:
    assert 0.2 < share(addresses, is_address) < 0.8


@given(text=addresses)
def test_a_text_is_an_address_or_a_clear_fault(text: str) -> None:
    try:
        address = parse_journal_address(text)
    except BadJournalAddress as error:
        advice = error.next_step
    else:
        advice = "none is needed"
        again = address.url or f"sqlite:{address.folder}"
        assert parse_journal_address(again) == address
    assert advice


@pytest.mark.parametrize(
    "text, hint",
    [
        ("", "name a folder"),
        ("book", "did you mean 'sqlite:book'?"),
        ("sqlite:", "name a folder"),
        ("sqlite:///data/book", "sqlite:/data/book or sqlite:data/book"),
        ("sqlit:book", "did you mean 'sqlite'?"),
        ("postgresql:book", "write postgresql://USER@HOST:PORT/DATABASE"),
        ("sqlite:a\nb", "printable"),
    ],
)
def test_a_journals_address_that_is_none_says_what_was_meant(text: str, hint: str) -> None:
    with pytest.raises(BadJournalAddress) as refused:
        parse_journal_address(text)
    assert hint in refused.value.next_step


def test_the_reference_page_has_the_tables_of_the_settings(root: Path) -> None:
    page = (root / "docs/reference/settings.md").read_text("utf-8")
    found = GENERATED.search(page)
    assert found, "the page has lost its markers"
    assert found[1] == f"\n{settings_tables()}\n", "run make docs"
    for variable in OTHER_VARIABLES | set(SHORT_VARIABLES):
        assert f"`{variable}`" in page


def test_every_default_is_a_value_its_own_check_would_take(machine: Machine) -> None:
    given_all = {row.name.replace(".", "__"): row.default for row in SETTINGS.values()}
    assert machine.load(**given_all) == machine.load()
    assert all(row.description.endswith(".") for row in SETTINGS.values())
    assert set(configuration.SECTIONS) == {row.section for row in SETTINGS.values()}


def test_what_nobody_sets_is_as_the_engine_thinks_best() -> None:
    assert engine_settings(Settings()) == EngineSettings()
    patient = msgspec.structs.replace(Settings().engine, interval_seconds=3.0, attempts_max=9, delay_seconds=0.5)
    made = engine_settings(Settings(engine=patient))
    assert (made.lease_seconds, made.restart.attempts_max, made.restart.delay_seconds) == (18.0, 9, 0.5)


OF_THE_SERVICE = {"agent_idle_seconds", "probes", "probe_seconds"}
"""Settings of the section `engine` that the service itself follows."""


def other_value(value: object) -> object:
    """One that differs, of the same type."""
    others = {"slowdown": "first-come", "forecast": "all", "predictive": "paper"}
    return others[value] if isinstance(value, str) else type(value)(value + 1)  # type: ignore[call-arg, operator]


def test_every_default_of_the_engine_is_said_once_and_no_setting_is_dropped() -> None:
    section = Settings().engine
    engine, restart = EngineSettings(), RestartSettings()
    for name in section.__struct_fields__:
        value = getattr(section, name)
        changed = Settings(engine=msgspec.structs.replace(section, **{name: other_value(value)}))
        told = engine_settings(changed)
        if name in OF_THE_SERVICE:
            assert told == engine
            continue
        known, heard = (engine, told) if hasattr(engine, name) else (restart, told.restart)
        assert getattr(known, name) == value, name
        assert getattr(heard, name) == other_value(value), name
    skew = Settings().book.skew_seconds
    assert skew == engine.skew_seconds
    changed = Settings(book=msgspec.structs.replace(Settings().book, skew_seconds=skew + 1))
    assert engine_settings(changed).skew_seconds == skew + 1


def test_how_long_a_probe_may_take_is_one_setting_and_how_often_a_site_is_probed_another(machine: Machine) -> None:
    machine.write("[engine]\nprobe_timeout_seconds = 7200\n")
    made = machine.load()
    assert (engine_settings(made).probe_timeout_seconds, made.engine.probe_seconds) == (7200.0, 3600.0)
    machine.write("[engine]\nprobe_seconds = 60\n")
    made = machine.load()
    assert (engine_settings(made).probe_timeout_seconds, made.engine.probe_seconds) == (900.0, 60.0)


def test_the_choice_of_sites_is_set_as_everything_else_is(machine: Machine) -> None:
    machine.write('[selection]\npolicy = "best"\ntransfer_load = -0.5\ntrial_room = 3\n')
    machine.environment["PILOTAGE_SELECTION_SCORE_CEILING"] = "20"
    made = engine_settings(machine.load()).selection
    assert (made.policy, made.transfer_load, made.trial_room, made.score_ceiling) == ("best", -0.5, 3, 20.0)
    assert made.success == EngineSettings().selection.success


def test_healing_is_set_as_everything_else_is(machine: Machine) -> None:
    machine.write('[engine]\nhealing = "paper"\n[healing]\nthreshold = 0.8\nfinished_min = 9\n')
    machine.environment["PILOTAGE_HEALING_WASTE_MAX"] = "0.1"
    made = engine_settings(machine.load(healing__cycle_seconds=5.0))
    assert made.healing == "paper"
    assert made.incidents == HealingSettings(threshold=0.8, finished_min=9, waste_max=0.1, cycle_seconds=5.0)
    machine.write('[engine]\nhealing = "yes"\n[healing]\nthreshold = 1.0\n')
    faults = machine.faults()
    assert "engine.healing: expected predictive or paper or off" in faults
    assert "healing.threshold: expected less than 1, got 1" in faults


def test_a_policy_that_there_is_not_and_numbers_that_make_no_sense_together_are_refused(machine: Machine) -> None:
    machine.write('[selection]\npolicy = "worst"\n')
    assert "expected weighted-random or best or thompson" in machine.faults()
    machine.write("[selection]\nscore_ceiling = -20\n")
    assert "selection.score_ceiling: score_floor must be less than score_ceiling" in machine.faults()


def test_what_a_package_is_told_is_no_setting_so_that_it_may_use_this_program() -> None:
    assert set(OWN_NAMES) <= OTHER_VARIABLES
