"""Modules of a node that is alone and uses neither TLS, logins, an authorizer nor quotas."""

from __future__ import annotations

import pytest

from bench.load import produce_single_records
from tests.support.clients import Admin
from tests.support.processes import Node

AT_EXIT = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"
NEVER = (
    "cryptography",
    "joserfc",
    "kio.schema.alter_client_quotas",
    "kio.schema.alter_user_scram_credentials",
    "kio.schema.create_acls",
    "kio.schema.create_delegation_token",
    "kio.schema.delete_acls",
    "kio.schema.describe_acls",
    "kio.schema.describe_client_quotas",
    "kio.schema.describe_user_scram_credentials",
    "kio.schema.sasl_authenticate",
    "kio.schema.sasl_handshake",
    "service.client.sasl",
    "service.client.security",
    "service.controller_server.api_table",
    "service.metadata.controller.acl_control",
    "service.metadata.controller.acl_filters",
    "service.metadata.controller.quota_control",
    "service.metadata.controller.scram_control",
    "service.metadata.controller.token_admin",
    "service.metadata.controller.token_control",
    "service.network.authenticating",
    "service.network.login_deadlines",
    "service.network.tls",
    "service.node.quorum_control_plane",
    "service.serving.listener_logins",
    "service.serving.token_requests",
    "service.serving.transaction_marker_sender",
    "service.serving.transaction_verifier",
    "service.serving.transactional_produce",
    "service.transactions",
)
OF_SECURITY = {
    "service.security",
    "service.security.acl_index",
    "service.security.acls",
    "service.security.audit",
    "service.security.audited_change",
    "service.security.change_audit",
    "service.security.operations",
    "service.security.principal",
    "service.security.scram_credential",
    "service.security.session",
    "service.security.shared_map",
    "service.security.tokens",
}
"""What the metadata image, the context of each request and the audit of changes are made of."""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What a node has imported that has served a few requests."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "sitecustomize.py").write_text(AT_EXIT)
    node = Node(folder / "node", env={"PYTHONPATH": str(folder)}).start()
    Admin(node.bootstrap).create("t", 1)
    produce_single_records(node.bootstrap, "t", 100)
    node.stop()
    return set(node.stderr_path.read_text().splitlines()[-1].split())


def test_a_plain_node_loads_nothing_of_tls_logins_and_access_rights(modules: set[str]) -> None:
    assert "service.serving.handlers.produce" in modules
    assert sorted(one for one in modules if one.startswith(NEVER)) == []


def test_a_plain_node_loads_of_security_what_each_request_needs(modules: set[str]) -> None:
    assert {one for one in modules if one.startswith("service.security")} == OF_SECURITY


def test_the_server_loads_no_other_command(modules: set[str]) -> None:
    assert "service.cli.server" in modules
    assert {"service.cli.tiers", "service.cli.topic", "service.cli.bucket"} & modules == set()
