"""Counts a store's requests, their duration, errors and cost."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Histogram

from braidlog.cost.bill import Usage, bill
from braidlog.cost.prices import Price, price_for
from braidlog.objects.store import Store
from braidlog.objects.wrapper import Operation, Request, StoreWrapper, T, response_bytes
from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import BraidError

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class StoreMetrics:
    """The metrics of all stores of a process, told apart by the label `store`.

    One per registry.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "braidlog_store_requests_total",
            "Requests to the object store, by operation.",
            ["store", "operation"],
            registry=registry,
        )
        self.transferred = Counter(
            "braidlog_store_bytes_total",
            "Bytes of objects written to and read from the store.",
            ["store", "direction"],
            registry=registry,
        )
        self.errors = Counter(
            "braidlog_store_errors_total",
            "Requests that failed, by operation and kind of error.",
            ["store", "operation", "kind"],
            registry=registry,
        )
        self.seconds = Histogram(
            "braidlog_store_request_seconds",
            "How long the store takes to answer.",
            ["store", "operation"],
            registry=registry,
            buckets=LATENCY_BUCKETS_S,
        )
        self.usd = Counter(
            "braidlog_store_usd_total",
            "What requests and transfer have cost so far, by the price book.",
            ["store"],
            registry=registry,
        )


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    requests: Mapping[str, int]
    """Requests by operation."""
    errors: Mapping[str, int]
    """Errors by kind, which is the name of the error's class."""
    upload_bytes: int
    download_bytes: int
    usage: Usage
    usd: float
    usd_month: float
    """The cost of a month at this pace, without storage: the store does not say how much it holds."""
    elapsed_s: float


class MeteredStore(StoreWrapper):
    def __init__(
        self,
        inner: Store,
        metrics: StoreMetrics,
        *,
        clock: Clock,
        name: str = "main",
        price: Price | None = None,
    ) -> None:
        super().__init__(inner)
        self._metrics = metrics
        self._clock = clock
        self._name = name
        self._price = price if price is not None else price_for(inner.url)
        self._started_s = clock.monotonic_s()
        self._requests = dict.fromkeys(Operation, 0)
        self._errors: dict[str, int] = {}
        self._upload_bytes = 0
        self._download_bytes = 0
        self._counters = {operation: metrics.requests.labels(name, operation.value) for operation in Operation}
        self._histograms = {operation: metrics.seconds.labels(name, operation.value) for operation in Operation}
        self._uploaded = metrics.transferred.labels(name, "upload")
        self._downloaded = metrics.transferred.labels(name, "download")
        self._usd = metrics.usd.labels(name)

    @property
    def price(self) -> Price:
        return self._price

    def statistics(self) -> StoreStatistics:
        usage = self._usage()
        elapsed_s = self._clock.monotonic_s() - self._started_s
        cost = bill(usage, self._price, elapsed_s=elapsed_s)
        return StoreStatistics(
            requests=MappingProxyType({operation.value: count for operation, count in self._requests.items()}),
            errors=MappingProxyType(dict(self._errors)),
            upload_bytes=self._upload_bytes,
            download_bytes=self._download_bytes,
            usage=usage,
            usd=cost.total_usd,
            usd_month=cost.month_usd,
            elapsed_s=elapsed_s,
        )

    async def _around(self, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        operation = request.operation
        started_s = self._clock.monotonic_s()
        # Counted before the answer: a request that fails or is given up is paid for as well.
        self._requests[operation] += request.request_count
        self._counters[operation].inc(request.request_count)
        self._upload_bytes += request.upload_bytes
        self._uploaded.inc(request.upload_bytes)
        downloaded_bytes = 0
        try:
            result = await call()
            downloaded_bytes = response_bytes(result)
            return result
        except BaseException as error:
            # Cancelled calls count too: most of them are attempts that took too long.
            kind = type(error).__name__ if isinstance(error, BraidError) else "Cancelled"
            self._errors[kind] = self._errors.get(kind, 0) + 1
            self._metrics.errors.labels(self._name, operation.value, kind).inc()
            raise
        finally:
            self._download_bytes += downloaded_bytes
            self._downloaded.inc(downloaded_bytes)
            self._usd.inc(self._request_usd(request, downloaded_bytes))
            self._histograms[operation].observe(self._clock.monotonic_s() - started_s)

    def _request_usd(self, request: Request, downloaded_bytes: int) -> float:
        count = request.request_count
        usage = Usage(
            put_count=count if request.operation.writes else 0,
            get_count=count if request.operation.reads_data or request.operation is Operation.HEAD else 0,
            list_count=count if request.operation is Operation.LIST else 0,
            delete_count=count if request.operation is Operation.DELETE else 0,
            upload_bytes=request.upload_bytes,
            download_bytes=downloaded_bytes,
        )
        return bill(usage, self._price, elapsed_s=0.0).total_usd

    def _usage(self) -> Usage:
        count = self._requests
        return Usage(
            put_count=sum(count[operation] for operation in Operation if operation.writes),
            get_count=sum(count[operation] for operation in Operation if operation.reads_data) + count[Operation.HEAD],
            list_count=count[Operation.LIST],
            delete_count=count[Operation.DELETE],
            upload_bytes=self._upload_bytes,
            download_bytes=self._download_bytes,
        )
