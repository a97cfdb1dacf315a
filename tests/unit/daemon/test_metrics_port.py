"""The port of the metrics: no client and no scrape holds anything up, and the daemon goes on whatever becomes of it."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from slurmsched.daemon import metrics_exposition
from slurmsched.daemon.metrics_exposition import MAX_CLIENTS, MetricsPort, SeriesCollector
from slurmsched.doctor.finding import Verdict
from slurmsched.doctor.installation import check_metrics
from slurmsched.settings.definition import MetricsSettings
from tests.unit.daemon.test_loop import Running, running
from tests.unit.daemon.world import START


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def asked(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
    """The status, the type and the body of an answer."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()


def value(port: int, name: str) -> float:
    """The value of a metric without labels, or the sum of those with."""
    _, _, text = asked(port)
    families = text_string_to_metric_families(text.decode())
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


@contextmanager
def listening(collector: SeriesCollector | None = None) -> Iterator[tuple[MetricsPort, int]]:
    port = free_port()
    opened = MetricsPort(f"127.0.0.1:{port}", (collector or SeriesCollector(),))
    try:
        yield opened, port
    finally:
        opened.close()
    assert not opened.alive


def daemon_with_port(folder: Path, **other: object) -> tuple[Running, int]:
    """A daemon that has not run yet; on a virtual clock, so that its scrapes are at once."""
    daemon, port = running(folder, **other), free_port()  # type: ignore[arg-type] # as `running` takes them
    metrics = MetricsSettings(listen=f"127.0.0.1:{port}")
    daemon.world.settings = replace(daemon.world.settings, metrics=metrics)
    return daemon, port


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual seconds pass in no time."""
    monkeypatch.setattr(metrics_exposition, "RENDERED_FOR", 0.0)


def test_the_daemon_is_scraped_while_it_runs_and_not_afterwards(tmp_path: Path) -> None:
    daemon, port = daemon_with_port(tmp_path)
    daemon.world.submit(4)
    seen = []
    daemon.clock.after(50.0, lambda: seen.append(value(port, "synsched_rounds_total")))
    daemon.clock.after(650.0, lambda: seen.append(value(port, "synsched_rounds_total")))
    daemon.clock.after(660.0, lambda: seen.append(value(port, "synsched_heartbeat_timestamp_seconds") - START))
    daemon.run(700.0)
    assert seen[:2] == [1.0, 3.0]
    assert 650.0 <= seen[2] <= 660.0, "a heartbeat between rounds is told too"
    with pytest.raises(ConnectionRefusedError):
        asked(port)
    assert daemon.said == []


def test_early_rounds_and_failed_ones_are_counted_by_themselves(tmp_path: Path) -> None:
    daemon, port = daemon_with_port(tmp_path, early=3.0)
    kinds: list[dict[str, float]] = []

    def look() -> None:
        _, _, text = asked(port)
        rounds = (
            family for family in text_string_to_metric_families(text.decode()) if family.name == "synsched_rounds"
        )
        kinds.append({f"{s.labels['kind']} {s.labels['outcome']}": s.value for f in rounds for s in f.samples})

    daemon.clock.after(100.0, lambda: daemon.world.submit(1))
    daemon.clock.after(200.0, look)
    daemon.clock.after(290.0, lambda: setattr(daemon.world.simulated, "observe", _broken))
    daemon.clock.after(305.0, look)
    daemon.run(320.0)
    early = sum(0 < at < 200 for at in daemon.starts())
    assert kinds[0] == {"full ok": 1.0, "early ok": early, "full failed": 0.0, "early failed": 0.0}
    assert early >= 1
    assert kinds[1]["full failed"] == sum(299 < at < 305 for at in daemon.starts()) >= 1


def _broken() -> None:
    raise ZeroDivisionError


def test_a_port_that_somebody_else_has_is_said_once_and_taken_when_it_is_free(tmp_path: Path) -> None:
    daemon, port = daemon_with_port(tmp_path)
    other = socket.create_server(("127.0.0.1", port))
    daemon.clock.after(700.0, other.close)
    seen = []
    daemon.clock.after(950.0, lambda: seen.append(value(port, "synsched_rounds_total")))
    daemon.run(1000.0)
    assert daemon.starts() == [0, 300, 600, 900]
    assert seen == [4.0]
    why = f"cannot listen on 127.0.0.1:{port}: Address already in use"
    assert daemon.said == [f"no metrics: {why}; rounds go on, see [metrics]"]


def test_a_damaged_textfile_keeps_no_daemon_from_starting(tmp_path: Path) -> None:
    daemon, file = running(tmp_path), tmp_path / "x.prom"
    daemon.world.settings = replace(daemon.world.settings, metrics=MetricsSettings(textfile=str(file)))
    file.write_bytes(b"synsched_rounds_total{kind=")
    daemon.run(700.0)
    assert daemon.starts() == [0, 300, 600]
    assert [line.partition(":")[0] for line in daemon.said] == ["metrics are not up to date"]
    assert 'synsched_rounds_total{kind="full",outcome="ok"} 3.0' in file.read_text(encoding="utf-8")


def test_a_thread_that_has_died_is_replaced_after_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, port = daemon_with_port(tmp_path)
    opened, seen = list[MetricsPort](), list[float]()

    class Noted(MetricsPort):
        def __init__(self, address: str, collectors: Iterable[Collector]) -> None:
            super().__init__(address, collectors)
            opened.append(self)

    monkeypatch.setattr(metrics_exposition, "MetricsPort", Noted)
    daemon.clock.after(100.0, lambda: [port.close() for port in opened])  # it is opened later
    daemon.clock.after(350.0, lambda: seen.append(value(port, "synsched_rounds_total")))
    daemon.run(400.0)
    assert seen == [2.0]
    assert len(opened) == 2


def test_a_reload_moves_the_port_and_closes_it(tmp_path: Path) -> None:
    daemon, port = daemon_with_port(tmp_path)
    moved, seen = free_port(), []

    def reload(listen: str) -> Callable[[], None]:
        def do() -> None:
            daemon.world.settings = replace(daemon.world.settings, metrics=MetricsSettings(listen=listen))
            daemon.requests.handle(1)

        return do

    def refused(of: int) -> bool:
        with closing(socket.socket()) as client:
            return client.connect_ex(("127.0.0.1", of)) != 0

    daemon.clock.after(10.0, reload(f"127.0.0.1:{moved}"))
    daemon.clock.after(20.0, lambda: seen.append((refused(port), value(moved, "synsched_rounds_total"))))
    daemon.clock.after(30.0, reload(""))
    daemon.clock.after(40.0, lambda: seen.append((refused(port), float(refused(moved)))))
    daemon.run(50.0)
    assert seen == [(True, 1.0), (True, 1.0)]


def test_the_heartbeat_is_told_right_while_the_daemon_hangs(tmp_path: Path) -> None:
    daemon, port = daemon_with_port(tmp_path)
    seen = []

    def hang() -> None:
        """A poll that does not return, for half a real second in which the virtual clock stands still."""
        time.sleep(0.5)
        seen.append(value(port, "synsched_heartbeat_timestamp_seconds"))

    daemon.clock.after(100.0, hang)
    daemon.run(150.0)
    assert 80.0 <= seen[0] - START <= 100.0


def test_a_scrape_does_not_wait_for_python_that_is_busy(tmp_path: Path) -> None:
    with listening() as (_, port):
        busy, took = threading.Event(), list[float]()

        def compute() -> None:
            while not busy.is_set():
                sum(range(10_000))

        worker = threading.Thread(target=compute)
        worker.start()
        try:
            for _ in range(5):
                began = time.monotonic()
                assert asked(port)[0] == 200
                took.append(time.monotonic() - began)
        finally:
            busy.set()
            worker.join()
        assert sorted(took)[2] < 2.0, took


def disconnected(client: socket.socket) -> bool:
    """Whether the other side ends the connection within ten seconds, without a word."""
    client.settimeout(10)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_clients_that_say_nothing_hold_up_nobody_and_are_dismissed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_exposition, "CLIENT_TIMEOUT", 3.0)
    with listening() as (_, port), ExitStack() as clients:

        def connect() -> socket.socket:
            return clients.enter_context(closing(socket.create_connection(("127.0.0.1", port))))

        silent = [connect() for _ in range(MAX_CLIENTS - 1)]
        assert asked(port)[0] == 200, "one place is left"
        silent.append(connect())
        time.sleep(0.2)
        began = time.monotonic()
        assert disconnected(connect()), "one too many"
        assert time.monotonic() - began < 2.0
        assert all(map(disconnected, silent))
        assert asked(port)[0] == 200


def test_a_client_that_reads_nothing_is_dismissed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_exposition, "CLIENT_TIMEOUT", 0.5)
    monkeypatch.setattr(MetricsPort, "_text", lambda *_: (b"x" * (64 << 20), "text/plain"))
    with listening() as (opened, port), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert client.recv(1, socket.MSG_PEEK) == b"H"
        deadline = time.monotonic() + 10
        while opened._clients:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", b"404", id="another path"),
        pytest.param(b"GET /metrics?name[]=x HTTP/1.1\r\n\r\n", b"200", id="a query"),
        pytest.param(b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200", id="the head alone"),
        pytest.param(b"POST /metrics HTTP/1.1\r\n\r\n", b"405", id="another method"),
        pytest.param(b"\r\n\r\n", b"405", id="no request at all"),
        pytest.param(b"\xff\xfe\x00 \x80\r\n\r\n", b"405", id="bytes that are no text"),
        pytest.param(b"GET /metrics HTTP/1.1\r\nAccept: \xff;q=;;=,\r\n\r\n", b"200", id="an Accept that is none"),
        pytest.param(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9000, b"", id="a head that is too long"),
        pytest.param(b"GET /met", b"", id="a client that leaves halfway"),
    ],
)
def test_requests(request_: bytes, status: bytes) -> None:
    with listening() as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(10)
            client.sendall(request_)
            client.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while chunk := client.recv(1 << 16):
                    answer += chunk
            except ConnectionResetError:
                pass
        assert answer.split(b" ", 2)[1:2] == ([status] if status else [])
        assert asked(port)[0] == 200, "and others are served"


def test_who_asks_for_openmetrics_gets_it() -> None:
    with listening() as (_, port):
        status, form, text = asked(port, Accept="application/openmetrics-text; version=1.0.0; q=0.9, text/plain; q=0.1")
        assert (status, form.partition(";")[0], text) == (200, "application/openmetrics-text", b"# EOF\n")
        assert asked(port)[1].startswith("text/plain; version=")


def test_a_figure_that_cannot_be_written_is_an_answer_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = SeriesCollector()
    with listening(collector) as (_, port):
        collector.series = (None,)  # type: ignore[assignment] # what no text can be made of
        assert asked(port)[0] == 500
        collector.series = ()
        assert asked(port)[0] == 200


def test_a_text_is_made_once_a_second_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_exposition, "RENDERED_FOR", 60.0)
    collector, made = SeriesCollector(), list[int]()
    monkeypatch.setattr(SeriesCollector, "collect", lambda _self: made.append(1) or iter(()))
    with listening(collector) as (_, port):
        before = len(made)
        assert {asked(port)[0] for _ in range(20)} == {200}
        assert len(made) - before == 1


class TestDoctor:
    """Whether the metrics are where the settings say."""

    @staticmethod
    def finding(ended: float | None = 100.0, **settings: str) -> tuple[Verdict, str]:
        (found,) = check_metrics(MetricsSettings(**settings), ended)
        return found.verdict, found.sentence

    def test_nothing_is_said_where_nothing_is_set(self) -> None:
        assert list(check_metrics(MetricsSettings(), 1.0)) == []

    def test_a_daemon_that_answers(self, tmp_path: Path) -> None:
        daemon, port = daemon_with_port(tmp_path)
        seen = []
        daemon.clock.after(10.0, lambda: seen.append(self.finding(listen=f"127.0.0.1:{port}")))
        daemon.run(20.0)
        assert seen == [(Verdict.OK, f"http://127.0.0.1:{port}/metrics answers")]

    def test_nobody_answers(self) -> None:
        verdict, sentence = self.finding(listen=f"127.0.0.1:{free_port()}")
        assert (verdict, "does not answer (Connection refused)" in sentence) == (Verdict.PROBLEM, True)

    def test_another_program_answers(self) -> None:
        with listening() as (_, port):
            verdict, sentence = self.finding(listen=f"127.0.0.1:{port}")
        assert (verdict, sentence) == (Verdict.PROBLEM, f"another program answers on http://127.0.0.1:{port}/metrics")

    def test_who_does_not_speak_http_is_no_traceback(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=lambda: server.accept()[0].sendall(b"SSH-2.0-x\r\n"), daemon=True).start()
            verdict, _ = self.finding(listen=f"127.0.0.1:{server.getsockname()[1]}")
        assert verdict is Verdict.PROBLEM

    @pytest.mark.parametrize(
        ("mode", "age", "verdict", "said"),
        [
            pytest.param(0o644, 0.0, Verdict.OK, "as of the last round", id="as it should be"),
            pytest.param(0o600, 0.0, Verdict.PROBLEM, "node_exporter cannot read", id="nobody else may read it"),
            pytest.param(0o644, 500.0, Verdict.PROBLEM, "older than the last round", id="not rewritten"),
            pytest.param(None, 0.0, Verdict.PROBLEM, "does not exist", id="missing"),
        ],
    )
    def test_the_textfile(
        self, mode: int | None, age: float, verdict: Verdict, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            Path(folder).chmod(0o755)
            file = Path(folder) / "synsched.prom"
            now = time.time()
            if mode is not None:
                file.write_text("")
                file.chmod(mode)
                os.utime(file, (now - age, now - age))
            found, sentence = self.finding(ended=now, textfile=str(file))
        assert (found, said in sentence) == (verdict, True)
