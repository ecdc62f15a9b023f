"""`firn pipeline`: runs the Spark jobs of `service/pipelines` over an archive."""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.util import find_spec

from service.pipelines.arguments import (
    add_archive_arguments,
    add_audit_arguments,
    add_erase_arguments,
    add_replay_arguments,
    add_stats_arguments,
)

_PIPELINES = {
    "archive": ("write topics as Parquet or as an Iceberg table, exactly once", add_archive_arguments),
    "audit": ("check a whole archive: chains, checksums, counts per topic and day", add_audit_arguments),
    "erase": ("carry out the bucket's part of an order to erase keys, on many machines", add_erase_arguments),
    "replay": ("send a range of the archive back into a topic", add_replay_arguments),
    "stats": ("count events and bytes per topic, key and day", add_stats_arguments),
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "pipeline",
        help="run a Spark job over the archive",
        description="Spark jobs over the archive in a bucket. Each also runs under spark-submit, see"
        " docs/pipelines.md. Needs the extra [spark] (docs/install.md).",
    )
    pipelines = parser.add_subparsers(metavar="PIPELINE", dest="pipeline", required=True)
    for name, (summary, add_arguments) in _PIPELINES.items():
        add_arguments(pipelines.add_parser(name, help=summary, description=summary.capitalize() + "."))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.base.extras import install_extra

    for module in ("pyspark", "pyarrow"):
        if find_spec(module) is None:
            raise ConfigError(f"pipelines need {module}: {install_extra('spark')}")
    code: int = import_module(f"service.pipelines.{args.pipeline}").run(args)
    return code
