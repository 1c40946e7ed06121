"""The errors of handlers on their way to the caller."""

import msgspec

from braidlog.runtime.errors import BraidError, Remedy


class RemoteFailure(BraidError):
    """The other side failed in a way that has no class on this side."""

    def __init__(self, message: str, *, help: str = "", remedy: Remedy = Remedy.GIVE_UP) -> None:  # noqa: A002
        super().__init__(message, help=help)
        self.remedy = remedy


def encode_error(error: BraidError) -> bytes:
    kind = type(error)
    parts = (f"{kind.__module__}.{kind.__qualname__}", str(error), error.help, error.remedy.value)
    return msgspec.msgpack.encode(parts)


def decode_error(rest: bytes) -> BraidError:
    try:
        name, message, help_line, remedy = msgspec.msgpack.decode(rest, type=tuple[str, str, str, str])
    except msgspec.MsgspecError as error:
        return RemoteFailure(f"an answer could not be decoded: {error}")
    kind = _error_classes().get(name)
    if kind is None or kind is RemoteFailure:
        known = remedy in (each.value for each in Remedy)
        return RemoteFailure(message, help=help_line, remedy=Remedy(remedy) if known else Remedy.GIVE_UP)
    # The class may take other arguments than its base, and those were not sent.
    raised = kind.__new__(kind)
    BraidError.__init__(raised, message, help=help_line)
    return raised


def _error_classes() -> dict[str, type[BraidError]]:
    found: dict[str, type[BraidError]] = {}
    unseen: list[type[BraidError]] = [BraidError]
    while unseen:
        kind = unseen.pop()
        found[f"{kind.__module__}.{kind.__qualname__}"] = kind
        unseen.extend(kind.__subclasses__())
    return found
