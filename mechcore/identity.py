"""What identifies a model, as plain data that files can hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from mechcore.errors import shown

Self = TypeVar("Self", bound="Identity")


@dataclass(frozen=True)
class Identity:
    """A model's shape, its arithmetic and its weights."""

    n_layers: int
    n_heads: int
    d_head: int
    d_model: int
    dtype: str
    weights: str
    """SHA-256 over names, shapes and bytes of all weights."""

    @classmethod
    def from_fields(cls: type[Self], values: Any) -> Self:
        """An identity from the output of `asdict`; raises `ValueError` for anything else."""
        names = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or set(values) != set(names):
            raise ValueError(f"found the identity {shown(values)!r}, expected {', '.join(names)}")
        for name, value in values.items():
            if type(value) is not (str if name in ("dtype", "weights") else int):
                raise ValueError(f"found {shown(value)!r} as {name}")
        return cls(**values)

    def differences(self, other: Identity) -> list[str]:
        """Readable list of the fields that differ, empty when the two are the same."""
        both = zip(asdict(self).items(), asdict(other).values(), strict=True)
        return [
            f"{name} {str(own)[:12]} against {str(their)[:12]}"
            for (name, own), their in both
            if own != their
        ]
