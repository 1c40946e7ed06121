"""The settings of transactions. Defaults are Kafka's, if Kafka has the setting."""

from dataclasses import dataclass

from braidlog.runtime.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    timeout_ms_max: int = 15 * 60 * 1000
    """`transaction.max.timeout.ms`: the longest timeout that a producer may ask for."""
    id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    """`transactional.id.expiration.ms`: how long an unused transactional id is remembered."""
    timeout_check_interval_s: float = 1.0
    expiry_check_interval_s: float = 3600.0
    ids_max: int = 1_000_000
    partitions_max: int = 100_000
    """The most partitions of one transaction."""

    def __post_init__(self) -> None:
        if self.timeout_ms_max < 1:
            raise InvalidSetting("no transaction could ever begin", help="transaction.max.timeout.ms is 1 or more")
