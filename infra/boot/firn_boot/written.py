"""Texts of the machine's files: server.properties, systemd units, limits of the journal."""

from __future__ import annotations

import re

from .document import ID_STEP, PORT_STEP, Document, Node
from .machine import COMMAND_LIMIT_S
from .secret_files import FILES, HOME
from .volume import DEVICE_WAIT_S


def properties_of(document: Document, node: Node, data: str) -> str:
    """server.properties of one node, in Java's syntax."""
    own = "PLAINTEXT" if document.security is None else "CLIENTS"
    ports = {"CONTROLLER" if node.role == "controller" else own: node.port}
    if node.internal_port is not None:
        ports["INTERNAL"] = node.internal_port
    settings = {
        "node.id": str(node.id),
        **membership(document, node),
        "listeners": ",".join(f"{name}://0.0.0.0:{port}" for name, port in ports.items()),
        "advertised.listeners": ",".join(f"{name}://{document.host}:{port}" for name, port in ports.items()),
        **secured(document, node),
        "log.dirs": data,
        "firn.http.listener": f"0.0.0.0:{node.http_port}",
        **several(node),
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


def several(node: Node) -> dict[str, str]:
    """Return the settings of a service of several nodes."""
    if node.processes == 1:
        return {}
    settings = {"": node.processes, ".id.step": ID_STEP, ".port.step": PORT_STEP}
    return {f"firn.processes{key}": str(value) for key, value in settings.items()}


def secured(document: Document, node: Node) -> dict[str, str]:
    """Return the settings of listeners with TLS: clients log in there, nodes show their certificates."""
    if document.security is None:
        return {}
    alone = node.role is None
    protocols = {"CLIENTS": "SASL_SSL"} | ({} if alone else {"INTERNAL": "SSL", "CONTROLLER": "SSL"})
    settings = {
        "listener.security.protocol.map": ",".join(f"{name}:{one}" for name, one in protocols.items()),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"/{HOME}/{FILES['node']}",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"/{HOME}/{FILES['ca']}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "config.providers": "secrets",
        "config.providers.secrets.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
        "config.providers.secrets.param.allowed.paths": f"/{HOME}",
        "super.users": f"${{secrets:/{HOME}:{FILES['super_users']}}}",
        "firn.http.ssl.keystore.location": f"/{HOME}/{FILES['node']}",
    }
    if document.security.metrics is not None:
        settings["firn.http.token.file"] = f"/{HOME}/{FILES['metrics']}"
    if node.role != "controller":
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        settings["sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
        settings["listener.name.clients.scram-sha-512.sasl.jaas.config"] = f"{module} required;"
    if not alone:
        settings["inter.broker.listener.name"] = "INTERNAL"
        mine = "controller" if node.role == "controller" else "internal"
        settings[f"listener.name.{mine}.ssl.client.auth"] = "required"
    return settings


FIRN_UNIT = """\
# Written by firn_boot from machine.json; changes here are lost. Drop-ins (systemctl edit) stay.
[Unit]
Description=Firn node %i
Wants=network-online.target
After=network-online.target {data_unit}
{requires}StartLimitIntervalSec=0

[Service]
Type=exec
User=firn
Group=firn
ExecStart=/opt/firn/current/bin/firn server /etc/firn/server-%i.properties
EnvironmentFile=-/etc/firn/environment
WorkingDirectory=/var/lib/firn
ExecReload=/bin/kill -USR1 $MAINPID
Restart=always
RestartSec=2
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec={stop_timeout_s}
LimitNOFILE=1048576
LimitCORE=0
OOMScoreAdjust=-500
LogNamespace=firn
UMask=0027
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
SystemCallFilter=setpriority

[Install]
WantedBy=multi-user.target
"""
"""A node that cannot start is tried again for ever, as its disk or its network may come back
(`StartLimitIntervalSec`). A reload restarts the nodes of a service of several, one by one. SIGTERM is for the
main process alone: it stops cleanly, and is killed only after `TimeoutStopSec` (`KillMode`).
`CacheDirectory` is for firn.remote.cache.dir=/var/cache/firn/node-<id>; setpriority is of the child
process for background work, which lowers its priority."""

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

SECRETS_UNIT = """\
# Written by firn_boot; changes here are lost.
[Unit]
Description=Fetch the secrets of Firn again
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
Environment=PYTHONPATH=/usr/local/lib/firn
EnvironmentFile=-/etc/firn/environment
ExecStart=/usr/bin/env python3 -m firn_boot --config {config} secrets
TimeoutStartSec=600
"""

SECRETS_TIMER = """\
# Written by firn_boot; changes here are lost.
[Unit]
Description=Fetch the secrets of Firn again

[Timer]
OnActiveSec=300
OnUnitActiveSec=300
RandomizedDelaySec=60

[Install]
WantedBy=timers.target
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
    if document.security is not None:
        units["etc/systemd/system/firn-secrets.service"] = SECRETS_UNIT.format(config=config)
        units["etc/systemd/system/firn-secrets.timer"] = SECRETS_TIMER
    return units
