"""Jobs and streams on a store that goes away, throttles and lets credentials expire: rows exact.

An outage begins with a request, so that it hits what it is meant for, and lasts longer than obstore's own
retries did; the long ones are a minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import errors

from tests.spark.conftest import read
from tests.spark.filling import Filled, Row
from tests.spark.frames import rows_of
from tests.support.faults import Fault, FaultProxy, Seen, fault_proxy
from tests.support.processes import wait_until
from tests.support.stores import ACCESS, SECRET, Store

SHORT_S, LONG_S = 12.0, 60.0
PROFILE = "[{}]\naws_access_key_id={}\naws_secret_access_key=secret\n"
LENGTHS = [
    pytest.param(SHORT_S, marks=pytest.mark.thorough),
    pytest.param(LONG_S, marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
]


class Outage:
    """A plan for the proxy: from the first request that `begins` it on, `fault` for so long."""

    def __init__(self, fault: Fault, length_s: float, begins: Callable[[Seen], bool]) -> None:
        self.fault = fault
        self.length_s = length_s
        self.begins = begins
        self.began_s: float | None = None
        self.refused = 0
        self._lock = threading.Lock()

    def __call__(self, seen: Seen) -> Fault:
        with self._lock:
            if self.began_s is None and self.begins(seen):
                self.began_s = seen.at_s
            if self.began_s is None or seen.at_s - self.began_s >= self.length_s:
                return Fault.PASS
            self.refused += 1
            return self.fault

    @property
    def is_over(self) -> bool:
        return self.began_s is not None and time.monotonic() - self.began_s >= self.length_s


def of_planning(seen: Seen) -> bool:
    return "topics.json" in seen.path


def of_reading(seen: Seen) -> bool:
    return ".seg" in seen.path


@pytest.fixture
def proxy(filled_s3: Filled) -> Iterator[FaultProxy]:
    assert filled_s3.store.endpoint is not None
    with fault_proxy(filled_s3.store.endpoint) as found:
        yield found


@pytest.fixture
def behind(filled_s3: Filled, proxy: FaultProxy) -> Store:
    """The filled bucket, through the proxy."""
    return Store(filled_s3.store.url, {}, {}, proxy.endpoint)


def mixed(spark: Any, store: Store, **options: object) -> Any:
    return read(spark, store, subscribe="mixed", includeHeaders="true", **options)


def of_mixed(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.partition, row.offset))


@pytest.mark.parametrize("length_s", LENGTHS)
def test_a_batch_read_outlives_a_store_that_is_away_while_it_plans_and_throttles_while_it_reads(
    spark: Any, filled_s3: Filled, proxy: FaultProxy, behind: Store, length_s: float
) -> None:
    planning = Outage(Fault.REFUSE, length_s, of_planning)
    reading = Outage(Fault.SLOW_DOWN, length_s, of_reading)
    proxy.plan = lambda seen: planning(seen) if not planning.is_over else reading(seen)
    begun = time.monotonic()
    assert rows_of(mixed(spark, behind)) == filled_s3.rows["mixed"]
    took = time.monotonic() - begun
    assert planning.is_over
    assert reading.is_over
    print(
        f"away for {length_s:.0f} s at planning ({planning.refused} requests), throttled as long at reading"
    )
    print(f"({reading.refused} requests): {took:.1f} s in all, {len(proxy.seen)} requests")
    # Two workers with a few threads each: a handful of requests a second would be hundreds.
    assert planning.refused < 2 * length_s
    assert reading.refused < 20 + 2 * length_s


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_batch_read_outlives_the_other_way_round(
    spark: Any, filled_s3: Filled, proxy: FaultProxy, behind: Store
) -> None:
    planning = Outage(Fault.SLOW_DOWN, LONG_S, of_planning)
    reading = Outage(Fault.REFUSE, LONG_S, of_reading)
    proxy.plan = lambda seen: planning(seen) if not planning.is_over else reading(seen)
    begun = time.monotonic()
    assert rows_of(mixed(spark, behind)) == filled_s3.rows["mixed"]
    print(f"{planning.refused} and {reading.refused} requests refused, {time.monotonic() - begun:.1f} s")
    assert planning.is_over
    assert reading.is_over


@pytest.mark.parametrize(
    ("fault", "length_s"),
    [
        (Fault.REFUSE, SHORT_S),
        pytest.param(Fault.REFUSE, LONG_S, marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
        pytest.param(Fault.SLOW_DOWN, LONG_S, marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
)
def test_a_stream_goes_on_when_the_store_is_back(
    spark: Any,
    filled_s3: Filled,
    proxy: FaultProxy,
    behind: Store,
    tmp_path: Path,
    fault: Fault,
    length_s: float,
) -> None:
    outages = [
        Outage(fault, length_s, lambda seen: of_reading(seen) and seen.number > 20),
        Outage(fault, length_s, lambda seen: of_planning(seen) and outages[0].is_over),
    ]
    batches: dict[int, list[Row]] = {}

    def decide(seen: Seen) -> Fault:
        return next((found for one in outages if (found := one(seen)) is not Fault.PASS), Fault.PASS)

    proxy.plan = decide
    stream = spark.readStream.format("firn").option("url", behind.url).option("endpoint", behind.endpoint)
    frame = stream.options(subscribe="mixed", includeHeaders="true", startingOffsets="earliest").load()
    writer = frame.writeStream.foreachBatch(lambda batch, number: batches.update({number: rows_of(batch)}))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="1 second").start()
    wanted = filled_s3.rows["mixed"]
    try:

        def is_done() -> bool:
            assert query.exception() is None, query.exception()
            return outages[1].is_over and sum(map(len, batches.values())) >= len(wanted)

        wait_until("all rows, and both outages to be over", is_done, 3 * length_s + 60)
    finally:
        query.stop()
    assert of_mixed([row for rows in batches.values() for row in rows]) == wanted
    print(f"{fault.value} for {length_s:.0f} s: {[one.refused for one in outages]} requests refused")


def test_a_stream_can_be_stopped_while_the_store_is_away(
    spark: Any, proxy: FaultProxy, behind: Store, tmp_path: Path
) -> None:
    stream = spark.readStream.format("firn").option("url", behind.url).option("endpoint", behind.endpoint)
    writer = stream.option("subscribe", "mixed").load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="1 second").start()
    wait_until("a first trigger", lambda: any(of_planning(seen) for seen in proxy.seen))
    proxy.mode = Fault.REFUSE
    failed = proxy.failed
    wait_until("requests that fail", lambda: proxy.failed >= failed + 2)
    begun = time.monotonic()
    query.stop()
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("option", ["aws.profile", "aws.credentials.provider"])
def test_credentials_that_expire_in_the_middle_of_a_job_are_renewed(
    spark: Any,
    filled_s3: Filled,
    proxy: FaultProxy,
    behind: Store,
    shared_credentials: Path,
    option: str,
) -> None:
    lock = threading.Lock()
    valid = ["KEY-0"]

    def issue(key: str) -> None:
        valid[:] = [key]
        shared_credentials.write_text(PROFILE.format("archive", key))
        shared_credentials.with_name("vault").write_text(key)

    def decide(seen: Seen) -> Fault:
        with lock:
            if of_reading(seen) and seen.number in (12, 40):
                issue(f"KEY-{seen.number}")
            return Fault.PASS if seen.signer == valid[0] else Fault.EXPIRED

    issue("KEY-0")
    proxy.plan = decide
    value = {"aws.profile": "archive", "aws.credentials.provider": "tests.support.vault:keys"}[option]
    frame = mixed(spark, behind, **{option: value, "maxPartitionBytes": "64k", "fetchBytes": "64k"})
    assert rows_of(frame) == filled_s3.rows["mixed"]
    assert {"KEY-0", "KEY-12", "KEY-40"} <= {seen.signer for seen in proxy.seen}
    assert proxy.failed >= 2


def test_two_archives_in_one_job_are_read_with_credentials_of_their_own(
    spark: Any, filled_s3: Filled, proxy: FaultProxy, behind: Store, shared_credentials: Path
) -> None:
    assert filled_s3.store.endpoint is not None
    shared_credentials.write_text(PROFILE.format("one", "KEY-1") + PROFILE.format("two", "KEY-2"))
    with fault_proxy(filled_s3.store.endpoint) as other:
        for one, key in ((proxy, "KEY-1"), (other, "KEY-2")):
            one.plan = lambda seen, key=key: Fault.PASS if seen.signer == key else Fault.UNKNOWN_KEY
        second = Store(behind.url.replace("s3://", "s3a://"), {}, {}, other.endpoint)
        left = mixed(spark, behind, **{"aws.profile": "one"})
        right = read(spark, second, subscribe="stamped", includeHeaders="true", **{"aws.profile": "two"})
        found = rows_of(left.unionByName(right))
        assert found == sorted(
            filled_s3.rows["mixed"] + filled_s3.rows["stamped"],
            key=lambda row: (row.topic, row.partition, row.offset),
        )
        joined = left.alias("l").join(right.alias("r"), "offset").where("l.partition = 0")
        assert joined.count() == min(filled_s3.borders["mixed"][0], filled_s3.borders["stamped"][0])
        assert not proxy.failed + other.failed
        with pytest.raises(errors.PySparkException, match="it does not know this access key"):
            mixed(spark, behind, **{"aws.profile": "two"}).count()


def test_errors_that_need_an_operator_are_raised_at_once(
    spark: Any, behind: Store, proxy: FaultProxy
) -> None:
    nowhere = Store("s3://no-such-bucket/log", {}, {}, proxy.endpoint)
    begun = time.monotonic()
    for store, options, said in (
        (nowhere, {}, r"there is no such bucket \(404 NoSuchBucket\)"),
        (behind, {"aws.profile": "nobody"}, "aws.profile: no profile 'nobody'"),
        (behind, {"aws.credentials.provider": "no_such_module:keys"}, "No module named 'no_such_module'"),
    ):
        with pytest.raises(errors.PySparkException, match=said) as e:
            mixed(spark, store, **options).count()
        assert SECRET not in str(e.value)
        assert ACCESS not in str(e.value)
    assert time.monotonic() - begun < 60


def test_the_time_to_wait_is_an_option(spark: Any, behind: Store, proxy: FaultProxy) -> None:
    proxy.mode = Fault.REFUSE
    with pytest.raises(errors.PySparkException, match=r"given up after \d tries in [234] s"):
        mixed(spark, behind, storeTimeout="2s").count()
