"""Small programs that transformers are trained to implement, and their texts.

A program reads the slots of a text and computes variables, each aligned with one component of the
model. A slot is one word of the text; its value is a whole number from 1, or 1 and -1 for true and
false. The last variable is the answer, 1 for yes and -1 for no.

Values can be interchanged: a variable takes its value from another text. They can also be removed:
a variable then has its value ``absent``, mostly 0, which stands for unknown, and rules define the
result of knowing less. This is what ablating a component to its mean does to the model.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, combinations, product
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechcore.ablation.sets import ComponentSet
from mechcore.bench.case import Truth
from mechcore.components import Component
from mechcore.errors import InputError
from mechcore.worlds.draws import pick

Values: TypeAlias = Mapping[str, Int[Tensor, " row"]]
"""Values of slots or variables by name."""
Swaps: TypeAlias = Mapping[str, tuple[Bool[Tensor, " row"], Int[Tensor, " row"]]]
"""By name of a variable, the rows with a replaced value, and the new values."""
Split: TypeAlias = Literal["train", "id", "ood"]

LABELS = {-1: "no", 1: "yes"}
FILLERS = ("a", "lamp", "tree", "road", "boat", "hill", "coin")
"""Words without meaning. `mechcore.models.load_tokenizer` tries tokenizers on an "a"."""
END = "?"
"""Last word of texts for decoders, which answer there."""
MINORITY = 0.3
"""Share of untypical texts in training data, if any."""


@dataclass(frozen=True)
class Variable:
    """A variable of a program.

    Attributes:
        name: its name in tables.
        component: the component aligned with the variable.
        reads: slots and earlier variables that it is computed from.
        rule: the computation, from their values to the variable's.
        absent: its value if the component is ablated to its mean.
    """

    name: str
    component: Component
    reads: tuple[str, ...]
    rule: Callable[..., Tensor]
    absent: int = 0


@dataclass(frozen=True)
class Text:
    """The words of a text, and the values of its slots."""

    words: tuple[str, ...]
    slots: Mapping[str, int]


@dataclass(frozen=True)
class Program:
    """The computation of a trained model, and where each part happens.

    Attributes:
        slots: for every slot, the words for each of its values.
        variables: in order of computation, the answer last.
        architecture: of the model that implements it.
        n_layers: of that model.
        fillers: minimum and maximum number of words of a text that are not slots.
        shuffled: whether slots are anywhere; otherwise they follow the fillers in order.
        possible: the values of slots that texts can have; any if None.
        typical: the variable that is 1 in every in-domain text and -1 in every out-of-domain text;
            without one there are no out-of-domain texts.
    """

    slots: Mapping[str, Mapping[int, tuple[str, ...]]]
    variables: tuple[Variable, ...]
    architecture: Literal["encoder", "decoder"]
    n_layers: int = 2
    fillers: tuple[int, int] = (1, 4)
    shuffled: bool = True
    possible: Callable[[Values], Tensor] | None = None
    typical: str | None = None
    _combinations: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        known = set(self.slots)
        for variable in self.variables:
            if unknown := set(variable.reads) - known:
                raise InputError(
                    f"program: variable {variable.name!r} reads {', '.join(sorted(unknown))}; "
                    f"expected slots or earlier variables: {', '.join(sorted(known))}"
                )
            known.add(variable.name)
        rows = list(product(*self.slots.values()))
        table = {
            slot: torch.tensor(column)
            for slot, column in zip(self.slots, zip(*rows, strict=True), strict=True)
        }
        if self.possible is not None:
            kept = self.possible(table)
            table = {slot: column[kept] for slot, column in table.items()}
        self._combinations.update(table)

    @property
    def answer(self) -> str:
        """Name of the answer variable."""
        return self.variables[-1].name

    @property
    def words(self) -> list[str]:
        """All words of its texts."""
        of_slots = chain.from_iterable(w for of in self.slots.values() for w in of.values())
        end = (END,) if self.architecture == "decoder" else ()
        return list(dict.fromkeys((*FILLERS, *of_slots, *end)))

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that it has texts for."""
        return ("train", "id") if self.typical is None else ("train", "id", "ood")

    def run(self, slots: Values, swaps: Swaps | None = None) -> dict[str, Int[Tensor, " row"]]:
        """Values of all variables.

        Args:
            slots: values of the slots.
            swaps: variables with replaced values, which variables that read them then see.
        """
        values = dict(slots)
        for variable in self.variables:
            own = variable.rule(*(values[name] for name in variable.reads))
            if swaps and variable.name in swaps:
                where, other = swaps[variable.name]
                own = torch.where(where, other, own)
            values[variable.name] = own
        return {variable.name: values[variable.name] for variable in self.variables}

    def without(self, slots: Values, names: Collection[str]) -> Int[Tensor, " row"]:
        """The answer if these variables are absent."""
        rows = torch.ones_like(next(iter(slots.values())))
        swaps = {v.name: (rows > 0, v.absent * rows) for v in self.variables if v.name in names}
        return self.run(slots, swaps)[self.answer]

    def population(self, split: Split) -> tuple[Values, Float[Tensor, " row"]]:
        """Every combination of slot values, and its frequency in texts of this split.

        Both answers are equally frequent, as are all combinations with the same answer and
        typicality.
        """
        values = self.run(self._combinations)
        typical = {"train": 1 - MINORITY, "id": 1.0, "ood": 0.0}[split]
        weights = torch.zeros(len(values[self.answer]), dtype=torch.float64)
        untypical = None if self.typical is None else values[self.typical] < 0
        for sign in LABELS:
            answers = values[self.answer] == sign
            if untypical is None:
                weights += 0.5 * answers / answers.sum()
            else:
                for share, among in ((typical, ~untypical), (1 - typical, untypical)):
                    weights += 0.5 * share * (answers & among) / (answers & among).sum()
        return self._combinations, weights

    def change(self, names: Collection[str], split: Split = "id") -> float:
        """Mean change in the answer's margin if these variables are absent; -1 is all of it."""
        slots, weights = self.population(split)
        right = self.run(slots)[self.answer]
        return float((weights * (right * self.without(slots, names) - 1)).sum())

    def truth(self, margin: float) -> Truth:
        """The truth about a model that implements this program, on the in-domain population.

        Args:
            margin: the margin of its answers, in nats.
        """
        component = {v.name: v.component for v in self.variables}
        interactions = {}
        for pair in combinations(component, 2):
            size = self.change(pair) - sum(self.change([name]) for name in pair)
            if abs(size) > 1e-9:
                interactions[ComponentSet.of([component[name] for name in pair])] = margin * size
        enough = [
            kept for kept in subsets(component) if self.change(set(component) - set(kept)) > -1e-9
        ]
        fewest = [kept for kept in enough if len(kept) == len(enough[0])]
        return Truth(
            frozenset(component.values()),
            interactions,
            frozenset(component[name] for name in fewest[0]) if len(fewest) == 1 else None,
            None
            if self.typical is None
            else frozenset(
                component[name]
                for name in component
                if self.change([name], "ood") < -1e-9 < self.change([name], "id")
            ),
        )

    def texts(self, split: Split, n: int, seed: int) -> list[Text]:
        """Draw ``n`` texts of a split."""
        rng = random.Random(f"{split} {seed}")
        choose = self._chooser(split, rng)
        return [self._text(choose(), None, rng) for _ in range(n)]

    def pairs(self, texts: Sequence[Text], split: Split, seed: int) -> list[Text]:
        """For each of these texts, draw one of a split with the same length and another answer."""
        rng = random.Random(f"{split} pairs {seed}")
        choose = {sign: self._chooser(split, rng, sign) for sign in LABELS}
        answers = self.run(values_of(texts))[self.answer].tolist()
        return [
            self._text(choose[-sign](), len(text.words), rng)
            for text, sign in zip(texts, answers, strict=True)
        ]

    def _chooser(
        self, split: Split, rng: random.Random, answer: int | None = None
    ) -> Callable[[], dict[str, int]]:
        """Draws slot values of texts, of all or of those with one answer."""
        slots, weights = self.population(split)
        if answer is not None:
            weights = weights * (self.run(slots)[self.answer] == answer)
        columns = [column[weights > 0].tolist() for column in slots.values()]
        rows = [dict(zip(slots, row, strict=True)) for row in zip(*columns, strict=True)]
        bounds = list(accumulate(weights[weights > 0].tolist()))
        last = len(rows) - 1
        return lambda: rows[bisect(bounds, rng.random() * bounds[-1], hi=last)]

    def _text(self, slots: Mapping[str, int], n_words: int | None, rng: random.Random) -> Text:
        end = [END] if self.architecture == "decoder" else []
        least, most = self.fillers
        n_fillers = (
            pick(range(least, most + 1), rng)
            if n_words is None
            else n_words - len(slots) - len(end)
        )
        words = [pick(FILLERS, rng) for _ in range(n_fillers)]
        for slot, value in slots.items():
            place = int(rng.random() * (len(words) + 1)) if self.shuffled else len(words)
            words.insert(place, pick(self.slots[slot][value], rng))
        return Text((*words, *end), slots)


def values_of(texts: Sequence[Text]) -> dict[str, Int[Tensor, " row"]]:
    """Values of the slots of texts."""
    return {name: torch.tensor([text.slots[name] for text in texts]) for name in texts[0].slots}


def subsets(names: Collection[str]) -> Iterable[tuple[str, ...]]:
    """All sets of these names, the empty one first."""
    return chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))
