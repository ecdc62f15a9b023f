"""Options of the commands that read a bucket."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.remote.stores.s3_encryption import S3Encryption


def add_store_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help="S3 endpoint (default: AWS_ENDPOINT_URL, else AWS); credentials come from the environment",
    )
    parser.add_argument("--region", metavar="NAME", help="region of the bucket (default: AWS_REGION)")


def add_encryption_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that writes to the bucket: `firn.remote.s3.sse` of a node."""
    parser.add_argument(
        "--sse",
        metavar="ALGORITHM",
        help="encryption that every write asks S3 for, AES256 or aws:kms, where the bucket demands it"
        " (default: the bucket's own)",
    )
    parser.add_argument("--sse-kms-key-id", metavar="KEY", help="the key of KMS for --sse aws:kms")


def encryption_of(args: argparse.Namespace) -> S3Encryption | None:
    """Return the encryption that the options ask for. Raises `ConfigError` for one that there is not."""
    from service.remote.stores.s3_encryption import s3_encryption

    return s3_encryption(args.sse, args.sse_kms_key_id)


def thread_count(text: str) -> int:
    """Parse the value of an option that is a number of threads."""
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to 64")
    return int(text)


def endpoint_of(args: argparse.Namespace) -> str | None:
    """Return the endpoint of the option or the environment. Raises `ConfigError` for an invalid URL."""
    from service.base.errors import ConfigError
    from service.config.tables import http_url_problem

    given: str | None = args.endpoint
    for name, url in (
        ("--endpoint", given),
        ("AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL_S3")),
        ("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT_URL")),
    ):
        if url:
            if problem := http_url_problem(url):
                raise ConfigError(f"{name} {url!r}: {problem}")
            return url
    return None
