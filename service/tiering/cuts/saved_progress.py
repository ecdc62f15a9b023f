"""Progress of one broker's partitions in tails, and the tails that no cut names yet. [P]

A tail is uploaded for one attempt at a cut. The attempt may be void after all, or its answer be lost; so a
broker knows only from the next request, which names the newest cut's document, what became of it. Until then
its tails are reported again with every attempt: bytes go up once, and no tail that a cut lacks counts as
saved.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final, NamedTuple
from uuid import UUID

from service.base.steps import Steps
from service.remote.format.cut_codec import Place, TailRef
from service.remote.format.tail_object import TailSection
from service.tiering.cuts.saving_plan import Growth, Saved, SavedRange, after, is_due_anew

FEW_HIGH: Final = 32
MOST_HIGH: Final = 256
"""Sections of level 1 after which a partition is saved from where its chain ends again: a small one early,
any in the end. Each keeps a tail alive, the keeper knows all, and a restore reads all their footers."""
_SMALL_BYTES: Final = 1 << 20
_LEAST_BASE_BYTES: Final = 64 << 20
_MARGIN_MS: Final = 60_000
"""Longest time between the moment of a cut and its save."""
_UNDER_WAY: Final = 1 << 62
MOST_ATTEMPTS: Final = 16
"""Attempts in a row that are told apart; a cut by an earlier one has its tails reported once more."""


class TailProgress:
    """Progress of one partition, since this broker leads it in this epoch."""

    __slots__ = (
        "adopted", "erased", "growth", "high_bytes", "high_sections", "high_whole_ms", "lacks_below",
        "lacks_since_ms", "leader_epoch", "low_bytes", "low_whole_ms", "named", "renewed_for", "saved",
        "wants_high",
    )  # fmt: skip

    def __init__(
        self, leader_epoch: int, saved: Saved, live_bytes: int, growth: Growth, high_sections: int = 0
    ) -> None:
        """`saved` is what the newest cut has of it; `live_bytes` how much that is, `high_sections` in how
        many tails of level 1 at most."""
        self.leader_epoch = leader_epoch
        self.named = self.saved = saved
        """what tails have that a cut names, and that are written"""
        self.adopted = saved.low
        """offset up to which leaders before this one have saved, too"""
        self.high_bytes, self.low_bytes = live_bytes, 0
        """bytes of sections of level 1, and of level 0 behind them"""
        self.high_sections = high_sections
        self.low_whole_ms: int | None = None
        self.high_whole_ms: int | None = None
        """when tails, and those of level 1, last had all up to the end; None if that is not known"""
        self.growth = growth
        self.erased: frozenset[UUID] = frozenset()
        """orders of erasure that were over when it was saved anew"""
        self.wants_high = False
        """it is saved at level 1 with the next cut that has room"""
        self.lacks_since_ms: int | None = None
        self.renewed_for: UUID | None = None
        """the newest cut's document when it was last found that tails are lost"""
        self.lacks_below = 0
        """since when offsets below `lacks_below` have been neither in the chain nor in tails"""

    def written(self, section: TailSection, *, is_high: bool) -> None:
        """Note a section. From where it begins it takes the place of those of earlier leaders, also behind
        its end (`remote.format.coverage`)."""
        part = SavedRange(section.first_offset, section.end_offset)
        saved = after(self.saved, part, section.last_batch_epoch, is_high=is_high)
        if section.end_offset < self.adopted:
            self.adopted = section.end_offset
            saved = saved._replace(low=section.end_offset, last_epoch=section.last_batch_epoch)
        self.saved = saved
        if is_high:
            self.high_bytes += section.length
            self.high_sections += 1
            self.low_bytes = 0
        else:
            self.low_bytes += section.length

    def unnamed(self) -> None:
        """Note that tails written since the newest cut are lost."""
        self.saved, self.erased = self.named, frozenset()
        self.low_whole_ms = self.high_whole_ms = None

    def whole_until(self, end: int, chain_end: int, now_ms: int) -> None:
        """Note what tails have once those of a save that began at `now_ms` are written."""
        saved = self.saved.behind(chain_end)
        if saved.low >= end:
            self.low_whole_ms = now_ms
        if saved.high >= end:
            self.high_whole_ms, self.wants_high = now_ms, False

    def lost(self, newest_id: UUID | None, reaches: int, chain_end: int) -> None:
        """Begin anew, at level 1, where tails that the cut `newest_id` names are gone or damaged: chain and
        tails had only what is below `reaches`. It is told again until another cut is the newest."""
        if self.renewed_for == newest_id or chain_end > reaches or reaches >= self.saved.low:
            return  # the chain has gone beyond, if the second
        self.begin_anew()
        self.renewed_for = newest_id

    def begin_anew(self) -> None:
        """Have everything behind the chain saved again: what tails have does not count any more."""
        self.named = self.saved = Saved(0, 0, -1)
        self.adopted = self.high_bytes = self.low_bytes = self.high_sections = 0
        self.low_whole_ms = self.high_whole_ms = None
        self.wants_high = True

    def erasures_over(self, orders: frozenset[UUID]) -> None:
        """Begin anew, at level 1, where an order of erasure was carried out in all logs since: what was saved
        before has records that are gone, and a tail is needed as long as one of its sections is."""
        if not orders <= self.erased:
            self.begin_anew()
        self.erased = orders

    def compacted(self, cleaned_end: int, retention_ms: int, now_ms: int) -> None:
        """Begin anew where compaction may have taken tombstones and markers, which stay for `retention_ms`,
        of what is not saved yet, while tails still have the records that these did away with. The log is
        compacted below `cleaned_end`."""
        least_ms = max(retention_ms - _MARGIN_MS, 0)
        if cleaned_end > self.saved.low and _is_past(self.low_whole_ms, least_ms, now_ms):
            self.saved = Saved(0, 0, -1)
            self.low_whole_ms = self.high_whole_ms = _UNDER_WAY
        elif cleaned_end > self.saved.high and _is_past(self.high_whole_ms, least_ms, now_ms):
            self._begin_high()
            self.high_whole_ms = _UNDER_WAY

    def begin_high(self, chain_end: int, log_bytes: int, *, is_tiered: bool) -> None:
        """Have everything saved at level 1 again where too many tails have some of it, or far more than the
        log, which has `log_bytes` behind its chain."""
        if chain_end >= self.saved.high:
            self.high_sections = 0
        most = MOST_HIGH if log_bytes > self.high_sections * _SMALL_BYTES else FEW_HIGH
        live_bytes = 0 if is_tiered else self.high_bytes + self.low_bytes
        if self.high_sections >= most or is_due_anew(live_bytes, log_bytes, _LEAST_BASE_BYTES):
            self._begin_high()

    def _begin_high(self) -> None:
        self.saved = self.saved._replace(high=0)
        self.high_bytes = self.low_bytes = self.high_sections = 0

    def lacks(self, low: int, end: int, now_ms: int) -> int:
        """Note that offsets from `low` to `end` are nowhere yet; return for how long some of them have been
        so."""
        if low >= end:
            self.lacks_since_ms = None
            return 0
        if self.lacks_since_ms is None or low >= self.lacks_below:
            self.lacks_since_ms, self.lacks_below = now_ms, end
        return now_ms - self.lacks_since_ms


def _is_past(whole_ms: int | None, least_ms: int, now_ms: int) -> bool:
    return whole_ms is None or now_ms - whole_ms >= least_ms


class _Attempt(NamedTuple):
    id: UUID
    cut: int
    tails: tuple[TailRef, ...]
    reached: dict[Place, tuple[int, Saved]]
    """by partition: the leader epoch, and what tails have with this attempt's"""


class SavedProgress:
    """Progress of all partitions that a broker leads."""

    def __init__(self) -> None:
        self.partitions: dict[Place, TailProgress] = {}
        self._attempts: list[_Attempt] = []

    @property
    def pending(self) -> tuple[TailRef, ...]:
        """Tails that no cut is known to name, oldest first."""
        return tuple(ref for attempt in self._attempts for ref in attempt.tails)

    def begun(self, newest_id: UUID | None, cut: int) -> Steps[None]:
        """Note the newest cut's document, before tails of an attempt at cut number `cut` are written.

        Tails of a number below the newest cut's are not reported any more, as nothing keeps the sweeper from
        them: what they have is saved once more.
        """
        count = next((n for n, one in enumerate(self._attempts, 1) if one.id == newest_id), 0)
        named, self._attempts = self._attempts[:count], self._attempts[count:]
        stale: list[_Attempt] = []
        if any(attempt.cut < cut - 1 for attempt in self._attempts):
            stale, self._attempts = self._attempts, []
        for attempt in named:
            for place, (leader_epoch, saved) in attempt.reached.items():
                if (progress := self._of(place, leader_epoch)) is not None:
                    progress.named = saved
                yield
        for attempt in stale:
            for place, (leader_epoch, _) in attempt.reached.items():
                if (progress := self._of(place, leader_epoch)) is not None:
                    progress.unnamed()
                yield

    def _of(self, place: Place, leader_epoch: int) -> TailProgress | None:
        progress = self.partitions.get(place)
        return None if progress is None or progress.leader_epoch != leader_epoch else progress

    def written(
        self,
        attempt_id: UUID,
        cut: int,
        ref: TailRef,
        sections: Iterable[TailSection],
        *,
        is_high: bool,
    ) -> Steps[None]:
        """Note a tail that was uploaded for an attempt."""
        if not self._attempts or self._attempts[-1].id != attempt_id:
            self._attempts.append(_Attempt(attempt_id, cut, (), {}))
        attempt = self._attempts[-1] = self._attempts[-1]._replace(tails=(*self._attempts[-1].tails, ref))
        for section in sections:
            yield
            place = section.topic_id, section.partition
            if (progress := self._of(place, section.leader_epoch)) is None:
                continue
            progress.written(section, is_high=is_high)
            attempt.reached[place] = section.leader_epoch, progress.saved

    def reported(self, attempt_id: UUID, cut: int) -> Steps[None]:
        """Note that an attempt's answer names all tails that are pending, with or without one of its own."""
        if self._attempts and self._attempts[-1].id != attempt_id:
            self._attempts.append(_Attempt(attempt_id, cut, (), {}))
        if len(self._attempts) > MOST_ATTEMPTS:
            first, second = self._attempts[:2]
            for place, reached in first.reached.items():
                second.reached.setdefault(place, reached)
                yield
            whole = second._replace(cut=min(first.cut, second.cut), tails=first.tails + second.tails)
            self._attempts = [whole if one is second else one for one in self._attempts if one is not first]

    def keep(self, places: Container[Place]) -> Steps[None]:
        """Forget partitions that are not among `places`: this broker does not lead them any more."""
        for place in tuple(self.partitions):
            if place not in places:
                del self.partitions[place]
            yield
