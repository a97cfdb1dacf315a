"""`synsched profile`."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click

from slurmsched.backends.slurm import submission
from slurmsched.cli.cluster import configured_knowledge, connect_backend
from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import complete_files, parse_cpu_points, parse_gpus, parse_mebibyte_list, parse_seconds
from slurmsched.knowledge import Knowledge, Profile, SensitivityMatrix
from slurmsched.knowledge.optimistic_profiling import ProfilingAccuracy, profiling_accuracy
from slurmsched.knowledge.published import load_knowledge
from slurmsched.model import Gpu, Node, SynschedError
from slurmsched.model.reasons import pluralise
from slurmsched.profiling.trial import MeasuredProfile, Trial, TrialQueue, TrialRequest, measure_matrix, save_profile
from slurmsched.report.profiles import (
    ProfileDrift,
    drift_view,
    profile_drifts,
    profile_view,
    profiles_view,
    profiling_errors_view,
)
from slurmsched.report.quantities import memory as mebibytes
from slurmsched.settings.definition import ClusterSettings

_SBATCH_OPTIONS: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}


class NoGpuError(SynschedError):
    """No node has the GPUs that a run asks for."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """What was measured of a model: the number of runs, speeds by CPUs and memory per GPU, and steps per second at the
    GPU-proportional share; `file` has the profile."""

    file: str
    runs: int
    matrix: SensitivityMatrix
    rate: float


@dataclass(frozen=True, slots=True)
class KnownProfiles:
    """Every profile: of models, and of kinds of models."""

    models: tuple[Profile, ...]
    tasks: tuple[Profile, ...]


@dataclass(frozen=True, slots=True)
class CheckedProfiles:
    """The accuracy of optimistic profiling for each model with a measured matrix."""

    models: tuple[ProfilingAccuracy, ...]


@dataclass(frozen=True, slots=True)
class ReportedRate(ProfileDrift):
    """A rate that a job reported beside its profile; the drift is that less one, None without a profiled rate."""

    drift: float | None


@dataclass(frozen=True, slots=True)
class ReportedRates:
    """The rates that jobs reported, one for each job and allocation."""

    jobs: tuple[ReportedRate, ...]


@click.command(context_settings=_SBATCH_OPTIONS)
@click.option("--model", required=True, metavar="NAME", help="The model's name in hints.")
@click.option("--task", default="", metavar="NAME", help="The kind of model: image, speech or language.")
@click.option("--gpu", type=parse_gpus, default="1", metavar="TYPE:N", help="GPUs of each run. Default: 1, any type.")
@click.option("--cpus", type=parse_cpu_points, metavar="LIST", help="CPUs per GPU to try. Default: 1 to all of a node.")
@click.option(
    "--memory", type=parse_mebibyte_list, default="", metavar="LIST", help="Memory per GPU to try, such as 16G,32G."
)
@click.option(
    "--seconds", type=parse_seconds, default="60", metavar="TIME", help="Length of each measurement. Default: 60 s."
)
@click.option(
    "--patience", type=parse_seconds, default="1h", metavar="TIME", help="Longest wait in the queue. Default: 1h."
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="JSON file to write the profile to.")
@json_option("cli.profile:ProfiledModel")
@click.argument(
    "sbatch",
    nargs=-1,
    type=click.UNPROCESSED,
    required=True,
    metavar="[SBATCH OPTIONS] SCRIPT [ARGS]",
    shell_complete=complete_files,
)
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

    The job must use slurmsched.jobside. It is submitted several times, with the numbers of CPUs that optimistic
    profiling asks for, each time for --seconds of work, and saves no checkpoint. The matrix is written to --out; by
    default to policy.profiles if that is a JSON file, else to profiles.json.

    \b
    Example:
      synsched profile run --model resnet50 --gpu v100 -- -p debug train.sh
    """
    gpu_type, gpus = gpu
    settings = invocation.settings
    arguments = sbatch[1:] if sbatch[0] == "sbatch" else sbatch
    nodes = [node for node in connect_backend(settings).observe().nodes if len(_gpus_of_type(node, gpu_type)) >= gpus]
    if not nodes:
        raise NoGpuError(
            f"no node has {pluralise(gpus, f'{gpu_type} GPU'.lstrip())}: 'synsched free' lists the GPUs of all nodes"
        )
    points = cpus or tuple(float(count) for count in range(1, max(node.total.cpus for node in nodes) // gpus + 1))
    path = out or _output_file(settings.policy.profiles)
    with _spool(settings.reports.spool) as spool:
        trial = Trial(_profiling_queue(settings.cluster), arguments, spool, seconds, patience, invocation.clock)
        measurement = measure_matrix(
            trial, gpu_type=gpu_type, gpus=gpus, cpus=points, memory=memory, on_run=_print_trial
        )
    fair = min((node.proportional_share(1) for node in nodes), key=lambda share: share.cpus)
    rate = measurement.matrix.speed_at(fair.cpus, fair.memory)
    source = f"measured on {pluralise(gpus, f'{gpu_type} GPU'.lstrip())} by {getpass.getuser()}"
    save_profile(MeasuredProfile(model, task, gpu_type, gpus, measurement.matrix, rate, source, invocation.now()), path)
    if as_json:
        print_json(ProfiledModel(str(path), len(measurement.runs), measurement.matrix, rate))
        return
    console().print(profile_view(load_knowledge(path).models[model]))
    click.echo(
        f"\n{pluralise(len(measurement.runs), 'run')} for {pluralise(measurement.combinations, 'combination')};"
        f" written to {path}"
    )


def _gpus_of_type(node: Node, gpu_type: str) -> list[Gpu]:
    return [gpu for gpu in node.gpus if gpu_type in ("", gpu.type)]


def _output_file(profiles: str) -> Path:
    return Path(profiles if profiles.endswith(".json") else "profiles.json")


def _profiling_queue(cluster: ClusterSettings) -> TrialQueue:
    return TrialQueue(
        submit=lambda options, env: submission.submit(options, "", cluster.slurm_conf, cluster.timeout, extra_env=env),
        ended=lambda job: submission.has_ended(job, cluster.slurm_conf, cluster.timeout),
        cancel=lambda job: submission.cancel(job, cluster.slurm_conf, cluster.timeout),
    )


@contextmanager
def _spool(path: str) -> Iterator[Path]:
    """Yields the site's spool, or a temporary one in the working directory, which the nodes see as well."""
    if path:
        yield Path(path)
        return
    with TemporaryDirectory(dir=Path.cwd(), prefix=".synsched-profile-") as folder:
        yield Path(folder)


def _print_trial(request: TrialRequest, rate: float) -> None:
    memory = "" if request.memory is None else f", {mebibytes(request.memory)}"
    click.echo(f"{pluralise(request.cpus, 'CPU')}{memory}: {rate:.4g} steps/s", err=True)


_PROFILES_OPTION = click.option(
    "--profiles",
    metavar="F",
    shell_complete=complete_files,
    help="A file in our format or Synergy's. Default: policy.profiles.",
)


class NoProfileError(SynschedError):
    """A model has no profile, or no profile has a matrix that can be checked."""

    exit_code = 2


@click.group()
def profile() -> None:
    """Measure models and show their profiles.

    \b
    Example:
      synsched profile show resnet50
    """


@profile.command("show")
@click.argument("model", required=False)
@_PROFILES_OPTION
@json_option("knowledge.knowledge:Profile", "cli.profile:KnownProfiles")
@click.pass_obj
def show(invocation: Invocation, /, *, model: str | None, profiles: str | None, as_json: bool) -> None:
    """Show a model's throughput by resources, or list all models.

    \b
    Example:
      synsched profile show
      synsched profile show resnet50 --profiles measured.toml
    """
    known = _knowledge_of(invocation, profiles)
    if model is None:
        if as_json:
            print_json(KnownProfiles(tuple(known.models.values()), tuple(known.tasks.values())))
        else:
            console().print(profiles_view(known))
        return
    model_profile = known.models.get(model) or known.tasks.get(model)
    if model_profile is None:
        raise NoProfileError(f"there is no profile of {model}: 'synsched profile show' lists all models")
    if as_json:
        print_json(model_profile)
    else:
        console().print(profile_view(model_profile))


@profile.command("check")
@_PROFILES_OPTION
@json_option("cli.profile:CheckedProfiles")
@click.pass_obj
def check(invocation: Invocation, /, *, profiles: str | None, as_json: bool) -> None:
    """Check optimistic profiling against measured matrices.

    Profiles each model with its matrix in place of a cluster. Shows the number of short runs, the number of
    combinations of CPUs and memory, and the error of the result. No job runs.

    \b
    Example:
      synsched profile check --profiles profiles.json
    """
    errors = profiling_accuracy(_knowledge_of(invocation, profiles))
    if not errors:
        raise NoProfileError("no profile here has a matrix over memory: give a file of measured ones with --profiles")
    if as_json:
        print_json(CheckedProfiles(tuple(errors.values())))
    else:
        console().print(profiling_errors_view(errors))


@profile.command("measured")
@_PROFILES_OPTION
@json_option("cli.profile:ReportedRates")
@click.pass_obj
def show_measured(invocation: Invocation, /, *, profiles: str | None, as_json: bool) -> None:
    """Show the throughput that jobs report beside their profiles.

    Drift is the difference from the profile. Only profiles of 'synsched profile run' are in steps per second; other
    profiles have no drift, because only their ratios are known.

    \b
    Example:
      synsched profile measured
    """
    with invocation.open_readable(history=True) as store:
        drifts = profile_drifts(store.rates(), _knowledge_of(invocation, profiles), invocation.now())
    if as_json:
        print_json(ReportedRates(tuple(map(_reported_rate, drifts))))
    else:
        console().print(drift_view(drifts))


profile.add_command(run)


def _reported_rate(drift: ProfileDrift) -> ReportedRate:
    return ReportedRate(**{each.name: getattr(drift, each.name) for each in fields(drift)}, drift=drift.relative)


def _knowledge_of(invocation: Invocation, profiles: str | None) -> Knowledge:
    return load_knowledge(profiles) if profiles else configured_knowledge(invocation.settings)
