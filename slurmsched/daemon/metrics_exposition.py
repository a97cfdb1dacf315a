"""Exposes the metrics: on a port, for Prometheus, and as a textfile, for node_exporter.

The port is served by a thread of its own that reads a value which the daemon has left there; neither waits for the
other. Limited are the clients at a time, their time, what is read of them, and how often the text is made anew. A
failure of either costs the metrics alone: it is logged once, and tried again after the next round.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from slurmsched.backends.protocol import CallCounts
from slurmsched.daemon.clock import Clock
from slurmsched.daemon.exporter import replace_file
from slurmsched.daemon.isolation import format_trace
from slurmsched.daemon.metric_definitions import METRICS, Metric, MetricKind
from slurmsched.daemon.metrics import BUCKETS, DaemonMetrics, LabelValues, Series
from slurmsched.daemon.scheduler import RoundReport
from slurmsched.model import Block
from slurmsched.settings.definition import Mode, Settings
from slurmsched.settings.schema import parse_listen_address
from slurmsched.store.store import Store

MAX_CLIENTS: Final = 16
"""Clients at a time; a further connection is closed at once."""
CLIENT_TIMEOUT: Final = 5.0
"""Seconds after which a client is disconnected."""
MAX_HEAD: Final = 8192
"""Bytes of a request; scrapes have a few hundred."""
RENDERED_FOR: Final = 1.0
"""Seconds for which a text is sent again, so that a client that asks in a loop costs little processor time."""
_MAX_TEXTFILE: Final = 1 << 20
_MAX_CACHED: Final = 8
_MAX_RESTORED: Final = 1000
"""Counters of a textfile; one with more is not ours."""
_BOUNDS: Final = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")
_BY_NAME: Final = {metric.series_name: metric for metric in METRICS}


class SeriesCollector(Collector):
    """What prometheus_client writes as text: the series that were left here last."""

    def __init__(self) -> None:
        self.series: tuple[Series, ...] = ()

    def collect(self) -> Iterator[Family]:
        """The present series as families of prometheus_client."""
        return map(_family, self.series)


def _family(series: Series) -> Family:
    metric = series.metric
    arguments = metric.name, metric.doc.replace("`", ""), None
    match metric.kind:
        case MetricKind.COUNTER:
            counter = CounterMetricFamily(*arguments, labels=metric.label_names)
            for labels, value in series.values:
                counter.add_metric(labels, value)
            return counter
        case MetricKind.GAUGE:
            gauge = GaugeMetricFamily(*arguments, labels=metric.label_names)
            for labels, value in series.values:
                gauge.add_metric(labels, value)
            return gauge
        case MetricKind.HISTOGRAM:
            histogram = HistogramMetricFamily(*arguments, labels=metric.label_names)
            for labels, counts, total in series.distributions:
                histogram.add_metric(labels, list(zip(_BOUNDS, map(float, counts), strict=True)), total)
            return histogram


def text_of(series: tuple[Series, ...]) -> bytes:
    """The series in Prometheus' text format, without those of the process, which node_exporter has of its own."""
    collector, registry = SeriesCollector(), CollectorRegistry()
    collector.series = series
    registry.register(collector)
    return generate_latest(registry)


def parse_series(text: str) -> tuple[Series, ...]:
    """Our series in a text that `text_of` made; what is not ours is left out. Raises ValueError."""
    values = dict[Metric, list[tuple[LabelValues, float]]]()
    counts, sums = dict[tuple[Metric, LabelValues], dict[str, float]](), dict[tuple[Metric, LabelValues], float]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name, suffix = sample.name, ""
            if family.type == "histogram":
                name, _, suffix = sample.name.rpartition("_")
            metric = _BY_NAME.get(name)
            if metric is None or not set(metric.label_names) <= set(sample.labels):
                continue
            labels = tuple(sample.labels[label] for label in metric.label_names)
            if suffix == "bucket":
                counts.setdefault((metric, labels), {})[f"{float(sample.labels['le']):g}"] = sample.value
            elif suffix == "sum":
                sums[metric, labels] = sample.value
            elif not suffix and isfinite(sample.value):
                values.setdefault(metric, []).append((labels, sample.value))
    bounds = tuple(f"{float(bound):g}" for bound in _BOUNDS)
    series = [Series(metric, tuple(told)) for metric, told in values.items()]
    for (metric, labels), by_bound in counts.items():
        if tuple(by_bound) == bounds:  # those of another release cannot be gone on from
            cumulative = tuple(map(int, accumulate(by_bound.values(), max)))
            series.append(Series(metric, (), ((labels, cumulative, sums.get((metric, labels), 0.0)),)))
    return tuple(series)


class MetricsPort:
    """Answers scrapes on an address, HOST:PORT, until it is closed."""

    def __init__(self, address: str, collectors: Iterable[Collector]) -> None:
        """Raises OSError where the address cannot be had."""
        self.address = address
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        self._socket = _listening(address)
        self._clients = 0
        self._rendered = dict[str, tuple[float, bytes]]()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="synsched-metrics", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop listening and end the thread."""
        with suppress(RuntimeError):  # the thread has ended by itself
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(timeout=CLIENT_TIMEOUT)

    def _run(self) -> None:
        with self._socket, self._runner:
            self._runner.run(self._serve())

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._answer, sock=self._socket, limit=MAX_HEAD):
            await self._closing.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of one client, and disconnect it: scrapes are seconds apart."""
        self._clients += 1
        try:
            if self._clients <= MAX_CLIENTS:
                async with asyncio.timeout(CLIENT_TIMEOUT):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._response(head))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has gone, is too slow, or is none of ours
        finally:
            self._clients -= 1
            writer.transport.abort()

    def _response(self, head: bytes) -> bytes:
        request, *lines = head.decode("latin-1").split("\r\n")
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _http(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n")
        if path != "/metrics":
            return _http(HTTPStatus.NOT_FOUND, b"synsched: see /metrics\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        try:
            text, form = self._text(headers.get("accept", ""))
        except Exception:  # no figure may end the port
            return _http(HTTPStatus.INTERNAL_SERVER_ERROR, b"the metrics cannot be written\n")
        return _http(HTTPStatus.OK, text, form, with_body=method == "GET")

    def _text(self, accepted: str) -> tuple[bytes, str]:
        """The metrics in the form that the client accepts, at most a second old, and the form's name."""
        encode, form = choose_encoder(accepted)
        now = time.monotonic()
        made, text = self._rendered.get(form, (-RENDERED_FOR, b""))
        if now - made >= RENDERED_FOR:
            text = encode(self._registry)
            if len(self._rendered) >= _MAX_CACHED:
                self._rendered.clear()
            self._rendered[form] = now, text
        return text, form


def _listening(address: str) -> socket.socket:
    where = parse_listen_address(address)
    if where is None:
        raise OSError(f"{address} is no address to listen on")
    listener = socket.socket(socket.AF_INET6 if ":" in where[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(MAX_CLIENTS)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _http(status: HTTPStatus, body: bytes, form: str = "text/plain; charset=utf-8", *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {form}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + (body if with_body else b"")


class MetricsExporter:
    """Keeps the metrics of this process up to date and exposes them as the settings say; without either of both it
    does nothing. No method raises: a failure is logged, the same one once."""

    def __init__(
        self, settings: Settings, store: Store, clock: Clock, log: Callable[[str], None], *, serves: bool
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._log = log
        self._serves = serves
        self._metrics = DaemonMetrics(store)
        self._collector = SeriesCollector()
        self._port: MetricsPort | None = None
        self._last_logged = ""
        self._restored = False

    @property
    def _active(self) -> bool:
        wanted = self._settings.metrics
        return bool(wanted.textfile or (wanted.listen and self._serves))

    def configure(self, settings: Settings, backend: str) -> None:
        """Go on with these settings: the port is opened, moved or closed."""
        self._settings = settings
        if not self._restored:
            self._guarded(self._restore)
        self._guarded(lambda: self._metrics.configured(settings, backend))
        self._guarded(self._open_port)
        self._publish()

    def round_ended(self, report: RoundReport, calls: CallCounts) -> None:
        """Take over the figures of a round that was ok."""
        if self._active:
            self._guarded(lambda: self._metrics.round_ended(report, self._settings, self._clock.now()))
            self._round_over(calls)

    def round_failed(self, calls: CallCounts, *, starts_only: bool) -> None:
        """Count a round that failed."""
        if self._active:
            self._guarded(lambda: self._metrics.round_failed(self._clock.now(), starts_only=starts_only))
            self._round_over(calls)

    def heartbeat(self, at: float | None, mode: Mode, closed: Block | None) -> None:
        """Note a heartbeat, for the port; the textfile is written after rounds."""
        if self._active:
            self._guarded(lambda: self._metrics.heartbeat(at, mode, closed))
            self._publish()

    def write_textfile(self) -> None:
        """Write the textfile, if there is to be one."""
        if self._settings.metrics.textfile:
            self._guarded(self._write_textfile)

    def close(self) -> None:
        """Stop serving; the textfile stays as it is."""
        if self._port is not None:
            self._port.close()
            self._port = None

    def _round_over(self, calls: CallCounts) -> None:
        self._guarded(lambda: self._metrics.called(calls))
        self._guarded(self._open_port)
        self._publish()
        self.write_textfile()

    def _publish(self) -> None:
        if self._active:
            self._guarded(lambda: setattr(self._collector, "series", self._metrics.series()))

    def _open_port(self) -> None:
        """Open the port that the settings name, if none is open there."""
        address = self._settings.metrics.listen if self._serves else ""
        if self._port is not None and (self._port.address != address or not self._port.alive):
            self.close()
        if address and self._port is None:
            try:
                self._port = MetricsPort(address, (self._collector, ProcessCollector(registry=None)))
            except OSError as error:
                raise OSError(error.errno, f"cannot listen on {address}: {error.strerror or error}") from error

    def _write_textfile(self) -> None:
        path = Path(self._settings.metrics.textfile)
        try:
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                replace_file(folder, path.name, text_of(self._collector.series))
            finally:
                os.close(folder)
        except OSError as error:
            raise OSError(error.errno, f"cannot write {path}: {error.strerror or error}") from error

    def _restore(self) -> None:
        """Go on from the counters in the textfile: those of `run --once` would otherwise begin anew each time. A file
        that a reload names is not gone on from."""
        self._restored, path = True, self._settings.metrics.textfile
        if not path:
            return
        try:
            with Path(path).open("rb") as file:
                ours = os.fstat(file.fileno()).st_uid == os.geteuid()
                text = file.read(_MAX_TEXTFILE).decode("utf-8", "replace") if ours else ""
        except FileNotFoundError:
            return
        series = parse_series(text)
        counted = [one for one in series if one.metric.kind is not MetricKind.GAUGE]
        if sum(len(one.values) + len(one.distributions) for one in counted) <= _MAX_RESTORED:
            self._metrics.restore(series)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            self._log_once(f"no metrics: {error.strerror or error}; rounds go on, see [metrics]")
        except Exception as error:  # of any kind: only people depend on metrics
            self._log_once(f"metrics are not up to date: {format_trace(error)}")

    def _log_once(self, line: str) -> None:
        if line != self._last_logged:
            self._log(line)
        self._last_logged = line
