"""All hard limits in one place.

What operators may want to change is in `settings`; these have a reason to be fixed.
"""

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's `socket.request.max.bytes`: a longer length prefix is garbage or an attack."""

OBJECT_BYTES_MAX = 128 * 1024 * 1024
EXTENTS_PER_OBJECT_MAX = 65_536
BATCHES_PER_OBJECT_MAX = 262_144
FOOTER_BYTES_MAX = 32 * 1024 * 1024

RECORDS_PER_BATCH_MAX = 16_777_216
PARTITIONS_PER_TOPIC_MAX = 100_000
PARTITIONS_PER_REQUEST_MAX = 10_000
"""New partitions in one request. Kafka's controller has the same limit; a larger topic is created in steps."""

RPC_MESSAGE_BYTES_MAX = 256 * 1024 * 1024
RPC_CALLS_IN_FLIGHT_MAX = 10_000
RPC_CONNECTIONS_MAX = 4096
"""To one server. Each process of a cluster has one or two."""
RPC_UNFINISHED_BYTES_MAX = 512 * 1024 * 1024
"""Partly received calls of one server, together. Past it, the connection that holds most of them is closed."""
RPC_UNSENT_BYTES_MAX = 512 * 1024 * 1024
"""Answers of one server that slow clients have not taken, together. Past it, the connection with most is closed."""

CONNECTIONS_MAX = 10_000
"""Client connections of one agent."""
EARLY_UPLOADS_IN_FLIGHT_MAX = 4
"""While this many uploads are under way, an upload before its size or time threshold would not finish early."""

BATCH_DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""The most that a compressed batch may decompress to. All readers accept this much, so no setting may allow more."""

PRODUCER_IDS_OF_AGENTS_FROM = 2**62
"""Producer ids from here on come from blocks that agents claim in the bucket. The control plane gives out those below,
so neither needs to ask the other."""
