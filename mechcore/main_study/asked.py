"""What a study asks for: which analyses, and of which model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mechcore.analyses import ANALYSES, question_names
from mechcore.data.task import SPLITS
from mechcore.errors import InputError
from mechcore.main_study.config import EMBEDDED, TRAINED, StudyConfig
from mechcore.steps.config import ModelConfig
from mechcore.steps.sizes import checkpoint_series


def series(checkpoints: Sequence[str], model: ModelConfig) -> dict[Any, ModelConfig]:
    """The models of a study's checkpoints, by step."""
    return checkpoint_series(() if checkpoints == (EMBEDDED,) else checkpoints, model)


def asked(config: StudyConfig) -> list[str]:
    """The analyses that a study asks for alone, with those that they need; else all."""
    if others := [name for name in config.only if name not in question_names()]:
        ANALYSES[others[0]]  # which says what may be meant, if it is unknown
        expected = f"expected some of {', '.join(question_names())}"
        raise InputError(f"only: {others[0]} is no question of its own; {expected}")
    names = [*(config.only or question_names())]
    for name in names:  # grows on the way
        analysis = getattr(config.analyses, name, None) or ANALYSES[name]()
        needs = [*analysis.wants(), *analysis.may_read()]
        names += [need for need in needs if need in ANALYSES and need not in names]
    return names


def with_its_model(config: StudyConfig) -> StudyConfig:
    """The study with the last of its checkpoints as its model, where it names none."""
    sizes = "effective_size" in config.only and config.model.source is None
    if sizes and not config.checkpoints:
        return replace(config, checkpoints=(EMBEDDED,))
    of_others = config.checkpoints not in ((), (EMBEDDED,), (TRAINED,))
    data = config.data
    with_data = data.task is not None or any(getattr(data, split) for split in SPLITS)
    if config.model.source is not None or not of_others or not (sizes or with_data):
        return config
    return replace(config, model=[*series(config.checkpoints, config.model).values()][-1])
