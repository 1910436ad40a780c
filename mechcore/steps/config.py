"""Settings of a study's model and data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict

from mechcore.data.examples import Population
from mechcore.data.sources import Source
from mechcore.data.task import SPLITS, check_groups
from mechcore.errors import InputError
from mechcore.settings import check, setting

Embedded = Literal["encoder", "failing", "decoder"]

TEST_SPLITS = ("id", "ood")

FORBID = ConfigDict(extra="forbid")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_name(what: str, name: str) -> None:
    """Raise `InputError` for a name that is not valid, or ambiguous, as that of a folder."""
    if not _NAME.fullmatch(name) or len(name) > 100:
        raise InputError(
            f"{what}: invalid name {name[:100]!r}; expected at most 100 letters, "
            "digits, dots, dashes and underscores, the first a letter or digit"
        )


@dataclass(frozen=True)
class ModelConfig:
    """The model, and how to read its answers."""

    __pydantic_config__ = FORBID
    panel: ClassVar[str] = "Model"

    source: str | None = setting(
        None,
        "Checkpoint directory or hub id; by default an embedded model.",
        "--model",
        place=True,
    )
    embedded: Embedded = setting(
        "encoder", "Embedded model to use if no model is named.", "--embedded"
    )
    checkpoint: str = setting("final", "Checkpoint of the embedded encoder.")
    revision: str | None = setting(
        None, "Branch, tag or commit of a hub id.", "--revision", place=True, rare=True
    )
    backend: Literal["bridge", "hooked"] | None = setting(
        None,
        "TransformerBridge or HookedTransformer (TransformerLens 3, GPT-2 language models); "
        "by default a bridge, but a HookedTransformer for the embedded decoder if TransformerLens "
        "provides it.",
        "--backend",
        rare=True,
    )
    class_names: tuple[str, ...] | None = setting(
        None,
        "Names of the checkpoint's classes in index order, if its id2label has none.",
        "--class-names",
        example="[entailment, neutral, contradiction]",
    )
    prompt: str | None = setting(
        None, "Language models: text with {a} and {b}.", "--prompt", example='"{a} So {b}?"'
    )
    chat_template: bool = setting(
        False,
        "Language models: wrap the prompt in the tokenizer's chat template, as a user turn "
        "before the answer.",
        "--chat-template",
        rare=True,
    )
    answers: Mapping[str, str] | None = setting(
        None,
        "Language models: the answer of each label, of one token or several.",
        "--answers",
        example='{entailment: " Yes", non-entailment: " No"}',
    )
    max_length: int | None = setting(
        None,
        "Maximum number of tokens; longer texts are cut and counted. By default, texts too long "
        "for the model are an error.",
        "--max-length",
        least=1,
    )
    dtype: Literal["float32", "bfloat16", "float16"] = setting(
        "float32", "Precision of the weights.", "--dtype"
    )
    device_map: str | Mapping[str, str] | None = setting(
        None,
        "Spread a large model over devices: auto, balanced, or devices by module; replaces "
        "the device of the resources.",
        "--device-map",
        rare=True,
        example="auto",
    )
    allow_pickle: bool = setting(
        False,
        "Allow weights in a pickle, which can run arbitrary code on loading.",
        "--allow-pickle",
        rare=True,
    )

    def __post_init__(self) -> None:
        check(self, "model")
        check_name("model: checkpoint", self.checkpoint)


@dataclass(frozen=True)
class DataConfig:
    """The data, and how much of it to use: a task, or the files of each split."""

    __pydantic_config__ = FORBID
    panel: ClassVar[str] = "Data"

    task: str | None = setting(
        None,
        "Task, instead of files: mnli-hans, qqp-paws or a YAML file that describes one.",
        "--task",
        place=True,
    )
    folder: str | None = setting(
        None, "Folder with the task's files; by default the hub.", "--data-folder", place=True
    )
    train: str | tuple[Source, ...] | None = setting(
        None,
        "Training examples, for means and pruning: a file, or in a configuration several sources.",
        "--train",
        place=True,
        example="[{path: mnli.tsv, labels: [neutral], max: 1000}]",
    )
    id: str | tuple[Source, ...] | None = setting(
        None, "In-domain test examples, likewise.", "--id", place=True
    )
    ood: str | tuple[Source, ...] | None = setting(
        None,
        "Out-of-domain test examples, likewise.",
        "--ood",
        place=True,
    )
    columns: Mapping[str, str] = setting(
        {},
        "Columns of the files by their content: text_a, text_b, label, subset, cluster.",
        "--columns",
        example="{text_a: premise, text_b: hypothesis}",
    )
    label_map: Mapping[str, str] = setting(
        {},
        "Meaning of the data's labels.",
        "--label-map",
        example='{"0": entailment, "1": neutral}',
    )
    population: Population = setting(
        "clusters",
        "Population of intervals if examples form clusters: other clusters, or other "
        "texts of the same subsets.",
        "--population",
        rare=True,
    )
    groups: Mapping[str, tuple[str, ...]] = setting(
        {},
        "Named groups of out-of-domain subsets to average over, in addition to those of the task.",
        example="{swaps: [so_swap, ln_swap]}",
    )
    ood_label: str | None = setting(
        None, "Keep only out-of-domain examples with this label.", "--ood-label", rare=True
    )
    ood_subsets: tuple[str, ...] = setting(
        (), "Keep only these out-of-domain subsets.", "--ood-subsets"
    )
    max_train: int | None = setting(
        4000, "Maximum training examples, drawn by subset.", "--max-train", least=1, all=True
    )
    max_id: int | None = setting(
        2000, "Maximum in-domain examples, drawn by subset.", "--max-id", least=1, all=True
    )
    max_ood: int | None = setting(
        2000, "Maximum out-of-domain examples, drawn by subset.", "--max-ood", least=1, all=True
    )
    seed: int = setting(
        0, "Seed for drawing examples.", "--data-seed", least=0, most=2**32 - 1, rare=True
    )

    def __post_init__(self) -> None:
        check(self, "data")
        for split in SPLITS:
            if self.task is not None and getattr(self, split) is not None:
                raise InputError(
                    f"data: task and {split} exclude each other; leave one of them out"
                )
        if self.folder is not None and self.task is None:
            raise InputError("data: folder is given without a task; name the task of its files")
        check_groups("data", self.groups)
