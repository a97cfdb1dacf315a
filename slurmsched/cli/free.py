"""`synsched free`."""

from __future__ import annotations

import click

from slurmsched.cli.invocation import Invocation
from slurmsched.cli.output import console, json_option, print_json
from slurmsched.cli.parameters import parse_mebibytes, split_names
from slurmsched.model import JobState
from slurmsched.report.free import DemandPerGpu, free_capacity, free_view
from slurmsched.report.status import filter_status


@click.command()
@click.option("--gpu", "gpu_type", metavar="TYPE", help="Only GPUs of this type.")
@click.option(
    "-p", "--partition", "partitions", type=split_names, default="", metavar="LIST", help="Only these partitions."
)
@click.option(
    "--cpus-per-gpu", type=click.IntRange(min=1), default=1, metavar="N", help="CPUs that each GPU needs. Default: 1."
)
@click.option("--mem-per-gpu", type=parse_mebibytes, default="0", metavar="SIZE", help="Memory per GPU, such as 16G.")
@json_option
@click.pass_obj
def free(
    invocation: Invocation,
    *,
    gpu_type: str | None,
    partitions: tuple[str, ...],
    cpus_per_gpu: int,
    mem_per_gpu: int,
    as_json: bool,
) -> None:
    """Show what could start right now.

    Shows the largest job that fits for each GPU type, the idle GPUs of each node, and why some of them are stranded.

    \b
    Example:
      synsched free --gpu v100 --cpus-per-gpu 3
    """
    everything = invocation.status()
    names = {name for node in everything.nodes for name in node.partitions}
    if missing := sorted(set(partitions) - names):
        raise click.BadParameter(f"no partition '{missing[0]}' here; partitions: {', '.join(sorted(names)) or 'none'}")
    status = filter_status(everything, partitions=partitions)
    known = sorted({gpu.type for node in status.nodes for gpu in node.gpus})
    if gpu_type is not None and gpu_type not in known:
        raise click.BadParameter(f"no GPU of type '{gpu_type}' here; types: {', '.join(known) or 'none'}")
    waiting = sum(job.state is JobState.PENDING for job in status.jobs)
    demand = DemandPerGpu(gpu_type, cpus_per_gpu, mem_per_gpu)
    capacity = free_capacity(status.nodes, status.surveyed, waiting, demand, status.fragments)
    if as_json:
        print_json(capacity)
    else:
        console().print(free_view(capacity, status.at))
