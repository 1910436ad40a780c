"""Trains the models of known truth that mechcore ships (see `siit`), and writes their texts.

Usage: python benchmarks/known_truth/train.py NAME --out FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import siit
import torch
import typer
from library import PROGRAMS
from programs import LABELS, Program, Split, Text, subsets, values_of
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mechcore import progress
from mechcore.bench.cases import TEXTS_FILE, TRUTH_FILE
from mechcore.components import Component
from mechcore.data.examples import ALL
from mechcore.errors import InputError, MechcoreError
from mechcore.files import appearing, write_json
from mechcore.worlds.small_gpt2 import one_thread

MEASURED_FILE = "measured.json"
POOLS: Mapping[Split, int] = {"train": 2048, "id": 1024, "ood": 1024}
"""Number of texts stored, by split."""

LEAST_ACCURACY = 0.99
"""Of answers, and of answers after an interchange of any one variable."""
LARGEST_STRAY_CHANGE = 0.5
"""Of any margin, by intervening on any component not aligned with a variable, in nats."""
LARGEST_CHANGE_ERROR = 0.1
"""Of mean changes in margin by ablating variables, see `measure`, in nats."""

_MEASURED_TEXTS = 1000
_MEASURED_SEED = 1_000_003
"""Cases loaded with usual seeds do not have these texts."""


def texts_of(program: Program) -> pd.DataFrame:
    """Texts of every split, each with one of the same length and another answer."""
    parts = []
    for split in program.splits:
        texts = program.texts(split, POOLS[split], 0)
        columns = _columns(program, texts, "")
        columns |= _columns(program, program.pairs(texts, split, 0), "pair_")
        parts.append(pd.DataFrame({"split": split, **columns}))
    return pd.concat(parts, ignore_index=True)


def _columns(program: Program, texts: Sequence[Text], prefix: str) -> dict[str, list[str]]:
    values = program.run(values_of(texts))
    subset = [ALL] * len(texts)
    if program.typical is not None:
        typical = values[program.typical].tolist()
        subset = ["typical" if value > 0 else "untypical" for value in typical]
    return {
        f"{prefix}text": [" ".join(text.words) for text in texts],
        f"{prefix}label": [LABELS[value] for value in values[program.answer].tolist()],
        f"{prefix}subset": subset,
    }


def truth_of(program: Program) -> dict[str, Any]:
    """The truth about a model that follows a program, in its stored form."""
    truth = program.truth(siit.MARGIN)
    return {
        "components": _names(truth.components),
        "interactions": {str(pair): size for pair, size in truth.interactions.items()},
        "core": _names(truth.core),
        "generalising": _names(truth.generalising),
    }


def _names(components: Iterable[Component] | None) -> list[str] | None:
    return None if components is None else [str(component) for component in sorted(components)]


# -- how well a model implements its program -------------------------------------------------------


@dataclass(frozen=True)
class _Runs:
    """A model on base texts, with everything needed for interventions."""

    model: PreTrainedModel
    program: Program
    base: Sequence[Text]
    source: Sequence[Text]
    batch: siit.Batch
    outputs: siit.Outputs
    means: siit.Outputs

    def __call__(self, which: Tensor, code: int) -> tuple[Tensor, Tensor]:
        """Log-odds of yes, and the program's answers, with these components replaced."""
        plan = (code * which).expand(len(self.base), *which.shape)
        margin = siit.patched(self.model, self.batch, plan, self.outputs, self.means)
        slots, other = values_of(self.base), values_of(self.source)
        return margin, siit.targets(self.program, plan, slots, other)

    def figures(self) -> dict[str, Any]:
        """The figures of one split, see `measure`."""
        program, others = self.program, ~siit.aligned(self.program)
        names = [variable.name for variable in program.variables]
        full, right = self(torch.zeros_like(others), siit.KEEP)
        interchange = {}
        for name in names:
            margin, target = self(siit.aligned(program, [name]), siit.SOURCE)
            interchange[name] = _share((margin / siit.MARGIN).round().clamp(-1, 1) == target)
        stray = max(
            float((self(which, code)[0] - full).abs().max())
            for which in (*_singles(others), others)
            for code in (siit.SOURCE, siit.MEAN)
        )
        changes: dict[tuple[str, ...], list[float]] = {}
        errors = []
        for absent in subsets(names):
            variables = siit.aligned(program, absent)
            for which in (variables | others, variables):
                margin, target = self(which, siit.MEAN)
                measured, expected = right * (margin - full), siit.MARGIN * (right * target - 1)
                changes[absent] = [
                    round(float(values.mean()), 3) for values in (measured, expected)
                ]
                errors.append(abs(changes[absent][0] - changes[absent][1]))
        return {
            "accuracy": _share(full * right > 0),
            "interchange": interchange,
            "stray_change": round(stray, 3),
            "change": {name: changes[(name,)] for name in names},
            "change_error": round(max(errors), 3),
        }


@torch.no_grad()
def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    program: Program,
    *,
    n: int = _MEASURED_TEXTS,
    seed: int = _MEASURED_SEED,
) -> dict[str, dict[str, Any]]:
    """How well a plain model implements a program.

    Sources of interchanges are texts of the same lengths with another answer; means are over ``n``
    texts of training data. Margins are in nats.

    Args:
        model: a plain classifier.
        tokenizer: of the program's words.
        program: the program that the model should implement.
        n: texts of every split.
        seed: of the texts.

    Returns:
        By split, the ``accuracy``; ``interchange``, for each variable the share of answers that are
        the program's, including undecided ones (margins nearest to 0); ``stray_change``, the
        largest of any margin by intervening on one or all components not aligned with a variable;
        ``change``, the mean change in margin by ablating each variable to its mean, measured and
        the program's; and ``change_error``, the largest difference between these two for any set
        of variables, ablated alone or with all components not aligned with a variable.
    """
    model.eval()
    trained_on = siit.batch_of(tokenizer, program.texts("train", n, seed + 1))
    means = siit.means_of(siit.recorded(model, trained_on)[1], trained_on)
    figures: dict[str, dict[str, Any]] = {}
    for split in program.splits:
        base = program.texts(split, n, seed)
        source = program.pairs(base, split, seed)
        batch, others = (siit.batch_of(tokenizer, texts) for texts in (base, source))
        outputs = siit.recorded(model, others)[1]
        runs = _Runs(model, program, base, source, batch, outputs, means)
        figures[split] = runs.figures()
    return figures


def failures(measured: dict[str, Any]) -> list[str]:
    """Why a model's measured figures are not good enough for a case."""
    reasons = []
    for split, figures in measured.items():
        shares = {"answers": figures["accuracy"], **figures["interchange"]}
        reasons += [
            f"{split}: accuracy of {what} is {share}; expected at least {LEAST_ACCURACY}"
            for what, share in shares.items()
            if share < LEAST_ACCURACY
        ]
        limits = (("stray_change", LARGEST_STRAY_CHANGE), ("change_error", LARGEST_CHANGE_ERROR))
        for name, limit in limits:
            if figures[name] > limit:
                reasons.append(f"{split}: {name} is {figures[name]} nats; expected at most {limit}")
    return reasons


def make(
    name: str,
    out: Path,
    *,
    steps: int = siit.STEPS,
    learning_rate: float = siit.LEARNING_RATE,
    seed: int = 0,
) -> dict[str, Any]:
    """Train the model of a case and save it in half precision, if it is good enough.

    Args:
        name: one of `library.PROGRAMS`.
        out: folder to create.
        steps: of the optimiser.
        learning_rate: the peak.
        seed: of weights, texts and interventions.

    Returns:
        The contents of ``measured.json``.

    Raises:
        InputError: there is no such program, or the folder exists.
        MechcoreError: the model does not implement its program well enough.
    """
    if name not in PROGRAMS:
        raise InputError(f"program {name!r}: not found; there are {', '.join(PROGRAMS)}")
    if out.exists():
        raise InputError(f"{out}: exists; expected a folder to create")
    program = PROGRAMS[name]
    tokenizer = siit.tokenizer_of(program)
    how: dict[str, Any] = {"steps": steps, "learning_rate": learning_rate, "seed": seed}
    with one_thread():
        model = siit.untrained(program, tokenizer, seed)
        siit.train(model, tokenizer, program, **how)
        model.half().float()  # as it will be loaded
        measured = measure(model, tokenizer, program)
    if wrong := failures(measured):
        settings = ", ".join(f"{setting} {value}" for setting, value in how.items())
        raise MechcoreError(
            f"case {name}: {'; '.join(wrong)}; trained with {settings}: train longer, or with "
            "another learning rate or seed"
        )
    content = {**how, "texts": _MEASURED_TEXTS, "measured": measured}
    with appearing(out) as folder:
        model.half().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_json(folder / MEASURED_FILE, content)
        write_json(folder / TRUTH_FILE, truth_of(program))
        texts_of(program).to_parquet(folder / TEXTS_FILE, compression="zstd", index=False)
    return content


def _share(right: Tensor) -> float:
    return round(float(right.double().mean()), 4)


def _singles(which: Tensor) -> list[Tensor]:
    """For every component of a mask, a mask of it alone."""
    masks = torch.eye(which.numel(), dtype=torch.bool)[which.flatten()]
    return list(masks.unflatten(1, which.shape))


def _main(
    name: Annotated[str, typer.Argument(help="The program.")],
    out: Annotated[Path, typer.Option(help="Folder to create.")],
    steps: Annotated[int, typer.Option(help="Steps of the optimiser.")] = siit.STEPS,
    learning_rate: Annotated[float, typer.Option(help="Largest.")] = siit.LEARNING_RATE,
    seed: Annotated[int, typer.Option(help="Of weights, texts and interventions.")] = 0,
) -> None:
    """Train the model of a case of known truth."""
    try:
        with progress.shown():
            typer.echo(make(name, out, steps=steps, learning_rate=learning_rate, seed=seed))
    except MechcoreError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    typer.run(_main)
