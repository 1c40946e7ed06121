"""The zone that an executor runs in: from its environment, or from the cloud.

Clouds answer the question at an address that only their own machines reach. It is asked once per process, and a machine
without such an address gives up within a second.
"""

import http.client
import os
from collections.abc import Mapping
from functools import cache

ZONE_VARIABLE = "BRAIDLOG_ZONE"
"""The environment variable that names an executor's zone. Set it with spark.executorEnv.BRAIDLOG_ZONE."""
METADATA_VARIABLE = "BRAIDLOG_METADATA_ADDRESS"
"""Where to ask the cloud for the zone. Empty: nowhere."""
METADATA_ADDRESS = "169.254.169.254"
ANSWER_S_MAX = 0.3
"""For each of three questions."""
ZONE_BYTES_MAX = 64


def zone_of_environment(environment: Mapping[str, str], *, ask_cloud: bool) -> str:
    """Return the zone that the environment names, or else the cloud's answer.

    Empty: unknown.
    """
    named = environment.get(ZONE_VARIABLE, "")
    address = environment.get(METADATA_VARIABLE, METADATA_ADDRESS)
    return named if named or not ask_cloud or not address else cloud_zone(address)


@cache
def cloud_zone(address: str) -> str:
    """Ask the machine's cloud for its zone.

    It may be Amazon's, Google's or Microsoft's.
    """
    for ask in (_amazon, _google, _microsoft):
        try:
            answer = ask(address)
        except (OSError, http.client.HTTPException, ValueError):
            continue
        zone = answer.strip().rpartition("/")[2]
        if 0 < len(zone) <= ZONE_BYTES_MAX and zone.isascii() and zone.isprintable():
            return zone
    return ""


def own_zone(named: str | None, *, ask_cloud: bool) -> str:
    """Return this process's zone: as the shuffle names it, or the environment."""
    return named if named is not None else zone_of_environment(os.environ, ask_cloud=ask_cloud)


def _amazon(address: str) -> str:
    token = _answer(address, "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    headers = {"X-aws-ec2-metadata-token": token}
    return _answer(address, "GET", "/latest/meta-data/placement/availability-zone", headers)


def _google(address: str) -> str:
    return _answer(address, "GET", "/computeMetadata/v1/instance/zone", {"Metadata-Flavor": "Google"})


def _microsoft(address: str) -> str:
    path = "/metadata/instance/compute/zone?api-version=2021-02-01&format=text"
    return _answer(address, "GET", path, {"Metadata": "true"})


def _answer(address: str, method: str, path: str, headers: dict[str, str]) -> str:
    connection = http.client.HTTPConnection(address, timeout=ANSWER_S_MAX)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise ValueError(f"status {answer.status}")
        return answer.read(1024).decode("ascii")
    finally:
        connection.close()
