"""Everything an operator may set. Plain data: what can be written in a file. Components are injected elsewhere.

A flag wins over the environment (`BRAIDLOG_UPLOAD_SIZE_BYTES`), which wins over the file (`braidlog.toml`), which wins
over the default. Names are Kafka's where Kafka has one; dots, dashes and underscores in them mean the same, so that
`upload.size.bytes`, `upload-size-bytes` and `[upload]` with `size_bytes` are one setting.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote, unquote

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.limits import OBJECT_BYTES_MAX, PARTITIONS_PER_TOPIC_MAX
from braidlog.runtime.quantities import Address, parse_bytes, parse_milliseconds, parse_seconds

ENVIRONMENT_PREFIX = "BRAIDLOG_"

STORE_SCHEMES = ("file", "memory", "s3", "gs", "az")
METADATA_SCHEMES = ("sqlite",)

KIB, MIB = 1024, 1024**2


def _address_or_off(value: object) -> object:
    return None if value is None or value in {"", "off"} else Address.parse(value)


def _address_auto_or_off(value: object) -> object:
    return value if value == "auto" else _address_or_off(value)


def _absolute_url(url: str, schemes: tuple[str, ...]) -> str:
    """Check the scheme, and make a relative path absolute, so that every part of a process means the same place."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ValueError(f"is not a URL: it starts with one of {', '.join(f'{known}://' for known in schemes)}")
    if scheme not in schemes:
        raise ValueError(f"has the unknown scheme {scheme!r}: use one of {', '.join(schemes)}")
    if scheme in {"file", "sqlite"}:
        path, question_mark, query = rest.partition("?")
        if url == "sqlite://":  # in memory
            return url
        if path.lstrip("/").startswith(("./", "../")):
            path = path.lstrip("/")
        elif path and not path.startswith("/"):
            raise ValueError(
                f"has a host ({path.partition('/')[0]!r}): write {scheme}:///absolute/path or {scheme}://./relative"
            )
        if not path.strip("/"):
            raise ValueError("names no path")
        if scheme == "file":  # the working directory is not written as in a URL, where % and ? have a meaning
            absolute = quote(os.path.abspath(unquote(path)))
        else:
            absolute = os.path.abspath(path)
        absolute = f"/{absolute.lstrip('/')}"  # abspath keeps two slashes at the front
        return f"{scheme}://{absolute}{question_mark}{query}"
    if scheme != "memory" and not rest.strip("/"):
        raise ValueError("names no bucket")
    return url


def _store_url(url: str) -> str:
    return _absolute_url(url, STORE_SCHEMES)


def _metadata_url(url: str) -> str:
    return _absolute_url(url, METADATA_SCHEMES)


def _plain_name(name: str) -> str:
    if len(name) > 249 or not all(character.isalnum() or character in "._-" for character in name):
        raise ValueError("may hold letters, digits, dots, dashes and underscores only")
    return name


Size = Annotated[int, BeforeValidator(parse_bytes)]
Milliseconds = Annotated[int, BeforeValidator(parse_milliseconds)]
Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(allow_inf_nan=False)]
Listen = Annotated[Address, BeforeValidator(Address.parse)]
OptionalListen = Annotated[Address | None, BeforeValidator(_address_or_off)]
CacheListen = Annotated[Literal["auto"] | Address | None, BeforeValidator(_address_auto_or_off)]
StoreUrl = Annotated[str, AfterValidator(_store_url)]
MetadataUrl = Annotated[str, AfterValidator(_metadata_url)]


class CommonSettings(BaseModel):
    """What every process of a Braidlog needs to know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, arbitrary_types_allowed=True, validate_default=True
    )

    store_url: StoreUrl = Field("file://./data/store", examples=["s3://bucket/prefix"])
    """Where all data lies. file://, memory://, s3://, gs:// or az://."""
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", examples=["info"])
    """What is logged: debug, info, warning or error, and whatever is worse."""
    log_format: Literal["auto", "human", "json"] = Field("auto", examples=["json"])
    """human, json, or auto: human on a terminal, json elsewhere."""
    sequence_age_ms: Milliseconds = Field(60_000, ge=100, le=86_400_000, examples=["60s"])
    """How long an agent fills one sequence of its journal. It acknowledges nothing in one that is twice as old, so what
    was sealed four times as long ago can be deleted, fences and all."""


class AgentSettings(CommonSettings):
    """What an agent needs to know."""

    listen: Listen = Field(Address("127.0.0.1", 9092), examples=["0.0.0.0:9092"])
    """Where Kafka clients connect. Port 0 takes any free one."""
    advertised: OptionalListen = Field(None, examples=["broker-1.example.com:9092"])
    """What clients are told to connect to; by default where the agent listens."""
    control: Listen = Field(Address("127.0.0.1", 9190), examples=["10.0.0.5:9190"])
    """Where the control plane is, for an agent that runs apart from it."""
    zone: Annotated[str, AfterValidator(_plain_name)] = Field("", examples=["us-east-1a"])
    """The zone that this agent is in. Compared with the clients' client.rack."""
    metrics_listen: OptionalListen = Field(Address("127.0.0.1", 9404), examples=["0.0.0.0:9404"])
    """Where /metrics, /healthz and /readyz are served; `off` for nowhere."""

    upload_size_bytes: Size = Field(4 * MIB, ge=4 * KIB, le=OBJECT_BYTES_MAX // 2, examples=["4MiB"])
    """A batch is uploaded when it has this many bytes; where PUTs cost nothing, at twice as many behind another one."""
    upload_interval_ms: Milliseconds = Field(250, ge=1, le=60_000, examples=["250ms"])
    """A batch is uploaded at the latest this long after its first record."""
    upload_budget_usd_month: float = Field(65.0, ge=0, allow_inf_nan=False, examples=["65"])
    """What may be spent on uploads that close before size or interval ask for it, to answer sooner."""
    store_price: Literal["auto", "s3-standard", "s3-express", "free"] = Field("auto", examples=["s3-standard"])
    """The prices that the budget is reckoned with; auto goes by the store's URL, and takes what is not AWS as free."""
    store_latency: Literal["none", "s3", "s3-express"] = Field("none", examples=["s3"])
    """Makes every request to the store take as long as it would there, to see on one machine what a cloud shows."""
    uploads_in_flight_max: int = Field(16, ge=1, le=1024, examples=["16"])
    """How many uploads run at the same time; with several shards, how many of each group of them."""
    memory_budget_bytes: Size = Field(512 * MIB, ge=16 * MIB, examples=["512MiB"])
    """Bytes of produced records held until they are acknowledged. At the limit, sockets are no longer read."""
    response_budget_bytes: Size = Field(1024 * MIB, ge=16 * MIB, examples=["1GiB"])
    """Bytes of fetched records held until they are sent. At the limit, fetches wait for clients that take theirs."""
    cache_bytes: Size = Field(256 * MIB, examples=["256MiB"])
    """Memory for what was written or read lately."""
    cache_listen: CacheListen = Field("auto", examples=["0.0.0.0:9600"])
    """Where other agents of the zone read out of it; auto: any free port of the host that listens; off: they do not."""

    shards: int = Field(0, ge=0, le=256, examples=["8"])
    """Processes that an agent consists of, each with its own port and node id. 0: one per core; for `braid up`, one."""
    upload_policy: Literal["adaptive", "per-shard", "funnel", "coordinator"] = Field("adaptive", examples=["adaptive"])
    """How shards share their uploads. All but adaptive are there to be compared with it."""

    request_timeout_ms: Milliseconds = Field(30_000, ge=100, le=3_600_000, examples=["30s"])
    """A produce request's time: two thirds for its upload, a third for sequencing. Then its producer should retry."""
    commit_timeout_ms: Milliseconds = Field(10_000, ge=100, le=3_600_000, examples=["10s"])
    """How long a call to the control plane may take."""

    ripcord: Literal["off", "on", "auto"] = Field("off", examples=["auto"])
    """on: all topics are journaled, so that writes never wait for the control plane. auto: only while it is away."""
    ripcord_after_ms: Milliseconds = Field(5_000, ge=100, le=600_000, examples=["5s"])
    """A control plane that did not answer for so long is away: what needs it is refused at once, to be tried again."""

    auto_create_topics_enable: bool = Field(True, examples=["true"])
    """Whether a topic comes into being when a client first asks for it."""

    @property
    def advertised_host(self) -> str:
        """What clients are told: the advertised host, or the one the agent listens on."""
        return self.advertised.host if self.advertised is not None else self.listen.host


class ControlPlaneSettings(CommonSettings):
    """What the control plane needs to know."""

    metadata_url: MetadataUrl = Field(
        "sqlite:///./data/metadata.db", examples=["sqlite:///var/lib/braidlog/metadata.db"]
    )
    """Where the catalog, the index, producers and groups are kept."""
    control_listen: Listen = Field(Address("127.0.0.1", 9190), examples=["0.0.0.0:9190"])
    """Where agents connect, where the control plane is a process of its own."""
    control_metrics_listen: OptionalListen = Field(Address("127.0.0.1", 9405), examples=["0.0.0.0:9405"])
    """Where the control plane's own /metrics, /healthz and /readyz are served; `off` for nowhere."""

    num_partitions: int = Field(1, ge=1, le=PARTITIONS_PER_TOPIC_MAX, examples=["6"])
    """Partitions of a topic whose creator does not say how many, until num.partitions is set on the cluster itself."""
    group_initial_rebalance_delay_ms: Milliseconds = Field(500, ge=0, le=300_000, examples=["3s"])
    """How long an empty group waits for more members before it hands out partitions."""
    group_min_session_timeout_ms: Milliseconds = Field(1_000, ge=1, le=1_800_000, examples=["6s"])
    """The shortest session.timeout.ms that a consumer may ask for."""
    group_max_session_timeout_ms: Milliseconds = Field(1_800_000, ge=1, examples=["30m"])
    """The longest session.timeout.ms that a consumer may ask for."""
    transaction_max_timeout_ms: Milliseconds = Field(900_000, ge=1, le=43_200_000, examples=["15m"])
    """The longest transaction.timeout.ms that a producer may ask for."""
    transactional_id_expiration_ms: Milliseconds = Field(604_800_000, ge=1_000, examples=["7d"])
    """A transactional id that was not used for so long is forgotten."""
    group_consumer_session_timeout_ms: Milliseconds = Field(45_000, ge=100, le=1_800_000, examples=["45s"])
    """After this without a heartbeat a member of a group with group.protocol=consumer is gone."""
    group_consumer_heartbeat_interval_ms: Milliseconds = Field(5_000, ge=10, le=600_000, examples=["5s"])
    """How often such members are asked to be heard of."""
    group_consumer_migration_policy: Literal["disabled", "upgrade", "downgrade", "bidirectional"] = Field(
        "bidirectional", examples=["bidirectional"]
    )
    """Whether groups go over from the classic to the consumer protocol, and back, while they have members."""
    write_epoch_interval_s: Seconds = Field(60.0, ge=1, le=86_400, examples=["60s"])
    """How often the write epoch grows. Objects of an epoch below the floor can never be sequenced."""
    agent_session_timeout_s: Seconds = Field(10.0, ge=1, le=3_600, examples=["10s"])
    """An agent that was not heard of for so long is no longer named to clients."""
    sweep_grace_s: Seconds = Field(3_600.0, ge=5, examples=["1h"])
    """How long an upload may take to be sequenced. Then it never will be, and what is left of it is deleted."""
    sweep_interval_s: Seconds = Field(60.0, ge=0.1, le=86_400, examples=["60s"])
    """How often objects that nothing refers to are looked for; at least once in a write epoch."""
    full_sweep_interval_s: Seconds = Field(86_400.0, ge=1, examples=["1d"])
    """How often the whole store is listed for them, because some uploads land long after they were given up."""
    retention_check_interval_s: Seconds = Field(300.0, ge=1, le=86_400, examples=["5m"])
    """How often retention is applied."""

    scan_interval_ms: Milliseconds = Field(30_000, ge=10, le=3_600_000, examples=["30s"])
    """How often journals are looked for that nobody has told of."""
    lightning_gap_ms: Milliseconds = Field(60_000, ge=10, le=86_400_000, examples=["60s"])
    """How long a journaled batch of an idempotent producer waits for those before it. Then it is appended anyway."""
    replay_files_per_s: float = Field(200.0, ge=0, allow_inf_nan=False, examples=["200"])
    """How many files that were left in journals are sequenced a second, so that new ones go first. 0: no limit."""

    job_check_interval_s: Seconds = Field(15.0, ge=0.1, le=86_400, examples=["15s"])
    """How often it is looked for what should be merged or compacted."""
    job_lease_s: Seconds = Field(30.0, ge=0.5, le=3_600, examples=["30s"])
    """A worker that was not heard of for so long has lost its job to the next one."""
    merge_size_bytes: Size = Field(64 * MIB, ge=4 * KIB, le=OBJECT_BYTES_MAX // 2, examples=["64MiB"])
    """How large objects become by merging and compaction."""
    merge_age_s: Seconds = Field(60.0, ge=0, le=86_400, examples=["60s"])
    """What is younger is not merged: its readers have it in caches."""
    compaction_size_bytes: Size = Field(1 * MIB, ge=0, examples=["1MiB"])
    """A partition with less to compact waits for compaction_interval_s, however dirty it is."""
    compaction_interval_s: Seconds = Field(600.0, ge=0, examples=["10m"])
    """How long a partition with little to compact waits."""
    pipeline: Literal["auto", "off"] = Field("auto", examples=["off"])
    """auto: `braid up` starts a worker for merging and compaction when the first job is due. off: it never does."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a deployment, as one file describes it. Each process takes the part that concerns it."""

    agent: AgentSettings
    control: ControlPlaneSettings
    origins: Mapping[str, str]
    """Where each value came from, for those that are not defaults."""


Model = TypeVar("Model", bound=CommonSettings)


def fields() -> dict[str, FieldInfo]:
    """Every setting by its name."""
    return {**AgentSettings.model_fields, **ControlPlaneSettings.model_fields}


def _canonical(name: str) -> str:
    return name.strip().lower().replace(".", "_").replace("-", "_")


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{_canonical(key)}"
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{name}_"))
        else:
            flat[name] = value
    return flat


def _unknown(name: str, origin: str) -> InvalidSetting:
    close = difflib.get_close_matches(name, fields(), n=1, cutoff=0.5)
    help_line = f"Did you mean {close[0]}?" if close else "`braid settings` lists all that exist."
    return InvalidSetting(f"{name} ({origin}) is not a setting", help=help_line)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return _flatten(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InvalidSetting(
            f"{path} does not exist", help="Name an existing file with --config, or leave it out."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(
            f"{path} cannot be read: {error}", help="Check its path, permissions and encoding."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(
            f"{path} is not valid TOML: {error}", help='Each line looks like: upload_size_bytes = "4MiB"'
        ) from None


def _build(model: type[Model], values: Mapping[str, Any], origins: Mapping[str, str]) -> Model:
    try:
        return model(**{name: value for name, value in values.items() if name in model.model_fields})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        wrong = str(first["ctx"]["error"]) if first["type"] == "value_error" else f"is wrong: {first['msg'].lower()}"
        example = (model.model_fields[name].examples or [""])[0]
        raise InvalidSetting(
            f"{name} ({origins.get(name, 'default')}) = {first['input']!r} {wrong}",
            help=f"For example: {name}={example}",
        ) from None


def _check_together(agent: AgentSettings, control: ControlPlaneSettings) -> None:
    if agent.advertised is None and agent.listen.is_wildcard:
        raise InvalidSetting(
            f"listen={agent.listen} is every interface, and clients cannot connect to that",
            help=f"Say what clients should use: advertised=broker-1.example.com:{agent.listen.port}",
        )
    if agent.advertised is not None and agent.advertised.is_wildcard:
        raise InvalidSetting(
            f"advertised={agent.advertised} is every interface, and clients cannot connect to that",
            help=f"Name one that clients can reach: advertised=broker-1.example.com:{agent.advertised.port}",
        )
    if agent.memory_budget_bytes < 2 * agent.upload_size_bytes:
        raise InvalidSetting(
            f"memory_budget_bytes={agent.memory_budget_bytes} holds less than two uploads of "
            f"upload_size_bytes={agent.upload_size_bytes}",
            help=f"For example: memory_budget_bytes={4 * agent.upload_size_bytes}",
        )
    if control.group_consumer_heartbeat_interval_ms >= control.group_consumer_session_timeout_ms:
        raise InvalidSetting(
            f"group_consumer_session_timeout_ms={control.group_consumer_session_timeout_ms} is over before the next "
            f"heartbeat, after group_consumer_heartbeat_interval_ms={control.group_consumer_heartbeat_interval_ms}",
            help="Make the session at least three heartbeats long.",
        )
    if control.group_min_session_timeout_ms > control.group_max_session_timeout_ms:
        raise InvalidSetting(
            f"group_min_session_timeout_ms={control.group_min_session_timeout_ms} is above "
            f"group_max_session_timeout_ms={control.group_max_session_timeout_ms}",
            help="Lower the one or raise the other.",
        )


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Gather the settings. Raises `InvalidSetting` for the first thing that is wrong."""
    known = fields()
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if config is not None:
        for name, value in _read_file(config).items():
            if name not in known:
                raise _unknown(name, str(config))
            values[name], origins[name] = value, str(config)
    for variable, value in sorted((environ or {}).items()):
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        # A variable that is not ours may well begin like ours, so unknown ones are no error.
        if variable.startswith(ENVIRONMENT_PREFIX) and name in known:
            values[name], origins[name] = value, variable
    for flag, value in (flags or {}).items():
        name = _canonical(flag)
        if name not in known:
            raise _unknown(name, "command line")
        if value is not None:
            values[name], origins[name] = value, "command line"
    agent = _build(AgentSettings, values, origins)
    control = _build(ControlPlaneSettings, values, origins)
    _check_together(agent, control)
    return Settings(agent, control, origins)
