"""Address of an S3 bucket, from the URL, the settings and the environment.

Everything that talks to the bucket uses it: the store (`obstore_store`) and boto3's client (`boto3_client`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from service.base.errors import ConfigError
from service.config.tables import S3_SCHEMES
from service.remote.stores.aws_credentials import read_profile


class S3Address(NamedTuple):
    """A bucket and a prefix in it.

    `prefix` has no ``/`` at its ends and is empty for the whole bucket; `endpoint` is None for AWS itself;
    `by_path` puts the bucket's name into the path instead of the host name.
    """

    bucket: str
    prefix: str
    endpoint: str | None
    region: str
    by_path: bool


def is_s3(url: str) -> bool:
    """Return whether the URL names S3; ``s3a`` and ``s3n`` are Hadoop's names for it."""
    return urlsplit(url).scheme in S3_SCHEMES


def s3_address(
    url: str,
    endpoint: str | None,
    region: str | None,
    environ: Mapping[str, str],
    profile: str | None = None,
) -> S3Address:
    """Return the address of ``s3://bucket[/prefix]``; `endpoint` and `region` win over the environment.

    `profile` is one of the shared files, where it was requested by name.

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
    """Return the region; a profile requested by name wins over the environment, as its keys do."""
    named = read_profile(environ, profile) if profile else None
    if named is not None and named.region:
        return named.region
    found = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if found:
        return found
    chosen = named or read_profile(environ)
    return (chosen.region if chosen else None) or "us-east-1"
