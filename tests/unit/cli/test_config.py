"""`synsched config` and `synsched render`."""

from __future__ import annotations

import json

import pytest

from slurmsched.backends.protocol import UnreachableError
from slurmsched.backends.slurm.commands import Commands
from slurmsched.policies import POLICIES
from slurmsched.settings.definition import Settings
from slurmsched.settings.file import load_settings_file
from slurmsched.template_files import template_names
from tests.builders import job, node, share, snapshot
from tests.unit.cli.conftest import NOON, Site


def test_the_printed_file_is_the_defaults(site: Site) -> None:
    file = site.folder / "printed.toml"
    file.write_text(site.run("config", "init").stdout, encoding="utf-8")
    assert load_settings_file(file).settings == Settings()


def test_check_says_that_a_file_is_in_order(site: Site) -> None:
    assert site.lines("config", "check", columns=300) == [f"{site.config} is in order"]


def test_check_refuses_a_wrong_file_as_wrong_usage(site: Site) -> None:
    site.configure('[rounds]\nmode = "enforced"\n')
    result = site.run("config", "check")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "rounds.mode" in result.stderr


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        pytest.param(
            'system = "nosuch"', "policy.system: there is no policy 'nosuch': known are synergy, ", id="no such policy"
        ),
        pytest.param('system = "hader"', "there is no policy 'hader': did you mean hadar?", id="a slip of the finger"),
        pytest.param(
            'system = "gavel"\norder = "ftf"',
            "policy.order means nothing to policy gavel: remove it, or choose one that reads it (synergy, ",
            id="an order for a policy that has one of its own",
        ),
        pytest.param(
            'order = "las"',
            "policy.order means nothing to policy unified: remove it, or choose one that reads it (synergy, ",
            id="an order, the default one, and no policy",
        ),
        pytest.param(
            'system = "fgd"\n[tickets]\ndefault = 2',
            "tickets.default means nothing to policy fgd: remove it, or choose one that reads it (gandiva-fair,"
            " unified)",
            id="tickets for a policy that counts none",
        ),
        *(
            pytest.param(
                f'system = "{system}"\nidle_last = true\n[learning]\nprometheus = "http://p:9090"',
                f"policy.idle_last means nothing to policy {system}: remove it, or choose one that reads it (synergy, ",
                id=f"idle jobs last under {system}, which preempts nobody",
            )
            for system in ("fgd", "slurm")
        ),
        pytest.param(
            'system = "synergy"\n[metrics]\nlisten = "127.0.0.1:9797"\nusers = 3',
            "metrics.users means nothing to policy synergy: remove it, or choose one that reads it (gandiva-fair",
            id="named users of a policy without tickets",
        ),
        pytest.param(
            'utility = "effective"',
            "policy.utility means nothing to policy unified: remove it, or choose one that reads it (hadar, hadare)",
            id="a utility for a policy that has none",
        ),
        pytest.param(
            'system = "hadar"\nutility = "effectve"',
            "policy.utility",
            id="no such utility",
        ),
        pytest.param(
            'system = "synergy"\norder = "srtf"\nlas_queues = [60]',
            "policy.las_queues means nothing without order las",
            id="queues without las",
        ),
        pytest.param(
            'system = "gandiva-fair"\n[tickets]\nusers = ["alice=2", "alice=1"]',
            "name a user or an account twice",
            id="a user with tickets twice",
        ),
        pytest.param(
            'system = "gandiva-fair"\n[tickets]\naccounts = ["a=2", "b=1", "a/x=2", "b/x=1"]',
            "name a user or an account twice",
            id="an account below two others",
        ),
        pytest.param(
            '[policy]\nsystem = "synergy"\n[tickets]\nusers = ["alice=2"]',
            "tickets.users means nothing to policy synergy",
            id="tickets nobody counts",
        ),
    ],
)
def test_check_refuses_what_the_policy_would_ignore(site: Site, policy: str, problem: str) -> None:
    site.configure(policy if policy.startswith("[") else f"[policy]\n{policy}\n")
    result = site.run("config", "check")
    assert (result.exit_code, result.stderr.count(f"synsched: {site.config}: ")) == (2, 1)
    assert problem in result.stderr


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        pytest.param(
            "[guards]\nmoves_per_job_day = 0", "guards.moves_per_job_day is 0: under gandiva-fair", id="no move"
        ),
        pytest.param("[guards]\nmoves_per_round = 0", "guards.moves_per_round is 0: under gandiva-fair", id="no round"),
        pytest.param(
            "[tickets]\nquantum = 300",
            "guards.min_run_time is 20 min: it must not be longer than slices, and tickets.quantum is 5 min",
            id="slices that guards make longer",
        ),
        pytest.param("[tickets]\nquantum = 300\n[guards]\nmin_run_time = 300", "", id="slices as long as a job runs"),
        pytest.param("", "", id="all defaults"),
    ],
)
def test_check_refuses_guards_that_contradict_turns(site: Site, lines: str, problem: str) -> None:
    site.configure(f'[policy]\nsystem = "gandiva-fair"\n{lines}\n')
    result = site.run("config", "check")
    assert result.exit_code == (2 if problem else 0)
    assert problem in result.stderr
    site.configure(f"{lines.partition('[tickets]')[0]}\n")
    assert site.run("config", "check").exit_code == 0


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        pytest.param(
            '[policy]\nsystem = "gavel"\n[guards]\nmoves_per_job_day = 0',
            "guards.moves_per_job_day is 0: under gavel jobs change GPU types",
            id="types that no job may change",
        ),
        pytest.param(
            '[policy]\nsystem = "synergy"\ndefragment = true\n[guards]\nmoves_per_round = 0',
            "guards.moves_per_round is 0: policy.defragment moves jobs",
            id="defragmentation without moves",
        ),
        pytest.param(
            '[manage]\npartitions = ["gpu", "a"]\nnever_partitions = ["gpu"]',
            "manage.partitions and manage.never_partitions both name gpu",
            id="a partition that is managed and never is",
        ),
        pytest.param("[manage]\nopt_in = false", "nothing is managed: name partitions", id="no jobs at all"),
        pytest.param('[manage]\nopt_in = false\nqos = ["ml"]', "", id="jobs by their QOS"),
        pytest.param("[guards]\nmoves_per_job_day = 0", "", id="nobody is preempted"),
        pytest.param(
            '[policy]\nsystem = "synergy"\n[guards]\nmoves_per_job_day = 0', "", id="nobody is preempted under an order"
        ),
    ],
)
def test_check_refuses_what_contradicts_itself(site: Site, lines: str, problem: str) -> None:
    site.configure(f"{lines}\n")
    result = site.run("config", "check")
    assert result.exit_code == (2 if problem else 0)
    assert problem in result.stderr


MISTAKES = """[guard]
[rounds]
mode = "force"
periode = 5
settle_timeout = "10m"
[hook]
stale_after = 7
heartbeat = "beat"
[policy]
system = "fdg"
profiles = "/nope.toml"
[manage]
opt_in = false
"""


def test_check_finds_all_mistakes_at_once(site: Site) -> None:
    site.config.write_text(MISTAKES)
    result = site.run("config", "check")
    prefix = f"synsched: {site.config}: "
    paths = "storage.path, storage.export, storage.page, hook.heartbeat, metrics.textfile and reports.spool"
    said_of_paths = f"{paths} must be absolute paths"
    assert result.exit_code == 2
    assert all(line.startswith(prefix) for line in result.stderr.splitlines())
    assert [line.removeprefix(prefix).partition(": ")[0] for line in result.stderr.splitlines()] == [
        "unknown section [guard]",
        "rounds.mode is 'force'",
        "unknown setting rounds.periode",
        "hook.stale_after must be longer than rounds.period, or the heartbeat is stale between two rounds",
        said_of_paths,
        "rounds.settle_timeout is 10 min",
        "policy.system",
        "nothing is managed",
        "policy.profiles",
    ]
    assert json.loads(site.run("config", "check", "--json").stdout)["mistakes"][1].startswith("rounds.mode is 'force'")


def test_other_commands_name_the_first_mistake_and_how_many_more_there_are(site: Site) -> None:
    site.config.write_text(MISTAKES)
    result = site.run("config", "show")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"synsched: {site.config}: unknown section [guard]: did you mean [guards]?; ")
    assert result.stderr.endswith("'synsched config check' tells 4 more\n")


def test_what_contradicts_a_default_in_place_of_a_mistake_is_no_mistake(site: Site) -> None:
    site.config.write_text('[rounds]\nperiod = "1 minute"\n[hook]\nstale_after = "2m"\n')
    assert site.run("config", "check").stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "free", "history 1", "explain 1"])
def test_commands_that_show_go_on_with_a_broken_file(site: Site, command: str) -> None:
    site.round(snapshot([node("n1")], [job(1, on=[share("n1")])], time=NOON - 30))
    site.configure('[rounds]\nperiod = "soon"\n')
    result = site.run(*command.split())
    assert result.exit_code == 0
    assert result.stderr.startswith(f"synsched: {site.config}: rounds.period is 'soon': ")
    assert result.stderr.endswith("; defaults stand in its place\n")


SLURM_HAS = {
    "partition": "PartitionName=gpu State=UP\nPartitionName=long State=UP\n",
    "qos": "normal\nhigh\n",
    "user": "root\nalice\nbob\n",
    "account": "root\nvision\n",
}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        pytest.param('[manage]\npartitions = ["gpu", "long"]\nqos = ["high"]', [], id="all are there"),
        pytest.param(
            '[manage]\npartitions = ["gpux"]',
            ["manage.partitions names gpux, and there is no such partition: did you mean gpu?"],
            id="a partition",
        ),
        pytest.param(
            '[manage]\nnever_partitions = ["zz"]\nqos = ["hihg"]',
            [
                "manage.never_partitions names zz, and there is no such partition: Slurm has gpu, long",
                "manage.qos names hihg, and there is no such QOS: did you mean high?",
            ],
            id="a partition and a QOS",
        ),
        pytest.param(
            '[policy]\nsystem = "gandiva-fair"\n[tickets]\nusers = ["alcie=2", "bob=1"]\naccounts = ["visoin/x=2"]',
            [
                "tickets.users names alcie, and there is no such user: did you mean alice?",
                "tickets.accounts names visoin, and there is no such account: did you mean vision?",
                "tickets.accounts names x, and there is no such account: Slurm has root, vision",
            ],
            id="users and accounts",
        ),
    ],
)
def test_check_asks_slurm_for_the_names(
    site: Site, lines: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Commands, "read", lambda _self, *argv: SLURM_HAS[argv[-1 if "scontrol" in argv else -2]])
    site.configure(f"{lines}\n")
    result = site.run("config", "check")
    prefix = f"synsched: {site.config}: "
    assert [line.removeprefix(prefix) for line in result.stderr.splitlines()] == said
    assert result.exit_code == (2 if said else 0)


def test_names_that_slurm_does_not_tell_are_no_mistake_but_said_to_be_unchecked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(_self: Commands, *_argv: str) -> str:
        raise UnreachableError("slurmctld does not answer")

    monkeypatch.setattr(Commands, "read", down)
    site.configure('[manage]\npartitions = ["gpux"]\n')
    result = site.run("config", "check")
    assert result.exit_code == 0
    assert result.stderr == (
        "synsched: not all partitions, QOS, users and accounts were looked up, since Slurm does not tell them:"
        " slurmctld does not answer\n"
    )


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_is_for_somebody_or_to_compare_with(site: Site, name: str) -> None:
    row = POLICIES[name]
    assert bool(row.purpose) != row.compares
    site.configure(f'[policy]\nsystem = "{name}"\n')
    said = site.run("config", "check").stderr
    assert said.startswith(f"synsched: policy {name} is there to compare with, ") == row.compares


@pytest.mark.parametrize("name", POLICIES)
def test_check_accepts_every_policy_with_the_settings_that_it_reads(site: Site, name: str) -> None:
    row, lines = POLICIES[name], [f'system = "{name}"']
    lines += ['order = "ftf"'] if row.takes_order else []
    lines += ["defragment = true", "parts = true"] if row.reads("policy.defragment") else []
    lines += ['utility = "makespan"'] if row.reads("policy.utility") else []
    lines += ["[tickets]", 'users = ["alice=2"]'] if row.reads("tickets.users") else []
    site.configure("\n".join(["[policy]", *lines]))
    assert site.lines("config", "check", columns=300) == [f"{site.config} is in order"]


def test_check_accepts_the_shipped_file(site: Site) -> None:
    file = site.folder / "printed.toml"
    file.write_text(site.run("config", "init").stdout, encoding="utf-8")
    assert site.run("--config", str(file), "config", "check").exit_code == 0


def test_show_tells_each_value_and_where_it_is_from(site: Site) -> None:
    site.configure('[rounds]\nperiod = "2m"\n')
    lines = site.lines("config", "show", columns=300)
    period = next(line for line in lines if line.startswith("rounds.period"))
    assert period.split() == ["rounds.period", str(site.config), '"2m"']
    assert next(line for line in lines if line.startswith("policy.order")).split()[1:] == ["default", '"las"']


def test_show_json_has_stable_keys(site: Site) -> None:
    told = site.json("config", "show")
    assert list(told) == ["schema", "file", "settings"]
    settings = told["settings"]
    assert isinstance(settings, list)
    assert {"name", "value", "default", "origin", "doc"} <= set(settings[0])


def test_render_lists_what_there_is(site: Site) -> None:
    assert site.lines("render") == [name.removesuffix(".j2") for name in template_names()]


def test_a_unit_is_rendered_for_the_user_named(site: Site) -> None:
    assert "User=gpuops" in site.lines("render", "synsched.service", "--user", "gpuops", columns=300)


def test_values_are_given_to_a_template(site: Site) -> None:
    assert any("model=gpt2" in line for line in site.lines("render", "sbatch.sh", "--set", "model=gpt2", columns=300))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(["nonsense"], 1, "there is no template 'nonsense': known are ", id="no such template"),
        pytest.param(
            ["sbatch.sh", "--set", "model"], 2, "'model' is not an assignment: write NAME=VALUE", id="no value"
        ),
        pytest.param(
            ["sbatch.sh", "--set", "gpu=4"],
            2,
            "--set gpu=4: template sbatch.sh reads no such value: did you mean gpus?",
            id="a value that no line of it has",
        ),
        pytest.param(
            ["sbatch.sh", "--set", "gpus=x"],
            2,
            "--set gpus=x: expected a whole number, such as 1",
            id="a text for a number",
        ),
        pytest.param(
            ["watchdog.py", "--set", "user=x"],
            2,
            "--set user=x: template watchdog.py reads no such value: it reads none",
            id="a value for a hook",
        ),
    ],
)
def test_what_cannot_be_rendered_says_what_can(site: Site, arguments: list[str], code: int, said: str) -> None:
    result = site.run("render", *arguments)
    assert result.exit_code == code
    assert said in result.stderr
