"""What one model's states, and single heads, say; see docs/concepts/cognitive-task.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mechcore.components import Component, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError, warn
from mechcore.evaluation.evaluate import evaluate
from mechcore.evaluation.p_values import attained_level, p_among
from mechcore.models.protocol import hook_z, longest_input
from mechcore.papers.cognitive.probing import (
    Decoding,
    activations_at,
    balanced,
    decode,
    decode_table,
    hook_resid_post,
)
from mechcore.papers.cognitive.steps import Analysis
from mechcore.papers.cognitive.text import CHOICES, MODALITIES, VARIABLES
from mechcore.papers.cognitive.trials import CONDITIONS, Trials, encode_trials, token_positions
from mechcore.tables import LAYER, PART, SUBSET, Column, Schema, estimate

FOLDS = 5
SEED = 0
"""Of cross-validation, subsets, shuffles and bootstrap."""
DECODED = (
    *estimate("accuracy", "share", "cross-validated accuracy", over="binomial"),
    Column("chance", "share", "accuracy of guessing"),
    Column("floor", "share", "what the best of the other variables gives away"),
    Column("shuffled", "share", "mean with shuffled labels"),
    Column("shuffled_high", "share", "its 95th percentile", header="shuffled, 95 %"),
    Column("p", "number", "of the accuracy, by shuffled labels", shown="small"),
)
_TRIALS = Column("n", "whole", "trials")
SVM = Schema(
    "cognitive_svm",
    "What every head's output says, by a linear support vector machine.",
    (
        *PART,
        Column(
            "target",
            "text",
            "``choice``, ``correct``, ``congruent`` or ``condition``",
            header="decoded",
            names={"correct": "right or wrong", "congruent": "congruence"},
        ),
        _TRIALS,
        Column("smallest", "whole", "trials of the rarest class", optional=True),
        *(replace(column, optional=column.name == "floor") for column in DECODED),
    ),
)


def svm_table(
    model: Any, tokenizer: PreTrainedTokenizerBase, trials: Trials, *, shuffles: int = 20
) -> pd.DataFrame:
    """Linear SVM from heads' outputs at the last token; too few trials have no accuracies."""
    data = encode_trials(trials, tokenizer, max_length=longest_input(model))
    hooks = {hook_z(layer): layer for layer in range(ModelShape.of(model).n_layers)}
    outputs = activations_at(model, data, list(hooks))
    heads = {
        Component(layer, head): z
        for hook, layer in hooks.items()
        for head, z in enumerate(outputs[hook][:, 0].unbind(1))
    }
    answers = answers_of(model, data)
    frame = trials.frame.assign(choice=answers, correct=trials.frame["label"] == answers)
    pairs = trials.pairs["choice"]
    classes: dict[str, list[Any]] = {"choice": [*CHOICES], "correct": [True, False]}
    classes |= {"congruent": [True, False], "condition": [*CONDITIONS]}
    records: list[dict[Any, Any]] = []
    for target, known in classes.items():
        here = _as_many_wrong(frame) if target == "correct" else frame
        different = here.assign(pair=pairs).drop_duplicates([target, "pair"])
        smallest, fewest = (
            int(part[target].value_counts().reindex(known, fill_value=0).min())
            for part in (here, different)
        )
        of_target = {"target": target, "n": len(here), "smallest": smallest}
        if fewest < 2 * FOLDS:
            records += [{"site": head} | of_target for head in heads]
            continue
        rows = here.index.tolist()
        table = decode_table(
            {head: z[rows] for head, z in heads.items()},
            {target: here[target].tolist()},
            given={name: here[name].tolist() for name in ("choice", "congruent")},
            classifier="svm",
            groups=pairs.iloc[rows].tolist(),
            folds=FOLDS,
            shuffles=shuffles,
            seed=SEED,
        )
        records += [row | of_target for row in table.to_dict("records")]
    for row in records:
        head = row["site"]
        row |= {"component": str(head), "layer": head.layer, "head": head.head}
    return pd.DataFrame(records, columns=SVM.names)


def _as_many_wrong(frame: pd.DataFrame) -> pd.DataFrame:
    """As many trials that are answered right as wrong; none if all are one."""
    if frame["correct"].nunique() < 2:
        return frame.iloc[:0]
    return frame.iloc[balanced(frame["correct"].tolist(), seed=SEED)]


def answers_of(model: Any, data: EncodedExamples) -> list[str]:
    """Which of the two answers (`CHOICES`) the model gives to every encoded trial."""
    right = evaluate(model, data, in_domain=False).correct
    other = {"left": "right", "right": "left"}
    labels = data.examples.frame["label"]
    return [label if hit else other[label] for label, hit in zip(labels, right, strict=True)]


DECODING = Schema(
    "cognitive_decoding",
    "What the states say about the trial, by layer, position and variable.",
    (
        LAYER,
        Column("position", "text", "landmark of the prompt"),
        Column("place", "number", "landmarks before it; missing where trials differ"),
        Column("variable", "text", "what is decoded"),
        SUBSET.called("trials"),
        Column("n", "whole", "trials"),
        *DECODED,
        Column("read", "text", "of what the variable depends on: all (yes), none (no), or partly"),
    ),
)
CHECK = Schema(
    "cognitive_check",
    "Whether what is not read yet is at chance.",
    (
        Column("n_rows", "whole", "such variables, positions and layers", header="not read yet"),
        Column("n_above", "whole", "those above chance", header="above chance"),
        Column("expected", "number", "how many would be by chance", digits=1),
        Column("p", "number", "of the most accurate of them", shown="small"),
        Column("holds", "flag", header="check", names={"yes": "holds", "no": "fails"}),
    ),
)

CHECK_ALPHA = 0.05
"""Level at which a row counts as above chance in ``cognitive_check``."""

CHECK_LEVEL = 0.005
"""The check fails at a p of at most this, for all of its rows together."""

_CHECK_SHUFFLES = (19, 499)

Site: TypeAlias = tuple[int, str]


@dataclass(frozen=True)
class Decode(Analysis):
    """What states and heads' outputs say, see `decoding_tables`."""

    kind: ClassVar[str] = "decoding"
    schemas: ClassVar[tuple[Schema, ...]] = (DECODING, CHECK, SVM)
    packages: ClassVar[tuple[str, ...]] = ("scikit-learn",)
    passes: ClassVar[float] = 50.0
    layers: tuple[int, ...] | None
    shuffles: int

    def tables(
        self, model: Any, tokenizer: PreTrainedTokenizerBase, trials: Trials
    ) -> dict[str, pd.DataFrame]:
        """See `decoding_tables`."""
        return decoding_tables(model, tokenizer, trials, layers=self.layers, shuffles=self.shuffles)


def decoding_tables(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    trials: Trials,
    *,
    layers: Sequence[int] | None = None,
    shuffles: int = 20,
) -> dict[str, pd.DataFrame]:
    """Decode states at all landmarks and heads' outputs at the answer: three tables by name.

    Of a causal model nothing can be decoded before the prompt has said it, which is checked: the
    largest accuracy of the rows not ``read``, in standard errors over chance, is compared with the
    largest under shuffled labels, since one accident can put all layers above chance. A warning
    says where that fails. The choice is the right answer, not the model's.

    Raises:
        InputError: see `check_trials`.
    """
    problems = check_trials(trials)
    states = _states(model, tokenizer, trials, layers)
    parts = [_decoded(problem, states, trials, shuffles) for problem in problems]
    table = pd.concat(parts).sort_values(["layer", "column"], kind="stable", ignore_index=True)
    unread = table[table["read"] == "no"]
    return {
        "cognitive_decoding": table[DECODING.names],
        "cognitive_svm": svm_table(model, tokenizer, trials, shuffles=shuffles),
        "cognitive_check": _check(unread, states, problems, shuffles),
    }


@dataclass(frozen=True, eq=False)
class _Problem:
    """A variable to decode in some trials (``rows``); ``codes`` and ``groups`` are of these."""

    variable: str
    subset: str
    rows: Int[np.ndarray, " row"]
    codes: Mapping[str, list[int]]
    groups: list[str] | None

    @property
    def labels(self) -> list[int]:
        return self.codes[self.variable]


def _problems(trials: Trials) -> list[_Problem]:
    """All that is decoded; sides also in trials that cue the other modality, balanced."""
    codes, pairs = trials.codes, trials.pairs
    problems = []
    for variable in VARIABLES:
        subsets = {"all": np.arange(len(trials))}
        if variable in MODALITIES:
            uncued = np.flatnonzero(trials.frame["context"] != variable)
            sides, choices = (codes[name].iloc[uncued].tolist() for name in (variable, "choice"))
            subsets["balanced"] = uncued[balanced(sides, choices, seed=SEED)]
        for subset, rows in subsets.items():
            here = {name: codes[name].iloc[rows].tolist() for name in VARIABLES}
            groups = pairs[variable].iloc[rows].tolist() if variable in pairs else None
            problems.append(_Problem(variable, subset, rows, here, groups))
    return problems


def _decoded(
    problem: _Problem,
    states: Mapping[Site, Float[Tensor, "trial unit"]],
    trials: Trials,
    shuffles: int,
) -> pd.DataFrame:
    """Rows of the table, and ``column``, the number of the landmark."""
    table = decode_table(
        {site: values[problem.rows] for site, values in states.items()},
        {problem.variable: problem.labels},
        given=problem.codes,
        groups=problem.groups,
        folds=FOLDS,
        shuffles=shuffles,
        seed=SEED,
    )
    columns = [trials.landmarks.index(landmark) for _, landmark in states]
    places = _places(trials)[problem.rows][:, columns]
    shares = share_read(trials)[problem.variable][problem.rows][:, columns]
    return table.assign(
        column=columns,
        layer=[layer for layer, _ in states],
        position=[landmark for _, landmark in states],
        place=pd.Series(places[0], dtype="Int64").where((places == places[0]).all(0)),
        subset=problem.subset,
        read=np.select([(shares == 0).all(0), (shares == 1).all(0)], ["no", "yes"], "partly"),
    )


def share_read(trials: Trials) -> dict[str, Float[np.ndarray, "trial landmark"]]:
    """Share of what a variable depends on (its word or numbers) that was said at each landmark."""
    of = {
        variable: np.array([name.startswith(variable) for name in trials.landmarks])
        for variable in ("context", *MODALITIES)
    }
    needed = {name: np.tile(mask, (len(trials), 1)) for name, mask in of.items()}
    needed["choice"] = np.stack([of[cued] for cued in trials.frame["context"]])
    places = _places(trials)
    before = places[:, None, :] <= places[:, :, None]  # [trial, landmark, other]
    return {
        name: (before & needed[name][:, None]).sum(2) / needed[name].sum(1, keepdims=True)
        for name in VARIABLES
    }


def _places(trials: Trials) -> Int[np.ndarray, "trial landmark"]:
    return trials.places[..., 0].argsort(1).argsort(1)


def _states(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    trials: Trials,
    layers: Sequence[int] | None,
) -> dict[Site, Float[Tensor, "trial unit"]]:
    chosen = range(ModelShape.of(model).n_layers) if layers is None else layers
    hooks = {hook_resid_post(layer): layer for layer in chosen}
    data = encode_trials(trials, tokenizer, max_length=longest_input(model))
    positions = token_positions(trials, tokenizer)
    values = activations_at(model, data, list(hooks), positions)
    return {
        (layer, name): values[hook][:, column]
        for hook, layer in hooks.items()
        for column, name in enumerate(trials.landmarks)
    }


def check_trials(trials: Trials) -> list[_Problem]:
    """All that is decoded; raises `InputError` for too few trials to cross-validate."""
    counts = trials.frame["condition"].value_counts().reindex(list(CONDITIONS), fill_value=0)
    if counts.min() < FOLDS:
        raise InputError(
            f"cognitive decoding: {counts.min()} trials of condition {counts.idxmin()} for {FOLDS} "
            f"folds; expected at least {FOLDS} of each of the 8 conditions: give more trials "
            f"({8 * FOLDS} of `generate` will do)"
        )
    problems = _problems(trials)
    for problem in problems:
        different = pd.DataFrame({"side": problem.labels, "pair": problem.groups}).drop_duplicates()
        fewest = int(different["side"].value_counts().min())
        if problem.groups is not None and fewest < FOLDS:
            raise InputError(
                f"cognitive decoding: {problem.variable}, {problem.subset} trials: {fewest} "
                f"different numbers of one side for {FOLDS} folds, which share none; expected at "
                f"least {FOLDS}: ask for more differences (--differences) or trials (--analysis)"
            )
    return problems


# -- the check ------------------------------------------------------------------------------------


def _check(
    unread: pd.DataFrame,
    states: Mapping[Site, Float[Tensor, "trial unit"]],
    problems: Sequence[_Problem],
    shuffles: int,
) -> pd.DataFrame:
    # Shuffle k of all rows is one draw. Shuffles of a subset are less like those of all trials
    # than the labels are, so that their largest is rather too large, and the check too kind.
    by_name = {(problem.variable, problem.subset): problem for problem in problems}
    rows = unread.to_dict("records")
    excess, p = np.zeros(len(rows)), 1.0
    for n_shuffles in _CHECK_SHUFFLES:
        decodings = []
        for row in rows:
            problem = by_name[row["variable"], row["subset"]]
            values = states[row["layer"], row["position"]][problem.rows]
            decodings.append(
                decode(values, problem.labels, folds=FOLDS, shuffles=n_shuffles, seed=SEED)
            )
        excess, null = _excess(decodings)
        p = p_among(float(excess.max()), null)
        if p > 1 / (1 + n_shuffles):
            break
    holds = p > CHECK_LEVEL
    if not holds:
        _warn(rows[int(excess.argmax())], len(rows), p)
    facts = {
        "n_rows": len(rows),
        "n_above": int((unread["p"] <= CHECK_ALPHA).sum()),
        "expected": len(rows) * attained_level(CHECK_ALPHA, shuffles),
        "p": p,
        "holds": holds,
    }
    return pd.DataFrame([facts])


def _excess(
    decodings: Sequence[Decoding],
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, " shuffle"]]:
    """Accuracies in standard errors over chance, and the largest of every shuffle."""
    chance, n, accuracy = np.array([(d.chance, d.n, d.accuracy) for d in decodings]).T
    error = np.sqrt(chance * (1 - chance) / n)
    shuffled = np.stack([decoding.shuffled_accuracies for decoding in decodings], axis=1)
    return (accuracy - chance) / error, ((shuffled - chance) / error).max(1)


def _warn(row: Mapping[Any, Any], n_rows: int, p: float) -> None:
    warn(
        f"cognitive decoding: {row['variable']} is decoded at {row['position']}, layer "
        f"{row['layer']}, with accuracy {row['accuracy']:.3f} (chance {row['chance']:.3f}, subset "
        f"{row['subset']!r}; p = {p:.3f} over {n_rows} rows) before the prompt has said it; "
        "expected chance in a causal model: see that the model is causal and in float32, and that "
        "in these trials what is read first does not go along with what comes later"
    )
