"""`synsched profile run`."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click

from slurmsched.backends.slurm import submitting
from slurmsched.cli.cluster import backend
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import cpu_points, gpus_of_type, sizes, time
from slurmsched.knowledge import load_profiles
from slurmsched.model import Gpu, Node, SynschedError
from slurmsched.model.wording import counted
from slurmsched.profiling.keeping import Found, keep
from slurmsched.profiling.measuring import measured
from slurmsched.profiling.trial import Queue, Shape, Trial
from slurmsched.report.profile_view import profile_view
from slurmsched.report.quantities import memory as mebibytes
from slurmsched.settings.definition import Cluster

__all__ = ["run"]

_SBATCH_OPTIONS: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}


class NoGpuError(SynschedError):
    """No node has what a run asks for."""

    exit_code = 2


@click.command(context_settings=_SBATCH_OPTIONS)
@click.option("--model", required=True, metavar="NAME", help="What the model is called in hints.")
@click.option("--task", default="", metavar="NAME", help="Its kind: image, speech, language.")
@click.option("--gpu", type=gpus_of_type, default="1", metavar="TYPE:N", help="GPUs of each run. Default: one, of any.")
@click.option("--cpus", type=cpu_points, metavar="LIST", help="CPUs per GPU that may be tried. Default: 1 to a node's.")
@click.option("--memory", type=sizes, default="", metavar="LIST", help="Memory per GPU to try, as 16G,32G.")
@click.option("--seconds", type=time, default="60", metavar="TIME", help="What each run measures. Default: 60 s.")
@click.option("--patience", type=time, default="1h", metavar="TIME", help="Longest wait in the queue. Default: 1h.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="The JSON file that gets the profile.")
@json_option
@click.argument("sbatch", nargs=-1, type=click.UNPROCESSED, required=True, metavar="[SBATCH OPTIONS] SCRIPT [ARGS]")
@click.pass_obj
def run(
    invocation: Invocation,
    /,
    *,
    model: str,
    task: str,
    gpu: tuple[str, int],
    cpus: tuple[float, ...] | None,
    memory: tuple[float, ...],
    seconds: int,
    patience: int,
    out: Path | None,
    as_json: bool,
    sbatch: tuple[str, ...],
) -> None:
    """Profile a model by short runs of your own job.

    The job has to use slurmsched.jobside. It is submitted again and again, with as many CPUs as optimistic profiling
    asks for, each time for --seconds of work; it saves nothing. The matrix goes into a JSON file of profiles: that of
    policy.profiles where it is one, else profiles.json.

    \b
    Example:
      synsched profile run --model resnet50 --gpu v100 -- -p debug train.sh
    """
    gpu_type, gpus = gpu
    settings = invocation.settings
    arguments = sbatch[1:] if sbatch[0] == "sbatch" else sbatch
    nodes = [node for node in backend(settings).observe().nodes if len(_devices(node, gpu_type)) >= gpus]
    if not nodes:
        raise NoGpuError(f"no node has {gpus} GPUs {gpu_type}: 'synsched free' shows what there is")
    points = cpus or tuple(float(count) for count in range(1, max(node.total.cpus for node in nodes) // gpus + 1))
    path = out or _kept(settings.policy.profiles)
    with _spool(settings.reports.spool) as spool:
        trial = Trial(_queue(settings.cluster), arguments, spool, seconds, patience, invocation.clock)
        found = measured(trial, gpu_type=gpu_type, gpus=gpus, cpus=points, memory=memory, say=_say)
    fair = min((node.proportional(1) for node in nodes), key=lambda share: share.cpus)
    rate = found.matrix.at(fair.cpus, fair.memory)
    source = f"measured on {counted(gpus, 'GPU')} {gpu_type}".rstrip() + f" by {getpass.getuser()}"
    keep(Found(model, task, gpu_type, gpus, found.matrix, rate, source, invocation.now()), path)
    if as_json:
        print_json({"file": str(path), "runs": len(found.runs), "matrix": found.matrix, "rate": rate})
        return
    console().print(profile_view(load_profiles(path).models[model]))
    click.echo(f"\n{counted(len(found.runs), 'run')} of {found.combinations} combinations; written to {path}")


def _devices(node: Node, gpu_type: str) -> list[Gpu]:
    return [gpu for gpu in node.gpus if gpu_type in ("", gpu.type)]


def _kept(profiles: str) -> Path:
    return Path(profiles if profiles.endswith(".json") else "profiles.json")


def _queue(cluster: Cluster) -> Queue:
    return Queue(
        submit=lambda options, told: submitting.submit(options, "", cluster.slurm_conf, cluster.timeout, told=told),
        ended=lambda job: submitting.has_ended(job, cluster.slurm_conf, cluster.timeout),
        cancel=lambda job: submitting.cancel(job, cluster.slurm_conf, cluster.timeout),
    )


@contextmanager
def _spool(path: str) -> Iterator[Path]:
    """The site's spool, or one of our own in the working directory, which the nodes see as they see the job's."""
    if path:
        yield Path(path)
        return
    with TemporaryDirectory(dir=Path.cwd(), prefix=".synsched-profile-") as folder:
        yield Path(folder)


def _say(shape: Shape, rate: float) -> None:
    memory = "" if shape.memory is None else f", {mebibytes(shape.memory)}"
    click.echo(f"{counted(shape.cpus, 'CPU')}{memory}: {rate:.4g} steps/s", err=True)
