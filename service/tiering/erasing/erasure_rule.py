"""Rule by which a run of a chain is written anew without the records of an order's keys. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple

from service.records.erasure import ErasureCopier, ErasureKeys
from service.remote.catalog import RewriteKind
from service.remote.order_end import OrderEnd
from service.tiering.rewriting.rules import ChainRun

_BUFFER_BYTES: Final = 1 << 20


class ErasureRule(NamedTuple):
    """Rule of one order: the records of `keys` that its `end` covers go.

    The header of each batch stays, so that no offset, producer or transaction is lost with its records.
    """

    keys: ErasureKeys
    end: OrderEnd

    @property
    def kind(self) -> RewriteKind:
        return RewriteKind.ERASE

    def copier(self, run: ChainRun, /) -> ErasureCopier:
        """Return a copier of what stays of the run."""
        end = min(self.end.within(one.leader_epochs) for one in run.entries)
        return ErasureCopier(self.keys, end, None, run.last_offset + 1, _BUFFER_BYTES)
