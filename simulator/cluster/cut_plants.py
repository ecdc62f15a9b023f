"""Bugs of cuts, planted one at a time: `python -m simulator.cluster --plants`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from service.partition.gate import CutGate
from service.serving.fetch_read import FetchRead
from service.tiering.cuts.round import CutAttempt, Led

Plant = Callable[[], None]


def _swap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def no_gate() -> None:
    """Note the ends of each broker when it is asked for them, with nothing held back before."""
    _swap(CutGate, "close", lambda _: lambda self, *args, **options: True)
    _swap(CutGate, "take", lambda _: lambda self, attempt, now_ms, partitions: self.take_at_once(partitions))


def gate_forgets_followers() -> None:
    """Tell followers of high watermarks that a closed gate holds back."""

    def make(read: Any) -> Any:
        def telling(self: Any, *args: Any, **options: Any) -> Any:
            partition, result = read(self, *args, **options)
            if self.is_replica and partition is not None and partition.leading is not None:
                result = result._replace(high_watermark=partition.leading.high_watermark)
            return partition, result

        return telling

    _swap(FetchRead, "read_partition", make)


def metadata_of_the_keeper_alone() -> None:
    """Take the metadata that the keeper has, whatever brokers have told."""
    _swap(CutAttempt, "begun", lambda begun: lambda self, broker, end, now_ms: begun(self, broker, 0, now_ms))


def ends_of_any_epoch() -> None:
    """Take the ends that a leader of an earlier epoch tells."""

    def make(check: Any) -> Any:
        def careless(self: Any, partitions: Iterable[Led], before: Mapping[Any, Any]) -> Iterator[None]:
            def told() -> Iterator[Led]:
                for led in partitions:
                    row = self.ends.get((led.topic_id, led.partition))
                    yield led if row is None else led._replace(leader_id=1, leader_epoch=row.leader_epoch)

            return check(self, told(), before)  # type: ignore[no-any-return]

        return careless

    _swap(CutAttempt, "check", make)


OF_CUTS: Final[dict[str, Plant]] = {
    one.__name__: one
    for one in (no_gate, gate_forgets_followers, metadata_of_the_keeper_alone, ends_of_any_epoch)
}
