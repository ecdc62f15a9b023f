"""Endpoints that a node registers: the protocol of each listener is in them."""

from __future__ import annotations

from uuid import UUID

from service.base.steps import at_once
from service.config.cluster import ClusterConfig
from service.config.settings import BrokerConfig
from service.controller_client import lifecycle_messages
from service.controller_client.lifecycle_messages import Identity
from service.metadata.controller.cluster_control import register_broker
from service.metadata.delta import MetadataDelta
from service.metadata.endpoint import Endpoint
from service.metadata.image import MetadataImage
from service.metadata.snapshot_codec import decode_snapshot, encode_image
from service.node.quorum_control_plane import quorum_options
from service.node.standalone_control_plane import Home, endpoints_of
from tests.unit.metadata.controllers import CLUSTER_ID, registration

SECURED = {
    "listeners": "PLAIN_ONE://127.0.0.1:1,TLS_ONE://127.0.0.1:2,C://127.0.0.1:3",
    "advertised.listeners": "PLAIN_ONE://a:11,TLS_ONE://b:12",
    "controller.listener.names": "C",
    "controller.quorum.voters": "1@c:13,2@d:13",
    "listener.security.protocol.map": "PLAIN_ONE:PLAINTEXT,TLS_ONE:SSL,C:SSL",
    "inter.broker.listener.name": "PLAIN_ONE",
}


def test_the_protocol_of_each_listener_is_in_its_endpoint() -> None:
    cluster = ClusterConfig.from_properties(SECURED)
    assert endpoints_of(cluster.advertised_listeners) == (("PLAIN_ONE", "a", 11, 0), ("TLS_ONE", "b", 12, 1))
    assert endpoints_of(cluster.advertised_controller_listeners) == (("C", "127.0.0.1", 3, 1),)


def test_endpoints_of_voters_have_no_protocol_as_in_their_records() -> None:
    home = Home("4L6g3nShT-eMCtK--X86sw", UUID(int=7))
    options = quorum_options(BrokerConfig.from_properties(SECURED), home)
    assert options.identity.endpoints == (("C", "127.0.0.1", 3, 0),)
    assert [voter.endpoints for voter in options.static_voters] == [
        (("C", "c", 13, 0),),
        (("C", "d", 13, 0),),
    ]


def test_a_broker_takes_the_endpoint_of_its_first_controller_listener() -> None:
    broker = {
        **SECURED,
        "node.id": "5",
        "process.roles": "broker",
        "listeners": "PLAIN_ONE://127.0.0.1:1",
        "advertised.listeners": "PLAIN_ONE://a:11",
        "listener.security.protocol.map": "PLAIN_ONE:PLAINTEXT,C:SSL,OLD:PLAINTEXT",
        "controller.listener.names": "C,OLD",
    }
    home = Home("4L6g3nShT-eMCtK--X86sw", UUID(int=7))
    identity = quorum_options(BrokerConfig.from_properties(broker), home).identity
    old, new = Endpoint("OLD", "c", 13), Endpoint("C", "c", 14)
    assert identity.reached((old, new)) == new
    assert identity.reached((old,)) == old
    assert identity.reached(()) is None


def test_registrations_tell_the_protocols() -> None:
    cluster = ClusterConfig.from_properties(SECURED)
    identity = Identity(1, UUID(int=1), "4L6g3nShT-eMCtK--X86sw", endpoints_of(cluster.advertised_listeners))
    listeners = lifecycle_messages.registration(identity).listeners
    assert [(one.name, one.security_protocol) for one in listeners] == [("PLAIN_ONE", 0), ("TLS_ONE", 1)]
    endpoints = endpoints_of(cluster.advertised_controller_listeners)
    (one,) = lifecycle_messages.controller_registration(1, UUID(int=1), endpoints, ()).listeners
    assert (one.name, one.port, one.security_protocol) == ("C", 3, 1)


def test_a_registration_keeps_the_protocols_in_the_metadata() -> None:
    cluster = ClusterConfig.from_properties(SECURED)
    request = registration(1, endpoints=endpoints_of(cluster.advertised_listeners))
    delta = MetadataDelta(MetadataImage())
    result = register_broker(delta.image, request, cluster_id=CLUSTER_ID, next_offset=0, has_session=False)
    for frame in at_once(result).frames:
        delta.replay(frame.record)
    image = delta.build(0, 1, 0)
    assert [(one.name, one.security_protocol) for one in image.brokers[1].endpoints] == [
        ("PLAIN_ONE", 0),
        ("TLS_ONE", 1),
    ]
    assert decode_snapshot(encode_image(image, 0), end_offset=1, epoch=1) == image
