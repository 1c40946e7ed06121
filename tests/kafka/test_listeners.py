"""Clients over every protocol and mechanism, at one agent with a listener for each."""

import asyncio
import random
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from tests.cli.running import braid
from tests.cluster import free_port, wait_until
from tests.kafka.in_process import InProcessBraidlog
from tests.kafka.raw import Peer, frame, header

from braidlog.cli.tools.certificates import write_certificate
from braidlog.clients.errors import CommandError
from braidlog.control.interface import AlterCredentials, CreateAcls, CreateTopics, NewTopic, ScramCredential
from braidlog.security.acls import ALL, ALLOW, LITERAL, TOPIC, Acl
from braidlog.security.scram import keys_of_password
from kafka import KafkaConsumer, KafkaProducer

WAIT_S = 60
PASSWORDS = {"admin": "admin-secret", "alice": "alice-secret"}
"""The first is in the users file, the second in the cluster."""
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


class Guarded:
    def __init__(self, braidlog: InProcessBraidlog, ports: dict[str, int], folder: Path) -> None:
        self.braidlog = braidlog
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        self.addresses["PLAINTEXT"] = braidlog.bootstrap
        self.folder = folder
        self.errors: list[KafkaError] = []

    def config(self, protocol: str, *, user: str = "", password: str = "", mechanism: str = "PLAIN") -> dict[str, Any]:
        """What confluent-kafka needs for a listener."""
        config: dict[str, Any] = {
            "bootstrap.servers": self.addresses[protocol],
            "security.protocol": protocol,
            "error_cb": self.errors.append,
            "log_level": 0,
            "message.timeout.ms": WAIT_S * 1000,
        }
        if "SSL" in protocol:
            config["ssl.ca.location"] = str(self.folder / "ca.pem")
        if "SASL" in protocol:
            config |= {
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": password or PASSWORDS[user],
            }
        return config

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca.pem"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("listeners")
    made = write_certificate(folder, ["127.0.0.1", "localhost"])
    users = folder / "users"
    users.write_text(f"# the first user\nadmin:{PASSWORDS['admin']}\n")
    first = free_port(3)
    ports = {"SSL": first, "SASL_PLAINTEXT": first + 1, "SASL_SSL": first + 2}
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "ssl_certificate_file": str(made["certificate"]),
        "ssl_key_file": str(made["key"]),
        "ssl_ca_file": str(made["ca"]),
        "ssl_client_auth": "requested",
        "ssl_principal_mapping_rules": "RULE:^CN=(.*?)$/$1/,DEFAULT",
        "sasl_enabled_mechanisms": ",".join(MECHANISMS),
        "sasl_users_file": str(users),
        "connection_failed_authentication_delay_ms": "1ms",
        "authorizer": "acl",
        "super_users": "User:admin",
    }
    with InProcessBraidlog(folder, **settings) as braidlog:
        guarded = Guarded(braidlog, ports, folder)
        keys = [(number, keys_of_password(number, PASSWORDS["alice"], b"0123456789abcdef")) for number in (1, 2)]
        credentials = [
            ScramCredential("alice", number, each.salt, each.iterations, each.stored_key, each.server_key)
            for number, each in keys
        ]
        rule = Acl(TOPIC, "*", LITERAL, "User:alice", "*", ALL, ALLOW)
        anybody = rule._replace(principal="User:ANONYMOUS", name="open")
        braidlog.call(lambda control: control.alter_credentials(AlterCredentials([], credentials)))
        braidlog.call(
            lambda control: control.create_acls(
                CreateAcls([rule, anybody, rule._replace(principal="User:carol", name="certified")])
            )
        )
        names = ["open", "certified", "private", "other"]
        braidlog.call(lambda control: control.create_topics(CreateTopics([NewTopic(name, 1) for name in names])))
        braidlog.wait_until(lambda agent: "other" in agent.view.topics_by_name)
        yield guarded


def _round_trip(config: dict[str, Any], topic: str, value: bytes) -> None:
    told: list[KafkaError | None] = []
    producer = Producer({**config, "linger.ms": 0})
    producer.produce(topic, value, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(WAIT_S) == 0
    assert told == [None]
    consumer = Consumer({**config, "group.id": "none", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        from confluent_kafka import TopicPartition as Place

        consumer.assign([Place(topic, 0, 0)])
        while True:
            message = consumer.poll(WAIT_S)
            assert message is not None
            if message.error() is None and message.value() == value:
                return
            if message.error() is not None:  # the group is not theirs, and not needed
                assert message.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("protocol", "user"), [("SASL_PLAINTEXT", "admin"), ("SASL_SSL", "alice")])
def test_users_log_in_with_every_mechanism(guarded: Guarded, protocol: str, user: str, mechanism: str) -> None:
    config = guarded.config(protocol, user=user, mechanism=mechanism)
    _round_trip(config, "private", f"{protocol} {mechanism}".encode())


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_clients_without_a_login_are_anonymous(guarded: Guarded, protocol: str) -> None:
    config = guarded.config(protocol)
    _round_trip(config, "open", protocol.encode())
    assert _denied(config, "private")


def _denied(config: dict[str, Any], topic: str) -> bool:
    told: list[KafkaError | None] = []
    producer = Producer(config)
    producer.produce(topic, b"v", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(WAIT_S) == 0
    return told[0] is not None and told[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_certificate_says_who_a_client_is(guarded: Guarded) -> None:
    made = write_certificate(guarded.folder, [], user="carol")
    shown = {"ssl.certificate.location": str(made["certificate"]), "ssl.key.location": str(made["key"])}
    _round_trip({**guarded.config("SSL"), **shown}, "certified", b"by certificate")
    assert _denied({**guarded.config("SSL"), **shown}, "private")


def test_clients_are_told_the_addresses_of_their_own_listener(guarded: Guarded) -> None:
    for protocol, address in guarded.addresses.items():
        admin = AdminClient(guarded.config(protocol, user="admin"))
        (broker,) = admin.list_topics(timeout=WAIT_S).brokers.values()
        assert f"{broker.host}:{broker.port}" == address


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_wrong_passwords_and_unknown_users_are_told_so_alike(guarded: Guarded, user: str, mechanism: str) -> None:
    guarded.errors.clear()
    before = guarded.braidlog.agent.logins.failures[mechanism]
    config = guarded.config("SASL_SSL", user=user, password="wrong", mechanism=mechanism)
    client = Producer(config)
    wait_until(lambda: client.poll(0.1) or guarded.errors, what="the error")
    told = [error for error in guarded.errors if error.code() == KafkaError._AUTHENTICATION]
    assert told
    assert "Invalid username or password" in told[0].str()
    assert guarded.braidlog.agent.logins.failures[mechanism] > before
    figures = guarded.braidlog.metrics.render().decode()
    assert f'braidlog_agent_logins_total{{mechanism="{mechanism}",outcome="failure"}}' in figures


def test_certificates_of_strangers_are_refused(guarded: Guarded, tmp_path: Path) -> None:
    foreign = write_certificate(tmp_path, [], user="carol")
    context = guarded.tls()
    context.load_cert_chain(foreign["certificate"], foreign["key"])
    host, port = guarded.addresses["SSL"].split(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as raw, suppress(OSError):
        connection = context.wrap_socket(raw, server_hostname=host, do_handshake_on_connect=False)
        with connection:
            connection.do_handshake()
            connection.sendall(frame(header(18, 0)))
            answer = connection.recv(1)  # in TLS 1.3 the client learns it with its first read
    assert not answer


def test_aiokafka_logs_in(guarded: Guarded) -> None:
    settings = {
        "bootstrap_servers": guarded.addresses["SASL_SSL"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORDS["alice"],
    }

    async def round_trip() -> None:
        async with AIOKafkaProducer(**settings, ssl_context=guarded.tls()) as producer:
            sent = await producer.send_and_wait("other", b"aiokafka")
        async with AIOKafkaConsumer(**settings, ssl_context=guarded.tls()) as consumer:
            consumer.assign([TopicPartition("other", 0)])
            consumer.seek(TopicPartition("other", 0), sent.offset)
            assert (await consumer.getone()).value == b"aiokafka"

    asyncio.run(asyncio.wait_for(round_trip(), WAIT_S))


def test_kafka_python_logs_in(guarded: Guarded) -> None:
    settings = {
        "bootstrap_servers": guarded.addresses["SASL_SSL"],
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(guarded.folder / "ca.pem"),
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORDS["alice"],
    }
    producer = KafkaProducer(**settings, enable_idempotence=False)
    sent = producer.send("other", b"kafka-python").get(WAIT_S)
    producer.close()
    from kafka import TopicPartition as Place

    consumer = KafkaConsumer(**settings, consumer_timeout_ms=WAIT_S * 1000)
    consumer.assign([Place("other", 0)])
    consumer.seek(Place("other", 0), sent.offset)
    assert next(consumer).value == b"kafka-python"
    consumer.close()


# ── strangers ──


@contextmanager
def _peer(guarded: Guarded, listener: str = "SASL_PLAINTEXT") -> Iterator[Peer]:
    peer = Peer(guarded.addresses[listener])
    with peer.socket:
        yield peer


def _closes(guarded: Guarded, *messages: bytes) -> bool:
    with _peer(guarded) as peer:
        for message in messages:
            peer.send(message)
        return peer.is_closed()


def test_nothing_but_a_login_is_served_before_it(guarded: Guarded) -> None:
    assert _closes(guarded, frame(header(3, 1) + struct.pack(">i", -1)))
    assert _closes(guarded, frame(header(19, 2) + bytes(8)))


def test_long_frames_are_not_taken_before_the_login(guarded: Guarded) -> None:
    assert _closes(guarded, struct.pack(">i", 100_000_000))
    assert _closes(guarded, struct.pack(">i", 40_000) + bytes(100))


def test_few_frames_are_taken_before_the_login(guarded: Guarded) -> None:
    with _peer(guarded) as peer:
        for _ in range(20):
            assert peer.is_alive()
        peer.send(frame(header(18, 0)))
        assert peer.is_closed()


def _handshake(mechanism: bytes) -> bytes:
    return frame(header(17, 1) + struct.pack(">h", len(mechanism)) + mechanism)


def _authenticate(message: bytes) -> bytes:
    return frame(header(36, 0) + struct.pack(">i", len(message)) + message)


def test_the_steps_of_a_login_come_in_order(guarded: Guarded) -> None:
    with _peer(guarded) as peer:
        peer.send(_authenticate(b"\0alice\0alice-secret"))
        assert peer.read_frame()[4:6] == struct.pack(">h", 34)
        peer.send(_handshake(b"GSSAPI"))
        answer = peer.read_frame()
        assert answer[4:6] == struct.pack(">h", 33)
        assert b"SCRAM-SHA-512" in answer
    with _peer(guarded, "PLAINTEXT") as peer:
        peer.send(_handshake(b"PLAIN"))
        assert peer.read_frame()[4:6] == struct.pack(">h", 34)


def _mutants(messages: list[bytes], count: int) -> Iterator[bytes]:
    chance = random.Random(11)
    for _ in range(count):
        data = bytearray(chance.choice(messages))
        for _ in range(chance.randrange(1, 6)):
            place = chance.randrange(len(data))
            kind = chance.randrange(3)
            if kind == 0:
                data[place] = chance.randrange(256)
            elif kind == 1:
                data[place:place] = chance.randbytes(chance.randrange(40))
            elif place > 8:
                del data[place:]
        yield bytes(data)


def test_garbage_in_a_login_harms_nobody(guarded: Guarded, capfd: pytest.CaptureFixture[str]) -> None:
    """Seeded: half-right handshakes, TLS at the wrong port and the like. The agent logs no exception, and goes on."""
    scram = b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL"
    messages = [
        _handshake(b"PLAIN") + _authenticate(b"\0alice\0alice-secret"),
        _handshake(b"SCRAM-SHA-256")
        + _authenticate(scram)
        + _authenticate(b"c=biws,r=x,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        frame(header(18, 3)),
    ]
    for listener in ("SASL_PLAINTEXT", "SASL_SSL"):
        for data in _mutants(messages, 60):
            with _peer(guarded, listener) as peer:
                peer.send(data)
    _round_trip(guarded.config("SASL_SSL", user="alice"), "private", b"still there")
    logged = capfd.readouterr()
    assert "Traceback" not in logged.out + logged.err


def test_half_open_handshakes_do_not_stop_others(guarded: Guarded) -> None:
    host, port = guarded.addresses["SASL_SSL"].split(":")
    idle = [socket.create_connection((host, int(port)), timeout=WAIT_S) for _ in range(300)]
    try:
        _round_trip(guarded.config("SASL_SSL", user="alice"), "private", b"beside half-open ones")
    finally:
        for each in idle:
            each.close()


# ── the command ──


def test_commands_log_in_with_a_file_of_properties(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = guarded.config("SASL_SSL", user="admin", mechanism="SCRAM-SHA-256")
    kept = {key: value for key, value in config.items() if key.startswith(("s", "security"))}
    properties = tmp_path / "client.properties"
    properties.write_text("# how to log in\n" + "".join(f"{key}={value}\n" for key, value in kept.items()))
    monkeypatch.setenv("BRAIDLOG_CLIENT_CONFIG", str(properties))
    where = guarded.addresses["SASL_SSL"]
    (tmp_path / "password").write_text("dave-secret\n")
    created = braid(where, "user", "create", "dave", "--password-file", str(tmp_path / "password"))
    assert created["mechanisms"] == ["scram-sha-256", "scram-sha-512"]
    assert {row["user"] for row in braid(where, "user", "list")} == {"alice", "dave"}
    braid(where, "acl", "create", "User:dave", "-o", "all", "--topic", "other")
    assert [row["name"] for row in braid(where, "acl", "list", "--principal", "User:dave")] == ["other"]
    for mechanism in MECHANISMS:
        dave = guarded.config("SASL_SSL", user="dave", password="dave-secret", mechanism=mechanism)
        _round_trip(dave, "other", mechanism.encode())
    braid(where, "user", "delete", "dave")
    with pytest.raises(CommandError, match="no such credential"):
        braid(where, "user", "delete", "dave")
    properties.write_text(properties.read_text().replace(PASSWORDS["admin"], "wrong"))
    with pytest.raises(CommandError, match="Invalid username or password"):
        braid(where, "user", "list")
