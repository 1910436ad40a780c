"""The section on the training of the model, where the study trained it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from mechcore.report.blocks import Block, Drawing, Paragraph, Section, Table
from mechcore.report.data_section import facts_of
from mechcore.report.run_folder import RunFolder
from mechcore.report.training_figures import training_curves
from mechcore.wording import (
    ALL,
    count,
    number,
    percent,
    plain,
    role_name,
    short_source,
    whole,
)

GROUP_OF = {"id": "ID", "ood": "OOD"}
_MOST_ROWS = 20


def training_section(run: RunFolder) -> Section | None:
    """How the model was trained and how it did meanwhile; None where the study did not train it."""
    history = run.table("training")
    if history is None or len(history) == 0:
        return None
    members = {role: subsets_averaged(history, role) for role in dict.fromkeys(history["role"])}
    picture = Drawing(
        training_curves(history),
        "training",
        "Above: accuracy on test data during training; thin lines are the out-of-domain subsets. "
        "Below: training loss (mean cross-entropy since the evaluation before).",
        "Two line charts over training steps, accuracy and loss; the numbers are in the table "
        "below.",
    )
    blocks: list[Block] = [
        *map(Paragraph, training_sentences(run)),
        Paragraph(" ".join(_what_is_averaged(members))),
        picture,
        _table(history, members),
    ]
    return Section("training", "Training", blocks, ["training.csv"])


def subsets_averaged(history: pd.DataFrame, role: str) -> list[str]:
    """The subsets whose mean stands for a role; all examples where it has no subsets."""
    names = list(dict.fromkeys(history.loc[history["role"] == role, "subset"]))
    return [name for name in names if name != ALL] or names


def training_sentences(run: RunFolder) -> Iterator[str]:
    """What was trained, on how much, and how."""
    history = run.table("training")
    if history is None or len(history) == 0:
        return
    config = run.config
    model = config.get("model") or {}
    settings = (config.get("settings") or {}).get("training")
    settings = settings if isinstance(settings, dict) else {}
    steps = int(history["step"].max())
    name = short_source(str(model.get("base") or model.get("source") or "The model"))
    how = "was fine-tuned"
    if settings.get("from_scratch"):
        name, how = f"A model built like {name}", "was trained from random weights"
    data = facts_of(run, "train")
    n = data.get("n_available")
    what = f" on {count(n, 'example')} ({data.get('name', 'train')})" if n else ""
    text = f"{name} {how} for {count(steps, 'step')}{what}"
    batch = settings.get("batch_size")
    if batch:
        size = batch * settings.get("accumulate", 1)
        text += f", {count(size, 'example')} a step"
        text += f" ({number(steps * size / n, 1)} passes)" if n else ""
    yield f"{text}{_rates(settings)}. {_kept(settings, history)}"
    if settings.get("patience") is not None:
        where = settings.get("watch") or "in-domain data"
        yield (
            f"The weights are those of the best evaluation on {where}, not of the last step. That "
            "data took part in the choice: report accuracy on other data."
        )


def _rates(settings: Mapping[str, Any]) -> str:
    parts = []
    if "learning_rate" in settings:
        rate = f"at a learning rate of up to {plain(float(settings['learning_rate']))}"
        warmup = settings.get("warmup_steps")
        rate += f" after {count(warmup, 'step')} of warm-up" if warmup else ""
        linear = ", falling" if settings.get("patience") is not None else ", falling to zero"
        falls = {"linear": linear, "constant": ", constant"}
        parts.append(rate + falls.get(str(settings.get("schedule")), ""))
    if "precision" in settings:
        parts.append(f"in {settings['precision']}")
    if "seed" in settings:
        parts.append(f"with seed {settings['seed']}")
    return "".join(f", {part}" for part in parts)


def _kept(settings: Mapping[str, Any], history: pd.DataFrame) -> str:
    steps = list(dict.fromkeys(history["step"].astype(int)))
    measured = f"It was evaluated {count(len(steps), 'time')}"
    every = settings.get("checkpoint_every")
    if not every:
        return f"{measured}."
    # With a patience the last one is a copy of the best, beside those of all steps.
    numbered = steps[:-1] if settings.get("patience") is None else steps
    kept = 1 + sum(step % every == 0 for step in numbered)
    return f"{measured}, and {count(kept, 'checkpoint')} {'was' if kept == 1 else 'were'} kept."


def _what_is_averaged(members: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for role, names in members.items():
        if list(names) == [ALL]:
            yield f"{_column(role)} is over all {role_name(role)} examples."
        else:
            yield (
                f"{_column(role)} is the mean over {count(len(names), 'subset')}, each counting "
                f"the same: {', '.join(names)}."
            )


def _column(role: str) -> str:
    return GROUP_OF.get(role, role)


def _table(history: pd.DataFrame, members: Mapping[str, Sequence[str]]) -> Table:
    rows = []
    for step, part in history.groupby("step"):
        means = [
            part.loc[(part["role"] == role) & part["subset"].isin(names), "accuracy"].mean()
            for role, names in members.items()
        ]
        loss = number(part["loss"].iloc[0], 3)
        rows.append([whole(float(str(step))), loss, *map(percent, means)])
    header = ["step", "loss (nats)"]
    header += [
        f"{_column(role)} ({'all examples' if list(names) == [ALL] else f'{len(names)} subsets'})"
        for role, names in members.items()
    ]
    caption = "Training loss since the row before, and accuracy (means over the subsets above)"
    return Table(caption, header, rows, frozenset({0}), folded=len(rows) > _MOST_ROWS)
