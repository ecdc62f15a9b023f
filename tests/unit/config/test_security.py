"""Security of listeners and of a node's connections: what is read, refused and complained of."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from service.base.errors import ConfigError
from service.config.cluster import ClusterConfig
from service.config.protocols import SecurityProtocol
from service.config.security import ListenerSecurity, OutgoingSecurity, TlsSettings

PLAIN_JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="a";'
SCRAM_JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
ALONE = {"listeners": "SASL_SSL://127.0.0.1:1"}
MECHANISMS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN_JAAS,
    "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": SCRAM_JAAS,
}
BROKER = {
    "process.roles": "broker",
    "node.id": "4",
    "listeners": "SASL_SSL://127.0.0.1:1,SSL://127.0.0.1:2",
    "controller.quorum.voters": "1@c:9093,2@d:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name": "SASL_SSL",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    "sasl.mechanism.controller.protocol": "PLAIN",
    **MECHANISMS,
    "listener.name.controller.plain.sasl.jaas.config": PLAIN_JAAS,
}
CONTROLLER = {
    "process.roles": "controller",
    "node.id": "1",
    "listeners": "CONTROLLER://127.0.0.1:9093",
    "controller.quorum.voters": "1@c:9093,2@d:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:SASL_SSL",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": PLAIN_JAAS,
    "listener.name.controller.scram-sha-256.sasl.jaas.config": SCRAM_JAAS,
}


def read(properties: Mapping[str, str | None]) -> ClusterConfig:
    return ClusterConfig.from_properties({name: v for name, v in properties.items() if v is not None})


def refused(properties: Mapping[str, str | None]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read(properties)
    return str(raised.value).splitlines()


def test_a_plaintext_node_has_no_security() -> None:
    security = read({}).security
    assert security.listeners == (ListenerSecurity("PLAINTEXT", SecurityProtocol.PLAINTEXT, None, None),)
    assert (security.inter_broker, security.controller, security.complaints) == (None, None, ())


class TestProtocols:
    def test_the_names_of_protocols_are_their_own(self) -> None:
        listeners = "PLAINTEXT://h:1,SSL://h:2,SASL_PLAINTEXT://h:3,SASL_SSL://h:4"
        node = read(
            {
                "listeners": listeners,
                **MECHANISMS,
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN_JAAS,
                "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": SCRAM_JAAS,
            }
        )
        assert [(one.name, int(one.protocol)) for one in node.listeners] == [
            ("PLAINTEXT", 0),
            ("SSL", 1),
            ("SASL_PLAINTEXT", 2),
            ("SASL_SSL", 3),
        ]
        assert [one.protocol for one in node.advertised_listeners] == [0, 1, 2, 3]

    def test_controllers_are_plaintext_only_while_nothing_is_secured(self) -> None:
        open_ = {"listeners": "PLAINTEXT://h:1,C://h:2", "controller.listener.names": "C"}
        assert read(open_).controller_listeners[0].protocol is SecurityProtocol.PLAINTEXT
        assert refused({**open_, "listeners": "SSL://h:1,C://h:2"}) == [
            "listeners: No security protocol defined for listener C; listener.security.protocol.map has to "
            "name it, as in C:SSL (of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)"
        ]
        named = {"listeners": "SSL://h:1", "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"}
        (line,) = refused(named)
        assert "as in SSL:SSL (of" in line, "no word of clear text for a listener of that name"
        broker = {"process.roles": "broker", "listeners": "SSL://h:1", "controller.listener.names": "C"}
        (line,) = refused({**broker, "controller.quorum.voters": "2@h:2"})
        assert line == (
            "Controller listener with name C defined in controller.listener.names not found in "
            "listener.security.protocol.map  (an explicit security mapping for each controller listener is "
            "required if listener.security.protocol.map is non-empty, or if there are security protocols "
            "other than PLAINTEXT in use)"
        )

    def test_an_unknown_protocol_is_refused_in_kafkas_words(self) -> None:
        assert refused({"listener.security.protocol.map": "PLAINTEXT:TLS"}) == [
            "Invalid security protocol `TLS` defined in listener.security.protocol.map"
        ]
        assert refused({"security.inter.broker.protocol": "ssl"}) == [
            "Invalid value ssl for configuration security.inter.broker.protocol: String must be one of: "
            "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"
        ]

    def test_a_protocol_takes_the_listener_of_its_name_between_brokers(self) -> None:
        changed = {**BROKER, "inter.broker.listener.name": None, "security.inter.broker.protocol": "SSL"}
        assert read(changed).inter_broker_listener_name == "SSL"
        assert refused({**changed, "inter.broker.listener.name": "SSL"}) == [
            "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set."
        ]
        assert refused({**changed, "security.inter.broker.protocol": "SASL_PLAINTEXT"}) == [
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid "
            "options based on currently configured listeners are SASL_SSL,SSL"
        ]

    def test_the_listener_between_brokers_has_a_protocol(self) -> None:
        assert refused({**BROKER, "inter.broker.listener.name": "OTHER"}) == [
            "Listener with name OTHER defined in inter.broker.listener.name not found in "
            "listener.security.protocol.map."
        ]


class TestTls:
    def test_every_key_reaches_its_listener(self) -> None:
        security = read(
            {
                "listeners": "SSL://127.0.0.1:1,PLAINTEXT://127.0.0.1:2",
                "inter.broker.listener.name": "PLAINTEXT",
                "ssl.enabled.protocols": "TLSv1.3",
                "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384,TLS_AES_256_GCM_SHA384",
                "ssl.client.auth": "requested",
                "ssl.endpoint.identification.algorithm": "",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": "/all.pem",
                "listener.name.ssl.ssl.keystore.location": "/own.pem",
                "ssl.key.password": "secret",
                "ssl.truststore.location": "/trust.p12",
                "ssl.truststore.type": "PKCS12",
                "ssl.allow.dn.changes": "true",
                "ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/L,DEFAULT",
            }
        ).security
        assert security.listener("PLAINTEXT").tls is None
        tls = security.listener("SSL").tls
        assert tls is not None
        assert tls.key_password is not None
        assert tls.key_password.reveal() == "secret"
        assert tls == TlsSettings(
            enabled_protocols=("TLSv1.3",),
            cipher_suites=("TLS_AES_256_GCM_SHA384",),
            client_auth="requested",
            checks_hostname=False,
            keystore_type="PEM",
            keystore_location="/own.pem",
            keystore_password=None,
            key_password=tls.key_password,
            keystore_key=None,
            keystore_certificate_chain=None,
            truststore_type="PKCS12",
            truststore_location="/trust.p12",
            truststore_password=None,
            truststore_certificates=None,
            allow_dn_changes=True,
            allow_san_changes=False,
            principal_mapping_rules="RULE:^CN=(.*?),.*$/$1/L,DEFAULT",
        )

    def test_both_versions_are_on_and_older_ones_are_refused(self) -> None:
        node = read({"listeners": "SSL://127.0.0.1:1", "ssl.enabled.protocols": ""})
        tls = node.security.listener("SSL").tls
        assert tls is not None
        assert tls.enabled_protocols == ("TLSv1.2", "TLSv1.3")
        assert tls.checks_hostname
        assert refused({"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}) == [
            "Invalid value TLSv1.1 for configuration ssl.enabled.protocols: String must be one of: TLSv1.2, "
            "TLSv1.3"
        ]

    def test_client_certificates_beside_a_login_need_the_listeners_prefix(self) -> None:
        node = {**ALONE, **MECHANISMS, "ssl.client.auth": "required"}
        tls = read(node).security.listener("SASL_SSL").tls
        assert tls is not None
        assert tls.client_auth == "none"
        assert read(node).complaints() == [
            "ssl.client.auth=required does not count for the SASL_SSL listener SASL_SSL: set "
            "listener.name.sasl_ssl.ssl.client.auth"
        ]
        node["listener.name.sasl_ssl.ssl.client.auth"] = "required"
        tls = read(node).security.listener("SASL_SSL").tls
        assert tls is not None
        assert tls.client_auth == "required"
        assert read(node).complaints() == []

    def test_settings_that_nothing_uses_are_complained_of(self) -> None:
        unused = {"ssl.keystore.location": "/k.pem", "sasl.enabled.mechanisms": "PLAIN"}
        assert read(unused).complaints() == [
            "no listener has a protocol that needs ssl.keystore.location: no effect",
            "no listener has a protocol that needs sasl.enabled.mechanisms: no effect",
        ]


class TestSasl:
    def test_every_key_reaches_its_mechanism(self) -> None:
        security = read(
            {
                **ALONE,
                **MECHANISMS,
                "sasl.server.max.receive.size": "1000",
                "connections.max.reauth.ms": "-5",
                "listener.name.sasl_ssl.plain.connections.max.reauth.ms": "60000",
                "firn.authentication.timeout.ms": "77",
                "connection.failed.authentication.delay.ms": "0",
                "firn.tls.handshakes": "3",
                "firn.ssl.reload.interval.ms": "0",
            }
        ).security
        sasl = security.listener("SASL_SSL").sasl
        assert sasl is not None
        assert [(one.name, one.jaas.reveal(), one.max_reauth_ms) for one in sasl.mechanisms] == [
            ("PLAIN", PLAIN_JAAS, 60_000),
            ("SCRAM-SHA-512", SCRAM_JAAS, 0),
        ]
        assert sasl.max_receive_size == 1000
        plain = sasl.mechanism("PLAIN")
        assert plain is not None
        assert (plain.name, sasl.mechanism("plain")) == ("PLAIN", None)
        assert (security.authentication_timeout_ms, security.failed_authentication_delay_ms) == (77, 0)
        assert (security.tls_handshakes, security.reload_interval_ms) == (3, 0)

    @pytest.mark.parametrize(
        ("mechanisms", "reason"),
        [
            (None, "GSSAPI is not served; there is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
            ("PLAIN,scram-sha-256", "scram-sha-256 is not served; did you mean 'SCRAM-SHA-256'?"),
            (
                "AWS_MSK_IAM",
                "AWS_MSK_IAM is not served; there is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER",
            ),
        ],
    )
    def test_mechanisms_that_there_are_not_are_refused(self, mechanisms: str | None, reason: str) -> None:
        node = {**ALONE, **MECHANISMS, "sasl.enabled.mechanisms": mechanisms}
        assert refused(node) == [f"sasl.enabled.mechanisms of listener SASL_SSL: {reason}"]

    def test_a_listener_has_a_mechanism_and_each_one_its_login_module(self) -> None:
        assert refused({**ALONE, "sasl.enabled.mechanisms": ""}) == [
            "sasl.enabled.mechanisms of listener SASL_SSL is empty: nobody could log in"
        ]
        assert refused({**ALONE, "sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": PLAIN_JAAS}) == [
            "listener.name.sasl_ssl.plain.sasl.jaas.config is not set: PLAIN on listener SASL_SSL needs its "
            "login module"
        ]

    def test_a_login_module_without_both_prefixes_is_ignored_with_a_complaint(self) -> None:
        names = ("sasl.jaas.config", "listener.name.sasl_ssl.sasl.jaas.config")
        node = read({**ALONE, **MECHANISMS, **dict.fromkeys(names, "x")})
        assert node.complaints() == [
            f"{name}: ignored: it counts only with the prefix of a listener and a mechanism, as in "
            "listener.name.internal.plain.sasl.jaas.config"
            for name in names
        ]

    @pytest.mark.parametrize(
        ("host", "is_open"),
        [("127.0.0.9", False), ("localhost", False), ("[::1]", False), ("10.0.0.1", True), ("", True)],
    )
    def test_open_passwords_beyond_this_machine_are_complained_of(self, host: str, is_open: bool) -> None:
        name = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
        node = {
            "listeners": f"SASL_PLAINTEXT://{host}:1",
            "sasl.enabled.mechanisms": "PLAIN",
            name: PLAIN_JAAS,
        }
        complaint = (
            "listener SASL_PLAINTEXT takes passwords (PLAIN) over connections that are not encrypted and "
            "come from other machines: use SASL_SSL"
        )
        assert read(node).complaints() == ([complaint] if is_open else [])


class TestConnectionsToOtherNodes:
    def test_a_broker_logs_in_at_brokers_and_at_controllers(self) -> None:
        security = read(BROKER).security
        brokers, controllers = security.inter_broker, security.controller
        assert brokers is not None
        assert brokers.jaas is not None
        assert (brokers.listener, brokers.protocol, brokers.mechanism) == ("SASL_SSL", 3, "SCRAM-SHA-512")
        assert brokers.jaas.reveal() == SCRAM_JAAS
        assert brokers.tls is not None
        assert controllers is not None
        assert controllers.jaas is not None
        assert (controllers.listener, controllers.protocol, controllers.tls) == ("CONTROLLER", 2, None)
        assert (controllers.mechanism, controllers.jaas.reveal()) == ("PLAIN", PLAIN_JAAS)

    def test_the_first_listener_of_controllers_is_the_one_that_is_used(self) -> None:
        two = {
            **BROKER,
            "controller.listener.names": "FIRST,CONTROLLER",
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SASL_PLAINTEXT,FIRST:SSL",
            "listener.name.first.ssl.truststore.location": "/first.pem",
        }
        controller = read(two).security.controller
        assert controller is not None
        assert (controller.listener, controller.protocol) == ("FIRST", 1)
        assert controller.tls is not None
        assert controller.tls.truststore_location == "/first.pem"

    def test_a_listener_of_controllers_that_is_not_used_needs_no_settings(self) -> None:
        broker = {
            "process.roles": "broker",
            "listeners": "PLAINTEXT://127.0.0.1:1",
            "controller.quorum.voters": "2@h:2",
            "controller.listener.names": "FIRST,SECOND",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,FIRST:PLAINTEXT,SECOND:SSL",
            "ssl.truststore.location": "/t.pem",
        }
        unused = "no listener has a protocol that needs ssl.truststore.location: no effect"
        assert unused in read(broker).complaints()
        first = {**broker, "controller.listener.names": "SECOND,FIRST"}
        assert unused not in read(first).complaints()

    def test_a_plaintext_cluster_has_plaintext_connections(self) -> None:
        node = read(
            {
                "listeners": "PLAINTEXT://h:1,C://h:2",
                "controller.listener.names": "C",
                "controller.quorum.voters": "1@h:2,2@i:2",
            }
        )
        plaintext = SecurityProtocol.PLAINTEXT
        assert node.security.inter_broker == OutgoingSecurity("PLAINTEXT", plaintext)
        assert node.security.controller == OutgoingSecurity("C", plaintext)

    def test_kafkas_default_mechanism_is_refused_with_what_there_is(self) -> None:
        there_is = "GSSAPI is not served; there is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"
        for key in ("sasl.mechanism.inter.broker.protocol", "sasl.mechanism.controller.protocol"):
            assert refused({**BROKER, key: None}) == [f"{key}: {there_is}"]

    def test_brokers_log_in_with_a_mechanism_that_their_listener_has(self) -> None:
        missing = {
            **BROKER,
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": SCRAM_JAAS,
        }
        assert refused(missing) == [
            "sasl.mechanism.inter.broker.protocol must be included in sasl.enabled.mechanisms when SASL is "
            "used for inter-broker communication"
        ]

    def test_a_node_that_nobody_can_join_needs_no_login_of_its_own(self) -> None:
        assert read({**ALONE, **MECHANISMS}).security.inter_broker is None
        joined = {**ALONE, **MECHANISMS, "listeners": "SASL_SSL://127.0.0.1:1,C://127.0.0.1:2"}
        joined |= {
            "controller.listener.names": "C",
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,C:PLAINTEXT",
            "inter.broker.listener.name": "SASL_SSL",
        }
        assert refused(joined) == [
            "sasl.mechanism.inter.broker.protocol: GSSAPI is not served; there is PLAIN, SCRAM-SHA-256, "
            "SCRAM-SHA-512, OAUTHBEARER"
        ]

    def test_controllers_cannot_use_scram_among_themselves(self) -> None:
        scram = {**CONTROLLER, "sasl.mechanism.controller.protocol": "SCRAM-SHA-256"}
        (line,) = refused(scram)
        assert line.startswith("sasl.mechanism.controller.protocol=SCRAM-SHA-256: controllers cannot log in")
        found = {**scram, "controller.quorum.voters": None, "controller.quorum.bootstrap.servers": "d:9093"}
        assert refused(found) == [line]

    def test_a_single_controller_and_brokers_may_use_scram(self) -> None:
        scram = {**CONTROLLER, "sasl.mechanism.controller.protocol": "SCRAM-SHA-256"}
        assert read({**scram, "controller.quorum.voters": "1@c:9093"}).security.controller is not None
        bootstrap = {
            "controller.quorum.voters": None,
            "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
        }
        assert read({**scram, **bootstrap}).security.controller is not None
        broker = {**BROKER, "sasl.mechanism.controller.protocol": "SCRAM-SHA-256"}
        broker["listener.name.controller.scram-sha-256.sasl.jaas.config"] = SCRAM_JAAS
        controller = read(broker).security.controller
        assert controller is not None
        assert controller.mechanism == "SCRAM-SHA-256"
