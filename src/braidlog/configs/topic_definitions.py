"""Every topic config of Kafka 4.2, and Braidlog's own, as data.

Some have no effect here, because there are no local segments, no replicas and no tiers. They are accepted, kept and
reported, so that tools that set them go on working. Their documentation says so.
"""

from braidlog.configs.definition import INT_MAX, LONG_MAX, ConfigDefinition, ConfigType, Synonym, by_name

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
TOPIC_TYPE = "braidlog.topic.type"
CLASSIC, LIGHTNING = "classic", "lightning"

_KEPT = "Kept for tools that set it; object storage has no use for it."


def _gzip_level(value: int) -> str | None:
    return "Value must be between 1 and 9 or equal to -1" if value == 0 else None


TOPIC_CONFIGS = by_name(
    ConfigDefinition(
        TOPIC_TYPE,
        ConfigType.STRING,
        CLASSIC,
        "How writes are acknowledged. classic: after the data is stored and has its offsets. lightning: as soon as it "
        "is stored, and the offsets follow; transactions are refused.",
        one_of=(CLASSIC, LIGHTNING),
        synonyms=(Synonym(TOPIC_TYPE),),
    ),
    ConfigDefinition(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "What happens to old records: delete removes them by age and size, compact keeps the newest per key, "
        "both do both, and an empty list keeps everything.",
        one_of=("compact", "delete"),
        synonyms=(Synonym("log.cleanup.policy"),),
    ),
    ConfigDefinition(
        "compression.gzip.level",
        ConfigType.INT,
        "-1",
        "Level for gzip where compression.type is gzip; -1 is the library's own choice.",
        at_least=-1,
        at_most=9,
        check=_gzip_level,
        synonyms=(Synonym("compression.gzip.level"),),
    ),
    ConfigDefinition(
        "compression.lz4.level",
        ConfigType.INT,
        "9",
        "Level for lz4 where compression.type is lz4; 9 is the fast compressor, all others the thorough one.",
        at_least=1,
        at_most=17,
        synonyms=(Synonym("compression.lz4.level"),),
    ),
    ConfigDefinition(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "Codec that stored batches should have; producer keeps what the producer chose.",
        one_of=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=(Synonym("compression.type"),),
    ),
    ConfigDefinition(
        "compression.zstd.level",
        ConfigType.INT,
        "3",
        "Level for zstd where compression.type is zstd.",
        at_least=-131072,
        at_most=22,
        synonyms=(Synonym("compression.zstd.level"),),
    ),
    ConfigDefinition(
        "delete.retention.ms",
        ConfigType.LONG,
        "86400000",
        "How long compaction keeps a tombstone, so that slow readers still see the deletion.",
        at_least=0,
        synonyms=(Synonym("log.cleaner.delete.retention.ms"),),
    ),
    ConfigDefinition(
        "file.delete.delay.ms",
        ConfigType.LONG,
        "60000",
        _KEPT,
        at_least=0,
        synonyms=(Synonym("log.segment.delete.delay.ms"),),
    ),
    ConfigDefinition(
        "flush.messages",
        ConfigType.LONG,
        str(LONG_MAX),
        f"{_KEPT} An acknowledged record is durable already.",
        at_least=1,
        synonyms=(Synonym("log.flush.interval.messages"),),
    ),
    ConfigDefinition(
        "flush.ms",
        ConfigType.LONG,
        str(LONG_MAX),
        f"{_KEPT} An acknowledged record is durable already.",
        at_least=0,
        synonyms=(Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    ),
    ConfigDefinition("follower.replication.throttled.replicas", ConfigType.LIST, "", _KEPT),
    ConfigDefinition(
        "index.interval.bytes",
        ConfigType.INT,
        "4096",
        _KEPT,
        at_least=0,
        synonyms=(Synonym("log.index.interval.bytes"),),
    ),
    ConfigDefinition("leader.replication.throttled.replicas", ConfigType.LIST, "", _KEPT),
    ConfigDefinition(
        "local.retention.bytes",
        ConfigType.LONG,
        "-2",
        f"{_KEPT} Nothing is local.",
        at_least=-2,
        synonyms=(Synonym("log.local.retention.bytes"),),
    ),
    ConfigDefinition(
        "local.retention.ms",
        ConfigType.LONG,
        "-2",
        f"{_KEPT} Nothing is local.",
        at_least=-2,
        synonyms=(Synonym("log.local.retention.ms"),),
    ),
    ConfigDefinition(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        str(LONG_MAX),
        "The longest a record may wait before it can be compacted.",
        at_least=1,
        synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),),
    ),
    ConfigDefinition(
        "max.message.bytes",
        ConfigType.INT,
        "1048588",
        "The largest record batch that is accepted, after compression.",
        at_least=0,
        synonyms=(Synonym("message.max.bytes"),),
    ),
    ConfigDefinition(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        str(HOUR_MS),
        "How far a record's timestamp may lie ahead of the agent's clock. Not used with LogAppendTime.",
        at_least=0,
        synonyms=(Synonym("log.message.timestamp.after.max.ms"),),
    ),
    ConfigDefinition(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        str(LONG_MAX),
        "How far a record's timestamp may lie behind the agent's clock. Not used with LogAppendTime.",
        at_least=0,
        synonyms=(Synonym("log.message.timestamp.before.max.ms"),),
    ),
    ConfigDefinition(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "Whose time records carry: the producer's (CreateTime) or that of their arrival (LogAppendTime).",
        one_of=("CreateTime", "LogAppendTime"),
        synonyms=(Synonym("log.message.timestamp.type"),),
    ),
    ConfigDefinition(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        "The share of a log that must be uncompacted before compaction is worth its cost.",
        at_least=0,
        at_most=1,
        synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),),
    ),
    ConfigDefinition(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        "0",
        "The shortest time for which a record is safe from compaction.",
        at_least=0,
        synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),),
    ),
    ConfigDefinition(
        "min.insync.replicas",
        ConfigType.INT,
        "1",
        "Kept for tools that set it. How many copies there are is the object store's matter.",
        at_least=1,
        synonyms=(Synonym("min.insync.replicas"),),
    ),
    ConfigDefinition("preallocate", ConfigType.BOOLEAN, "false", _KEPT, synonyms=(Synonym("log.preallocate"),)),
    ConfigDefinition("remote.log.copy.disable", ConfigType.BOOLEAN, "false", f"{_KEPT} There are no tiers."),
    ConfigDefinition("remote.log.delete.on.disable", ConfigType.BOOLEAN, "false", f"{_KEPT} There are no tiers."),
    ConfigDefinition("remote.storage.enable", ConfigType.BOOLEAN, "false", f"{_KEPT} There are no tiers."),
    ConfigDefinition(
        "retention.bytes",
        ConfigType.LONG,
        "-1",
        "Bytes that a partition may hold before its oldest records go; -1 sets no limit.",
        synonyms=(Synonym("log.retention.bytes"),),
    ),
    ConfigDefinition(
        "retention.ms",
        ConfigType.LONG,
        str(168 * HOUR_MS),
        "How long records are kept where cleanup.policy has delete; -1 keeps them for ever.",
        at_least=-1,
        synonyms=(
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
    ),
    ConfigDefinition(
        "segment.bytes",
        ConfigType.INT,
        str(2**30),
        "Bytes that compaction and retention treat as one piece.",
        at_least=2**20,
        at_most=INT_MAX,
        synonyms=(Synonym("log.segment.bytes"),),
    ),
    ConfigDefinition(
        "segment.index.bytes",
        ConfigType.INT,
        str(10 * 2**20),
        _KEPT,
        at_least=4,
        synonyms=(Synonym("log.index.size.max.bytes"),),
    ),
    ConfigDefinition(
        "segment.jitter.ms",
        ConfigType.LONG,
        "0",
        _KEPT,
        at_least=0,
        synonyms=(Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    ),
    ConfigDefinition(
        "segment.ms",
        ConfigType.LONG,
        str(168 * HOUR_MS),
        "The age at which a piece is closed, so that retention and compaction may touch it.",
        at_least=1,
        synonyms=(Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    ),
    ConfigDefinition(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "false",
        "Kept for tools that set it. Partitions have no leaders.",
        synonyms=(Synonym("unclean.leader.election.enable"),),
    ),
)
