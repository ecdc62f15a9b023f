"""Block tables of whole logs."""

from __future__ import annotations

from collections.abc import Iterable

from service.base.types import Buffer
from service.remote.format.block_table import BatchFacts, BlockTableBuilder, LogBlock


def build_block_table(
    batches: Iterable[tuple[BatchFacts, Buffer]], target_bytes: int
) -> tuple[LogBlock, ...]:
    """Return the rows for the batches of one log, given with their bytes, in order."""
    builder = BlockTableBuilder(target_bytes)
    for facts, data in batches:
        builder.add(facts, data)
    return builder.finish()
