"""Replaces or restarts the machines of a cluster one after another, by controlled shutdown.

    PYTHONPATH=infra/roll python3 -m firn_roll infra/terraform/environments/production [--only c1,2]

For each machine, the controllers first and of them the one that leads at last:

 1. wait until nothing lacks: every broker serves, every replica is in sync, every voter has caught up; asked
    over Kafka's protocol on another machine, and true for --settle seconds
 2. stop its nodes (SIGTERM: a broker has its leaderships moved away before it ends), wait until the others
    serve everything without it
 3. terraform makes the machine anew, with its volume, from a plan that may take away nothing else; with
    `--action restart` the machine stays, and what /etc/firn/machine.json says now is installed
 4. wait as in 1, now with the new machine

Where it is, it writes into a journal. What goes wrong is named on stderr, the exit code is 1, nothing else
is begun; the same command goes on from there. It speaks to machines by what `terraform output` has as
`ssh_commands`. The standard library alone, on this side; Python 3.11.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .errors import RollError
from .hands import Hands
from .rolling import REPLACE, RESTART, Options, roll

LEAST_SETTLE_S = 10
"""Twice of what whole.py lets a voter be behind."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="firn_roll", description="Replace or restart the machines of a cluster one after another."
    )
    parser.add_argument("environment", type=Path, help="folder of the terraform environment")
    parser.add_argument("--only", metavar="MACHINES", default="", help="these alone, as c1,2 (default: all)")
    parser.add_argument(
        "--action", choices=(REPLACE, RESTART), default=REPLACE, help="(default: %(default)s)"
    )
    parser.add_argument("--journal", type=Path, help="(default: roll.json in the environment)")
    parser.add_argument("--settle", type=float, default=15, metavar="S", help="so long the cluster is whole")
    parser.add_argument("--patience", type=float, default=3600, metavar="S", help="so long it is waited for")
    parser.add_argument("--terraform", default="terraform", metavar="COMMAND")
    parser.add_argument(
        "--unreplicated", action="store_true", help="go on where partitions have no replica elsewhere"
    )
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        help="properties on the machines to log in by (default: terraform's output client_config)",
    )
    parser.add_argument("--resume", action="store_true", help="go on with a journal of days ago")
    given = parser.parse_args(arguments)
    if given.settle < LEAST_SETTLE_S:
        parser.error(
            f"--settle: {LEAST_SETTLE_S} or more: a voter that went a moment ago is not missed before"
        )
    environment = given.environment.absolute()
    hands = Hands(environment, (given.journal or environment / "roll.json").absolute(), given.terraform)
    names = tuple(name for name in given.only.split(",") if name)
    options = Options(
        given.action,
        names,
        given.settle,
        given.patience,
        given.unreplicated,
        given.resume,
        given.command_config,
    )
    try:
        roll(hands, options)
    except RollError as error:
        hands.say(f"{error}. The same command goes on from here")
        return 1
    except KeyboardInterrupt:
        hands.say("interrupted. The same command goes on from here")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
