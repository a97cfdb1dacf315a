"""Filters the pools a job is eligible for, whether free or not: by partition, reservation, GPU type, `--constraint`.

Tells that nodes are reserved or out of service, where that is why a job cannot start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from math import inf
from typing import Final

import numpy as np

from slurmsched.arrays import Mask
from slurmsched.model import Job, NodeState, Reason, ReasonCode, Request, Reservation, Resources, Snapshot
from slurmsched.model.reasons import time_of_day
from slurmsched.policies.cluster.resources import Pools
from slurmsched.policies.errors import PolicyError

FeatureConstraint = Callable[[frozenset[str]], bool]
"""Whether a node with these features matches."""

_TOKEN: Final = re.compile(r"\s*([\w.+:-]+|[&,|()\[\]])")
_MAX_CHARACTERS: Final = 1000
_MAX_TOKENS: Final = 200
"""Names, operators and parentheses. Each may deepen the recursion of the parser, and of the constraint, by one."""


def parse_constraint(text: str) -> tuple[FeatureConstraint, ...]:
    """Parse `a&b`, `a|b`, `(a|b)&c` and `[a|(b&c)]`: the alternatives, of which all nodes of a job match the same one.

    There is one alternative without brackets, which the empty text makes of every node; with them there is one for each
    `|` outside of parentheses. A comma is an `&`. Slurm gives neither operator precedence (seen on 22.05 and 26.05):
    `a|b&c` is `(a|b)&c`. Raises PolicyError for any other text, for example counts (`[a*2&b*1]`), which are Slurm's
    to place.
    """
    tokens = _tokens(text)
    if not tokens:
        return (_accept_all,)
    bracketed = tokens[-1] == "["
    alternatives = _parse_alternatives(tokens) if bracketed else (_parse_terms(tokens),)
    if tokens:
        raise _syntax_error(text)
    return alternatives


def _tokens(text: str) -> list[str]:
    """Return the tokens in reverse, so that `pop` takes the next."""
    tokens, at = list[str](), 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or len(text) > _MAX_CHARACTERS:
            raise _syntax_error(text)
        tokens.append(match[1])
        at = match.end()
    if len(tokens) > _MAX_TOKENS:
        raise _syntax_error(text)
    return tokens[::-1]


def _parse_alternatives(tokens: list[str]) -> tuple[FeatureConstraint, ...]:
    """Parse operands in brackets, with `|` between them: Slurm counts nodes for an `&` there."""
    tokens.pop()
    alternatives = [_parse_operand(tokens)]
    while tokens and tokens[-1] == "|":
        tokens.pop()
        alternatives.append(_parse_operand(tokens))
    if not tokens or tokens.pop() != "]":
        raise _syntax_error("[")
    return tuple(alternatives)


def _parse_terms(tokens: list[str]) -> FeatureConstraint:
    """Parse operands from left to right."""
    left = _parse_operand(tokens)
    while tokens and tokens[-1] in _OPERATORS:
        join = _OPERATORS[tokens.pop()]
        left = join(left, _parse_operand(tokens))
    return left


def _parse_operand(tokens: list[str]) -> FeatureConstraint:
    symbol = tokens.pop() if tokens else ""
    if symbol == "(":
        inner = _parse_terms(tokens)
        if not tokens or tokens.pop() != ")":
            raise _syntax_error("(")
        return inner
    if not symbol or symbol in "&,|)[]":
        raise _syntax_error(symbol)
    return lambda features: symbol in features


def _or(left: FeatureConstraint, right: FeatureConstraint) -> FeatureConstraint:
    return lambda features: left(features) or right(features)


def _and(left: FeatureConstraint, right: FeatureConstraint) -> FeatureConstraint:
    return lambda features: left(features) and right(features)


_OPERATORS: Final[Mapping[str, Callable[[FeatureConstraint, FeatureConstraint], FeatureConstraint]]] = {
    "|": _or,
    "&": _and,
    ",": _and,
}


def _accept_all(features: frozenset[str]) -> bool:  # noqa: ARG001 as every constraint is called
    return True


def _syntax_error(text: str) -> PolicyError:
    return PolicyError(f"constraint {text!r} is not of the form a&b, a|b, (a|b)&c or [a|b]")


def closed_nodes(job: Job, snapshot: Snapshot, start: float) -> frozenset[str]:
    """Return the nodes with a reservation to come that begins before the job would end if it began at `start` (unix
    seconds): Slurm starts there only jobs of that reservation. A job without a time limit runs into each."""
    if job.reservation or not snapshot.reservations:
        return frozenset()
    end = inf if job.time_limit is None else start + job.time_limit
    coming = (r for r in snapshot.reservations if snapshot.time < r.start < end and start < r.end)
    return frozenset().union(*(reservation.nodes for reservation in coming))


def reserved_nodes(reservation: str, snapshot: Snapshot) -> frozenset[str]:
    """Return the nodes on which jobs of this reservation may start: those that are up, while it is active, and that no
    other one has in maintenance."""
    active = Reservation.active(snapshot.reservations, snapshot.time)
    own = frozenset().union(*(r.nodes for r in active if r.name == reservation))
    own -= frozenset().union(*(r.nodes for r in active if r.maintenance and r.name != reservation))
    known = snapshot.nodes_by_name
    return frozenset(name for name in own if name in known and known[name].state is NodeState.UP)


def may_begin_again(job: Job, snapshot: Snapshot) -> bool:
    """Return whether the job may start anew on the nodes where it runs: none is reserved before it would end then."""
    return closed_nodes(job, snapshot, snapshot.time).isdisjoint(job.nodes)


class Eligibility:
    """Which pools each job is eligible for. `open_nodes` are, by partition, the nodes on which jobs may start; unless
    `ever`, a node that is reserved before the job would end is none of them."""

    def __init__(
        self, pools: Pools, snapshot: Snapshot, open_nodes: Mapping[str, frozenset[str]], *, ever: bool = False
    ) -> None:
        self._ever = ever
        self._pools = pools
        self._snapshot = snapshot
        self._open_nodes = open_nodes
        self._masks: dict[tuple[str, str], Mask] = {}
        self._pool_masks: dict[tuple[object, ...], tuple[Mask, ...]] = {}
        self._requested: dict[tuple[object, ...], tuple[Mask, ...]] = {}
        self._node_gpus: dict[tuple[object, ...], tuple[int, ...]] = {}

    def pool_masks(self, job: Job) -> tuple[Mask, ...]:
        """Return a mask of pools for each partition of the job and each alternative of its constraint: it runs in one
        of them, never across two. Jobs that ask alike for this share the object.

        Empty where the constraint cannot be planned: such a job is left to Slurm.
        """
        closed = self.closed_nodes(job)
        key = (*_asked_of_pools(job.original_request), job.partitions, job.reservation, closed)
        if key not in self._pool_masks:
            self._pool_masks[key] = self._find_pool_masks(job, closed)
        return self._pool_masks[key]

    def _find_pool_masks(self, job: Job, closed: frozenset[str]) -> tuple[Mask, ...]:
        try:
            wanted = self._requested_masks(job.original_request)
        except PolicyError:
            return ()
        masks = [
            mask & self._partition_mask(partition, job.reservation) for partition in job.partitions for mask in wanted
        ]
        if closed:
            masks = [mask & ~self._pools.on_nodes(closed) for mask in masks]
        return tuple({mask.tobytes(): mask for mask in masks}.values())

    def closed_nodes(self, job: Job) -> frozenset[str]:
        """Return the nodes that are reserved before the job would end if it began now."""
        if self._ever or not self._snapshot.reservations:
            return frozenset()
        return closed_nodes(job, self._snapshot, self._snapshot.time)

    def node_gpus(self, job: Job) -> tuple[int, ...]:
        """Return the GPUs of one type of each node that holds a task of the job if all are up and empty.

        These are the nodes of the partition and the alternative of its constraint that together have most, of those
        with all nodes that it names if there are any: first these, then those with most.
        """
        key = (job.original_request, job.partitions, job.hints.memory_tunable)
        if key not in self._node_gpus:
            self._node_gpus[key] = self._most_node_gpus(job)
        return self._node_gpus[key]

    def _most_node_gpus(self, job: Job) -> tuple[int, ...]:
        try:
            wanted, pools = self._requested_masks(job.original_request), self._pools
        except PolicyError:
            return ()
        request, needed = job.original_request, self._needed_on_node(job)
        usable = pools.cpu_units(request.threads_per_core).within(pools.cpus[pools.node_of])
        cpus = {pools.node(pool).name: int(usable[pool]) for pool in range(len(pools))}
        found = list[tuple[bool, tuple[int, ...]]]()
        large = [n for n in pools.nodes if needed.cpus <= cpus[n.name] and needed.memory <= n.total.memory]
        for partition in job.partitions:
            inside = {node.name for node in large if partition in node.partitions}
            for mask in wanted:
                gpus = dict[str, int]()
                for pool in (pool for pool in np.flatnonzero(mask).tolist() if pools.node(pool).name in inside):
                    name, held = pools.node(pool).name, int(pools.device_count[pool])
                    if request.tasks > request.nodes:  # their CPUs go with the GPUs
                        held = min(held, cpus[name] // max(needed.cpus, 1) * request.gpus // request.tasks)
                    gpus[name] = max(gpus.get(name, 0), held)
                order = sorted(gpus, key=lambda name: (name not in request.pinned, -gpus[name]))
                found.append((request.pinned <= gpus.keys(), tuple(gpus[name] for name in order)))
        return max(found, key=lambda of: (of[0], sum(of[1])), default=(False, ()))[1]

    @staticmethod
    def _needed_on_node(job: Job) -> Resources:
        """Return what a node must have for one task: its CPUs, and the memory that is not tuned."""
        request = job.original_request
        return Resources(0, request.cpus // max(request.tasks, 1), 0 if job.hints.memory_tunable else request.memory)

    def _requested_masks(self, request: Request) -> tuple[Mask, ...]:
        """Raises PolicyError for a constraint that cannot be planned."""
        key = _asked_of_pools(request)
        if key not in self._requested:
            pools = self._pools
            may_use = np.array(
                [
                    request.gpu_type in (None, gpu_type) and pools.node(pool).name not in request.excluded
                    for pool, gpu_type in enumerate(pools.gpu_types)
                ],
                dtype=np.bool_,
            ) & self._with_devices(request, _shards_on_node(request))
            self._requested[key] = tuple(
                may_use & np.array([accepts(pools.node(pool).features) for pool in range(len(pools))], dtype=np.bool_)
                for accepts in parse_constraint(request.features)
            )
        return self._requested[key]

    def _with_devices(self, request: Request, shards: int) -> Mask:
        """Return the pools that have such GPUs. Slurm chooses the GPU of shards without a type, so that they need nodes
        with one GPU type."""
        pools = self._pools
        if shards:
            return (pools.shards >= shards) & (pools.on_single_type_node | (request.gpu_type is not None))
        return pools.device_count > 0 if request.gpus else pools.first_on_node

    def _partition_mask(self, partition: str, reservation: str) -> Mask:
        key = (partition, reservation)
        if key not in self._masks:
            nodes = self._open_nodes.get(partition, frozenset())
            if reservation:  # none of its nodes is open, since only its jobs may use them
                inside = frozenset(node.name for node in self._snapshot.nodes if partition in node.partitions)
                nodes = reserved_nodes(reservation, self._snapshot) & inside
            pools = self._pools
            self._masks[key] = np.array([pools.node(pool).name in nodes for pool in range(len(pools))], dtype=np.bool_)
        return self._masks[key]


def _asked_of_pools(request: Request) -> tuple[str | None, str, frozenset[str], int, bool]:
    """Return what the pools that it may use depend on: GPU type, constraint, excluded nodes, shards on a node, and
    whether it has GPUs."""
    return request.gpu_type, request.features, request.excluded, _shards_on_node(request), request.gpus > 0


def _shards_on_node(request: Request) -> int:
    return -(-request.shards // max(request.nodes, 1))


_MOST_NAMED: Final = 3
"""Most nodes that are named."""


class ClosedNodes:
    """The answers for one snapshot, computed once for jobs that ask alike: where a whole cloud powers up, thousands of
    jobs wait for thousands of nodes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[Hashable, Reason | None] = {}

    def reason(self, job: Job, *, fits: bool) -> Reason | None:
        """Return that nodes are reserved or out of service, if that is why a job that fits the empty cluster may start
        on no node now (not `fits`), or if it names a node that is."""
        request = job.original_request
        if fits and not request.pinned:
            return None
        closed = closed_nodes(job, self._snapshot, self._snapshot.time)
        key = (fits, request.pinned, request.gpu_type, frozenset(job.partitions), closed)
        if key not in self._known:
            reserved = None if fits else self._reserved(closed)
            self._known[key] = reserved or self._out_of_service(job, all_nodes=not (fits or request.pinned))
        return self._known[key]

    def _reserved(self, closed: frozenset[str]) -> Reason | None:
        """That there are reservations, if any is active or begins on one of the `closed` nodes before the job ends."""
        now = self._snapshot.time
        names = sorted(reservation.name for reservation in Reservation.active(self._snapshot.reservations, now))
        coming = sorted((r.start, r.name) for r in self._snapshot.reservations if r.start > now and r.nodes & closed)
        names += [f"{name} from {time_of_day(start, now)}" for start, name in coming]
        return Reason(ReasonCode.RESERVED, {"reservation": ", ".join(names)}) if names else None

    def _out_of_service(self, job: Job, *, all_nodes: bool) -> Reason | None:
        """That nodes are not up: of those that the job names, or of all in its partitions."""
        request, snapshot = job.original_request, self._snapshot
        known = snapshot.nodes_by_name
        nodes = snapshot.nodes if all_nodes else (known[name] for name in request.pinned if name in known)
        out = sorted(
            f"{node.name} is {node.state.value}"
            for node in nodes
            if node.state is not NodeState.UP
            and (not all_nodes or not node.partitions.isdisjoint(job.partitions))
            and request.gpu_type in (None, *node.gpu_types)
        )
        more = f" and {len(out) - _MOST_NAMED} more" if len(out) > _MOST_NAMED else ""
        return Reason(ReasonCode.NODES_CLOSED, {"nodes": ", ".join(out[:_MOST_NAMED]) + more}) if out else None
