"""The rows that the page shows of each part: which way is better, and what is aimed at."""

from __future__ import annotations

from typing import Final, NamedTuple


class Goal(NamedTuple):
    """A bound that is aimed at: of Firn's figure by Kafka's, or of Firn's alone."""

    bound: float
    is_ratio: bool = True


class Row(NamedTuple):
    """Figures of a part, those whose names begin so."""

    begins: str
    more_is_better: bool = False
    goal: Goal | None = None

    def is_met(self, ours: float, theirs: float | None) -> bool | None:
        """Return whether the goal is met; None without one, or without what it compares with."""
        if self.goal is None or (self.goal.is_ratio and not theirs):
            return None
        found = ours / theirs if self.goal.is_ratio and theirs else ours
        return found >= self.goal.bound if self.more_is_better else found <= self.goal.bound


class Section(NamedTuple):
    """One chart and its table."""

    title: str
    part: str
    rows: tuple[Row, ...]


SECTIONS: Final[tuple[Section, ...]] = (
    Section(
        "Produce and fetch, one client",
        "speed",
        (
            Row("user CPU per produced GB", goal=Goal(0.6)),
            Row("produced", more_is_better=True, goal=Goal(1.3)),
            Row("CPU per fetched GB, hot, 1 MiB fetches", goal=Goal(0.7)),
            Row("consumed hot", more_is_better=True),
            Row("CPU per fetched GB, hot, user and system"),
            Row("user CPU per single-record produce request", goal=Goal(0.7)),
            Row("single-record produce requests", more_is_better=True, goal=Goal(3.0)),
            Row("CPU of a request, one under way"),
            Row("requests, one under way", more_is_better=True),
        ),
    ),
    Section(
        "Records a second",
        "sizes",
        (
            Row("batched, records of", more_is_better=True),
            Row("consumed, records of", more_is_better=True),
            Row("one a request, records of", more_is_better=True),
        ),
    ),
    Section(
        "Consumers of the same records",
        "consumers",
        (
            Row("CPU of the node,"),
            Row("together,", more_is_better=True),
        ),
    ),
    Section(
        "Long logs, many segments",
        "lengths",
        (
            Row("requests of one record", more_is_better=True),
            Row("CPU of a request"),
            Row("fetch at some offset"),
            Row("CPU of a fetch"),
        ),
    ),
    Section(
        "The page cache outlives the process",
        "warm",
        (
            Row("fetched before a restart", more_is_better=True),
            Row("fetched right after a restart", more_is_better=True),
            Row("read from the device since the restart"),
            Row("read from the device while a consumer keeps up"),
        ),
    ),
    Section(
        "Offset commits, 50 connections",
        "commits",
        (
            Row("commits of 10 partitions", more_is_better=True, goal=Goal(1.0)),
            Row("CPU of one, user and system", goal=Goal(0.8)),
        ),
    ),
    Section(
        "Consumers of many partitions, idle connections",
        "sessions",
        (
            Row("CPU, consumer without a session", goal=Goal(5, is_ratio=False)),
            Row("CPU, consumer of"),
            Row("CPU, 5000 idle connections"),
        ),
    ),
    Section(
        "One machine, two nodes",
        "scale",
        (
            Row("two nodes by one", more_is_better=True, goal=Goal(1.8, is_ratio=False)),
            Row("one node, ", more_is_better=True),
            Row("two nodes, ", more_is_better=True),
            Row("reckoned for", more_is_better=True),
        ),
    ),
    Section(
        "Cold reads: Firn's from an object store on this machine, Kafka's from a folder (LocalTieredStorage)",
        "cold",
        (
            Row("one client, rate", more_is_better=True),
            Row("one client, share of raw", more_is_better=True, goal=Goal(60, is_ratio=False)),
            Row("one client, share of what is left", more_is_better=True, goal=Goal(90, is_ratio=False)),
            Row("one client, CPU of the node", goal=Goal(0.8, is_ratio=False)),
            Row("eight, rate", more_is_better=True),
            Row("eight, share of raw", more_is_better=True, goal=Goal(60, is_ratio=False)),
            Row("eight, share of what is left", more_is_better=True, goal=Goal(90, is_ratio=False)),
            Row("eight, CPU of the node"),
            Row("raw GETs, CPU"),
        ),
    ),
    Section(
        "Offload: Firn's to an object store on this machine, Kafka's to a folder (LocalTieredStorage)",
        "offload",
        (
            Row("offload of", more_is_better=True),
            Row("offload, share of raw PUTs", more_is_better=True, goal=Goal(90, is_ratio=False)),
            Row("offload, share of what is left", more_is_better=True),
            Row("offload, CPU of the node", goal=Goal(0.9, is_ratio=False)),
        ),
    ),
    Section(
        "Producers beside a compaction",
        "compaction",
        (
            Row("… in times, p99", goal=Goal(1.3, is_ratio=False)),
            Row("compaction of", more_is_better=True),
            Row("compaction, CPU"),
        ),
    ),
    Section(
        "Three nodes, acks=all",
        "replicas",
        (
            Row("acks=all, three replicas", more_is_better=True),
            Row("processor of all three"),
            Row("acks=all, 1,000 a second, p99"),
        ),
    ),
    Section(
        "Others while a follower catches up, three nodes, acks=all",
        "catch-up",
        (
            Row("acks=all of others, p99 before"),
            Row("… and beside it", goal=Goal(15, is_ratio=False)),
        ),
    ),
    Section(
        "A node fails", "failover", (Row("kill -9 of a broker"), Row("kill -9 of the active controller"))
    ),
    Section(
        "A controller fails", "controller", (Row("until the next answered change"), Row("three nodes, from"))
    ),
    Section(
        "Memory and open files of a node that nobody uses, for a day",
        "nothing",
        (Row("24 h of nothing: memory"), Row("24 h of nothing: open files")),
    ),
    Section(
        "Memory and open files of three nodes under all that clients do, for half an hour",
        "mixed",
        (Row("30 min of mixed load"),),
    ),
    Section(
        "Start of a node that was killed", "restart", (Row("start after kill -9"), Row("CPU of that start"))
    ),
    Section("Start and memory", "idle", (Row("start to ready"), Row("resident memory, idle"))),
    Section(
        "Many partitions on one node",
        "partitions",
        (
            Row("requests of one record round robin", more_is_better=True),
            Row("CPU of one of them"),
            Row("idle, of a core"),
            Row("resident memory, idle"),
            Row("start after a clean stop"),
            Row("start after kill -9"),
        ),
    ),
    Section(
        "Transactions",
        "transactions",
        (Row("EndTxn at 50/s, p99"), Row("EndTxn sent until the record is seen, p99")),
    ),
    Section(
        "Spark: Firn's source over an object store, Spark's Kafka connector over Apache Kafka",
        "spark",
        (
            Row("rows, all columns", more_is_better=True, goal=Goal(3.0)),
            Row("rows, offset alone", more_is_better=True, goal=Goal(6.0)),
            Row("rows, sum of the values' lengths", more_is_better=True),
            Row("one hot partition", goal=Goal(1.5, is_ratio=False)),
            Row("unsealed rows of a Firn node, one", more_is_better=True, goal=Goal(1.0, is_ratio=False)),
            Row("unsealed rows of a Firn node, by the connector", more_is_better=True),
        ),
    ),
)

CURVES: Final = "rates"
"""The part whose figures are drawn over the rate: `produce at 1,000/s, p99`."""
