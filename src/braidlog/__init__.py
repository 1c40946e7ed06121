"""Braidlog: a Kafka-compatible log whose only data layer is object storage."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from braidlog.node.serving import serve

__all__ = ["__version__", "serve"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load the log only where somebody serves it.

    Most programs that import a part of Braidlog do not.
    """
    if name == "serve":
        from braidlog.node.serving import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
