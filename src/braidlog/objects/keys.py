"""The names of objects. Persisted: sweepers parse them, so keep them stable.

`data/<prefix>/<epoch>/<incarnation>-<n>`
    An object of extents. The prefix is one hexadecimal digit, from a hash of incarnation and n, so that a store which
    partitions by key spreads the load. The write epoch comes before the incarnation, in ten digits, so that everything
    below a floor is one range of each prefix.

`journal/<incarnation>/<sequence>/<slot>`
    A file of a journal: an object of extents that was acknowledged before it was sequenced, or a fence, which has no
    extents and keeps its slot empty for ever. A sequence is a folder of at most `SLOTS_PER_SEQUENCE_MAX` files, which
    its writer fills from slot 0 on. Both numbers have ten digits, so that a listing is in order.

`shuffle/<job>/<prefix>/<incarnation>-<n>`
    A batch of a shuffle: an object of extents that only its notifications know of. The job is the application's name
    for itself, the incarnation that of one attempt at one task.

`shuffle/<job>/heartbeat`
    When the application was last alive, and which of its batches it may still read.

`shuffle/<job>/nodes/<name>.<zone>.<address>`
    A node of the application, written again and again while it lives: how nodes find each other. The content is what
    the node has used. Zone and address are in hexadecimal. If a batch's incarnation is `<name>_…`, this node wrote it.

`shuffle/<job>/usage/<name>`
    What a node had used when it ended.

`discovery/<incarnation>`
    An agent's address for clients, written again and again while it lives. Agents use it to name one another while the
    control plane is away.

`snapshot/agents/current`
    What agents need to know of the cluster to start while the control plane is away.

`producer-ids/<block>`
    The process that created it may give out the block's producer ids. Never deleted. The number has ten digits.

`metadata/delta/<n>`, `metadata/snapshot/<n>`
    The control plane's metadata, where it is kept in the bucket: see `control.metadata.deltas`.

`probe`
    Empty. Written by each control plane that starts on known metadata, to find out whether it may write.

`copy/<restore>/increment/<n>`, `copy/<restore>/snapshot/<n>`, `restores/<n>`
    The copy of the metadata that is kept elsewhere, and its restores: see `control.metadata.increments`.

`standby/<name>`
    What a control plane that stands by says of itself: see `control.standbys`.

`cluster.json`
    The cluster that the store belongs to. Never changed, and never deleted.
"""

import re
from dataclasses import dataclass
from zlib import crc32

from braidlog.runtime.errors import BraidError, Remedy

KEY_BYTES_MAX = 900
"""S3 allows 1,024 bytes; the rest is for the prefix that a store's URL may add."""
NUMBER_MAX = 9_999_999_999
PREFIX_COUNT = 16
SLOTS_PER_SEQUENCE_MAX = 1_000
"""No slot of a sequence is at or above this."""
SLOTS_IN_FLIGHT_MAX = 8
"""A writer puts no file this far or further above its lowest incomplete slot. So fencing as many slots, from the first
empty one on, seals the sequence."""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
"""Control characters, and the backslash, which some servers take for a slash."""
_INCARNATION = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DATA = re.compile(r"data/([0-9a-f])/([0-9]{10})/([A-Za-z0-9_-]{1,64})-([0-9]{10})")
_JOURNAL = re.compile(r"journal/([A-Za-z0-9_-]{1,64})/([0-9]{10})/([0-9]{10})")
_SHUFFLE = re.compile(r"shuffle/([A-Za-z0-9_-]{1,64})/([0-9a-f])/([A-Za-z0-9_-]{1,64})-([0-9]{10})")
_NODE_NAME = re.compile(r"[0-9a-f]{16}")
_NODE = re.compile(r"shuffle/([A-Za-z0-9_-]{1,64})/nodes/([0-9a-f]{16})\.((?:[0-9a-f]{2})*)\.((?:[0-9a-f]{2})*)")
NODE_NAME_BYTES = 8
DATA_PREFIX = "data/"
JOURNAL_PREFIX = "journal/"
SHUFFLE_PREFIX = "shuffle/"
DISCOVERY_PREFIX = "discovery/"
AGENT_SNAPSHOT_KEY = "snapshot/agents/current"
PRODUCER_IDS_PREFIX = "producer-ids/"
PROBE_KEY = "probe"
OWNER_KEY = "cluster.json"


class InvalidKey(BraidError):
    """A key that no store can hold, or that is not of the kind it should be."""

    remedy = Remedy.FIX_INPUT


@dataclass(frozen=True, slots=True)
class DataKey:
    write_epoch: int
    incarnation: str
    number: int


@dataclass(frozen=True, slots=True)
class JournalKey:
    incarnation: str
    sequence: int
    slot: int


@dataclass(frozen=True, slots=True)
class ShuffleKey:
    job: str
    incarnation: str
    number: int

    @property
    def writer(self) -> str:
        """The name of the node that wrote the batch; empty if the key does not say."""
        name, separator, _ = self.incarnation.partition("_")
        return name if separator and _NODE_NAME.fullmatch(name) else ""


@dataclass(frozen=True, slots=True)
class NodeKey:
    """The key of a node of a shuffle's application."""

    job: str
    name: str
    zone: str
    address: str

    def __str__(self) -> str:
        if _NODE_NAME.fullmatch(self.name) is None:
            raise InvalidKey(f"{self.name!r} is not the name of a node")
        texts = ".".join(text.encode().hex() for text in (self.zone, self.address))
        return check_key(f"{shuffle_nodes_prefix(self.job)}{self.name}.{texts}")


def check_key(key: str) -> str:
    """Return the key if every backend can hold it.

    It is relative, and has no empty, `.` or `..` segment and no control characters.
    """
    if not key or "//" in key or key[0] == "/" or key[-1] == "/":
        raise InvalidKey(f"key {key!r} has an empty segment", help="Segments are separated by single slashes: a/b/c.")
    if "." in key and any(segment in (".", "..") for segment in key.split("/")):
        raise InvalidKey(f"key {key!r} leaves its folder", help="Segments . and .. are not allowed.")
    if _FORBIDDEN.search(key):
        raise InvalidKey(f"key {key!r} has a backslash or control characters")
    try:
        size = len(key) if key.isascii() else len(key.encode())
    except UnicodeEncodeError:
        raise InvalidKey(f"key {key!r} is not valid Unicode") from None
    if size > KEY_BYTES_MAX:
        raise InvalidKey(f"key of {size} bytes is too long", help=f"At most {KEY_BYTES_MAX} bytes.")
    return key


def data_key(write_epoch: int, incarnation: str, number: int) -> str:
    _check_incarnation(incarnation)
    _check_number("write epoch", write_epoch)
    _check_number("number", number)
    return f"data/{_prefix(incarnation, number)}/{write_epoch:010d}/{incarnation}-{number:010d}"


def data_prefixes() -> tuple[str, ...]:
    """Return all prefixes of data objects, in order."""
    return tuple(f"data/{digit:x}/" for digit in range(PREFIX_COUNT))


def parse_data_key(key: str) -> DataKey:
    match = _DATA.fullmatch(key)
    if match is None:
        raise InvalidKey(f"{key!r} is not the key of a data object", help="data/<prefix>/<epoch>/<incarnation>-<n>")
    prefix, epoch, incarnation, number = match.groups()
    if prefix != _prefix(incarnation, int(number)):
        raise InvalidKey(f"{key!r} has the wrong prefix", help=f"It should be {_prefix(incarnation, int(number))}.")
    return DataKey(write_epoch=int(epoch), incarnation=incarnation, number=int(number))


def journal_key(incarnation: str, sequence: int, slot: int) -> str:
    _check_slot(slot)
    return f"{sequence_prefix(incarnation, sequence)}{slot:010d}"


def incarnation_prefix(incarnation: str) -> str:
    """Return the folder of all sequences of a writer."""
    _check_incarnation(incarnation)
    return f"{JOURNAL_PREFIX}{incarnation}/"


def sequence_prefix(incarnation: str, sequence: int) -> str:
    """Return the folder of a sequence's files."""
    _check_number("sequence", sequence)
    return f"{incarnation_prefix(incarnation)}{sequence:010d}/"


def parse_journal_key(key: str) -> JournalKey:
    match = _JOURNAL.fullmatch(key)
    if match is None:
        raise InvalidKey(f"{key!r} is not the key of a journal's file", help="journal/<incarnation>/<sequence>/<slot>")
    incarnation, sequence, slot = match.groups()
    _check_slot(int(slot))
    return JournalKey(incarnation, int(sequence), int(slot))


def shuffle_key(job: str, incarnation: str, number: int) -> str:
    _check_job(job)
    _check_incarnation(incarnation)
    _check_number("number", number)
    return f"{SHUFFLE_PREFIX}{job}/{_prefix(incarnation, number)}/{incarnation}-{number:010d}"


def shuffle_heartbeat_key(job: str) -> str:
    _check_job(job)
    return f"{SHUFFLE_PREFIX}{job}/heartbeat"


def shuffle_nodes_prefix(job: str) -> str:
    _check_job(job)
    return f"{SHUFFLE_PREFIX}{job}/nodes/"


def parse_shuffle_node_key(key: str) -> NodeKey:
    match = _NODE.fullmatch(key)
    try:
        if match is not None:
            zone, address = (bytes.fromhex(text).decode() for text in match.groups()[2:])
            return NodeKey(match[1], match[2], zone, address)
    except ValueError:
        pass
    raise InvalidKey(f"{key!r} is not the key of a node", help="shuffle/<job>/nodes/<name>.<zone>.<address>")


def shuffle_usage_prefix(job: str) -> str:
    _check_job(job)
    return f"{SHUFFLE_PREFIX}{job}/usage/"


def shuffle_usage_key(job: str, name: str) -> str:
    return check_key(f"{shuffle_usage_prefix(job)}{name}")


def parse_shuffle_key(key: str) -> ShuffleKey:
    match = _SHUFFLE.fullmatch(key)
    if match is None:
        raise InvalidKey(f"{key!r} is not the key of a batch", help="shuffle/<job>/<prefix>/<incarnation>-<n>")
    job, prefix, incarnation, number = match.groups()
    if prefix != _prefix(incarnation, int(number)):
        raise InvalidKey(f"{key!r} has the wrong prefix", help=f"It should be {_prefix(incarnation, int(number))}.")
    return ShuffleKey(job, incarnation, int(number))


def discovery_key(incarnation: str) -> str:
    _check_incarnation(incarnation)
    return f"{DISCOVERY_PREFIX}{incarnation}"


def producer_ids_key(block: int) -> str:
    _check_number("block", block)
    return f"{PRODUCER_IDS_PREFIX}{block:010d}"


def _prefix(incarnation: str, number: int) -> str:
    return f"{crc32(f'{incarnation}-{number}'.encode()) % PREFIX_COUNT:x}"


def _check_incarnation(incarnation: str) -> None:
    if _INCARNATION.fullmatch(incarnation) is None:
        raise InvalidKey(f"incarnation {incarnation!r} cannot be part of a key", help="1 to 64 of A-Z a-z 0-9 _ -")


def _check_job(job: str) -> None:
    if _INCARNATION.fullmatch(job) is None:
        raise InvalidKey(f"job {job!r} cannot be part of a key", help="1 to 64 of A-Z a-z 0-9 _ -")


def _check_slot(slot: int) -> None:
    if not 0 <= slot < SLOTS_PER_SEQUENCE_MAX:
        raise InvalidKey(f"a sequence has no slot {slot}", help=f"0 to {SLOTS_PER_SEQUENCE_MAX - 1}")


def _check_number(what: str, number: int) -> None:
    if not 0 <= number <= NUMBER_MAX:
        raise InvalidKey(f"{what} {number} cannot be part of a key", help=f"0 to {NUMBER_MAX}")
