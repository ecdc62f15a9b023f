"""Sources of AWS credentials, in the order of the AWS SDKs.

1. the environment: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``
2. web identity: ``AWS_WEB_IDENTITY_TOKEN_FILE`` with ``AWS_ROLE_ARN``
3. the profile ``AWS_PROFILE`` (or ``default``) in the shared credentials and config files: static keys are
  read here; boto3 handles a profile that assumes a role, runs a process or uses SSO
4. container credentials (ECS, EKS), then the instance metadata service

That is the default chain. An `S3Access` overrides it: a profile by name, a role to assume (`aws_sessions`), a
provider of the user's own. obstore implements 2 and 4, and renews their credentials; the others are sources
for `credentials`. boto3 is slow to load and large: it is imported only where it is needed.
"""

from __future__ import annotations

import configparser
import importlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from service.base.errors import ConfigError, FirnError
from service.remote.stores.errors import AccountRefused, StoreUnavailable
from service.remote.stores.renewed_credentials import CredentialSource
from service.remote.stores.s3_access import S3Access

if TYPE_CHECKING:
    from obstore.store import S3Credential

_REREAD_AFTER: Final = timedelta(minutes=5)
_BOTO3_KEYS: Final = ("role_arn", "credential_process", "sso_session", "sso_start_url", "source_profile")
_CONTAINER: Final = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")


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


def read_profile(environ: Mapping[str, str], profile: str | None = None) -> SharedProfile | None:
    """Return the profile of this name, or else the selected one; None without either, and without a default.

    Raises `ConfigError` when the named profile is in neither file, or a file is not INI.
    """
    selected = profile or environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE")
    name = selected or "default"
    home = Path(environ.get("HOME") or Path.home())
    config = _section(environ.get("AWS_CONFIG_FILE"), home / ".aws" / "config", ("profile " + name, name))
    keys = _section(environ.get("AWS_SHARED_CREDENTIALS_FILE"), home / ".aws" / "credentials", (name,))
    if config is None and keys is None:
        if selected:
            said = "aws.profile" if profile else "AWS_PROFILE"
            raise ConfigError(f"{said}: no profile {name!r} in the shared credentials or config file")
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


class KeysGiven:
    """Static keys passed by the caller."""

    name = "the keys given"
    is_fixed = True

    def __init__(self, access_key_id: str, secret_access_key: str) -> None:
        self._keys = access_key_id, secret_access_key

    def fetch(self, *, fresh: bool) -> S3Credential:
        return _credential(*self._keys, None, None)


class _Environment:
    """Keys of the environment, read at each fetch: a notebook may set newer ones."""

    name = "the environment (AWS_ACCESS_KEY_ID, AWS_SESSION_TOKEN)"
    is_fixed = True

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def fetch(self, *, fresh: bool) -> S3Credential:
        key, secret = (self._environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
        if not key or not secret:
            raise AccountRefused("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are needed, both of them")
        return _credential(key, secret, self._environ.get("AWS_SESSION_TOKEN") or None, None)


class _SharedFiles:
    """Static keys of a profile, read again from time to time: they may be rotated."""

    is_fixed = False

    def __init__(self, environ: Mapping[str, str], profile: str | None = None) -> None:
        self._environ = dict(environ)
        self._profile = profile
        self.name = f"the profile {profile or environ.get('AWS_PROFILE') or 'default'}"

    def fetch(self, *, fresh: bool) -> S3Credential:
        profile = read_profile(self._environ, self._profile)
        if profile is None or not profile.has_static_keys:
            raise AccountRefused("the keys have gone from the shared credentials file")
        settings = profile.settings
        return _credential(
            settings["aws_access_key_id"],
            settings["aws_secret_access_key"],
            settings.get("aws_session_token"),
            datetime.now(UTC) + _REREAD_AFTER,
        )


class _Imported:
    """The user's ``module:callable``, called without arguments, which returns what obstore's providers
    return.

    That is a dictionary of `access_key_id`, `secret_access_key`, `token` (or None) and `expires_at`: a
    datetime with a time zone, or None for credentials that last until a store rejects them.
    """

    is_fixed = False

    def __init__(self, provider: str) -> None:
        self.name = f"aws.credentials.provider {provider}"
        self._call = self._imported(provider)

    def _imported(self, provider: str) -> Callable[[], object]:
        module, _, path = provider.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        except Exception as e:  # any error of importing the user's module
            raise ConfigError(f"option {self.name}: {type(e).__name__}: {e}") from e
        if not callable(found):
            raise ConfigError(f"option {self.name} names nothing that can be called")
        return cast("Callable[[], object]", found)

    def fetch(self, *, fresh: bool) -> S3Credential:
        try:
            found = self._call()
        except FirnError:
            raise
        except Exception as e:  # the user's code; its service may be unavailable
            raise StoreUnavailable(f"{self.name} failed: {type(e).__name__}: {e}") from e
        return self._checked(found)

    def _checked(self, found: object) -> S3Credential:
        """Return the provider's result if it has the right form. Values are never shown."""
        if not isinstance(found, Mapping) or not {"access_key_id", "secret_access_key", "expires_at"} <= set(
            found
        ):
            raise ConfigError(
                f"option {self.name} does not return a dictionary of "
                "access_key_id, secret_access_key, token and expires_at"
            )
        for name, value in found.items():
            if name == "expires_at":
                is_right = value is None or (isinstance(value, datetime) and value.tzinfo is not None)
            elif name == "token":
                is_right = value is None or _is_word(value)
            else:
                is_right = name in ("access_key_id", "secret_access_key") and _is_word(value)
            if not is_right:
                raise ConfigError(
                    f"option {self.name} returns a {name} that will not do ({type(value).__name__})"
                )
        return _credential(
            found["access_key_id"], found["secret_access_key"], found.get("token"), found["expires_at"]
        )


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= 1 << 14 and " " not in value


def _credential(key: str, secret: str, token: str | None, ends: datetime | None) -> S3Credential:
    return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": ends}


def credential_source(environ: Mapping[str, str], access: S3Access, region: str) -> CredentialSource | None:
    """Return the source of credentials; None leaves it to obstore: web identity, containers, the metadata
    service.

    Raises `ConfigError` for a name that does not exist.
    """
    if access.provider is not None:
        return _Imported(access.provider)
    if access.role_arn is not None:
        from service.remote.stores.aws_sessions import AssumedRole

        return AssumedRole(access, region)
    if access.profile is None and environ.get("AWS_ACCESS_KEY_ID"):
        return _Environment(environ)
    if access.profile is None and environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return None
    profile = read_profile(environ, access.profile)
    if profile is None:
        return None
    if profile.has_static_keys:
        return _SharedFiles(environ, access.profile)
    if profile.needs_boto3:
        from service.remote.stores.aws_sessions import ProfileSession

        return ProfileSession(profile.name)
    if access.profile is not None:
        raise ConfigError(f"aws.profile: the profile {access.profile!r} has no credentials")
    return None


def credential_provider(environ: Mapping[str, str]) -> Callable[[], S3Credential] | None:
    """Return a one-time provider of the shared files' credentials; None where the environment or obstore has
    them."""
    if "AWS_ACCESS_KEY_ID" in environ or "AWS_WEB_IDENTITY_TOKEN_FILE" in environ:
        return None
    source = credential_source(environ, S3Access(), "us-east-1")
    return None if source is None else lambda: source.fetch(fresh=True)


def asks_metadata_service(environ: Mapping[str, str]) -> bool:
    """Return whether obstore's only source would be the machine's metadata service."""
    return not any(environ.get(name) for name in ("AWS_WEB_IDENTITY_TOKEN_FILE", *_CONTAINER))
