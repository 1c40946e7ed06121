"""Requests to a console, as programs and browsers make them."""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from braidlog.console.guard import KEY_HEADER
from braidlog.runtime.quantities import Address

JSON = {"accept": "application/json"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def told(self) -> Any:
        return json.loads(self.body)


@dataclass
class Driver:
    address: Address
    bootstrap: str
    _key: list[str] = field(default_factory=list)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=90)
        try:
            connection.request(method, path, body, dict(headers or JSON))
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.told

    @property
    def key(self) -> str:
        if not self._key:
            self._key.append(self.get("/session")["key"])
        return self._key[0]

    def act(self, method: str, path: str, body: Any, **headers: str) -> Answer:
        """Do something the way the console's own page does."""
        own = {
            **JSON,
            "content-type": "application/json",
            KEY_HEADER: self.key,
            "origin": f"http://{self.address}",
            "sec-fetch-site": "same-origin",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return self.ask(method, path, json.dumps(body).encode(), own)
