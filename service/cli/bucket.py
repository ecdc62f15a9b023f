"""`firn bucket`: checks a bucket, creates one, prints the policy that a node needs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from service.cli.arguments import add_json_option
from service.cli.stores import add_encryption_options, add_store_options, encryption_of, endpoint_of

if TYPE_CHECKING:
    from service.inspect.step_result import StepResult


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bucket",
        help="check or create a bucket for the cold tier",
        description="Check whether a bucket is fit for a node's cold tier, create one, or print the policy"
        " that a node needs in it.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)

    check = actions.add_parser(
        "check",
        help="check that a store has what a node needs",
        description="Check, with a node's own requests, that a store has what a node needs: conditional"
        " writes, multipart uploads, checksums, ordered listings, deletes, the clock. The objects written,"
        " some 5 MB under probe/, are deleted again. Names missing permissions, with the least policy that"
        " has them, and gives advice on the bucket's settings. Of these a lifecycle rule that aborts"
        " unfinished uploads (AbortIncompleteMultipartUpload) is demanded, where the store has such rules."
        " Safe beside a running node.",
    )
    check.add_argument("url", metavar="URL", help="s3://bucket/prefix, gs://, az:// or file:///dir")
    add_json_option(check)
    add_store_options(check)
    add_encryption_options(check)
    check.set_defaults(run=_check)

    create = actions.add_parser(
        "create",
        help="create a bucket as recommended",
        description="Create an S3 bucket with versioning, encryption, public access blocked, a lifecycle rule"
        " for unfinished uploads and old versions, and a policy that refuses plain HTTP (unless the endpoint"
        " is plain HTTP itself). An existing bucket is not changed.",
    )
    create.add_argument("url", metavar="URL", help="s3://bucket; a prefix after it need not be created")
    create.add_argument("--kms-key", metavar="ARN", help="encrypt with this key of KMS (default: S3's own)")
    add_store_options(create)
    add_json_option(create)
    create.set_defaults(run=_create)

    policy = actions.add_parser(
        "policy",
        help="print the least IAM policy of a node, or of a reader",
        description="Print the least policy for the role or user of a node, or of a reader of the archive as"
        " Spark, as JSON. Sends no request to the store.",
    )
    policy.add_argument("url", metavar="URL", help="s3://bucket/prefix")
    policy.add_argument(
        "--reader",
        action="store_true",
        help="of a reader, as Spark: the archive without the copies of the metadata, and nothing to write",
    )
    policy.add_argument(
        "--kms-key", metavar="ARN", help="the key of KMS that the bucket encrypts with (default: none)"
    )
    policy.add_argument(
        "--aws-partition",
        default="aws",
        metavar="NAME",
        help="aws, aws-cn or aws-us-gov, as in ARNs (default: aws)",
    )
    policy.set_defaults(run=_policy)


def _check(args: argparse.Namespace) -> int:
    from service.base.world import system_world
    from service.inspect.bucket_check import PART_BYTES, BucketCheck, Unfinished
    from service.inspect.bucket_policy import partition_of
    from service.inspect.step_result import Outcome
    from service.remote.stores.boto3_client import s3_client
    from service.remote.stores.obstore_store import StoreOptions, open_store
    from service.remote.stores.s3_address import is_s3

    _refuse_no_store(args.url)
    world, endpoint = system_world(), endpoint_of(args)
    options = StoreOptions(part_bytes=PART_BYTES, max_retries=1, retry_timeout_s=20)
    encryption = encryption_of(args)
    store = open_store(
        args.url,
        world=world,
        endpoint=endpoint,
        region=args.region,
        encryption=encryption,
        options=options,
    )
    unfinished = None
    if is_s3(args.url):
        unfinished = Unfinished(*s3_client(args.url, endpoint, args.region, os.environ), encryption)
    has_unread_rules = urlsplit(args.url).scheme == "gs"
    found: list[StepResult] = []
    for finding in BucketCheck(store, world, unfinished, has_unread_rules=has_unread_rules).run():
        found.append(finding)
        if not args.json:
            print(_line(finding), flush=True)
    failed = [one for one in found if one.outcome is Outcome.FAILED]
    missing = sorted({permission for one in found for permission in one.missing})
    policy = None
    if unfinished is not None:
        policy = _policy_of(args.url, partition=partition_of(unfinished.address.region))
    if args.json:
        steps = [{**one._asdict(), "outcome": one.outcome.value} for one in found]
        document = {"url": args.url, "fit": not failed, "missing": missing, "steps": steps, "policy": policy}
        print(json.dumps(document, indent=2))
        return 1 if failed else 0
    if missing:
        print(f"missing: {', '.join(missing)}. The least policy of a node in this bucket:")
        print(json.dumps(policy, indent=2))
    print("the store is fit" if not failed else f"the store is not fit: {len(failed)} failed")
    return 1 if failed else 0


def _line(finding: StepResult) -> str:
    from service.base.printable import printable

    why = f": {printable(finding.why, 500)}" if finding.why else ""
    return f"{finding.outcome.value:<9} {finding.what}{why}"


def _create(args: argparse.Namespace) -> int:
    from service.base.errors import ConfigError
    from service.cli.report import Report
    from service.inspect.bucket_create import create_bucket
    from service.remote.stores.boto3_client import s3_client
    from service.remote.stores.s3_address import is_s3

    _refuse_no_store(args.url)
    if not is_s3(args.url):
        raise ConfigError(f"{args.url}: only buckets of S3 can be created")
    if args.kms_key:
        _policy_of(args.url, args.kms_key)  # refuses an invalid key
    client, address = s3_client(args.url, endpoint_of(args), args.region, os.environ)
    report, failed = Report("created", "failed", as_json=args.json), 0
    for made in create_bucket(client, address, args.kms_key):
        if made.why is None:
            report.add("created", f"created: {made.what}", what=made.what)
        else:
            failed += 1
            report.keep("failed", what=made.what, why=made.why)
            print(f"firn bucket: not set: {made.what}: {made.why}", file=sys.stderr, flush=True)
    report.end(url=args.url)
    return 1 if failed else 0


def _policy(args: argparse.Namespace) -> int:
    _refuse_no_store(args.url)
    print(json.dumps(_policy_of(args.url, args.kms_key, args.aws_partition, args.reader), indent=2))
    return 0


def _policy_of(
    url: str, kms_key: str | None = None, partition: str = "aws", is_reader: bool = False
) -> dict[str, object]:
    from service.inspect.bucket_policy import least_policy, reader_policy
    from service.remote.stores.s3_address import s3_address

    address = s3_address(url, None, None, {})
    made = reader_policy if is_reader else least_policy
    return made(address.bucket, address.prefix, kms_key=kms_key, partition=partition)


def _refuse_no_store(url: str) -> None:
    from service.base.errors import ConfigError
    from service.config.tables import store_url_problem

    if problem := store_url_problem(url):
        raise ConfigError(f"{url}: {problem}")
