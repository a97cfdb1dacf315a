"""What a settings file may say, and what people are told when it says something else."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.settings import Mode, Settings, SettingsError, load_settings, load_settings_file, settings_file
from slurmsched.settings.schema import InvalidValueError, Setting, SettingType, parse_value, sections, to_toml

ENTRIES = [entry for section in sections() for entry in section.settings]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "synsched.toml"


def mistake(file: Path, text: str) -> str:
    """The one line that people see, without the file's name."""
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings_file(file)
    said = str(caught.value)
    assert said.startswith(f"{file}: ")
    assert "\n" not in said
    assert caught.value.exit_code == 2
    return said.removeprefix(f"{file}: ")


def test_an_empty_file_means_the_defaults(file: Path) -> None:
    file.write_text("")
    assert load_settings_file(file).settings == Settings()


def test_no_file_means_the_defaults() -> None:
    assert load_settings_file(None).settings == Settings()


def test_a_file_changes_what_it_names_and_nothing_else(file: Path) -> None:
    file.write_text('[rounds]\nmode = "enforce"\nperiod = "2m"\n[manage]\npartitions = ["gpu", "a100"]\n')
    loaded = load_settings_file(file)
    assert loaded.settings.rounds.mode is Mode.ENFORCE
    assert loaded.settings.rounds.period == 120.0
    assert loaded.settings.manage.partitions == ("gpu", "a100")
    assert loaded.settings.guards == Settings().guards
    assert loaded.given == {"rounds.mode", "rounds.period", "manage.partitions"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("90", 90.0, id="a number is seconds"),
        pytest.param("1.5", 1.5, id="a fraction of a second"),
        pytest.param('"90"', 90.0, id="a number in quotes"),
        pytest.param('"90s"', 90.0, id="seconds"),
        pytest.param('"5m"', 300.0, id="minutes"),
        pytest.param('"2h"', 7200.0, id="hours"),
        pytest.param('"1d"', 86400.0, id="days"),
    ],
)
def test_times_are_written_in_any_unit(file: Path, text: str, seconds: float) -> None:
    file.write_text(f"[guards]\nmin_run_time = {text}\n")
    assert load_settings_file(file).settings.guards.min_run_time == seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("[guard]\n", "unknown section [guard]: did you mean [guards]?", id="a misspelt section"),
        pytest.param(
            "[guards]\nmin_runtime = 5\n",
            "unknown setting guards.min_runtime: did you mean min_run_time?",
            id="a misspelt key",
        ),
        pytest.param(
            "[guards]\nperiod = 5\n",
            "unknown setting guards.period: did you mean rounds.period?",
            id="a key of another section",
        ),
        pytest.param(
            "[hook]\nxyzzy = 5\n",
            "unknown setting hook.xyzzy: known here are heartbeat, stale_after, disable_file",
            id="a key like no other",
        ),
        pytest.param(
            'mode = "enforce"\n',
            "mode is outside its section: put it under [rounds]",
            id="a key outside its section",
        ),
        pytest.param("rounds = 5\n", "rounds is a section: write [rounds] on a line of its own", id="a section as key"),
        pytest.param(
            '[rounds]\nmode = "force"\n',
            'rounds.mode is \'force\': expected one of "observe", "advise", "prioritize", "enforce", '
            'for example mode = "observe"',
            id="a word that is none of the choices",
        ),
        pytest.param(
            '[rounds]\nperiod = "5 minutes"\n',
            "rounds.period is '5 minutes': expected a number of seconds of at least 1, or a time such as \"5m\", "
            'for example period = "5m"',
            id="a time in words",
        ),
        pytest.param(
            '[policy]\nevenness = "1s"\n',
            "policy.evenness is '1s': expected a number, for example evenness = 2",
            id="a time where a number belongs",
        ),
        pytest.param(
            "[guards]\nmoves_per_round = -1\n",
            "guards.moves_per_round is -1: expected a whole number, for example moves_per_round = 8",
            id="a negative count",
        ),
        pytest.param(
            "[storage]\nkeep_days = 0\n",
            "storage.keep_days is 0: expected a whole number of at least 1, for example keep_days = 90",
            id="a count below its bound",
        ),
        pytest.param(
            '[manage]\npartitions = "gpu"\n',
            'manage.partitions is \'gpu\': expected a list of texts such as ["one", "two"], '
            "for example partitions = []",
            id="a text where a list belongs",
        ),
        pytest.param(
            "[manage]\nopt_in = 1\n",
            "manage.opt_in is 1: expected true or false, for example opt_in = true",
            id="a number where a flag belongs",
        ),
        pytest.param(
            '[storage]\npath = "a\\nb"\n',
            "storage.path is 'a\\nb': expected a text on one line, "
            'for example path = "/var/lib/synsched/synsched.db"',
            id="a text of two lines",
        ),
        pytest.param(
            '[rounds]\nperiod = "1h"\n',
            "hook.stale_after must be longer than rounds.period, or the heartbeat is stale between two rounds",
            id="rounds further apart than the dead-man's switch allows",
        ),
        pytest.param(
            '[learning]\nprometheus = "http://me:secret@host:9090"\n',
            'learning.prometheus must be a URL without user and password, for example "http://prometheus:9090"',
            id="a password that others could read",
        ),
        pytest.param(
            "[learning]\nprometheus_cluster = \"x',job='y\"\n",
            "learning.prometheus_cluster is a name of letters, digits, dots, dashes and underscores",
            id="a label that is a query",
        ),
        pytest.param(
            "[learning]\nidle_after = 60\n",
            "learning.idle_after must be 0, or at least 10m: GPUs wait for minutes while a job loads its data",
            id="idle for a minute",
        ),
        pytest.param(
            "[policy]\nidle_last = true\n",
            "policy.idle_last needs learning.prometheus, which tells what GPUs do, and learning.idle_after above 0",
            id="idle jobs last, and nobody tells which",
        ),
        *(
            pytest.param(
                f'[metrics]\nlisten = "{address}"\n',
                'metrics.listen must be an IP address and a port from 1024 on, for example "127.0.0.1:9797" or'
                ' "[::1]:9797"',
                id=f"metrics on {address}, {what}",
            )
            for address, what in (
                ("9797", "a port alone"),
                (":9797", "no address"),
                ("localhost:9797", "a name, which would be looked up"),
                ("127.0.0.1:80", "a port of root"),
                ("127.0.0.1:70000", "no port"),
                ("::1:9797", "an address without brackets"),
                ("[127.0.0.1]:9797", "brackets without need"),
                ("http://127.0.0.1:9797", "a URL"),
            )
        ),
        pytest.param(
            '[metrics]\ntextfile = "/srv/synsched.txt"\n',
            "metrics.textfile must have a name that ends in .prom and does not begin with a dot, or node_exporter"
            " ignores it",
            id="a textfile that nobody collects",
        ),
        pytest.param(
            '[metrics]\ntextfile = "synsched.prom"\n',
            "storage.path, storage.export, storage.page, hook.heartbeat, metrics.textfile and reports.spool must be"
            " absolute paths",
            id="a textfile somewhere",
        ),
        pytest.param(
            "[metrics]\nusers = 5\n",
            "metrics.users names users nowhere without metrics.listen or metrics.textfile: set one, or remove it",
            id="users named nowhere",
        ),
        pytest.param(
            '[metrics]\nlisten = "[::1]:9797"\nusers = 201\n',
            "metrics.users must be 200 at most: each user is two series of Prometheus",
            id="too many users",
        ),
        pytest.param(
            '[metrics]\ntextfile = "/srv/x.prom"\n[hook]\nheartbeat = "/srv/x.prom"\n',
            "/srv/x.prom is named by hook.heartbeat and metrics.textfile: one would overwrite the other, so each needs"
            " a file of its own",
            id="metrics over the heartbeat",
        ),
        pytest.param(
            "[policy]\nlas_queues = [5, 4]\n",
            "policy.las_queues must be ascending and above 0, for example [3600, 14400]",
            id="queues out of order",
        ),
        pytest.param(
            '[nodes]\nfragments = ["gres.conf.j2"]\n',
            'nodes.fragments holds "TEMPLATE=/absolute/path", for example ["gres.conf.j2=/etc/slurm/gres.conf"]',
            id="a fragment without a path",
        ),
        pytest.param(
            '[hook]\nheartbeat = "/var/lib/synsched/synsched.db"\n',
            "/var/lib/synsched/synsched.db is named by storage.path and hook.heartbeat: one would overwrite the"
            " other, so each needs a file of its own",
            id="a heartbeat over the database",
        ),
        pytest.param(
            '[hook]\nheartbeat = "/var/lib/../lib/synsched/synsched.db-wal"\n',
            "/var/lib/synsched/synsched.db-wal is named by storage.path and hook.heartbeat: one would overwrite the"
            " other, so each needs a file of its own",
            id="a heartbeat over what SQLite writes beside the database",
        ),
        pytest.param(
            '[hook]\nheartbeat = "/run/beat"\ndisable_file = "/run/beat"\n',
            "/run/beat is named by hook.heartbeat and hook.disable_file: one would overwrite the other, so each needs a"
            " file of its own",
            id="a heartbeat that switches the daemon off",
        ),
        pytest.param(
            '[nodes]\nfragments = ["gres.conf.j2=/etc/slurm/a", "slurm.conf.j2=/etc/slurm/a"]\n',
            "/etc/slurm/a is named by nodes.fragments twice: one would overwrite the other, so each needs a file of its"
            " own",
            id="two fragments in one file",
        ),
        pytest.param(
            '[nodes]\nfragments = ["slurm.conf.j2=/etc/slurm/slurm.conf"]\n',
            "/etc/slurm/slurm.conf is named by cluster.slurm_conf and nodes.fragments: one would overwrite the"
            " other, so each needs a file of its own",
            id="a fragment over slurm.conf",
        ),
        pytest.param(
            "[daemon]\nmemory_max = 1\n",
            "daemon.memory_max is in MiB and must be 0, or at least 128: the daemon does not start with less",
            id="a memory limit in another unit",
        ),
    ],
)
def test_a_mistake_is_told_with_its_remedy(file: Path, text: str, said: str) -> None:
    assert mistake(file, text) == said


def test_a_file_that_is_not_toml_names_the_line(file: Path) -> None:
    assert "line 2" in mistake(file, "[rounds]\nmode enforce\n")


def test_a_file_that_is_not_text_is_told_as_such(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_settings_file(file)


def test_the_variable_names_the_file_that_counts(file: Path, tmp_path: Path) -> None:
    file.write_text("[rounds]\nperiod = 60\n")
    (tmp_path / "other.toml").write_text("")
    assert load_settings({"SYNSCHED_CONF": str(file)}).rounds.period == 60.0
    assert settings_file({"SYNSCHED_CONF": str(file)}, tmp_path / "other.toml") == file


def test_without_the_variable_the_installed_file_counts_if_it_is_there(file: Path) -> None:
    assert settings_file({}, file) is None
    file.write_text("")
    assert settings_file({}, file) == file
    assert settings_file({"SYNSCHED_CONF": ""}, file) == file


def test_a_file_that_the_variable_names_must_exist(file: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot be read: No such file or directory; see SYNSCHED_CONF"):
        load_settings({"SYNSCHED_CONF": str(file)})


def values_of(entry: Setting) -> st.SearchStrategy[object]:
    """Right values of one setting."""
    numbers = st.floats(min_value=max(entry.at_least, 0.0), max_value=1e15)
    lines = st.text(st.characters(categories=("L", "N", "P", "S")))
    of_kind: dict[SettingType, st.SearchStrategy[object]] = {
        SettingType.TEXT: lines,
        SettingType.CHOICE: st.sampled_from(entry.choices or ("",)),
        SettingType.FLAG: st.booleans(),
        SettingType.COUNT: st.integers(min_value=int(entry.at_least), max_value=10**9),
        SettingType.NUMBER: numbers,
        SettingType.TIME: numbers,
        SettingType.TEXTS: st.lists(lines.filter(bool)).map(tuple),
        SettingType.NUMBERS: st.lists(numbers).map(tuple),
    }
    return of_kind[entry.kind]


@given(st.data())
def test_what_is_written_reads_back_as_it_was(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(ENTRIES))
    value = data.draw(values_of(entry))
    text = f"{entry.key} = {to_toml(entry, value)}"  # type: ignore[arg-type]  # the strategies are typed by kind only
    assert parse_value(entry, tomllib.loads(text)[entry.key]) == value


@given(
    st.sampled_from(ENTRIES),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    ),
)
def test_any_value_is_either_of_its_form_or_refused(entry: Setting, raw: object) -> None:
    try:
        value = parse_value(entry, raw)
    except InvalidValueError:
        return
    assert type(value) is type(entry.default)


def test_a_number_beyond_all_bounds_is_refused(file: Path) -> None:
    assert mistake(file, f"[rounds]\nperiod = {'9' * 400}\n").startswith("rounds.period is 999")
    assert mistake(file, "[rounds]\nperiod = inf\n").startswith("rounds.period is inf")
