"""The benches that the page is made of: how each is run, quickly or as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple


class Part(NamedTuple):
    """One bench, `python -m` these words; one without `quick` words is left out of a quick run. `kafka`: what
    measures Apache Kafka beside Firn; a second run, where it `is_apart`, does that alone. One that
    `needs_kafka` for both sides is left out without it. `times`: how often the whole of a bench that has no
    rounds of its own is run. One that `is_soak` takes long by its nature, and runs only where it is named."""

    words: Sequence[str]
    quick: Sequence[str] | None
    whole: Sequence[str]
    kafka: Sequence[str] = ("--kafka",)
    is_apart: bool = False
    needs_kafka: bool = False
    times: int = 1
    is_soak: bool = False

    def commands(self, *, is_quick: bool, with_kafka: bool) -> list[list[str]]:
        """Return the words of each run."""
        size = self.quick if is_quick else self.whole
        if size is None or (self.needs_kafka and not with_kafka):
            return []
        plain = [*self.words, *size]
        beside = [*plain, *self.kafka] if with_kafka else plain
        once = [plain, beside] if self.is_apart and beside != plain else [beside]
        return once * (1 if is_quick else self.times)


PARTS: Final[dict[str, Part]] = {
    "idle": Part(("bench", "idle"), ("--rounds", "1"), ("--rounds", "5")),
    "speed": Part(
        ("bench", "produce", "fetch"),
        ("--rounds", "2", "--requests", "100000", "--megabytes", "250"),
        ("--rounds", "5", "--requests", "200000", "--megabytes", "500"),
    ),
    "sizes": Part(("bench.sizes",), ("--rounds", "1", "--records", "200000"), ("--rounds", "3")),
    "consumers": Part(("bench.consumers",), ("--rounds", "1", "--megabytes", "200"), ("--rounds", "5")),
    "rates": Part(("bench.rates",), ("--seconds", "3", "--rates", "1000", "4000", "8000", "12000"), ()),
    "lengths": Part(("bench.lengths",), None, ("--rounds", "3")),
    "warm": Part(("bench.warm",), ("--rounds", "1", "--megabytes", "500"), ("--rounds", "5")),
    "commits": Part(("bench.groups", "commits"), ("--rounds", "1"), ("--rounds", "5")),
    "sessions": Part(
        ("bench.sessions",),
        ("full", "--seconds", "10"),
        (),
        is_apart=True,
    ),
    "scale": Part(("bench.scale",), ("small", "batches", "--rounds", "1"), ("--rounds", "5"), ()),
    "cold": Part(("bench.cold", "rate"), ("--rounds", "1", "--megabytes", "512"), ("--rounds", "5")),
    "offload": Part(("bench.offload",), ("--rounds", "1", "--megabytes", "300"), ("--rounds", "5")),
    "compaction": Part(
        ("bench.cleaning", "--rate", "1000"),
        ("--records", "2000000", "--keys", "200000"),
        ("--records", "10000000"),
        times=5,
    ),
    "replicas": Part(
        ("bench.replicas", "throughput", "latency"),
        None,
        ("--rounds", "3"),
    ),
    "catch-up": Part(("bench.replicas", "catch-up"), None, ("--rounds", "5")),
    "failover": Part(("bench.replicas", "stall"), ("--kills", "1"), ("--kills", "5")),
    "controller": Part(("bench.cluster", "start", "idle", "failover"), None, ("--kills", "10")),
    "partitions": Part(
        ("bench.partitions", "--partitions", "10", "1000"),
        None,
        ("10000", "100000", "--requests", "200000"),
    ),
    "restart": Part(("bench.restart", "near"), None, (), ()),
    "nothing": Part(("bench.steady", "nothing"), None, (), (), is_soak=True),
    "mixed": Part(("bench.steady", "mixed"), None, (), (), is_soak=True),
    "transactions": Part(("bench.transactions", "rate-1", "latency"), None, ("--rounds", "3")),
    "spark": Part(("bench.spark",), None, ("--rounds", "5"), (), needs_kafka=True),
}


def without_soaks() -> list[str]:
    """Return the names of the parts that run where none is named."""
    return [name for name, part in PARTS.items() if not part.is_soak]
