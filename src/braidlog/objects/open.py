"""Opens the store of a URL."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from braidlog.objects.local import LocalStore
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.retries import DEFAULT_RETRY, RetryingStore, RetryPolicy
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import InvalidSetting

_SCHEMES_HELP = "Use memory://, file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix."
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_USER = re.compile(r"//[^/@]*@")
_NO_RETRIES: Any = {"max_retries": 0}

_shared_buckets: dict[str, MemoryBucket] = {}


@dataclass(frozen=True, slots=True)
class _Option:
    """One `name=value` in a URL, and the obstore option that it sets."""

    target: str
    boolean: bool = False
    secret: bool = False
    client: bool = False


_CLIENT_OPTIONS = {
    "allow_http": _Option("allow_http", boolean=True, client=True),
    "connect_timeout": _Option("connect_timeout", client=True),
    "timeout": _Option("timeout", client=True),
}
_OPTIONS: dict[str, dict[str, _Option]] = {
    "memory": {},
    "file": {},
    "s3": {
        "region": _Option("region"),
        "endpoint": _Option("endpoint"),
        "access_key_id": _Option("access_key_id", secret=True),
        "secret_access_key": _Option("secret_access_key", secret=True),
        "session_token": _Option("session_token", secret=True),
        "unsigned_payload": _Option("unsigned_payload", boolean=True),
        "skip_signature": _Option("skip_signature", boolean=True),
        "virtual_hosted_style": _Option("virtual_hosted_style_request", boolean=True),
        "express": _Option("s3_express", boolean=True),
        **_CLIENT_OPTIONS,
    },
    "gs": {
        "service_account": _Option("service_account"),
        "service_account_key": _Option("service_account_key", secret=True),
        "skip_signature": _Option("skip_signature", boolean=True),
        **_CLIENT_OPTIONS,
    },
    "az": {
        "account_name": _Option("account_name"),
        "account_key": _Option("account_key", secret=True),
        "sas_key": _Option("sas_key", secret=True),
        "endpoint": _Option("endpoint"),
        "use_emulator": _Option("use_emulator", boolean=True),
        **_CLIENT_OPTIONS,
    },
}


def open_store(
    url: str,
    *,
    clock: Clock,
    entropy: Entropy,
    retry: RetryPolicy | None = DEFAULT_RETRY,
    wrap: Sequence[Callable[[Store], Store]] = (),
) -> Store:
    """Open the store at a URL. No request is made yet.

    `wrap` adds wrappers around the backend, the innermost first and all of them within the retries, so that a meter
    counts every attempt. With `retry=None` every failure reaches the caller.
    """
    store = _open_backend(url, clock, entropy)
    for wrapper in wrap:
        store = wrapper(store)
    if retry is not None:
        store = RetryingStore(store, retry, clock=clock, entropy=entropy.fork("retry"))
    return store


def redacted(url: str) -> str:
    """Return the URL without secrets, for people to see.

    User names, passwords and secret options are left out.
    """
    parts = _split(url)
    known = _OPTIONS.get(parts.scheme, {})
    shown = [
        (name, _USER.sub("//", value))
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if name in known and not known[name].secret
    ]
    location = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"{location}?{urlencode(shown, safe=':/')}" if shown else location


def _open_backend(url: str, clock: Clock, entropy: Entropy) -> Store:
    parts = _split(url)
    if parts.scheme not in _OPTIONS:
        if not parts.scheme:
            raise InvalidSetting(f"{url!r} is not the URL of a store", help=_SCHEMES_HELP)
        raise InvalidSetting(f"unknown kind of store {parts.scheme}://", help=_SCHEMES_HELP)
    if "@" in parts.netloc:
        raise InvalidSetting(
            f"{redacted(url)}: credentials cannot stand before the host",
            help="Use ?access_key_id=…&secret_access_key=…, or the environment (AWS_ACCESS_KEY_ID, …).",
        )
    if parts.fragment:
        raise InvalidSetting(f"{redacted(url)}: a # in the URL must be written as %23")
    config, client_options = _options(url, parts)
    if parts.scheme == "memory":
        if parts.path.strip("/"):
            raise InvalidSetting(f"{redacted(url)}: memory:// takes a name, not a path", help="For example memory://a.")
        name = parts.netloc
        bucket = _shared_buckets.setdefault(name, MemoryBucket()) if name else MemoryBucket()
        return MemoryStore(bucket, url=redacted(url), clock=clock)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            raise InvalidSetting(f"{redacted(url)} names no folder", help="Three slashes: file:///var/lib/braidlog")
        return LocalStore(Path(unquote(parts.path)), clock=clock, entropy=entropy.fork("file"))
    if not parts.netloc:
        raise InvalidSetting(f"{redacted(url)} names no bucket", help=f"{parts.scheme}://bucket/prefix")
    return _open_remote(url, parts, config, client_options)


def _open_remote(url: str, parts: SplitResult, config: Any, client_options: Any) -> Store:
    # Imported here, because obstore takes time to load, and stores in memory or on disk do not need it.
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    from braidlog.objects.remote import RemoteStore

    prefix = unquote(parts.path).strip("/") or None
    express = parts.netloc.endswith("--x-s3") or bool(config.get("s3_express"))
    if parts.scheme == "s3":
        _settle_http(url, config, client_options)
    try:
        store: Any
        if parts.scheme == "s3":
            if express:
                config["s3_express"] = True
            if "endpoint" in config:
                config["aws_endpoint_url_s3"] = config["endpoint"]  # else AWS_ENDPOINT_URL_S3 would win over the URL
            store = S3Store(
                parts.netloc, prefix=prefix, config=config, client_options=client_options, retry_config=_NO_RETRIES
            )
        elif parts.scheme == "gs":
            store = GCSStore(
                parts.netloc, prefix=prefix, config=config, client_options=client_options, retry_config=_NO_RETRIES
            )
        else:
            store = AzureStore(
                parts.netloc, prefix=prefix, config=config, client_options=client_options, retry_config=_NO_RETRIES
            )
    except (BaseError, ValueError, OSError) as error:
        # Its text may quote what it was given, secrets included: name only the kind of error.
        message = f"{redacted(url)} cannot be opened ({type(error).__name__})"
        raise InvalidSetting(message, help="Check bucket, account, region, endpoint and credentials.") from None
    shown = redacted(url)
    if parts.scheme == "s3" and "endpoint" not in config and _endpoint(config):
        shown += f"{'&' if '?' in shown else '?'}endpoint={_endpoint(config)}"  # its real location decides its price
    # Directory buckets (S3 Express) list in no order.
    return RemoteStore(store, url=shown, lists_in_order=not express)


def _endpoint(config: dict[str, Any]) -> str:
    environment = os.environ
    chosen = config.get("endpoint") or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    return str(chosen or environment.get("AWS_ENDPOINT") or "")


def _settle_http(url: str, config: dict[str, Any], client_options: dict[str, Any]) -> None:
    """Refuse plain HTTP unless it is allowed.

    obstore would refuse it only at the first request.
    """
    endpoint = _endpoint(config)
    allowed = client_options.get("allow_http", _TRUTH.get(os.environ.get("AWS_ALLOW_HTTP", "").lower(), False))
    if _USER.search(endpoint):
        raise InvalidSetting(f"{redacted(url)}: an endpoint takes no user name or password")
    if endpoint and "://" not in endpoint:
        raise InvalidSetting(f"endpoint {endpoint!r} is not a URL", help="For example endpoint=http://127.0.0.1:8333")

    client_options["allow_http"] = allowed
    if endpoint.startswith("http://") and not allowed:
        raise InvalidSetting(
            f"{redacted(url)}: the endpoint is plain HTTP",
            help="Use https://, or allow it with ?allow_http=true or AWS_ALLOW_HTTP=true.",
        )


def _options(url: str, parts: SplitResult) -> tuple[dict[str, Any], dict[str, Any]]:
    known = _OPTIONS[parts.scheme]
    config: dict[str, Any] = {}
    client_options: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        option = known.get(name)
        if option is None:
            usable = f"{parts.scheme}:// knows {', '.join(sorted(known))}." if known else f"{parts.scheme}:// has none."
            raise InvalidSetting(f"{redacted(url)}: unknown option {name!r}", help=usable)
        if not value:
            raise InvalidSetting(f"{redacted(url)}: option {name} has no value", help=f"{name}=…")
        chosen: str | bool = value
        if option.boolean:
            if value.lower() not in _TRUTH:
                raise InvalidSetting(f"{redacted(url)}: {name} is neither true nor false", help=f"{name}=true")
            chosen = _TRUTH[value.lower()]
        (client_options if option.client else config)[option.target] = chosen
    return config, client_options


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise InvalidSetting(f"the URL of the store cannot be read ({error})", help=_SCHEMES_HELP) from None
