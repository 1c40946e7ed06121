"""The users that may log in: those of the cluster, and those of a file."""

from pathlib import Path

from braidlog.agent.cluster.view import ClusterView
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import InvalidSetting
from braidlog.security.scram import MECHANISM_NUMBERS, ScramKeys, fake_keys, keys_of_password

USERS_IN_FILE_MAX = 100
"""Each costs some milliseconds at the start. Others belong into the cluster: `braid user create`."""


class Users:
    """Finds the keys that prove a user's password.

    Unknown users have keys that no password fits.
    """

    def __init__(self, view: ClusterView, entropy: Entropy, users_file: str) -> None:
        self._view = view
        self._secret = entropy.token(32)
        self._own: dict[tuple[str, int], ScramKeys] = {}
        if users_file:
            for user, password in read_users(Path(users_file)).items():
                for number in MECHANISM_NUMBERS.values():
                    self._own[user, number] = keys_of_password(number, password, entropy.token(16))

    def keys_of(self, user: str, number: int) -> ScramKeys:
        """The keys of a user for a mechanism, by Kafka's number."""
        own = self._own.get((user, number))
        if own is not None:
            return own
        known = self._view.credentials.get((user, number))
        if known is not None:
            return ScramKeys(known.salt, known.iterations, known.stored_key, known.server_key)
        return fake_keys(number, user, self._secret)

    def number_for(self, user: str) -> int:
        """The mechanism whose keys a plain password is compared with."""
        return next((number for number in (2, 1) if (user, number) in self._view.credentials), 2)


def read_users(path: Path) -> dict[str, str]:
    """Passwords by user, from lines `name:password`.

    Empty lines and those that begin with # do not count.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(
            f"sasl_users_file={path} cannot be read: {error}", help="Check its path, permissions and encoding."
        ) from None
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, password = line.strip().partition(":")
        if not colon or not name or not password:
            raise InvalidSetting(f"line {number} of {path} is not name:password", help="For example: admin:secret")
        users[name] = password
    if len(users) > USERS_IN_FILE_MAX:
        raise InvalidSetting(f"{path} has {len(users)} users", help="Create most of them with `braid user create`.")
    return users
