"""Where an S3 bucket is: what the URL, the settings and the environment say together.

One reading for everybody who talks to the bucket: the store (`obstore_store`) and the child that ends
abandoned uploads (`abandoned_uploads`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from service.base.errors import ConfigError
from service.remote.aws_credentials import read_profile


class S3Address(NamedTuple):
    """A bucket and a place in it.

    `prefix` has no ``/`` at its ends and is empty for the whole bucket; `endpoint` is None for AWS itself;
    `by_path` says that the bucket's name is part of the path and not of the host name.
    """

    bucket: str
    prefix: str
    endpoint: str | None
    region: str
    by_path: bool


def is_s3(url: str) -> bool:
    return urlsplit(url).scheme == "s3"


def s3_address(url: str, endpoint: str | None, region: str | None, environ: Mapping[str, str]) -> S3Address:
    """The address behind ``s3://bucket[/prefix]``; `endpoint` and `region` win over the environment.

    Raises `ConfigError` for a URL that names no bucket and for shared AWS files that cannot be read.
    """
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"{url}: not the URL of an S3 bucket")
    found = endpoint or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    return S3Address(
        bucket=parts.netloc,
        prefix=unquote(parts.path).strip("/"),
        endpoint=found.rstrip("/") if found else None,
        region=region or _region(environ),
        # A bucket with a dot in its name has no valid TLS certificate as a host name.
        by_path=bool(found) or "." in parts.netloc,
    )


def _region(environ: Mapping[str, str]) -> str:
    found = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if found:
        return found
    profile = read_profile(environ)
    return (profile.region if profile else None) or "us-east-1"
