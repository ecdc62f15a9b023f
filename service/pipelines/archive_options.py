"""From the command line of `firn pipeline archive` to the options of its stream. [P]"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from service.base.errors import ConfigError
from service.spark.options import CHOICES, Assign, Choice, Subscribe, known_names
from service.spark.plan.archive import ChosenPartition
from service.spark.stream.options import LIMITS, MISSING
from service.spark.tail.options import TAIL

DEFAULT_BATCH_BYTES: Final = "16g"
_PER_PARTITION: Final = ("startingOffsets", "startingOffsetsByTimestamp")


def check_arguments(args: argparse.Namespace) -> None:
    """`ConfigError` for arguments that make no sense together."""
    if args.values == "avro" and args.schema is None:
        raise ConfigError("--values avro needs --schema FILE.avsc")
    if args.values == "raw" and args.schema is not None:
        raise ConfigError("--schema says nothing without --values json or avro")
    if args.confluent_header and args.values != "avro":
        raise ConfigError("--confluent-header says nothing without --values avro")
    if args.format == "iceberg" and args.checkpoint is None:
        raise ConfigError("--format iceberg needs --checkpoint URL: a table is no place for it")


def stream_options(args: argparse.Namespace, given: Mapping[str, str], *, can_limit: bool) -> dict[str, str]:
    """The options of the stream under their proper names, from those `given` for any read of the source.

    `can_limit` is whether this Spark knows limits of Python sources.
    """
    names = known_names((*TAIL, *LIMITS, *MISSING))
    found = {names.get(key.lower(), key): text for key, text in given.items()}
    found.setdefault("includeHeaders", str(args.headers).lower())
    if "startingTimestamp" not in found:
        found.setdefault("startingOffsets", "earliest")
    if args.batch_bytes is not None or (can_limit and "maxOffsetsPerTrigger" not in found):
        found.setdefault("maxBytesPerTrigger", args.batch_bytes or DEFAULT_BATCH_BYTES)
    return found


def without_gone(choice: Choice, gone: Mapping[str, str], names: Collection[str]) -> Choice:
    """The same choice without the topics that were archived and are `gone` (name by id).

    `names` are those of the topics that there are; one of them is another topic, though one that is gone was
    called so, too.
    """
    absent = {*gone, *gone.values()} - set(names)
    if isinstance(choice, Subscribe):
        return Subscribe(tuple(topic for topic in choice.topics if topic not in absent))
    if isinstance(choice, Assign):
        return Assign({topic: parts for topic, parts in choice.partitions.items() if topic not in absent})
    return choice


def by_id(options: Mapping[str, str], chosen: Sequence[ChosenPartition]) -> dict[str, str]:
    """The same read with its topics named by id.

    So a topic made again under the name of one that was read is another one, and never goes on in its place.
    """
    ids = {one.asked: str(one.topic_id) for one in chosen}
    found = {name: text for name, text in options.items() if name not in CHOICES}
    if "assign" in options:
        parts: dict[str, list[int]] = {}
        for one in chosen:
            parts.setdefault(ids[one.asked], []).append(one.partition)
        found["assign"] = json.dumps(parts)
    else:
        found["subscribe"] = ",".join(sorted(set(ids.values())))
    for name in _PER_PARTITION:
        if name in found:
            found[name] = _renamed(found[name], ids)
    return found


def _renamed(text: str, ids: dict[str, str]) -> str:
    """The keys of a JSON object renamed; whatever else it is, the source will say what is wrong with it."""
    try:
        document: Any = json.loads(text)
    except ValueError:
        return text
    if not isinstance(document, dict):
        return text
    return json.dumps({ids.get(topic, topic): row for topic, row in document.items()}, sort_keys=True)
