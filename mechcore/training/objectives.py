"""What a model learns: the class of its input, or the answer after a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import ALL, Examples
from mechcore.data.labels import LabelMap
from mechcore.data.tokens import answer_ids, single_tokens
from mechcore.errors import InputError
from mechcore.models.architectures.base import architecture_of
from mechcore.models.finite import check_finite
from mechcore.models.hooks import evaluating
from mechcore.models.tokenizers import as_read, known_types
from mechcore.session import plain_session

_EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Objective:
    """What a model learns: the class of its input, or the answer after a prompt.

    Attributes:
        max_length: maximum length of an input in tokens.
        classes: the possible answers, in the order of ``columns``.
        columns: index of each class among the model's logits: the class index, or the token id of
            its answer.
        prompt, answers: for language models, the text with ``{a}`` and ``{b}``, and the answer of
            each class; else None.
        truncate: whether to cut longer inputs, with a warning, or raise.
        types: number of token types of the model.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    classes: tuple[str, ...]
    columns: tuple[int, ...]
    prompt: str | None = None
    answers: Mapping[str, str] | None = None
    truncate: bool = False
    types: int = 0

    def encode(self, examples: Examples) -> EncodedExamples:
        """Examples as the model reads them; raises an error for inputs that are too long."""
        encoded = encode(
            examples,
            self.tokenizer,
            max_length=self.max_length,
            truncate=self.truncate,
            prompt=self.prompt,
            answers=self.answers,
            token_types=self.types > 1 or None,
        )
        return as_read(encoded, self.tokenizer, self.types, "the model")

    def logits(
        self, model: PreTrainedModel, batch: Mapping[str, Tensor]
    ) -> Float[Tensor, "batch choice"]:
        """Logits over which the loss is taken: classes, or the next token after the prompt."""
        if self.prompt is None:
            return _all_logits(model, batch)
        last = batch["attention_mask"].sum(dim=1) - 1
        rows = torch.arange(len(last), device=last.device)
        # For the large vocabulary of a language model, only at the positions that are read.
        places, column = last.unique(return_inverse=True)
        logits = _all_logits(model, batch, logits_to_keep=places.to(model.device))
        return logits[rows, column]

    def loss(
        self,
        model: PreTrainedModel,
        batch: Mapping[str, Tensor],
        targets: Int[Tensor, " batch"],
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy over examples, in nats; ``targets`` are indices of right logits."""
        logits = self.logits(model, batch)
        return nn.functional.cross_entropy(logits, targets.to(logits.device))

    def correct(self, examples: Examples) -> Bool[Tensor, "example class"]:
        """Which classes are right for each example; raises an error for labels that match none."""
        label_map = LabelMap.between(examples.label_names, self.classes, data=examples.name)
        return label_map.matrix(examples.frame["label"])

    def targets(self, examples: Examples) -> Int[Tensor, " example"]:
        """Logit index of the one right class of each example; `InputError` if there are more."""
        correct = self.correct(examples)
        vague = correct.sum(dim=1) != 1
        if vague.any():
            label = examples.frame["label"].iloc[int(vague.int().argmax())]
            raise InputError(
                f"examples {examples.name!r}: label {label!r} stands for several of the classes "
                f"{', '.join(self.classes)}; training needs one class per example: map the "
                "label to one (label_map in Python and in files, --label-map "
                f'"{label}={self.classes[-1]}"), or train a model with the classes of the data'
            )
        return torch.tensor(self.columns)[correct.int().argmax(dim=1)]


def classification(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
) -> Objective:
    """The objective of a sequence classifier, with the classes of its ``config.id2label``.

    Inputs are cut after ``max_length`` tokens; without it, inputs too long for the model are an
    error.

    Raises:
        InputError: ``max_length`` exceeds the model's positions, or model and tokenizer disagree
            on the padding token.
    """
    config: Any = model.config
    if architecture_of(config).reads_pad_id and config.pad_token_id != tokenizer.pad_token_id:
        raise InputError(
            f"model: its config.pad_token_id is {config.pad_token_id}, the tokenizer's "
            f"{tokenizer.pad_token_id}; expected the same: set both, or use new_model"
        )
    names = dict(cast(Mapping[int, str], config.id2label))
    return Objective(
        tokenizer,
        _length(model, tokenizer, max_length),
        tuple(names[index] for index in sorted(names)),
        tuple(sorted(names)),
        truncate=max_length is not None,
        types=known_types(config),
    )


def answering(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    answers: Mapping[str, str],
    max_length: int | None = None,
) -> Objective:
    """The objective of a causal language model that answers a prompt with ``{a}`` and ``{b}``.

    ``answers`` gives the one-token answer of each label.

    Raises:
        InputError: the answers are not distinct single tokens that the tokenizer knows, or
            ``max_length`` exceeds the model's positions.
    """
    columns = single_tokens(answers, answer_ids(answers, tokenizer, prompt))
    length = _length(model, tokenizer, max_length)
    truncate = max_length is not None
    return Objective(tokenizer, length, tuple(answers), columns, prompt, dict(answers), truncate)


def _all_logits(
    model: PreTrainedModel, batch: Mapping[str, Tensor], **options: Any
) -> Float[Tensor, "batch *pos logit"]:
    names = ["input_ids", "attention_mask"]
    # GPT-2 would read segment numbers as words.
    if "token_type_ids" in batch and getattr(model.config, "type_vocab_size", 0) > 1:
        names.append("token_type_ids")
    inputs = {name: batch[name].to(model.device) for name in names}
    logits: Tensor = model(**inputs, **options).logits
    return logits


def _length(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None
) -> int:
    limit = min(architecture_of(model.config).longest_text, int(tokenizer.model_max_length))
    if max_length is not None and not 1 <= max_length <= limit:
        raise InputError(
            f"max_length {max_length}: expected 1 to {limit}, the positions that the model has"
        )
    return max_length or limit


@plain_session()
def accuracies(
    model: PreTrainedModel, objective: Objective, encoded: EncodedExamples
) -> dict[str, float]:
    """Share of right answers over all examples (key ``"all"``) and in each subset."""
    correct = objective.correct(encoded.examples)
    right = torch.zeros(len(encoded), dtype=torch.bool)
    with evaluating(model), torch.no_grad():
        for batch in encoded.batches(_EVALUATION_BATCH):
            logits = objective.logits(model, batch)[:, list(objective.columns)]
            index = batch["index"]
            check_finite(logits, index)
            right[index] = correct[index, logits.argmax(dim=1).cpu()]
    shares = pd.Series(right.numpy())
    by_subset = shares.groupby(encoded.examples.frame["subset"], sort=False).mean()
    return {ALL: float(shares.mean()), **{str(k): float(v) for k, v in by_subset.items()}}
