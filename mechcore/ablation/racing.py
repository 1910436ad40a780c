"""Racing: deciding for each of many sets how large its effect is, from as few examples as it takes.

Every set is ablated on a first few examples, drawn at random. Those whose effect is then known well
enough are decided; the others go on to more examples, up to all of them, where the effect is exact.
What is known are confidence sequences (`mechcore.evaluation.sequences`), which hold at every look,
and for all sets at once: each set has its part of the error rate. Effects are those on all the
examples given; the order of the examples is what is left to chance.

How far the mean of a few examples may be from that of all depends on how large the effect on one
can be. Of answers that is known. Of margins it is not: one example is taken to have no more than
1.5 times (`mechcore.ablation.deciding.BEYOND`) the largest effect seen. What happens in one
example of a hundred, and is large there, may not be seen in the first few: sets drawn at random can
go on to the end whatever is decided (``n_audited``), and show how often a decision is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from jaxtyping import Bool

from mechcore.ablation.deciding import BEYOND, Effect, Effects, Goal
from mechcore.ablation.effects import ComponentSet, SetLike, as_sets
from mechcore.ablation.sweeping import ablate
from mechcore.components.paths import PathSet
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import Metric, check_metric
from mechcore.evaluation.intervals import share_at_most
from mechcore.masking.counterfactual import of_rows, with_pairs
from mechcore.masking.means import MeanActivations
from mechcore.models.encoded import as_encoded
from mechcore.showing import Shown

FIRST_LOOK = 32
"""Examples that every set is ablated on."""
GROWTH = 1.4
"""Examples seen at a look, as a multiple of those at the one before."""


@dataclass(frozen=True, eq=False, repr=False)
class Race(Shown):
    """What was decided, and what it took.

    Attributes:
        sets: what was ablated.
        decisions: the columns of `DECISIONS`, in the order of the sets.
        audit: the columns of `AUDIT`, of the sets that went on to the end.
        metric: of the effects.
        least: effect of interest; None where the ``largest`` sets were wanted.
        largest: how many were wanted.
        error: probability that any decision is wrong.
        n_examples: there are.
        n_looks: after how many examples decisions were made, in turn.
        layers: evaluations of a layer on one example, in all.
        exact_layers: what all sets on all examples would have taken.
    """

    sets: tuple[ComponentSet, ...]
    decisions: pd.DataFrame
    audit: pd.DataFrame
    metric: Metric
    least: float | None
    largest: int | None
    error: float
    n_examples: int
    n_looks: tuple[int, ...]
    layers: float
    exact_layers: float

    def decided(self, decision: str) -> list[ComponentSet]:
        """The sets with a decision, largest effects first."""
        made, effects = self.decisions["decision"], self.effects
        found = [each for each, its in zip(self.sets, made, strict=True) if its == decision]
        return sorted(found, key=lambda each: -effects[each])

    @property
    def effects(self) -> dict[ComponentSet, float]:
        """Mean effect of every set over the examples that it was seen on."""
        return dict(zip(self.sets, self.decisions["effect"], strict=True))

    @property
    def wrong(self) -> tuple[int, float]:
        """Wrong decisions in the audit, and the largest share of all that may be, at 95 %."""
        n_wrong = int((~self.audit["right"].astype(bool)).sum())
        return n_wrong, share_at_most(n_wrong, len(self.audit))

    def describe(self) -> str:
        """What was decided, at which cost, and what the decisions are worth, in a few sentences."""
        margin = self.metric == "margin"
        unit = " nats" if margin else ""
        sure = f" if no text has {BEYOND:g} times the largest effect seen" if margin else ""
        size = f" (size {self.least:g}{unit} or less)" if self.least is not None else ""
        counts = self.decisions["decision"].value_counts()
        found = ", ".join(
            f"{n} {name}{size if name == 'within' else ''}" for name, n in counts.items()
        )
        seen = self.decisions["n"]
        share = self.layers / self.exact_layers
        text = (
            f"{found}; decided on {seen.min()} to {seen.max()} of {self.n_examples} examples, half "
            f"of the sets on {seen.median():g} at most, with {share:.1%} of the layer evaluations "
            f"of all sets on all examples; about these examples, any decision is wrong with a "
            f"probability of {self.error:g} at most{sure}"
        )
        if len(self.audit):
            n_wrong, most = self.wrong
            text += f"; {n_wrong} of {len(self.audit)} audited are wrong, so at most {most:.1%} are"
        return text

    def _summary(self) -> str:
        return self.describe()


def race(
    model: Any,
    sets: Sequence[SetLike],
    data: Any,
    means: MeanActivations | None = None,
    *,
    effect: Effect = "interaction",
    metric: Metric = "margin",
    least: float | None = None,
    largest: int | None = None,
    error: float = 0.05,
    most_examples: int | None = None,
    n_audited: int = 0,
    seed: int = 0,
    state: str | Path | None = None,
    **options: Any,
) -> Race:
    """Decide how large the effect of every set is, with a probability of error for all together.

    Either which effects are larger than ``least``, or which are the ``largest`` ones.

    Args:
        model: any TransformerLens model.
        sets: what to ablate, see `mechcore.ablate`.
        data: labelled examples of any form, see `mechcore.data.given`.
        means: the model's mean activations; not needed for ``fill="zero"``.
        effect: ``"interaction"``, the drop of a set beyond the sum of its members' drops, or
            ``"drop"``.
        metric: ``"margin"`` or ``"accuracy"``.
        least: least effect of interest, in nats of margin, or as a share of the answers.
        largest: how many sets with the largest effects are wanted.
        error: probability that any decision is wrong. For accuracy it holds as it is; for
            margins as far as no effect is much larger than those seen, see above.
        most_examples: after which the race ends and leaves sets open; None for all.
        n_audited: sets, drawn at random, that go on to the end whatever was decided, to count
            wrong decisions: none of 60 leaves at most 5 % wrong. They may cost as much as the race.
        seed: of the order of the examples, the sets audited, and the fill.
        state: folder for files that keep what is finished; an interrupted race goes on from them.
            They stay when all is finished.
        options: see `mechcore.ablate`.

    Returns:
        Decisions on the mean effect over the examples given.

    Raises:
        InputError: not one of ``least`` and ``largest`` is given, a number is out of range, the
            metric is unknown, a set is unreadable, of paths, or has no interaction; or ``state`` is
            that of another race.

    >>> race(model, sets.pairs(components), hans, means, least=0.1).decisions  # doctest: +SKIP
    """
    check_metric(metric)
    data = as_encoded(model, data, role=options.get("role", "id"))
    n_all, chosen = len(data), _checked(as_sets(sets, model), effect)
    goal = Goal(least, largest)
    check_goal(error, least, largest)
    _check_numbers(n_all, most_examples, n_audited)
    known = Effects(chosen, n_all, metric, effect, error / len(chosen))
    fill = with_pairs(options.pop("fill", "mean"), data, seed)  # pairs do not depend on the looks
    generator = np.random.default_rng(seed)
    order = generator.permutation(n_all)
    audited = np.zeros(len(chosen), dtype=bool)
    audited[generator.permutation(len(chosen))[:n_audited]] = True

    def see(running: Bool[np.ndarray, " set"], start: int, stop: int, name: str) -> float:
        """Layer evaluations that it took for one example."""
        rows, drawn = np.flatnonzero(running), order[start:stop].tolist()
        found = ablate(
            model,
            known.needed(rows),
            data.part(drawn),
            means,
            fill=of_rows(fill, drawn),
            seed=seed,
            state=None if state is None else Path(state) / f"race-{name}.safetensors",
            **options,
        )
        known.see(found, rows, start, stop)
        assert found.layers is not None
        return found.layers

    after: list[int] = []
    costs: list[float] = []
    for stop in looks(min(n_all, most_examples or n_all)):
        start = after[-1] if after else 0
        costs.append(see(known.open | audited, start, stop, str(stop)))
        after.append(stop)
        known.decide(goal, stop)
        if not known.open.any():
            break
    layers = float(np.dot(costs, np.diff(after, prepend=0)))
    if audited.any() and after[-1] < n_all:
        layers += see(audited, after[-1], n_all, "audit") * (n_all - after[-1])
    return Race(
        tuple(chosen),
        known.table(data.examples.name, options.get("role", "id")),
        known.audit(np.flatnonzero(audited), goal),
        metric,
        least,
        largest,
        error,
        n_all,
        tuple(after),
        layers,
        costs[0] * n_all,
    )


def check_goal(error: float, least: float | None, largest: int | None) -> None:
    """Make sure that there is something to decide, and an error rate.

    Raises:
        InputError: there is not.
    """
    Goal(least, largest)
    if not 0 < error < 1:
        raise InputError(f"race: error is {error}; expected a probability between 0 and 1")


def looks(n: int) -> Iterator[int]:
    """After how many examples to look, up to ``n``."""
    stop = float(FIRST_LOOK)
    while stop < n:
        yield int(stop)
        stop *= GROWTH
    yield n


def _checked(sets: Sequence[Any], effect: Effect) -> list[ComponentSet]:
    if effect not in get_args(Effect):
        raise InputError(f"race: effect is {effect!r}; expected 'interaction' or 'drop'")
    if not sets:
        raise InputError("race: no set; expected at least one")
    for each in sets:
        if isinstance(each, PathSet):
            raise InputError(f"race: {each} is a set of paths; expected sets of components")
        if effect == "interaction" and len(each) < 2:
            raise InputError(
                f"race: {each} has no interaction; expected two components or more, or effect "
                "'drop'"
            )
    return list(sets)


def _check_numbers(n: int, most_examples: int | None, n_audited: int) -> None:
    if n < 2:
        raise InputError(f"race: {n} examples; expected at least 2")
    if most_examples is not None and most_examples < 2:
        raise InputError(f"race: most_examples is {most_examples}; expected at least 2")
    if n_audited < 0:
        raise InputError(f"race: n_audited is {n_audited}; expected 0 or more sets")
