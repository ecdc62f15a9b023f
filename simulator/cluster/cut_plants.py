"""Bugs of cuts and restores, planted one at a time: `python -m simulator.cluster --cuts --plants`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from service.inspect import restore_plan
from service.inspect.restore_archive import summary_of
from service.inspect.restore_heads import HeirHeads, WrittenChain
from service.partition.gate import CutGate
from service.replicas.cut_answers import CutAnswers
from service.serving.fetch_read import FetchRead
from service.tiering.archive_attempt import catalog_entry
from service.tiering.cuts.kept_documents import KeptDocuments
from service.tiering.cuts.round import CutAttempt, Led
from service.tiering.sweeper import Sweeper

Plant = Callable[[], None]


def _swap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def no_gate() -> None:
    """Note the ends of each broker when it is asked for them, with nothing held back before."""

    def leave_open(self: Any, attempt: Any) -> None:
        attempt.image, attempt.closed_ms = self._metadata.image, self._clock.monotonic_ms()

    _swap(CutAnswers, "_close_gate", lambda _: leave_open)
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


def metadata_of_one_broker_alone() -> None:
    """Take the metadata that the first broker has told, whatever the others have shown."""

    def make(begun: Any) -> Any:
        return lambda self, broker, end, *rest: begun(self, broker, end if broker == 1 else 0, *rest)

    _swap(CutAttempt, "begun", make)


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


def heads_not_written_again() -> None:
    """Leave a HEAD of the lost cluster as it is where the heir's chain is the one that it names."""

    def make_again(_: Any) -> Any:
        def careless(self: Any, place: Any) -> Any:
            seen = self._source.chains.get(place)
            if seen is None or seen.head is None or self._newest_version(place) > seen.head.version:
                return None
            return WrittenChain(place, seen.found, seen.entry)

        return careless

    def make(write: Any) -> Any:
        def careless(self: Any, place: Any, opened: Any, seen: Any) -> Any:
            found = summary_of(opened)
            if opened.published is None or not found.is_published:
                return write(self, place, opened, seen)
            return WrittenChain(place, found, catalog_entry(opened.published))

        return careless

    _swap(HeirHeads, "_write_again", make_again)
    _swap(HeirHeads, "_try", make)


def no_gap() -> None:
    """Let logs go on right behind what the bucket tells of."""
    _swap(restore_plan, "_go_on", lambda go_on: lambda end, gap, told: go_on(end, 0, told))


def tails_go_a_cut_too_early() -> None:
    """Delete what the oldest cut that is kept alone needs, and at once."""

    def make(kept: Any) -> Any:
        async def careless(self: Any, cuts: Any) -> Any:
            found = await kept(self, cuts)
            younger = [self._names[ref.key] for ref in cuts.kept[1:] if ref.key in self._names]
            tails = frozenset(key for names in younger for key in names.tails)
            return found._replace(tails=tails) if younger else found

        return careless

    async def hasty(
        self: Any, keys: Iterable[str], seen: Any, now_ms: int, failures: Any, versions: Any = None
    ) -> int:
        dead = list(keys)
        return await self._delete(dead, failures, versions) if dead else 0

    _swap(KeptDocuments, "kept", make)
    _swap(Sweeper, "_sweep_dead", lambda _: hasty)


SIGNS_OF_CUTS: Final[dict[Plant, str]] = {
    no_gate: "T18",
    gate_forgets_followers: "T18",
    metadata_of_one_broker_alone: "T18",
    ends_of_any_epoch: "T18",
    heads_not_written_again: "T21",
    no_gap: "T20",
    tails_go_a_cut_too_early: "T19",
}
"""Each with the invariant that it breaks."""
OF_CUTS: Final[dict[str, Plant]] = {one.__name__: one for one in SIGNS_OF_CUTS}
WITHIN_OF_CUTS: Final[dict[str, int]] = dict.fromkeys(OF_CUTS, 200)
"""Histories in which each is to be found. Measured from seed 1, at the latest: 1 without a gate and without
a gap, 11 for tails that go too early, 13 for ends of any epoch, 45 for the metadata of one broker, 48 for a
gate that forgets followers; and 2 for HEADs that are not written again, since late ones get in their way."""
