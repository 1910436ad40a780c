"""Loading and checking everything a step reads, before anything is written."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mechcore.errors import InputError, MechcoreWarning
from mechcore.models import load_model, load_tokenizer
from mechcore.models.loading import has_hooked_transformer
from mechcore.models.running import class_names, longest_input
from mechcore.readout import Readout
from mechcore.study.config import DataConfig, ModelConfig
from mechcore.tasks import tiny_world
from mechcore.tasks.embedded import tiny_decoder_dir, tiny_encoder_dir
from mechcore.tasks.encoding import EncodedExamples, encode
from mechcore.tasks.examples import Examples
from mechcore.tasks.labels import normal_name
from mechcore.tasks.readers import read_examples

ROLES = ("train", "id", "ood")
TEST_ROLES = ("id", "ood")
"""Roles of data: training, in-domain and out-of-domain test examples."""

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
        available: how many examples there were to draw from, by role.
    """

    config: ModelConfig
    model: Any
    tokenizer: Any
    data: dict[str, EncodedExamples]
    available: dict[str, int]

    @classmethod
    def merged(cls, parts: Sequence[Inputs]) -> Inputs:
        """One model with the data of all parts."""
        data = {role: encoded for part in parts for role, encoded in part.data.items()}
        available = {role: n for part in parts for role, n in part.available.items()}
        return replace(parts[0], data=data, available=available)

    def add(self, role: str, examples: Examples, available: int, *, words: bool = False) -> None:
        """Take in the examples of a role, drawn from so many, and check their labels."""
        self.data[role] = self.encode(examples, words=words)
        self.available[role] = available
        if role != "train":
            self.readout(role)

    def encode(self, examples: Examples, *, words: bool = False) -> EncodedExamples:
        """Tokenize further examples the same way."""
        limit = min(
            self.config.max_length, self.tokenizer.model_max_length, longest_input(self.model)
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
    model: ModelConfig,
    data: DataConfig,
    roles: tuple[str, ...],
    *,
    answers: bool = True,
    device: str = "cpu",
) -> Inputs:
    """Load the model and the data of the given roles.

    Labels are checked against the model's classes for test data; those of training data are not
    used and may be anything. Where ``answers`` are not needed, but only attention, models without
    a head are loaded, too, and the words of the texts are worked out. The model goes to ``device``.

    Raises:
        InputError: a file or checkpoint is missing or unusable, a subset is empty, a label is
            unknown to the checkpoint, or options contradict each other.
    """
    check_sources(model, data, roles)
    found = {role: read_role(role, model, data) for role in roles}  # files first: they are quick
    loaded = open_model(model, answers=answers, device=device)
    for role, examples in found.items():
        loaded.add(role, *examples, words=not answers)
    return loaded


def open_model(model: ModelConfig, *, answers: bool = True, device: str = "cpu") -> Inputs:
    """Load a model and its tokenizer, without data; see `load_inputs`."""
    config = resolved(model)
    assert config.source is not None
    assert config.backend is not None
    loaded = Inputs(
        config,
        load_model(
            config.source,
            backend=config.backend,
            device=device,
            revision=config.revision,
            head=answers,
            allow_pickle=config.allow_pickle,
        ),
        load_tokenizer(config.source, revision=config.revision),
        data={},
        available={},
    )
    _check_reading(config, loaded.model)
    return loaded


def check_sources(model: ModelConfig, data: DataConfig, roles: Sequence[str]) -> None:
    """Make sure that model and data are named together, and everything that belongs to them.

    Raises:
        InputError: they are not.
    """
    files = {role: getattr(data, role) for role in ("train", "id", "ood")}
    missing = [f"--{role}" for role in roles if files[role] is None]
    if model.source is not None and missing:
        raise InputError(
            f"data: a checkpoint of your own needs files of your own; missing {', '.join(missing)}"
        )
    if model.source is None and any(files.values()):
        raise InputError(
            "data: files were given without --model; name the checkpoint they are for, or leave "
            "them out to work on the embedded world"
        )
    if model.source is None and (model.prompt or model.answers or model.class_labels):
        raise InputError(
            "model: --prompt, --answers and --classes are for checkpoints of your own; leave them "
            "out for an embedded model"
        )


def _check_reading(config: ModelConfig, model: Any) -> None:
    classifier = class_names(model) is not None
    if classifier and (config.prompt or config.answers):
        raise InputError(
            f"checkpoint {config.source}: is a classifier, which reads its texts without a prompt; "
            "leave out --prompt and --answers"
        )
    if not classifier and config.class_labels:
        raise InputError(
            f"checkpoint {config.source}: is a language model, whose classes are its answers; name "
            "them with --answers instead of --classes"
        )


def resolved(model: ModelConfig) -> ModelConfig:
    """The same configuration with what it leaves open: an embedded model's place, the backend."""
    if model.backend is None:
        own_decoder = model.source is None and model.embedded == "decoder"
        hooked = own_decoder and has_hooked_transformer()
        model = replace(model, backend="hooked" if hooked else "bridge")
    if model.source is not None:
        return model
    if model.embedded == "encoder":
        return replace(model, source=str(tiny_encoder_dir(model.checkpoint)))
    return replace(
        model,
        source=str(tiny_decoder_dir()),
        prompt=tiny_world.DECODER_PROMPT,
        answers=tiny_world.DECODER_ANSWERS,
    )


def read_role(role: str, model: ModelConfig, data: DataConfig) -> tuple[Examples, int]:
    """The examples to use, and how many there were to draw from."""
    limit = getattr(data, f"max_{role}")
    path = getattr(data, role)
    if model.source is None:
        size = limit or EMBEDDED_SIZE
        seed = EMBEDDED_SEED + data.seed
        examples = tiny_world.generate(role, size, seed)  # type: ignore[arg-type]
    else:
        examples = read_examples(
            Path(path),
            columns=data.columns,
            label_names=data.label_names,
            labelled=role != "train",
        )
    if role == "ood":
        examples = _choose(examples, data, path or "the embedded out-of-domain examples")
    drawn = examples if limit is None else examples.sample(limit, data.seed)
    if len(drawn) < len(examples):
        warnings.warn(
            f"examples {drawn.name!r}: {len(drawn)} of {len(examples)} drawn at random, by "
            f"subset, with seed {data.seed}; --max-... 0 takes all",
            MechcoreWarning,
            stacklevel=3,
        )
    return drawn, len(examples)


def _choose(examples: Examples, data: DataConfig, path: str) -> Examples:
    if data.ood_label is not None:
        wanted = normal_name(data.ood_label)
        chosen = examples.frame[examples.frame["label"].map(normal_name) == wanted]
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
