"""`firn sweep`: deletes objects that no published manifest names, and unfinished uploads, of a prefix."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from service.cli.arguments import add_json_option
from service.cli.report import Report
from service.cli.stores import add_store_options, endpoint_of

if TYPE_CHECKING:
    from service.base.world import World
    from service.inspect.unfinished_files import UnfinishedFiles
    from service.inspect.unfinished_uploads import UnfinishedUploads
    from service.remote.stores.obstore_store import ObstoreStore

_DAY_H = 24


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "sweep",
        help="list orphans and unfinished uploads in a bucket, or delete them",
        description="List the objects that no published manifest names, or delete them (--delete). A running"
        " node sweeps by itself; this is for prefixes that no node writes to. HEADs and the newest copy of"
        " the metadata in the bucket say which objects are live; without a readable copy nothing is swept."
        " Partitions that cannot be judged for sure are skipped, with the reason. In S3 and folders it then"
        " lists, or aborts, uploads that were not finished.",
    )
    parser.add_argument("url", metavar="URL", help="s3://bucket/prefix, gs://, az:// or file:///dir")
    parser.add_argument("--delete", action="store_true", help="delete them; otherwise they are only listed")
    parser.add_argument(
        "--older-than-hours",
        type=int,
        default=_DAY_H,
        metavar="H",
        help="keep younger objects and uploads (default: 24)",
    )
    parser.add_argument(
        "--topic",
        metavar="ID",
        help="all objects of this topic, which was deleted or is unknown, and nothing else",
    )
    add_store_options(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from uuid import UUID

    from service.base.errors import ConfigError
    from service.base.world import system_world
    from service.config.tables import store_url_problem
    from service.inspect.sweep import Skipped, delete_orphans, find_orphans
    from service.remote.stores.errors import StoreRefused, raise_of_the_store
    from service.remote.stores.obstore_store import open_store
    from service.tiering.store_clock import StoreClock

    if problem := store_url_problem(args.url):
        raise ConfigError(f"{args.url}: {problem}")
    if args.older_than_hours < 0:
        raise ConfigError("--older-than-hours: must not be below 0")
    try:
        whole_topic = UUID(args.topic) if args.topic is not None else None
    except ValueError as e:
        raise ConfigError(f"--topic: {args.topic} is not the id of a topic") from e
    world = system_world()
    store = open_store(args.url, world=world, endpoint=endpoint_of(args), region=args.region, must_exist=True)
    now_ms = world.clock.now_ms()
    if args.delete:
        now_ms -= StoreClock(store, world).skew_ms()
    report = Report("orphans", "unfinished_uploads", "skipped", "refused", as_json=args.json)
    found = deleted = size = 0
    is_kept = False
    for one in find_orphans(
        store, older_than_ms=args.older_than_hours * 3_600_000, now_ms=now_ms, whole_topic=whole_topic
    ):
        if isinstance(one, Skipped):
            report.add("skipped", f"skipped: {one.where}: {one.why}", where=one.where, why=one.why)
            continue
        for info in one.orphans:
            report.add("orphans", f"orphan: {info.key} ({info.size} bytes)", key=info.key, size=info.size)
        found += len(one.orphans)
        size += sum(info.size for info in one.orphans)
        if args.delete:
            try:
                deleted += delete_orphans(store, one)
            except StoreRefused as e:
                raise_of_the_store(e)
                report.add("refused", f"not deleted: {one.where}: {e}", where=one.where, why=str(e))
                is_kept = True
    report.say(
        f"{found} orphans of {size} bytes, "
        + (f"{deleted} deleted" if args.delete else "none deleted (--delete)")
    )
    aborted = None
    if whole_topic is None and (uploads := _uploads(args, store, world, now_ms)) is not None:
        aborted, is_done = _sweep_uploads(args, uploads, report)
        is_kept |= not is_done
    report.end(url=args.url, executed=args.delete, deleted=deleted, aborted=aborted)
    return 1 if is_kept else 0


def _uploads(
    args: argparse.Namespace, store: ObstoreStore, world: World, now_ms: int
) -> UnfinishedUploads | UnfinishedFiles | None:
    """Return the unfinished uploads of S3 or of a folder; None where the store does not tell of any."""
    from service.remote.stores.folder_store import FolderStore
    from service.remote.stores.s3_address import is_s3

    if isinstance(store, FolderStore):
        from service.inspect.unfinished_files import UnfinishedFiles

        return UnfinishedFiles(world.disk, store.root, now_ms)
    if not is_s3(args.url):
        return None
    from service.inspect.unfinished_uploads import UnfinishedUploads
    from service.remote.stores.boto3_client import s3_client

    return UnfinishedUploads(*s3_client(args.url, endpoint_of(args), args.region, os.environ))


def _sweep_uploads(
    args: argparse.Namespace, uploads: UnfinishedUploads | UnfinishedFiles, report: Report
) -> tuple[int, bool]:
    """List unfinished uploads, or abort them; return how many were aborted, and whether the store has refused
    none."""
    from service.remote.stores.errors import StoreRefused

    found = aborted = 0
    is_done = True
    try:
        for upload in uploads.older_than(args.older_than_hours * 3_600_000):
            words = f"unfinished upload: {upload.key} ({upload.age_ms // 3_600_000} h old)"
            report.add("unfinished_uploads", words, key=upload.key, age_ms=upload.age_ms)
            found += 1
            if not args.delete:
                continue
            try:
                aborted += uploads.abort(upload)
            except StoreRefused as e:
                report.add("refused", f"not aborted: {upload.key}: {e}", where=upload.key, why=str(e))
                is_done = False
    except StoreRefused as e:
        words = f"skipped: unfinished uploads: the store does not list them: {e}"
        report.add("skipped", words, where="unfinished uploads", why=str(e))
        return aborted, is_done
    report.say(
        f"{found} unfinished uploads, " + (f"{aborted} aborted" if args.delete else "none aborted (--delete)")
    )
    return aborted, is_done
