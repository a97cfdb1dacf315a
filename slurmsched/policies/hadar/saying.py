"""Words for gangs on several GPU types, and for those that have to have one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from slurmsched.model import Code, Reason, Request, Target
from slurmsched.policies.hadar.questions import why_unmixed

__all__ = ["listed", "said", "waits"]


def listed(kinds: Mapping[str, int]) -> str:
    """GPUs of each type: `2 p100 + 2 v100`."""
    return " + ".join(f"{gpus} {kind}" for kind, gpus in sorted(kinds.items()))


def said(target: Target) -> Target:
    """With a word on its types where there are several; people are shown the first word."""
    kinds = Counter[str]()
    for share in target.shares:
        kinds[share.gpu_type] += share.resources.gpus
    if len(kinds) == 1 or target.reasons[0].code is Code.KEEPS_LEASE:
        return target
    mixed, first = Reason(Code.MIXED, {"mix": listed(kinds)}), target.reasons[0]
    says_little = first.code in (Code.FIRST_IN_ORDER, Code.FILLS_IN)
    leading = (mixed, first) if says_little else (first, mixed)
    return replace(target, reasons=(*leading, *target.reasons[1:]))


def waits(why: Reason, request: Request, idle: int) -> Reason:
    """That it cannot be mixed, where the GPUs that are idle would be enough if it could."""
    unmixed = why_unmixed(request)
    if why.code not in (Code.NO_ROOM, Code.BEHIND) or idle < request.gpus or not unmixed or request.gpus == 1:
        return why
    return Reason(Code.ONE_TYPE, {"gpus": request.gpus, "why": unmixed})
