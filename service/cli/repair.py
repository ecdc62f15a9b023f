"""`firn repair`: restores pages, manifests, HEADs, topics.json, cluster.json and CUT, if damaged or gone."""

from __future__ import annotations

import argparse

from service.cli.arguments import add_json_option
from service.cli.stores import add_encryption_options, add_store_options, encryption_of, endpoint_of

_FOLLOW = ": no node follows that by itself; start it once with firn.remote.recover=true"
_NOT_OF_SEVERAL = (
    "  not for brokers of a cluster with several that keep running: they do not follow it, and the partition"
    ' accepts no records after their next start (docs/operations.md, "A bucket that was rolled back")'
)

_WRITTEN_MEANWHILE = "  not repaired: another process has written there meanwhile; is a node running?"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "repair",
        help="repair manifests, HEADs, topics.json, cluster.json and CUT of a bucket",
        description="Print which pages of manifests, manifests and HEADs, and whether topics.json,"
        " cluster.json and CUT, are damaged, gone or older than the newest copy of the metadata, and from"
        " what they can be restored, or restore them (--write). Stop the node first; if a manifest is"
        " published again, start the node once with firn.remote.recover=true afterwards. Deletes nothing."
        " Exit code 1 if something is wrong and was not repaired.",
    )
    parser.add_argument("url", metavar="URL", help="s3://bucket/prefix, gs://, az:// or file:///dir")
    parser.add_argument("--write", action="store_true", help="repair; otherwise only print the repairs")
    add_store_options(parser)
    add_encryption_options(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.base.world import system_world
    from service.cli.report import Report
    from service.config.tables import store_url_problem
    from service.inspect.head_repair import HeadRepair, Unrepairable
    from service.inspect.repair import carry_out, find_repairs
    from service.remote.stores.obstore_store import open_store
    from service.remote.stores.proven_uploads import ProvenUploads

    if problem := store_url_problem(args.url):
        raise ConfigError(f"{args.url}: {problem}")
    world = system_world()
    store = open_store(
        args.url,
        world=world,
        endpoint=endpoint_of(args),
        region=args.region,
        encryption=encryption_of(args),
        must_exist=True,
    )
    report, wrong = Report("repairs", as_json=args.json), 0
    for repair in list(find_repairs(store)):
        report.say(str(repair))
        is_published = isinstance(repair, HeadRepair) and not repair.is_as_committed
        if is_published and not args.write:
            report.say(_NOT_OF_SEVERAL)
        is_done = False
        if args.write and not isinstance(repair, Unrepairable):
            is_done = carry_out(ProvenUploads(store, store.verifies_uploads), repair, world.new_uuid)
            report.say("  repaired" + (_FOLLOW if is_published else "") if is_done else _WRITTEN_MEANWHILE)
        wrong += not is_done
        report.keep(
            "repairs", what=str(repair), can_be_done=not isinstance(repair, Unrepairable), repaired=is_done
        )
    report.say(
        "nothing is wrong" if not wrong else f"{wrong} not repaired" + ("" if args.write else " (--write)")
    )
    report.end(url=args.url, executed=args.write)
    return 1 if wrong else 0
