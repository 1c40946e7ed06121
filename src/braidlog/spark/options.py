"""The options of `format("braidlog")`: those of Spark's Kafka source and sink, and where Braidlog is."""

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

CONTROL_DEFAULT = "127.0.0.1:9190"
TASK_BYTES_DEFAULT = 64 * 1024 * 1024
OBJECT_BYTES_DEFAULT = 32 * 1024 * 1024
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
LATEST_JSON, EARLIEST_JSON = -1, -2
"""What stands for the two ends in JSON, as in Spark's Kafka source."""

_NAMES = (
    "control",
    "braidlog.control",
    "store",
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
    "maxBytesPerTask",
    "failOnDataLoss",
    "includeHeaders",
    "isolation.level",
    "kafka.isolation.level",
    "topic",
    "compression.type",
    "kafka.compression.type",
    "objectBytes",
    "writerId",
    "batchId",
    "checkpointLocation",
    "queryName",
    "path",
)
_KNOWN = {name.lower(): name for name in _NAMES}
_IGNORED = (
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
    "maxrecordsperpartition",
)
"""Of Spark's Kafka source: they are about Kafka's client, and there is none here."""
_TRUTH = {"true": True, "false": False}


class End(Enum):
    """An end of the log, whatever its offset is."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record with this timestamp or a later one."""

    timestamp_ms: int


Position: TypeAlias = End | AtTime | int
"""Where in one partition."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Where in each partition: the same for all, or by topic and partition."""

    everywhere: Position | None = None
    by_partition: Mapping[str, Mapping[int, Position]] | None = None
    lenient: bool = False
    """Where no record is late enough, the end is meant."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which topics are read: exactly one of the three."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] | None = None

    @property
    def may_be_empty(self) -> bool:
        return bool(self.pattern)


@dataclass(frozen=True, slots=True)
class Place:
    """Where Braidlog is."""

    control: str
    store_url: str
    """Empty: the control plane says where."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    place: Place
    selection: Selection
    starting: Positions
    ending: Positions
    offsets_per_trigger_max: int
    """0: no limit."""
    offsets_per_trigger_min: int
    trigger_delay_s_max: float
    partitions_min: int
    task_bytes_max: int
    fail_on_data_loss: bool
    read_committed: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    place: Place
    topic: str
    """Empty: the column `topic` says which."""
    compression: str
    """Empty: as the topic says."""
    object_bytes: int
    writer_id: str
    batch_id: int
    """With a writer id: a batch that was written before is not written again."""


def includes_headers(options: Mapping[str, str]) -> bool:
    return _truth(options, "includeHeaders", default=False)


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    _check_names(options)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name.lower() in _lowered(options):
                raise InvalidSetting(
                    f"{name} is for batches: a stream has no end", help="trigger(availableNow=True) ends by itself."
                )
    return ReadOptions(
        place=_place(options),
        selection=_selection(options),
        starting=_positions(options, "starting", End.LATEST if streaming else End.EARLIEST, refused=None),
        ending=_positions(options, "ending", End.LATEST, refused=End.EARLIEST),
        offsets_per_trigger_max=_count(options, "maxOffsetsPerTrigger", 0),
        offsets_per_trigger_min=_count(options, "minOffsetsPerTrigger", 0),
        trigger_delay_s_max=_duration_s(options, "maxTriggerDelay", 15 * 60.0),
        partitions_min=_count(options, "minPartitions", 0),
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
            "writerId and batchId belong together", help="A job's own name, and a number that grows from run to run."
        )
    return WriteOptions(
        place=_place(options),
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
    """A misspelt option would silently do nothing. What Spark itself adds looks like none of ours."""
    for name in _lowered(options):
        if name in _KNOWN or name in _IGNORED or name.startswith("kafka."):
            continue
        similar = difflib.get_close_matches(name, list(_KNOWN), n=1, cutoff=0.85)
        if similar:
            raise InvalidSetting(f"unknown option {name!r}", help=f"Did you mean {_KNOWN[similar[0]]}?")


def _place(options: Mapping[str, str]) -> Place:
    control = _text(options, "braidlog.control") or _text(options, "control")
    store = _text(options, "braidlog.store") or _text(options, "store")
    return Place(control or os.environ.get("BRAIDLOG_CONTROL", "") or CONTROL_DEFAULT, store)


def _truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = _text(options, name).lower()
    if text and text not in _TRUTH:
        raise InvalidSetting(f"{name} is {text!r}", help="true or false")
    return _TRUTH.get(text, default)


def _count(options: Mapping[str, str], name: str, default: int, *, at_least: int = 1) -> int:
    text = _text(options, name)
    if not text:
        return default
    if not text.isdecimal() or int(text) < at_least:
        raise InvalidSetting(f"{name} is {text!r}", help=f"A whole number from {at_least} on.")
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
        raise InvalidSetting(f"isolation.level {level!r} is unknown", help="read_committed or read_uncommitted")
    return level == "read_committed"


def _selection(options: Mapping[str, str]) -> Selection:
    given = {name: _text(options, name) for name in ("subscribe", "subscribePattern", "assign")}
    chosen = [name for name, text in given.items() if text]
    if len(chosen) != 1:
        raise InvalidSetting(
            f"{len(chosen)} of the options subscribe, subscribePattern and assign are given",
            help='Give one: option("subscribe", "topic1,topic2") reads whole topics.',
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
            raise InvalidSetting(f"assign: {topic} has no list of partitions", help='{"topic": [0, 1]}')
        assigned[topic] = tuple(sorted(set(partitions)))
    return Selection(assigned=assigned)


def _positions(options: Mapping[str, str], side: str, default: End, *, refused: End | None) -> Positions:
    """By timestamp comes first, as in Spark's Kafka source: a job may have a general rule and an exception to it."""
    lenient = _text(options, "startingOffsetsByTimestampStrategy").lower() == "latest" or side == "ending"
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
            raise InvalidSetting(f"{name} is {text!r}", help="A read that ends at the earliest offset has nothing.")
        return Positions(everywhere=end)
    return Positions(by_partition=_by_partition(name, text, lambda value: _offset(name, value, refused)))


def _by_partition(name: str, text: str, parse: Any) -> dict[str, dict[int, Position]]:
    found: dict[str, dict[int, Position]] = {}
    for topic, partitions in _json_object(name, text).items():
        if not isinstance(partitions, dict) or not all(number.isdecimal() for number in partitions):
            raise InvalidSetting(f"{name}: {topic} has no partitions", help='{"topic": {"0": 23, "1": -2}}')
        found[topic] = {int(number): parse(value) for number, value in partitions.items()}
    return found


def _offset(name: str, value: object, refused: End | None) -> Position:
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST_JSON:
        raise InvalidSetting(f"{name}: {value!r} is no offset", help="A number from 0 on, -1 latest, -2 earliest.")
    if value == LATEST_JSON:
        return End.LATEST
    if value == EARLIEST_JSON:
        if refused is End.EARLIEST:
            raise InvalidSetting(f"{name}: -2 is the earliest offset", help="Nothing ends there.")
        return End.EARLIEST
    return value


def _milliseconds(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidSetting(f"{name}: {text!r} is no time", help="Milliseconds since 1970-01-01 UTC.")
    return int(text)


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidSetting(f"{name} is not JSON: {error}") from error
    if not isinstance(found, dict) or not found:
        raise InvalidSetting(f"{name} is no JSON object", help='{"topic": {"0": 23, "1": -2}}')
    return found
