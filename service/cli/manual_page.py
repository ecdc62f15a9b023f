"""Shape of a manual page, and what several pages say alike. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class ManualPage(NamedTuple):
    """End of one command's help. `examples` are (command, effect)."""

    examples: tuple[tuple[str, str], ...]
    exits: Mapping[int, str] = MappingProxyType({0: "done", 1: "an error: see stderr"})
    environment: Mapping[str, str] = MappingProxyType({})
    see: str = ""


AWS: Final = MappingProxyType(
    {
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN": "credentials for S3",
        "AWS_PROFILE": "a profile of ~/.aws instead; without either, the machine's role",
        "AWS_REGION": "the bucket's region",
        "AWS_ENDPOINT_URL": "another S3 server than AWS",
        "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME": "and others for gs:// and az://",
    }
)
WRONG: Final = MappingProxyType({0: "nothing is wrong", 1: "something is, or could not be checked"})
NODE: Final = MappingProxyType(
    {0: "ended by SIGTERM, SIGINT or SIGHUP", 1: "could not start, or failed while it ran: the log says why"}
)
CHANGED: Final = MappingProxyType(
    {0: "done, or without --execute could be done", 1: "something was refused: see stderr"}
)
COMMANDS: Final = "docs/commands.md"
PIPELINES: Final = "docs/pipelines.md"
OPERATIONS: Final = "docs/operations.md"
CONFIGURATION: Final = "docs/configuration.md"
CLUSTERS: Final = "docs/operations.md, Clusters"
SECURITY: Final = "docs/security.md"
QUOTAS: Final = "docs/quotas.md"
TRANSACTIONS: Final = "docs/transactions.md"
ERASURE: Final = "docs/erasure.md"
