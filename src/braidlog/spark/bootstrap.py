"""Finds the control plane through an agent.

`kafka.bootstrap.servers` names agents, as it would name brokers. An agent publishes the address of its control plane as
the broker config `braidlog.control`. This module speaks Kafka's protocol itself, because a driver that reads and writes
the store directly needs no Kafka client.
"""

import socket
from dataclasses import replace
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from braidlog.configs.cluster import CONTROL_CONFIG
from braidlog.configs.resources import BROKER_RESOURCE
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.quantities import Address, Addresses
from braidlog.spark.errors import JobError
from braidlog.spark.options import ClusterAddress, ReadOptions, WriteOptions
from braidlog.wire.calls import decode_answer, encode_call, request_types
from braidlog.wire.errors import MalformedRequest

ANSWER_S_MAX = 10.0
RESPONSE_BYTES_MAX = 16 * 1024 * 1024
CLIENT_ID = "braidlog-spark"

_DESCRIBE_CLUSTER = (60, 0)
_DESCRIBE_CONFIGS = (32, 4)
_NOWHERE_ELSE = ("", "0.0.0.0", "::", "localhost", "127.0.0.1", "::1")
"""Hosts that mean the agent's own machine."""


Options = TypeVar("Options", ReadOptions, WriteOptions)


def with_control_address(options: Options) -> Options:
    """Return the options with the address of the control plane.

    Asks an agent if only agents are given.
    """
    address = options.address
    if address.control:
        return options
    found = ClusterAddress(control_address(address.bootstrap_servers), address.store_url)
    return replace(options, address=found)


def control_address(bootstrap_servers: str) -> str:
    """Ask agents one after another, and return the first address answered."""
    failure: Exception | None = None
    for agent in _addresses(bootstrap_servers):
        try:
            told = _ask(agent)
        except (OSError, MalformedRequest) as error:
            failure = error
            continue
        if told is None:
            raise JobError(
                f"{agent} is no agent of Braidlog: it does not know the address of a control plane",
                help='format("kafka") reads a Kafka cluster. For Braidlog, name an agent, or the control plane itself:'
                ' option("braidlog.control", "host:port").',
            )
        found = Addresses.parse(told).each
        return str(Addresses(tuple(Address(agent.host, it.port) if it.host in _NOWHERE_ELSE else it for it in found)))
    raise JobError(
        f"no agent answers at {bootstrap_servers}: {failure}",
        help="kafka.bootstrap.servers names agents as host:port, separated by commas.",
    ) from failure


def _addresses(bootstrap_servers: str) -> list[Address]:
    try:
        return [Address.parse(each.strip()) for each in bootstrap_servers.split(",") if each.strip()]
    except ValueError as error:
        raise InvalidSetting(
            f"kafka.bootstrap.servers is {bootstrap_servers!r}: {error}", help="For example 10.0.0.5:9092,10.0.0.6:9092"
        ) from error


def _ask(agent: Address) -> str | None:
    """Ask for the control plane's address.

    None: the server that answers does not know this config.
    """
    with socket.create_connection((agent.host, agent.port), ANSWER_S_MAX) as connection:
        connection.settimeout(ANSWER_S_MAX)
        types = request_types(*_DESCRIBE_CLUSTER)
        request = types.DescribeClusterRequest(include_cluster_authorized_operations=False)
        cluster = _call(connection, _DESCRIBE_CLUSTER, 1, request)
        if not cluster.brokers:
            raise MalformedRequest("it knows no agents yet")
        types = request_types(*_DESCRIBE_CONFIGS)
        request = types.DescribeConfigsRequest(
            # An agent answers only for itself, and does not say which one it is.
            resources=tuple(
                types.DescribeConfigsResource(
                    resource_type=BROKER_RESOURCE,
                    resource_name=str(broker.broker_id),
                    configuration_keys=(CONTROL_CONFIG,),
                )
                for broker in cluster.brokers
            ),
        )
        described = _call(connection, _DESCRIBE_CONFIGS, 2, request)
    for result in described.results:
        for config in result.configs:
            if config.name == CONTROL_CONFIG and config.value:
                return str(config.value)
    if all(result.error_code != ErrorCode.none for result in described.results):
        refused = described.results[0]
        raise MalformedRequest(refused.error_message or refused.error_code.name)
    return None


def _call(connection: socket.socket, api: tuple[int, int], correlation_id: int, request: Any) -> Any:
    """Send a request, and return the answer to it.

    Raises `MalformedRequest` for what is no answer to it.
    """
    connection.sendall(encode_call(*api, correlation_id, CLIENT_ID, request))
    length = int.from_bytes(_received(connection, 4), "big")
    if length > RESPONSE_BYTES_MAX:
        raise MalformedRequest(f"a response of {length} bytes")
    frame = _received(connection, length)
    if frame[:4] != correlation_id.to_bytes(4, "big"):
        raise MalformedRequest("the response belongs to another request")
    try:
        return decode_answer(*api, frame)
    except Exception as error:  # kio raises many kinds on bad bytes, none with a common base
        raise MalformedRequest(f"a response of api key {api[0]}: {error}") from error


def _received(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise ConnectionResetError("it closed the connection")
        data += piece
    return bytes(data)
