"""Everything an operator may set.

Plain data: what can be written in a file. Components are injected elsewhere.

A flag wins over the environment (`BRAIDLOG_UPLOAD_SIZE_BYTES`), which wins over the file (`braidlog.toml`), which wins
over the default. Names are Kafka's where Kafka has one; dots, dashes and underscores in them mean the same, so that
`upload.size.bytes`, `upload-size-bytes` and `[upload]` with `size_bytes` are one setting.
"""

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote, unquote, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.limits import BATCH_DECOMPRESSED_BYTES_MAX, OBJECT_BYTES_MAX, PARTITIONS_PER_TOPIC_MAX
from braidlog.runtime.quantities import (
    Address,
    Addresses,
    parse_bytes,
    parse_milliseconds,
    parse_seconds,
    write_bytes,
    write_milliseconds,
    write_seconds,
)
from braidlog.runtime.security_settings import Listener, SecuritySettings, listeners_of

ENVIRONMENT_PREFIX = "BRAIDLOG_"

STORE_SCHEMES = ("file", "memory", "s3", "gs", "az")
METADATA_SCHEMES = ("sqlite", "bucket", "postgresql")

KIB, MIB = 1024, 1024**2


def _address_or_off(value: object) -> object:
    return None if value is None or value in {"", "off"} else Address.parse(value)


def _address_auto_or_off(value: object) -> object:
    return value if value == "auto" else _address_or_off(value)


def _absolute_url(url: str, schemes: tuple[str, ...]) -> str:
    """Check the scheme, and make a relative path absolute.

    So every part of a process means the same place.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ValueError(f"is not a URL: it starts with one of {', '.join(f'{known}://' for known in schemes)}")
    if scheme not in schemes:
        raise ValueError(f"has the unknown scheme {scheme!r}: use one of {', '.join(schemes)}")
    if scheme in {"file", "sqlite", "bucket"}:
        path, question_mark, query = rest.partition("?")
        if url in {"sqlite://", "bucket://"}:  # in memory; in the store alone
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
    if scheme == "postgresql" and urlsplit(url).password is not None:
        raise ValueError("holds a password, which others could read: set PGPASSWORD, or use a password file")
    if scheme != "memory" and not rest.strip("/"):
        raise ValueError("names no bucket" if scheme != "postgresql" else "names no server")
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
ControlAddresses = Annotated[Addresses, BeforeValidator(Addresses.parse)]
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
    """Where all data lies: a file://, memory://, s3://, gs:// or az:// URL."""
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", examples=["info"])
    """The least severe messages to log."""
    log_format: Literal["auto", "human", "json"] = Field("auto", examples=["json"])
    """human, json, or auto: human on a terminal, json elsewhere."""
    sequence_age_ms: Milliseconds = Field(60_000_000, ge=100, le=86_400_000, examples=["1000m"])
    """How long an agent fills one journal sequence, unless it has 1,000 files before that or gets none for two minutes.
    Past twice this age it acknowledges nothing there. At four times this age, a sealed sequence whose files are all
    sequenced may be deleted, with its fences."""


class AgentSettings(CommonSettings, SecuritySettings):
    """What an agent needs to know."""

    listen: Listen = Field(Address("127.0.0.1", 9092), examples=["0.0.0.0:9092"])
    """The address for Kafka clients. Port 0 takes any free port."""
    advertised: OptionalListen = Field(None, examples=["broker-1.example.com:9092"])
    """The address that clients are told; by default the one that the agent listens on."""
    control: ControlAddresses = Field(
        Addresses((Address("127.0.0.1", 9190),)), examples=["10.0.0.5:9190,10.0.1.5:9190"]
    )
    """The address of the control plane, for an agent that runs apart from it; with commas, of its standbys too."""
    zone: Annotated[str, AfterValidator(_plain_name)] = Field("", examples=["us-east-1a"])
    """The zone of this agent. Clients in it name it in client.rack."""
    metrics_listen: OptionalListen = Field(Address("127.0.0.1", 9404), examples=["0.0.0.0:9404"])
    """The address of /metrics, /healthz and /readyz; `off` serves none."""
    console_listen: OptionalListen = Field(Address("127.0.0.1", 9480), examples=["127.0.0.1:9480"])
    """The address of the console that `braid up` serves; `off` serves none. If the default port is taken, any other."""
    console_token_file: str = Field("", examples=["/etc/braidlog/console-token"])
    """A file with a token of at least 16 characters. Whoever gives it may use the console. Needed if the console
    listens on more than this machine."""

    upload_size_bytes: Size = Field(4 * MIB, ge=4 * KIB, le=OBJECT_BYTES_MAX // 2, examples=["4MiB"])
    """Upload a batch when it has this many bytes. Where PUTs are free and another one is under way: twice as many."""
    upload_interval_ms: Milliseconds = Field(250, ge=1, le=60_000, examples=["250ms"])
    """Upload a batch at the latest this long after its first record."""
    upload_budget_usd_month: float = Field(65.0, ge=0, allow_inf_nan=False, examples=["65"])
    """The money for uploads that start before size or interval ask for it, so that producers wait less."""
    store_price: Literal["auto", "s3-standard", "s3-express", "free"] = Field("auto", examples=["s3-standard"])
    """The price list for the budget. auto goes by the store's URL, and takes whatever is not AWS as free."""
    store_latency: Literal["none", "s3", "s3-express"] = Field("none", examples=["s3"])
    """Make every request to the store take as long as it would take there, to see on one machine what a cloud shows."""
    uploads_in_flight_max: int = Field(16, ge=1, le=1024, examples=["16"])
    """How many uploads run at the same time; with several shards, in each group of shards."""
    memory_budget_bytes: Size = Field(512 * MIB, ge=16 * MIB, examples=["512MiB"])
    """Bytes of produced records to hold until they are acknowledged. At the limit, the agent stops reading sockets."""
    response_budget_bytes: Size = Field(1024 * MIB, ge=16 * MIB, examples=["1GiB"])
    """Bytes of fetched records to hold until they are sent. At the limit, fetches wait until clients take theirs."""
    batch_expanded_bytes_max: Size = Field(
        BATCH_DECOMPRESSED_BYTES_MAX, ge=1 * MIB, le=BATCH_DECOMPRESSED_BYTES_MAX, examples=["64MiB"]
    )
    """The most bytes that a batch may decompress to. A larger one is refused, and Java's producers then split it."""
    cache_bytes: Size = Field(256 * MIB, examples=["256MiB"])
    """Memory for what was written or read lately."""
    cache_listen: CacheListen = Field("auto", examples=["0.0.0.0:9600"])
    """Where other agents of the zone read this cache. auto: any free port of the host that listens; off: nowhere."""

    shards: int = Field(0, ge=0, le=256, examples=["8"])
    """How many processes an agent has, each with its own port and node id. 0: one per core; for `braid up`, one, which
    shares its process with the control plane and needs a single port."""
    upload_policy: Literal["adaptive", "per-shard", "funnel", "coordinator"] = Field("adaptive", examples=["adaptive"])
    """How shards share their uploads. The policies other than adaptive are there to be compared with it."""

    request_timeout_ms: Milliseconds = Field(30_000, ge=100, le=3_600_000, examples=["30s"])
    """The time for a produce request: two thirds for its upload, a third for sequencing. Then producers retry."""
    commit_timeout_ms: Milliseconds = Field(10_000, ge=100, le=3_600_000, examples=["10s"])
    """The time for a call to the control plane."""

    ripcord: Literal["off", "on", "auto"] = Field("off", examples=["auto"])
    """on: journal all topics, so that writes never wait for the control plane. auto: only while it is away."""
    ripcord_after_ms: Milliseconds = Field(5_000, ge=100, le=600_000, examples=["5s"])
    """A control plane that was silent for this long is away. Requests that need it are then refused, to be retried."""

    pipeline_engine: Literal["auto", "spark", "local"] = Field("auto", examples=["spark"])
    """Where a worker merges and compacts. spark: on Spark. local: in its own process. auto: on Spark where that is
    installed, except for rounds with less than pipeline_spark_bytes."""
    pipeline_master: str = Field("local[*]", examples=["spark://10.0.0.5:7077"])
    """Spark's master for a worker's jobs: local[*], spark://host:port, k8s://… ."""
    pipeline_spark_bytes: Size = Field(32 * MIB, ge=0, examples=["32MiB"])
    """A round of jobs with fewer bytes is done before Spark has started."""

    auto_create_topics_enable: bool = Field(True, examples=["true"])
    """Whether to create a topic when a client first asks for it."""

    @property
    def all_listeners(self) -> list[Listener]:
        """The listener of `listen`, then the others."""
        return listeners_of(self, self.listen, self.advertised)

    @property
    def advertised_host(self) -> str:
        """What clients are told: the advertised host, or the one the agent listens on."""
        return self.advertised.host if self.advertised is not None else self.listen.host


class ControlPlaneSettings(CommonSettings):
    """What the control plane needs to know."""

    metadata_url: MetadataUrl = Field(
        "sqlite:///./data/metadata.db", examples=["sqlite:///var/lib/braidlog/metadata.db"]
    )
    """Where to keep the catalog, the index, producers and groups: a SQLite file, `bucket://` for the store itself, or
    `postgresql://`. `bucket:///path/to/image` keeps a local image too, which makes starts quicker."""
    take_over: bool = Field(False, examples=["true"])
    """Start although another process holds the metadata, and end that process. Otherwise the second does not start."""
    standby: bool = Field(False, examples=["true"])
    """Wait while another control plane holds the metadata, in the bucket or in PostgreSQL, and take over when it stops
    or falls silent."""
    metadata_copy: bool = Field(True, examples=["false"])
    """Whether a copy of `sqlite` or `postgresql` metadata flows to the store, from which `braid control restore` can
    make it again. `bucket://` needs none."""
    metadata_copy_interval_s: Seconds = Field(10.0, ge=0.1, le=3_600, examples=["10s"])
    """How often the copy advances, at one PUT each time. Changes of topics, deletions and ends of transactions wait for
    a PUT of their own."""
    take_over_after_s: Seconds = Field(4.0, ge=2, le=3_600, examples=["4s"])
    """How long the holder of metadata in the bucket or in PostgreSQL may store nothing before others take it for dead.
    Alive, it stores something every second."""
    control_listen: Listen = Field(Address("127.0.0.1", 9190), examples=["0.0.0.0:9190"])
    """The address for agents, workers and commands."""
    control_metrics_listen: OptionalListen = Field(Address("127.0.0.1", 9405), examples=["0.0.0.0:9405"])
    """The address of the control plane's own /metrics, /healthz and /readyz; `off` serves none."""

    num_partitions: int = Field(1, ge=1, le=PARTITIONS_PER_TOPIC_MAX, examples=["6"])
    """Partitions of a topic whose creator names no number, until num.partitions is set on the cluster itself."""
    group_initial_rebalance_delay_ms: Milliseconds = Field(500, ge=0, le=300_000, examples=["3s"])
    """How long an empty group waits for more members before it assigns partitions."""
    group_min_session_timeout_ms: Milliseconds = Field(6_000, ge=1, le=1_800_000, examples=["6s"])
    """The shortest session.timeout.ms that a consumer may ask for."""
    group_max_session_timeout_ms: Milliseconds = Field(1_800_000, ge=1, examples=["30m"])
    """The longest session.timeout.ms that a consumer may ask for."""
    transaction_max_timeout_ms: Milliseconds = Field(900_000, ge=1, le=43_200_000, examples=["15m"])
    """The longest transaction.timeout.ms that a producer may ask for."""
    transactional_id_expiration_ms: Milliseconds = Field(604_800_000, ge=1_000, examples=["7d"])
    """Forget a transactional id that was not used for this long."""
    group_consumer_session_timeout_ms: Milliseconds = Field(45_000, ge=100, le=1_800_000, examples=["45s"])
    """Remove a member of a group with group.protocol=consumer after this long without a heartbeat."""
    group_consumer_heartbeat_interval_ms: Milliseconds = Field(5_000, ge=10, le=600_000, examples=["5s"])
    """How often such a member sends a heartbeat."""
    group_consumer_migration_policy: Literal["disabled", "upgrade", "downgrade", "bidirectional"] = Field(
        "bidirectional", examples=["bidirectional"]
    )
    """Whether a group with members may change between the classic and the consumer protocol."""
    write_epoch_interval_s: Seconds = Field(60.0, ge=1, le=86_400, examples=["60s"])
    """How often the write epoch grows. Objects of an epoch below the floor can never be sequenced."""
    agent_session_timeout_s: Seconds = Field(10.0, ge=1, le=3_600, examples=["10s"])
    """Stop naming an agent to clients after this long without a heartbeat."""
    sweep_grace_s: Seconds = Field(3_600.0, ge=5, examples=["1h"])
    """How long an upload may take to be sequenced. After that it never is, and the sweeper deletes it."""
    sweep_interval_s: Seconds = Field(60.0, ge=0.1, le=86_400, examples=["60s"])
    """How often to look for objects that nothing refers to; at least once in a write epoch."""
    full_sweep_interval_s: Seconds = Field(86_400.0, ge=1, examples=["1d"])
    """How often to list the whole store for them, because some uploads land long after their agent gave them up."""
    retention_check_interval_s: Seconds = Field(300.0, ge=1, le=86_400, examples=["5m"])
    """How often to apply retention."""

    scan_interval_ms: Milliseconds = Field(30_000, ge=10, le=3_600_000, examples=["30s"])
    """How often to look for journal files that no agent has reported."""
    lightning_gap_ms: Milliseconds = Field(60_000, ge=10, le=86_400_000, examples=["60s"])
    """How long a journaled batch of an idempotent producer waits for those before it. Then it is appended anyway."""
    replay_files_per_s: float = Field(200.0, ge=0, allow_inf_nan=False, examples=["200"])
    """How many leftover journal files to sequence a second, so that new ones go first. 0: no limit."""

    job_check_interval_s: Seconds = Field(15.0, ge=0.1, le=86_400, examples=["15s"])
    """How often to look for merge and compaction work."""
    job_lease_s: Seconds = Field(30.0, ge=0.5, le=3_600, examples=["30s"])
    """How long a worker may be silent before its job goes to the next one."""
    merge_size_bytes: Size = Field(64 * MIB, ge=4 * KIB, le=OBJECT_BYTES_MAX // 2, examples=["64MiB"])
    """The size of the objects that merging and compaction write."""
    merge_age_s: Seconds = Field(60.0, ge=0, le=86_400, examples=["60s"])
    """Do not merge what is younger: its readers have it in caches."""
    compaction_size_bytes: Size = Field(1 * MIB, ge=0, examples=["1MiB"])
    """A partition with less to compact waits for compaction_interval_s, however dirty it is."""
    compaction_interval_s: Seconds = Field(600.0, ge=0, examples=["10m"])
    """How long a partition with little to compact waits."""
    pipeline: Literal["auto", "off"] = Field("auto", examples=["off"])
    """auto: `braid up` starts a worker for merging and compaction when the first job is due. off: it never does."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a deployment, as one file describes it.

    Each process takes the part that concerns it.
    """

    agent: AgentSettings
    control: ControlPlaneSettings
    origins: Mapping[str, str]
    """Where each value came from, for those that are not defaults."""


Model = TypeVar("Model", bound=CommonSettings)


def fields() -> dict[str, FieldInfo]:
    """Every setting by its name."""
    return {**AgentSettings.model_fields, **ControlPlaneSettings.model_fields}


_WRITERS: Mapping[Any, Callable[[Any], str]] = {
    parse_bytes: write_bytes,
    parse_milliseconds: write_milliseconds,
    parse_seconds: write_seconds,
}


def written(name: str, value: Any) -> str:
    """A setting's value as a person writes it: `256MiB`, `250ms`, `off`."""
    if value is None:
        return "off" if name.endswith("listen") else "-"
    for rule in fields()[name].metadata:
        if isinstance(rule, BeforeValidator) and rule.func in _WRITERS:
            return _WRITERS[rule.func](value)
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    return InvalidSetting(f"{name} ({origin}) is not a setting", help=advice_for(name, fields(), likeness=0.5))


def advice_for(unknown: str, known: Iterable[str], *, likeness: float) -> str:
    """Suggest the known name that is most like an unknown one.

    `likeness` is how alike they must be, from 0 (not at all) to 1 (equal).
    """
    close = difflib.get_close_matches(unknown, list(known), n=1, cutoff=likeness)
    return f"Did you mean {close[0]}?" if close else "`braid settings` lists all that exist."


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
    _check_listeners(agent)
    if agent.memory_budget_bytes < 2 * agent.upload_size_bytes:
        raise InvalidSetting(
            f"memory_budget_bytes={write_bytes(agent.memory_budget_bytes)} holds less than two uploads of "
            f"upload_size_bytes={write_bytes(agent.upload_size_bytes)}",
            help=f"For example: memory_budget_bytes={write_bytes(4 * agent.upload_size_bytes)}",
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


def _check_listeners(agent: AgentSettings) -> None:
    try:
        listeners = agent.all_listeners
    except ValueError as error:
        raise InvalidSetting(str(error), help="`braid settings` describes listeners and their protocols.") from None
    for listener in listeners[1:]:
        if listener.advertised.is_wildcard:
            raise InvalidSetting(
                f"listener {listener.name} is on every interface, and clients cannot connect to that",
                help=f"For example: advertised_listeners={listener.name}://broker-1.example.com:{listener.listen.port}",
            )
    if any(listener.is_encrypted for listener in listeners) and not (agent.ssl_certificate_file and agent.ssl_key_file):
        raise InvalidSetting(
            "a listener with TLS has no certificate",
            help="Set ssl_certificate_file and ssl_key_file; `braid cert create` makes some to try it.",
        )
    if agent.ssl_client_auth != "none" and not agent.ssl_ca_file:
        raise InvalidSetting(
            f"ssl_client_auth={agent.ssl_client_auth} needs authorities to trust", help="Set ssl_ca_file."
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
