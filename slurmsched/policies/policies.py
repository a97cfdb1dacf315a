"""The policies by name, each a row: its stages, and what may be set with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from math import inf
from typing import Final

from slurmsched.policies.admit.allocate import AllocateFastestPart, AllocateFree, start_on_other_type
from slurmsched.policies.cluster.gang import why_single_type
from slurmsched.policies.errors import PolicyError
from slurmsched.policies.finish.restart import (
    exchange_types,
    migrate_parts_of_gpus,
    migrate_to_due_type,
    move_where_fastest,
    start_where_fastest,
    try_faster_idle_types,
)
from slurmsched.policies.finish.spare import distribute_spare
from slurmsched.policies.orders import (
    DominantResourceFairness,
    FinishTimeFairness,
    FirstInFirstOut,
    LeastAttainedService,
    ShortestRemainingTime,
    SlurmPriority,
    TetrisAlignment,
)
from slurmsched.policies.pipeline import ADMISSION_STEPS, FINISH_STEPS, Pipeline
from slurmsched.policies.place.placement import ALIGNED, CONSOLIDATED, FIRST_FIT
from slurmsched.policies.session import FinishStep
from slurmsched.policies.sizes import AsRequested, Greedy, Proportional, Sizing, Tune
from slurmsched.policies.stages import Entitlement, Order, Policy, Situation
from slurmsched.settings.definition import PolicySettings

ORDERS: Final[Mapping[str, Callable[[Sequence[float]], Order]]] = {
    "fifo": lambda _: FirstInFirstOut(),
    "srtf": lambda _: ShortestRemainingTime(),
    "las": lambda queues: LeastAttainedService(tuple(queues)),
    "ftf": lambda _: FinishTimeFairness(),
}
"""Every order by name, given the bounds of the queues of las."""

DEFAULT_UTILITY: Final = "timely"

DEFAULT_EVENNESS: Final = 2.0

DEFAULT_LAS_QUEUES: Final = (3600.0, 14400.0, 86400.0)

TIRESIAS: Final = LeastAttainedService((3600.0,), promotion_factor=inf, name="tiresias")
"""Two queues, as Hadar compares with it (section IV of its paper): no job is promoted, and GPU types are all alike."""

YARN: Final = FirstInFirstOut(name="yarn-cs")
"""YARN's capacity scheduler with one queue: no job is preempted, and none may delay the first that waits."""

ORDER: Final = "policy.order"
LAS_QUEUES: Final = "policy.las_queues"
UTILITY: Final = "policy.utility"
EVENNESS: Final = "policy.evenness"
DEFRAGMENT: Final = "policy.defragment"
PARTS: Final = "policy.parts"
TRY_PAIRS: Final = "policy.try_pairs"
IDLE_LAST: Final = "policy.idle_last"
TICKETS: Final = "tickets."
"""The settings of this section."""
NAMED_USERS: Final = "metrics.users"

ANY_ORDER: Final = (ORDER, IDLE_LAST, DEFRAGMENT, PARTS)
OWN_ORDER: Final = (IDLE_LAST, DEFRAGMENT, PARTS)
"""The settings of policies with an order of their own."""
BY_UTILITY: Final = (UTILITY, *OWN_ORDER)


@dataclass(frozen=True, slots=True)
class Choices:
    """What the settings choose for a policy: an order, and finish steps, which come before its own; or last, where the
    policy weighs evictions, since what they move is not to be weighed; the name of what Hadar maximises; whether pairs
    are tried that nobody measured; and how much more the bids of users count who are behind their share."""

    order: Order
    first: tuple[FinishStep, ...] = ()
    utility: str = DEFAULT_UTILITY
    try_pairs: bool = False
    evenness: float = DEFAULT_EVENNESS


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy: a sentence for people, how it is made, and what may be set with it.

    `settings` are the names of settings that it reads, or the beginnings of such names. `shards`: it schedules jobs
    with parts of GPUs (`gres/shard`) and jobs without GPUs also without `policy.parts`. `turns`: jobs take turns, in
    slices of time, so that each is preempted several times a day. `pairs`: two jobs may share a GPU. `migrates`: it is
    for little where no running job may change to the GPU type that it is due. `purpose`: for whom it is. `compares`:
    it is there to compare with, a published baseline or what Slurm does by itself, and no site should run it.
    """

    summary: str
    make: Callable[[Choices], Policy]
    settings: tuple[str, ...] = ANY_ORDER
    shards: bool = False
    turns: bool = False
    pairs: bool = False
    migrates: bool = False
    purpose: str = ""
    compares: bool = False

    @property
    def takes_order(self) -> bool:
        """Whether the settings choose its order; else it has one of its own."""
        return ORDER in self.settings

    def reads(self, setting: str) -> bool:
        """Whether this setting, one that only some policies read, means anything to it."""
        return setting.startswith(self.settings) if self.settings else False


# Modules of one policy alone are imported when it is chosen: a round under another one starts faster without them.


def _shared(name: str, sizing: Sizing, chosen: Choices) -> Policy:
    """A policy whose jobs are in the chosen order, with the stages that most share."""
    return Pipeline(name, chosen.order, sizing, CONSOLIDATED, (*chosen.first, *FINISH_STEPS))


def _tesserae(name: str, chosen: Choices) -> Policy:
    from slurmsched.policies.tesserae.migration import rename_nodes  # noqa: PLC0415

    return Pipeline(name, chosen.order, Proportional(), CONSOLIDATED, (*chosen.first, *FINISH_STEPS, rename_nodes))


def _tesserae_packed(chosen: Choices) -> Policy:
    from slurmsched.policies.place.scores import LEAST_FRAGMENTS  # noqa: PLC0415
    from slurmsched.policies.tesserae.own_gpu import AllocateOwnGpu, PreemptForOwnGpu  # noqa: PLC0415
    from slurmsched.policies.tesserae.share_gpu import ShareGpus  # noqa: PLC0415

    return Pipeline(
        "tesserae-packed",
        chosen.order,
        AsRequested(shares_memory=False),
        LEAST_FRAGMENTS,
        (ShareGpus(try_unmeasured=chosen.try_pairs),),
        (AllocateOwnGpu, PreemptForOwnGpu),
    )


def _fgd(chosen: Choices) -> Policy:
    from slurmsched.policies.place.scores import LEAST_FRAGMENTS  # noqa: PLC0415

    return Pipeline(
        "fgd", chosen.order, AsRequested(shares_memory=False), LEAST_FRAGMENTS, chosen.first, (AllocateFree,)
    )


def _yarn(chosen: Choices) -> Policy:
    """Containers do not distinguish GPU types: a gang has GPUs of several where no type has enough free."""

    def any_types(situation: Situation) -> Entitlement:
        types = frozenset(gpu.type for node in situation.snapshot.nodes for gpu in node.gpus)
        gangs = (job.id for job in situation.jobs if not why_single_type(job.original_request))
        return Entitlement(gpu_types=dict.fromkeys(gangs, types), mixes_types=True)

    steps = (*chosen.first, *FINISH_STEPS)
    return Pipeline("yarn-cs", YARN, AsRequested(), FIRST_FIT, steps, entitle=any_types)


def _gavel(chosen: Choices) -> Policy:
    from slurmsched.policies.gavel.policy import gavel_entitlement  # noqa: PLC0415

    steps = (*chosen.first, migrate_to_due_type, *FINISH_STEPS)
    return Pipeline("gavel", None, Proportional(), CONSOLIDATED, steps, entitle=gavel_entitlement)


def _hadar(chosen: Choices) -> Policy:
    from slurmsched.policies.hadar.policy import HadarPrices  # noqa: PLC0415
    from slurmsched.policies.hadar.problem import utility_named  # noqa: PLC0415

    prices = HadarPrices(utility_named(chosen.utility))
    steps, last = (migrate_to_due_type, exchange_types, *FINISH_STEPS), _with_spare(chosen.first)
    return Pipeline("hadar", None, Proportional(), CONSOLIDATED, steps, entitle=prices, last_steps=last)


def _hadare(chosen: Choices) -> Policy:
    from slurmsched.policies.hadar.problem import utility_named  # noqa: PLC0415
    from slurmsched.policies.hadare.policy import HadarEPrices, dispatch_steps, spread_copies  # noqa: PLC0415

    steps = (migrate_to_due_type, exchange_types, spread_copies, *FINISH_STEPS)
    last = (*_with_spare(chosen.first), dispatch_steps)
    prices = HadarEPrices(utility_named(chosen.utility))
    return Pipeline("hadare", None, Proportional(), CONSOLIDATED, steps, entitle=prices, last_steps=last)


def _unified(chosen: Choices) -> Policy:
    from slurmsched.policies.parts import HighestBid, preempt_parts  # noqa: PLC0415
    from slurmsched.policies.place.worth import UNIFIED_PLACEMENT  # noqa: PLC0415
    from slurmsched.policies.unified import UnifiedMarket, make_room_for_promised  # noqa: PLC0415

    steps, market = (exchange_types, start_where_fastest, *FINISH_STEPS), UnifiedMarket(chosen.evenness)
    admit = tuple([AllocateFastestPart if step is AllocateFree else step for step in ADMISSION_STEPS])
    moves = move_where_fastest, migrate_parts_of_gpus, try_faster_idle_types
    unseen = start_on_other_type, preempt_parts, make_room_for_promised, *moves  # what the market does not see
    last = _with_spare((*chosen.first, *unseen))
    return Pipeline(
        "unified", None, Tune(), UNIFIED_PLACEMENT, steps, admit, market, last_steps=last, parts_order=HighestBid()
    )


def _gandiva_fair(chosen: Choices) -> Policy:
    from slurmsched.policies.gandiva_fair.policy import GandivaTickets  # noqa: PLC0415
    from slurmsched.policies.gandiva_fair.stride import TIGHTEST_BY_GPUS, FillIdle, SplitStride  # noqa: PLC0415

    steps, tickets = (SplitStride, FillIdle), GandivaTickets()
    finish = (*chosen.first, migrate_to_due_type)
    return Pipeline("gandiva-fair", None, Proportional(), TIGHTEST_BY_GPUS, finish, steps, entitle=tickets)


POLICIES: Final[Mapping[str, PolicyRow]] = {
    "synergy": PolicyRow(
        "CPUs and memory by each model's sensitivity (Synergy)",
        lambda chosen: _shared("synergy", Tune(), chosen),
        purpose="jobs that differ in how many CPUs they need, in an order that you choose",
    ),
    "synergy-greedy": PolicyRow(
        "the CPUs and memory that make a job fastest, or it waits (Synergy's greedy baseline)",
        lambda chosen: _shared("synergy-greedy", Greedy(), chosen),
        compares=True,
    ),
    "proportional": PolicyRow(
        "CPUs and memory in proportion to GPUs",
        lambda chosen: _shared("proportional", Proportional(), chosen),
        purpose="the orders and preemption of synergy, with each GPU bringing its share of CPUs",
    ),
    "drf": PolicyRow(
        "least dominant share first (DRF)",
        lambda chosen: _shared("drf", Greedy(), replace(chosen, order=DominantResourceFairness())),
        settings=OWN_ORDER,
        compares=True,
    ),
    "tetris": PolicyRow(
        "best alignment with what is free first, on the node of the best alignment (Tetris)",
        lambda chosen: Pipeline("tetris", TetrisAlignment(), Greedy(), ALIGNED, (*chosen.first, *FINISH_STEPS)),
        settings=OWN_ORDER,
        compares=True,
    ),
    "tesserae": PolicyRow(
        "proportional shares, nodes renamed so that the fewest jobs move (Tesserae)",
        lambda chosen: _tesserae("tesserae", chosen),
        purpose="many gangs whose restarts cost much",
    ),
    "tesserae-ftf": PolicyRow(
        "the same by finish-time fairness",
        lambda chosen: _tesserae("tesserae-ftf", replace(chosen, order=FinishTimeFairness())),
        settings=OWN_ORDER,
        purpose="the same, where no job shall be much later than with its part of the cluster",
    ),
    "tesserae-packed": PolicyRow(
        "two jobs on halves of one GPU by matching (Tesserae)",
        _tesserae_packed,
        (ORDER, IDLE_LAST, PARTS, TRY_PAIRS),
        shards=True,
        pairs=True,
        purpose="small jobs that leave GPUs half idle, with CUDA MPS and measured pairs",
    ),  # jobs that move would take the halves that are matched
    "fgd": PolicyRow(
        "each job where the fewest idle GPUs become unusable (FGD)",
        _fgd,
        settings=(ORDER, DEFRAGMENT, PARTS),  # it preempts nobody
        shards=True,
        purpose="jobs of many sizes down to parts of a GPU, none of which is preempted",
    ),
    "tiresias": PolicyRow(
        "attained service in two queues (Tiresias)",
        lambda chosen: _shared("tiresias", Proportional(), replace(chosen, order=TIRESIAS)),
        settings=OWN_ORDER,
        compares=True,
    ),
    "yarn-cs": PolicyRow(
        "first come, first served, as requested (YARN's capacity scheduler)",
        _yarn,
        settings=OWN_ORDER,
        compares=True,
    ),
    "gavel": PolicyRow(
        "least attained service, aware of GPU types (Gavel)",
        _gavel,
        settings=OWN_ORDER,
        migrates=True,
        compares=True,
    ),
    "hadar": PolicyRow(
        "gangs over several GPU types by prices (Hadar)",
        _hadar,
        settings=BY_UTILITY,
        migrates=True,
        purpose="several GPU types, and jobs that may run on any of them",
    ),
    "hadare": PolicyRow(
        "the same, with copies of a forked job on every idle node (HadarE)",
        _hadare,
        settings=BY_UTILITY,
        migrates=True,
        purpose="the same, and models that can be trained as copies on idle nodes",
    ),
    "gandiva-fair": PolicyRow(
        "shares by tickets, split stride, trades between GPU types (Gandiva_fair)",
        _gandiva_fair,
        settings=(TICKETS, NAMED_USERS, *OWN_ORDER),
        turns=True,
        purpose="users or accounts with agreed parts of the GPUs",
    ),
    "unified": PolicyRow(
        "GPU types by prices, CPUs and memory by sensitivity, the shortest and those behind their share first",
        _unified,
        settings=(TICKETS, NAMED_USERS, EVENNESS, *OWN_ORDER),
        purpose="several GPU types or users, and jobs that differ in how many CPUs they need; the default",
    ),
    "slurm": PolicyRow(
        "Slurm's priority, as requested, EASY backfill",
        lambda _: Pipeline(
            "slurm", SlurmPriority(), AsRequested(), FIRST_FIT, (), (AllocateFree,), keeps_promise=False
        ),
        compares=True,
        settings=(PARTS,),  # it preempts nobody, and jobs that move would not keep the reservation of backfill
    ),
}
"""Every policy by name."""


def has_tickets(name: str) -> bool:
    """Whether users have shares by tickets under this policy; False of an unknown one."""
    return name in POLICIES and POLICIES[name].reads(TICKETS)


def policy(
    name: str,
    order: str = "las",
    las_queues: Sequence[float] = DEFAULT_LAS_QUEUES,
    *,
    defragment: bool = False,
    utility: str = DEFAULT_UTILITY,
    try_pairs: bool = False,
    evenness: float = DEFAULT_EVENNESS,
) -> Policy:
    """The policy of this name, with jobs in this order where it takes one. With `defragment` it moves running jobs
    where that lets a waiting one start.

    `las_queues` are in GPU-seconds attained; none make plain las. Raises PolicyError for an unknown name or utility,
    or bounds that do not ascend.
    """
    if name not in POLICIES:
        raise PolicyError(_unknown(name))
    if order not in ORDERS:
        raise PolicyError(f"there is no order {order!r}: known are {', '.join(ORDERS)}")
    if any(later <= earlier for earlier, later in pairwise((0.0, *las_queues))):
        raise PolicyError(f"las_queues must ascend from above 0, not {', '.join(f'{bound:g}' for bound in las_queues)}")
    first = _defragmentation() if defragment else ()
    return POLICIES[name].make(Choices(ORDERS[order](las_queues), first, utility, try_pairs, evenness))


def configured_policy(settings: PolicySettings) -> Policy:
    """The policy that a site has set. Raises PolicyError as `policy` does."""
    return policy(
        settings.system,
        settings.order,
        settings.las_queues,
        defragment=settings.defragment,
        utility=settings.utility,
        try_pairs=settings.try_pairs,
        evenness=settings.evenness,
    )


def _with_spare(steps: tuple[FinishStep, ...]) -> tuple[FinishStep, ...]:
    """The steps, and then what is spare for whom they placed with the least that a job accepts."""
    return (*steps, distribute_spare) if steps else ()


def _defragmentation() -> tuple[FinishStep, ...]:
    from slurmsched.policies.finish.defragment import defragment  # noqa: PLC0415

    return (defragment,)


def order_read(name: str, order: str) -> str:
    """This order if the policy reads it; empty for a policy with an order of its own, and for an unknown one."""
    return order if name in POLICIES and POLICIES[name].takes_order else ""


def schedules_shards(name: str, parts: bool = False) -> bool:
    """Whether this policy also schedules parts of GPUs and jobs without GPUs, given `policy.parts`; False of an unknown
    one."""
    return name in POLICIES and (POLICIES[name].shards or (parts and POLICIES[name].reads(PARTS)))


def ranks_idle_last(settings: PolicySettings) -> bool:
    """Whether the site's policy ranks jobs with idle GPUs behind all others."""
    return settings.idle_last and settings.system in POLICIES and POLICIES[settings.system].reads(IDLE_LAST)


def takes_turns(name: str) -> bool:
    """Whether jobs take turns in time slices under this policy; False of an unknown one."""
    return name in POLICIES and POLICIES[name].turns


def changes_types(name: str) -> bool:
    """Whether running jobs change to the GPU type that they are due under this policy; False of an unknown one."""
    return name in POLICIES and POLICIES[name].migrates


def pairs_jobs(name: str) -> bool:
    """Whether two jobs may share a GPU under this policy; False of an unknown one."""
    return name in POLICIES and POLICIES[name].pairs


def comparison_remark(name: str) -> str:
    """A sentence on a policy that is there to compare with; empty of any other."""
    if name not in POLICIES or not POLICIES[name].compares:
        return ""
    others = ", ".join(other for other, row in POLICIES.items() if not row.compares)
    return f"policy {name} is there to compare with, not to be run at a site: those are {others}"


def settings_problems(name: str, order: str, changed: Collection[str]) -> Iterator[str]:
    """What is wrong with the settings of a policy, each in a sentence that says what to do.

    `changed` are the names of the settings that differ from their defaults (`policy.order`). One that the policy does
    not read is a problem: its owner expects it to do something.
    """
    if name not in POLICIES:
        yield f"policy.system: {_unknown(name)}"
        return
    row = POLICIES[name]
    for setting in sorted(changed):
        if setting.startswith(
            (ORDER, UTILITY, EVENNESS, DEFRAGMENT, PARTS, TRY_PAIRS, IDLE_LAST, TICKETS, NAMED_USERS)
        ) and not row.reads(setting):
            others = ", ".join(other for other, its in POLICIES.items() if its.reads(setting))
            yield f"{setting} means nothing to policy {name}: remove it, or choose one that reads it ({others})"
    if LAS_QUEUES in changed and not (row.takes_order and order == "las"):
        yield f"{LAS_QUEUES} means nothing without order las: remove it, or set policy.order to las"


def _unknown(name: str) -> str:
    near = get_close_matches(name, POLICIES, n=1)
    meant = f"did you mean {near[0]}?" if near else f"known are {', '.join(POLICIES)}"
    return f"there is no policy {name!r}: {meant}"
