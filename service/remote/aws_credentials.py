"""Where S3 credentials come from, in the order of the AWS SDKs.

1. the environment: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``
2. web identity: ``AWS_WEB_IDENTITY_TOKEN_FILE`` with ``AWS_ROLE_ARN``
3. the profile ``AWS_PROFILE`` (or ``default``) in the shared credentials and config files: static keys are
   read here; a profile that assumes a role, runs a process or uses SSO is boto3's
4. container credentials (ECS, EKS), then the instance metadata service

obstore knows 1, 2 and 4 by itself; this module adds 3. boto3 is slow to load and large: it is imported only
for the profiles that need it.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from service.base.errors import ConfigError
from service.remote.errors import StoreRefused

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3CredentialProvider

_REREAD_AFTER: Final = timedelta(minutes=5)
_BOTO3_KEYS: Final = ("role_arn", "credential_process", "sso_session", "sso_start_url", "source_profile")


class SharedProfile(NamedTuple):
    """One profile of the shared files, both merged; the credentials file wins."""

    name: str
    settings: Mapping[str, str]

    @property
    def region(self) -> str | None:
        return self.settings.get("region")

    @property
    def has_static_keys(self) -> bool:
        return "aws_access_key_id" in self.settings and "aws_secret_access_key" in self.settings

    @property
    def needs_boto3(self) -> bool:
        return any(key in self.settings for key in _BOTO3_KEYS)


def read_profile(environ: Mapping[str, str]) -> SharedProfile | None:
    """The selected profile; None when nothing selects one and there is no default.

    Raises `ConfigError` when ``AWS_PROFILE`` names a profile that is in neither file, or a file is not INI.
    """
    selected = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE")
    name = selected or "default"
    home = Path(environ.get("HOME") or Path.home())
    config = _section(environ.get("AWS_CONFIG_FILE"), home / ".aws" / "config", ("profile " + name, name))
    keys = _section(environ.get("AWS_SHARED_CREDENTIALS_FILE"), home / ".aws" / "credentials", (name,))
    if config is None and keys is None:
        if selected:
            raise ConfigError(f"AWS_PROFILE: no profile {name!r} in the shared credentials or config file")
        return None
    return SharedProfile(name, {**(config or {}), **(keys or {})})


def _section(given: str | None, default: Path, names: tuple[str, ...]) -> dict[str, str] | None:
    path = Path(given).expanduser() if given else default
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: {e}") from e
    for name in names:
        if parser.has_section(name):
            return dict(parser.items(name))
    return None


class _SharedFileCredentials:
    """obstore's credential provider over static keys, read again from time to time: they may be rotated."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)

    def __call__(self) -> S3Credential:
        profile = read_profile(self._environ)
        if profile is None or not profile.has_static_keys:
            raise StoreRefused("the keys have gone from the shared credentials file")
        return {
            "access_key_id": profile.settings["aws_access_key_id"],
            "secret_access_key": profile.settings["aws_secret_access_key"],
            "token": profile.settings.get("aws_session_token"),
            "expires_at": datetime.now(UTC) + _REREAD_AFTER,
        }


def credential_provider(environ: Mapping[str, str]) -> S3CredentialProvider | None:
    """A provider for what obstore does not know by itself; None leaves the choice to obstore."""
    if "AWS_ACCESS_KEY_ID" in environ or "AWS_WEB_IDENTITY_TOKEN_FILE" in environ:
        return None
    profile = read_profile(environ)
    if profile is None:
        return None
    if profile.has_static_keys:
        return _SharedFileCredentials(environ)
    if profile.needs_boto3:
        return _boto3_provider(profile)
    return None


def _boto3_provider(profile: SharedProfile) -> S3CredentialProvider:
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    return Boto3CredentialProvider(boto3.Session(profile_name=profile.name))
