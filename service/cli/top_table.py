"""Table of `firn top`: rates and states. [P]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from service.base.printable import printable
from service.console.figures import Between, Figures

_WHO: Final = 100
ORDERS: Final = ("requests", "in", "out", "p50", "p99", "errors")
"""Columns that APIs may be sorted by, the largest first."""


class _Requests(NamedTuple):
    """A line of the table of requests. `figures` are those of `ORDERS`: of a second, bytes, seconds."""

    api: str
    figures: tuple[float, float, float, float, float, float]


def table(url: str, before: Figures | None, now: Figures, order: str = ORDERS[0]) -> list[str]:
    """Return the lines of the screen; APIs by `order`, one of `ORDERS`."""
    between = Between(before, now)
    return [
        f"{printable(url)}: {_health(now)}",
        "",
        *_requests(between, order),
        "",
        *_tiers(between),
        "",
        *_loop(between),
    ]


def _health(now: Figures) -> str:
    words = "ready" if now.health.get("ready") else "not ready"
    checks: Mapping[str, Mapping[str, str]] = now.health.get("checks", {})
    bad = [
        f"{printable(what)} {printable(one.get('state'))}: {printable(one.get('why', ''))}"
        for what, one in checks.items()
        if one.get("state") != "ok"
    ]
    return "; ".join([words, *bad])


def _requests(between: Between, order: str) -> Iterator[str]:
    column = ORDERS.index(order)
    rows = sorted(_rates(between), key=lambda row: (-row.figures[column], row.api))
    width = 2 + max((len(row.api) for row in rows), default=0)
    yield (f"{'API':<{width}}{'requests/s':>12}{'in':>12}{'out':>12}{'p50':>10}{'p99':>10}{'errors/s':>10}")
    for row in rows:
        requests, received, sent, p50, p99, errors = row.figures
        yield (
            f"{row.api:<{width}}{requests:>12.1f}{_bytes(received):>10}/s{_bytes(sent):>10}/s"
            f"{_time(p50):>10}{_time(p99):>10}{errors:>10.1f}"
        )


def _rates(between: Between) -> Iterator[_Requests]:
    name = "firn_request_handling_seconds"
    for api in between.now.values(f"{name}_count", "api"):
        rate = between.rate(f"{name}_count", api=api)
        received = between.rate("firn_request_received_bytes_total", api=api)
        sent = between.rate("firn_request_sent_bytes_total", api=api)
        errors = between.rate("firn_request_errors_total", api=api)
        half, most = (between.quantile(name, share, api=api) for share in (0.5, 0.99))
        yield _Requests(printable(api), (rate, received, sent, half, most, errors))


def _tiers(between: Between) -> Iterator[str]:
    now = between.now
    yield f"{'tier':<10}{'segments':>12}{'bytes':>12}{'read':>12}"
    for tier in ("local", "bucket"):
        read = _bytes(between.rate("firn_fetched_bytes_total", tier=tier))
        size = _bytes(now.one("firn_log_bytes", tier=tier))
        yield f"{tier:<10}{now.one('firn_segments', tier=tier):>12.0f}{size:>12}{read:>10}/s"
    offline = now.one("firn_partitions", state="offline")
    yield f"partitions: {now.one('firn_partitions', state='online'):.0f}, {offline:.0f} offline"
    if "firn_tiering_lag_bytes" in now.samples:
        yield (
            f"offload: {_bytes(between.rate('firn_tiering_copied_bytes_total'))}/s, behind by "
            f"{_bytes(now.one('firn_tiering_lag_bytes'))} and {_time(now.one('firn_tiering_lag_seconds'))}"
        )
    for (_, reason), *_rest in now.samples.get("firn_tiering_blocked_partitions", {}):
        count = now.one("firn_tiering_blocked_partitions", reason=reason)
        yield f"  {count:.0f} do not tier: {printable(reason)}"
    for client in now.values("firn_store_reachable", "client"):
        calls = between.rate("firn_store_call_seconds_count", client=client)
        most = between.quantile("firn_store_call_seconds", 0.99, client=client)
        errors = between.rate("firn_store_errors_total", client=client)
        yield f"store, {printable(client)}: {calls:.1f} calls/s, p99 {_time(most)}, {errors:.1f} errors/s"


def _loop(between: Between) -> Iterator[str]:
    now, name = between.now, "firn_loop_turn_seconds"
    busy = between.rate(f"{name}_sum")
    cpu = between.rate("process_cpu_seconds_total")
    yield (
        f"loop: busy {busy:.0%}, turns p99 {_time(between.quantile(name, 0.99))}, longest "
        f"{_time(now.one('firn_loop_longest_turn_seconds'))}; cpu {cpu:.0%}, resident "
        f"{_bytes(now.one('process_resident_memory_bytes'))}, connections {now.total('firn_connections'):.0f}"
    )
    for turn in now.turns[:5]:
        yield (
            f"  {float(turn.get('took_ms', 0)):>8.1f} ms  {float(turn.get('ended_s_ago', 0)):>8.0f} s ago  "
            f"{printable(turn.get('who', ''), _WHO)}"
        )


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _time(seconds: float) -> str:
    if seconds == float("inf"):
        return "> 30 s"
    if seconds < 0.001:
        return f"{1e6 * seconds:.0f} µs" if seconds else "-"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.0f} s"
