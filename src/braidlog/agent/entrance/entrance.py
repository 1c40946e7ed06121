"""A listener as its connections see it: its name, and who its clients are."""

from collections.abc import Mapping
from typing import Any

from braidlog.agent.entrance.login import Login
from braidlog.runtime.security_settings import Listener
from braidlog.security.certificates import PrincipalRules
from braidlog.security.principals import ANONYMOUS_USER


class Entrance:
    def __init__(self, listener: Listener, rules: PrincipalRules) -> None:
        self.name = listener.name
        self._listener = listener
        self._rules = rules

    def new_login(self) -> Login | None:
        """The login of a new connection; None where clients do not log in."""
        return Login() if self._listener.wants_sasl else None

    def user_of(self, certificate: Mapping[str, Any] | None) -> str | None:
        """The user of a client by its certificate, if it has shown one.

        None for a certificate that stands for nobody: its client must not pass for one that has shown none.
        """
        if self._listener.wants_sasl or not certificate:
            return ANONYMOUS_USER
        return self._rules.user_of(certificate)
