"""Reads the security rules of an agent from its settings."""

from braidlog.runtime.settings import AgentSettings
from braidlog.security.principals import parse_principals
from braidlog.security.rights import AuthorizerRules


def authorizer_rules(settings: AgentSettings) -> AuthorizerRules:
    return AuthorizerRules(
        is_on=settings.authorizer == "acl",
        super_users=parse_principals(settings.super_users),
        allow_unlisted=settings.allow_everyone_if_no_acl_found,
    )
