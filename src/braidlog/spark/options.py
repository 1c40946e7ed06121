"""The options of `format("braidlog")`.

They are those of Spark's Kafka source and sink, and the addresses of Braidlog.
"""

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.quantities import parse_seconds
from braidlog.spark.kafka_options import PREFIX, check_kafka_options

CONTROL_DEFAULT = "127.0.0.1:9190"
TASK_BYTES_DEFAULT = 64 * 1024 * 1024
OBJECT_BYTES_DEFAULT = 32 * 1024 * 1024
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
LATEST_JSON, EARLIEST_JSON = -1, -2
"""The numbers that mean the ends of the log in JSON, as in Spark's Kafka source."""

_NAMES = (
    "braidlog.control",
    "braidlog.store",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerTask",
    "failOnDataLoss",
    "includeHeaders",
    "isolation.level",
    "topic",
    "compression.type",
    "objectBytes",
    "writerId",
    "batchId",
    "checkpointLocation",
    "queryName",
    "path",
)
_KNOWN = {name.lower(): name for name in _NAMES}
_FORMER = {"control": "braidlog.control", "store": "braidlog.store"}
_TRUTH = {"true": True, "false": False}


class End(Enum):
    """One of the two ends of the log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The position of the first record with this timestamp or a later one."""

    timestamp_ms: int


Position: TypeAlias = End | AtTime | int
"""A position in one partition."""


@dataclass(frozen=True, slots=True)
class Positions:
    """A position in each partition: the same for all, or by topic and partition."""

    everywhere: Position | None = None
    by_partition: Mapping[str, Mapping[int, Position]] | None = None
    lenient: bool = False
    """Whether a timestamp after the last record means the end, instead of an error."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects the topics to read, in exactly one of three ways."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] | None = None

    @property
    def may_be_empty(self) -> bool:
        return bool(self.pattern)


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The addresses of a Braidlog."""

    control: str
    """Empty: ask an agent."""
    store_url: str
    """Empty: ask the control plane."""
    bootstrap_servers: str = ""
    """Agents, if the control plane is not given."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    address: ClusterAddress
    selection: Selection
    starting: Positions
    ending: Positions
    offsets_per_trigger_max: int
    """0: no limit."""
    offsets_per_trigger_min: int
    trigger_delay_s_max: float
    partitions_min: int
    task_records_max: int
    """0: no limit."""
    task_bytes_max: int
    fail_on_data_loss: bool
    read_committed: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    address: ClusterAddress
    topic: str
    """Empty: the column `topic` names it."""
    compression: str
    """Empty: as the topic is configured."""
    object_bytes: int
    writer_id: str
    batch_id: int
    """A batch with the same writer id and batch id as an earlier one is not written again."""


def includes_headers(options: Mapping[str, str]) -> bool:
    return _truth(options, "includeHeaders", default=False)


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    _check_names(options)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name.lower() in _lowered(options):
                raise InvalidSetting(
                    f"{name} is for batch reads: a stream has no end", help="trigger(availableNow=True) ends by itself."
                )
    return ReadOptions(
        address=_address(options),
        selection=_selection(options),
        starting=_positions(options, "starting", End.LATEST if streaming else End.EARLIEST, refused=None),
        ending=_positions(options, "ending", End.LATEST, refused=End.EARLIEST),
        offsets_per_trigger_max=_count(options, "maxOffsetsPerTrigger", 0),
        offsets_per_trigger_min=_count(options, "minOffsetsPerTrigger", 0),
        trigger_delay_s_max=_duration_s(options, "maxTriggerDelay", 15 * 60.0),
        partitions_min=_count(options, "minPartitions", 0),
        task_records_max=_count(options, "maxRecordsPerPartition", 0),
        task_bytes_max=_count(options, "maxBytesPerTask", TASK_BYTES_DEFAULT),
        fail_on_data_loss=_truth(options, "failOnDataLoss", default=True),
        read_committed=_read_committed(options),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    _check_names(options)
    compression = _text(options, "compression.type") or _text(options, "kafka.compression.type")
    if compression and compression not in COMPRESSIONS:
        raise InvalidSetting(f"compression.type {compression!r} is unknown", help=f"Use {', '.join(COMPRESSIONS)}.")
    writer_id, batch = _text(options, "writerId"), _text(options, "batchId")
    if bool(writer_id) != bool(batch):
        raise InvalidSetting(
            "writerId and batchId belong together",
            help="Give both: the job's own name, and a number that grows from run to run.",
        )
    return WriteOptions(
        address=_address(options),
        topic=_text(options, "topic"),
        compression=compression,
        object_bytes=_count(options, "objectBytes", OBJECT_BYTES_DEFAULT),
        writer_id=writer_id,
        batch_id=_count(options, "batchId", 0, at_least=0) if batch else 0,
    )


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _text(options: Mapping[str, str], name: str) -> str:
    return str(_lowered(options).get(name.lower(), "")).strip()


def _check_names(options: Mapping[str, str]) -> None:
    """Refuse misspelt options, which would silently do nothing.

    Options that Spark adds resemble none of ours.
    """
    check_kafka_options(_lowered(options))
    for name in _lowered(options):
        if name in _KNOWN or name.startswith(PREFIX):
            continue
        if name in _FORMER:
            raise InvalidSetting(f"unknown option {name!r}", help=f"It is called {_FORMER[name]}.")
        similar = difflib.get_close_matches(name, list(_KNOWN), n=1, cutoff=0.85)
        if similar:
            raise InvalidSetting(f"unknown option {name!r}", help=f"Did you mean {_KNOWN[similar[0]]}?")


def _address(options: Mapping[str, str]) -> ClusterAddress:
    """Take the addresses from the options, else from the environment."""
    control, store = _text(options, "braidlog.control"), _text(options, "braidlog.store")
    agents = _text(options, "kafka.bootstrap.servers")
    if agents and not control:
        return ClusterAddress("", store, agents)
    return ClusterAddress(control or os.environ.get("BRAIDLOG_CONTROL", "") or CONTROL_DEFAULT, store)


def _truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = _text(options, name).lower()
    if text and text not in _TRUTH:
        raise InvalidSetting(f"{name} is {text!r}", help="Use true or false.")
    return _TRUTH.get(text, default)


def _count(options: Mapping[str, str], name: str, default: int, *, at_least: int = 1) -> int:
    text = _text(options, name)
    if not text:
        return default
    if not text.isdecimal() or int(text) < at_least:
        raise InvalidSetting(f"{name} is {text!r}", help=f"Use an integer of at least {at_least}.")
    return int(text)


def _duration_s(options: Mapping[str, str], name: str, default: float) -> float:
    text = _text(options, name)
    if not text:
        return default
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise InvalidSetting(f"{name} is {text!r}: {error}", help="For example 30s or 15m.") from error


def _read_committed(options: Mapping[str, str]) -> bool:
    level = _text(options, "isolation.level") or _text(options, "kafka.isolation.level") or "read_uncommitted"
    if level not in {"read_committed", "read_uncommitted"}:
        raise InvalidSetting(f"isolation.level {level!r} is unknown", help="Use read_committed or read_uncommitted.")
    return level == "read_committed"


def _selection(options: Mapping[str, str]) -> Selection:
    given = {name: _text(options, name) for name in ("subscribe", "subscribePattern", "assign")}
    chosen = [name for name, text in given.items() if text]
    if len(chosen) != 1:
        raise InvalidSetting(
            f"{len(chosen)} of the options subscribe, subscribePattern and assign are given",
            help='Give one: option("subscribe", "topic1,topic2") reads whole topics. In SQL: CREATE TEMPORARY VIEW name'
            " USING braidlog OPTIONS (subscribe 'topic1,topic2').",
        )
    if chosen[0] == "subscribe":
        names = tuple(sorted({name.strip() for name in given["subscribe"].split(",") if name.strip()}))
        return Selection(names=names)
    if chosen[0] == "subscribePattern":
        try:
            re.compile(given["subscribePattern"])
        except re.error as error:
            raise InvalidSetting(f"subscribePattern cannot be read: {error}") from error
        return Selection(pattern=given["subscribePattern"])
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in _json_object("assign", given["assign"]).items():
        if not isinstance(partitions, list) or not all(isinstance(each, int) for each in partitions):
            raise InvalidSetting(f"assign: {topic} has no list of partitions", help='For example {"topic": [0, 1]}')
        assigned[topic] = tuple(sorted(set(partitions)))
    return Selection(assigned=assigned)


def _positions(options: Mapping[str, str], side: str, default: End, *, refused: End | None) -> Positions:
    """Read the positions. Timestamps win over offsets, as in Spark's Kafka source."""
    strategy = _text(options, "startingOffsetsByTimestampStrategy").lower() or "error"
    if strategy not in ("error", "latest"):
        raise InvalidSetting(f"startingOffsetsByTimestampStrategy is {strategy!r}", help="Use error or latest.")
    lenient = strategy == "latest" or side == "ending"
    if text := _text(options, f"{side}Timestamp"):
        return Positions(everywhere=AtTime(_milliseconds(f"{side}Timestamp", text)), lenient=lenient)
    name = f"{side}OffsetsByTimestamp"
    if text := _text(options, name):
        return Positions(
            by_partition=_by_partition(name, text, lambda value: AtTime(_milliseconds(name, str(value)))),
            lenient=lenient,
        )
    name = f"{side}Offsets"
    text = _text(options, name)
    if not text:
        return Positions(everywhere=default)
    if text.lower() in {End.EARLIEST.value, End.LATEST.value}:
        end = End(text.lower())
        if end is refused:
            raise InvalidSetting(f"{name} is {text!r}", help="A read that ends at the earliest offset is empty.")
        return Positions(everywhere=end)
    return Positions(by_partition=_by_partition(name, text, lambda value: _offset(name, value, refused)))


def _by_partition(name: str, text: str, parse: Any) -> dict[str, dict[int, Position]]:
    found: dict[str, dict[int, Position]] = {}
    for topic, partitions in _json_object(name, text).items():
        if not isinstance(partitions, dict) or not all(number.isdecimal() for number in partitions):
            raise InvalidSetting(f"{name}: {topic} has no partitions", help='For example {"topic": {"0": 23, "1": -2}}')
        found[topic] = {int(number): parse(value) for number, value in partitions.items()}
    return found


def _offset(name: str, value: object, refused: End | None) -> Position:
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST_JSON:
        raise InvalidSetting(
            f"{name}: {value!r} is no offset", help="Use an offset from 0 on, -1 for latest or -2 for earliest."
        )
    if value == LATEST_JSON:
        return End.LATEST
    if value == EARLIEST_JSON:
        if refused is End.EARLIEST:
            raise InvalidSetting(f"{name}: -2 is the earliest offset", help="A read that ends there is empty.")
        return End.EARLIEST
    return value


def _milliseconds(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidSetting(f"{name}: {text!r} is no time", help="Use milliseconds since 1970-01-01 UTC.")
    return int(text)


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidSetting(f"{name} is not JSON: {error}") from error
    if not isinstance(found, dict) or not found:
        raise InvalidSetting(f"{name} is no JSON object", help='For example {"topic": {"0": 23, "1": -2}}')
    return found
