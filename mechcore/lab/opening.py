"""Opening a lab: which model, which data, and where results are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from mechcore.data.encoding import EncodedExamples
from mechcore.data.given import EXPECTED, given_examples, given_sources, is_task
from mechcore.data.sources import Source
from mechcore.data.task import SPLITS, TASKS
from mechcore.errors import InputError
from mechcore.files import write_bytes
from mechcore.lab.questions import Lab
from mechcore.main_study.config import StudyConfig
from mechcore.main_study.study import STUDY
from mechcore.steps.config import Embedded
from mechcore.steps.inputs import resolved
from mechcore.study.store import Store

EMBEDDED: dict[str, Embedded] = {
    "embedded": "encoder",
    "embedded-encoder": "encoder",
    "embedded-failing": "failing",
    "embedded-decoder": "decoder",
}
"""The models that come with mechcore, by their names in `open`."""

STORE = "mechcore-store"


def open(
    checkpoint: str | Path | None = None,
    train: Any = None,
    id: Any = None,
    ood: Any = None,
    *,
    columns: Mapping[str, str] | None = None,
    label_map: Mapping[Any, str] | None = None,
    store: str | Path = STORE,
    prompt: str | None = None,
    answers: Mapping[str, str] | None = None,
    settings: StudyConfig | None = None,
) -> Lab:
    """A model and its data, ready for questions; nothing is loaded yet.

    Args:
        checkpoint: a directory in Hugging Face format or a hub id; ``"embedded"`` (or
            ``"embedded-encoder"``), ``"embedded-failing"`` and ``"embedded-decoder"`` come with
            mechcore.
        train: training examples, of any form (`mechcore.data.given`); those in memory are copied.
            The name of a task alone stands for the data of all splits; an embedded model alone
            brings its own.
        id: in-domain test examples.
        ood: out-of-domain test examples.
        columns: which column serves as ``text_a``, ``text_b``, ``label``, ``subset`` or
            ``cluster``, unless it already has that name.
        label_map: meanings of labels, such as ``{0: "entailment"}``.
        store: folder of the run store; pass the same one to reuse results, also with
            ``mechcore run --store``.
        prompt: for a language model: text with ``{a}`` and ``{b}``.
        answers: for a language model: the answer of each label, of one token or several.
        settings: any other settings, such as class names, seeds and numbers of examples.

    Raises:
        InputError: there is no checkpoint, data of a split are missing or cannot be read, or the
            folder of the store holds something else.

    >>> lab = open("embedded")  # doctest: +SKIP
    """
    if checkpoint is None:
        raise InputError(
            "open: no checkpoint; expected a directory or a hub id, such as "
            'mechcore.open("my-bert-mnli", train=..., id=..., ood=...), or a model that comes with '
            f"mechcore: {' or '.join(map(repr, EMBEDDED))}"
        )
    if not isinstance(checkpoint, (str, Path)):
        raise InputError(
            f"open: checkpoint is a {type(checkpoint).__name__}; expected a directory or a hub id, "
            "by which results are kept; functions such as mechcore.ablation.sweep take a loaded "
            "model"
        )
    config = settings or StudyConfig()
    if config.variants or config.training is not None:
        raise InputError(
            "open: settings contain variants or training; expected one trained model; run such "
            "studies with mechcore.study.run.run_study"
        )
    given = {"train": train, "id": id, "ood": ood}
    missing = [split for split, data in given.items() if data is None]
    task = is_task(train) and len(missing) == 2
    if not task and 0 < len(missing) < len(SPLITS):
        raise InputError(
            f"open: {' and '.join(missing)} missing; expected data of all three splits"
            + f", or one of the tasks {', '.join(TASKS)}" * (len(missing) == 2)
        )
    embedded, no_data = EMBEDDED.get(str(checkpoint)), len(missing) == len(SPLITS)
    if embedded is not None and no_data and (columns or label_map):
        raise InputError(
            "open: columns and label_map apply to your own data, but the embedded model uses "
            "its own; name data (train, id, ood), or leave them out"
        )
    model = replace(config.model, source=str(checkpoint))
    if embedded is not None:
        model = replace(model, source=None, embedded=embedded)
        model = model if no_data else resolved(model)
    if prompt is not None or answers is not None:
        model = replace(model, prompt=prompt, answers=answers)
    kept = Store(Path(store).expanduser().absolute())  # whatever the working directory later
    known = config.data
    named = {**known.columns, **(columns or {})}
    meant = {**known.label_map, **{str(name): label for name, label in (label_map or {}).items()}}
    sources: dict[str, Any] = {"task": str(train)} if task else {}
    if not missing:
        sources = {split: _sources(data, split, named, kept) for split, data in given.items()}
    data = replace(known, columns=named, label_map=meant, **sources)
    return Lab(STUDY.located(replace(config, model=model, data=data), Path.cwd()), kept)


def _sources(data: Any, split: str, columns: Mapping[str, str], store: Store) -> tuple[Source, ...]:
    """Sources of a split's examples; those in memory are written to the store by content hash."""
    if sources := given_sources(data, split):
        return sources
    if isinstance(data, EncodedExamples):
        data = data.examples
    examples = given_examples(data, split, columns=columns, labelled=split != "train")
    if examples is None:
        is_empty = isinstance(data, Sized) and not len(data)
        name = f"{'an empty ' * is_empty}{type(data).__name__}"
        raise InputError(f"{split} data: found {name}; expected {EXPECTED}")
    frame = examples.frame.loc[:, (examples.frame != "").any()]
    content = frame.to_parquet(index=False)
    path = store.path / "examples" / sha256(content).hexdigest()[:16] / f"{split}.parquet"
    if not path.exists():
        store.create()
        write_bytes(path, content)
    columns = {name: name for name in map(str, frame)}
    return (Source(path=str(path.resolve()), columns=columns),)
