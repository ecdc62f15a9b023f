"""boto3's client for a bucket, configured as `open_store` configures its own: for calls that obstore lacks.

boto3 holds the GIL for long and stays in memory, so it is not loaded before a client is made, and no broker
makes one in its own process.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from service.base.errors import ConfigError, StorageError
from service.remote.stores.aws_credentials import credential_provider
from service.remote.stores.errors import StoreRefused, StoreUnavailable
from service.remote.stores.s3_address import S3Address, s3_address

if TYPE_CHECKING:
    from obstore.store import S3Credential

_REFUSALS: Final = (400, 401, 403, 404, 405, 501)
"""Statuses that only an operator can change."""
_FILES: Final = ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")


class NoSuchUpload(StorageError):
    """The upload does not exist, or does not any more."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise boto3's errors as ours."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as e:
        if e.response.get("Error", {}).get("Code") == "NoSuchUpload":
            raise NoSuchUpload(what) from e
        status = e.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        raise (StoreRefused if status in _REFUSALS else StoreUnavailable)(f"{what}: {e}") from e
    except BotoCoreError as e:
        raise StoreUnavailable(f"{what}: {e}") from e


def s3_client(
    url: str,
    endpoint: str | None,
    region: str | None,
    environ: MutableMapping[str, str],
    connections: int = 10,
) -> tuple[Any, S3Address]:
    """Return the client of ``s3://bucket[/prefix]``, and its address; `environ` is the process's.

    The shared AWS files are read the way `open_store` reads them and then hidden from boto3, which reads them
    by other rules: so this changes `environ`. Raises `ConfigError`, `StoreRefused` or `StoreUnavailable`.
    """
    address = s3_address(url, endpoint, region, environ)
    with translated("credentials"):
        provider = credential_provider(environ)
        keys: S3Credential | Any = provider() if provider is not None else {}
    _hide_files(environ)
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=5,
        read_timeout=30,
        max_pool_connections=connections,
        retries={"total_max_attempts": 3, "mode": "standard"},
        s3={"addressing_style": "path" if address.by_path else "virtual"},
    )
    try:
        with translated(url):
            client = boto3.client(
                "s3",
                endpoint_url=address.endpoint,
                region_name=address.region,
                aws_access_key_id=keys.get("access_key_id"),
                aws_secret_access_key=keys.get("secret_access_key"),
                aws_session_token=keys.get("token"),
                config=config,
            )
    except ValueError as e:
        raise ConfigError(f"{url}: {e}") from e
    return client, address


def _hide_files(environ: MutableMapping[str, str]) -> None:
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        environ.pop(name, None)
    environ.update(dict.fromkeys(_FILES, "/dev/null"))
