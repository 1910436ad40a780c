"""The command that fine-tunes checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mechcore import progress
from mechcore.cli.shared import show
from mechcore.errors import InputError
from mechcore.files import check_can_write
from mechcore.options import (
    AllTrainOptions,
    BaseOptions,
    FineTuneOptions,
    TaskOptions,
    TrainTestOptions,
    data_config,
    grouped,
    pairs,
    split,
)

_MOST_ROWS = 20


@grouped
def train(
    base: BaseOptions,
    train: AllTrainOptions,
    test: TrainTestOptions,
    files: TaskOptions,
    how: FineTuneOptions,
    device: Annotated[
        str | None,
        typer.Option("--device", help="cpu, cuda or mps; else cuda where there is one."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for checkpoints and history.")] = Path(
        "mechcore-training"
    ),
) -> None:
    """Fine-tune a checkpoint on your data, with further checkpoints and a history on the way.

    Run it again to go on after an interruption.
    """
    from mechcore.training import train as train_model

    settings = how.settings(test.batch_size, base.max_length)
    _check_base(base)
    check_can_write(out)
    examples = _read(base, data_config(files, train, test))
    training = examples.pop("train")
    model, objective = _begin(base, training.label_names, settings, device)
    with progress.shown():
        history = train_model(model, objective, training, examples, out, settings)
    _show_history(history)
    print(f"checkpoints and history: {out}")


def _check_base(base: BaseOptions) -> None:
    if base.model is None:
        raise InputError(
            "--model is missing; name the checkpoint to begin from, a directory or a hub id such "
            "as google-bert/bert-base-cased (mechcore train-world trains the embedded models)"
        )
    if (base.prompt is None) != (base.answers is None):
        raise InputError(
            "--prompt and --answers belong together: the text of a language model and the words "
            "that complete it; give both, or none to train a classifier"
        )


def _read(base: BaseOptions, data: Any) -> dict[str, Any]:
    """Labelled examples of every role that is given."""
    from mechcore.study import ModelConfig
    from mechcore.study.inputs import check_sources, read_role

    given = [role for role in ("id", "ood") if data.task or getattr(data, role) is not None]
    roles = ["train", *given]
    model = ModelConfig(source=base.model)
    check_sources(model, data, roles)
    return {role: read_role(role, model, data, labelled=True)[0] for role in roles}


def _begin(
    base: BaseOptions, labels: list[str], settings: Any, device: str | None
) -> tuple[Any, Any]:
    """The model to train and its objective."""
    import torch

    from mechcore.training import answering, classification, new_model

    classes = split(base.classes) or None
    if base.prompt is None and classes is None:
        classes = labels
    model, tokenizer = new_model(
        str(base.model),
        classes=classes,
        prompt=base.prompt,
        from_scratch=settings.from_scratch,
        seed=settings.seed,
        revision=base.revision,
        allow_pickle=base.allow_pickle,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
    )
    if base.prompt is None:
        return model, classification(model, tokenizer, settings.max_length)
    answers = pairs("--answers", base.answers)
    return model, answering(model, tokenizer, base.prompt, answers, settings.max_length)


def _show_history(history: Any) -> None:
    """Accuracies by step, the last ones where there are many."""
    from mechcore.tasks.examples import ALL

    overall = history[history["subset"] == ALL]
    if overall.empty:
        return
    table = overall.pivot(index="step", columns="dataset", values="accuracy").reset_index()
    names = {"id": "ID accuracy", "ood": "OOD accuracy"}
    show(table.rename(columns=names).tail(_MOST_ROWS))
    if len(table) > _MOST_ROWS:
        print(f"the last {_MOST_ROWS} of {len(table)} evaluations; all are in history.json")
