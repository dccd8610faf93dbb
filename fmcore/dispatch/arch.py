"""Architectures carry their vendor: capability tuples of different vendors look alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arch:
    """A chip generation of one vendor.

    Args:
        vendor: Vendor tag, such as the one in a plugin's metadata.
        version: Ordered generation, for instance a compute capability ``(9, 0)``.
        name: The vendor's own name for it, for people and tuning tables.

    >>> Arch("acme", (9, 0)) < Arch("acme", (10, 0))
    True
    """

    vendor: str
    version: tuple[int, ...]
    name: str = ""

    def _version_for(self, other: object) -> tuple[int, ...]:
        if not isinstance(other, Arch):
            raise TypeError(f"an Arch compares with an Arch, not with {type(other).__name__}")
        if other.vendor != self.vendor:
            raise TypeError(
                f"{self} and {other} are of different vendors and have no order; compare within one vendor only"
            )
        return other.version

    def __lt__(self, other: object) -> bool:
        return self.version < self._version_for(other)

    def __le__(self, other: object) -> bool:
        return self.version <= self._version_for(other)

    def __gt__(self, other: object) -> bool:
        return self.version > self._version_for(other)

    def __ge__(self, other: object) -> bool:
        return self.version >= self._version_for(other)

    def __str__(self) -> str:
        version = ".".join(str(part) for part in self.version)
        return f"{self.vendor} {self.name} ({version})" if self.name else f"{self.vendor} {version}"


@dataclass(frozen=True, slots=True)
class ArchRange:
    """Inclusive range of generations of one vendor."""

    vendor: str
    first: tuple[int, ...]
    last: tuple[int, ...]

    def __contains__(self, arch: object) -> bool:
        """Whether ``arch`` is of this vendor and inside the range; another vendor's never is."""
        return isinstance(arch, Arch) and arch.vendor == self.vendor and self.first <= arch.version <= self.last

    def __str__(self) -> str:
        first, last = (".".join(map(str, v)) for v in (self.first, self.last))
        return f"{self.vendor} {first}" if first == last else f"{self.vendor} {first}..{last}"
