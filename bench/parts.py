"""The parts that a bench is asked for by name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def parts_of(parser: argparse.ArgumentParser, asked: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the parts in `asked`, or all `known` ones; end the program where one is not known."""
    if unknown := set(asked) - set(known):
        parser.error(f"nothing is called {', '.join(sorted(unknown))}")
    return list(asked or known)
