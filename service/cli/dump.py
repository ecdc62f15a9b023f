"""`firn dump`: prints the content of a file or object."""

from __future__ import annotations

import argparse
import sys

from service.cli.arguments import add_json_option
from service.cli.stores import add_store_options, endpoint_of


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "dump",
        help="print the content of a file or object",
        description="Print any file that Firn writes, on disk or in object storage: .log .index .timeindex "
        ".txnindex .snapshot .checkpoint .seg manifests HEAD cluster.json topics.json quorum-state "
        "meta.properties and the checkpoints.",
    )
    parser.add_argument(
        "target", metavar="FILE|URL", help="a local file, or s3://bucket/key, file:///path, gs://, az://"
    )
    add_json_option(parser)
    parser.add_argument(
        "--records",
        action="store_true",
        help="print the records of a .log, too; decoded those of __consumer_offsets and __transaction_state",
    )
    add_store_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.config.tables import store_url_problem
    from service.inspect.dump import write_json, write_text
    from service.inspect.formats import dump
    from service.inspect.source import open_source

    if "://" in args.target and (problem := store_url_problem(args.target)):
        raise ConfigError(f"{args.target}: {problem}")
    source = open_source(args.target, endpoint=endpoint_of(args), region=args.region)
    (write_json if args.json else write_text)(dump(source, records=args.records), sys.stdout)
    return 0
