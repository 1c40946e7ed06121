"""A planted mistake, and the table of all of them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mistake:
    name: str
    what: str
    """A sentence that says what it does wrong."""
    plant: Callable[[], AbstractContextManager[None]]
    scenario: str = "mixed"
    """The scenario that finds it soonest."""


@contextmanager
def replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes until the context ends: each owner, name and wrong value."""
    originals = [(owner, name, owner.__dict__[name]) for owner, name, _ in replacements]
    for owner, name, wrong in replacements:
        setattr(owner, name, wrong)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


MISTAKES: dict[str, Mistake] = {}


Plant = Callable[[], AbstractContextManager[None]]


def mistake(what: str, scenario: str = "mixed") -> Callable[[Plant], Plant]:
    """Register a function that plants a mistake.

    The function's name, with dashes, is the mistake's name. `what` says what goes wrong, and `scenario` finds it.
    """

    def register(plant: Plant) -> Plant:
        name = plant.__name__.strip("_").replace("_", "-")
        MISTAKES[name] = Mistake(name, what, plant, scenario)
        return plant

    return register
