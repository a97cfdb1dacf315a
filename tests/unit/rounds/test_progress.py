"""What of a plan may be done now, and when it is through."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmsched.model import (
    Hold,
    Job,
    JobSpec,
    JobState,
    NodeState,
    Operation,
    Plan,
    Reason,
    ReasonCode,
    Request,
    Result,
    SetAsideJob,
    Snapshot,
    Verb,
)
from slurmsched.rounds.progress import (
    FinishedOperation,
    PlanProgress,
    is_settled,
    open_starts,
    patience,
    ready_operations,
    undo_overdue_starts,
)
from slurmsched.rounds.specs import spec_of
from tests.builders import job, node, share, snapshot

NOW = 10_000.0
WHY = Reason(ReasonCode.START)
LEASE = JobSpec(("n1",), 1, 8, 8, None, 24, 100, 1)
STOOD = JobSpec((), 1, 8, None, None, 8, 0, 1)
PLAN = Plan(
    (
        Operation(Verb.NOTIFY, "1", WHY, after="usr1"),
        Operation(Verb.REQUEUE, "1", WHY, LEASE, "requeued", lead=60),
        Operation(Verb.UPDATE, "2", WHY, STOOD, LEASE),
        Operation(Verb.RELEASE, "2", WHY, "admin", "none", gone=("1",)),
    )
)
NOTIFY, REQUEUE, RESHAPE, RELEASE = range(4)

OLD = job(1, gpus=8, cpus=24, on=[share("n1", 8, cpus=24, memory=100)])
OLD_GONE = replace(OLD, state=JobState.PENDING, allocations=(), hold=Hold.REQUEUED)
NEW = job(2, gpus=8, cpus=8, hold=Hold.ADMIN)
PINNED = Request(gpus=8, gpus_per_node=8, cpus=24, memory=100, pinned=frozenset({"n1"}))
NEW_SHAPED = replace(NEW, current_request=PINNED)
NEW_LET_GO = replace(NEW_SHAPED, hold=Hold.NONE)
NEW_RUNS = replace(NEW_LET_GO, state=JobState.RUNNING, allocations=OLD.allocations)


def cluster(*jobs: Job, up: bool = True) -> Snapshot:
    return snapshot([node(state=NodeState.UP if up else NodeState.DOWN)], jobs, NOW)


def done(*places: int, at: float = NOW, **others: Result) -> dict[int, FinishedOperation]:
    """These are done, since `at`; others, by the name of their verb, went otherwise."""
    named = {"notify": NOTIFY, "requeue": REQUEUE, "reshape": RESHAPE, "release": RELEASE}
    failed = {named[name]: FinishedOperation(result, at) for name, result in others.items()}
    return {place: FinishedOperation(Result.DONE, at) for place in places} | failed


@pytest.mark.parametrize(
    ("so_far", "seen", "now", "may_go"),
    [
        pytest.param({}, cluster(OLD, NEW), NOW, (NOTIFY, RESHAPE), id="first the signal, and the newcomer's shape"),
        pytest.param(done(NOTIFY, RESHAPE), cluster(OLD, NEW), NOW + 59, (), id="the lead is not over"),
        pytest.param(done(NOTIFY, RESHAPE), cluster(OLD, NEW), NOW + 60, (REQUEUE,), id="the lead is over"),
        pytest.param(
            done(NOTIFY, REQUEUE, RESHAPE),
            cluster(replace(OLD, state=JobState.COMPLETING), NEW),
            NOW + 70,
            (),
            id="the old job is still ending",
        ),
        pytest.param(
            done(NOTIFY, REQUEUE, RESHAPE), cluster(OLD_GONE, NEW), NOW + 70, (RELEASE,), id="the old job has left"
        ),
        pytest.param(done(RESHAPE), cluster(NEW), NOW, (RELEASE,), id="the old job ended by itself"),
        pytest.param(
            done(RESHAPE, notify=Result.OVERTAKEN),
            cluster(replace(OLD, state=JobState.COMPLETING), NEW),
            NOW,
            (),
            id="the old job is ending by itself: only its end is waited for",
        ),
        pytest.param(done(RESHAPE), cluster(OLD), NOW, (), id="the newcomer was cancelled: the old job stays"),
        pytest.param(
            {}, cluster(OLD, NEW, up=False), NOW, (RESHAPE,), id="the node died: the old job is not signalled"
        ),
        pytest.param(
            done(NOTIFY, reshape=Result.REFUSED), cluster(OLD, NEW), NOW + 60, (), id="the newcomer cannot be shaped"
        ),
        pytest.param(
            done(RESHAPE, notify=Result.REFUSED), cluster(OLD, NEW), NOW + 60, (), id="the old job could not be warned"
        ),
    ],
)
def test_what_may_be_done_now(
    so_far: dict[int, FinishedOperation], seen: Snapshot, now: float, may_go: tuple[int, ...]
) -> None:
    assert ready_operations(PLAN, so_far, seen, now) == may_go


@pytest.mark.parametrize(
    ("so_far", "seen", "through"),
    [
        pytest.param({}, cluster(OLD, NEW), False, id="nothing is done"),
        pytest.param(done(0, 1, 2, 3), cluster(OLD_GONE, NEW_LET_GO), False, id="the newcomer does not run yet"),
        pytest.param(done(0, 1, 2, 3), cluster(OLD_GONE, NEW_RUNS), True, id="the newcomer runs"),
        pytest.param(done(0, 1, 2, 3), cluster(OLD_GONE), True, id="the newcomer is gone"),
        pytest.param(done(2, notify=Result.FAILED), cluster(OLD, NEW), True, id="nothing more can be done"),
        pytest.param(done(0, 2), cluster(OLD), True, id="nobody needs it any more"),
    ],
)
def test_when_a_plan_is_through(so_far: dict[int, FinishedOperation], seen: Snapshot, through: bool) -> None:
    assert is_settled(PLAN, so_far, seen, NOW + 60) is through


def test_what_is_not_permitted_never_goes_and_neither_does_what_depends_on_it() -> None:
    barred = Plan((*PLAN.operations[:2], replace(PLAN.operations[2], permitted=False), PLAN.operations[3]))
    assert ready_operations(barred, {}, cluster(OLD, NEW), NOW) == ()
    assert is_settled(barred, {}, cluster(OLD, NEW), NOW)


def test_nobody_is_preempted_for_a_newcomer_that_its_owner_holds_meanwhile() -> None:
    by_hook = job(2, gpus=8, cpus=8, hold=Hold.USER, hint="held=hook")
    by_owner = job(2, gpus=8, cpus=8, hold=Hold.USER, hint="ckpt=usr1")
    notified = done(NOTIFY, RESHAPE)
    assert ready_operations(PLAN, notified, cluster(OLD, replace(by_hook, current_request=PINNED)), NOW + 60)
    held = cluster(OLD, replace(by_owner, current_request=PINNED))
    assert ready_operations(PLAN, notified, held, NOW + 60) == ()
    assert is_settled(PLAN, notified, held, NOW + 60)
    left = cluster(OLD_GONE, by_owner)
    assert PlanProgress(PLAN, done(NOTIFY, REQUEUE, RESHAPE), left, NOW + 70).is_hopeless(RELEASE)


def test_a_moved_job_that_runs_again_counts_as_gone_from_its_old_place() -> None:
    moved = Plan(
        (
            Operation(Verb.REQUEUE, "1", WHY, LEASE, "requeued"),
            Operation(Verb.RELEASE, "1", WHY, "requeued", "none", gone=("1",)),
            Operation(Verb.RELEASE, "2", WHY, "admin", "none", gone=("1",)),
        )
    )
    elsewhere = replace(OLD, allocations=(share("n2", 8),))
    assert ready_operations(moved, done(0), cluster(OLD, NEW), NOW) == ()
    assert ready_operations(moved, done(0), cluster(OLD_GONE, NEW), NOW) == (1, 2)
    assert ready_operations(moved, done(0, 1), snapshot([node(), node("n2")], [elsewhere, NEW], NOW), NOW) == (2,)


def undone(so_far: dict[int, FinishedOperation], seen: Snapshot, now: float) -> list[tuple[str, str, object]]:
    plan = undo_overdue_starts(PlanProgress(PLAN, so_far, seen, now), 120.0)
    return [(op.verb.value, op.subject, op.after) for op in plan.operations]


@pytest.mark.parametrize(
    ("so_far", "seen", "now"),
    [
        pytest.param(done(0, 1, 2, 3), cluster(OLD_GONE, NEW_LET_GO), NOW + 119, id="the start has some time left"),
        pytest.param(done(0, 1, 2, 3), cluster(OLD_GONE, NEW_RUNS), NOW + 999, id="it runs"),
        pytest.param(done(0, 2), cluster(OLD, NEW_SHAPED), NOW + 999, id="the lead is not over as far as we know"),
        pytest.param(
            done(0, 1, 2), cluster(replace(OLD, state=JobState.COMPLETING), NEW_SHAPED), NOW + 119, id="still ending"
        ),
    ],
)
def test_nothing_is_undone_while_all_goes_well(
    so_far: dict[int, FinishedOperation], seen: Snapshot, now: float
) -> None:
    assert undone(so_far, seen, now) == []


def test_a_start_that_does_not_happen_is_taken_back_and_its_victim_returns() -> None:
    assert undone(done(0, 1, 2, 3), cluster(OLD_GONE, NEW_LET_GO), NOW + 120) == [
        ("hold", "2", "admin"),
        ("reshape", "2", STOOD),
        ("reshape", "1", LEASE),
        ("release", "1", "none"),
    ]


def test_a_victim_waits_where_somebody_else_has_taken_its_place() -> None:
    intruder = job(9, gpus=1, on=[share("n1", 1)])
    assert undone(done(0, 1, 2, 3), cluster(OLD_GONE, NEW_LET_GO, intruder), NOW + 120) == [
        ("hold", "2", "admin"),
        ("reshape", "2", STOOD),
    ]


def test_a_victim_returns_at_once_when_its_newcomer_was_cancelled() -> None:
    assert undone(done(0, 1, 2), cluster(OLD_GONE), NOW + 1) == [("reshape", "1", LEASE), ("release", "1", "none")]


def test_a_newcomer_whose_victim_cannot_be_requeued_gets_its_own_shape_back() -> None:
    assert undone(done(0, 2, requeue=Result.REFUSED), cluster(OLD, NEW_SHAPED), NOW) == [("reshape", "2", STOOD)]


def test_a_victim_that_takes_too_long_to_leave_is_waited_for_no_longer() -> None:
    ending = replace(OLD, state=JobState.COMPLETING)
    assert undone(done(0, 1, 2), cluster(ending, NEW_SHAPED), NOW + 120) == [("reshape", "2", STOOD)]


def test_a_moved_job_that_finds_no_start_returns_to_its_place() -> None:
    elsewhere = replace(LEASE, nodes=("n2",))
    moved = Plan(
        (
            Operation(Verb.REQUEUE, "1", WHY, LEASE, "requeued"),
            Operation(Verb.UPDATE, "1", WHY, STOOD, elsewhere, gone=("1",)),
            Operation(Verb.RELEASE, "1", WHY, "requeued", "none", gone=("1",)),
        )
    )
    stuck = replace(OLD_GONE, hold=Hold.NONE, current_request=replace(PINNED, pinned=frozenset({"n2"})))
    seen = snapshot([node(), node("n2", busy=range(8))], [stuck], NOW)
    late = undo_overdue_starts(PlanProgress(moved, done(0, 1, 2), seen, NOW + 120), 120.0)
    assert [(op.verb.value, op.after) for op in late.operations] == [
        ("hold", "admin"),
        ("reshape", LEASE),
        ("release", "none"),
    ]


@pytest.mark.parametrize(
    ("reason", "seconds"),
    [
        pytest.param("BadConstraints", 1, id="its request cannot be met"),
        pytest.param("JobHeldAdmin", 1, id="a hold, which Slurm may not have looked at since"),
        pytest.param("ReqNodeNotAvail, May be reserved for other job", 3.0, id="its node is not available"),
        pytest.param("ReqNodeNotAvail,_May_be_reserved_for_other_job", 3.0, id="the same as releases before write it"),
        pytest.param("Nodes required for job are DOWN, DRAINED or reserved", 0, id="its nodes are down"),
        pytest.param("QOSMaxGRESPerUser", 0, id="a limit"),
        pytest.param("Resources", 10, id="resources, which are free as we see it"),
        pytest.param("Priority", 120, id="another job is looked at first"),
        pytest.param("None", 120, id="Slurm has not looked yet"),
    ],
)
def test_how_long_a_released_job_is_given(reason: str, seconds: float) -> None:
    waiting = replace(NEW_LET_GO, reason=reason)
    assert patience(waiting, cluster(OLD_GONE, waiting), 120.0) == seconds
    for late, taken_back in ((seconds - 0.1, False), (seconds, True)):
        held = ("hold", "2", "admin") in undone(done(0, 1, 2, 3), cluster(OLD_GONE, waiting), NOW + late)
        assert held is taken_back


@pytest.mark.parametrize(
    ("eligible", "seconds"),
    [
        pytest.param(NOW + 110, 3, id="it requeued itself, and Slurm starts it in two minutes at the earliest"),
        pytest.param(NOW + 1, 120, id="it may start in a moment"),
        pytest.param(None, 120, id="nobody knows"),
    ],
)
def test_a_job_that_requeues_itself_keeps_no_place(eligible: float | None, seconds: float) -> None:
    waiting = replace(NEW_LET_GO, reason="BeginTime", eligible_time=eligible, restarts=1)
    assert patience(waiting, cluster(OLD_GONE, waiting), 120.0) == seconds


def test_resources_of_a_job_that_is_completing_there_are_waited_for() -> None:
    waiting = replace(NEW_LET_GO, reason="Resources")
    assert patience(waiting, cluster(replace(OLD, state=JobState.COMPLETING), waiting), 120.0) == 120.0


def test_a_reason_from_before_the_release_counts_for_nothing() -> None:
    waiting = replace(NEW_LET_GO, reason="ReqNodeNotAvail")
    late = PlanProgress(PLAN, done(0, 1, 2, 3), cluster(OLD_GONE, waiting), NOW + 50, seen_at=NOW - 1)
    assert undo_overdue_starts(late, 120.0).operations == ()


SMALLER = replace(LEASE, cpus=12)
SHRUNK = Plan(
    (
        Operation(Verb.REQUEUE, "1", WHY, LEASE, "requeued"),
        Operation(Verb.UPDATE, "1", WHY, LEASE, SMALLER, gone=("1",)),
        Operation(Verb.RELEASE, "1", WHY, "requeued", "none", gone=("1",)),
        Operation(Verb.RELEASE, "2", WHY, "admin", "none", gone=("1",), standing=("1",)),
    )
)
OLD_LET_GO = replace(OLD_GONE, hold=Hold.NONE, current_request=replace(PINNED, cpus=12))


@pytest.mark.parametrize(
    ("so_far", "victim", "now", "may_go", "taken_back"),
    [
        pytest.param((0,), OLD_GONE, NOW + 1, (1,), [], id="it has left: it gets its smaller request"),
        pytest.param((0, 1), OLD_GONE, NOW + 1, (2,), [], id="it is released before the newcomer"),
        pytest.param((0, 1, 2), OLD_LET_GO, NOW + 1, (), [], id="it does not run yet: the newcomer waits"),
        pytest.param(
            (0, 1, 2),
            replace(OLD_LET_GO, state=JobState.RUNNING),
            NOW + 1,
            (3,),
            [],
            id="it runs again: the newcomer's turn",
        ),
        pytest.param(
            (0, 1, 2),
            replace(OLD_LET_GO, reason="BadConstraints"),
            NOW + 1,
            (),
            [("hold", "1"), ("reshape", "1"), ("release", "1")],
            id="Slurm refuses it: it returns to its place at once, and the newcomer does not start",
        ),
    ],
)
def test_a_newcomer_starts_once_its_victim_stands_again(
    so_far: tuple[int, ...], victim: Job, now: float, may_go: tuple[int, ...], taken_back: list[tuple[str, str]]
) -> None:
    at_hand = PlanProgress(SHRUNK, done(*so_far), cluster(victim, NEW), now)
    assert at_hand.ready() == may_go
    assert [(op.verb.value, op.subject) for op in undo_overdue_starts(at_hand, 120.0).operations] == taken_back


def test_nobody_is_requeued_for_a_newcomer_that_waits_for_a_victim_which_cannot_start_again() -> None:
    """Its node went down: each of the two starts needs the other's victim to leave for itself."""
    at_hand = PlanProgress(SHRUNK, {}, cluster(OLD, NEW, up=False), NOW)
    assert at_hand.ready() == ()
    assert at_hand.settled()


@pytest.mark.parametrize(
    ("why", "newcomer", "up", "may_go"),
    [
        pytest.param(ReasonCode.MAKES_ROOM, (NEW,), True, (0,), id="for a newcomer"),
        pytest.param(ReasonCode.MAKES_ROOM, (), True, (), id="the newcomer was cancelled: it stays"),
        pytest.param(ReasonCode.MAKES_ROOM, (NEW,), False, (0,), id="the node that it would move to went down"),
        pytest.param(ReasonCode.PAYS_FOR_RESTART, (), True, (0,), id="for itself"),
    ],
)
@pytest.mark.parametrize("standing", [pytest.param((), id=""), pytest.param(("1",), id="once it runs again")])
def test_who_only_makes_room_moves_while_a_newcomer_needs_it(
    why: ReasonCode, newcomer: tuple[Job, ...], up: bool, may_go: tuple[int, ...], standing: tuple[str, ...]
) -> None:
    there = JobSpec(("n2",), 1, 8, 8, None, 24, 100, 1)
    moved = Plan(
        (
            Operation(Verb.REQUEUE, "1", Reason(why), LEASE, "requeued"),
            Operation(Verb.UPDATE, "1", Reason(why), LEASE, there),
            Operation(Verb.RELEASE, "1", WHY, "requeued", "none", gone=("1",)),
            Operation(Verb.RELEASE, "2", WHY, "admin", "none", gone=("1",), standing=standing),
        )
    )
    state = NodeState.UP if up else NodeState.DOWN
    at_hand = snapshot([node(), node("n2", state=state)], [OLD, *newcomer], NOW)
    stays = bool(standing) and not up  # else it gives way, and waits as any other victim
    expected = [] if stays else list(may_go)
    assert [index for index in ready_operations(moved, {}, at_hand, NOW) if index != 1] == expected


@pytest.mark.parametrize("movers", [1, 2, 40])
@pytest.mark.parametrize("newcomer", [pytest.param(True, id="for a gang"), pytest.param(False, id="it was cancelled")])
def test_any_number_of_jobs_make_room_for_a_gang_that_waits_until_all_run_again(movers: int, newcomer: bool) -> None:
    room, names = Reason(ReasonCode.MAKES_ROOM), [str(number) for number in range(3, 3 + movers)]
    requeues = [Operation(Verb.REQUEUE, name, room, LEASE, "requeued") for name in names]
    restarts = [Operation(Verb.RELEASE, name, WHY, "requeued", "none", gone=(name,)) for name in names]
    gang = Operation(Verb.RELEASE, "2", WHY, "admin", "none", gone=tuple(names), standing=tuple(names))
    run = [job(int(name), gpus=1, cpus=1, on=[share("n1", 1)]) for name in names]
    seen = cluster(*run, *([NEW] if newcomer else []))
    expected = tuple(range(movers)) if newcomer else ()
    assert ready_operations(Plan((*requeues, *restarts, gang)), {}, seen, NOW) == expected


IN_TURN = Plan(
    (
        Operation(Verb.RELEASE, "1", WHY, "admin", "none"),
        Operation(Verb.RELEASE, "2", WHY, "admin", "none", standing=("1",)),
    )
)


@pytest.mark.parametrize(
    ("so_far", "first", "now", "may_go", "taken_back"),
    [
        pytest.param({}, replace(OLD_GONE, hold=Hold.ADMIN), NOW, (0,), [], id="the first one"),
        pytest.param(done(0), OLD_LET_GO, NOW + 1, (), [], id="the second waits until it runs"),
        pytest.param(done(0), OLD, NOW + 1, (1,), [], id="it runs"),
        pytest.param(done(0), None, NOW + 1, (), [], id="it has ended: its device is not certain any more"),
        pytest.param(done(0), None, NOW + 121, (), ["2"], id="it has ended: the second waits for the next round"),
    ],
)
def test_a_job_whose_device_depends_on_another_starts_once_that_one_runs(
    so_far: dict[int, FinishedOperation], first: Job | None, now: float, may_go: tuple[int, ...], taken_back: list[str]
) -> None:
    second = replace(NEW_LET_GO, id="2", hold=Hold.NONE if taken_back else Hold.ADMIN)
    at_hand = PlanProgress(IN_TURN, so_far, cluster(*([first] if first else []), second), now)
    assert at_hand.ready() == may_go
    assert [op.subject for op in undo_overdue_starts(at_hand, 120.0).operations] == taken_back


def test_after_a_refused_restart_the_newcomer_is_hopeless() -> None:
    refused = done(0, 1) | {2: FinishedOperation(Result.UNDONE, NOW)}
    assert PlanProgress(SHRUNK, refused, cluster(OLD_GONE, NEW), NOW + 1).is_hopeless(3)


@pytest.mark.parametrize(
    ("so_far", "seen", "promised"),
    [
        pytest.param(done(2), cluster(OLD, NEW_SHAPED), {"2"}, id="its victim has not left yet"),
        pytest.param(done(0, 1, 2, 3), cluster(OLD_GONE, NEW_LET_GO), {"2"}, id="it is released"),
        pytest.param(done(0, 1, 2, 3), cluster(OLD_GONE, NEW_RUNS), set(), id="it runs"),
        pytest.param(
            done(0, 2, requeue=Result.REFUSED), cluster(OLD, NEW_SHAPED), set(), id="it cannot start any more"
        ),
    ],
)
def test_what_is_promised_to_starts_that_have_not_happened(
    so_far: dict[int, FinishedOperation], seen: Snapshot, promised: set[str]
) -> None:
    starts = open_starts(PlanProgress(PLAN, so_far, seen, NOW))
    assert starts.keys() == promised
    assert all([share.node for share in start.allocations] == ["n1"] for start in starts.values())
    assert all(start.gone == ("1",) for start in starts.values())


def test_shards_are_promised_with_the_rest_of_a_start() -> None:
    asked = Request(gpus=0, cpus=2, shards=5, pinned=frozenset({"n1"}))
    waits = job(2, request=asked)
    plan = Plan((Operation(Verb.RELEASE, "2", WHY),))
    (start,) = open_starts(PlanProgress(plan, done(0), cluster(waits), NOW)).values()
    assert [(share.node, share.shards) for share in start.allocations] == [("n1", 5)]


def test_a_job_that_says_it_is_saved_is_requeued_before_its_lead_is_over() -> None:
    seen = cluster(OLD, NEW)
    plan_so_far = PlanProgress(PLAN, done(NOTIFY, RESHAPE), seen, NOW + 5, frozenset({"1"}))
    assert plan_so_far.ready() == (REQUEUE,)
    assert PlanProgress(PLAN, done(RESHAPE), seen, NOW + 5, frozenset({"1"})).ready() == (NOTIFY,), "never unasked"


def unread(*numbers: str, jobs: tuple[Job, ...] = ()) -> Snapshot:
    """These are there and cannot be read."""
    aside = tuple(SetAsideJob(number, "its record cannot be read") for number in numbers)
    return replace(cluster(*jobs), set_aside=aside)


def test_a_job_that_cannot_be_read_after_its_requeue_is_not_said_to_have_left() -> None:
    at_hand = PlanProgress(PLAN, done(NOTIFY, REQUEUE, RESHAPE), unread("1", jobs=(NEW,)), NOW + 70)
    assert not at_hand.has_left("1")
    assert at_hand.ready() == ()
    assert undo_overdue_starts(at_hand, 120).operations == ()


def test_a_job_that_cannot_be_read_is_not_requeued_and_its_newcomer_has_not_to_be_waited_for() -> None:
    at_hand = PlanProgress(PLAN, done(NOTIFY, RESHAPE), unread("1", jobs=(NEW,)), NOW + 70)
    assert at_hand.ready() == ()
    assert at_hand.is_hopeless(REQUEUE)
    assert at_hand.is_hopeless(RELEASE)
    assert at_hand.settled()


def test_a_job_that_cannot_be_read_is_let_go_by_its_number() -> None:
    back = Plan((Operation(Verb.RELEASE, "9", Reason(ReasonCode.GIVE_BACK), "admin", "none"),))
    assert PlanProgress(back, {}, unread("9"), NOW).ready() == (0,)
    assert PlanProgress(back, {}, cluster(), NOW).ready() == ()


@pytest.mark.parametrize(
    ("so_far", "seen", "fresh", "may_go"),
    [
        pytest.param(done(RESHAPE), cluster(NEW_SHAPED), True, (RELEASE,), id="it stands: the job may start"),
        pytest.param(done(RESHAPE), cluster(NEW), True, (RESHAPE,), id="Slurm took it back: it is made again first"),
        pytest.param(
            done(RESHAPE), cluster(NEW), False, (RELEASE,), id="a poll from before the update tells nothing of it"
        ),
        pytest.param(
            done(NOTIFY, RESHAPE), cluster(OLD, NEW), True, (RESHAPE,), id="also while the start waits for another job"
        ),
        pytest.param(done(RESHAPE, RELEASE), cluster(NEW_LET_GO), True, (), id="released as wanted: nothing to do"),
        pytest.param(
            done(RESHAPE, RELEASE),
            cluster(replace(NEW, hold=Hold.NONE)),
            True,
            (),
            id="lost after the release: the start is undone when it is overdue",
        ),
        pytest.param(done(RESHAPE), cluster(replace(NEW_RUNS)), True, (), id="the job that ran wins"),
    ],
)
def test_an_update_that_slurm_took_back_is_made_again(
    so_far: dict[int, FinishedOperation], seen: Snapshot, fresh: bool, may_go: tuple[int, ...]
) -> None:
    assert PlanProgress(PLAN, so_far, seen, NOW, fresh=fresh).ready() == may_go


def test_a_start_whose_update_was_lost_after_its_release_is_undone() -> None:
    lost = replace(NEW, hold=Hold.NONE)
    undone = undo_overdue_starts(PlanProgress(PLAN, done(RESHAPE, RELEASE), cluster(lost), NOW + 60, fresh=True), 60)
    assert [operation.verb for operation in undone.operations] == [Verb.HOLD]
    assert spec_of(lost.current_request).nodes == ()


def test_a_job_that_is_given_back_is_not_waited_for() -> None:
    waits = job(2, gpus=64)
    plan = Plan((Operation(Verb.RELEASE, "2", Reason(ReasonCode.GIVE_BACK), "user", "none"),))
    released = PlanProgress(plan, {0: FinishedOperation(Result.DONE, NOW)}, cluster(waits), NOW + 9_999)
    assert released.settled()
    assert not undo_overdue_starts(released, 60).operations


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        pytest.param(
            Request(gpus=5, cpus=5, tasks=5),
            Request(gpus=5, nodes=2, cpus=4, tasks=5),
            id="--gpus=5 -n5, with 4 CPUs",
        ),
        pytest.param(
            Request(gpus=6, cpus=6, tasks=6), Request(gpus=6, nodes=2, cpus=6, tasks=1), id="--gpus-per-task=1 -n 6"
        ),
        pytest.param(
            Request(gpus=2, cpus=2, tasks=2),
            Request(gpus=2, cpus=1, tasks=1, pinned=frozenset({"n1"})),
            id="--gpus=2 --ntasks=2 --ntasks-per-gpu=1, left with one task by 24.11",
        ),
    ],
)
def test_what_a_refused_update_left_behind_is_taken_back(asked: Request, left: Request) -> None:
    one = replace(NEW, original_request=asked, current_request=left)
    update = Operation(Verb.UPDATE, "2", WHY, spec_of(asked), LEASE)
    plan = Plan((update, Operation(Verb.RELEASE, "2", WHY, "admin", "none")))
    refused = {0: FinishedOperation(Result.REFUSED, NOW)}
    [undone] = undo_overdue_starts(PlanProgress(plan, refused, cluster(one), NOW), 60).operations
    assert (undone.verb, undone.before, undone.after) == (Verb.UPDATE, spec_of(left), spec_of(asked))


@pytest.mark.parametrize(("code", "released"), [(ReasonCode.GIVE_BACK, True), (ReasonCode.START, False)])
def test_a_job_is_given_back_also_where_slurm_does_not_take_its_request_back(code: ReasonCode, released: bool) -> None:
    update = Operation(Verb.UPDATE, "2", WHY, LEASE, spec_of(NEW.original_request))
    plan = Plan((update, Operation(Verb.RELEASE, "2", Reason(code), "admin", "none")))
    refused = {0: FinishedOperation(Result.REFUSED, NOW)}
    assert ready_operations(plan, {}, cluster(NEW), NOW) == (0,)
    assert ready_operations(plan, refused, cluster(NEW), NOW) == ((1,) if released else ())
    assert is_settled(plan, refused, cluster(NEW), NOW) is not released


def test_the_first_operations_that_are_ready_are_told_without_the_rest() -> None:
    progress = PlanProgress(PLAN, {}, cluster(OLD, NEW), NOW)
    assert (progress.ready(1), progress.ready(5)) == ((NOTIFY,), (NOTIFY, RESHAPE))
