"""Matching a data set's label names to a model's classes, always by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mechcore.data.examples import UNDECIDED
from mechcore.data.formats import label_key
from mechcore.errors import InputError, first_names, shown, warn

if TYPE_CHECKING:
    from jaxtyping import Bool
    from torch import Tensor

_GENERIC = re.compile(r"label_?\d+|[-+]?\d+(?:\.\d+)?", re.IGNORECASE)
_NEGATION = re.compile(r"(?:non|not)\s+(.+)")

_MOST_LABELS = 5  # number of labels that a message lists


@dataclass(frozen=True)
class LabelMap:
    """Which of a model's classes count as correct for each label of the data.

    A label with the name of a class stands for that class; ``non-X`` and ``not X`` stand for all
    classes but X, so a three-way model can be scored on two-way data. Case, ``-``, ``_`` and
    spaces do not matter. Indices are never matched with each other: their order differs between
    published checkpoints.
    """

    classes: tuple[str, ...]
    correct: Mapping[str, frozenset[int]]

    @classmethod
    def between(
        cls,
        labels: Iterable[str],
        classes: Sequence[str],
        *,
        data: str | None = None,
        answers: bool = False,
    ) -> LabelMap:
        """Map every label name to indices of classes, or of a model's ``answers``."""
        if are_generic(classes):
            raise InputError(
                f"label names: the checkpoint names its classes {', '.join(classes)}, which does "
                "not tell their meaning; name them in index order with "
                "--class-names (class_names= in Python), or set id2label in its config.json (as "
                "many names as its num_labels, if set)"
            )
        index = {normal_name(name): i for i, name in enumerate(classes)}
        if len(index) < len(classes):
            raise InputError(
                f"label names: classes {', '.join(classes)} are not distinct; give each its own "
                "name with --class-names (class_names= in Python)"
            )
        classes_of = {label: _classes_of(label, index) for label in labels}
        if unknown := [label for label, correct in classes_of.items() if not correct]:
            place = "" if data is None else f"examples {data!r}: "
            raise InputError(f"{place}{_refusal(unknown, classes, answers)}")
        return cls(tuple(classes), classes_of)

    def matrix(self, labels: Iterable[str]) -> Bool[Tensor, "example class"]:
        """Correct classes of each example."""
        import torch

        rows = {
            label: torch.tensor([i in correct for i in range(len(self.classes))])
            for label, correct in self.correct.items()
        }
        return torch.stack([rows[label] for label in labels])

    def __str__(self) -> str:
        return "; ".join(
            f"{label} -> {' or '.join(f'{self.classes[i]} ({i})' for i in sorted(classes))}"
            for label, classes in self.correct.items()
        )


def by_index(names: Any) -> dict[int, Any] | None:
    """The names of classes by index, of an ``id2label`` or a list in order; None for neither."""
    try:
        pairs = enumerate(names) if isinstance(names, (list, tuple)) else names.items()
        return {int(index): name for index, name in pairs}
    except (AttributeError, TypeError, ValueError):
        return None


def class_names(
    config: Any, owner: str, n_rows: int, given: Sequence[str] | None = None
) -> list[str]:
    """The names of a classifier's ``n_rows`` classes in index order, or those ``given`` instead.

    Raises:
        InputError: ``given`` has the wrong length; or, without it, the configuration does not
            name each row by its index, or contradicts itself.
    """
    if given is not None:
        if len(given) != n_rows:
            raise InputError(
                f"class names: {len(given)} given ({', '.join(given)}), but the checkpoint has "
                f"{n_rows} classes"
            )
        indices = {normal_name(name): index for name, index in _indices(config).items()}
        if any(indices.get(normal_name(name)) != i for i, name in enumerate(given)):
            known = [str(name) for _, name in sorted((by_index(config.id2label) or {}).items())]
            new, old = ([normal_name(name) for name in names] for names in (given, known))
            if new != old and sorted(new) == sorted(old):
                warn(
                    f"class names: {', '.join(given)} are the checkpoint's own names in another "
                    f"order; its index order is {', '.join(known)}. The given order is used: leave "
                    "it out (--class-names; class_names in Python) unless the config.json is wrong"
                )
        return list(given)
    names = names_in(config, owner)
    if len(names) != n_rows:
        raise InputError(
            f"{owner}: its head has {n_rows} rows, but config.id2label {len(names)} names "
            f"({first_names(names, 6)}); expected a name for each row: set config.id2label, or "
            "give class names (--class-names; class_names= in Python)"
        )
    check_agree(config, owner)
    return names


def names_in(config: Any, owner: str) -> list[str]:
    """Class names in index order from ``id2label``, or ``label2id`` if it has only numbers."""
    id2label = by_index(config.id2label) or {}
    names = [id2label.get(i) for i in range(len(id2label))]
    if not names or any(name is None or not str(name).strip() for name in names):
        known = first_names([f"{i}: {name}" for i, name in sorted(id2label.items())], 6)
        raise InputError(
            f"{owner}: the id2label of its config.json has {known or 'nothing'}; expected a name "
            f"for each of 0 to {len(names) - 1}, the rows of its head: number the classes from 0, "
            "and name each"
        )
    named = [str(name) for name in names]
    if are_generic(named):
        indices = _indices(config)
        if sorted(indices.values()) == list(range(len(named))) and not are_generic(indices):
            return sorted(indices, key=indices.__getitem__)
    return named


def check_agree(config: Any, owner: str) -> None:
    """Raise `InputError` unless ``id2label`` and ``label2id`` agree on each name's index."""
    places: dict[str, set[int]] = {}
    for i, name in enumerate(names := names_in(config, owner)):
        places.setdefault(normal_name(name), set()).add(i)
    other = {
        name: index
        for name, index in _indices(config).items()
        if index not in places.get(normal_name(name), {index})
    }
    if other and not are_generic(names):
        disputed = {normal_name(name) for name in other}
        own = [f"{i}: {name}" for i, name in enumerate(names) if normal_name(name) in disputed]
        raise InputError(
            f"{owner}: its config.json contradicts itself: id2label has {first_names(own, 6)}, but "
            f"label2id has {first_names([f'{name}: {i}' for name, i in other.items()], 6)}; find "
            "out which is right (for example by in-domain accuracy) and give the names in index "
            "order with --class-names (class_names= in Python), or correct the wrong one"
        )


def _indices(config: Any) -> dict[str, int]:
    """The index of each name of a ``label2id``; empty if it cannot be read, as it is optional."""
    try:
        return {str(name): int(index) for name, index in config.label2id.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def are_generic(names: Iterable[str]) -> bool:
    """Whether names of classes are only numbers, with or without the word label."""
    return all(_GENERIC.fullmatch(name.strip()) for name in names)


def normal_name(name: str) -> str:
    """A name without regard to case, ``-``, ``_`` and repeated spaces."""
    return " ".join(name.lower().replace("-", " ").replace("_", " ").split())


def _classes_of(label: str, index: Mapping[str, int]) -> frozenset[int]:
    """The classes that a label stands for; empty if it matches none."""
    name = normal_name(label)
    if name in index:
        return frozenset({index[name]})
    negation = _NEGATION.fullmatch(name)
    if negation and negation[1] in index:
        return frozenset(index.values()) - {index[negation[1]]}
    return frozenset()


def _refusal(unknown: Sequence[str], classes: Sequence[str], answers: bool) -> str:
    """A message about labels that match no class."""
    label, known = unknown[0], ", ".join(classes)
    name = "NAME" if answers else "CLASS"
    none = {name for name in unknown if label_key(name) == "-1"}
    end = f"; {UNDECIDED} skips rows without a label, the usual meaning of -1" * bool(none)
    pairs = [
        f"{label.strip()}={UNDECIDED if label in none else name}"
        for label in unknown[:_MOST_LABELS]
    ]
    how = f"--label-map {shown(','.join(pairs))} (label_map= in Python)"
    if answers:
        return (
            f"label {label!r}: no answer; --answers has {known}: add its answer, or "
            f"rename it with {how}{end}"
        )
    if are_generic([label]):
        hint = f"numbers have no agreed meaning: name them with {how}"
    else:
        hint = f"map it to a class with {how}, or rename the classes with --class-names"
    return f"label {label!r}: not a class of the checkpoint, which has {known}; {hint}{end}"
