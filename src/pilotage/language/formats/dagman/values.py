"""Parses values of submit commands: quoting of arguments and environment, lists, sizes; and the table of losses."""

from __future__ import annotations

import re

import msgspec

_SPACE = " \t\r\n\v\f"
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGTP]?)(B?)", re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


class InvalidValue(msgspec.Struct, frozen=True):
    """The reason why a value is invalid."""

    message: str


def split_arguments(text: str) -> tuple[str, ...] | InvalidValue:
    """Parse arguments: the new syntax in double quotes, otherwise the old one."""
    text = text.strip(_SPACE)
    if not text.startswith('"'):
        return _split_old(text)
    inner = unquoted(text)
    return inner if isinstance(inner, InvalidValue) else split_quoted(inner)


def _split_old(text: str) -> tuple[str, ...] | InvalidValue:
    bare = text.replace('\\"', "\0")
    if '"' in bare:
        return InvalidValue('expected \\" for a double quote, or the whole value in double quotes')
    return tuple(word.replace("\0", '"') for word in bare.split())


def unquoted(text: str) -> str | InvalidValue:
    """Remove the double quotes around a value; `""` inside is a literal one."""
    if len(text) < 2 or not text.endswith('"'):
        return InvalidValue("expected a double quote at the end, as at the beginning")
    inner = text[1:-1].replace('""', "\0")
    if '"' in inner:
        return InvalidValue('expected "" for a double quote inside the value')
    return inner.replace("\0", '"')


def split_quoted(text: str) -> tuple[str, ...] | InvalidValue:
    """Split words; single quotes keep white space, and `''` inside them is a literal quote."""
    words: list[str] = []
    word: list[str] | None = None
    at, quoted = 0, False
    while at < len(text):
        character = text[at]
        if quoted and character == "'" and text.startswith("''", at):
            word = _appended(word, "'")
            at += 1
        elif character == "'":
            quoted = not quoted
            word = [] if word is None else word
        elif character in _SPACE and not quoted:
            if word is not None:
                words.append("".join(word))
            word = None
        else:
            word = _appended(word, character)
        at += 1
    if quoted:
        return InvalidValue("expected a closing single quote")
    if word is not None:
        words.append("".join(word))
    return tuple(words)


def _appended(word: list[str] | None, character: str) -> list[str]:
    if word is None:
        return [character]
    word.append(character)
    return word


def join_arguments(arguments: tuple[str, ...]) -> str:
    """The arguments in the new syntax, without the double quotes around them."""
    words = [
        word if word and not set(word) & set(_SPACE + "'") else "'" + word.replace("'", "''") + "'"
        for word in arguments
    ]
    return " ".join(words).replace('"', '""')


def split_environment(text: str) -> dict[str, str] | InvalidValue:
    """Parse environment variables: the new syntax in double quotes, otherwise `A=1;B=2`."""
    text = text.strip(_SPACE)
    if text.startswith('"'):
        inner = unquoted(text)
        words = inner if isinstance(inner, InvalidValue) else split_quoted(inner)
    else:
        words = tuple(part.strip() for part in text.split(";") if part.strip())
    if isinstance(words, InvalidValue):
        return words
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            return InvalidValue(f"expected NAME=VALUE, found {word!r}")
        found[name] = value
    return found


def split_list(text: str) -> tuple[str, ...]:
    """Split a list at commas."""
    text = text.strip(_SPACE)
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    return tuple(item.strip(_SPACE) for item in text.split(",") if item.strip(_SPACE))


def split_remaps(text: str) -> dict[str, str] | InvalidValue:
    """Parse `"a = b; c = d"` to a mapping; a backslash escapes `;` and `=`."""
    text = text.strip(_SPACE)
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    found: dict[str, str] = {}
    for part in re.split(r"(?<!\\);", text):
        if not part.strip():
            continue
        sides = re.split(r"(?<!\\)=", part, maxsplit=1)
        if len(sides) != 2:
            return InvalidValue(f"expected NAME = NEW_NAME, found {part.strip()!r}")
        name, target = (re.sub(r"\\([;=])", r"\1", side).strip() for side in sides)
        found[name] = target
    return found


def size_bytes(text: str, *, unit: int) -> int | None:
    """A size in bytes; a number without a unit counts in `unit`. None for an expression, which only HTCondor can evaluate."""
    found = _SIZE.fullmatch(text.strip(_SPACE))
    if found is None:
        return None
    power = found[2].upper()
    factor = 1024 ** _POWERS[power] if power else 1 if found[3] else unit
    return int(float(found[1]) * factor) if "." in found[1] else int(found[1]) * factor


def is_yes(text: str) -> bool | None:
    """A truth value, or None for an expression."""
    lower = text.strip(_SPACE).lower()
    if lower in ("true", "yes", "t", "y", "1"):
        return True
    return False if lower in ("false", "no", "f", "n", "0", "") else None


# The commands of submit descriptions: those that are supported, and the reasons for the others, which are losses.
#
# The importer and docs/reference/dagman.md use this table; a test compares them.

# The attribute with which our own export marks a program that is searched in the PATH.
SEARCHED = "my.pilotagesearchpath"
# The attribute with which it marks a wrapper script around a command, and the first line of such a script.
WRAPPED = "my.pilotagescript"
SCRIPT_HEAD = "#!/bin/sh\n"

MEANT = frozenset(
    {
        "allowed_execute_duration",
        "allowed_job_duration",
        "args",
        "arguments",
        "container_image",
        "docker_image",
        "env",
        "environment",
        "error",
        "executable",
        "initial_dir",
        "initialdir",
        "input",
        "job_iwd",
        "machine_count",
        "machinecount",
        "max_retries",
        "node_count",
        "nodecount",
        "output",
        "pilotage_activity",
        "pilotage_name",
        "preserve_relative_paths",
        "prio",
        "priority",
        "request_cpus",
        "request_disk",
        "request_gpus",
        "request_memory",
        "requestcpus",
        "requestdisk",
        "requestgpus",
        "requestmemory",
        "stderr",
        "stdin",
        "stdout",
        "transfer_input_files",
        "transfer_output_files",
        "transfer_output_remaps",
        "transferinputfiles",
        "transferoutputfiles",
        "transferoutputremaps",
        "universe",
    }
)

# Values that request what pilotage does anyway are not losses.
HARMLESS: dict[str, frozenset[str]] = {
    "notification": frozenset({"never"}),
    "should_transfer_files": frozenset({"yes", "if_needed", "auto", "automatic"}),
    "when_to_transfer_output": frozenset({"on_exit", "on_success"}),
    "transfer_executable": frozenset({"true", "yes", "1"}),
    "get_env": frozenset({"false", "no", "0"}),
    "getenv": frozenset({"false", "no", "0"}),
    "hold": frozenset({"false", "no", "0"}),
    "nice_user": frozenset({"false", "no", "0"}),
    "stream_output": frozenset({"false", "no", "0"}),
    "stream_error": frozenset({"false", "no", "0"}),
    "copy_to_spool": frozenset({"false", "no", "0"}),
}

_MATCHING = "a ClassAd expression about the machines of the pool"
_POLICY = "a policy expression of HTCondor's queue"
_ACCOUNT = "an account of the HTCondor pool"
_LOG = "a log or report that HTCondor writes"
_TIMING = "HTCondor's own timing of starts"
_TRANSFER = "a detail of HTCondor's file transfer"
_OTHER = "a detail of HTCondor's own execution"
_CREDENTIALS = "credentials are a matter of the site"
_UNIVERSE = "belongs to a universe other than vanilla, container or docker"

SUBMIT_LOSSES: dict[str, str] = {
    "accounting_group": _ACCOUNT,
    "accounting_group_user": _ACCOUNT,
    "append_files": _TRANSFER,
    "batch_name": "packages are grouped by their job",
    "batch_project": _UNIVERSE,
    "batch_queue": _UNIVERSE,
    "buffer_files": _TRANSFER,
    "concurrency_limits": "limits of the pool; use CATEGORY and MAXJOBS",
    "copy_to_spool": _TRANSFER,
    "coresize": _OTHER,
    "cron_day_of_month": _TIMING,
    "cron_hour": _TIMING,
    "cron_minute": _TIMING,
    "cron_month": _TIMING,
    "cron_day_of_week": _TIMING,
    "cuda_version": _MATCHING,
    "deferral_prep_time": _TIMING,
    "deferral_time": _TIMING,
    "deferral_window": _TIMING,
    "description": "a remark for HTCondor's queue",
    "docker_network_type": _OTHER,
    "dont_encrypt_input_files": _TRANSFER,
    "dont_encrypt_output_files": _TRANSFER,
    "encrypt_execute_directory": _OTHER,
    "encrypt_input_files": _TRANSFER,
    "encrypt_output_files": _TRANSFER,
    "erase_output_and_error_on_restart": _OTHER,
    "file_remaps": _TRANSFER,
    "getenv": "the submitter's environment is not copied; name the variables in `environment`",
    "gpus_maximum_capability": _MATCHING,
    "gpus_minimum_capability": _MATCHING,
    "gpus_minimum_memory": _MATCHING,
    "gpus_minimum_runtime": _MATCHING,
    "grid_resource": _UNIVERSE,
    "hold": "HTCondor's hold of one job",
    "hook_keyword": _OTHER,
    "image_size": "use request_memory",
    "jar_files": _UNIVERSE,
    "java_vm_args": _UNIVERSE,
    "job_ad_information_attrs": _LOG,
    "job_batch_name": "packages are grouped by their job",
    "jobbatchname": "packages are grouped by their job",
    "job_lease_duration": "how long HTCondor keeps a job whose submitter is away",
    "job_machine_attrs": _LOG,
    "keep_claim_idle": _OTHER,
    "kill_sig": _OTHER,
    "kill_sig_timeout": _OTHER,
    "leave_in_queue": _POLICY,
    "load_profile": _OTHER,
    "log": _LOG,
    "log_xml": _LOG,
    "manifest": _LOG,
    "max_idle": _TIMING,
    "max_job_retirement_time": _OTHER,
    "max_materialize": _TIMING,
    "max_transfer_input_mb": _TRANSFER,
    "max_transfer_output_mb": _TRANSFER,
    "match_list_length": _OTHER,
    "next_job_start_delay": _TIMING,
    "nice_user": "use priority",
    "noop_job": _OTHER,
    "notification": "mails that HTCondor sends",
    "notify_user": "mails that HTCondor sends",
    "on_exit_hold": _POLICY,
    "on_exit_hold_reason": _POLICY,
    "on_exit_hold_subcode": _POLICY,
    "on_exit_remove": _POLICY,
    "output_destination": _TRANSFER,
    "periodic_hold": _POLICY,
    "periodic_hold_reason": _POLICY,
    "periodic_hold_subcode": _POLICY,
    "periodic_release": _POLICY,
    "periodic_remove": _POLICY,
    "periodic_vacate": _POLICY,
    "public_input_files": _TRANSFER,
    "rank": _MATCHING,
    "remote_initialdir": _TRANSFER,
    "request_…": "a resource of the pool's own",
    "requirements": _MATCHING,
    "retry_until": _POLICY,
    "run_as_owner": _OTHER,
    "should_transfer_files": "files are always brought to the package and back",
    "skip_filechecks": _TRANSFER,
    "stack_size": _OTHER,
    "starter_debug": _LOG,
    "starter_log": _LOG,
    "stream_error": _TRANSFER,
    "stream_input": _TRANSFER,
    "stream_output": _TRANSFER,
    "submit_event_notes": _LOG,
    "submit_event_user_notes": _LOG,
    "success_exit_code": _POLICY,
    "transfer_error": _TRANSFER,
    "transfer_executable": "the program is taken from where the command says",
    "transfer_input": _TRANSFER,
    "transfer_output": _TRANSFER,
    "transfer_plugins": _TRANSFER,
    "use_oauth_services": _CREDENTIALS,
    "use_scitokens": _CREDENTIALS,
    "use_x509userproxy": _CREDENTIALS,
    "vm_disk": _UNIVERSE,
    "vm_memory": _UNIVERSE,
    "vm_type": _UNIVERSE,
    "want_graceful_removal": _OTHER,
    "want_io_proxy": _OTHER,
    "want_name_tag": _OTHER,
    "want_remote_io": _OTHER,
    "when_to_transfer_output": "outputs are kept when a package has succeeded",
    "x509userproxy": _CREDENTIALS,
}

# Prefixes of families of commands; a macro with such a name that is used does not belong to them.
LOST_FAMILIES = ("arc_", "aws_", "azure_", "cloud_label_", "ec2_", "gce_", "tool_daemon_", "vm_", "xen_")

# The other submit commands of HTCondor 25 that have no meaning here, by reason.
_MORE_LOSSES: dict[str, str] = {
    _ACCOUNT: "primary_unix_group project_name",
    _LOG: (
        "dagman_log email_attributes job_machine_attrs_history_length manifest_dir submit_event_notes_attrs "
        "ulog_execute_attrs want_ads"
    ),
    _TIMING: "cron_prep_time cron_window materialize_max_idle suspend_job_at_exec",
    _MATCHING: "preferences require_gpus",
    _POLICY: (
        "checkpoint_exit_code concurrency_limits_expr exit_requirements on_evict_checks retry_request_disk "
        "retry_request_memory retry_request_memory_increase retry_request_memory_max skip_if_dataflow"
    ),
    _TRANSFER: (
        "buffer_block_size buffer_size checkpoint_destination compress_files container_is_common fetch_files "
        "local_files output_directory transfer_checkpoint_files transfer_common_input transfer_container"
    ),
    _OTHER: (
        "allow_arguments_v1 allow_environment_v1 batch_id container_service_names container_target_dir "
        "core_size dagman_job_id disk_usage docker_override_entrypoint docker_pull_policy hold_kill_sig "
        "interactive_args interactive_executable job_max_vacate_time jobset memory_usage mount_under_scratch "
        "noop_job_exit_code noop_job_exit_signal parallel_script_shadow parallel_script_starter "
        "remove_kill_sig rendezvousdir want_job_networking wantnametag"
    ),
    _UNIVERSE: "batch_extra_submit_args batch_runtime java_vm_arguments java_vm_arguments2",
    _CREDENTIALS: (
        "delegate_job_gsi_credentials_lifetime docker_send_credentials gs_access_key_id_file "
        "gs_secret_access_key_file s3_access_key_id_file s3_secret_access_key_file scitokens_file "
        "send_credential use_scitoken useoauthservices"
    ),
}
SUBMIT_LOSSES |= {name: reason for reason, names in _MORE_LOSSES.items() for name in names.split()}
SUBMIT_LOSSES |= {
    **{f"{prefix}…": _UNIVERSE for prefix in LOST_FAMILIES},
    "tool_daemon_…": _OTHER,
    "arguments2": "use arguments",
    "environment2": "use environment",
    "get_env": SUBMIT_LOSSES["getenv"],
    "shell": "a command line in place of an executable; use executable and arguments",
}

UNKNOWN = "unknown submit command"
# Keywords that are losses only in some cases; the code that finds the loss gives the exact reason.
OTHER_LOSSES: dict[str, str] = {
    "CONFIG": "configures DAGMan itself; nothing of the file is read",
    "DOT": "pilotage draws the graph with `pilotage graph --format dot`",
    "ENV": "the environment of DAGMan itself",
    "JOBSTATE_LOG": _LOG,
    "MAXJOBS": "a limit of 0, which would never start a node",
    "NODE_STATUS_FILE": "a report that DAGMan writes while it runs",
    "PRE_SKIP": "without a PRE script it has no effect",
    "SAVE_POINT_FILE": "a point from which only DAGMan itself can go on",
    "SCRIPT": "macros that only a running DAGMan knows, DEBUG, scripts of nodes with several jobs",
    "SET_JOB_ATTR": "an attribute of DAGMan's own job",
    "TOLERANCE": "packages fail and are retried one by one",
    "VARS": "a value that nothing in the submit description uses",
    "WEAK PARENT": "the child waits until its parents have succeeded",
    "+ATTRIBUTE": "an attribute of HTCondor's job, from a submit description or VARS",
    "allowed_execute_duration": "a value that is no number",
    "allowed_job_duration": "a value that is no number",
    "error": "a file outside the job's folder, or one that several nodes write",
    "input": "a name with the characters of a pattern",
    "machine_count": "a value that is no number",
    "max_retries": "a value that is no number",
    "output": "a file outside the job's folder, or one that several nodes write",
    "priority": "a value that is no number",
    "request_cpus": "an expression that only HTCondor can work out",
    "request_disk": "an expression that only HTCondor can work out",
    "request_gpus": "an expression that only HTCondor can work out",
    "request_memory": "an expression that only HTCondor can work out",
    "transfer_input_files": "the file keeps its folders: HTCondor puts it beside the program",
    "transfer_output_files": "the file's folders, or a file that several nodes make or that is needed before it is made",
    "transfer_output_remaps": "the program must write the file under its new name",
    UNKNOWN: "no submit command that is known here, and no macro that is used",
    "universe": "packages run as in the vanilla, container or docker universe",
    "use": "templates of the HTCondor configuration are not known here",
    "$(Cluster)": "known only to a running HTCondor; kept as written",
    "$(ClusterId)": "known only to a running HTCondor; kept as written",
    "$(DAGManJobId)": "known only to a running HTCondor; kept as written",
    "$(DAG_STATUS)": "known only to a running HTCondor; kept as written",
    "$(FAILED_COUNT)": "known only to a running HTCondor; kept as written",
    "$(RETRY)": "known only to a running HTCondor; kept as written",
    "$(Node)": "known only to a running HTCondor; kept as written",
    "$(SubmitId)": "known only to a running HTCondor; kept as written",
    "$(SUBMIT_FILE)": "known only to a running HTCondor; kept as written",
    "$(SUBMIT_TIME)": "known only to a running HTCondor; kept as written",
    "$(YEAR)": "known only to a running HTCondor; kept as written",
    "$(MONTH)": "known only to a running HTCondor; kept as written",
    "$(DAY)": "known only to a running HTCondor; kept as written",
    "$$(…)": "filled in by HTCondor when it has chosen a machine; kept as written",
    "$CHOICE(…)": "the index is known only to a running HTCondor; the first choice is taken",
    "$ENV(…)": "the submitter's environment is not looked at; kept as written, or its default taken",
    "$F…(…)": "the full path is known only where the description is submitted; the path is kept as it is",
    "$FUNCTION(…)": "a function that is not known here; kept as written",
    "$RANDOM_…(…)": "nothing is random here; the first choice is taken",
}

DOCUMENTED_LOSSES = frozenset(SUBMIT_LOSSES) | frozenset(OTHER_LOSSES)
