"""Addresses of servers, as people write them."""

from braidlog.runtime.errors import InvalidSetting


def parse_address(address: str) -> str | tuple[str, int]:
    """Parse the path of a Unix socket, or `host:port`.

    A path is `/run/braid.sock` or `unix:/run/braid.sock`.
    """
    if address.startswith("unix:"):
        address = address.removeprefix("unix:").removeprefix("//")
    if address.startswith("/"):
        return address
    host, separator, port = address.removeprefix("tcp://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidSetting(
            f"{address!r} is not an address to connect to", help="Use host:port, or /path/to/socket for a Unix socket."
        )
    return host, int(port)
