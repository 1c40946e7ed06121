"""Calls a handler the way a client would: request bytes in, response bytes out, in any version."""

import io
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from braidlog.agent.apis.context import RequestContext
from braidlog.agent.apis.registry import COLD_APIS
from braidlog.security.rights import ALL_RIGHTS, Rights
from braidlog.wire.messages import read_request, write_response


@dataclass
class Part:
    """A part of a request, by its class; it becomes an entity of the version that is called."""

    class_name: str
    values: dict[str, Any]


def part(class_name: str, **values: Any) -> Part:
    return Part(class_name, values)


def build(key: int, version: int, value: Any) -> Any:
    """Entities of one version. What the version does not have is dropped, as clients do."""
    if isinstance(value, (list, tuple)):
        return tuple(build(key, version, item) for item in value)
    if not isinstance(value, Part):
        return value
    entity_type = getattr(load_payload_module(key, version, EntityType.request), value.class_name)
    known = {field.name for field in fields(entity_type)}
    return entity_type(**{name: build(key, version, item) for name, item in value.values.items() if name in known})


def encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def services_of(agent: Any, services: type) -> Any:
    """What handlers use, from the attributes of the same names that an agent has here."""
    return services(*(getattr(agent, field.name, None) for field in fields(services)))


class ApiCaller:
    """One client of one agent."""

    def __init__(self, agent: Any, client_id: str = "tests", rights: Rights = ALL_RIGHTS) -> None:
        self.agent = agent
        self.client_id = client_id
        self.rights = rights

    def everywhere(self) -> list["ApiCaller"]:
        """The same client at every agent of the cluster, this one included."""
        return [
            ApiCaller(
                SimpleNamespace(**{**vars(self.agent), "session": SimpleNamespace(node_id=node_id)}),
                self.client_id,
                self.rights,
            )
            for node_id in sorted(self.agent.view.agents)
        ]

    async def __call__(self, key: int, request: Part, *, version: int | None = None) -> Any:
        """The decoded response; of the newest version unless told otherwise."""
        api = COLD_APIS[key]
        version = api.versions[-1] if version is None else version
        assert version in api.versions
        body = encode(build(key, version, request))
        services = services_of(self.agent, api.services)
        context = RequestContext(services, self.agent.turns, key, version, self.client_id, "127.0.0.1", self.rights)
        response = await api.handle(read_request(key, version, body), context)
        data = write_response(response)
        decoded, length = entity_reader(type(response))(memoryview(data).toreadonly(), 0)
        assert length == len(data)
        return decoded
