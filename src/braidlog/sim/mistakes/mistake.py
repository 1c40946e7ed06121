"""What a planted mistake is, and the list that they register in."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mistake:
    name: str
    what: str
    """What it does wrong, in a sentence."""
    plant: Callable[[], AbstractContextManager[None]]
    scenario: str = "mixed"
    """Where it shows soonest."""


@contextmanager
def replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
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
    def register(plant: Plant) -> Plant:
        name = plant.__name__.strip("_").replace("_", "-")
        MISTAKES[name] = Mistake(name, what, plant, scenario)
        return plant

    return register
