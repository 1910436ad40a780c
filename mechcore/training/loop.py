"""Hugging Face's Trainer with mechcore's loss and order of examples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from mechcore.data.encoding import EncodedExamples
from mechcore.errors import MechcoreError
from mechcore.training.objectives import Objective
from mechcore.training.settings import TrainSettings

_MEGABATCH = 50
"""Batches that are sorted by length together."""


class BatchOrder(Sampler[int]):
    """The rows of a whole training run: ``n_batches`` batches of ``batch_size``, one after another.

    Every pass over the rows is in a new order, its incomplete last batch left out. The run is one
    sequence, so that going on at a step means to pass over what came before.
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, n_batches: int, seed: int, by_length: bool
    ) -> None:
        self.lengths = torch.tensor(lengths)
        self.batch_size, self.n_batches = batch_size, n_batches
        self.seed, self.by_length = seed, by_length

    def __len__(self) -> int:
        return self.n_batches * self.batch_size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        left = len(self)
        while left > 0:
            rows = self._one_pass(generator)[:left]
            left -= len(rows)
            yield from rows.tolist()

    def _one_pass(self, generator: torch.Generator) -> Int[Tensor, " row"]:
        order = torch.randperm(len(self.lengths), generator=generator)
        order = order[: len(order) // self.batch_size * self.batch_size]
        if not self.by_length:
            return order
        parts = order.split(_MEGABATCH * self.batch_size)
        by_length = [
            part[self.lengths[part].argsort(descending=True, stable=True)] for part in parts
        ]
        batches = torch.cat(by_length).view(-1, self.batch_size)
        return batches[torch.randperm(len(batches), generator=generator)].flatten()


class Loop(Trainer):
    """The Trainer with mechcore's loss and order of examples.

    It trains the model in place, for ``total`` optimiser steps; ``arguments`` are the Trainer's own
    settings, from `arguments_for`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        objective: Objective,
        encoded: EncodedExamples,
        settings: TrainSettings,
        total: int,
        arguments: TrainingArguments,
    ) -> None:
        self.objective: Objective = objective
        self.encoded, self.settings = encoded, settings
        self.targets = objective.targets(encoded.examples)
        self.total = total
        self.losses: list[float] = []
        with _same_cache(model.config):
            super().__init__(
                model=model, args=arguments, train_dataset=cast(Dataset, range(len(encoded)))
            )
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = False  # so that batches that are accumulated are averaged

    def get_train_dataloader(self) -> DataLoader:
        """Batches of the whole run, as one epoch."""
        settings = self.settings
        order = BatchOrder(
            [len(ids) for ids in self.encoded.input_ids],
            settings.batch_size,
            self.total * settings.accumulate,
            settings.seed,
            settings.by_length,
        )
        loader = DataLoader(
            cast(Dataset, self.train_dataset),
            batch_size=settings.batch_size,
            sampler=order,
            collate_fn=self._batch,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def _batch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        return {**self.encoded.rows(rows), "target": self.targets[list(rows)]}

    def create_optimizer(self, *_: Any, **__: Any) -> torch.optim.Optimizer:
        """AdamW, with weight decay on every parameter."""
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(
                cast(nn.Module, self.model).parameters(),
                lr=self.settings.learning_rate,
                betas=self.settings.betas,
                eps=self.settings.epsilon,
                weight_decay=self.settings.weight_decay,
            )
        return self.optimizer

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save weights under their names in the model, by which the Trainer restores them.

        Old checkpoints call some otherwise (``LayerNorm.gamma``), and transformers stores them
        under the names that they came with.
        """
        model = cast(PreTrainedModel, self.model)
        folder = cast(str, output_dir or self.args.output_dir)
        model.save_pretrained(folder, save_original_format=False)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a state that the Trainer would take with a warning.

        Raises:
            MechcoreError: weights are missing from it, or are none of the model's.
        """
        tied = getattr(self.model, "all_tied_weights_keys", {})
        wrong = [*(set(load_result.missing_keys) - set(tied)), *load_result.unexpected_keys]
        if wrong:
            raise MechcoreError(
                f"{self.args.output_dir}: does not fit this model ({wrong[0]}); remove the folder "
                "to begin anew"
            )

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: the Trainer would walk through all modules at every step for it."""
        del inputs
        return 0

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        """Mean cross-entropy of one batch, see `Objective.loss`.

        Raises:
            MechcoreError: it is not finite.
        """
        loss = self.objective.loss(model, inputs, inputs["target"])
        self.losses.append(loss.item())
        if not math.isfinite(self.losses[-1]):
            raise MechcoreError(
                f"training step {self.state.global_step + 1}: the loss is {self.losses[-1]}; lower "
                f"learning_rate ({self.settings.learning_rate}) or lengthen the warm-up"
            )
        return loss


@contextmanager
def _same_cache(config: Any) -> Iterator[None]:
    """Keep ``use_cache``, which the Trainer changes, as checkpoints would be stored with it."""
    before = {"use_cache": config.use_cache} if "use_cache" in vars(config) else {}
    try:
        yield
    finally:
        vars(config).pop("use_cache", None)
        vars(config).update(before)
