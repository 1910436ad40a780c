"""From logits to the classes of labels; of causal models, answers after the last real position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from mechcore.data.encoding import EncodedExamples
from mechcore.data.labels import LabelMap
from mechcore.errors import InputError
from mechcore.models.devices import sent
from mechcore.models.finite import check_finite
from mechcore.models.protocol import (
    Batch,
    is_causal,
    is_classifier,
    last_real_position,
    model_classes,
    n_rows,
)
from mechcore.models.stack import Linear, Stack

Data: TypeAlias = EncodedExamples | Iterable[Batch]
OfClasses: TypeAlias = Float[Tensor, "*masks batch cls"]
OfOutputs: TypeAlias = Float[Tensor, "*masks_batch_pos out"]

_UNUSED = "labels are not used"


@dataclass(frozen=True)
class Continuations:
    """Answers of several tokens: a model is asked once for every beginning of an answer.

    ``tokens`` are, for every answer, numbers of beginnings, and what goes on with them.
    """

    beginnings: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, answers: Iterable[tuple[int, ...]]) -> Continuations:
        """Those of answers, given as token ids."""
        numbers: dict[tuple[int, ...], int] = {}
        tokens = [
            tuple((numbers.setdefault(of[:i], len(numbers)), token) for i, token in enumerate(of))
            for of in answers
        ]
        return cls(tuple(numbers), tuple(tokens))

    def asked(self, batch: Batch) -> dict[str, Tensor]:
        """The batch, padded on the right, once for every beginning after each row's real tokens."""
        ids, mask = batch["input_ids"], batch["attention_mask"]
        longest = max(map(len, self.beginnings))
        ends = mask.sum(1, keepdim=True)
        rows: dict[str, list[Tensor]] = {"input_ids": [], "attention_mask": []}
        for beginning in self.beginnings:
            places = ends + torch.arange(len(beginning))
            tokens = ids.new_tensor(beginning).expand(len(ids), -1)
            rows["input_ids"].append(F.pad(ids, (0, longest)).scatter(1, places, tokens))
            real = torch.ones_like(tokens)
            rows["attention_mask"].append(F.pad(mask, (0, longest)).scatter(1, places, real))
        return {"index": batch["index"], **{name: torch.cat(parts) for name, parts in rows.items()}}

    def score(
        self, logits: Float[Tensor, "*masks row vocab"]
    ) -> Float[Tensor, "*masks batch answer"]:
        """Log-probabilities of the answers, nats, from the logits of what was asked."""
        steps = logits.float().log_softmax(-1).unflatten(-2, (len(self.beginnings), -1))
        scores = [
            torch.stack([steps[..., i, :, token] for i, token in answer]).sum(0)
            for answer in self.tokens
        ]
        return torch.stack(scores, -1)


@dataclass(frozen=True, eq=False)
class Readout:
    """How to read one model's answers to one kind of data.

    Attributes:
        tokens: the tokens that are the classes; None for all outputs, or several tokens each.
        label_map: from label names to classes; None for data whose labels are class indices.
        mapping: how labels and classes are matched, in words.
        everywhere: whether a language model's logits are read at all positions.
    """

    n_classes: int
    tokens: Tensor | None
    at_last_position: bool
    label_map: LabelMap | None
    mapping: str
    continuations: Continuations | None = None
    everywhere: bool = False

    @property
    def whole_vocabulary(self) -> bool:
        """Whether the classes are all tokens of a language model."""
        of_tokens = self.at_last_position or self.everywhere
        return of_tokens and self.tokens is None and self.continuations is None

    @classmethod
    def of(
        cls,
        model: Any,
        data: Data,
        class_names: Sequence[str] | None = None,
        *,
        labelled: bool = True,
    ) -> Readout:
        """The readout of a model for encoded examples, or batches with class or token indices.

        ``class_names`` are a classifier's, in place of its ``id2label``; unless ``labelled``, the
        labels may be anything. An `InputError` if labels and classes cannot be matched.
        """
        if not is_classifier(model):
            return cls._of_language_model(model, data, labelled)
        if not labelled:
            return cls(n_rows(model), None, False, None, _UNUSED)
        names, label_map = model_classes(model, class_names) or [], None
        mapping = "; ".join(f"{i} -> {name}" for i, name in enumerate(names))
        if isinstance(data, EncodedExamples):
            label_map = LabelMap.between(data.examples.label_names, names, data=data.examples.name)
            mapping = str(label_map)
        return cls(len(names), None, False, label_map, mapping)

    @classmethod
    def of_vocabulary(cls, model: Any, *, everywhere: bool = False) -> Readout:
        """All tokens of a language model, at the last real position or at all."""
        if not is_causal(model):
            raise InputError(
                f"model: {type(model).__name__} is a masked language model, which has no answer "
                "position; evaluate a sequence classifier or a causal language model"
            )
        n, mapping = int(model.cfg.d_vocab), "labels are token ids"
        return cls(n, None, not everywhere, None, mapping, everywhere=everywhere)

    @classmethod
    def _of_language_model(cls, model: Any, data: Data, labelled: bool) -> Readout:
        if not is_causal(model) or not isinstance(data, EncodedExamples):
            return cls.of_vocabulary(model)
        if data.answers is None:
            raise InputError(
                "examples: a language model needs answer words for the labels; encode them with a "
                "prompt and answers (--prompt, --answers; in Python "
                "mechcore.models.encoded.as_encoded), or pass a metric to mechcore.ablation.sweep, "
                "see mechcore.evaluation.metrics"
            )
        answers = list(data.answers.values())
        tokens = continuations = None
        if max(map(len, answers)) == 1:
            tokens = torch.tensor(answers).flatten()
        else:
            continuations = Continuations.of(answers)
        label_map, examples = None, data.examples
        if labelled:
            names = (examples.label_names, list(data.answers))
            label_map = LabelMap.between(*names, data=examples.name, answers=True)
        mapping = _UNUSED if label_map is None else str(label_map)
        return cls(len(answers), tokens, True, label_map, mapping, continuations)

    def asked(self, batch: Batch) -> Batch:
        """What the model is to run on for the answers to ``batch``, see `Continuations.asked`."""
        return batch if self.continuations is None else self.continuations.asked(batch)

    def read(
        self, logits: OfOutputs, inputs: Mapping[str, Tensor], examples: Iterable[int] | Tensor
    ) -> OfClasses:
        """Logits of the classes, given a forward's logits and the inputs (`asked`) it ran on.

        ``examples`` are the numbers of the rows in the data; `NotFiniteError` if one is not finite.
        """
        logits = self.taken(logits, inputs)
        self.check(logits, examples)
        return logits

    def taken(self, logits: OfOutputs, inputs: Mapping[str, Tensor]) -> OfClasses:
        """`read` without a look at the values, which a device would have to be waited for."""
        if self.at_last_position:
            last = last_real_position(inputs["attention_mask"])
            logits = logits[..., torch.arange(len(last), device=last.device), last, :]
        if self.tokens is not None:
            logits = logits[..., sent(self.tokens, logits.device)]
        return self.classes(self.unpadded(logits, inputs["attention_mask"]))

    def unpadded(self, logits: OfOutputs, mask: Tensor) -> Tensor:
        """The same with zeros at padding, where all positions are read."""
        return logits.masked_fill((mask == 0)[..., None], 0) if self.everywhere else logits

    def of_stack(self, stack: Stack) -> Stack:
        """The model's layers with those outputs alone that `classes` takes."""
        if self.tokens is None:
            return stack
        tokens = self.tokens.to(stack.out.weight.device)
        bias = None if stack.out.bias is None else stack.out.bias[tokens]
        return replace(stack, out=Linear(stack.out.weight[tokens], bias))

    def classes(self, logits: Float[Tensor, "*masks row out"]) -> OfClasses:
        """Logits of the classes from those read at a position, of all tokens or `tokens`."""
        return logits if self.continuations is None else self.continuations.score(logits)

    def check(
        self,
        logits: Float[Tensor, "*masks example cls"],
        examples: Iterable[int] | Tensor,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make sure that logits of the classes are finite, see `check_finite`."""
        logits = logits.flatten(-2) if self.everywhere else logits
        check_finite(logits, examples, dtype, never=self.whole_vocabulary)

    def correct_classes(self, data: Data) -> Bool[Tensor, "example cls"]:
        """Which classes count as correct; an InputError if labels are no indices of classes."""
        if self.label_map is not None and isinstance(data, EncodedExamples):
            return self.label_map.matrix(data.examples.frame["label"])
        return torch.cat([self._one_hot(batch) for batch in data])  # type: ignore[union-attr]

    def _one_hot(self, batch: Batch) -> Tensor:
        n, most = len(batch["input_ids"]), self.n_classes - 1
        wanted = f"{n} class indices (token ids for language models), whole numbers, 0 to {most}"
        if batch.get("labels") is None:
            raise InputError(f"batch: no labels; expected {wanted}")
        labels = torch.as_tensor(batch["labels"]).cpu()
        given = f"{labels.dtype} of shape {tuple(labels.shape)}"
        if labels.shape == (n,) and not (labels.is_floating_point() or labels.is_complex()):
            given = f"from {int(labels.min())} to {int(labels.max())}"
            if 0 <= int(labels.min()) <= int(labels.max()) <= most:
                return F.one_hot(labels.long(), self.n_classes).bool()
        raise InputError(f"batch: labels are {given}; expected {wanted}")
