"""All hard limits in one place. What operators may want to change is in `settings`; these have a reason to be fixed."""

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's `socket.request.max.bytes`: a longer length prefix is garbage or an attack."""

OBJECT_BYTES_MAX = 128 * 1024 * 1024
EXTENTS_PER_OBJECT_MAX = 65_536
BATCHES_PER_OBJECT_MAX = 262_144
FOOTER_BYTES_MAX = 32 * 1024 * 1024

RECORDS_PER_BATCH_MAX = 16_777_216
PARTITIONS_PER_TOPIC_MAX = 100_000

RPC_MESSAGE_BYTES_MAX = 256 * 1024 * 1024
RPC_CALLS_IN_FLIGHT_MAX = 10_000

CONNECTIONS_MAX = 10_000
"""Client connections of one agent."""
EARLY_UPLOADS_IN_FLIGHT_MAX = 4
"""With so many uploads under way, another one that size or time do not ask for would not be early any more."""

BATCH_DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""What a compressed batch may swell to where the agent must look inside it."""

PRODUCER_IDS_OF_AGENTS_FROM = 2**62
"""From here on ids of producers are taken from blocks that agents claim in the bucket; below it the control plane gives
them out. So neither needs to ask the other."""
