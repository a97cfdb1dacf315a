"""The values of metrics: what each figure counts, that labels are bounded whatever others write, and who is named."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from slurmsched.backends.protocol import CallCounts, Identity, Privilege, UnreachableError
from slurmsched.daemon import metrics_exposition
from slurmsched.daemon.log import DaemonLog, remarks
from slurmsched.daemon.metric_definitions import METRICS, MetricKind
from slurmsched.daemon.metrics import BUCKETS, DaemonMetrics
from slurmsched.daemon.metrics_exposition import MetricsExporter, parse_series, text_of
from slurmsched.daemon.scheduler import RoundReport
from slurmsched.daemon.single_round import run_once
from slurmsched.model import ClusterOverview, JobState, NodeState, Snapshot, cluster_overview
from slurmsched.policies.state import Account, TicketAccounts, encode_state
from slurmsched.rounds.fragmentation import with_fragments
from slurmsched.settings.definition import MetricsSettings, Mode, PolicySettings
from slurmsched.store.errors import BusyStoreError
from slurmsched.store.store import Store
from tests.builders import job, node, share, snapshot
from tests.unit.daemon.world import START, World

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """What prometheus_client reads: each value by its name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def told(metrics: DaemonMetrics, name: str) -> dict[str, float]:
    """The values of one metric, by those of its labels in one word."""
    found = samples(text_of(metrics.series()).decode())
    return {" ".join(value for _, value in labels): value for (of, labels), value in found.items() if of == name}


def of_round(world: World, report: RoundReport | None = None) -> DaemonMetrics:
    """The metrics after one round."""
    metrics = DaemonMetrics(world.store)
    metrics.round_ended(report or world.round(), world.settings, world.clock.now())
    return metrics


def test_a_round_is_told_as_it_was(tmp_path: Path) -> None:
    world = World(tmp_path)
    for gpus in (4, 8, 2):
        world.submit(gpus)
    metrics = of_round(world)
    assert told(metrics, "synsched_rounds_total") == {
        "early failed": 0.0, "early ok": 0.0, "full failed": 0.0, "full ok": 1.0,
    }  # fmt: skip
    assert told(metrics, "synsched_jobs") == {"pending": 1.0, "running": 2.0}
    assert told(metrics, "synsched_jobs_waiting") == {"behind": 1.0}
    assert told(metrics, "synsched_jobs_held") == {"": 1.0}
    assert told(metrics, "synsched_oldest_hold_timestamp_seconds") == {"": START}
    assert told(metrics, "synsched_operations_total") == {"done release": 2.0, "done reshape": 2.0}
    events = {name: number for name, number in told(metrics, "synsched_job_events_total").items() if number}
    assert events == {"seen": 3.0, "started": 2.0, "released": 2.0, "reshaped": 2.0}
    assert told(metrics, "synsched_last_round_timestamp_seconds") == {"ok": world.clock.now()}
    count = told(metrics, "synsched_round_stage_seconds_count")
    assert count == {f"full {stage}": 1.0 for stage in ("observe", "decide", "plan", "apply")}


def test_both_forms_are_read_by_prometheus_clients_parsers_and_hold_what_is_defined(tmp_path: Path) -> None:
    world = World(tmp_path, nodes=(node("n1"), node("n2")))
    for hint in ("", "ckpt=usr1", "ckpt=usr1"):
        world.submit(8, hint)
    metrics = of_round(world)
    metrics.configured(world.settings, "simulated")
    metrics.heartbeat(5.0, Mode.ENFORCE, None)
    metrics.called(CallCounts(1, 2, 3))
    collector = metrics_exposition.SeriesCollector()
    collector.series = metrics.series()
    registry = metrics_exposition.CollectorRegistry()
    registry.register(collector)
    encode, form = metrics_exposition.choose_encoder("application/openmetrics-text; version=1.0.0")
    assert form.startswith("application/openmetrics-text")
    families = {family.name: family for family in parse_openmetrics(encode(registry).decode())}
    defined = {metric.name: metric for metric in METRICS}
    assert set(families) <= set(defined)
    assert {name: family.type for name, family in families.items()} == {
        name: defined[name].kind.value for name in families
    }
    assert set(defined) - set(families) == {metric.name for metric in METRICS if metric.group == "Shares"}, "no tickets"
    for name, family in families.items():
        names = set(defined[name].label_names)
        assert all(set(sample.labels) - {"le"} == names for sample in family.samples), name


def test_a_histogram_puts_seconds_where_they_belong(tmp_path: Path) -> None:
    world = World(tmp_path)
    report = world.round()
    metrics = DaemonMetrics(world.store)
    for seconds in (0.01, 0.011, 299.0, 301.0, -1.0):
        timed = replace(report, tally=replace(report.tally, decide_s=seconds))
        metrics.round_ended(timed, world.settings, world.clock.now())
    buckets = {
        labels: value
        for labels, value in samples(text_of(metrics.series()).decode()).items()
        if labels[0] == "synsched_round_stage_seconds_bucket" and ("stage", "decide") in labels[1]
    }
    by_bound = {float(dict(labels)["le"]): value for (_, labels), value in buckets.items()}
    assert [by_bound[bound] for bound in (0.01, 0.025, 120.0, 300.0, float("inf"))] == [2.0, 3.0, 3.0, 4.0, 5.0]
    assert len(by_bound) == len(BUCKETS) + 1
    assert told(metrics, "synsched_round_stage_seconds_sum")["full decide"] == pytest.approx(600.021)


def counted(overview: ClusterOverview, tmp_path: Path) -> DaemonMetrics:
    """The metrics of a round that recorded this overview last."""
    world = World(tmp_path)
    report = world.round()
    world.store.state.overview = overview
    return of_round(world, report)


@pytest.mark.parametrize(
    ("nodes", "gpus", "stranded"),
    [
        pytest.param([node("n1")], {"v100 idle": 8.0}, {}, id="all idle"),
        pytest.param([node("n1", busy=range(8))], {"v100 allocated": 8.0}, {}, id="all allocated"),
        pytest.param(
            [node("n1", state=NodeState.DRAINED, busy=[0])],
            {"v100 allocated": 1.0, "v100 unavailable": 7.0},
            {},
            id="a drained node: what is idle is not to be had",
        ),
        pytest.param([node("n1", reservation="works")], {"v100 unavailable": 8.0}, {}, id="a reserved node: neither"),
        pytest.param(
            [node("n1", busy=range(4), used_cpus=22)],
            {"v100 allocated": 4.0, "v100 idle": 4.0},
            {"v100 cpu": 2.0, "v100 below_share": 2.0},
            id="two CPUs for four idle GPUs: two have none, two less than their share",
        ),
        pytest.param(
            [node("n1", busy=range(4), used_cpus=4, used_memory=500 * 1024)],
            {"v100 allocated": 4.0, "v100 idle": 4.0},
            {"v100 memory": 4.0},
            id="no memory left",
        ),
        pytest.param(
            [node("n1"), node("k1", gpu_type="k80", busy=[1])],
            {"v100 idle": 8.0, "k80 allocated": 1.0, "k80 idle": 7.0},
            {},
            id="two types",
        ),
    ],
)
def test_gpus_by_what_they_do(
    nodes: list[object], gpus: dict[str, float], stranded: dict[str, float], tmp_path: Path
) -> None:
    seen = snapshot(nodes)  # type: ignore[arg-type] # rows are nodes
    metrics = counted(cluster_overview(seen), tmp_path)

    def shown(name: str) -> dict[str, float]:
        turned = {" ".join(reversed(label.split())): value for label, value in told(metrics, name).items()}
        return {label: value for label, value in turned.items() if value}

    assert shown("synsched_gpus") == gpus
    assert {tuple(sorted(label.split())): value for label, value in shown("synsched_gpus_stranded").items()} == {
        tuple(sorted(label.split())): value for label, value in stranded.items()
    }


def test_a_gpu_that_is_shared_is_partly_allocated(tmp_path: Path) -> None:
    seen = snapshot([node("n1", gpus=2, shards=10)])
    cut = replace(seen.nodes[0], gpus=(replace(seen.nodes[0].gpus[0], used=300), seen.nodes[0].gpus[1]))
    metrics = counted(cluster_overview(replace(seen, nodes=(cut,))), tmp_path)
    values = told(metrics, "synsched_gpus")
    assert (values["partly_allocated v100"], values["idle v100"]) == (1.0, 1.0)


def test_fragmented_gpus_are_those_of_free(tmp_path: Path) -> None:
    usual = job(1, gpus=8, cpus=8).original_request
    overview = with_fragments(cluster_overview(snapshot([node("n1", busy=range(4), used_cpus=4)])), [(usual, 10)])
    assert overview.fragments is not None
    metrics = counted(overview, tmp_path)
    assert told(metrics, "synsched_gpus_fragmented")["gpus v100"] == overview.fragments.all.lack_gpu == 4.0


@pytest.mark.parametrize(
    ("other", "why"),
    [
        pytest.param({"batch": False}, "not_batch", id="an interactive job"),
        pytest.param({"gpus": 0}, "no_gpu", id="a job without GPUs"),
        pytest.param({"comment": "no hint"}, "out_of_scope", id="a job without a hint where that is asked for"),
        pytest.param(
            {"unmanageable": "it asks for GPUs per socket (--gpus-per-socket)"},
            "--gpus-per-socket",
            id="an option that no plan knows",
        ),
        pytest.param({"unmanageable": "mallory's own words"}, "other", id="words that are no option's"),
        pytest.param({"gpus": 99}, "never_fits", id="more than there is"),
    ],
)
def test_why_jobs_are_left_to_slurm(other: dict[str, object], why: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    left = job(7, hint="ckpt=usr1", **other)  # type: ignore[arg-type] # a row's fields
    seen = snapshot([node("n1")], [left])
    world.simulated.observe = lambda: seen  # type: ignore[method-assign] # the poll is what the row says
    assert told(of_round(world), "synsched_jobs_left_to_slurm") == {why: 1.0}


def test_jobs_that_are_set_aside_are_counted_by_whether_they_could_be_read(tmp_path: Path) -> None:
    world = World(tmp_path)
    rows = [("1", ""), ("2", ""), ("3", "fingerprint")]
    world.store.database.write_many("INSERT INTO set_aside (job, reason, since, mark) VALUES (?, 'x', 1, ?)", rows)
    metrics = DaemonMetrics(world.store)
    report = world.round()
    world.store.database.write_many("INSERT INTO set_aside (job, reason, since, mark) VALUES (?, 'x', 1, ?)", rows)
    metrics.round_ended(report, world.settings, 1.0)
    assert told(metrics, "synsched_jobs_set_aside") == {"unreadable": 2.0, "undecidable": 1.0}


@pytest.mark.parametrize(
    ("hinder", "cause"),
    [
        pytest.param(lambda world: world.store.switches.pause("root", "x", 1.0), "paused", id="a pause"),
        pytest.param(lambda world: Path(world.settings.hook.disable_file).touch(), "disabled", id="the disable file"),
        pytest.param(
            lambda world: setattr(world.simulated, "_identity", Identity("eve", Privilege.OPERATOR)),
            "no_permission",
            id="a right that is missing, for weights of nodes",
        ),
    ],
)
def test_what_blocks_operations_is_counted_by_its_cause(hinder: object, cause: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.settings = replace(world.settings, nodes=replace(world.settings.nodes, weights=True))
    world.submit(4)
    assert callable(hinder)
    hinder(world)
    metrics = of_round(world)
    blocked = {name: number for name, number in told(metrics, "synsched_operations_blocked_total").items() if number}
    assert set(blocked) == {cause}
    by_result = told(metrics, "synsched_operations_total")
    assert sum(number for name, number in by_result.items() if "blocked" in name.split()) == blocked[cause]


def test_what_keeps_rounds_from_changing_anything_is_told_until_it_ends(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.settings = replace(world.settings, metrics=MetricsSettings(textfile=str(tmp_path / "x.prom")))
    world.store.switches.pause("root", "x", 1.0)
    run_once(world.site, world.clock, lambda _: remarks(print))
    stopped = {labels[0][1]: value for (name, labels), value in in_file(tmp_path).items() if name.endswith("_stopped")}
    assert stopped == {"paused": 1.0, "disabled": 0.0, "other_scheduler": 0.0}
    world.store.switches.resume()
    run_once(world.site, world.clock, lambda _: remarks(print))
    assert in_file(tmp_path)["synsched_changes_stopped", (("cause", "paused"),)] == 0.0


def test_calls_are_counted_on_when_a_reload_brings_another_backend(tmp_path: Path) -> None:
    metrics = DaemonMetrics(World(tmp_path).store)
    first = CallCounts(1, 10, 5)
    metrics.called(first)
    first.reads += 2
    metrics.called(first)
    metrics.called(CallCounts(1, 3, 0))
    assert told(metrics, "synsched_slurm_calls_total") == {"poll": 2.0, "read": 15.0, "write": 5.0}


def test_a_refused_start_is_counted_and_so_is_that_it_was_undone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.cluster.refused["1"] = "BadConstraints"
    world.submit(4)
    metrics = of_round(world)
    assert told(metrics, "synsched_starts_refused_total") == {"": 1.0}
    operations = told(metrics, "synsched_operations_total")
    assert (operations["done release"], operations["undone release"]) == (1.0, 1.0)


def test_forecasts_that_came_true_are_those_that_the_store_keeps(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.database.write("INSERT INTO start_ranges VALUES (1, 2.0, 0.5, 40, 30, 1.0)")
    metrics = of_round(world)
    assert told(metrics, "synsched_start_forecasts_total") == {"": 40.0}
    assert told(metrics, "synsched_start_forecasts_in_range_total") == {"": 30.0}
    assert told(metrics, "synsched_start_range_factor") == {"below": 2.0, "above": 0.5}


def ticketed(world: World, accounts: dict[str, Account], private: Iterable[str] = ()) -> RoundReport:
    """A round after which users have these accounts."""
    report = world.round()
    state = encode_state(TicketAccounts(1.0, accounts))
    decision = replace(report.result.decision, state=state)
    seen = replace(report.snapshot, private_data=frozenset(private))
    return replace(report, result=replace(report.result, decision=decision), snapshot=seen)


THREE = {"alice": Account(100.0, 40.0), "bob": Account(300.0, 310.0), "carol": Account(200.0, 150.0)}


@pytest.mark.parametrize(
    ("users", "private", "named"),
    [
        pytest.param(0, (), {}, id="nobody, as shipped"),
        pytest.param(5, (), {"alice": 100.0, "bob": 300.0, "carol": 200.0}, id="all of a few"),
        pytest.param(1, (), {"bob": 300.0, "(others)": 300.0}, id="the one who is due most, and the others together"),
        *(
            pytest.param(5, (word,), {}, id=f"nobody where PrivateData has {word}")
            for word in ("jobs", "usage", "users", "accounts")
        ),
        pytest.param(1, ("nodes",), {"bob": 300.0, "(others)": 300.0}, id="what is private of nodes is not of users"),
    ],
)
def test_users_are_named_where_the_settings_allow_it_and_nothing_hides_them(
    users: int, private: tuple[str, ...], named: dict[str, float], tmp_path: Path
) -> None:
    world = World(tmp_path)
    report = ticketed(world, THREE, private)
    world.settings = replace(world.settings, metrics=MetricsSettings(listen="127.0.0.1:9797", users=users))
    metrics = of_round(world, report)
    assert told(metrics, "synsched_user_share_due_gpu_seconds") == named
    assert told(metrics, "synsched_share_shortfall_max_gpu_seconds") == {"": 60.0}
    assert told(metrics, "synsched_share_users") == {"": 3.0}
    everything = text_of(metrics.series()).decode()
    assert not [user for user in THREE if user not in named and user in everything]


def test_no_user_or_type_adds_more_series_than_are_allowed(tmp_path: Path) -> None:
    world = World(tmp_path)
    report = ticketed(world, {f"user{number}": Account(float(number), 0.0) for number in range(5000)})
    world.settings = replace(world.settings, metrics=MetricsSettings(listen="127.0.0.1:9797", users=200))
    types = [node(f"n{number}", gpu_type=f"t{number}", gpus=1) for number in range(1000)]
    world.store.state.overview = with_fragments(cluster_overview(snapshot(types)), [])
    metrics = of_round(world, report)
    assert len(told(metrics, "synsched_user_share_due_gpu_seconds")) == 201
    assert sum(told(metrics, "synsched_user_share_due_gpu_seconds").values()) == sum(range(5000))
    assert len(told(metrics, "synsched_gpus")) == 101 * 4
    assert sum(told(metrics, "synsched_gpus").values()) == 1000.0
    assert len(samples(text_of(metrics.series()).decode())) < 2000


def test_a_cluster_of_three_types_has_about_350_series(tmp_path: Path) -> None:
    world = World(tmp_path, nodes=[node(f"{kind}1", gpu_type=kind) for kind in ("v100", "p100", "k80")])
    for gpus in (8, 8, 8, 8, 2):
        world.submit(gpus)
    world.rounds(3)
    metrics = of_round(world)
    early = replace(world.round(), result=replace(world.round().result, starts_only=True))
    metrics.round_ended(early, world.settings, 1.0)
    metrics.configured(world.settings, "simulated")
    metrics.heartbeat(1.0, Mode.ENFORCE, None)
    count = len(samples(text_of(metrics.series()).decode()))
    print(f"\nseries {count}")
    assert 200 < count < 400


@pytest.fixture(scope="module")
def empty() -> Iterator[Store]:
    with closing(Store.in_memory()) as store:
        yield store


NASTY = st.text(st.characters(codec=None), min_size=1, max_size=200)


@settings(max_examples=60, deadline=None)
@given(names=st.lists(NASTY, min_size=1, max_size=5, unique=True))
def test_no_name_can_pose_as_another_series_or_break_the_text(names: list[str], empty: Store) -> None:
    metrics = DaemonMetrics(empty)
    nodes = [node(f"n{number}", gpu_type=name, gpus=1) for number, name in enumerate(names)]
    metrics._count_gpus(cluster_overview(snapshot(nodes)))
    text = text_of(tuple(one for one in metrics.series() if one.metric.name == "synsched_gpus"))
    found = [sample for family in parse_text(text.decode()) for sample in family.samples]
    assert {sample.name for sample in found} == {"synsched_gpus"}
    assert sum(sample.value for sample in found) == len(names)
    assert {sample.labels["type"] for sample in found} <= {
        name[:64].encode("utf-8", "replace").decode() for name in names
    }


def in_file(folder: Path) -> Samples:
    return samples((folder / "x.prom").read_text(encoding="utf-8"))


ROUNDS = "synsched_rounds_total", (("kind", "full"), ("outcome", "ok"))
FAILED = "synsched_rounds_total", (("kind", "full"), ("outcome", "failed"))


def cron(folder: Path) -> World:
    world = World(folder)
    world.settings = replace(world.settings, metrics=MetricsSettings(textfile=str(folder / "x.prom")))
    return world


def test_counters_of_rounds_by_cron_go_on_from_the_textfile(tmp_path: Path) -> None:
    world, said = cron(tmp_path), list[str]()
    world.submit(8)
    world.submit(8)
    for number in range(1, 4):
        assert run_once(world.site, world.clock, lambda _: remarks(said.append))
        found = in_file(tmp_path)
        assert found[ROUNDS] == number
        observed = [value for (name, labels), value in found.items()
                    if name == "synsched_round_stage_seconds_count" and ("stage", "observe") in labels]  # fmt: skip
        assert observed == [number]
        assert found["synsched_job_events_total", (("event", "seen"),)] == 2.0
        assert found["synsched_heartbeat_timestamp_seconds", ()] == world.clock.now()
        world.later(300.0)
    assert said == []
    assert stat.S_IMODE((tmp_path / "x.prom").stat().st_mode) == 0o644
    assert not [name for (name, _) in found if name.startswith("process_")]


def test_a_round_by_cron_that_fails_is_counted_and_when_the_last_one_was_ok_stays(tmp_path: Path) -> None:
    world = cron(tmp_path)
    run_once(world.site, world.clock, lambda _: remarks(print))
    ok, at = ("synsched_last_round_timestamp_seconds", (("outcome", "ok"),)), world.clock.now()
    world.later(300.0)
    world.simulated.observe = _unreachable  # type: ignore[method-assign] # nobody answers
    for failures in (1, 2):
        with pytest.raises(UnreachableError):
            run_once(world.site, world.clock, lambda _: remarks(print))
        found = in_file(tmp_path)
        assert (found[FAILED], found[ROUNDS]) == (failures, 1.0)
        assert found["synsched_round_failures", ()] == failures
        assert found[ok] == at


def _unreachable() -> Snapshot:
    raise UnreachableError("slurmctld did not answer")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"synsched_rounds_total{kind=", id="cut off"),
        pytest.param(b"\xff\xfe\x00" * 50, id="no text"),
        pytest.param(b'synsched_rounds_total{kind="full",outcome="ok"} NaN\n', id="no number"),
        pytest.param(b"# TYPE synsched_rounds_total counter\nsynsched_rounds_total 7\n", id="without its labels"),
        pytest.param(
            b"# TYPE synsched_rounds_total counter\n"
            + b"".join(b'synsched_rounds_total{kind="%d",outcome="ok"} 1\n' % number for number in range(5000)),
            id="thousands of series",
        ),
    ],
)
def test_a_textfile_that_is_not_ours_any_more_is_begun_anew(damage: bytes, tmp_path: Path) -> None:
    world = cron(tmp_path)
    (tmp_path / "x.prom").write_bytes(damage)
    run_once(world.site, world.clock, lambda _: DaemonLog())
    assert in_file(tmp_path)[ROUNDS] == 1.0
    assert len(in_file(tmp_path)) < 400


def test_many_types_and_users_keep_no_counter_from_going_on(tmp_path: Path) -> None:
    world = World(tmp_path, nodes=[node(f"x{number}", gpu_type=f"t{number}", gpus=1) for number in range(150)])
    world.settings = replace(world.settings, metrics=MetricsSettings(textfile=str(tmp_path / "x.prom"), users=200))
    for rounds in (1.0, 2.0):
        run_once(world.site, world.clock, lambda _: remarks(print))
        assert in_file(tmp_path)[ROUNDS] == rounds
    assert len(in_file(tmp_path)) > 1000


def test_a_textfile_with_other_buckets_gives_its_counters_and_no_seconds(tmp_path: Path) -> None:
    world = cron(tmp_path)
    run_once(world.site, world.clock, lambda _: remarks(print))
    file = tmp_path / "x.prom"
    file.write_text(file.read_text().replace('le="0.025"', 'le="0.03"'))
    run_once(world.site, world.clock, lambda _: remarks(print))
    found = in_file(tmp_path)
    assert found[ROUNDS] == 2.0
    counts = {value for (name, _), value in found.items() if name == "synsched_round_stage_seconds_count"}
    assert counts == {1.0}


def test_what_is_written_is_read_back_the_same(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(4)
    series = of_round(world).series()
    read = {one.metric: one for one in parse_series(text_of(series).decode())}
    for one in series:
        assert read[one.metric].distributions[:1] == one.distributions[:1] or one.metric.kind is MetricKind.HISTOGRAM
        if one.metric.kind is not MetricKind.HISTOGRAM:
            assert sorted(read[one.metric].values) == sorted(one.values)
    both = sorted(
        (labels, counts, total)
        for one in parse_series(text_of(series).decode())
        for labels, counts, total in one.distributions
    )
    assert both == sorted(d for one in series for d in one.distributions)


def test_a_folder_that_cannot_be_written_to_costs_the_textfile_and_is_said_once_a_process(tmp_path: Path) -> None:
    world, said = World(tmp_path), list[str]()
    world.settings = replace(world.settings, metrics=MetricsSettings(textfile="/nowhere/at/all/x.prom"))
    assert run_once(world.site, world.clock, lambda _: remarks(said.append)) is not None
    why = "cannot write /nowhere/at/all/x.prom: No such file or directory"
    assert said == [f"no metrics: {why}; rounds go on, see [metrics]"]


def test_a_link_in_the_place_of_the_textfile_or_beside_it_is_replaced_and_not_followed(tmp_path: Path) -> None:
    world, victim = cron(tmp_path), tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "x.prom").symlink_to(victim)
    (tmp_path / ".x.prom.new").symlink_to(victim)
    run_once(world.site, world.clock, lambda _: remarks(print))
    assert victim.read_text() == "precious"
    assert not (tmp_path / "x.prom").is_symlink()
    assert in_file(tmp_path)[ROUNDS] == 1.0


def test_no_error_of_a_figure_ends_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, said = cron(tmp_path), list[str]()
    world.submit(4)

    def busy(*_: object) -> None:
        raise BusyStoreError("the database is locked")

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(world.store.state), "held_jobs", busy)
    monkeypatch.setattr(DaemonMetrics, "heartbeat", broken)
    report = run_once(world.site, world.clock, lambda _: remarks(said.append))
    assert report is not None
    assert world.where() == {"1": ("n1",)}
    assert [line.partition(":")[0] for line in said] == ["metrics are not up to date"] * 2
    assert in_file(tmp_path)[ROUNDS] == 1.0


def test_without_metrics_nothing_is_counted_nor_asked_of_the_database(tmp_path: Path) -> None:
    world = World(tmp_path)
    exporter = MetricsExporter(world.settings, world.store, world.clock, print, serves=True)
    report = world.round()
    world.store.close()  # whatever is asked now fails
    said = list[str]()
    exporter._log = said.append
    exporter.configure(world.settings, "simulated")
    exporter.round_ended(report, CallCounts())
    exporter.heartbeat(1.0, Mode.ENFORCE, None)
    exporter.close()
    assert said == []
    assert exporter._collector.series == ()


def test_jobs_are_counted_as_they_are_after_the_round(tmp_path: Path) -> None:
    """A job that Slurm finished in between is neither running nor pending."""
    world = World(tmp_path)
    seen = snapshot([node("n1")], [job(1, gpus=2, hint="ckpt=usr1", on=[share("n1", 2)])])
    world.simulated.observe = lambda: seen  # type: ignore[method-assign] # the poll is what the test says
    report = world.round()
    ended = replace(seen.jobs[0], state=JobState.FINISHED)
    metrics = of_round(world, replace(report, snapshot=replace(seen, jobs=(ended,))))
    assert told(metrics, "synsched_jobs") == {"pending": 0.0, "running": 0.0}


def test_shares_are_told_under_policies_with_tickets_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.settings = replace(
        world.settings,
        policy=PolicySettings(system="gandiva-fair"),
        metrics=MetricsSettings(listen="127.0.0.1:9797", users=3),
    )
    world.submit(4)
    world.rounds(2)
    assert told(of_round(world), "synsched_user_share_due_gpu_seconds").keys() == {"alice"}
    world.settings = replace(world.settings, policy=PolicySettings(system="synergy"))
    assert told(of_round(world), "synsched_share_users") == {}
