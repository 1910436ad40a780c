"""How much of what components do depends on what the heuristic core writes.

The claim (arXiv 2403.03942, section 5): heads that generalise work on the outputs of the heuristic
core. For every component r behind a core head, beside its own drop

    D(r)         = metric of the full model - metric without r

stands the drop when r alone does not see the core,

    D(core -> r) = metric of the full model - metric with r blind to the core heads before it,

their ratio, and the same drop for random heads: as many of each layer as the core has, none of them
in it. ``p_control`` is the share of these, the core included, whose drop is at least as large in
size.

The verdict on the claim is by these rules, written before any study was run. Let R be the
components whose information drop out of domain is lost and in domain is not (`component_roles`:
needed out of domain, only or perhaps), and T the mean over R of D(core -> r) in information out of
domain.

1. R is empty, or the drop cannot be taken apart: inconclusive.
2. The 95 % interval of T is above 0, and T is larger than that of the controls with p < 0.05 (one
   sided): supported.
3. The interval is above 0, but T is no larger than that of the controls (p >= 0.05, of at least
   20, as fewer cannot have a smaller p); or its upper end is under the least effect of interest:
   not supported.
4. Otherwise: inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechcore.ablation.effects import METRICS, Answers, ComponentSet, Cut, members_of
from mechcore.ablation.roles import OUT, OUT_ONLY
from mechcore.ablation.sweeping import ablate
from mechcore.components import Component, ComponentLike, ModelShape, parse_components
from mechcore.components.paths import Path, PathSet
from mechcore.data.examples import ALL
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import Evaluation, bootstrap_weights
from mechcore.evaluation.recalibration import decompose, reason_against
from mechcore.masking.blinding import runs_in_parallel
from mechcore.masking.means import MeanActivations
from mechcore.tables import PLACE, Column, N, Schema, estimate
from mechcore.wording import number

SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "supported", "not supported", "inconclusive"
ALPHA = 0.05
_PARTS = ("information", "threshold")

CORE_DEPENDENCE = Schema(
    "core_dependence",
    "How much every component behind the core loses when it alone does not see the core; drops are "
    "shares, of margins nats, positive: worse so.",
    (
        Column("receiver", "text", "the component that does not see the core"),
        *PLACE,
        N,
        Column("metric", "text", "``information``, ``threshold``, ``accuracy`` or ``margin``"),
        *estimate("drop", "number", "without the component", low="drop_low", high="drop_high"),
        *estimate(
            "blind_drop",
            "number",
            "with the component blind to the core",
            low="blind_drop_low",
            high="blind_drop_high",
        ),
        *estimate(
            "share",
            "number",
            "blind_drop / drop, where the interval of drop leaves out 0",
            low="share_low",
            high="share_high",
        ),
        Column("control_drop", "number", "mean of blind_drop over random heads of the same layers"),
        Column("control_low", "number", "2.5 % of these are below"),
        Column("control_high", "number", "2.5 % of these are above"),
        Column("n_controls", "whole", "random sets of heads"),
        Column("p_control", "number", "of so large a blind_drop among them", shown="small"),
    ),
)

CORE_VERDICT = Schema(
    "core_verdict",
    "Whether what generalises reads the core: the verdict and the figures that decide; drops are "
    "of information out of domain, means over the components that are needed out of domain alone.",
    (
        Column("verdict", "text", "``supported``, ``not supported`` or ``inconclusive``"),
        Column("explanation", "text", "the figures in words, or why there are none"),
        Column("n_receivers", "whole", "components behind the core that are needed so"),
        *estimate(
            "blind_drop",
            "points",
            "with each alone blind to the core",
            low="blind_drop_low",
            high="blind_drop_high",
        ),
        Column("control_drop", "points", "blind to random heads of the same layers instead"),
        Column("n_controls", "whole", "random sets of heads"),
        Column("p_control", "number", "of so large a drop among them, one sided", shown="small"),
    ),
)


@dataclass(frozen=True, eq=False)
class Readers:
    """What components that read the core answer, on one data set.

    Attributes:
        full: answers of the full model.
        without: without each component.
        blind: with each component alone blind to the core.
        controls: with each component alone blind to random heads, for each set of these; of all
            components, or of some that are the same for all sets.
        data: name of the data set.
        role: ``"id"`` or ``"ood"``.
    """

    full: Evaluation
    without: Mapping[Component, Answers]
    blind: Mapping[Component, Answers]
    controls: Sequence[Mapping[Component, Answers]]
    data: str
    role: str

    def effects(
        self, answers: Iterable[Answers], members: np.ndarray, seed: int
    ) -> dict[str, Float[np.ndarray, "set example"]]:
        """Drops of each metric, as one value per example whose mean is the drop."""
        full, given = self.full, list(answers)
        found: dict[str, np.ndarray] = {
            metric: full.values(metric)[members]
            - np.stack([each.values(metric)[members] for each in given])
            for metric in METRICS
        }
        correct = full.correct_classes.numpy()[members]
        logits = [each.logits for each in given]
        if reason_against(correct) or any(each is None for each in logits):
            return found
        without = np.stack([each[members] for each in logits if each is not None])
        parts = decompose(full.logits.numpy()[members], without, correct, seed=seed)
        return {name: getattr(parts, name).values for name in _PARTS} | found


def random_senders(
    core: Sequence[Component], shape: ModelShape, n_controls: int, seed: int = 0
) -> list[tuple[Component, ...]]:
    """Random sets of as many heads of each layer as the core has, without core heads.

    Args:
        core: heads.
        shape: of the model.
        n_controls: how many sets.
        seed: of the draws.

    Raises:
        InputError: a layer has too few other heads, or an MLP layer is in the core.
    """
    layers: dict[int, int] = {}
    for head in core:
        if not head.is_head:
            raise InputError(f"core: found {head}; expected heads")
        layers[head.layer] = layers.get(head.layer, 0) + 1
    generator = np.random.default_rng(seed)
    drawn: list[tuple[Component, ...]] = []
    for _ in range(n_controls):
        found: list[Component] = []
        for layer, n in sorted(layers.items()):
            others = [c for h in range(shape.n_heads) if (c := Component(layer, h)) not in core]
            if len(others) < n:
                raise InputError(
                    f"controls: layer {layer} has {len(others)} heads outside the core, which has "
                    f"{n} there; expected at least as many: leave controls out"
                )
            found += [others[i] for i in generator.choice(len(others), n, replace=False)]
        drawn.append(tuple(sorted(found)))
    return drawn


def readers_of(
    model: Any,
    core: Iterable[ComponentLike],
    data: Any,
    means: MeanActivations | None = None,
    *,
    receivers: Iterable[ComponentLike] | None = None,
    n_controls: int = 39,
    controlled: Iterable[ComponentLike] | None = None,
    role: Literal["id", "ood"] = "id",
    seed: int = 0,
    **options: Any,
) -> Readers:
    """What components answer that do not see the core.

    Args:
        model: any TransformerLens model.
        core: heads.
        data: labelled examples of any form, see `mechcore.evaluate`.
        means: the model's mean activations; not needed for ``fill="zero"``.
        receivers: components; by default all that run after a core head.
        n_controls: how many random sets of heads stand beside the core.
        controlled: the components that have controls; by default all.
        role: whether the data is ``"id"`` or ``"ood"``.
        seed: of the controls and draws.
        options: of `mechcore.ablate`.

    Raises:
        InputError: see `random_senders` and `mechcore.ablate`; or no component runs after the core.
    """
    heads, shape = parse_components(core), ModelShape.of(model)
    possible = shape.components if receivers is None else parse_components(receivers)
    cut = cuts_behind(heads, possible, model)
    if not cut:
        raise InputError("core: no component runs after it; expected one that may read it")
    beside = [*cut] if controlled is None else [r for r in parse_components(controlled) if r in cut]
    drawn = random_senders(heads, shape, n_controls, seed) if beside else []
    controls = [cuts_behind(each, beside, model) for each in drawn]
    alone = {r: ComponentSet((r,)) for r in cut}
    sets: list[Cut] = [*alone.values(), *cut.values(), *(s for c in controls for s in c.values())]
    found = ablate(model, list(dict.fromkeys(sets)), data, means, role=role, seed=seed, **options)
    return Readers(
        found.full,
        {r: found.without[each] for r, each in alone.items()},
        {r: found.without[each] for r, each in cut.items()},
        [{r: found.without[each] for r, each in c.items()} for c in controls],
        found.data,
        role,
    )


def cuts_behind(
    senders: Iterable[Component], receivers: Iterable[Component], model: Any
) -> dict[Component, PathSet]:
    """The paths to each receiver from those senders that run before it, where there are any."""
    shape, parallel = ModelShape.of(model), runs_in_parallel(model)
    found = {}
    for receiver in receivers:
        paths = [Path(sender, receiver) for sender in senders]
        if earlier := [path for path in paths if path.runs(shape, parallel=parallel)]:
            found[receiver] = PathSet.of(earlier)
    return found


def core_dependence_table(
    readers: Readers,
    groups: Mapping[str, Sequence[str]] | None = None,
    *,
    n_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """How much each component loses when it alone does not see the core.

    Args:
        readers: the answers.
        groups: subsets to take together under a name, beside every subset and all examples.
        n_resamples: paired bootstrap resamples over examples.
        level: of the intervals.
        seed: of folds and resamples.

    Returns:
        The columns of `CORE_DEPENDENCE`, one row per receiver, subset and metric.

    Raises:
        InputError: a group names an unknown subset.
    """
    rows: list[dict[str, Any]] = []
    names, n_controls = list(readers.blind), len(readers.controls)
    controlled = [*readers.controls[0]] if n_controls else []
    for subset, members in members_of(readers.full, groups) if names else []:
        own = readers.effects((readers.without[r] for r in names), members, seed)
        blind = readers.effects((readers.blind[r] for r in names), members, seed)
        controls = [
            readers.effects((each[r] for r in controlled), members, seed)
            for each in (readers.controls if controlled else [])
        ]
        weights = bootstrap_weights(int(members.sum()), n_resamples, seed)
        for metric in own:
            drops, blind_drops = (each[metric] @ weights for each in (own, blind))
            with np.errstate(divide="ignore", invalid="ignore"):
                shares = blind_drops / drops
                share = blind[metric].mean(1) / own[metric].mean(1)
            of_controls = np.array([each[metric].mean(1) for each in controls])
            for i, receiver in enumerate(names):
                row: dict[str, Any] = {"receiver": str(receiver), "data": readers.data}
                row |= {"role": readers.role, "subset": subset, "n": int(members.sum())}
                row |= {"metric": metric, "n_controls": n_controls * (receiver in controlled)}
                row |= _estimate("drop", own[metric][i].mean(), drops[i], level)
                row |= _estimate("blind_drop", blind[metric][i].mean(), blind_drops[i], level)
                if row["drop_low"] > 0 or row["drop_high"] < 0:
                    row |= _estimate("share", share[i], shares[i], level)
                if receiver in controlled:
                    of_receiver = of_controls[:, controlled.index(receiver)]
                    row |= _control(row["blind_drop"], of_receiver)
                rows.append(row)
    return pd.DataFrame(rows, columns=CORE_DEPENDENCE.names)


def largest_readers(dependence: pd.DataFrame, n: int) -> list[str]:
    """The components that lose most, or gain most, where they do not see the core.

    Args:
        dependence: of `core_dependence_table`, in domain and out of domain.
        n: how many at most.

    Returns:
        Their names, by the size of blind_drop over all examples, out of domain where there are
        such rows, in information where that is known and else in margin.
    """
    rows = dependence[dependence["subset"] == ALL]
    for column, wanted in (("role", "ood"), ("metric", "information")):
        there = (rows[column] == wanted).any()
        if there or column == "metric":
            rows = rows[rows[column] == (wanted if there else "margin")]
    order = rows["blind_drop"].abs().sort_values(ascending=False, kind="stable").index
    return rows.loc[order, "receiver"].tolist()[:n]


@dataclass(frozen=True)
class Verdict:
    """The verdict on the claim; see the columns of `CORE_VERDICT`."""

    verdict: str
    explanation: str
    n_receivers: int = 0
    blind_drop: float = math.nan
    blind_drop_low: float = math.nan
    blind_drop_high: float = math.nan
    control_drop: float = math.nan
    n_controls: int = 0
    p_control: float = math.nan

    def table(self) -> pd.DataFrame:
        """The one row of `CORE_VERDICT`."""
        return pd.DataFrame([asdict(self)])[CORE_VERDICT.names]


def core_dependence_verdict(
    readers: Readers, roles: pd.DataFrame, *, least: float = 0.01, seed: int = 0
) -> Verdict:
    """The verdict on the claim that what generalises reads the core, by the rules of this module.

    Args:
        readers: the answers out of domain.
        roles: of `component_roles`.
        least: least effect of interest, a share of balanced accuracy.
        seed: of folds and resamples.
    """
    generalise = roles[roles["role"].isin([OUT, OUT_ONLY])]["component"]
    names = [r for r in readers.blind if str(r) in set(generalise)]
    if not names:
        why = "no component behind the core is needed out of domain alone"
        return Verdict(INCONCLUSIVE, why)
    everything = np.ones(len(readers.full.correct), dtype=bool)
    values = readers.effects((readers.blind[r] for r in names), everything, seed)
    if "information" not in values:
        reason = reason_against(readers.full.correct_classes.numpy())
        return Verdict(INCONCLUSIVE, reason or "the logits were not kept", len(names))
    each = values["information"].mean(0)  # over receivers
    means = each @ bootstrap_weights(len(each), 1000, seed)
    low, high = np.quantile(means, [0.025, 0.975])
    total = each.mean()
    controls = [
        readers.effects((c[r] for r in names), everything, seed)["information"].mean()
        for c in readers.controls
        if all(r in c for r in names)
    ]
    p = (1 + sum(control >= total for control in controls)) / (1 + len(controls))
    mean = float(np.mean(controls)) if controls else math.nan
    n, noun = len(names), "component" if len(names) == 1 else "components"
    text = (
        f"blind to the core, the {n} {noun} that {'is' if n == 1 else 'are'} needed out of domain "
        f"alone {'loses' if n == 1 else 'lose'} {number(100 * total, 1)} points of information out "
        f"of domain on average ({number(100 * low, 1)} to {number(100 * high, 1)}); "
    )
    text += (
        f"blind to as many random heads of the same layers {number(100 * mean, 1)} "
        f"({len(controls)} sets, p = {p:.2g})"
        if controls
        else "nothing stands beside it, as no random heads were tried"
    )
    verdict = INCONCLUSIVE
    if low > 0 and p < ALPHA:
        verdict = SUPPORTED
    elif (low > 0 and 1 / (1 + len(controls)) < ALPHA) or high < least:
        verdict = NOT_SUPPORTED
    figures = (float(each) for each in (total, low, high, mean))
    return Verdict(verdict, text, n, *figures, len(controls), p if controls else math.nan)


def _estimate(name: str, value: float, resampled: np.ndarray, level: float) -> dict[str, float]:
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    return {name: float(value), f"{name}_low": float(low), f"{name}_high": float(high)}


def _control(drop: float, controls: np.ndarray) -> dict[str, float]:
    low, high = np.quantile(controls, [0.025, 0.975])
    p = (1 + int((np.abs(controls) >= abs(drop)).sum())) / (1 + len(controls))
    return {"control_drop": controls.mean(), "control_low": low, "control_high": high} | {
        "p_control": p
    }
