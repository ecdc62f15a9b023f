"""Selection of each topic's keys with the most records in one task, in bounded memory. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_ORDER: Final = [
    ("topic", "ascending"),
    ("records", "descending"),
    ("bytes", "descending"),
    ("is_null", "descending"),
    ("key", "ascending"),
]


class GreatestKeys:
    """A function over Arrow batches of counts that drops keys with `top` greater keys of their topic.

    It is for `mapInArrow` after a grouping by topic and key, so that a key comes once. Rows with `is_day` set
    count days and pass. It holds `top` rows a topic and one batch. A key is greater with more records, then
    with more bytes, then by the order of its bytes, the null key first: Spark's order.
    """

    def __init__(self, top: int) -> None:
        self._top = top

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        kept: Any = None
        for batch in batches:
            table = pa.Table.from_batches([batch])
            is_day = pc.equal(table["is_day"], 1)
            yield from table.filter(is_day).to_batches()
            keys = table.filter(pc.invert(is_day))
            if keys.num_rows:
                kept = greatest(keys if kept is None else pa.concat_tables([kept, keys]), self._top)
        if kept is not None:
            yield from kept.to_batches()


def greatest(table: Any, top: int) -> Any:
    """Return at most `top` rows of each topic, in order."""
    sortable = table.append_column("is_null", pc.is_null(table["key"]).cast(pa.int8()))
    ordered = table.take(pc.sort_indices(sortable, _ORDER)).combine_chunks()
    starts = pc.run_end_encode(ordered["topic"].combine_chunks()).run_ends.to_pylist()
    indices: list[int] = []
    begin = 0
    for end in starts:
        indices.extend(range(begin, min(begin + top, end)))
        begin = end
    return ordered.take(pa.array(indices, pa.int64()))
