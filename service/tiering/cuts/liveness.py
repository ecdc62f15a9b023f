"""Judgement of cuts and tails that lie in the bucket: which are dead for ever. [P]

A cut has the number after the newest one's that `CUT` names; it names tails which that one names, and others
only of its own number or of the one before. `CUT` is replaced by condition only, so its numbers rise. So what
has a number below the newest one's and is named by no cut that is kept will never be named again, whoever
writes next, and however late (invariant T19).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from service.remote.format.cut_codec import Cuts
from service.remote.format.keys import CutKey, TailKey, parse_key


def dead_keys(
    listed: Iterable[str], cuts: Cuts, named: frozenset[str], *, unread_up_to: int = 0
) -> Iterator[str]:
    """Yield the keys of cuts and tails among `listed` that are dead.

    `cuts` is `CUT` as read after the listing began, `named` the tails that its cuts name. `unread_up_to`: the
    greatest number of a kept cut whose document cannot be read: it may name each tail up to there.
    """
    newest = cuts.newest.cut
    kept = {ref.key for ref in cuts.kept}
    for key in listed:
        parsed = parse_key(key)
        if isinstance(parsed, CutKey):
            if parsed.cut < newest and key not in kept:
                yield key
        elif isinstance(parsed, TailKey) and unread_up_to < parsed.cut < newest and key not in named:
            yield key
