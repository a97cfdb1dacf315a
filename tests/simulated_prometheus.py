"""A simulated Prometheus with the series of slurm-job-exporter: what it tells is made up, in a file of JSON by Slurm's
number of the job; HTTP is real, and it checks the queries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs

Use = Mapping[str, Mapping[str, Sequence[float]]]
"""By job: `gpu` in percent and `memory` in MiB of each GPU, `cpu` in seconds; `looks` is at how many of the looks at a
running job the use of each GPU was there, all of them if it is missing."""
TERM = re.compile(r'label_replace\((?P<query>.*?),"synsched","(?P<label>\d+ (?P<amount>[a-z]+))","",""\)(?: or |\Z)')
WINDOW = r"{slurmjobid='(?P<job>\d+)'}\[\d+s\] @ \d+\)"
QUERIES = {
    "gpu": rf"avg_over_time\(slurm_job_utilization_gpu{WINDOW}",
    "memory": rf"max_over_time\(slurm_job_memory_usage_gpu{WINDOW}/1048576",
    "cpu": rf"sum\(max_over_time\(slurm_job_core_usage_total{WINDOW}\)/1e9",
}


def answer(query: str, use: Use) -> bytes:
    """What Prometheus answers: one value of each series that there is."""
    if "count" in query:
        return answer_for_running(query, use)
    terms = list(TERM.finditer(query))
    assert sum(len(term[0]) for term in terms) == len(query), "the query has something else"
    result = []
    for term in terms:
        asked = re.fullmatch(QUERIES[term["amount"]], term["query"])
        values = use.get(asked["job"], {}).get(term["amount"], ()) if asked else ()
        result += [{"metric": {"synsched": term["label"], "gpu": str(n)}, "value": [0, str(value)]} for n, value in
                   enumerate(values)]  # fmt: skip
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


RUNNING = re.compile(
    r'label_replace\((?P<query>count[ _].*?),"synsched",'
    r'"(?P<what>idle|all|seen) (?P<exporter>[\w-]+)","",""\)(?: or |\Z)'
)
SERIES = r"slurm_job_utilization_gpu{slurmjobid=~'(?P<jobs>\d+(?:\|\d+)*)'}"
COUNTED = {
    "idle": rf"count by\(slurmjobid\)\(\(avg_over_time\({SERIES}\[\d+s\]\)>=0\)<1\)",
    "all": rf"count by\(slurmjobid\)\(avg_over_time\({SERIES}\[\d+s\]\)\)",
    "seen": rf"count by\(slurmjobid\)\(count_over_time\({SERIES}\[\d+s:300s\]\)>=(?P<looks>\d+)\)",
}


def answer_for_running(query: str, use: Use) -> bytes:
    """What Prometheus answers to the question for running jobs: counts of the GPUs of each, none where it is 0."""
    terms, result = list(RUNNING.finditer(query)), []
    assert sum(len(term[0]) for term in terms) == len(query), "the query has something else"
    for term in terms:
        asked = re.fullmatch(COUNTED[term["what"]], term["query"])
        for job in asked["jobs"].split("|") if asked else ():
            gpus = [float(percent) for percent in use.get(job, {}).get("gpu", ())]
            counted = {
                "idle": sum(0 <= percent < 1 for percent in gpus),
                "all": len(gpus),
                "seen": sum(
                    looks >= float(asked.groupdict().get("looks") or 0)
                    for looks in use.get(job, {}).get("looks", [1e9] * len(gpus))
                ),
            }[term["what"]]
            label = {"synsched": f"{term['what']} {term['exporter']}", "slurmjobid": job}
            result += [{"metric": label, "value": [0, str(counted)]}] if counted else []
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def server(port: int, use: Path) -> ThreadingHTTPServer:
    """The server, to be run; the file is read at each question."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            body = answer(form["query"][0], json.loads(use.read_text()))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


@contextmanager
def serving(use: Path) -> Iterator[str]:
    """Its URL, while it runs in a thread."""
    with running(server(0, use)) as url:
        yield url


@contextmanager
def running(http: ThreadingHTTPServer) -> Iterator[str]:
    """The server's URL, while it runs in a thread."""
    thread = Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
