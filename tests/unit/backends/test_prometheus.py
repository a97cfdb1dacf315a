"""What a Prometheus tells of ended runs: queries, answers that nobody should believe, and servers that are no help."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmsched.backends.prometheus import (
    EXPORTERS,
    AskedRun,
    JobExporter,
    Prometheus,
    PrometheusError,
    parse_answer,
    parse_idle,
    with_amounts,
)
from slurmsched.model import AccountedRun, RunEnd
from tests.simulated_prometheus import running

ENDED = 1_790_000_000.0
NVIDIA, SLURM, DCGM, BY_JOB_ID = EXPORTERS


def run(number: int = 5, **other: object) -> AccountedRun:
    fields: dict[str, object] = {"gpus": 2, "cpus": 8, "memory": 8192, "seconds": 3600.0, **other}
    return AccountedRun(str(number), "alice", "train", ENDED, end=RunEnd.COMPLETED, **fields)  # type: ignore[arg-type]


def asked(number: int = 5, **other: object) -> AskedRun:
    return AskedRun(run(number, **other), str(number))


def vector(*values: tuple[str, object]) -> bytes:
    """Prometheus' answer with these values, by the label that it was asked to write."""
    result = [{"metric": {"synsched": label, "gpu": "0"}, "value": [ENDED, value]} for label, value in values]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler, str], None]) -> Iterator[str]:
    """The URL of a server that answers each query so."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            assert self.path == "/prom/api/v1/query"
            with_error = (BrokenPipeError, ConnectionResetError)
            try:
                answer(self, form["query"][0])
            except with_error:
                return

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    with running(http) as url:
        yield f"{url}/prom/"


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def test_a_query_has_each_amount_of_each_run_over_its_own_time() -> None:
    runs = [asked(5), asked(6, seconds=120.4)]
    assert DCGM.query(runs, "").split(" or ") == [
        (
            f"label_replace(avg_over_time(DCGM_FI_DEV_GPU_UTIL{{hpc_job='5'}}[3600s] @ {ENDED:.0f}),"
            '"synsched","0 gpu","","")'
        ),
        (
            f"label_replace(max_over_time(DCGM_FI_DEV_FB_USED{{hpc_job='5'}}[3600s] @ {ENDED:.0f}),"
            '"synsched","0 memory","","")'
        ),
        (
            f"label_replace(avg_over_time(DCGM_FI_DEV_GPU_UTIL{{hpc_job='6'}}[120s] @ {ENDED:.0f}),"
            '"synsched","1 gpu","","")'
        ),
        (
            f"label_replace(max_over_time(DCGM_FI_DEV_FB_USED{{hpc_job='6'}}[120s] @ {ENDED:.0f}),"
            '"synsched","1 memory","","")'
        ),
    ]


def test_the_window_of_a_long_run_is_its_last_day() -> None:
    assert f"[86400s] @ {ENDED:.0f}" in SLURM.query([asked(seconds=9e5)], "")
    assert f"[86400s:864s] @ {ENDED:.0f}" in BY_JOB_ID.query([asked(seconds=9e5)], "")
    assert f"[60s:30s] @ {ENDED:.0f}" in BY_JOB_ID.query([asked(seconds=60.0)], "")


@pytest.mark.parametrize("exporter", EXPORTERS, ids=lambda one: one.name)
def test_every_series_is_that_of_the_cluster(exporter: JobExporter) -> None:
    query = exporter.query([asked()], "CLUSTER-JOB")
    assert query.count("cluster='CLUSTER-JOB'}") == query.count("{") == query.count("}") > 1
    assert query.count("CLUSTER") == query.count("cluster=")
    assert "{,cluster" not in query


def amounts(*gpu: float, memory: tuple[float, ...] = (1024.0, 2048.0), cpu: float = 7200.0) -> dict[str, list[float]]:
    return {"gpu": list(gpu), "memory": list(memory), "cpu": [cpu]}


def test_a_run_gets_the_mean_of_its_gpus_their_peak_of_memory_and_the_time_of_its_cpus() -> None:
    told = with_amounts(run(), amounts(90.0, 4.0), "dcgm-exporter")
    assert (told.gpu_use, told.idle_gpus, told.gpu_memory, told.gpu_source) == (0.47, 1, 2048, "dcgm-exporter")
    assert (told.cpu_seconds, told.gathered) == (7200, True)


def test_what_accounting_gathered_of_cpus_counts_for_more() -> None:
    assert with_amounts(run(cpu_seconds=100.0, gathered=True), amounts(90.0, 50.0), "x").cpu_seconds == 100
    assert with_amounts(run(cpu_seconds=9000.0), amounts(90.0, 50.0), "x").cpu_seconds == 9000, "a lower bound"


@pytest.mark.parametrize(
    "impossible",
    [
        pytest.param(amounts(90.0), id="one of two GPUs"),
        pytest.param(amounts(90.0, 50.0, 20.0), id="more GPUs than it had: the jobs of two clusters"),
        pytest.param(amounts(), id="none"),
        pytest.param(amounts(90.0, 150.0), id="more than all of the time"),
        pytest.param(amounts(90.0, 50.0, memory=(1e15,)), id="memory of no GPU"),
    ],
)
def test_what_cannot_be_of_this_run_is_not_believed(impossible: dict[str, list[float]]) -> None:
    assert with_amounts(run(), impossible, "x") == run()


def test_more_cpu_time_than_there_was_is_not_believed() -> None:
    told = with_amounts(run(), amounts(90.0, 50.0, cpu=8 * 3700.0), "x")
    assert (told.gpu_use, told.cpu_seconds, told.gathered) == (0.7, None, False)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "x", 5, None, ["1"]])
def test_a_run_with_a_value_that_is_no_amount_is_left_out_and_others_are_read(value: object) -> None:
    body = vector(("0 gpu", "90"), ("0 gpu", value), ("1 gpu", "50"), ("2 gpu", "50"), ("x", "50"), ("1 else", "50"))
    assert parse_answer(body, 2) == {1: {"gpu": [50.0]}}


NO_ANSWERS = {
    "nothing": b"",
    "a page": b"<html>",
    "a list": b"[1]",
    "an error": b'{"status": "error", "error": "x"}',
    "deeply nested": b"[" * 100_000,
    "no values": b'{"data": {"result": [{"metric": {}}]}}',
    "a text for a vector": b'{"data": {"result": "x"}}',
}


@pytest.mark.parametrize("body", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_no_answer_is_an_error(body: bytes) -> None:
    with pytest.raises(PrometheusError, match="as it should"):
        parse_answer(body, 1)


@given(st.recursive(st.none() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["data", "result", "metric", "value", "synsched"]), inner)))  # fmt: skip
def test_any_json_is_an_answer_or_an_error(value: object) -> None:
    try:
        found = parse_answer(json.dumps(value).encode(), 3)
    except PrometheusError:
        return
    assert found == {}


def test_the_first_exporter_that_tells_of_a_run_counts() -> None:
    def answer(handler: BaseHTTPRequestHandler, query: str) -> None:
        use = {"DCGM": ("0 gpu", "20"), "slurm_job": ("1 gpu", "40")}
        send(handler, vector(*(value for name, value in use.items() if name in query), ("1 gpu", "60")))

    with server(answer) as url:
        both = [asked(5, gpus=1), asked(6, gpus=1)]
        told, outcomes = Prometheus(url).measure((DCGM, BY_JOB_ID), both)
    assert {job: (one.gpu_use, one.gpu_source) for (job, _), one in told.items()} == {
        "5": (0.2, "dcgm-exporter"),
        "6": (0.6, "dcgm-exporter"),
    }
    assert outcomes == [2, 1]


def drip(handler: BaseHTTPRequestHandler, _query: str) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for _ in range(120):
        handler.wfile.write(b"X: y\r\n")
        handler.wfile.flush()
        time.sleep(0.05)


def flood(handler: BaseHTTPRequestHandler, _query: str) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b"[" * 65_536)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(lambda _handler, _query: time.sleep(6.0), "in time|timed out", id="silent"),
        pytest.param(drip, "in time|timed out", id="a header every now and then"),
        pytest.param(flood, "more than 4 MiB", id="no end"),
        pytest.param(
            lambda handler, _query: send(handler, b'{"error": "too many\\nsamples"}', 422),
            "HTTP 422 too many samples",
            id="refused",
        ),
        pytest.param(lambda handler, _query: send(handler, b"\xff" * 300, 500), "HTTP 500", id="broken"),
        pytest.param(lambda handler, _query: handler.wfile.write(b"\x1b[31m\n\n"), "does not answer", id="no HTTP"),
        pytest.param(lambda handler, _query: send(handler, b"nothing"), "as it should", id="another program"),
    ],
)
def test_a_server_that_is_no_help_is_not_waited_for_and_says_what_is_wrong(
    answer: Callable[[BaseHTTPRequestHandler, str], None], problem: str
) -> None:
    with server(answer) as url:
        began = time.monotonic()
        told, outcomes = Prometheus(url, seconds=0.5).measure(EXPORTERS, [asked()])
        took = time.monotonic() - began
    assert told == {}
    for outcome in outcomes:
        assert isinstance(outcome, PrometheusError)
        assert outcome.args[0].isprintable()
    assert all(re.search(problem, str(outcome)) for outcome in outcomes), outcomes
    assert took < 4.0


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[", "http://host:port", "http://nobody.invalid"])
def test_nobody_there_is_an_error(url: str) -> None:
    told, outcomes = Prometheus(url, seconds=2.0).measure((DCGM,), [asked()])
    assert told == {}
    assert "Prometheus" in str(outcomes[0])


WINDOW = "[3600s]"


def test_a_query_for_running_jobs_counts_their_gpus_by_job() -> None:
    use = "DCGM_FI_DEV_GPU_UTIL{hpc_job=~'5|6',cluster='c'}"
    assert DCGM.idle_query(["5", "6"], 3600, "c").split(" or ") == [
        (
            f"label_replace(count by(hpc_job)((avg_over_time({use}{WINDOW})>=0)<1),"
            '"synsched","idle dcgm-exporter","","")'
        ),
        f'label_replace(count by(hpc_job)(avg_over_time({use}{WINDOW})),"synsched","all dcgm-exporter","","")',
        (
            f"label_replace(count by(hpc_job)(count_over_time({use}[3600s:300s])>=12),"
            '"synsched","seen dcgm-exporter","","")'
        ),
    ]
    by_value, idle = BY_JOB_ID.idle_query(["5"], 3600, ""), "(avg_over_time(nvidia_gpu_duty_cycle{}[3600s])>=0)<1"
    assert f'count_values("jobid",nvidia_gpu_jobId{{}} and ({idle}))' in by_value


@pytest.mark.parametrize("exporter", EXPORTERS, ids=lambda one: one.name)
def test_every_series_of_running_jobs_is_that_of_the_cluster(exporter: JobExporter) -> None:
    query = exporter.idle_query(["5"], 3600, "mine")
    assert query.count("cluster='mine'}") == query.count("{") > 2


def counts(*values: tuple[str, object, object]) -> bytes:
    """The answer of slurm-job-exporter with these counts: which, of what job, and how many."""
    result = [
        {"metric": {"synsched": f"{what} slurm-job-exporter", "slurmjobid": number}, "value": [ENDED, value]}
        for what, number, value in values
    ]
    return json.dumps({"data": {"result": result}}).encode()


FOUR_SEEN = (("all", "5", "4"), ("seen", "5", "4"))


@pytest.mark.parametrize(
    ("values", "idle"),
    [
        pytest.param((*FOUR_SEEN, ("idle", "5", "1")), {"5": 1}, id="one of four"),
        pytest.param(FOUR_SEEN, {"5": 0}, id="none: then Prometheus tells no count"),
        pytest.param((("all", "5", "4"), ("seen", "5", "3"), ("idle", "5", "4")), {}, id="not seen all of the time"),
        pytest.param((("all", "5", "8"), ("seen", "5", "4"), ("idle", "5", "4")), {}, id="another cluster's job too"),
        pytest.param((("idle", "5", "4"),), {}, id="nothing but idle"),
        pytest.param((*FOUR_SEEN, ("idle", "5", "5")), {}, id="more idle than it has"),
        pytest.param((*FOUR_SEEN, ("idle", "5", "0.5")), {}, id="half a GPU"),
        pytest.param((*FOUR_SEEN, ("idle", "5", "NaN")), {}, id="no number"),
        pytest.param((*FOUR_SEEN, ("idle", "5", "-1")), {}, id="negative"),
        pytest.param((*FOUR_SEEN, ("idle", "5", "1e300")), {}, id="huge"),
        pytest.param((*FOUR_SEEN, ("idle", "5", "1"), ("idle", "5", "2")), {}, id="told twice"),
        pytest.param((*FOUR_SEEN, ("idle", 5, "1")), {"5": 0}, id="a label that is no text"),
        pytest.param((("all", "6", "4"), ("seen", "6", "4"), ("idle", "6", "4")), {}, id="a job not asked for"),
    ],
)
def test_a_running_job_has_idle_gpus_only_where_all_of_them_were_seen(
    values: tuple[tuple[str, object, object], ...], idle: dict[str, int]
) -> None:
    assert parse_idle(counts(*values), {"5": 4}, EXPORTERS) == idle


@pytest.mark.parametrize("body", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_what_is_no_answer_for_running_jobs_is_an_error(body: bytes) -> None:
    with pytest.raises(PrometheusError, match="as it should"):
        parse_idle(body, {"5": 1}, EXPORTERS)


def test_running_jobs_are_one_question_and_names_that_are_no_numbers_are_not_in_it() -> None:
    asked_for = list[str]()

    def answer(handler: BaseHTTPRequestHandler, query: str) -> None:
        asked_for.append(query)
        send(handler, counts(*FOUR_SEEN, ("idle", "5", "2")))

    with server(answer) as url:
        assert Prometheus(url).idle_gpus({"5": 4, "12+0": 1, "x'}": 1}, 3600, EXPORTERS) == {"5": 2}
    (query,) = asked_for
    assert "+" not in query
    assert "x'" not in query
    assert query.count("=~'5'") == 9
