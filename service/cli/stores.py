"""Options of the commands that read a bucket."""

from __future__ import annotations

import argparse
import os


def add_store_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help="S3 endpoint (default: AWS_ENDPOINT_URL, else AWS); credentials come from the environment",
    )
    parser.add_argument("--region", metavar="NAME", help="region of the bucket (default: AWS_REGION)")


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
