"""What a person and a program see of traces, simulations, comparisons and profiles. Everything here really runs."""

from __future__ import annotations

import json
from errno import ENOSPC
from importlib import import_module
from pathlib import Path

import pytest

from slurmsched.cli import output
from tests.unit.cli.conftest import Site

TRACE = """job_id,arrival_s,gpus,duration_s,model,user
a,0,8,3600,resnet50,alice
b,60,8,3600,gnmt,bob
c,120,1,600,resnet18,alice
"""
CLUSTER = "v100:1x8:24:500G"
compare_command, reproduce_command = (import_module(f"slurmsched.cli.{name}") for name in ("compare", "reproduce"))


@pytest.fixture
def jobs(site: Site) -> str:
    path = site.folder / "jobs.csv"
    path.write_text(TRACE, encoding="utf-8")
    return str(path)


def simulated(site: Site, jobs: str, policy: str, *more: str) -> dict[str, object]:
    return site.json("simulate", "--cluster", CLUSTER, "--trace", jobs, "--policy", policy, *more)


def test_slurm_runs_one_after_another_and_rounds_share_the_time(site: Site, jobs: str) -> None:
    plain = simulated(site, jobs, "slurm")
    assert (plain["jobs"], plain["finished"], plain["rounds"]) == (3, 3, 0)
    assert plain["makespan_s"] == pytest.approx(7800, abs=30)
    rounds = simulated(site, jobs, "synergy/srtf")
    assert rounds["rounds"] != 0
    assert float(str(rounds["avg_jct_s"])) < float(str(plain["avg_jct_s"]))


def test_the_figures_name_what_was_simulated(site: Site, jobs: str) -> None:
    lines = site.lines("simulate", "--cluster", CLUSTER, "--trace", jobs, "--policy", "slurm")
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "simulated" in text
    assert "slurm" in text


def test_the_whole_run_goes_to_a_file(site: Site, jobs: str) -> None:
    out = site.folder / "run.json"
    simulated(site, jobs, "slurm", "--out", str(out))
    assert [job["job"] for job in json.loads(out.read_text())["jobs"]] == ["a", "b", "c"]


def test_the_same_seed_prints_the_same_figures(site: Site) -> None:
    """That seeds draw all there is to draw is for the engine's test; here the command hands its seed on."""
    once, again = (simulated(site, "synergy:12@20", "synergy/las", "--seed", "7") for _ in range(2))
    for spent in ("wall_s", "cpu_s", "decision_s_median"):
        del once[spent], again[spent]
    assert once == again
    other = simulated(site, "synergy:12@20", "synergy/las", "--seed", "8")
    assert other["avg_jct_s"] != once["avg_jct_s"]


PROFILES = """reference = "k80"

[models.lstm.gpu]
k80 = { rate = [1] }
v100 = { rate = [4] }
"""


def test_copies_of_jobs_from_the_trace_to_the_figures(site: Site) -> None:
    """HadarE over Hadar: a trace with copies is generated, shown, simulated, and simulated without its copies."""
    profiles, copies, out = (site.folder / name for name in ("profiles.toml", "copies.csv", "run.json"))
    profiles.write_text(PROFILES, encoding="utf-8")
    drawn = "job_id,arrival_s,gpus,duration_s,model,fork\na,0,1,7200,lstm,4\nb,60,1,9000,lstm,4\nc,120,1,9000,lstm,\n"
    copies.write_text(drawn, encoding="utf-8")
    shown = " ".join(site.lines("trace", "show", str(copies)))
    assert "4 (2)" in shown
    assert site.lines("trace", "generate", "synergy", "--jobs", "3", "--fork", "4")[1].endswith(",4")
    usual = ("simulate", "--cluster", "v100:2x1,k80:2x1", "--trace", str(copies), "--profiles", str(profiles))
    hadare = site.json(*usual, "--policy", "hadare", "--out", str(out))
    hadar = site.json(*usual, "--policy", "hadar", "--no-fork")
    assert (hadare["jobs"], hadare["finished"], hadar["finished"]) == (3, 3, 3)
    assert float(str(hadare["avg_jct_s"])) < float(str(hadar["avg_jct_s"]))
    assert [(job["job"], job["copies"]) for job in json.loads(out.read_text())["jobs"]] == [
        ("a", 4),
        ("b", 4),
        ("c", 0),
    ]
    slow = site.json(*usual, "--policy", "hadare", "--exchange", "60")
    assert float(str(slow["avg_jct_s"])) > float(str(hadare["avg_jct_s"]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(("--window", "5:2"), "'5:2' is not a window: write FIRST:END", id="a window backwards"),
        pytest.param(("--round", "0"), "--round must be at least 1 second", id="no time between rounds"),
        pytest.param(("--policy", "sinergy"), "sinergy", id="a policy that is none"),
        pytest.param(("--cluster", "v100:two"), "v100:two", id="a cluster that is none"),
        pytest.param(("--trace", "nowhere.csv"), "nowhere.csv", id="a trace that is not there"),
    ],
)
def test_what_cannot_be_simulated_is_one_line(site: Site, jobs: str, given: tuple[str, ...], words: str) -> None:
    usual = ("--cluster", CLUSTER, "--trace", jobs, "--policy", "slurm")
    result = site.run("simulate", *usual, *given)
    assert result.exit_code not in (0, 1)
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_a_mistake_in_a_trace_names_file_line_field_and_what_was_expected(site: Site, jobs: str) -> None:
    Path(jobs).write_text(TRACE.replace("b,60,8", "b,60,eight"), encoding="utf-8")
    result = site.run("trace", "show", jobs)
    assert result.exit_code == 2
    assert all(word in result.stderr for word in ("jobs.csv", "3", "gpus", "eight"))
    assert result.stderr.count("\n") == 1


def test_a_trace_is_made_up_shown_and_read_again(site: Site) -> None:
    made = site.folder / "made.csv"
    site.lines("trace", "generate", "gavel", "--jobs", "50", "--rate", "5", "-o", str(made))
    found = site.json("trace", "show", str(made))
    assert found["jobs"] == 50
    again = site.lines("trace", "import", str(made))
    assert again == made.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ("trace", "generate", "gavel", "--jobs", "3", "--out"),
        ("trace", "import", "JOBS", "--out"),
        ("simulate", "--cluster", CLUSTER, "--trace", "JOBS", "--policy", "slurm", "--out"),
    ],
    ids=["generate", "import", "simulate"],
)
def test_a_file_that_cannot_be_written_is_named_in_one_line(site: Site, jobs: str, words: tuple[str, ...]) -> None:
    result = site.run(*(jobs if word == "JOBS" else word for word in words), "/nowhere/out.csv")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "synsched: cannot write /nowhere/out.csv: No such file or directory\n"


def test_every_form_of_trace_is_listed(site: Site) -> None:
    text = "\n".join(site.lines("trace", "formats"))
    assert all(form in text for form in ("synergy", "gavel", "openb", "philly", "sacct"))


def test_a_month_of_sacct_is_compared(site: Site) -> None:
    fields = "JobID|User|Submit|Start|End|Elapsed|State|AllocTRES|NCPUS|ReqMem|Partition|JobName"
    rows = [
        f"{number}|alice|2026-10-01T0{number}:00:00|2026-10-01T0{number}:10:00|2026-10-01T0{number}:40:00|00:30:00|COMPLETED|"
        f"billing=4,cpu=4,gres/gpu=4,mem=16G,node=1|4|16G|gpu|train"
        for number in range(1, 6)
    ]
    history = site.folder / "month.txt"
    history.write_text("\n".join([fields, *rows]) + "\n", encoding="utf-8")
    page = site.folder / "month.html"
    given = ("--cluster", CLUSTER, "--trace", str(history), "--policies", "slurm,synergy/las", "--jobs", "1")
    found = site.json("compare", *given, "--html", str(page))
    assert [row["policy"] for row in found["rows"]] == ["slurm", "synergy/las"]  # type: ignore[attr-defined]
    assert found["lost"] == []
    text = page.read_text(encoding="utf-8")
    assert "<html" in text
    assert str(found["headline"]) in text
    assert "for the others CPUs and memory above the GPU-proportional share make no difference" in text


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            ("compare", "--cluster", CLUSTER, "--trace", "synergy:9@9", "--policies", "slurm"), id="a comparison"
        ),
        pytest.param(("reproduce", "mixed", "--quick"), id="the mixed benchmark"),
    ],
)
def test_nothing_is_simulated_for_a_page_that_cannot_be_written(
    site: Site, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (compare_command, reproduce_command):
        for simulates in ("run_locally", "run"):
            monkeypatch.setattr(module, simulates, lambda *_, **__: pytest.fail("it was simulated"), raising=False)
    result = site.run(*command, "--html", str(site.folder / "nowhere" / "page.html"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"synsched: cannot write {site.folder}/nowhere/page.html: No such file or directory\n"


def test_the_table_is_printed_though_the_page_cannot_be_written_in_the_end(
    site: Site, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(output, "replace_file_in", full)
    page = site.folder / "page.html"
    page.write_text("the last one")
    given = ("--cluster", CLUSTER, "--trace", jobs, "--policies", "slurm", "--jobs", "1", "--html", str(page))
    result = site.run("compare", *given)
    assert result.exit_code == 1
    assert "slurm" in result.stdout
    assert result.stderr == f"synsched: cannot write {page}: No space left on device\n"
    assert page.read_text() == "the last one"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param((), "give the workload with --trace", id="nothing"),
        pytest.param(("--trace", "synergy:9@9", "--policies", ","), "at least one policy", id="no policy"),
        pytest.param(("--loads", "3,many"), "write jobs per hour", id="a load that is none"),
        pytest.param(("--loads", "0"), "a load must be above 0", id="a load of nothing"),
        pytest.param(("--seeds", "9..1"), "is not a seed", id="seeds backwards"),
    ],
)
def test_what_cannot_be_compared_is_one_line(site: Site, given: tuple[str, ...], words: str) -> None:
    result = site.run("compare", "--cluster", CLUSTER, *given)
    assert result.exit_code == 2
    assert words in result.stderr


def test_profiles_are_listed_and_shown(site: Site) -> None:
    text = "\n".join(site.lines("profile", "show"))
    assert "resnet50" in text
    one = site.json("profile", "show", "resnet50")
    assert (one["name"], one["task"]) == ("resnet50", "image")


def test_a_model_nobody_knows(site: Site) -> None:
    result = site.run("profile", "show", "resnet5000")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "there is no profile of resnet5000: 'synsched profile show' lists all models" in result.stderr


def test_profiles_without_a_matrix_over_memory_cannot_be_checked(site: Site) -> None:
    result = site.run("profile", "check", "--profiles", _only_cpus(site))
    assert result.exit_code == 2
    assert "no profile here has a matrix over memory" in result.stderr


def _only_cpus(site: Site) -> str:
    path = site.folder / "own.toml"
    path.write_text(
        'source = "by hand"\n[models.lm]\ntask = "language"\ncpus = [1, 2]\nspeed = [1.0, 1.0]\n', encoding="utf-8"
    )
    return str(path)


def rate_table(folder: Path) -> Path:
    """A table as Gavel's, of three of the five models of Hadar's workload."""
    file = folder / "throughputs.json"
    models = ("ResNet-18 (batch size 128)", "CycleGAN", "ResNet-50 (batch size 64)")
    types = [{"name": model, "scale_factor": width} for model in models for width in (1, 2, 4, 8)]
    widths = [width for _ in models for width in (1, 2, 4, 8)]
    rates = {kind: [factor * width for width in widths] for kind, factor in (("v100", 4.0), ("k80", 1.0))}
    pairs: dict[str, list[object]] = {"v100": [], "k80": []}
    table = {"metadata": {"worker_types": [*rates]}, "job_types": types, "isolated": rates, "pairs": pairs}
    file.write_text(json.dumps(table), encoding="utf-8")
    return file


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_models_without_rates_are_named_and_those_of_hadars_workload_found(site: Site, command: str) -> None:
    policy = ["--policy", "yarn-cs"] if command == "simulate" else ["--policies", "yarn-cs", "--seeds", "1"]
    workload = ["--cluster", "v100:4x8,k80:4x8", "--trace", "hadar:24", *policy, "--json"]
    told = site.run(command, *workload, "--profiles", str(rate_table(site.folder))).stderr
    (line,) = [line for line in told.splitlines() if "profiles" in line]
    assert "the profiles do not know" in line
    assert "lm-batch-size-80 (" in line
    assert "they run equally fast on every GPU type" in line
    assert not {"resnet-18", "cyclegan", "resnet-50", "resnet-18-batch-size-128"} & set(line.replace(",", "").split())


def test_nothing_is_said_of_models_where_the_profiles_know_all_or_none_were_named(site: Site, jobs: str) -> None:
    profiles = site.folder / "profiles.toml"
    known = ("resnet50", "gnmt", "resnet18")
    profiles.write_text("".join(f"[models.{model}]\ncpus = [1]\nspeed = [1]\n" for model in known))
    usual = ("simulate", "--cluster", CLUSTER, "--trace", jobs, "--policy", "slurm", "--json")
    assert "profiles" not in site.run(*usual, "--profiles", str(profiles)).stderr
    assert "profiles" not in site.run(*usual).stderr
    profiles.write_text("[models.resnet50]\ncpus = [1]\nspeed = [1]\n")
    told = site.run(*usual, "--profiles", str(profiles)).stderr
    assert "do not know gnmt (1 job), resnet18 (1 job): CPUs and memory make no difference to them" in told


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_an_order_that_a_policy_does_not_read_is_said(site: Site, jobs: str, command: str) -> None:
    usual = (
        command,
        "--cluster",
        CLUSTER,
        "--trace",
        jobs,
        "--policy" if command == "simulate" else "--policies",
        "slurm",
    )
    assert site.run(*usual).stderr == ""
    told = site.run(*usual, "--order", "srtf")
    assert told.stderr == "synsched: --order means nothing to slurm, which has an order of its own\n"
    assert told.exit_code == 0
    refused = site.run(*usual[:-1], "slurm/srtf")
    assert (refused.exit_code, refused.stderr) == (2, refused.stderr)
    assert "slurm/srtf: policy slurm has an order of its own: write slurm alone" in refused.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            TRACE.replace(",", ";"), "it has the columns of own, separated by ';' instead of ','", id="semicolons"
        ),
        pytest.param(
            TRACE.replace(",", "\t"), "it has the columns of own, separated by a tab instead of ','", id="tabs"
        ),
        pytest.param(
            TRACE.replace("gpus", "cores"),
            "unknown trace format: nearest is own, which also has gpus",
            id="a column missing",
        ),
    ],
)
def test_a_trace_with_other_separators_names_them(site: Site, jobs: str, text: str, words: str) -> None:
    Path(jobs).write_text(text, encoding="utf-8")
    result = site.run("trace", "show", jobs)
    assert result.exit_code == 2
    assert words in result.stderr
    named = site.run("trace", "show", jobs, "--format", "own")
    assert ("separated by" in named.stderr) == ("separated by" in words)


def test_the_table_of_a_comparison_names_who_was_left_out(site: Site, jobs: str) -> None:
    Path(jobs).write_text(TRACE + "d,180,64,600,resnet18,bob\n", encoding="utf-8")
    given = (
        "compare",
        "--cluster",
        CLUSTER,
        "--trace",
        jobs,
        "--policies",
        "slurm",
        "--jobs",
        "1",
        "--skip-impossible",
    )
    assert "left out: 1 job (they can never run on this cluster)" in "\n".join(site.lines(*given))
    assert site.json(*given)["left_out"] == ["left out: 1 job (they can never run on this cluster)"]
