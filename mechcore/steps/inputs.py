"""Loads and checks everything a step reads, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import Examples, warn_of_copies
from mechcore.data.labels import normal_name
from mechcore.data.sources import Source, at_most, read_sources, sources_name
from mechcore.data.task import SPLITS, Task, find_task
from mechcore.data.tokens import chat_prompt
from mechcore.errors import InputError, shown, warn
from mechcore.evaluation.readout import Readout
from mechcore.models import load_model, load_tokenizer
from mechcore.models.devices import check_device
from mechcore.models.encoded import encode_for
from mechcore.models.hooked import has_hooked_transformer
from mechcore.models.protocol import is_classifier
from mechcore.models.tokenizers import check_vocabulary
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import tiny_decoder_dir, tiny_encoder_dir, tiny_failing_dir

_EMBEDDED_SEED = 2024
"""Seed of the embedded world's examples; the splits are disjoint for any seed."""

_EMBEDDED_SIZE = 2000


@dataclass(frozen=True, eq=False)
class Inputs:
    """A model with its data by split, how many examples there were, and all settings."""

    config: ModelConfig
    model: Any
    tokenizer: Any
    data: dict[str, EncodedExamples]
    available: dict[str, int]

    def add(self, split: str, added: Examples | EncodedExamples, available: int) -> None:
        """Add the examples of a split; warns if splits differ in form or share texts."""
        encoded = self.encode(added) if isinstance(added, Examples) else added
        examples = encoded.examples
        texts = _texts(examples)
        for other, data in self.data.items():
            pairs = examples.two_segments
            if self.config.prompt is None and data.examples.two_segments != pairs:
                here, there = ("pairs", "single texts")[:: 1 if pairs else -1]
                warn(
                    f"{split} data {examples.name}: read as {here}, but {other} data as {there}, "
                    "which a classifier may answer quite differently; if a column of second texts "
                    "was missed, name it with --columns text_b=NAME"
                )
            known = _texts(data.examples)
            both = len(texts & known) if other != split else 0
            least = 1 if "train" in (split, other) else min(len(texts), len(known)) / 2
            if both and both >= least:
                warn(
                    f"{split} data {examples.name}: {both} of {len(texts)} distinct texts are also "
                    f"among the drawn {other} data; if that is not intended, name another file"
                )
        self.data[split], self.available[split] = encoded, available
        if split != "train":
            self.readout(split)

    def encode(self, examples: Examples, *, words: bool = False) -> EncodedExamples:
        """Tokenize more examples in the same way."""
        return encode_for(
            self.model,
            self.tokenizer,
            examples,
            max_length=self.config.max_length,
            prompt=self.config.prompt,
            answers=self.config.answers,
            words=words,
        )

    def sampled(self, splits: Iterable[str], n: int, seed: int) -> Inputs:
        """The same inputs with at most ``n`` examples of these splits, and no others."""
        drawn = {split: self.encode(self.data[split].examples.sample(n, seed)) for split in splits}
        return replace(self, data=drawn)

    def readout(self, split: str) -> Readout:
        """How answers to the examples of ``split`` are read."""
        return Readout.of(self.model, self.data[split], self.config.class_names)


def _texts(examples: Examples) -> set[tuple[str, str]]:
    return {*zip(examples.frame["text_a"], examples.frame["text_b"], strict=True)}


def open_model(model: ModelConfig, *, answers: bool = True, device: str = "cpu") -> Inputs:
    """Load a model, with a head for ``answers``, and its tokenizer; raises `InputError`."""
    check_device(device)
    config = resolved(model)
    assert config.source is not None
    assert config.backend is not None
    opened = load_model(
        config.source,
        backend=config.backend,
        device=device if config.device_map is None else None,
        dtype=config.dtype,
        device_map=config.device_map,
        revision=config.revision,
        head=answers,
        allow_pickle=config.allow_pickle,
    )
    tokenizer = load_tokenizer(config.source, revision=config.revision)
    check_vocabulary(config.source, tokenizer, opened)
    classifier = is_classifier(opened)
    if classifier and (config.prompt or config.answers):
        raise InputError(
            f"checkpoint {config.source}: a classifier, which reads texts without a prompt; "
            "leave out --prompt and --answers"
        )
    if not classifier and config.class_names:
        raise InputError(
            f"checkpoint {config.source}: a language model, whose classes are its answers; name "
            "them with --answers instead of --class-names"
        )
    if config.chat_template:
        prompt = chat_prompt(tokenizer, config.prompt)
        config = replace(config, prompt=prompt, chat_template=False)
    return Inputs(config, opened, tokenizer, data={}, available={})


def check_sources(model: ModelConfig, data: DataConfig, splits: Sequence[str]) -> None:
    """Raise `InputError` unless the settings of model and data are compatible."""
    files = {split: getattr(data, split) for split in SPLITS}
    missing = [f"--{split}" for split in splits if files[split] is None and data.task is None]
    if model.source is not None and missing:
        raise InputError(
            f"data: a checkpoint of your own needs data of your own; missing {', '.join(missing)} "
            "(or name a task: --task)"
        )
    if model.source is None and (data.task or any(files.values())):
        raise InputError(
            "data: files are given without --model; name the checkpoint they are for, or leave "
            "them out to use the embedded world"
        )
    if model.source is None and (model.prompt or model.answers or model.class_names):
        raise InputError(
            "model: --prompt, --answers and --class-names are for your own checkpoints; leave "
            "them out for an embedded model"
        )


def resolved(model: ModelConfig) -> ModelConfig:
    """The configuration with defaults filled in: an embedded model's path, the backend."""
    own_decoder = model.source is None and model.embedded == "decoder"
    if model.backend is None:
        hooked = own_decoder and has_hooked_transformer()
        model = replace(model, backend="hooked" if hooked else "bridge")
    if own_decoder:
        texts: Any = {"prompt": tiny_world.DECODER_PROMPT, "answers": tiny_world.DECODER_ANSWERS}
        return replace(model, source=str(tiny_decoder_dir()), **texts)
    own = tiny_failing_dir if model.embedded == "failing" else tiny_encoder_dir
    return replace(model, source=model.source or str(own(model.checkpoint)))


def _task_of(data: DataConfig) -> Task | None:
    return None if data.task is None else find_task(data.task, data.folder)


def classes_of(model: ModelConfig, data: DataConfig) -> tuple[str, ...]:
    """Classes of a model to be trained, if it or the task names them."""
    task = _task_of(data)
    return model.class_names or (task.classes if task is not None else ())


def groups_of(model: ModelConfig, data: DataConfig) -> dict[str, tuple[str, ...]]:
    """Named groups of out-of-domain subsets, restricted to those that the data keep."""
    groups = {**getattr(_task_of(data), "groups", {}), **data.groups}
    if model.source is None and data.ood_label is None:
        groups = {**tiny_world.OOD_GROUPS, **groups}
    if not data.ood_subsets:
        return groups
    limited = data.ood_subsets
    kept = {name: tuple(s for s in group if s in limited) for name, group in groups.items()}
    return {name: group for name, group in kept.items() if group}


def sources_of(split: str, data: DataConfig) -> tuple[Source, ...]:
    """Where the examples of a split come from; empty if not specified."""
    given = getattr(_task_of(data) or data, split)
    sources = (Source(path=given),) if isinstance(given, str) else given or ()
    return tuple(
        replace(
            source,
            columns={**data.columns, **source.columns},
            label_map={**data.label_map, **source.label_map},
        )
        for source in sources
    )


def data_name(split: str, model: ModelConfig, data: DataConfig) -> str:
    """The name of a split's data in tables."""
    return split if model.source is None else sources_name(sources_of(split, data))


def embedded_draw(split: str, data: DataConfig) -> dict[str, int]:
    """Number and seed of the embedded examples of a split."""
    size = getattr(data, f"max_{split}") or _EMBEDDED_SIZE
    if split == "ood" and data.ood_label is not None:
        size *= 2  # half of the examples have the label
    return {"size": size, "seed": _EMBEDDED_SEED + data.seed}


def read_split(
    split: str, model: ModelConfig, data: DataConfig, *, labelled: bool = False
) -> tuple[Examples, int]:
    """The examples to use, labelled for tests, and how many there were; raises `InputError`."""
    if model.source is None:
        draw = embedded_draw(split, data)
        examples = tiny_world.generate(split, draw["size"], draw["seed"])  # type: ignore[arg-type]
    else:
        examples = read_sources(sources_of(split, data), labelled=labelled or split != "train")
    if split == "ood":
        world = [name for names in tiny_world.OOD_GROUPS.values() for name in names]
        _check_groups(data, world if model.source is None else examples.subset_names)
        examples = _choose(examples, data)
    name, limit = f"examples {examples.name!r}", getattr(data, f"max_{split}")
    how = f"--max-{split} 0 (max_{split}: null in a study's file)"
    drawn = at_most(limit, examples, data.seed, name, f"{how} takes all")
    if split != "train" and model.source is not None:
        warn_of_copies(split, drawn)
    return replace(drawn, population=data.population), len(examples)


def _check_groups(data: DataConfig, subsets: Sequence[str]) -> None:
    for group, members in data.groups.items():
        if group in subsets:
            raise InputError(
                f"groups: {group!r} is also the name of an out-of-domain subset, which would be "
                "ambiguous in tables; rename the group"
            )
        for name in (name for name in members if name not in subsets):
            close = " or ".join(map(repr, get_close_matches(name, subsets, n=3)))
            raise InputError(
                f"groups: {group}: no out-of-domain example is of subset {name!r}; "
                f"{f'did you mean {close}? ' if close else ''}subsets are "
                f"{shown(', '.join(subsets), 600)}"
            )


def _choose(examples: Examples, data: DataConfig) -> Examples:
    frame = examples.frame
    if data.ood_label is not None:
        frame = frame[frame["label"].map(normal_name) == normal_name(data.ood_label)]
        if frame.empty:
            raise InputError(
                f"examples {examples.name!r}: no example with label {data.ood_label!r} "
                f"(--ood-label); labels are {', '.join(examples.label_names)}"
            )
        examples = replace(examples, frame=frame)
    for name in data.ood_subsets:
        examples.subset(name)  # raises with the known names if it is unknown
    if data.ood_subsets:
        examples = replace(examples, frame=frame[frame["subset"].isin(data.ood_subsets)])
    return examples
