"""Which model and which data a study is of."""

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
"""Roles of test data: in-domain and out-of-domain."""

FORBID = ConfigDict(extra="forbid")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_name(what: str, name: str) -> None:
    """Refuse, as an `InputError`, a name that cannot be that of a folder, or means another one."""
    if not _NAME.fullmatch(name) or len(name) > 100:
        raise InputError(
            f"{what}: the name {name[:100]!r} cannot be used; expected at most 100 letters, "
            "digits, dots, dashes and underscores, the first a letter or digit"
        )


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how to read its answers."""

    __pydantic_config__ = FORBID
    panel: ClassVar[str] = "Model"

    source: str | None = setting(
        None,
        "Checkpoint directory or hub id; else an embedded model is used.",
        "--model",
        place=True,
    )
    embedded: Embedded = setting(
        "encoder", "Embedded model to use where no other is named.", "--embedded"
    )
    checkpoint: str = setting("final", "Which checkpoint of the embedded encoder.")
    revision: str | None = setting(
        None, "Branch, tag or commit of a hub id.", "--revision", place=True, rare=True
    )
    backend: Literal["bridge", "hooked"] | None = setting(
        None,
        "TransformerBridge or HookedTransformer (TransformerLens 3, GPT-2 language models); "
        "by default a bridge, but a HookedTransformer for the embedded decoder where "
        "TransformerLens has one.",
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
        "Language models: put the prompt into the chat template of the tokenizer, as a turn of the "
        "user that the answer follows.",
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
        "Tokens after which texts are cut, with a count of them; else texts longer than the "
        "model takes are refused.",
        "--max-length",
        least=1,
    )
    dtype: Literal["float32", "bfloat16", "float16"] = setting(
        "float32", "Precision of the weights.", "--dtype"
    )
    device_map: str | Mapping[str, str] | None = setting(
        None,
        "Spread a large model over devices: auto, balanced, or devices by module; in place of "
        "the device of the resources.",
        "--device-map",
        rare=True,
        example="auto",
    )
    allow_pickle: bool = setting(
        False,
        "Read weights from a pickle, which can run any code on loading.",
        "--allow-pickle",
        rare=True,
    )

    def __post_init__(self) -> None:
        check(self, "model")
        check_name("model: checkpoint", self.checkpoint)


@dataclass(frozen=True)
class DataConfig:
    """Which data, and how much of it: a task, or what is given for each split."""

    __pydantic_config__ = FORBID
    panel: ClassVar[str] = "Data"

    task: str | None = setting(
        None,
        "Task, in place of files: mnli-hans, qqp-paws or a YAML file that describes one.",
        "--task",
        place=True,
    )
    folder: str | None = setting(
        None, "Folder with the task's files; else from the hub.", "--data-folder", place=True
    )
    train: str | tuple[Source, ...] | None = setting(
        None,
        "Training examples, for means and pruning: a file; in a study's file also several sources.",
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
        "Columns of the files by what they hold: text_a, text_b, label, subset, cluster.",
        "--columns",
        example="{text_a: premise, text_b: hypothesis}",
    )
    label_map: Mapping[str, str] = setting(
        {}, "What the data's labels mean.", "--label-map", example='{"0": entailment, "1": neutral}'
    )
    population: Population = setting(
        "clusters",
        "What intervals are for where examples go together in clusters: other clusters, or other "
        "texts of the same subsets.",
        "--population",
        rare=True,
    )
    groups: Mapping[str, tuple[str, ...]] = setting(
        {},
        "Named groups of out-of-domain subsets, whose means are tabulated; besides those of "
        "the task.",
        example="{swaps: [so_swap, ln_swap]}",
    )
    ood_label: str | None = setting(
        None, "Keep out-of-domain examples of this label only.", "--ood-label", rare=True
    )
    ood_subsets: tuple[str, ...] = setting(
        (), "Keep these out-of-domain subsets only.", "--ood-subsets"
    )
    max_train: int | None = setting(
        4000, "Training examples to draw at most, by subset.", "--max-train", least=1, all=True
    )
    max_id: int | None = setting(
        2000, "In-domain examples to draw at most, by subset.", "--max-id", least=1, all=True
    )
    max_ood: int | None = setting(
        2000, "Out-of-domain examples to draw at most, by subset.", "--max-ood", least=1, all=True
    )
    seed: int = setting(
        0, "Seed of the draws of examples.", "--data-seed", least=0, most=2**32 - 1, rare=True
    )

    def __post_init__(self) -> None:
        check(self, "data")
        for split in SPLITS:
            if self.task is not None and getattr(self, split) is not None:
                raise InputError(
                    f"data: task and {split} exclude each other; leave one of them out"
                )
        if self.folder is not None and self.task is None:
            raise InputError("data: folder is where a task's files are; name the task, too")
        check_groups("data", self.groups)
