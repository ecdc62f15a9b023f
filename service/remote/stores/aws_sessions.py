"""Credentials fetched by boto3: of roles by name, of profiles that assume one, run a process or use SSO.

boto3 reads the shared files and ``AWS_ENDPOINT_URL_STS`` of the process by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from service.base.errors import ConfigError
from service.remote.stores.errors import AccountRefused, CredentialsMissing, StoreUnavailable
from service.remote.stores.s3_access import S3Access

if TYPE_CHECKING:
    from obstore.store import S3Credential

_ASK_AGAIN_AFTER: Final = timedelta(minutes=5)
"""boto3 renews its credentials by itself, well before they expire."""
_SESSION_NAME: Final = "firn"


class ProfileSession:
    """boto3's credentials of a profile."""

    is_fixed = False

    def __init__(self, profile: str) -> None:
        self.name = f"the profile {profile}"
        self._profile = profile
        self._credentials: Any = None

    def fetch(self, *, fresh: bool) -> S3Credential:
        with _translated(self.name):
            if fresh or self._credentials is None:
                self._credentials = _session(self._profile).get_credentials()
            if self._credentials is None:
                raise CredentialsMissing(f"{self.name} gives no credentials")
            frozen = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _ASK_AGAIN_AFTER,
        }


class AssumedRole:
    """A role, assumed with a profile's credentials or those of the process's chain (STS ``AssumeRole``)."""

    is_fixed = False

    def __init__(self, access: S3Access, region: str) -> None:
        self.name = f"the role {access.role_arn}"
        self._access = access
        self._region = region
        self._client: Any = None

    def fetch(self, *, fresh: bool) -> S3Credential:
        access = self._access
        request = {"RoleArn": access.role_arn, "RoleSessionName": access.role_session_name or _SESSION_NAME}
        if access.external_id is not None:
            request["ExternalId"] = access.external_id
        with _translated(self.name):
            if fresh or self._client is None:
                self._client = _sts_client(access.profile, self._region)
            given = self._client.assume_role(**request)["Credentials"]
        return {
            "access_key_id": given["AccessKeyId"],
            "secret_access_key": given["SecretAccessKey"],
            "token": given["SessionToken"],
            "expires_at": given["Expiration"],
        }


def _session(profile: str | None) -> Any:
    import boto3

    return boto3.Session(profile_name=profile)


def _sts_client(profile: str | None, region: str) -> Any:
    from botocore.config import Config

    config = Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 2, "mode": "standard"})
    session = _session(profile)
    return session.client("sts", region_name=session.region_name or region, config=config)


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Raise boto3's errors as ours, in one line."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as e:
        status = e.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code, words = (e.response.get("Error", {}).get(part) for part in ("Code", "Message"))
        said = f"{name} gives no credentials: {code or f'HTTP {status}'}{f' ({words})' if words else ''}"
        is_passing = status >= 500 or status == 429 or code in ("Throttling", "ThrottlingException")
        raise (StoreUnavailable if is_passing else AccountRefused)(said) from e
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as e:
        raise CredentialsMissing(f"{name} cannot be assumed: {e}") from e
    except exceptions.ProfileNotFound as e:
        raise ConfigError(f"aws.profile: {e}") from e
    except (
        exceptions.InvalidConfigError,
        exceptions.ConfigParseError,
        exceptions.UnauthorizedSSOTokenError,
    ) as e:
        raise AccountRefused(f"{name} gives no credentials: {e}") from e
    except exceptions.BotoCoreError as e:
        raise StoreUnavailable(f"{name} gives no credentials yet: {e}") from e
