"""Mapping of `firn pipeline archive`'s command line to the options of its stream. [P]"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from service.base.errors import ConfigError
from service.spark.options import CHOICES, Assign, Choice, Subscribe, known_names
from service.spark.stream.options import LIMITS, MISSING
from service.spark.tail.options import TAIL

if TYPE_CHECKING:
    from service.spark.plan.snapshots import ChosenPartition

DEFAULT_BATCH_BYTES: Final = "16g"
_WITH_ID: Final = re.compile(r"([0-9]{1,10})=(.+)", re.DOTALL)
_PER_PARTITION: Final = ("startingOffsets", "startingOffsetsByTimestamp")


def check_arguments(args: argparse.Namespace) -> None:
    """Raise `ConfigError` for arguments that make no sense together."""
    plain, by_number = schema_files(args.schema)
    if args.confluent_header:
        _check_confluent(args, plain, by_number)
    else:
        if by_number:
            raise ConfigError("--schema ID=FILE has no effect without --confluent-header")
        for name in ("schema_registry", "reader_schema"):
            if getattr(args, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} has no effect without --confluent-header")
        if args.values == "avro" and not plain:
            raise ConfigError("--values avro needs --schema FILE.avsc")
    if args.values == "raw" and args.schema:
        raise ConfigError("--schema has no effect without --values json or avro")
    if args.format == "iceberg" and args.checkpoint is None:
        raise ConfigError("--format iceberg needs --checkpoint URL: a table cannot hold it")


def _check_confluent(args: argparse.Namespace, plain: str, by_number: Mapping[int, str]) -> None:
    if args.values != "avro":
        raise ConfigError("--confluent-header has no effect without --values avro")
    if plain:
        raise ConfigError(
            f"--schema {plain}: with --confluent-header each value names its schema by id, so give this "
            "schema's id: --schema ID=FILE, or use --schema-registry URL; a schema for the columns alone is "
            "--reader-schema FILE"
        )
    if not by_number and args.schema_registry is None:
        raise ConfigError("--confluent-header needs --schema ID=FILE or --schema-registry URL")


def schema_files(given: Sequence[str]) -> tuple[str, dict[int, str]]:
    """Return the one file without an id ("" where there is none), and those with one, by id.

    >>> schema_files(["7=v1.avsc", "9=v2.avsc"])
    ('', {7: 'v1.avsc', 9: 'v2.avsc'})
    """
    plain: list[str] = []
    by_number: dict[int, str] = {}
    for one in given:
        match = _WITH_ID.fullmatch(one)
        if match is None:
            plain.append(one)
        elif int(match[1]) in by_number or int(match[1]) >= 1 << 31:
            raise ConfigError(f"--schema {one}: not an id, or an id that is given twice")
        else:
            by_number[int(match[1])] = match[2]
    if len(plain) > 1:
        raise ConfigError(f"--schema is given {len(plain)} times: {', '.join(plain)}")
    return plain[0] if plain else "", by_number


def stream_options(args: argparse.Namespace, given: Mapping[str, str], *, can_limit: bool) -> dict[str, str]:
    """Return the stream's options under their proper names, from those `given` for any read of the source.

    `can_limit`: this Spark supports limits of Python sources.
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
    """Return the choice without the topics that were archived and are `gone` (name by id).

    `names` are those of the existing topics; an existing topic that has the name of a gone one stays.
    """
    absent = {*gone, *gone.values()} - set(names)
    if isinstance(choice, Subscribe):
        return Subscribe(tuple(topic for topic in choice.topics if topic not in absent))
    if isinstance(choice, Assign):
        return Assign({topic: parts for topic, parts in choice.partitions.items() if topic not in absent})
    return choice


def by_id(options: Mapping[str, str], chosen: Sequence[ChosenPartition]) -> dict[str, str]:
    """Return the options with their topics named by id.

    So a topic that was created again with the name of a read one is another topic, and never continues it.
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
    """Rename the keys of a JSON object; leave other text for the source to report."""
    try:
        document: Any = json.loads(text)
    except ValueError:
        return text
    if not isinstance(document, dict):
        return text
    return json.dumps({ids.get(topic, topic): row for topic, row in document.items()}, sort_keys=True)
