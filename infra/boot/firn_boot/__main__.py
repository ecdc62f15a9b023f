"""Makes a Debian or Ubuntu machine run Firn, from one document: /etc/firn/machine.json.

    python3 -m firn_boot check     read the document, say what is wrong with it, change nothing
    python3 -m firn_boot install   everything below; run again it does what is left to do, and nothing more
    python3 -m firn_boot mount     step 2 alone; systemd calls it with every start, before any node
    python3 -m firn_boot secrets   step 4 alone; a timer calls it every five minutes

 1. the user `firn`
 2. the data volume: found, formatted only if it is empty, mounted at /var/lib/firn
 3. the package: a tar of wheels, fetched, compared with its SHA-256, installed into an environment of its
    own, /opt/firn/<first digits of the SHA-256>; `current` is the one that runs
 4. with `security`: /etc/firn/secrets, of the user `firn` alone (secret_files.py)
 5. /etc/firn/server-<id>.properties
 6. a cluster's controller: its directory is made ready, once in its life (forming.py)
 7. systemd units, how much of a log is kept, and this program itself in /usr/local/lib/firn
 8. nodes whose package, properties or unit is another than what they run with are restarted, one after
    another, each when the one before serves

The document (everything but host, nodes and package may be left out; what is not known is refused):

    {"host": "firn-1.firn.internal", "nodes": [{"id": 1, "port": 9092, "http_port": 9464}],
     "package": {"url": "s3://bucket/packages/firn.tar", "sha256": "…", "region": "eu-central-1"},
     "data": {"device": "/dev/sdf"}, "properties": {"broker.rack": "a"}, "stop_timeout_s": 180}

With `cluster` each node has a `role`, broker or controller, and is one of several:

    "nodes": [{"id": 901, "port": 9093, "http_port": 9464, "role": "controller"}],
    "cluster": {"id": "…", "controllers": ["901@firn-c1.firn.internal:9093:<directory id>", …],
     "formed": "s3://bucket/formed"}

With `security` clients log in over TLS, and nodes show each other the certificate of `node`. Each is the ARN
of a secret of Secrets Manager or of a parameter of SSM; a broker of a cluster has an `internal_port`, too:

    "security": {"node": "arn:…", "ca": "arn:…", "admin": "arn:…", "super_users": "arn:…"}

`url` is s3://bucket/key (signed with the machine's role, or AWS_ACCESS_KEY_ID and so on), https://…, or a
path on this machine. Without `data`, /var/lib/firn is a directory of the root disk. Any step can fail: it is
named on stderr, the exit code is 1, nothing that runs was touched, and the next `install` goes on from there.
The standard library alone; Python 3.11.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .document import parse
from .errors import BootError
from .machine import Machine
from .secret_files import step_secrets
from .steps import everything, step
from .volume import step_mount


def main(arguments: list[str] | None = None, machine: Machine | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Makes a Debian or Ubuntu machine run Firn, from one document."
    )
    parser.add_argument(
        "--config", default="/etc/firn/machine.json", help="the document (default: %(default)s)"
    )
    parser.add_argument("what", choices=["check", "install", "mount", "secrets"])
    options = parser.parse_args(arguments)
    machine = machine or Machine()
    try:
        with step(options.config):
            document = parse(machine.path(options.config).read_text("utf-8", "replace"))
        if options.what == "mount":
            with step("data volume"):
                step_mount(machine, document)
        elif options.what == "secrets":
            with step("secrets"):
                step_secrets(machine, document)
        elif options.what == "install":
            everything(machine, document, str(Path(options.config).absolute()))
    except BootError as error:
        machine.say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
