"""SCRAM credentials of users: checked, stored and published here, used by agents."""

from kio.schema.errors import ErrorCode

from braidlog.control.foundation import Foundation
from braidlog.control.interface import (
    AlterCredentials,
    CredentialOutcomes,
    CredentialsChanged,
    Outcome,
    ScramCredential,
)
from braidlog.control.metadata.store import Transaction

CREDENTIALS_MAX = 20_000
"""The limit on credentials: every agent has all of them in memory."""

_COLUMNS = "user_name, mechanism, salt, iterations, stored_key, server_key"

Key = tuple[str, int]
"""A user and a mechanism."""


class Credentials:
    """Knows all credentials.

    A change is durable before it becomes visible and is published.
    """

    def __init__(self, foundation: Foundation) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._feed = foundation.feed
        self._known: dict[Key, ScramCredential] = {}

    async def load(self) -> None:
        rows = await self._metadata.read(
            lambda tx: tx.query(f"SELECT {_COLUMNS} FROM scram_credentials ORDER BY user_name, mechanism")
        )
        for user, mechanism, salt, iterations, stored_key, server_key in rows:
            self._known[user, mechanism] = ScramCredential(
                user, mechanism, bytes(salt), iterations, bytes(stored_key), bytes(server_key)
            )

    @property
    def credentials(self) -> list[ScramCredential]:
        return list(self._known.values())

    async def alter(self, request: AlterCredentials) -> CredentialOutcomes:
        async with self._state_lock:
            codes = self._removal_codes(request) + self._change_codes(request)
            named = [*request.removed, *((each.user, each.mechanism) for each in request.changed)]
            # As in Kafka, a user with one wrong change keeps all its credentials.
            failed = {user for (user, _), outcome in zip(named, codes, strict=True) if outcome.error_code}
            removed = [key for key in request.removed if key[0] not in failed]
            changed = [each for each in request.changed if each.user not in failed]
            if removed or changed:
                await self._metadata.plan(lambda tx: _write(tx, removed, changed))
                for key in removed:
                    del self._known[key]
                self._known |= {(each.user, each.mechanism): each for each in changed}
                self._feed.publish([CredentialsChanged(removed, changed)])
            return CredentialOutcomes(codes)

    def _removal_codes(self, request: AlterCredentials) -> list[Outcome]:
        missing = Outcome(int(ErrorCode.resource_not_found), "Attempt to delete a user credential that does not exist")
        return [Outcome(0) if key in self._known else missing for key in request.removed]

    def _change_codes(self, request: AlterCredentials) -> list[Outcome]:
        full = Outcome(int(ErrorCode.policy_violation), f"There are {CREDENTIALS_MAX} credentials already.")
        count = len(self._known)
        outcomes: list[Outcome] = []
        for each in request.changed:
            count += (each.user, each.mechanism) not in self._known
            outcomes.append(Outcome(0) if count <= CREDENTIALS_MAX else full)
        return outcomes


def _write(tx: Transaction, removed: list[Key], changed: list[ScramCredential]) -> None:
    keys = [*removed, *((each.user, each.mechanism) for each in changed)]
    tx.executemany("DELETE FROM scram_credentials WHERE user_name = ? AND mechanism = ?", keys)
    tx.executemany(
        f"INSERT INTO scram_credentials ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
        [(each.user, each.mechanism, each.salt, each.iterations, each.stored_key, each.server_key) for each in changed],
    )
