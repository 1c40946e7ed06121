"""Settings of who may connect to an agent and what they may do."""

from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from braidlog.runtime.quantities import Address, parse_milliseconds

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


class Listener(NamedTuple):
    """An address for clients, and how they connect there."""

    name: str
    protocol: str
    listen: Address
    advertised: Address

    @property
    def is_encrypted(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def wants_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")


def _principals(text: str) -> str:
    for part in _parts(text, ";"):
        kind, _, name = part.partition(":")
        if not kind or not name:
            raise ValueError(f"names {part!r}, which is no principal: write User:name, with ; between several")
    return text


def _parts(text: str, separator: str = ",") -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]


def parse_listeners(text: str) -> dict[str, Address]:
    """Addresses by the names of listeners, from `NAME://host:port,NAME://host:port`."""
    found: dict[str, Address] = {}
    for part in _parts(text):
        name, separator, address = part.partition("://")
        if not separator or not name or name.upper() in found:
            raise ValueError(f"has {part!r}: write NAME://HOST:PORT, with commas between several, each name once")
        found[name.upper()] = Address.parse(address)
    return found


def _listeners(text: str) -> str:
    parse_listeners(text)
    return text


def parse_protocol_map(text: str) -> dict[str, str]:
    """Protocols by the names of listeners, from `NAME:PROTOCOL,NAME:PROTOCOL`."""
    found = {protocol: protocol for protocol in PROTOCOLS}
    for part in _parts(text):
        name, colon, protocol = part.partition(":")
        if not colon or protocol.upper() not in PROTOCOLS:
            raise ValueError(f"has {part!r}: write NAME:PROTOCOL, with one of {', '.join(PROTOCOLS)}")
        found[name.strip().upper()] = protocol.strip().upper()
    return found


def _protocol_map(text: str) -> str:
    parse_protocol_map(text)
    return text


def _mechanisms(text: str) -> str:
    for part in _parts(text):
        if part.upper() not in MECHANISMS:
            raise ValueError(f"has {part!r}: use {', '.join(MECHANISMS)}")
    return text


class SecuritySettings(BaseModel):
    """Who may connect, and what they may do."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    authorizer: Literal["none", "acl"] = Field("none", examples=["acl"])
    """none: every client may do everything. acl: only what ACLs allow (`braid acl`)."""
    super_users: Annotated[str, AfterValidator(_principals)] = Field("", examples=["User:admin;User:operator"])
    """Principals that may do everything, whatever ACLs say; separated by semicolons."""
    allow_everyone_if_no_acl_found: bool = Field(False, examples=["false"])
    """With authorizer=acl: whether all clients may do everything to a resource that no ACL concerns."""

    security_protocol: Protocol = Field("PLAINTEXT", examples=["SASL_SSL"])
    """How clients connect to `listen`: with TLS (SSL), with a login (SASL_PLAINTEXT), with both (SASL_SSL)."""
    listeners: Annotated[str, AfterValidator(_listeners)] = Field("", examples=["CLIENTS://0.0.0.0:9094"])
    """More addresses for clients, beside `listen`. Clients are told the addresses of the listener that they use."""
    advertised_listeners: Annotated[str, AfterValidator(_listeners)] = Field(
        "", examples=["CLIENTS://broker-1.example.com:9094"]
    )
    """The addresses that clients of those listeners are told."""
    listener_security_protocol_map: Annotated[str, AfterValidator(_protocol_map)] = Field(
        "", examples=["CLIENTS:SASL_SSL"]
    )
    """The protocol of each listener. A listener that is named like a protocol needs no entry."""

    ssl_certificate_file: str = Field("", examples=["/etc/braidlog/agent.pem"])
    """The agent's certificate, and those that issued it, in PEM. A file that changes is read again."""
    ssl_key_file: str = Field("", examples=["/etc/braidlog/agent.key"])
    """The key of that certificate, in PEM."""
    ssl_ca_file: str = Field("", examples=["/etc/braidlog/ca.pem"])
    """The authorities whose certificates clients may show, in PEM."""
    ssl_client_auth: Literal["none", "requested", "required"] = Field("none", examples=["required"])
    """Whether clients show a certificate. Without SASL it says who they are."""
    ssl_principal_mapping_rules: str = Field("DEFAULT", examples=["RULE:^CN=(.*?),.*$/$1/,DEFAULT"])
    """How a certificate becomes a user, in Kafka's form. DEFAULT takes the whole name. SAN: instead of RULE: looks at
    the alternative names."""

    sasl_enabled_mechanisms: Annotated[str, AfterValidator(_mechanisms)] = Field(
        "SCRAM-SHA-512,SCRAM-SHA-256", examples=["SCRAM-SHA-512,PLAIN"]
    )
    """How clients of SASL listeners may log in. PLAIN sends the password itself: use it with TLS only."""
    sasl_users_file: str = Field("", examples=["/etc/braidlog/users"])
    """Users beside those of `braid user`, such as the first one: a line `name:password` for each."""
    connections_max_reauth_ms: Annotated[int, BeforeValidator(parse_milliseconds)] = Field(
        0, ge=0, le=2_592_000_000, examples=["1h"]
    )
    """How long a login counts. Clients then log in again on the same connection. 0: as long as the connection lasts."""
    connection_failed_authentication_delay_ms: Annotated[int, BeforeValidator(parse_milliseconds)] = Field(
        100, ge=0, le=10_000, examples=["100ms"]
    )
    """How long the answer to a wrong password waits."""
    max_connections_per_ip: int = Field(100_000, ge=1, examples=["1000"])
    """How many connections clients of one address may have."""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return tuple(part.upper() for part in _parts(self.sasl_enabled_mechanisms))


def listeners_of(settings: SecuritySettings, listen: Address, advertised: Address | None) -> list[Listener]:
    """All listeners of an agent.

    The first is the one of `listen`, and named like its protocol.
    """
    first = Listener(settings.security_protocol, settings.security_protocol, listen, advertised or listen)
    told = parse_listeners(settings.advertised_listeners)
    protocols = parse_protocol_map(settings.listener_security_protocol_map)
    found = [first]
    for name, address in parse_listeners(settings.listeners).items():
        if name not in protocols:
            raise ValueError(f"listener {name} has no protocol: listener_security_protocol_map={name}:SASL_SSL")
        if name == first.name:
            raise ValueError(f"listener {name} has the name of the one of `listen`: give it another name")
        found.append(Listener(name, protocols[name], address, told.get(name, address)))
    return found
