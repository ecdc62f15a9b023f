"""Names of the credentials for a bucket: profile, role, provider; none of this is a secret. [P]"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from service.base.errors import ConfigError

_PROFILE: Final = re.compile(r"[^\x00-\x1f\x7f\[\]]{1,256}")
# AWS, "AssumeRole": the patterns of RoleArn, ExternalId and RoleSessionName.
_ROLE: Final = re.compile(r"arn:[\w-]+:iam::\d{12}:role/[\w+=,.@/-]{1,512}", re.ASCII)
_EXTERNAL_ID: Final = re.compile(r"[\w+=,.@:/-]{2,1224}", re.ASCII)
_SESSION: Final = re.compile(r"[\w+=,.@-]{2,64}", re.ASCII)
_PROVIDER: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class S3Access:
    """User's choice of credentials; empty, it is the AWS chain of the process.

    `profile` is one of the shared files. `role_arn` is a role to assume, with the profile's credentials or
    the chain's. `provider` is ``module:callable`` and returns credentials itself, so nothing else goes with
    it. Raises `ConfigError`, which names the option.
    """

    profile: str | None = None
    role_arn: str | None = None
    external_id: str | None = None
    role_session_name: str | None = None
    provider: str | None = None

    def __post_init__(self) -> None:
        for name, value, pattern, meant in (
            ("aws.profile", self.profile, _PROFILE, "the name of a profile"),
            ("aws.role_arn", self.role_arn, _ROLE, "a role, as in arn:aws:iam::123456789012:role/reader"),
            ("aws.external_id", self.external_id, _EXTERNAL_ID, "an external id of STS"),
            ("aws.role_session_name", self.role_session_name, _SESSION, "a session name of STS"),
            ("aws.credentials.provider", self.provider, _PROVIDER, "module:callable"),
        ):
            if value is not None and not pattern.fullmatch(value):
                raise ConfigError(f"option {name} is {value[:100]!r}, not {meant}")
        if self.role_arn is None and (self.external_id or self.role_session_name):
            raise ConfigError("options aws.external_id and aws.role_session_name go with aws.role_arn")
        if self.provider is not None and (self.profile or self.role_arn):
            raise ConfigError("option aws.credentials.provider goes without aws.profile and aws.role_arn")

    @property
    def is_default(self) -> bool:
        return self == S3Access()
