"""Choice of the cuts that are kept. [P]

A cut, and what it needs, lives for the grace of deleted objects, so how far a restore can go back is one
setting. Of that time the newest cuts are kept, then one a minute, then one an hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.remote.format.cut_codec import MAX_KEPT, CutRef

NEWEST: Final = 30
MINUTES: Final = 60
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000


def kept_of(cuts: Sequence[CutRef], now_ms: int, grace_ms: int) -> tuple[CutRef, ...]:
    """Return those of `cuts`, oldest first, that stay; at most as many as `CUT` holds.

    The newest stays, and the newest complete one, the newest exact one and what is newer than either, however
    old they are: without them nothing could be restored. Of a minute and of an hour the newest one stays that
    is complete, or the newest where none is.
    """
    if not cuts:
        return ()
    complete = [ref.cut for ref in cuts if ref.is_complete]
    exact = [ref.cut for ref in cuts if ref.is_complete and ref.is_exact]
    always = {cuts[-1].cut, *complete[-1:], *exact[-1:]}
    best: dict[tuple[int, int], CutRef] = {}
    stay = {ref.cut for ref in cuts[-NEWEST:]} | always
    for ref in cuts:
        age_ms = max(now_ms - ref.at_ms, 0)
        if age_ms > grace_ms:
            stay -= {ref.cut} - always
            continue
        width = _MINUTE_MS if age_ms <= MINUTES * _MINUTE_MS else _HOUR_MS
        place = width, ref.at_ms // width
        known = best.get(place)
        if known is None or ref.is_complete or not known.is_complete:
            best[place] = ref
    stay |= {ref.cut for ref in best.values()}
    kept = [ref for ref in cuts if ref.cut in stay]
    surplus = len(kept) - MAX_KEPT
    dropped = {ref.cut for ref in [one for one in kept if one.cut not in always][: max(surplus, 0)]}
    return tuple(ref for ref in kept if ref.cut not in dropped)
