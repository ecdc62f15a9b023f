"""`python -m simulator.machines --seed N --histories M`, or `--plants`, as `make sim WORLD=machines`."""

from __future__ import annotations

import argparse
import os
import sys

from simulator.machines.plants import PLANTS, SELDOM_SHOWS
from simulator.machines.playing import tell, tell_plants


def main(arguments: list[str] | None = None) -> int:
    """0 when every history was clean, or every planted bug found."""
    parser = argparse.ArgumentParser(prog="python -m simulator.machines", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first history; the others follow it")
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--plants", nargs="*", help="plant these bugs, or all, one at a time")
    given = parser.parse_args(arguments)
    if given.plants is not None:
        unknown = set(given.plants) - set(PLANTS)
        if unknown:
            parser.error(f"no such bugs: {', '.join(sorted(unknown))}; there are {', '.join(PLANTS)}")
        return (
            0
            if tell_plants(given.plants or [name for name in PLANTS if name not in SELDOM_SHOWS], given.jobs)
            else 1
        )
    return 0 if tell(range(given.seed, given.seed + given.histories), given.jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
