"""`firn fsck`: checks from the bucket alone that nothing is missing and every checksum matches."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from service.cli.arguments import add_json_option
from service.cli.stores import add_store_options, endpoint_of, thread_count

if TYPE_CHECKING:
    from service.inspect.fsck_report import FsckReport


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "fsck",
        help="check a bucket offline",
        description="Read a whole prefix and check it: contiguous offsets, matching checksums, no missing"
        " objects, HEADs and topics not older than the newest copy of the metadata in the bucket. Lists"
        " orphans. Can run beside nodes. Exit code 1 if anything is wrong (orphans are not).",
    )
    parser.add_argument("url", metavar="URL", help="s3://bucket/prefix, gs://, az:// or file:///dir")
    parser.add_argument("--topic", metavar="NAME|ID", help="this topic only")
    parser.add_argument(
        "--shallow", action="store_true", help="check footers, not batches and filters of keys"
    )
    parser.add_argument(
        "--threads", type=thread_count, default=4, metavar="N", help="partitions in parallel (default: 4)"
    )
    add_json_option(parser)
    add_store_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.base.world import system_world
    from service.config.tables import store_url_problem
    from service.inspect.fsck import fsck
    from service.remote.stores.obstore_store import open_store

    if problem := store_url_problem(args.url):
        raise ConfigError(f"{args.url}: {problem}")
    world = system_world()
    store = open_store(args.url, world=world, endpoint=endpoint_of(args), region=args.region, must_exist=True)
    progress = _show_progress if sys.stderr.isatty() else None
    with world.threads.pool("fsck", args.threads) as pool:
        report = fsck(store, topic=args.topic, deep=not args.shallow, progress=progress, pool=pool)
    if progress is not None:
        print("\r\x1b[K", end="", file=sys.stderr)
    print(report.as_json() if args.json else report.as_text())
    return report.exit_code


def _show_progress(report: FsckReport) -> None:
    print(
        f"\r\x1b[K{report.segments} segments, {report.records:,} records", end="", file=sys.stderr, flush=True
    )
