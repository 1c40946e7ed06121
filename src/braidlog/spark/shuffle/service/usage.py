"""What a shuffle has really used, and where its reduce tasks ran.

Each node's service adds up its own requests and those of its tasks.
"""

import msgspec


class ShuffleUsage(msgspec.Struct, frozen=True):
    """Requests for batches, as they were made.

    Persisted as JSON: add fields only with a default.
    """

    puts: int = 0
    put_bytes: int = 0
    gets: int = 0
    get_bytes: int = 0
    ring_reads: int = 0
    """Reads that another node of the zone answered."""
    ring_around: int = 0
    """Reads that another node should have answered, and did not."""
    reduce_tasks: int = 0
    """Reduce tasks whose partition belongs to one of several zones."""
    reduce_tasks_in_zone: int = 0
    """Those of them that ran in the zone of their partition."""

    def __add__(self, other: "ShuffleUsage") -> "ShuffleUsage":
        names = self.__struct_fields__
        return ShuffleUsage(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def gets_per_put(self) -> float:
        return self.gets / self.puts if self.puts else 0.0

    @property
    def in_zone_share(self) -> float:
        return self.reduce_tasks_in_zone / self.reduce_tasks if self.reduce_tasks else 1.0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ShuffleUsage).decode


def encode_usage(usage: ShuffleUsage) -> bytes:
    return _encode(usage)


def decode_usage(data: bytes) -> ShuffleUsage:
    """Raises `msgspec.MsgspecError` if it is not one."""
    return _decode(data)
