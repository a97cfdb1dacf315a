"""What TAB offers: asked of click as a shell asks it, and typed into real shells."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pwd import getpwuid

import click
import pytest
from click.shell_completion import ShellComplete

from slurmsched.cli import main, reference
from slurmsched.cli.commands import COMMANDS
from slurmsched.cli.parameters import MAX_COMPLETED
from slurmsched.cli.program import COMPLETION_SECONDS, COMPLETION_VARIABLE
from slurmsched.experiments.registry import EXPERIMENTS
from slurmsched.model import Snapshot
from slurmsched.policies.policies import ORDERS, POLICIES
from slurmsched.template_files import template_names
from slurmsched.traces.formats.registry import TRACE_FORMATS
from tests.builders import job, node
from tests.unit.cli.conftest import NOON, Site
from tests.unit.cli.test_commands import EVERY

ME = getpwuid(os.geteuid()).pw_name
SYNSCHED = Path(sys.executable).with_name("synsched")
BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")
PATIENCE = 60.0
"""Seconds that a shell may take on a busy machine."""


@pytest.fixture
def queue(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site with jobs of two users, one of them the caller's, in two partitions."""
    jobs = (
        replace(job("41"), user=ME),
        replace(job("42"), user=ME),
        replace(job("43_7"), user="somebody"),
    )
    nodes = (replace(node("a1"), partitions=("gpu", "debug")), node("k1", gpu_type="k80"))
    site.round(Snapshot(time=NOON, nodes=nodes, jobs=jobs))
    monkeypatch.setenv("SYNSCHED_CONF", str(site.config))
    return site


def offered(line: str) -> list[str]:
    """The values that are offered at the end of a command line."""
    *words, typed = line.split(" ")
    return [
        item.value for item in ShellComplete(main, {}, "synsched", COMPLETION_VARIABLE).get_completions(words, typed)
    ]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        pytest.param("", [name for section in COMMANDS.values() for name in section], id="commands"),
        pytest.param(
            "re", ["resume", "release", "render", "replay", "report", "reproduce"], id="commands that begin as typed"
        ),
        pytest.param("--c", ["--config"], id="options before the command"),
        pytest.param("config ", ["check", "init", "show"], id="commands of a group"),
        pytest.param("status --no", ["--nodelist", "--noheader", "--nodes"], id="options"),
        pytest.param("plan --system ", list(POLICIES), id="policies"),
        pytest.param("simulate --policy=hada", ["hadar", "hadare"], id="a value after an equals sign"),
        pytest.param("compare --policies slurm,hada", ["slurm,hadar", "slurm,hadare"], id="the last of a list"),
        pytest.param("plan --order ", list(ORDERS), id="orders"),
        pytest.param("simulate --format ", list(TRACE_FORMATS), id="formats of traces"),
        pytest.param("run --mode e", ["enforce"], id="modes"),
        pytest.param("render ", [name.removesuffix(".j2") for name in template_names()], id="templates"),
        pytest.param("reproduce ", list(EXPERIMENTS), id="experiments"),
        pytest.param("explain ", ["41", "42"], id="jobs: the caller's own"),
        pytest.param("history 41,", ["41,41", "41,42"], id="one more job of a list"),
        pytest.param("release 42", ["42"], id="jobs that begin as typed"),
        pytest.param("forecast 43", [], id="no job of others where the caller has some"),
        pytest.param("status -u some", ["somebody"], id="users"),
        pytest.param("status -p ", ["debug", "gpu"], id="partitions"),
        pytest.param("free --gpu ", ["k80", "v100"], id="GPU types"),
    ],
)
def test_a_tab_offers(queue: Site, line: str, values: list[str]) -> None:
    assert sorted(offered(line)) == sorted(values)


def test_who_has_no_job_is_offered_those_of_all(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.round(Snapshot(time=NOON, nodes=(node("a1"),), jobs=(replace(job("7"), user="somebody"),)))
    monkeypatch.setenv("SYNSCHED_CONF", str(site.config))
    assert offered("explain ") == ["7"]


def test_the_option_config_says_whose_jobs_are_offered(queue: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNSCHED_CONF", "/nowhere")
    assert offered("explain ") == []
    assert offered(f"-c {queue.config} explain ") == ["41", "42"]


def test_no_more_jobs_are_offered_than_a_shell_can_show(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = tuple(replace(job(str(number)), user=ME) for number in range(1, MAX_COMPLETED + 50))
    site.round(Snapshot(time=NOON, nodes=(node("a1"),), jobs=jobs))
    monkeypatch.setenv("SYNSCHED_CONF", str(site.config))
    assert len(offered("explain ")) == MAX_COMPLETED


def test_a_name_with_control_characters_is_not_offered(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = (replace(job("1"), user="a\nplain,--evil"), replace(job("2"), user="fine"))
    site.round(Snapshot(time=NOON, nodes=(node("a1"),), jobs=jobs))
    monkeypatch.setenv("SYNSCHED_CONF", str(site.config))
    assert offered("explain ") == ["2"]
    assert offered("status -u ") == ["fine"]


@pytest.mark.parametrize("broken", ["no database", "a wrong settings file", "a damaged database"])
def test_what_goes_wrong_offers_nothing_and_says_nothing(
    site: Site, broken: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if broken == "a damaged database":
        site.database.write_bytes(b"no database" * 1000)
    if broken == "a wrong settings file":
        site.config.write_text("[rounds\n", encoding="utf-8")
    monkeypatch.setenv("SYNSCHED_CONF", str(site.config))
    assert [offered("explain "), offered("status -p ")] == [[], []]
    assert capfd.readouterr() == ("", "")


FILES = re.compile(r"FILE|F|T|C|\[SBATCH OPTIONS\] SCRIPT \[ARGS\]|FILE\.round(\.\.\.)?")


@pytest.mark.parametrize(("path", "command"), EVERY)
def test_a_file_is_completed_wherever_one_is_asked_for(path: tuple[str, ...], command: click.Command) -> None:
    for parameter in command.params:
        if FILES.fullmatch(parameter.metavar or ""):
            items = parameter.shell_complete(click.Context(command), "x")
            assert [item.type for item in items] == ["file"], (path, parameter.name)


def test_commands_are_completed_without_their_modules() -> None:
    code = (
        "import sys; from click.shell_completion import ShellComplete; from slurmsched.cli.program import main;"
        " found = ShellComplete(main, {}, 'synsched', 'X').get_completions([], '');"
        " sys.exit(len(found) < 20 or 'slurmsched.cli.status' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_tab_asks_no_command_of_slurm(queue: Site, tmp_path: Path) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    for name in ("squeue", "scontrol", "sinfo", "sacct", "sbatch", "sdiag", "sacctmgr", "sshare"):
        (fake / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n", encoding="ascii")
        (fake / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{fake}:{os.environ['PATH']}", COMPLETION_VARIABLE: "bash_complete"}
    for line in ("synsched explain ", "synsched history ", "synsched status -p ", "synsched render "):
        words = line.split(" ")
        asked = {**environment, "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
        run = subprocess.run([SYNSCHED], env=asked, capture_output=True, text=True, check=False)
        assert run.stderr == "", line
    assert not (tmp_path / "asked").exists()


class Terminal:
    """A shell in a terminal, as a person has it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def type(self, keys: str, until: str) -> str:
        """Press keys, and return what appears until the pattern is seen."""
        os.write(self._descriptor, keys.encode())
        seen, deadline = "", time.monotonic() + PATIENCE
        while not re.search(until, seen):
            assert time.monotonic() < deadline, f"no {until!r} after {keys!r}: {seen!r}"
            if select.select([self._descriptor], [], [], 1.0)[0]:
                seen += os.read(self._descriptor, 65536).decode(errors="replace")
        return seen


@contextmanager
def terminal(*argv: str, **environment: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    variables = {"PATH": f"{SYNSCHED.parent}:/usr/bin:/bin", "TERM": "dumb", "LANG": "C.UTF-8", "PS1": "> "}
    shell = subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, env={**variables, **environment}, start_new_session=True
    )
    os.close(theirs)
    try:
        yield Terminal(ours)
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


@pytest.fixture
def share(tmp_path: Path) -> Path:
    """Completion where a package puts it."""
    for shell, path in reference.COMPLETION_FILES.items():
        file = tmp_path / "share" / path
        file.parent.mkdir(parents=True)
        file.write_text(reference.completion_script(shell), encoding="utf-8")
    return tmp_path / "share"


def shell(name: str, also: Path | None = None) -> str:
    path = shutil.which(name)
    if path is None or (also is not None and not also.exists()):
        if "CI" in os.environ:
            pytest.fail(f"{name} or its completion is missing, which 'make setup' installs")
        pytest.skip(f"NOT TESTED: completion in {name}: install {name}" + (" and bash-completion" if also else ""))
    return path


def bash(site: Site, share: Path) -> tuple[tuple[str, ...], dict[str, str], str]:
    path = shell("bash", BASH_COMPLETION)
    return (path, "--noprofile", "--norc", "-i"), {"XDG_DATA_DIRS": str(share)}, f". {BASH_COMPLETION}"


def zsh(site: Site, share: Path) -> tuple[tuple[str, ...], dict[str, str], str]:
    start = f"fpath=({share}/zsh/site-functions $fpath); autoload -U compinit; compinit -u -D"
    return (shell("zsh"), "-f", "-i"), {}, start


@pytest.mark.parametrize("start", [bash, zsh])
def test_a_shell_completes_commands_options_and_jobs(
    queue: Site, share: Path, start: Callable[[Site, Path], tuple[tuple[str, ...], dict[str, str], str]]
) -> None:
    argv, environment, command = start(queue, share)
    with terminal(*argv, SYNSCHED_CONF=str(queue.config), HOME=str(queue.folder), **environment) as person:
        person.type(f"{command}; echo REA''DY\n", "READY")
        person.type("synsched hist\t", "history ")
        person.type("--com\t", "--commands ")
        person.type("4\t\t", r"4[12]\s+4[12]")
        person.type("2\n", r"(?s)42.*\n.*> ")


def test_a_tab_that_takes_too_long_leaves_the_line_as_it_is(site: Site, share: Path) -> None:
    site.config.unlink()
    os.mkfifo(site.config)
    argv, environment, command = bash(site, share)
    with terminal(*argv, SYNSCHED_CONF=str(site.config), HOME=str(site.folder), **environment) as person:
        person.type(f"{command}; echo REA''DY\n", "READY")
        begun = time.monotonic()
        shown = person.type("synsched explain 4\t", "\a")
        assert time.monotonic() - begun >= COMPLETION_SECONDS
        assert shown.removesuffix("\a").endswith("explain 4")
        person.type("\x15echo x$((40 + 2))\n", "x42")


def test_fish_completes_commands_and_lists_of_jobs(queue: Site, share: Path) -> None:
    argv = [shell("fish"), "-c", 'complete -C "synsched hist"; complete -C "synsched history 41,"']
    environment = {"XDG_DATA_DIRS": str(share), "SYNSCHED_CONF": str(queue.config), "HOME": str(queue.folder)}
    environment["PATH"] = f"{SYNSCHED.parent}:/usr/bin:/bin"
    run = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    names = [line.partition("\t")[0] for line in run.stdout.splitlines()]
    assert names == ["history", "41,41", "41,42"], run.stderr


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_starting_a_shell_starts_no_python(name: str) -> None:
    """A script that only defines the completion: nothing outside a function runs synsched."""
    outside = re.sub(
        r"(?ms)^(function )?_synsched_completion\(?\)?;?( \{)?$.*?^(\}|end;)$", "", reference.completion_script(name)
    )
    assert "complete" in outside or "compdef" in outside
    assert not re.search(r"\$\(|`|env ", outside)
