"""Made-up run folders: the tables of a study, with plausible numbers and no model behind them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from mechcore.ablation.effects import changes
from mechcore.ablation.effects.dose import COLUMNS, DOSE
from mechcore.ablation.effects.flips import FLIPS
from mechcore.ablation.effects.information import INFORMATION
from mechcore.ablation.effects.roles import component_roles
from mechcore.ablation.effects.stability import STABILITY
from mechcore.ablation.joint import exact
from mechcore.ablation.paths.dependence import CORE_DEPENDENCE
from mechcore.ablation.paths.tables import PATHS
from mechcore.ablation.paths.verdict import CORE_VERDICT
from mechcore.components import Component, Mask, ModelShape
from mechcore.evaluation.recalibration import ONE_LABEL
from mechcore.steps import tables
from mechcore.steps.tables import group_table
from mechcore.subnetworks.core import HEAD_FREQUENCY, head_overlap, heuristic_core
from mechcore.subnetworks.effective_size import EFFECTIVE_SIZE, mean_effective_size
from mechcore.subnetworks.halves import half_cores, half_overlap
from mechcore.subnetworks.smallest import SMALLEST

CATEGORIES = ("first", "separator", "self", "previous", "next", "repeated", "other")
TOKENS = "[CLS] the judge who the actor ad ##mired saw a bird . [SEP] the actor saw a bird . [SEP]"


@dataclass(frozen=True)
class World:
    """What to write a run about."""

    n_layers: int = 4
    n_heads: int = 8
    seeds: Sequence[int] = (0, 1, 2)
    target_sparsities: Sequence[float] = (0.5, 0.7)
    id_data: Sequence[str] = ("tiny-id",)
    ood_data: str = "tiny-ood"
    subsets: Sequence[str] = ("so_swap", "preposition", "embedded_under_if", "embedded_under_verb")
    core: Sequence[str] = ("L0.H3", "L1.H5", "L2.H2", "L3.H0")
    joint: Sequence[Sequence[str]] | None = None
    source: str = "checkpoints/tiny-world"
    sweep: bool = False
    superadditive: Sequence[str] = ()
    checkpoints: Sequence[int] = ()
    training: Sequence[int] = ()
    balance: bool = False
    groups: Mapping[str, Sequence[str]] | None = None
    n_cut: int = 0
    roles: bool = False
    paths: bool = False
    one_label: bool = False
    smallest: bool = False
    stability: bool = False

    @property
    def shape(self) -> ModelShape:
        return ModelShape(self.n_layers, self.n_heads)

    def places(self, all_subsets: bool = True) -> Iterator[tuple[str, str, str, int]]:
        """(data, split, subset, n)."""
        for name in self.id_data:
            yield name, "id", "all", 2000
        yield self.ood_data, "ood", "all", 500 * len(self.subsets)
        if all_subsets:
            for subset in self.subsets:
                yield self.ood_data, "ood", subset, 500


def write_run(path: Path, world: World = World()) -> Path:
    """Write every file of a run; an empty core leaves no ablation rows and no interactions."""
    rng = np.random.default_rng(0)
    folder = path / "tables"
    folder.mkdir(parents=True)
    places = list(world.places())
    full = {
        place[:3]: 0.97 - 0.01 * i if place[1] == "id" else float(rng.uniform(0.2, 0.7))
        for i, place in enumerate(places)
    }

    def save(name: str, rows: Sequence[Any], columns: Sequence[str]) -> None:
        pd.DataFrame(rows, columns=pd.Index(columns)).to_csv(folder / f"{name}.csv", index=False)

    def save_table(name: str, table: pd.DataFrame) -> None:
        save(name, table.to_dict("records"), list(table.columns))

    accuracy_rows: list[tuple[Any, ...]] = []
    runs: list[tuple[str, float | None, int | None]] = [("full", None, None)]
    runs += [
        (f"s{s:.2f}-seed{seed}", s, seed) for s in world.target_sparsities for seed in world.seeds
    ]
    for name, target_sparsity, seed in runs:
        for data, split, subset, n in places:
            value = full[data, split, subset]
            if target_sparsity is not None:
                loss = rng.uniform(0.01, 0.05) if split == "id" else rng.uniform(-0.1, 0.4)
                value = float(np.clip(value - target_sparsity * loss, 0, 1))
            half = 1.96 * np.sqrt(value * (1 - value) / n)
            margin = 8 * value - 4
            row = (name, target_sparsity, seed, data, split, subset, n, value, value - half)
            accuracy_rows.append((*row, value + half, margin))
    accuracy = pd.DataFrame(accuracy_rows, columns=pd.Index(ACCURACY))
    of_groups = [] if world.groups is None else [group_table(accuracy, world.groups)]
    save_table("accuracy", pd.concat([accuracy, *of_groups]))
    all_examples = accuracy[accuracy["subset"] == "all"].itertuples()
    whole = {(row.subnetwork, row.split): row.accuracy for row in all_examples}

    subnetworks, kept_by = [], {}
    heads = [str(head) for head in world.shape.heads]
    components = [str(component) for component in world.shape.components]
    score = rng.normal(size=len(heads))
    for name, target_sparsity, seed in runs[1:]:
        assert target_sparsity is not None
        noisy = dict(zip(heads, score + rng.normal(scale=0.7, size=len(heads)), strict=True))
        noisy.update(dict.fromkeys(world.core, 9.0))
        n_heads = round((1 - target_sparsity) * len(heads))
        kept = [*sorted(noisy, key=noisy.__getitem__)[-n_heads:]]
        mlps = [f"L{i}.MLP" for i in range(world.n_layers) if rng.random() < 0.9]
        kept_by[name] = {*kept, *mlps}
        of_run = [whole[name, split] for split in ("id", "ood")]
        values = (name, target_sparsity, seed, 1 - len(kept_by[name]) / len(components))
        values += (1 - n_heads / len(heads), n_heads, len(mlps), float(rng.uniform(0.05, 0.3)))
        subnetworks.append((*values, *of_run, " ".join([*kept, *mlps])))
    save("subnetworks", subnetworks, SUBNETWORKS)

    frequency = []
    for target_sparsity in world.target_sparsities:
        names = [name for name, other, _ in runs if other == target_sparsity]
        for component in world.shape.components:
            count = sum(str(component) in kept_by[name] for name in names)
            place = (str(component), component.layer, component.head, target_sparsity)
            frequency.append((*place, len(names), count, count / len(names)))
    save("head_frequency", frequency, FREQUENCY)
    masks = [Mask.full(world.shape).only(kept_by[name]) for name, *_ in runs[1:]]
    save_table("head_overlap", head_overlap(masks, [name for name, *_ in runs[1:]]))

    chance = heuristic_core(masks)
    size = (" ".join(world.core), len(world.core), len(runs) - 1, len(heads), 0.368)
    by_chance = (chance.expected, 2.3e-7 if world.core else 1.0)
    extreme = (min(world.target_sparsities), max(world.target_sparsities))
    values = (*size, *by_chance, chance.expected_uniform, chance.p_uniform, 0.79, 8e-8, *extreme)
    verdict = VERDICT if world.paths and world.core else {}
    save("core", [(*values, *verdict.values())], [*CORE, *verdict])

    if world.core:
        _write_ablation(save, world, full, rng)
    else:
        save("ablation", [], ABLATION)
        save("interactions", [], INTERACTIONS)
    if world.sweep:
        singles = [((name,), "single") for name in components]
        weights = {name: float(rng.normal(0.02, 0.05)) for name in components}
        rows, _ = _ablated(singles, weights, world, full, rng)
        sweep = pd.DataFrame(rows, columns=pd.Index(ABLATION))
        if world.roles:
            information = _write_roles(save, world, components)
            sweep = sweep.merge(information.drop(columns="n"), "left", [*WHERE, "size"])
        save_table("sweep", sweep)
    elif world.roles:
        _write_roles(save, world, components)
    if world.roles:
        _write_flips(path, save, world, rng)
    if world.paths:
        _write_paths(save, world)
    if world.smallest:
        save("smallest", _smallest(world), SMALLEST.names)
    if world.stability:
        _write_stability(save, world, dict(zip(runs[1:], masks, strict=True)))
    if world.superadditive:
        save("superadditive", _superadditive(world), FOUND)
        save("screening", _screening(world), ("set", "predicted", "interaction"))
    if world.training:
        save("training", _training(world), TRAINING)
    if world.balance:
        save("data", _balance(world), ("data", "split", "subset", "label", "n", "share"))
    if world.checkpoints:
        sizes = _sizes(world)
        means = mean_effective_size(sizes).merge(
            sizes.groupby(["group", "checkpoint"], as_index=False)["full_accuracy"].first()
        )
        save_table("effective_size", sizes)
        save_table("mean_effective_size", means)
    _write_attention(path, save, world, rng)
    (path / "config.json").write_text(json.dumps(_config(world)))
    return path


def _write_ablation(save: Callable, world: World, full: dict, rng: np.random.Generator) -> None:
    joints = world.joint
    if joints is None:
        joints = [*combinations(world.core, 2), tuple(world.core)]
    joints = [joint for joint in joints if len(joint) > 1]
    sets = [((name,), "single") for name in world.core] + [(joint, "joint") for joint in joints]
    weight = {name: float(rng.uniform(0.02, 0.25)) for name in world.core}
    rows, shifts = _ablated([*sets, ((), "non-core")], weight, world, full, rng)
    controls = pd.DataFrame(_beside(world, shifts), columns=[*WHERE, *BESIDE])
    table = pd.DataFrame(rows, columns=pd.Index(ABLATION)).merge(controls, "left", WHERE)
    save("ablation", table.to_dict("records"), [*table])
    interactions = []
    for members in joints:
        name = "+".join(members)
        for data, split, subset, n in world.places():
            for i, metric in enumerate(("accuracy", "margin")):
                joint = shifts[name, data, subset][i]
                single = sum(shifts[member, data, subset][i] for member in members)
                half = (1.2, 15)[i] / np.sqrt(n)
                value = joint - single
                values = (name, len(members), data, split, subset, n, metric, joint, single, value)
                floor = shifts[name, data, subset][2] < 0.05
                values += (value - half, value + half, 0.01, 0.02, value + half < 0, floor, False)
                interactions.append(values)
    save("interactions", interactions, INTERACTIONS)


def _beside(world: World, shifts: dict) -> Iterator[tuple[Any, ...]]:
    """The core and its heads beside others, whose shifts are a tenth of theirs."""
    whole = "+".join(world.core)
    for name in dict.fromkeys([*world.core, whole]):
        several = "+" in name
        if not any(key[0] == name for key in shifts):
            continue
        for data, split, subset, n in world.places():
            place = (name, data, split, subset, min(n, 300) if several else n)
            p = 1 / 21 if several else 1 / 8
            figures = (
                figure
                for change in shifts[name, data, subset][:2]
                for figure in (change, change / 10, change / 5, change / 20, p)
            )
            yield (*place, 20 if several else 7, *figures)


def _ablated(
    sets: Sequence[tuple[Sequence[str], str]],
    weight: dict[str, float],
    world: World,
    full: dict,
    rng: np.random.Generator,
) -> tuple[list[tuple[Any, ...]], dict]:
    """Rows of ablated sets, and their shifts of accuracy and margin with the accuracy left."""
    rows, shifts = [], {}
    for members, kind in sets:
        name = "+".join(members) or "heads outside the core (mean of 16)"
        for data, split, subset, n in world.places():
            total = sum(weight[member] for member in members) + (len(members) > 1) * 0.08
            total = total * (0.15 if split == "id" else rng.uniform(0.7, 1.3)) or 0.003
            before = full[data, split, subset]
            loss = min(total, before - 0.005)
            half, m_half = 1.96 * np.sqrt(0.2 / n), 12 / np.sqrt(n)
            m_loss = 8 * total
            shifts[name, data, subset] = (-loss, -m_loss, before - loss)
            values = (name, kind, len(members), data, split, subset, n, before - loss, -loss)
            values += (-loss - half, -loss + half, 8 * before - 4 - m_loss, -m_loss)
            rows.append((*values, -m_loss - m_half, -m_loss + m_half, m_loss / 4))
    return rows, shifts


def _write_roles(save: Callable, world: World, components: Sequence[str]) -> pd.DataFrame:
    """Roles, and the changes without every component in and out of domain that they are from."""
    rng = np.random.default_rng(7)
    heads = [name for name in components if "MLP" not in name]
    losses = ((0.03, 0.2), (0.002, 0.12), (0.05, 0.03), (0.0, 0.05))
    notable = dict(zip(world.core, losses, strict=False))
    losses = ((0.04, 0.0), (0.06, -0.05), (0.0, -0.06), (-0.03, 0.0), (0.0, 0.0))
    notable |= dict(zip(heads[-5:], losses, strict=True))
    rows = []
    for data, split, n in ((world.id_data[0], "id", 2000), (world.ood_data, "ood", 2000)):
        for name in components:
            row = {"set": name, "size": 1, "data": data, "split": split, "subset": "all", "n": n}
            loss = notable.get(name, (0.0, 0.0))[split == "ood"] + rng.normal(0, 0.0015)
            moved = 0.05 if name == heads[-1] else rng.normal(0, 0.0015)
            if split == "ood" and world.one_label:
                rows.append(row | {"reason": ONE_LABEL})
                continue
            losses = {"information": loss, "threshold": moved, "balanced_accuracy": loss + moved}
            for figure, value in (losses | {"shift": moved, "auc": loss}).items():
                error = 0.0025 if split == "id" else 0.004
                p = 2 * stats.norm.sf(abs(value) / error)
                values = (-value, -value - 1.96 * error, -value + 1.96 * error, error, p, p)
                ends = ("_change", "_change_low", "_change_high", "_change_se", "_p", "_p_adjusted")
                row |= {figure + end: cell for end, cell in zip(ends, values, strict=True)}
            rows.append(row | {"reason": ""})
    table = pd.DataFrame(rows, columns=[name for name in INFORMATION.names if name in rows[0]])
    roles = component_roles(*(table[table["split"] == split] for split in ("id", "ood")))
    save("roles", roles.to_dict("records"), list(roles))
    return table


def _write_flips(path: Path, save: Callable, world: World, rng: np.random.Generator) -> None:
    """Three of the first core head, two of them drawn, two of an idle head and one of an MLP."""
    tokens = TOKENS.split()
    idle = str(world.shape.heads[1])
    rows: list[dict[str, Any]] = []
    for name, n_flips, n_all in ((world.core[0], 3, 9), (idle, 2, 2), ("L0.MLP", 1, 1)):
        for rank in range(1, n_flips + 1):
            row: dict[str, Any] = {"component": name, "rank": rank, "data": world.ood_data}
            row |= {"split": "ood", "subset": world.subsets[0], "example": 10 * rank}
            row |= {"change": "right to wrong", "text_a": f"{world.subsets[0]} {rank} saw {name}"}
            row |= {"text_b": "a bird", "label": "non-entailment", "answer": "non-entailment"}
            row |= {"answer_without": "entailment", "margin": 1.5 / rank, "margin_without": -2.0}
            counts = {"right_to_wrong_ood": n_all, "wrong_to_right_ood": 0}
            rows.append(row | counts | {"right_to_wrong_id": 0, "wrong_to_right_id": 0})
    save("flips", rows, FLIPS.names)
    pattern = rng.dirichlet(np.full(len(tokens), 0.1), len(tokens)).tolist()
    drawn = {"component": world.core[0], "category": "", "tokens": tokens, "pattern": pattern}
    drawn |= {"segments": [0] * len(tokens), "causal": False}
    (path / "flips_attention.json").write_text(json.dumps([[drawn], [drawn], []]))


READ = {"L2.H2": 0.08, "L3.H0": -0.05, "L1.MLP": 0.02, "L3.MLP": 0.008}
"""Information (share) that components lose out of domain that do not see the core."""


def _write_paths(save: Callable, world: World) -> None:
    """What `READ` says, half of it for each head before; and as much of each for the answer.

    Half as much is lost in domain, L1.MLP only moves the threshold, and margins are ten times the
    information in nats.
    """
    cut, dependence = list[dict[str, Any]](), list[dict[str, Any]]()
    ends = ("_change", "_change_low", "_change_high")
    first = Component.parse(world.core[0]) if world.core else None
    behind = [c for c in world.shape.components if first and (c.layer, not c.is_head) > (0, False)]
    for data, split, n in ((world.id_data[0], "id", 300), (world.ood_data, "ood", 300)):
        scale = 0.5 if split == "id" else 1.0
        place = {"data": data, "split": split, "subset": "all", "n": n}
        known = not (world.one_label and split == "ood")
        pairs = [(str(c), "answer", READ.get(str(c), 0.001)) for c in world.shape.components]
        for name, lost in READ.items():
            to = Component.parse(name)
            for head in world.core:
                if (Component.parse(head).layer, False) < (to.layer, not to.is_head):
                    pairs.append((head, name, lost / 2))
        for sender, receiver, lost in pairs if world.core else []:
            row: dict[str, Any] = {"set": f"{sender}>{receiver}", "size": 1, **place}
            row |= {"senders": sender, "receiver": receiver, "input": "all"}
            moved = 0.0
            if receiver == "L1.MLP":
                lost, moved = 0.0, lost
            values = {
                "information": lost,
                "threshold": moved,
                "accuracy": lost,
                "margin": 10 * lost,
            }
            shifts = {
                f"{figure}{end}": -scale * value + off * (10 if figure == "margin" else 1)
                for figure, value in values.items()
                for end, off in zip(ends, (0, -0.01, 0.01), strict=True)
                if known or figure in ("accuracy", "margin")
            }
            cut.append(row | {"kind": "path", "kl": 0.01} | shifts | {"reason": ""})
        metrics = ["information", "threshold"] * known + ["accuracy", "margin"]
        for component in behind:
            lost = READ.get(str(component), 0.0)
            for metric in metrics:
                value = scale * lost * (10 if metric == "margin" else 1)
                if metric in ("information", "threshold"):
                    value *= (str(component) == "L1.MLP") == (metric == "threshold")
                row = {"receiver": str(component), **place, "metric": metric}
                for figure, change in (("change", -2 * value), ("blind_change", -value)):
                    row |= {figure: change, f"{figure}_low": change - 0.01}
                    row |= {f"{figure}_high": change + 0.01}
                if abs(value) > 0.01:
                    row |= {"share": 0.5, "share_low": 0.4, "share_high": 0.6}
                controls = {"control_change": -0.001, "control_low": -0.002, "control_high": 0.0}
                row |= {"n_controls": 20, **controls, "p_control": 1 / 21} if lost else {}
                dependence.append({"n_controls": 0} | row)
    save("path_information", cut, PATHS.names)
    save("core_dependence", dependence, CORE_DEPENDENCE.names)
    doses = []
    for data, split in ((world.id_data[0], "id"), (world.ood_data, "ood")):
        for sign, name in ((1, "L1.MLP"), (-1, "L2.H2")):  # the second is repaired
            values = dict(zip(COLUMNS, (-0.1, -0.3, -0.6, -1 - sign, -1, -sign), strict=True))
            doses.append({"component": name, "data": data, "split": split, "n": 300})
            doses[-1] |= {"monotone": "open" if sign < 0 else "yes"}
            doses[-1] |= {
                f"{figure}{end}": value + off
                for figure, value in values.items()
                for end, off in (("", 0), ("_low", -0.05), ("_high", 0.05))
            }
    save("dose", doses, DOSE.names)


def _write_stability(save: Callable, world: World, masks: Mapping[Any, Mask]) -> None:
    """Rankings that are found again out of domain; halves that swap the masks of two seeds."""
    seeds = [*world.seeds]
    turned = dict(zip(seeds, [*seeds[1:], seeds[0]], strict=True))
    of_whole = {(target_sparsity, seed): mask for (_, target_sparsity, seed), mask in masks.items()}
    swapped = {
        (target_sparsity, turned[seed]): mask for (target_sparsity, seed), mask in of_whole.items()
    }
    pruned = {"all data": of_whole, "half 1": of_whole, "half 2": swapped}
    for name, table in (("half_overlap", half_overlap(pruned)), ("half_cores", half_cores(pruned))):
        save(name, table.to_dict("records"), list(table.columns))
    rows = []
    for name, size, n, first in (
        ("sweep", 1, len(world.shape.components), "L0.H3"),
        ("ablation", 2, 6, "L0.H3+L1.H5"),
        *([("search", 2, 10, world.superadditive[0])] if world.superadditive else []),
    ):
        for data, split, rho in ((world.ood_data, "ood", 0.8), (world.id_data[0], "id", 0.1)):
            for metric in ("accuracy", "margin"):
                row = {"size": size, "data": data, "split": split, "n": 2000, "metric": metric}
                row["ranked_by"] = name
                row |= {"n_ranked": n, "top": min(10, n // 2), "predicted_rho": 2 * rho / (1 + rho)}
                row |= {"jaccard_by_chance": 0.2, "largest": f"{first} ({rho:.2f})"}
                for kind, value in (("halves", rho), ("resamples", (1 + rho) / 2)):
                    for figure in ("rho", "jaccard"):
                        row |= {f"{kind}_{figure}": value, f"{kind}_{figure}_low": value - 0.05}
                        row |= {f"{kind}_{figure}_high": value + 0.05}
                rows.append(row)
    save("stability", rows, STABILITY.names)


def _smallest(world: World) -> list[dict[str, Any]]:
    """A subnetwork within the limit of accuracy, and none within that of information."""
    name = f"s{world.target_sparsities[0]:.2f}-seed{world.seeds[0]}"
    row: dict[str, Any] = {"limit": 0.01, "subnetwork": name, "sparsity": 0.5, "kept": 18}
    row |= {"mask": f"masks/{name}.safetensors", "n_masks": 6}
    for split, loss in (("id", 0.002), ("ood", 0.005)):
        row |= {f"{split}_change": -loss, f"{split}_change_low": -loss - 0.004}
        row |= {f"{split}_change_high": -loss + 0.004, f"{split}_accuracy_change": -loss}
    why = f"{name} comes closest of 6 masks, and loses up to 1.5 points"
    return [
        {"measure": "accuracy", "within": True, "reason": "", **row},
        {"measure": "information", "within": False, "reason": why, **row},
    ]


def _superadditive(world: World) -> list[tuple[Any, ...]]:
    rows = []
    for i, name in enumerate(world.superadditive):
        for metric, unit in (("margin", 1.0), ("accuracy", 0.1)):
            value = -unit * (1.5 - 0.25 * i)
            row = (name, name.count("+") + 1, world.ood_data, "ood", "all", 500, metric)
            row += (2 * value, value, value, 1.5 * value, 0.5 * value, 0.01, 0.02, True)
            rows.append((*row, False, False, value))
    return rows


def _screening(world: World) -> list[tuple[Any, ...]]:
    """All pairs of heads; those found were ablated exactly."""
    names = ["+".join(pair) for pair in combinations(map(str, world.shape.heads), 2)]
    exact = [-1.0 if name in world.superadditive else None for name in names]
    return [*zip(names, range(-len(names), 0), exact, strict=True)]


def _training(world: World) -> list[tuple[Any, ...]]:
    """Accuracies that grow over training, those of later subsets more slowly."""
    rows = []
    for i, step in enumerate(world.training):
        for data, split, subset, _ in world.places():
            late = 1 + (world.subsets.index(subset) if subset in world.subsets else 1)
            accuracy = (i + 1) / (i + 2) if split == "id" else (i + 1) / (i + 2 + late)
            rows.append((step, data, 1 / (i + 1), split, subset, accuracy))
    return rows


def _balance(world: World) -> list[tuple[Any, ...]]:
    """Three labels in domain, one alone out of domain."""
    rows: list[tuple[str, str, str, str, int, float]] = []
    for data, split in (("tiny-train", "train"), *((name, "id") for name in world.id_data)):
        for label, share in (("entailment", 0.5), ("neutral", 0.3), ("contradiction", 0.2)):
            rows.append((data, split, "all", label, round(2000 * share), share))
    rows += [(world.ood_data, "ood", name, "non-entailment", 500, 1.0) for name in world.subsets]
    return rows


def _sizes(world: World) -> pd.DataFrame:
    """Sizes that shrink over training; no subnetwork of the first checkpoint is faithful."""
    rows = []
    further = [(name, 0.5) for name in world.groups or ()]
    for group, full in (("ID", 0.95), ("OOD", 0.6), *further):
        for i, checkpoint in enumerate(world.checkpoints):
            for seed in world.seeds:
                size = 1.0 if i == 0 else 0.8 - 0.1 * i - 0.01 * seed
                row = (group, checkpoint, seed, size, i > 0, 1 - size if i else None)
                rows.append((*row, full - 0.02 if i else None, full))
    return pd.DataFrame(rows, columns=SIZES)


def _write_attention(path: Path, save: Callable, world: World, rng: np.random.Generator) -> None:
    rows = []
    for head in world.shape.heads:
        mass = rng.dirichlet(np.full(len(CATEGORIES), 0.5))
        uniform = np.full(len(CATEGORIES), 0.08)
        best = int(mass[:-1].argmax())
        label = CATEGORIES[best] if mass[best] > 0.45 else "mixed"
        values = {"component": str(head), "layer": head.layer, "head": head.head}
        values |= {"category": label, "entropy": rng.uniform(0.5, 3), "n_examples": 256}
        values["in_core"] = str(head) in world.core
        for i, name in enumerate(CATEGORIES):
            values[f"mass_{name}"], values[f"uniform_{name}"] = mass[i], uniform[i]
            values[f"ratio_{name}"], values[f"share_{name}"] = mass[i] / uniform[i], mass[i]
            values[f"low_{name}"], values[f"high_{name}"] = 0.9 * mass[i], 1.1 * mass[i]
        rows.append(values)
    save("head_categories", rows, list(rows[0]))
    labels = {row["component"]: row["category"] for row in rows}
    tokens = TOKENS.split()
    first_end = tokens.index("[SEP]")
    segments = [0 if i <= first_end else 1 for i in range(len(tokens))]
    examples = []
    for name in world.core:
        pattern = rng.dirichlet(np.full(len(tokens), 0.1), len(tokens)).tolist()
        text = {"tokens": tokens, "segments": segments, "pattern": pattern}
        examples.append({"component": name, "category": labels[name], **text})
    (path / "attention_examples.json").write_text(json.dumps(examples))


def _config(world: World) -> dict[str, Any]:
    more = {"n_available": 30000, "n_cut": world.n_cut} if world.balance else {}
    subsets = {"subsets": list(world.subsets)}
    shape = {"n_layers": world.n_layers, "n_heads": world.n_heads, "has_mlps": True}
    model = {"source": world.source, "kind": "bridge", **shape}
    model |= {"architecture": "BertForSequenceClassification"}
    model |= {"class_names": ["entailment", "non-entailment"]}
    settings: dict[str, Any] = {}
    if world.training:
        model["base"] = "hub/base"
        settings = {"training": TRAIN_SETTINGS, "model": {"max_length": 128}}
    return {
        "kind": "heuristic-core",
        "mechcore": "0.1.0",
        "versions": {"python": "3.11.2", "torch": "2.9.0", "transformer-lens": "3.9.0"},
        "command": "mechcore run --model checkpoints/tiny-world --seeds 0,1,2",
        "model": model,
        "data": {
            "train": {"name": "tiny-train", "n": 20000, "fingerprint": "9f2c41aa70be13d5"} | more,
            "id": {"name": world.id_data[0], "n": 2000, "fingerprint": "1d80cc52e9a7b364"},
            "ood": {"name": world.ood_data, "n": 2000, "fingerprint": "77ab03fe5521c9d8"} | subsets,
        },
        "seeds": list(world.seeds),
        "target_sparsities": list(world.target_sparsities),
        "settings": {
            "prune": {"steps": 1200, "learning_rate": 0.1, "lambda_learning_rate": 0.3},
            "max_heads_examples": 256,
            **settings,
        },
        "label_mapping": dict.fromkeys(("id", "ood"), "0 <- entailment; 1 <- non-entailment"),
        "seconds": {"means": 12.3, "prune": 412.0, "ablation": 33.25},
    }


SIZES = EFFECTIVE_SIZE.names
TRAINING = ("step", "data", "loss", "split", "subset", "accuracy")
TRAIN_SETTINGS = {"batch_size": 64, "accumulate": 2, "learning_rate": 2e-5, "warmup_steps": 10}
TRAIN_SETTINGS |= {"schedule": "linear", "checkpoint_every": 200, "precision": "float32", "seed": 7}
ACCURACY, SUBNETWORKS = tables.ACCURACY.required, tables.SUBNETWORKS.required
FREQUENCY, CORE = HEAD_FREQUENCY.names, tables.CORE.names
WHERE = ["set", "data", "split", "subset"]
BESIDE = changes.CONTROLLED.names[len(changes.ABLATION.names) :]
VERDICT = {"verdict": "supported", "explanation": "blind to the core, the 2 components lose"}
VERDICT |= {name: "" for name in CORE_VERDICT.required if name not in VERDICT}
ABLATION, INTERACTIONS = changes.ABLATION.required, exact.INTERACTIONS.required
FOUND = (*INTERACTIONS, "interaction_in_search")
