"""Randomness, as a component that is injected: one seed gives one history."""

import os
import random
from typing import Protocol
from uuid import UUID


class Entropy(Protocol):
    def uniform(self, low: float, high: float) -> float: ...

    def normal(self) -> float:
        """Draw from the standard normal distribution."""
        ...

    def below(self, bound: int) -> int:
        """Draw an integer from [0, bound)."""
        ...

    def token(self, length_bytes: int) -> bytes: ...

    def uuid(self) -> UUID: ...

    def fork(self, name: str) -> "Entropy":
        """Return an independent stream.

        So one component's draws do not shift another's.
        """
        ...


class SeededEntropy:
    """Draws reproducibly: the same seed gives the same draws in every process."""

    def __init__(self, seed: int | str) -> None:
        self._seed = seed
        self._random = random.Random(f"braidlog/{seed}")

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def normal(self) -> float:
        return self._random.gauss(0.0, 1.0)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def token(self, length_bytes: int) -> bytes:
        return self._random.randbytes(length_bytes)

    def uuid(self) -> UUID:
        return UUID(bytes=self.token(16), version=4)

    def fork(self, name: str) -> "SeededEntropy":
        return SeededEntropy(f"{self._seed}/{name}")


class SystemEntropy(SeededEntropy):
    """Is seeded by the operating system, and takes identifiers from it.

    So no two processes share one.
    """

    def __init__(self) -> None:
        super().__init__(os.urandom(16).hex())

    def token(self, length_bytes: int) -> bytes:
        return os.urandom(length_bytes)

    def fork(self, name: str) -> "SystemEntropy":
        return SystemEntropy()
