"""One round's placements, each over what the ones before it left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurmsched.model import Job, Resources, Share
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.fgd.asking import Asking, usual_workload
from slurmsched.policies.fgd.cluster import FragmentedCluster
from slurmsched.policies.fgd.first_device import FirstDevice
from slurmsched.policies.placing.fragmentation import Measure, PricedDescent, Scores, Task
from slurmsched.policies.protocol import Situation

__all__ = ["Seats"]

Mask = NDArray[np.bool_]

_CORE = 1000


@dataclass(frozen=True, slots=True)
class Seats:
    """What is idle, and the scores of its nodes."""

    cluster: FragmentedCluster
    scores: Scores

    @classmethod
    def of(cls, situation: Situation) -> Seats:
        """The cluster as it is. The usual jobs are those of the last days, and those that are here."""
        cluster = FragmentedCluster(situation.snapshot, situation.usable)
        usual = (*situation.usual, *((job.request, 1) for job in situation.jobs))
        measure = Measure(usual_workload(usual, cluster.shards_per_gpu, len(cluster.nodes)), cluster.idle)
        return cls(cluster, Scores(cluster.idle, FirstDevice(PricedDescent(measure))))

    def place(self, job: Job) -> tuple[Share, ...]:
        """What the job gets, which is claimed; nothing where it does not fit."""
        try:
            homes = list(self.cluster.homes(job))
        except PolicyError:
            return ()
        return next((shares for wanted, nodes in homes if (shares := self.gang(wanted, nodes))), ())

    def gang(self, wanted: Asking, nodes: Mask) -> tuple[Share, ...]:
        """Each task on a node of its own, or none."""
        left, placed = nodes.copy(), list[tuple[int, Task, tuple[int, ...]]]()
        for task in wanted.tasks:
            found = self.scores.place(task, left)
            if found is None:
                for node, taken, devices in placed:
                    self.cluster.idle.give(node, taken, devices)
                return ()
            placed.append((found[0], task, found[1]))
            left[found[0]] = False
        return tuple(self.share(wanted.shards, *one) for one in placed)

    def share(self, shards: int, node: int, task: Task, devices: tuple[int, ...]) -> Share:
        """A task's place as the model says it; `indices` are the devices that Slurm is expected to choose."""
        home = self.cluster.nodes[node]
        gpu_type = home.gpus[devices[0]].type if devices else ""
        own = Resources(0 if shards else task.gpus, task.cpu // _CORE, task.memory)
        return Share(home.name, own, gpu_type, devices, shards)
