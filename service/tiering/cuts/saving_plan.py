"""Plan of the offsets that a broker saves at a cut; none of a partition whose segment comes soon. [P]

Records below `saved` are in the chain or in earlier tails. At level 0 what follows is saved, up to the cut's
end. At level 1 everything behind the chain or the last tail of level 1 is saved once more, so that a restore
reads few tails. A partition whose active segment will be sealed and copied soon is waited for: its bytes go
up once.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from service.base.types import INTERNAL_TOPICS

RATE_MS: Final = 60_000
"""Time over which the growth of a log is measured."""


class Saved(NamedTuple):
    """Progress of a partition in tails, of one leader epoch: offsets below `low` at any level, below `high`
    at level 1; `last_epoch` is the leader epoch of the last batch below `low`, -1 without one."""

    low: int
    high: int
    last_epoch: int

    def behind(self, chain_end: int) -> Saved:
        """Return it for a chain that ends at `chain_end`, which has what lies below."""
        return self._replace(low=max(self.low, chain_end), high=max(self.high, chain_end))


class SavedRange(NamedTuple):
    """Offsets of one partition that are to be saved."""

    first: int
    end: int


class Growth:
    """Growth of one log over the last minute or two, for guesses when a segment will be full."""

    __slots__ = ("_before", "_now")

    def __init__(self, now_ms: int, bytes_written: int) -> None:
        self._before = self._now = now_ms, bytes_written

    def note(self, now_ms: int, bytes_written: int) -> None:
        """Note how many bytes were written to the log since it was opened."""
        if now_ms - self._now[0] >= RATE_MS:
            self._before, self._now = self._now, (now_ms, bytes_written)

    def bytes_per_ms(self, now_ms: int, bytes_written: int) -> float:
        """Return the average rate since the note before the last."""
        past_ms = now_ms - self._before[0]
        return (bytes_written - self._before[1]) / past_ms if past_ms > 0 else 0.0


def waits_for_segment(
    *, is_tiered: bool, left_bytes: int, left_ms: int, bytes_per_ms: float, wait_ms: int
) -> bool:
    """Return whether the active segment will be sealed within `wait_ms`: it is full after `left_bytes` more,
    or old enough in `left_ms`.

    A partition that does not grow is not waited for, even if its segment is nearly full; nor one that has no
    chain.
    """
    if not is_tiered:
        return False
    return left_ms <= wait_ms or bytes_per_ms * wait_ms >= max(left_bytes, 1)


def is_always_tailed(topic: str, *, is_enabled: bool, is_tiered: bool) -> bool:
    """Return whether all records of a topic go into tails, however large its logs are; `is_enabled` by
    ``firn.tail.enable``."""
    return topic in INTERNAL_TOPICS or (is_enabled and is_tiered)


def section_of(saved: Saved, chain_end: int, end: int, *, is_high: bool) -> SavedRange | None:
    """Return what is to be saved of a partition up to `end`; None where tails and chain have all of it."""
    known = saved.behind(chain_end)
    first = known.high if is_high else known.low
    return SavedRange(first, end) if first < end else None


def after(saved: Saved, section: SavedRange, last_epoch: int, *, is_high: bool) -> Saved:
    """Return what tails have once one that has `section` is named by a cut. `last_epoch`: that of the
    section's last batch."""
    high = max(saved.high, section.end) if is_high else saved.high
    if section.end < saved.low:
        return Saved(saved.low, high, saved.last_epoch)
    return Saved(section.end, high, last_epoch)


def adopted(saved: Saved, known_epoch: int | None, chain_end: int, log_end: int) -> Saved:
    """Return what a new leader takes of the newest cut's word for what is saved.

    `known_epoch` is the epoch that its own log has at the last offset saved, None where it has none. Where
    that is not the epoch that was saved, the bytes are others, and all behind the chain is saved anew.
    """
    is_same = saved.low <= chain_end or (saved.low <= log_end and known_epoch == saved.last_epoch)
    return saved.behind(chain_end) if is_same else Saved(chain_end, chain_end, -1)


def is_due_anew(live_bytes: int, log_bytes: int, least_bytes: int) -> bool:
    """Return whether a partition without a chain is saved from its start again, since tails have more than
    twice its log: compaction and retention have made it smaller than what was saved."""
    return live_bytes > max(2 * log_bytes, least_bytes)
