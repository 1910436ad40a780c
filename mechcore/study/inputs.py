"""Loading and checking everything a step reads, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mechcore.errors import InputError
from mechcore.models import load_model, load_tokenizer
from mechcore.readout import Readout
from mechcore.study.config import DataConfig, ModelConfig
from mechcore.tasks import tiny_world
from mechcore.tasks.embedded import tiny_decoder_dir, tiny_encoder_dir
from mechcore.tasks.encoding import EncodedExamples, encode
from mechcore.tasks.examples import Examples
from mechcore.tasks.readers import read_examples

EMBEDDED_SEED = 2024
"""Seed of the embedded world's examples; the splits are disjoint whatever it is."""

EMBEDDED_SIZE = 2000
"""Embedded examples where no number is given."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """A model with the data it is studied on.

    Attributes:
        config: the model configuration, with embedded defaults filled in.
        model: the loaded model.
        tokenizer: its tokenizer.
        data: encoded examples by role: ``train``, ``id`` and ``ood``, as far as asked for.
    """

    config: ModelConfig
    model: Any
    tokenizer: Any
    data: dict[str, EncodedExamples]

    def encode(self, examples: Examples, *, words: bool = False) -> EncodedExamples:
        """Tokenize further examples the same way."""
        limit = min(
            self.config.max_length, self.tokenizer.model_max_length, int(self.model.cfg.n_ctx)
        )
        return encode(
            examples,
            self.tokenizer,
            max_length=limit,
            prompt=self.config.prompt,
            answers=self.config.answers,
            words=words,
        )

    def readout(self, role: str) -> Readout:
        """How answers to the examples of ``role`` are read."""
        return Readout.of(self.model, self.data[role], self.config.class_labels)


def load_inputs(
    model: ModelConfig, data: DataConfig, roles: tuple[str, ...], *, labelled: bool = True
) -> Inputs:
    """Load the model and the data of the given roles.

    Args:
        model: which model.
        data: which data.
        roles: which of ``train``, ``id`` and ``ood`` to load.
        labelled: check that test labels can be matched to the model's classes.

    Raises:
        InputError: a file or checkpoint is missing or unusable, a subset is empty, or a label is
            unknown to the checkpoint.
    """
    config = model if model.source is not None else _embedded(model)
    examples = {role: _examples(role, model, data) for role in roles}
    source = config.source
    assert source is not None
    loaded = Inputs(config, load_model(source, backend=config.backend), load_tokenizer(source), {})
    loaded.data.update({role: loaded.encode(each) for role, each in examples.items()})
    for role in roles:
        if labelled and role != "train":
            loaded.readout(role)
    return loaded


def _embedded(model: ModelConfig) -> ModelConfig:
    if model.embedded == "encoder":
        return replace(model, source=str(tiny_encoder_dir()))
    return replace(
        model,
        source=str(tiny_decoder_dir()),
        prompt=tiny_world.DECODER_PROMPT,
        answers=tiny_world.DECODER_ANSWERS,
    )


def _examples(role: str, model: ModelConfig, data: DataConfig) -> Examples:
    limit = getattr(data, f"max_{role}")
    path = getattr(data, role)
    if path is not None:
        examples = read_examples(Path(path), columns=data.columns, label_names=data.label_names)
    elif model.source is None:
        size = limit or EMBEDDED_SIZE
        seed = EMBEDDED_SEED + data.seed
        examples = tiny_world.generate(role, size, seed)  # type: ignore[arg-type]
    else:
        raise InputError(f"data: --{role} is missing; name a file")
    if role == "ood":
        examples = _choose(examples, data, path or "the embedded out-of-domain examples")
    return examples if limit is None else examples.sample(limit, data.seed)


def _choose(examples: Examples, data: DataConfig, path: str) -> Examples:
    if data.ood_label is not None:
        chosen = examples.frame[examples.frame["label"] == data.ood_label]
        if chosen.empty:
            raise InputError(
                f"{path}: no example with label {data.ood_label!r} (--ood-label); labels are "
                f"{', '.join(examples.label_names)}"
            )
        examples = Examples(examples.name, chosen)
    if data.ood_subsets:
        for name in data.ood_subsets:
            examples.subset(name)
        chosen = examples.frame[examples.frame["subset"].isin(data.ood_subsets)]
        examples = Examples(examples.name, chosen)
    return examples
