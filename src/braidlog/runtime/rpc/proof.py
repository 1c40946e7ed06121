"""Proves that both ends of a connection know the cluster's secret.

Each end sends a nonce, and shows that it can compute a keyed digest of both. The secret itself is never sent. Every
process of a cluster reads it from the file that `BRAIDLOG_CLUSTER_SECRET_FILE` names: agents, control planes, workers,
Spark and commands. Without it, nothing is proven or asked.
"""

import hmac
import os
from pathlib import Path

from braidlog.runtime.entropy import SystemEntropy
from braidlog.runtime.errors import InvalidSetting

VARIABLE = "BRAIDLOG_CLUSTER_SECRET_FILE"
SECRET_BYTES_MIN = 16
NONCE_BYTES = 32
DIGEST_BYTES = 32
PROOF_S_MAX = 10.0
"""How long a caller may take for its proof."""
UNPROVEN_BYTES_MAX = 256
"""How long a message of a caller without a proof may be."""


def cluster_secret() -> bytes | None:
    """The cluster's secret; None if this process was given none."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    try:
        secret = Path(name).read_bytes().strip()
    except OSError as error:
        raise InvalidSetting(
            f"{VARIABLE}={name} cannot be read: {error.strerror}", help="Check its path and permissions."
        ) from None
    if len(secret) < SECRET_BYTES_MIN:
        raise InvalidSetting(
            f"the secret in {name} is too short", help=f"At least {SECRET_BYTES_MIN} bytes: openssl rand -hex 32"
        )
    return secret


def new_nonce() -> bytes:
    return SystemEntropy().token(NONCE_BYTES)


def server_proof(secret: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.digest(secret, b"braidlog server" + client_nonce + server_nonce, "sha256")


def client_proof(secret: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.digest(secret, b"braidlog client" + server_nonce + client_nonce, "sha256")


def is_proof(given: bytes, expected: bytes) -> bool:
    return hmac.compare_digest(given, expected)
