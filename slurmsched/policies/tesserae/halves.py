"""Halves of GPUs: which of them are open to a second job, and which second job gets each.

A half is a job with half a GPU's shards on each of its nodes; Slurm has no other way to give two jobs the same GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurmsched.knowledge import Knowledge
from slurmsched.model import Job, JobId, JobState, Share
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.fgd import Asking, FragmentedCluster
from slurmsched.policies.tesserae.company import type_of
from slurmsched.policies.tesserae.devices import Devices
from slurmsched.policies.tesserae.pairing import Pair, may_share, pairs

__all__ = ["Guest", "Halves"]

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Guest:
    """A pair, and what the pending one of it asks for where the placed one is."""

    pair: Pair
    wanted: Asking


@dataclass(slots=True)
class Halves:
    """The cluster with everybody placed who gets GPUs of their own. `places` has the shares of these."""

    cluster: FragmentedCluster
    devices: Devices
    places: Mapping[JobId, tuple[Share, ...]]

    def matched(self, placed: Sequence[Job], pending: Sequence[Job], knowledge: Knowledge) -> Iterator[Guest]:
        """The heaviest matching, both in order, apart for GPUs of each number of shards: the most come first."""
        left = list(pending)
        for shards in sorted({int(own) for own in self.cluster.shards if own}, reverse=True):
            hosts = [job for job in placed if may_share(job) and self._open(job, shards)]
            found = list(self._on(shards, hosts, left, knowledge)) if hosts else []
            taken = {guest.pair.guest for guest in found}
            left = [job for job in left if job.id not in taken]
            yield from found

    def _on(self, shards: int, hosts: Sequence[Job], pending: Sequence[Job], knowledge: Knowledge) -> Iterator[Guest]:
        jobs = {job.id: job for job in (*hosts, *pending)}
        types = {host.id: type_of(self.places[host.id], self.cluster.snapshot.node) for host in hosts}

        at = {host.id: self.devices.places(self.places[host.id]) for host in hosts}
        homes = dict[JobId, list[tuple[Asking, Mask]]]()

        def wanted(host: Job, guest: Job) -> Asking | None:
            if guest.id not in homes:
                homes[guest.id] = [own for own in self.with_room(guest) if 2 * own[0].shards == shards]
            there = at[host.id]
            found = (own for own, nodes in homes[guest.id] if len(own.tasks) == len(there) and nodes[there].all())
            return next(found, None)

        found = pairs(
            hosts,
            pending,
            types=types,
            knowledge=knowledge,
            shards_per_gpu=shards,
            fits=lambda host, guest: wanted(host, guest) is not None,
        )
        for pair in found:
            if asked := wanted(jobs[pair.host], jobs[pair.guest]):
                yield Guest(pair, asked)

    def _open(self, host: Job, shards: int) -> bool:
        """Whether a half that is sent to the same nodes comes onto the same devices. That of a job which starts in this
        round is certain: nobody else with shards starts there, and both take the same device."""
        shares = self.places[host.id]
        number = self.devices.number
        known = all(own.node in number for own in shares)
        if not known or not all(2 * own.shards == shards == self.cluster.shards[number[own.node]] for own in shares):
            return False
        if host.state is JobState.PENDING:
            return True
        return host.state is JobState.RUNNING and all(map(self.devices.half_open, shares))

    def with_room(self, job: Job) -> Iterator[tuple[Asking, Mask]]:
        """What the job asks for, and the nodes that have room for a task of it now."""
        everywhere = np.arange(len(self.cluster.nodes))
        try:
            for wanted, nodes in self.cluster.homes(job):
                yield wanted, nodes & self.cluster.idle.fits(wanted.tasks[0], everywhere)
        except PolicyError:
            return
