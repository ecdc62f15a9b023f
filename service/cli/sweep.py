"""`firn sweep`: deletes objects that no published manifest names, in prefixes without a running node."""

from __future__ import annotations

import argparse

from service.cli.stores import add_store_options, endpoint_of

_DAY_H = 24


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "sweep",
        help="list orphans in a bucket, or delete them",
        description="List the objects that no published manifest names, or delete them (--delete). A running"
        " node sweeps by itself; this is for prefixes that no node writes to. HEADs and the newest copy of"
        " the metadata in the bucket say which objects are live; without a readable copy nothing is swept."
        " Partitions that cannot be judged for sure are skipped, with the reason.",
    )
    parser.add_argument("url", metavar="URL", help="s3://bucket/prefix, gs://, az:// or file:///dir")
    parser.add_argument("--delete", action="store_true", help="delete them; otherwise they are only listed")
    parser.add_argument(
        "--older-than-hours", type=int, default=_DAY_H, metavar="H", help="keep younger ones (default: 24)"
    )
    parser.add_argument(
        "--topic",
        metavar="ID",
        help="all objects of this topic, which was deleted or is unknown",
    )
    add_store_options(parser)
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
    store = open_store(args.url, world=world, endpoint=endpoint_of(args), region=args.region)
    now_ms = world.clock.now_ms()
    if args.delete:
        now_ms -= StoreClock(store, world).skew_ms()
    found = deleted = size = 0
    is_kept = False
    for one in find_orphans(
        store, older_than_ms=args.older_than_hours * 3_600_000, now_ms=now_ms, whole_topic=whole_topic
    ):
        if isinstance(one, Skipped):
            print(f"skipped: {one.where}: {one.why}")
            continue
        for info in one.orphans:
            print(f"orphan: {info.key} ({info.size} bytes)")
        found += len(one.orphans)
        size += sum(info.size for info in one.orphans)
        if args.delete:
            try:
                deleted += delete_orphans(store, one)
            except StoreRefused as e:
                raise_of_the_store(e)
                print(f"not deleted: {one.where}: {e}")
                is_kept = True
    print(
        f"{found} orphans of {size} bytes, "
        + (f"{deleted} deleted" if args.delete else "none deleted (--delete)")
    )
    return 1 if is_kept else 0
