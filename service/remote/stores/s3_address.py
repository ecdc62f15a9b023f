"""Where an S3 bucket is: what the URL, the settings and the environment say together.

One reading for everybody who talks to the bucket: the store (`obstore_store`) and the child that ends
abandoned uploads (`abandoned_uploads`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from service.base.errors import ConfigError
from service.config.tables import S3_SCHEMES
from service.remote.stores.aws_credentials import read_profile


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
    """``s3a`` and ``s3n`` are what Hadoop's clients call the same thing."""
    return urlsplit(url).scheme in S3_SCHEMES


def s3_address(
    url: str,
    endpoint: str | None,
    region: str | None,
    environ: Mapping[str, str],
    profile: str | None = None,
) -> S3Address:
    """The address behind ``s3://bucket[/prefix]``; `endpoint` and `region` win over the environment.

    `profile` is one of the shared files that is asked for by name, if any.

    Raises `ConfigError` for a URL that names no bucket and for shared AWS files that cannot be read.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc or "@" in urlsplit(endpoint or "").netloc:
        raise ConfigError(
            "credentials do not belong in a URL; they come from the environment, a profile or a role"
        )
    if not is_s3(url) or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"{url}: not the URL of an S3 bucket")
    found = endpoint or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    return S3Address(
        bucket=parts.netloc,
        prefix=unquote(parts.path).strip("/"),
        endpoint=found.rstrip("/") if found else None,
        region=region or _region(environ, profile),
        # A bucket with a dot in its name has no valid TLS certificate as a host name.
        by_path=bool(found) or "." in parts.netloc,
    )


def _region(environ: Mapping[str, str], profile: str | None) -> str:
    """A profile that is asked for by name says it before the environment does, as its keys do."""
    named = read_profile(environ, profile) if profile else None
    if named is not None and named.region:
        return named.region
    found = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if found:
        return found
    chosen = named or read_profile(environ)
    return (chosen.region if chosen else None) or "us-east-1"
