"""`firn restore`: plans and prepares a cluster that comes back from its bucket, says what still loads."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from service.cli.address import add_bootstrap_option
from service.cli.arguments import add_json_option, offset, replicas
from service.cli.restore_words import document_of, lines_of
from service.cli.stores import add_encryption_options, add_store_options, encryption_of, endpoint_of

if TYPE_CHECKING:
    from pathlib import Path

    from service.inspect.restore_plan import RestorePlan
    from service.inspect.restore_records import Placement
    from service.inspect.restore_source import CutChoice, RestoreSource
    from service.inspect.take_over import Restored
    from service.remote.stores.obstore_store import ObstoreStore

_THREADS = 64
_BROKERS_AT_ONCE = 16
_GAP = 1_000_000
_MOST_GAP = 1 << 40


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "restore",
        help="bring a lost cluster back from its bucket",
        description="Bring a cluster back of which nothing is left but its bucket: topics, settings, groups,"
        " transactions, ACLs and quotas as they were at one moment, a cut, seconds before the end.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    plan = actions.add_parser(
        "plan",
        help="say what would come back",
        description="Read a bucket and print what a restore would bring back, what not, and how old it is."
        " Writes nothing.",
    )
    _add_choice(plan)
    add_json_option(plan)
    add_store_options(plan)
    plan.set_defaults(run=_plan)
    _add_apply(actions)
    status = actions.add_parser(
        "status",
        help="say what a restored cluster still loads",
        description="Ask a restored cluster which partitions are still loading. Exit code 0 when all is"
        " served, 1 before.",
    )
    add_bootstrap_option(status)
    add_json_option(status)
    status.set_defaults(run=_status)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="URL",
        help="the lost cluster's firn.remote.url: s3://bucket/prefix, gs://, az:// or file:///dir",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--cut", type=_cut, metavar="N", help="this cut (default: the newest)")
    which.add_argument(
        "--at", type=_time, metavar="TIME", help="the newest cut not after a time (2026-01-31T12:00:00Z)"
    )
    which.add_argument(
        "--metadata-offset",
        type=offset,
        metavar="OFFSET",
        help="the newest cut whose metadata ends at or below an offset",
    )
    parser.add_argument(
        "--allow-loose",
        action="store_true",
        help="take also a cut that is not of one moment for all partitions",
    )
    parser.add_argument(
        "--offset-gap",
        type=_gap,
        default=_GAP,
        metavar="N",
        help="offsets that each partition leaves out behind its end, as they may have been given out"
        f" (default: {_GAP})",
    )
    parser.add_argument(
        "--topics",
        type=_regex,
        metavar="REGEX",
        help="only topics whose whole name matches; not for --take-over",
    )


def _add_apply(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    apply = actions.add_parser(
        "apply",
        help="make a bucket, and the first metadata, of the cluster that comes back",
        description="Take the lost cluster's prefix over, or clone it, and write the file for `firn format"
        " --restore`. Cut off anywhere, the same command goes on.",
    )
    _add_choice(apply)
    where = apply.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--take-over",
        action="store_true",
        help="the prefix belongs to the new cluster from now on; should a node of the old one live, it"
        " writes nothing there any more",
    )
    where.add_argument(
        "--to", dest="target", metavar="URL", help="copy to another, empty prefix; the old one is only read"
    )
    apply.add_argument(
        "--brokers", required=True, type=_brokers, metavar="ID,…", help="ids of the new cluster's brokers"
    )
    apply.add_argument(
        "--replication-factor",
        type=replicas,
        metavar="N",
        help="replicas of all topics (default: each topic's own number, at most as many as brokers)",
    )
    apply.add_argument(
        "--fit",
        action="store_true",
        help="lower min.insync.replicas where a topic will have fewer replicas than that",
    )
    apply.add_argument(
        "--cluster-id", metavar="ID", help="id of the new cluster (default: a random one, which is printed)"
    )
    apply.add_argument(
        "--force",
        action="store_true",
        help="take over although something writes to the prefix, or cannot be read",
    )
    apply.add_argument("-o", "--output", required=True, metavar="FILE", help="file for firn format --restore")
    add_json_option(apply)
    add_store_options(apply)
    add_encryption_options(apply)
    apply.set_defaults(run=_apply)


def _cut(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**53:
        raise argparse.ArgumentTypeError(f"expected the number of a cut, found {text!r}")
    return int(text)


def _gap(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) <= _MOST_GAP:
        raise argparse.ArgumentTypeError(f"expected 0 to {_MOST_GAP}, found {text!r}")
    return int(text)


def _time(text: str) -> int:
    from service.base.errors import ConfigError
    from service.base.times import time_ms

    try:
        return time_ms(text)
    except ConfigError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as e:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {e}") from None


def _brokers(text: str) -> tuple[int, ...]:
    from service.cli.arguments import node_id

    return tuple(node_id(one.strip()) for one in text.split(","))


def _choice(args: argparse.Namespace) -> CutChoice:
    from service.inspect.restore_source import CutChoice

    return CutChoice(args.cut, args.at, args.metadata_offset, args.allow_loose)


def _wanted(args: argparse.Namespace) -> Callable[[str], bool] | None:
    pattern = args.topics
    return None if pattern is None else lambda name: pattern.fullmatch(name) is not None


def _open(args: argparse.Namespace, url: str, *, writes: bool = False, is_new: bool = False) -> ObstoreStore:
    from service.base.errors import ConfigError
    from service.base.world import system_world
    from service.config.tables import store_url_problem
    from service.remote.stores.obstore_store import open_store

    if problem := store_url_problem(url):
        raise ConfigError(f"{url}: {problem}")
    return open_store(
        url,
        world=system_world(),
        endpoint=endpoint_of(args),
        region=args.region,
        encryption=encryption_of(args) if writes else None,
        must_exist=not is_new,
    )


# -- plan


def _plan(args: argparse.Namespace) -> int:
    from service.base.world import system_world
    from service.inspect.restore_source import read_source
    from service.remote.stores.read_only_store import ReadOnlyStore

    store = ReadOnlyStore(_open(args, args.source))
    with system_world().threads.pool("restore", _THREADS) as pool:
        _, plan = read_source(store, _choice(args), pool, gap=args.offset_gap, wanted=_wanted(args))
    if args.json:
        print(json.dumps(document_of(plan), indent=2))
    else:
        print("\n".join(lines_of(plan)))
    return 1 if plan.problems else 0


# -- apply


def _apply(args: argparse.Namespace) -> int:
    from pathlib import Path

    from service.base.errors import ConfigError
    from service.base.world import system_world
    from service.cli.report import Report
    from service.config.tables.checks import cluster_id_problem
    from service.hot.log_dir import encode_uuid, random_id
    from service.inspect.restore_records import Placement, checked_brokers

    if args.take_over and args.topics is not None:
        raise ConfigError(
            "--topics goes with --to alone: a prefix that is taken over with part of its topics would lose "
            "the others"
        )
    if args.cluster_id is not None and (problem := cluster_id_problem(args.cluster_id)) is not None:
        raise ConfigError(f"--cluster-id {args.cluster_id}: {problem}")
    output = Path(args.output)
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise ConfigError(f"--output {output}: not the name of a file in a directory that exists")
    brokers = checked_brokers(args.brokers, args.replication_factor)
    placement = Placement(brokers, args.replication_factor, args.fit)
    world, report = system_world(), Report("missing", as_json=args.json)
    new_id = encode_uuid(random_id(world))

    def check(source: RestoreSource, plan: RestorePlan) -> None:
        for line in lines_of(plan):
            report.say(line)
        _check_fit(source, plan, placement)

    restored = _restored(args, new_id, report.say, check)
    for one in restored.missing:
        report.add("missing", f"gone: {one}", what=one)
    _write_file(args, restored, placement, output)
    report.say(
        f"written: {output}. Next, on each controller or the one node: firn format -c FILE -t "
        f"{restored.cluster_id} --restore {output}"
    )
    report.end(
        cluster_id=restored.cluster_id,
        file=str(output),
        brokers=list(brokers),
        plan=document_of(restored.plan),
    )
    return 0


def _check_fit(source: RestoreSource, plan: RestorePlan, placement: Placement) -> None:
    from service.base.errors import ConfigError
    from service.inspect.restore_records import fit_problems

    problems = fit_problems(source.image, plan, placement)
    if problems and not placement.fits:
        raise ConfigError(
            "these topics would have fewer replicas than are to be in sync; name more brokers, or have the "
            "setting lowered by --fit",
            *problems[:20],
        )


def _restored(
    args: argparse.Namespace,
    new_id: str,
    say: Callable[[str], None],
    check: Callable[[RestoreSource, RestorePlan], None],
) -> Restored:
    from service.base.world import system_world
    from service.inspect.take_over import TakeOverOrder, take_over
    from service.remote.stores.proven_uploads import ProvenUploads

    if not args.take_over:
        return _cloned(args, new_id, say, check)
    world = system_world()
    store = _open(args, args.source, writes=True)
    order = TakeOverOrder(_choice(args), new_id, args.cluster_id, gap=args.offset_gap, is_forced=args.force)
    with world.threads.pool("restore", _THREADS) as pool:
        return take_over(ProvenUploads(store, store.verifies_uploads), order, world, pool, say, check)


def _cloned(
    args: argparse.Namespace,
    new_id: str,
    say: Callable[[str], None],
    check: Callable[[RestoreSource, RestorePlan], None],
) -> Restored:
    import os

    from service.base.errors import ConfigError
    from service.base.world import system_world
    from service.inspect.clone import CloneOrder, clone
    from service.inspect.object_copies import copier_of
    from service.remote.stores.proven_uploads import ProvenUploads
    from service.remote.stores.read_only_store import ReadOnlyStore

    if args.force:
        raise ConfigError("--force goes with --take-over: a clone changes nothing at its source")
    old, new = args.source.rstrip("/"), args.target.rstrip("/")
    if f"{old}/".startswith(f"{new}/") or f"{new}/".startswith(f"{old}/"):
        raise ConfigError(
            f"--to {args.target}: not a prefix beside {args.source}, one must not be in the other"
        )
    world = system_world()
    source = ReadOnlyStore(_open(args, args.source))
    store = _open(args, args.target, writes=True, is_new=True)
    target = ProvenUploads(store, store.verifies_uploads)
    copies = copier_of(
        args.source,
        args.target,
        source,
        target,
        world,
        os.environ,
        endpoint=endpoint_of(args),
        region=args.region,
        encryption=encryption_of(args),
        say=say,
    )
    order = CloneOrder(_choice(args), new_id, args.cluster_id, args.offset_gap, _wanted(args))
    with world.threads.pool("restore", _THREADS) as pool, copies as copy:
        return clone(source, target, copy, order, world, pool, say, check)


def _write_file(args: argparse.Namespace, restored: Restored, placement: Placement, output: Path) -> None:
    from service.base.world import system_world
    from service.inspect.restore_file import write_restore

    world = system_world()
    records = restored.first_records(placement, is_clone=args.target is not None)
    header = restored.header(placement.brokers)
    write_restore(world.disk, output.absolute(), header, records, world.clock.now_ms())


# -- status


def _status(args: argparse.Namespace) -> int:
    from service.base.world import system_world
    from service.cli.client_properties import security_of_args
    from service.client.admin import Cluster
    from service.inspect.restore_status import restore_status

    with (
        system_world().threads.pool("status", _BROKERS_AT_ONCE) as pool,
        Cluster(args.bootstrap_server, security=security_of_args(args)) as cluster,
    ):
        found = restore_status(cluster, pool)
    if args.json:
        print(json.dumps({**found._asdict(), "is_served": found.is_served}, indent=2))
    else:
        lines = (*found.loading, *found.failed, *found.silent, *(f"note: {one}" for one in found.notes))
        print("\n".join(lines) or "all of it is served")
    return 0 if found.is_served else 1
