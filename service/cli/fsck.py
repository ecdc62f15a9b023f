"""`firn fsck`: prove from the bucket alone that nothing is missing and every checksum holds."""

from __future__ import annotations

import argparse
import json

from service.cli.dump import add_store_options


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "fsck",
        help="check a bucket offline",
        description="Read a whole prefix and check it: offsets contiguous, every checksum right, HEAD the "
        "newest "
        "manifest. Lists orphans. Exit code 1 when anything is wrong.",
    )
    parser.add_argument("url", metavar="URL", help="s3://bucket/prefix, gs://, az:// or file:///dir")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_store_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.remote.obstore_store import open_store
    from service.tiering.fsck import fsck

    report = fsck(open_store(args.url, endpoint=args.endpoint, region=args.region))
    print(json.dumps(report.to_json(), indent=2) if args.json else report.to_text())
    return 0 if report.is_clean else 1
