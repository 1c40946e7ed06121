"""The agents' snapshot, from which an agent starts during an outage.

It holds what an agent must know about the cluster.

Any agent writes it if its own view is newer and differs. Updates are conditional, so of two writers one wins, and an
older snapshot never replaces a newer one.

The object, persisted, with numbers in big-endian order: magic (8 bytes), format version u16, reserved u16, CRC32C of
the body u32, length of the body u32, and the body: the msgpack array that `AgentSnapshot` defines, compressed by zlib.
"""

import struct
import zlib
from dataclasses import dataclass

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from braidlog.agent.cluster.view import ClusterView
from braidlog.control.interface import AgentInfo, ClientQuota, FeedPosition, ScramCredential, Snapshot, TopicInfo
from braidlog.objects.keys import AGENT_SNAPSHOT_KEY
from braidlog.objects.store import AlreadyExists, Bytes, Conflict, NotFound, Store
from braidlog.runtime.errors import BraidError, Remedy
from braidlog.security.acls import Acl

MAGIC = b"BRAIDAGT"
FORMAT_VERSION = 1
HEADER = struct.Struct(">8sHHII")
BODY_BYTES_MAX = 64 * 1024 * 1024
"""The limit of the compressed body."""
UNPACKED_BYTES_MAX = 512 * 1024 * 1024

_HELP = f"Delete {AGENT_SNAPSHOT_KEY}: agents write a new one as soon as the control plane is back."


class CorruptSnapshot(BraidError):
    """The agents' snapshot is damaged, or is something else."""

    remedy = Remedy.GIVE_UP


class SnapshotTooLarge(BraidError):
    """There are more topics than a snapshot has room for."""

    remedy = Remedy.GIVE_UP


class AgentSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The content of the snapshot. Persisted: fields are only added at the end."""

    position: FeedPosition
    """The position in the change feed at which this was true. A snapshot with a later one is newer."""
    taken_ms: int
    cluster_id: str
    topics: list[TopicInfo]
    agents: list[AgentInfo]
    cluster_configs: dict[str, str]
    client_quotas: list[ClientQuota]
    acls: list[Acl] | None = None
    """None in snapshots of releases without ACLs: what was never known is denied."""
    credentials: list[ScramCredential] = msgspec.field(default_factory=list)

    def as_known(self) -> Snapshot:
        """The snapshot in the form of the control plane's own.

        It has no bounds, because nothing can be read. Its position is invalid, so the feed will tell the follower to
        load everything again.
        """
        return Snapshot(
            FeedPosition(-1, -1),
            self.cluster_id,
            self.topics,
            [],
            self.agents,
            self.cluster_configs,
            client_quotas=self.client_quotas,
            acls=self.acls,
            credentials=self.credentials,
        )

    def says_the_same(self, other: "AgentSnapshot") -> bool:
        """Whether two snapshots differ only in time and position."""
        return msgspec.structs.replace(self, position=other.position, taken_ms=other.taken_ms) == other


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AgentSnapshot)


def snapshot_of(view: ClusterView, taken_ms: int) -> AgentSnapshot:
    return AgentSnapshot(
        view.position,
        taken_ms,
        view.cluster_id,
        [topic.info for _, topic in sorted(view.topics_by_id.items())],
        [agent for _, agent in sorted(view.agents.items())],
        view.cluster_configs,
        view.quotas.quotas,
        list(view.acls.acls) if view.acls.is_known else None,
        list(view.credentials.values()),
    )


def encode_snapshot(snapshot: AgentSnapshot) -> bytes:
    body = zlib.compress(_encoder.encode(snapshot), 1)
    if len(body) > BODY_BYTES_MAX:
        raise SnapshotTooLarge(
            f"the agents' snapshot has {len(body)} bytes", help=f"At most {BODY_BYTES_MAX}: use fewer topics."
        )
    return HEADER.pack(MAGIC, FORMAT_VERSION, 0, crc32c(body), len(body)) + body


def decode_snapshot(data: Bytes) -> AgentSnapshot:
    if len(data) < HEADER.size:
        raise CorruptSnapshot(f"the agents' snapshot has only {len(data)} bytes", help=_HELP)
    magic, version, _, checksum, length = HEADER.unpack_from(data)
    body = memoryview(data)[HEADER.size :]
    if magic != MAGIC:
        raise CorruptSnapshot("the agents' snapshot does not begin with the magic number", help=_HELP)
    if version != FORMAT_VERSION:
        raise CorruptSnapshot(
            f"the agents' snapshot has format version {version}, and this release reads {FORMAT_VERSION}",
            help="Run the release that wrote it, or wait for the control plane.",
        )
    if len(body) != length or length > BODY_BYTES_MAX:
        raise CorruptSnapshot(f"the agents' snapshot should have {length} bytes, and has {len(body)}", help=_HELP)
    if crc32c(body) != checksum:
        raise CorruptSnapshot("the agents' snapshot is damaged: its checksum is wrong", help=_HELP)
    try:
        unpacking = zlib.decompressobj()
        unpacked = unpacking.decompress(body, UNPACKED_BYTES_MAX)
        if unpacking.unconsumed_tail or not unpacking.eof:
            raise CorruptSnapshot("the agents' snapshot is too large, or ends early", help=_HELP)
        return _decoder.decode(unpacked)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise CorruptSnapshot(f"the agents' snapshot cannot be read: {error}", help=_HELP) from error


@dataclass(frozen=True, slots=True)
class _Stored:
    snapshot: AgentSnapshot
    etag: str


class SnapshotKeeper:
    """Reads the snapshot and keeps it up to date."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: _Stored | None = None
        self.writes = 0

    async def read(self) -> AgentSnapshot:
        """Read the snapshot.

        Raises `NotFound` if no agent has written one yet, and `CorruptSnapshot`.
        """
        blob = await self._store.get(AGENT_SNAPSHOT_KEY)
        snapshot = decode_snapshot(blob.data)
        if blob.etag is not None:
            self._seen = _Stored(snapshot, blob.etag)
        return snapshot

    async def offer(self, snapshot: AgentSnapshot) -> bool:
        """Write a snapshot if it is newer than the stored one and differs.

        Returns whether it was written.
        """
        if self._seen is not None and snapshot.says_the_same(self._seen.snapshot):
            return False
        data = encode_snapshot(snapshot)
        try:
            stored = await self._current()
            if stored is None:
                etag = await self._store.put(AGENT_SNAPSHOT_KEY, data)
            elif not _is_newer(snapshot, stored.snapshot) or snapshot.says_the_same(stored.snapshot):
                return False
            elif stored.etag:
                etag = await self._store.update(AGENT_SNAPSHOT_KEY, data, etag=stored.etag)
            else:
                etag = await self._store.put(AGENT_SNAPSHOT_KEY, data, overwrite=True)
        except (AlreadyExists, Conflict):
            # Another agent was quicker. Look at its snapshot the next time.
            self._seen = None
            return False
        self._seen = _Stored(snapshot, etag) if etag is not None else None
        self.writes += 1
        return True

    async def _current(self) -> _Stored | None:
        """The stored snapshot. One that cannot be read counts as older than any other."""
        try:
            blob = await self._store.get(AGENT_SNAPSHOT_KEY)
        except NotFound:
            return None
        try:
            found = decode_snapshot(blob.data)
        except CorruptSnapshot:
            found = AgentSnapshot(FeedPosition(-1, -1), 0, "", [], [], {}, [])
        stored = _Stored(found, blob.etag or "")
        self._seen = stored if blob.etag is not None else None
        return stored


def _is_newer(snapshot: AgentSnapshot, other: AgentSnapshot) -> bool:
    if snapshot.cluster_id != other.cluster_id and other.cluster_id:
        # Another metadata store uses the same bucket now: its agents are right.
        return snapshot.taken_ms > other.taken_ms
    mine, theirs = snapshot.position, other.position
    return (mine.fencing_epoch, mine.revision) > (theirs.fencing_epoch, theirs.revision)
