"""Cases of known truth whose models were trained for it, see `mechcore.bench.siit`.

The models are under ``data/known_truth``, each an ordinary Hugging Face checkpoint with
``measured.json``: how it was trained, and how well it implements its program. To train one again:

    python -m mechcore.bench.trained NAME --out FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mechcore import progress
from mechcore.bench import siit
from mechcore.bench.case import Case
from mechcore.bench.library import PROGRAMS
from mechcore.bench.programs import LABELS, Program, Role, Text, subsets, values_of
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import ALL, Examples
from mechcore.errors import InputError, MechcoreError
from mechcore.files import appearing, write_json
from mechcore.models.loading import load_model
from mechcore.models.tokenizers import load_tokenizer
from mechcore.worlds.embedded import data_dir
from mechcore.worlds.tiny_world_training import one_thread

MEASURED_FILE = "measured.json"
SIZES: Mapping[Role, int] = {"train": 512, "id": 256, "ood": 256}
"""Texts of a case by role, unless asked for others."""

LEAST_ACCURACY = 0.99
"""Of answers, and of answers after an interchange of any one variable."""
LARGEST_CHANGE = 0.5
"""Of any margin when any component that is aligned with no variable is intervened on, in nats."""
LARGEST_DROP_ERROR = 0.1
"""Of mean drops in margin by ablating variables, see `measure`, in nats."""

_MEASURED_TEXTS = 1000
_MEASURED_SEED = 1_000_003
"""No case that is loaded with a usual seed has these texts."""


def case_dir(name: str) -> Path:
    """Hugging Face checkpoint of a case's model.

    Raises:
        InputError: there is no such case.
        MechcoreError: the embedded data is missing.
    """
    if name not in PROGRAMS:
        raise InputError(f"case {name!r}: not found; there are {', '.join(PROGRAMS)}")
    return data_dir() / "known_truth" / name


def trained_case(
    name: str, *, seed: int = 0, sizes: Mapping[Role, int] = SIZES, device: str = "cpu"
) -> Case:
    """A model that was trained to implement a program, with texts.

    Texts of out-of-domain data and the untypical ones of training data are the subset
    ``untypical``, where the program has any.

    Args:
        name: one of `mechcore.bench.library.PROGRAMS`.
        seed: of the texts.
        sizes: number of texts of every role.
        device: where the model goes.

    Raises:
        InputError: there is no such case.
        MechcoreError: the embedded data is missing.
    """
    folder, program = case_dir(name), PROGRAMS[name]
    tokenizer = load_tokenizer(folder)
    data: dict[str, EncodedExamples] = {}
    pairs: dict[str, EncodedExamples] = {}
    for role in program.roles:
        texts = program.texts(role, sizes[role], seed)
        data[role] = _encoded(f"{name} {role}", program, texts, tokenizer)
        others = program.pairs(texts, role, seed)
        pairs[role] = _encoded(f"{name} {role} pairs", program, others, tokenizer)
    model = load_model(folder, device=device)
    return Case(name, model, data, program.truth(siit.MARGIN), pairs)


def _encoded(
    name: str, program: Program, texts: Sequence[Text], tokenizer: PreTrainedTokenizerBase
) -> EncodedExamples:
    values = program.run(values_of(texts))
    subset = [ALL] * len(texts)
    if program.typical is not None:
        typical = values[program.typical].tolist()
        subset = ["typical" if value > 0 else "untypical" for value in typical]
    frame = pd.DataFrame(
        {
            "text_a": [" ".join(text.words) for text in texts],
            "text_b": "",
            "label": [LABELS[value] for value in values[program.answer].tolist()],
            "subset": subset,
        }
    )
    return encode(Examples(name, frame), tokenizer, max_length=siit.MAX_LENGTH, truncate=False)


# -- how well a model implements its program -------------------------------------------------------


@dataclass(frozen=True)
class _Runs:
    """A model on base texts, and what it takes to intervene on it."""

    model: PreTrainedModel
    program: Program
    base: Sequence[Text]
    source: Sequence[Text]
    batch: siit.Batch
    outputs: siit.Outputs
    means: siit.Outputs

    def __call__(self, which: Tensor, code: int) -> tuple[Tensor, Tensor]:
        """Log-odds of yes, and the program's answers, where these components are replaced."""
        plan = (code * which).expand(len(self.base), *which.shape)
        margin = siit.patched(self.model, self.batch, plan, self.outputs, self.means)
        slots, other = values_of(self.base), values_of(self.source)
        return margin, siit.targets(self.program, plan, slots, other)

    def figures(self) -> dict[str, Any]:
        """The figures of one role, see `measure`."""
        program, others = self.program, ~siit.aligned(self.program)
        names = [variable.name for variable in program.variables]
        full, right = self(torch.zeros_like(others), siit.KEEP)
        interchange = {}
        for name in names:
            margin, target = self(siit.aligned(program, [name]), siit.SOURCE)
            interchange[name] = _share((margin / siit.MARGIN).round().clamp(-1, 1) == target)
        change = max(
            float((self(which, code)[0] - full).abs().max())
            for which in (*_singles(others), others)
            for code in (siit.SOURCE, siit.MEAN)
        )
        drops: dict[tuple[str, ...], list[float]] = {}
        errors = []
        for absent in subsets(names):
            variables = siit.aligned(program, absent)
            for which in (variables | others, variables):
                margin, target = self(which, siit.MEAN)
                measured, expected = right * (full - margin), siit.MARGIN * (1 - right * target)
                drops[absent] = [round(float(each.mean()), 3) for each in (measured, expected)]
                errors.append(abs(drops[absent][0] - drops[absent][1]))
        return {
            "accuracy": _share(full * right > 0),
            "interchange": interchange,
            "change": round(change, 3),
            "drop": {name: drops[(name,)] for name in names},
            "drop_error": round(max(errors), 3),
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

    Sources of interchanges are texts of the same lengths that answer otherwise; means are over
    ``n`` texts of training data. Margins are in nats.

    Args:
        model: a plain classifier.
        tokenizer: of the program's words.
        program: what the model should compute.
        n: texts of every role.
        seed: of the texts.

    Returns:
        By role, the ``accuracy``; ``interchange``, for each variable the share of answers that are
        the program's, undecided ones (margins nearest to 0) among them; ``change``, the largest
        change of any margin by intervening on one or all of the components that are aligned with
        no variable; ``drop``, the mean drop in margin by ablating each variable to its mean,
        measured and the program's; and ``drop_error``, the largest difference between these two
        for any set of variables, ablated alone or together with all components of no variable.
    """
    model.eval()
    trained_on = siit.batch_of(tokenizer, program.texts("train", n, seed + 1))
    means = siit.means_of(siit.recorded(model, trained_on)[1], trained_on)
    found: dict[str, dict[str, Any]] = {}
    for role in program.roles:
        base = program.texts(role, n, seed)
        source = program.pairs(base, role, seed)
        batch, others = (siit.batch_of(tokenizer, texts) for texts in (base, source))
        outputs = siit.recorded(model, others)[1]
        runs = _Runs(model, program, base, source, batch, outputs, means)
        found[role] = runs.figures()
    return found


def failures(measured: dict[str, Any]) -> list[str]:
    """What of a model's measured figures a case may not have."""
    found = []
    for role, figures in measured.items():
        shares = {"answers": figures["accuracy"], **figures["interchange"]}
        found += [
            f"{role}: accuracy of {what} is {share}; expected at least {LEAST_ACCURACY}"
            for what, share in shares.items()
            if share < LEAST_ACCURACY
        ]
        for name, limit in (("change", LARGEST_CHANGE), ("drop_error", LARGEST_DROP_ERROR)):
            if figures[name] > limit:
                found.append(f"{role}: {name} is {figures[name]} nats; expected at most {limit}")
    return found


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
        name: one of `mechcore.bench.library.PROGRAMS`.
        out: folder to create.
        steps: of the optimiser.
        learning_rate: its largest.
        seed: of weights, texts and interventions.

    Returns:
        What ``measured.json`` says.

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
        model.half().float()  # as it will be read
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
    return content


def _share(right: Tensor) -> float:
    return round(float(right.double().mean()), 4)


def _singles(which: Tensor) -> list[Tensor]:
    """One mask for every component of a mask."""
    each = torch.eye(which.numel(), dtype=torch.bool)[which.flatten()]
    return list(each.unflatten(1, which.shape))


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
