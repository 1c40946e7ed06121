"""Reads the security rules of an agent from its settings."""

from braidlog.agent.entrance.logins import LoginRules
from braidlog.runtime.settings import AgentSettings
from braidlog.security.principals import parse_principals
from braidlog.security.rights import AuthorizerRules


def login_rules(settings: AgentSettings) -> LoginRules:
    return LoginRules(
        mechanisms=settings.mechanisms,
        lifetime_ms=settings.connections_max_reauth_ms,
        failure_delay_s=settings.connection_failed_authentication_delay_ms / 1000,
    )


def authorizer_rules(settings: AgentSettings) -> AuthorizerRules:
    return AuthorizerRules(
        is_on=settings.authorizer == "acl",
        super_users=parse_principals(settings.super_users),
        allow_unlisted=settings.allow_everyone_if_no_acl_found,
    )
