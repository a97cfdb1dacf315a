"""The command line: `cluster VERB ...`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from .cluster import Cluster, ClusterOptions, cluster_names
from .commands import ClusterError, Commands
from .engine import ensure_docker, exclusive_lock
from .images import DEBIAN, RELEASES, compile_checkout, ensure_image
from .nodes import DEFAULT_SPEC, parse_nodes

CHECKOUT = Path(__file__).resolve().parent.parent.parent
MAX_CONTAINERS = 200  # a cluster's network has 254 addresses


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns the exit status; an error is one line on standard error."""
    args = _parser().parse_args(argv)
    commands = Commands(args.verbose)
    try:
        return int(args.verb(commands, args) or 0)
    except ClusterError as error:
        commands.say(f"cluster: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _up(commands: Commands, args: argparse.Namespace) -> None:
    overrides = dict(setting.split("=", 1) for setting in args.set)
    source = Path(args.source).resolve()
    if not source.is_dir():
        raise ClusterError(f"--source {source} is not a directory")
    options = ClusterOptions(
        args.release,
        parse_nodes(args.nodes),
        source,
        args.virtual,
        args.kill_wait,
        overrides,
        args.source_tarball,
        args.placeholder,
    )
    if len(options.gpus_by_node) > MAX_CONTAINERS:
        raise ClusterError(f"at most {MAX_CONTAINERS} nodes with a container each: use --virtual for more")
    ensure_docker(commands)
    cluster = Cluster(commands, args.name)
    if args.anew:
        cluster.down()
    cluster.up(options)
    nodes = ",".join(group.hostlist for group in options.groups)
    _print(f"{args.name}: Slurm {RELEASES[args.release]} ({args.release}) is up: {nodes}")


def _down(commands: Commands, args: argparse.Namespace) -> None:
    for name in cluster_names(commands) if args.all else [args.name]:
        Cluster(commands, name).down()


def _exec(commands: Commands, args: argparse.Namespace) -> None:
    if not args.command:
        raise ClusterError("exec needs a command: cluster exec [--user USER] [--on HOST] -- CMD...")
    cluster = Cluster(commands, args.name)
    cluster.check(args.on)
    home = "/root" if args.user == "root" else f"/home/{args.user}"
    docker = ["docker", "exec", "--interactive", "--user", args.user, "--workdir", home]
    docker += ["--env", f"HOME={home}", "--env", f"USER={args.user}", "--env", f"LOGNAME={args.user}"]
    if sys.stdin.isatty() and sys.stdout.isatty():
        docker.append("--tty")
    sys.stdout.flush()
    os.execvp("docker", [*docker, cluster.container(args.on), *args.command])  # noqa: S606


def _logs(commands: Commands, args: argparse.Namespace) -> None:
    cluster = Cluster(commands, args.name)
    if args.container:
        cluster.check(args.container)
    chosen = [args.container] if args.container else sorted(cluster.hosts())
    for host in chosen:
        result = commands.attempt("docker", "logs", cluster.container(host))
        for line in (result.stdout + result.stderr).splitlines():
            _print(line if args.container else f"{host}: {line}")


def _status(commands: Commands, _args: argparse.Namespace) -> None:
    names = cluster_names(commands)
    if not names:
        _print("no cluster is up")
    for name in names:
        cluster = Cluster(commands, name)
        hosts = cluster.hosts()
        _print(f"{name}: " + " ".join(f"{host}={state}" for host, state in sorted(hosts.items())))
        if hosts.get("login") == "running":
            sinfo = commands.attempt("docker", "exec", cluster.container("login"), "sinfo", "-p", "gpu", timeout=15)
            _print((sinfo.stdout or sinfo.stderr).rstrip())


def _images(commands: Commands, args: argparse.Namespace) -> None:
    ensure_docker(commands)
    for release in [args.release] if args.release else DEBIAN:
        _print(ensure_image(commands, release, args.source_tarball, yielding=args.yielding))


def _compile(commands: Commands, args: argparse.Namespace) -> None:
    ensure_docker(commands)
    image = ensure_image(commands, args.release, args.source_tarball)
    with exclusive_lock(f"compile-{args.release}"):  # who comes second finds it done
        compile_checkout(commands, image, Path(args.source).resolve())


def _stop(commands: Commands, args: argparse.Namespace) -> None:
    Cluster(commands, args.name).stop(args.container, kill=args.kill)


def _start(commands: Commands, args: argparse.Namespace) -> None:
    Cluster(commands, args.name).start(args.container)


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,39}", text):
        raise argparse.ArgumentTypeError("a name has lowercase letters, digits, '-', '_' and '.', at most 40")
    return text


def _setting(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z]+=.*", text):
        raise argparse.ArgumentTypeError("a setting is KEY=VALUE, as in slurm.conf")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description="A real Slurm cluster in unprivileged containers.")
    general = argparse.ArgumentParser(add_help=False)
    general.add_argument("--verbose", action="store_true", help="show the commands that are run")
    named = argparse.ArgumentParser(add_help=False, parents=[general])
    named.add_argument("--name", type=_name, default="mini", help="which cluster (default: %(default)s)")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    up = verbs.add_parser("up", parents=[named], help="start a cluster and wait until it is ready")
    option = up.add_argument
    option("--release", choices=RELEASES, default="trixie", help="base of the images (default: %(default)s)")
    spec_help = "TYPE:COUNTxGPUS[/CPUSc][/THREADSt][/MEMORYg],... (default: %(default)s)"
    option("--nodes", default=DEFAULT_SPEC, metavar="SPEC", help=spec_help)
    option("--virtual", action="store_true", help="no slurmd: jobs get their allocation and stay CONFIGURING")
    option("--placeholder", action="store_true", help="also the node that never exists, which starts name")
    source_help = "checkout to mount at /opt/slurmsched (default: this one)"
    option("--source", default=str(CHECKOUT), metavar="DIR", help=source_help)
    tarball_help = "Slurm's source for --release source (default: $SLURMSCHED_SLURM_SOURCE)"
    option("--source-tarball", default="", metavar="FILE", help=tarball_help)
    option("--kill-wait", type=int, default=30, metavar="SECONDS", help="KillWait (default: %(default)s)")
    option("--anew", action="store_true", help="remove a cluster of this name first")
    option(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another line for slurm.conf; may be repeated",
    )
    up.set_defaults(verb=_up)

    down = verbs.add_parser("down", parents=[named], help="remove a cluster's containers, volumes and network")
    down.add_argument("--all", action="store_true", help="every cluster that this command made")
    down.set_defaults(verb=_down)

    run = verbs.add_parser("exec", parents=[named], help="run a command in a container")
    run.add_argument("--user", default="root", help="alice, bob, carol, synsched or root (default: %(default)s)")
    run.add_argument("--on", default="login", metavar="HOST", help="login, ctl, dbd, db or a node")
    run.add_argument("command", nargs="*", metavar="CMD", help="the command, after --")
    run.set_defaults(verb=_exec)

    logs = verbs.add_parser("logs", parents=[named], help="show the daemons' logs")
    logs.add_argument("container", nargs="?", help="one host (default: all)")
    logs.set_defaults(verb=_logs)

    verbs.add_parser("status", parents=[general], help="show every cluster").set_defaults(verb=_status)

    images = verbs.add_parser("images", parents=[general], help="build images only")
    images.add_argument("--release", choices=RELEASES, help="one release (default: all of Debian's)")
    images.add_argument("--source-tarball", default="", metavar="FILE", help=tarball_help)
    images.add_argument("--yielding", action="store_true", help="build with low CPU priority")
    images.set_defaults(verb=_images)

    compiling = verbs.add_parser("compile", parents=[general], help="a checkout's bytecode for the Python of a release")
    compiling.add_argument("--release", choices=RELEASES, default="trixie", help="which (default: %(default)s)")
    compiling.add_argument("--source", default=str(CHECKOUT), metavar="DIR", help=source_help)
    compiling.add_argument("--source-tarball", default="", metavar="FILE", help=tarball_help)
    compiling.set_defaults(verb=_compile)

    stop = verbs.add_parser("stop", parents=[named], help="stop one container: a crashed daemon or node")
    stop.add_argument("container", help="login, ctl, dbd, db or a node")
    stop.add_argument("--kill", action="store_true", help="kill -9, without warning")
    stop.set_defaults(verb=_stop)

    start = verbs.add_parser("start", parents=[named], help="start a stopped container again")
    start.add_argument("container", help="login, ctl, dbd, db or a node")
    start.set_defaults(verb=_start)
    return parser
