"""How much of what is idle nobody can use, and placing so that it stays little (Weng et al., ATC 2023)."""

from slurmsched.policies.placing.fragmentation.best_fit import BestFit
from slurmsched.policies.placing.fragmentation.clustering import GpuClustering
from slurmsched.policies.placing.fragmentation.descent import Descent
from slurmsched.policies.placing.fragmentation.dot_product import DotProduct
from slurmsched.policies.placing.fragmentation.gpu_packing import GpuPacking
from slurmsched.policies.placing.fragmentation.idle import Idle, Server
from slurmsched.policies.placing.fragmentation.measure import Fragment, Measure
from slurmsched.policies.placing.fragmentation.moving import MovingScores
from slurmsched.policies.placing.fragmentation.priced import PricedDescent
from slurmsched.policies.placing.fragmentation.random_fit import RandomFit, RandomScores
from slurmsched.policies.placing.fragmentation.scoring import Heuristic, Scores
from slurmsched.policies.placing.fragmentation.task import COVER, Task, Workload, commonest, typical

__all__ = [
    "COVER",
    "BestFit",
    "Descent",
    "DotProduct",
    "Fragment",
    "GpuClustering",
    "GpuPacking",
    "Heuristic",
    "Idle",
    "Measure",
    "MovingScores",
    "PricedDescent",
    "RandomFit",
    "RandomScores",
    "Scores",
    "Server",
    "Task",
    "Workload",
    "commonest",
    "typical",
]
