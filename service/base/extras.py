"""Words that say how the libraries of an extra are installed. [P]"""

from __future__ import annotations


def install_extra(name: str) -> str:
    """Return the advice. It names no command: a checkout is installed otherwise than a wheel."""
    return f"install Firn with its extra [{name}], as docs/install.md says"
