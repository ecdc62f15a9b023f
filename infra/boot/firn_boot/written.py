"""Texts of the machine's files: server.properties, systemd units, limits of the journal."""

from __future__ import annotations

import re

from .document import Document, Node
from .machine import COMMAND_LIMIT_S
from .volume import DEVICE_WAIT_S


def properties_of(document: Document, node: Node, data: str) -> str:
    """server.properties of one node, in Java's syntax."""
    listener = "CONTROLLER" if node.role == "controller" else "PLAINTEXT"
    settings = {
        "node.id": str(node.id),
        **membership(document, node),
        "listeners": f"{listener}://0.0.0.0:{node.port}",
        "advertised.listeners": f"{listener}://{document.host}:{node.port}",
        "log.dirs": data,
        "firn.http.listener": f"0.0.0.0:{node.http_port}",
        **document.properties,
    }
    lines = [f"{key}={value}" for key, value in ((k, v.replace("\\", "\\\\")) for k, v in settings.items())]
    # White space in front of a value is dropped by the syntax unless it is escaped.
    lines = [re.sub(r"=(\s)", r"=\\\1", line, count=1) for line in lines]
    return "\n".join(["# Written by firn_boot from machine.json; changes here are lost.", *lines, ""])


def membership(document: Document, node: Node) -> dict[str, str]:
    """Return the settings that make a node a member of a cluster."""
    if document.cluster is None or node.role is None:
        return {}
    return {
        "process.roles": node.role,
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": ",".join(document.cluster.places.values()),
    }


FIRN_UNIT = """\
# Written by firn_boot from machine.json; changes here are lost. Drop-ins (systemctl edit) stay.
[Unit]
Description=Firn node %i
Wants=network-online.target
After=network-online.target {data_unit}
{requires}# A node that cannot start is tried again for ever, as its disk or its network may come back.
StartLimitIntervalSec=0

[Service]
Type=exec
User=firn
Group=firn
ExecStart=/opt/firn/current/bin/firn server /etc/firn/server-%i.properties
EnvironmentFile=-/etc/firn/environment
WorkingDirectory=/var/lib/firn
Restart=always
RestartSec=2
# SIGTERM to the node alone: it stops cleanly, and is killed only after this long.
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec={stop_timeout_s}
LimitNOFILE=1048576
LimitCORE=0
OOMScoreAdjust=-500
LogNamespace=firn
UMask=0027
# For firn.remote.cache.dir=/var/cache/firn/node-<id>
CacheDirectory=firn/node-%i

CapabilityBoundingSet=
LockPersonality=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
ReadWritePaths=/var/lib/firn/node-%i
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources

[Install]
WantedBy=multi-user.target
"""

DATA_UNIT = """\
# Written by firn_boot; changes here are lost.
[Unit]
Description=Data volume of Firn
DefaultDependencies=no
After=local-fs.target
Conflicts=umount.target
Before=umount.target

[Service]
Type=oneshot
RemainAfterExit=yes
Environment=PYTHONPATH=/usr/local/lib/firn
ExecStart=/usr/bin/env python3 -m firn_boot --config {config} mount
TimeoutStartSec={limit_s}
"""

JOURNAL = """\
# Written by firn_boot; changes here are lost. Nodes' logs: journalctl --namespace=firn
[Journal]
Storage=persistent
SystemMaxUse=1G
SystemMaxFileSize=64M
MaxRetentionSec=30day
RateLimitIntervalSec=0
"""


def units_of(document: Document, config: str) -> dict[str, str]:
    """Path to text, of everything that systemd reads."""
    with_volume = document.device is not None
    firn = FIRN_UNIT.format(
        data_unit="firn-data.service" if with_volume else "local-fs.target",
        # Without the volume a node would begin anew on the root disk.
        requires="Requires=firn-data.service\n" if with_volume else "",
        stop_timeout_s=document.stop_timeout_s,
    )
    units = {"etc/systemd/system/firn@.service": firn, "etc/systemd/journald@firn.conf": JOURNAL}
    if with_volume:
        limit_s = DEVICE_WAIT_S + COMMAND_LIMIT_S
        units["etc/systemd/system/firn-data.service"] = DATA_UNIT.format(config=config, limit_s=limit_s)
    return units
