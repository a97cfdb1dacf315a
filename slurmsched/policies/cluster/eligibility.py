"""Filters the pools a job is eligible for, whether free or not: by partition, reservation, GPU type, `--constraint`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from slurmsched.arrays import Mask
from slurmsched.model import Job, NodeState, Request, Reservation, Snapshot
from slurmsched.policies.cluster.resources import Pools
from slurmsched.policies.errors import PolicyError

FeatureConstraint = Callable[[frozenset[str]], bool]
"""Whether a node with these features matches."""

_TOKEN: Final = re.compile(r"\s*([\w.+:-]+|[&,|()])")
_MAX_CHARACTERS: Final = 1000
_MAX_TOKENS: Final = 200
"""Names, operators and parentheses. Each may deepen the recursion of the parser, and of the constraint, by one."""


def parse_constraint(text: str) -> FeatureConstraint:
    """Parse `a&b`, `a|b`, `(a|b)&c`; a comma is an `&`. The empty text accepts every node.

    Raises PolicyError for any other text, for example counts (`a*2`) and groups of alternatives (`[a|b]`).
    """
    tokens = _tokens(text)
    accepts = _parse_or(tokens) if tokens else _accept_all
    if tokens:
        raise _syntax_error(text)
    return accepts


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


def _parse_or(tokens: list[str]) -> FeatureConstraint:
    left = _parse_and(tokens)
    while tokens and tokens[-1] == "|":
        tokens.pop()
        left = _or(left, _parse_and(tokens))
    return left


def _parse_and(tokens: list[str]) -> FeatureConstraint:
    left = _parse_operand(tokens)
    while tokens and tokens[-1] in ("&", ","):
        tokens.pop()
        left = _and(left, _parse_operand(tokens))
    return left


def _parse_operand(tokens: list[str]) -> FeatureConstraint:
    symbol = tokens.pop() if tokens else ""
    if symbol == "(":
        inner = _parse_or(tokens)
        if not tokens or tokens.pop() != ")":
            raise _syntax_error("(")
        return inner
    if not symbol or symbol in "&,|)":
        raise _syntax_error(symbol)
    return lambda features: symbol in features


def _or(left: FeatureConstraint, right: FeatureConstraint) -> FeatureConstraint:
    return lambda features: left(features) or right(features)


def _and(left: FeatureConstraint, right: FeatureConstraint) -> FeatureConstraint:
    return lambda features: left(features) and right(features)


def _accept_all(features: frozenset[str]) -> bool:  # noqa: ARG001 as every constraint is called
    return True


def _syntax_error(text: str) -> PolicyError:
    return PolicyError(f"constraint {text!r} is not of the form a&b, a|b or (a|b)&c")


class Eligibility:
    """Which pools each job is eligible for. `open_nodes` are, by partition, the nodes on which jobs may start."""

    def __init__(self, pools: Pools, snapshot: Snapshot, open_nodes: Mapping[str, frozenset[str]]) -> None:
        self._pools = pools
        self._snapshot = snapshot
        self._open_nodes = open_nodes
        self._masks: dict[tuple[object, ...], Mask] = {}

    def pool_masks(self, job: Job) -> tuple[Mask, ...]:
        """Return a mask of pools for each partition of the job: it runs in one of them, never across two.

        Empty where the constraint is invalid: then the job waits, with the reason NEVER_FITS.
        """
        try:
            wanted = self._requested_mask(job.original_request)
        except PolicyError:
            return ()
        masks = [wanted & self._partition_mask(partition, job.reservation) for partition in job.partitions]
        return tuple({mask.tobytes(): mask for mask in masks}.values())

    def _requested_mask(self, request: Request) -> Mask:
        shards = -(-request.shards // max(request.nodes, 1))
        key = (request.gpu_type, request.features, request.excluded, shards, request.gpus > 0)
        if key not in self._masks:
            accepts = parse_constraint(request.features)
            pools = self._pools
            matching = [
                request.gpu_type in (None, gpu_type)
                and pools.node(pool).name not in request.excluded
                and accepts(pools.node(pool).features)
                for pool, gpu_type in enumerate(pools.gpu_types)
            ]
            self._masks[key] = np.array(matching, dtype=np.bool_) & self._with_devices(request, shards)
        return self._masks[key]

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
            open_nodes = self._open_nodes.get(partition, frozenset())
            nodes = self._reserved_nodes(partition, reservation) if reservation else open_nodes
            pools = self._pools
            self._masks[key] = np.array([pools.node(pool).name in nodes for pool in range(len(pools))], dtype=np.bool_)
        return self._masks[key]

    def _reserved_nodes(self, partition: str, reservation: str) -> frozenset[str]:
        """Return the nodes of an active reservation that are up. `open_nodes` has none: only its jobs may use them."""
        active = Reservation.active(self._snapshot.reservations, self._snapshot.time)
        named = frozenset().union(*(r.nodes for r in active if r.name == reservation))
        up = {n.name for n in self._snapshot.nodes if n.state is NodeState.UP and partition in n.partitions}
        return named & up
