"""Lag of a stream, reported in Spark's progress of the query. [P]

Spark lets a Python source report offsets, and no metrics (`ReportsSourceMetrics` is for sources in Java). So
the offsets reported as the latest have beside the topics, under `OWN_KEY`, the bytes of the log between the
batch's end and them: ``{"bytesBehind": {"flights": {"0": 123}}}``.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from service.base.errors import ConfigError
from service.spark.stream.offsets import (
    OWN_KEY,
    Offsets,
    decode_offsets,
    decode_position,
    encode_offsets,
    with_own,
)

BYTES_BEHIND: Final = "bytesBehind"


class Lag(NamedTuple):
    """Offsets, and about how many bytes of the log, that a partition has after the newest batch."""

    topic: str
    partition: int
    offsets: int
    bytes: int


def encode_report(ends: Offsets, bytes_behind: Offsets) -> dict[str, Any]:
    """Return the document that Spark shows as the latest offset of a source."""
    document: dict[str, Any] = dict(encode_offsets(ends))
    return with_own(document, {BYTES_BEHIND: encode_offsets(bytes_behind)})


def lag(query: Any) -> list[Lag]:
    """Return the lag of a streaming query in each partition that it reads with this source.

    `query` is a `StreamingQuery`, or a progress of one, as a `StreamingQueryListener` gets it. The lag is as
    of the newest batch that has ended; empty before that, and before Spark 4.2, which does not ask Python
    sources for a report. Topics have their names here. Raises `ConfigError` for any other object.

    >>> lag({"sources": [{"endOffset": '{"t": {"0": 5}, "@firn": {}}',
    ...                   "latestOffset": '{"t": {"0": 7}, "@firn": {"bytesBehind": {"t": {"0": 90}}}}'}]})
    [Lag(topic='t', partition=0, offsets=2, bytes=90)]
    """
    progress = query.lastProgress if hasattr(query, "lastProgress") else query
    if progress is None:
        return []
    try:
        sources = progress["sources"]
    except (TypeError, KeyError) as e:
        raise ConfigError(f"{type(query).__name__} is no streaming query and no progress of one") from e
    return [one for source in sources for one in _lag_of(source)]


def _lag_of(source: Mapping[str, Any]) -> list[Lag]:
    end, latest = _document(source["endOffset"]), _document(source["latestOffset"])
    own = latest.pop(OWN_KEY, {})
    # Before Spark 4.2 the latest offset is the batch's end, even if the log goes on.
    if OWN_KEY not in end or BYTES_BEHIND not in own:
        return []
    position, sizes = decode_position(end), decode_offsets(own[BYTES_BEHIND])
    return [
        Lag(
            position.name_of(topic),
            partition,
            max(0, newest - position.offsets.get((topic, partition), 0)),
            sizes.get((topic, partition), 0),
        )
        for (topic, partition), newest in sorted(decode_offsets(latest).items())
    ]


def _document(text: Any) -> dict[str, Any]:
    """Parse a source's offsets, which some versions of pyspark show as a Python literal; empty for others."""
    for parse in (json.loads, ast.literal_eval):
        try:
            document = parse(text)
        except (TypeError, ValueError, SyntaxError):
            continue
        return document if isinstance(document, dict) else {}
    return {}
