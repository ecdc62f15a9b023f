"""A credentials provider as a user may have one: ``aws.credentials.provider=tests.support.vault:keys``."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any


def keys() -> dict[str, Any]:
    """The access key in a file beside the shared credentials, for five minutes."""
    access_key = Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"]).with_name("vault").read_text()
    return {
        "access_key_id": access_key,
        "secret_access_key": "secret",
        "token": "token",
        "expires_at": datetime.now(UTC) + timedelta(minutes=5),
    }
