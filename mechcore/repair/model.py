"""A Hugging Face classifier whose weights are arguments: a repair changes some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from mechcore.components import ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.files import appearing, write_json
from mechcore.masking.means import MeanActivations
from mechcore.models.architectures.base import architecture_of
from mechcore.models.checkpoint_files import without_bars
from mechcore.models.export import folded, projection_of
from mechcore.models.protocol import device_of, is_classifier, n_token_types, name_of, weights_of

Weights: TypeAlias = Mapping[str, Tensor]
"""Weights by name that replace the model's own."""


class RepairableModel:
    """A Hugging Face classifier that runs with changed weights; only gates need ``means``.

    Raises `InputError` if it is not a classifier, or its head or gates cannot be fitted.
    """

    def __init__(
        self,
        model: Any,
        source: str | Path,
        tokenizer: Any,
        means: MeanActivations | None = None,
        revision: str | None = None,
    ) -> None:
        if not is_classifier(model):
            raise InputError(
                f"repair: {name_of(model)} is not a classifier; expected a classification "
                "head whose last layer can be fitted"
            )
        own: Any = weights_of(model)
        with without_bars():
            hf: Any = type(own).from_pretrained(source, revision=revision, dtype=torch.float32)
        hf.config.pad_token_id = own.config.pad_token_id
        self.shape, self.means, self.tokenizer = ModelShape.of(model), means, tokenizer
        family = architecture_of(hf.config)
        if means is not None:
            if family.projections is None:
                raise InputError(
                    f"repair: gates of {name_of(model)} cannot be folded into its weights: "
                    f"{family.unfoldable}; leave out remove, gates and few-heads (--rungs)"
                )
            biased = family.with_biases(hf, attention=True, mlp=self.shape.has_mlps)
            if biased is not hf:  # built for export, without buffers that are not saved
                hf = type(biased)(biased.config)
                hf.load_state_dict(biased.state_dict())
        self.hf = hf.to(device_of(model)).eval().requires_grad_(False)
        self.types = n_token_types(model) > 1
        heads = [
            (name, part)
            for name, part in hf.named_modules()
            if isinstance(part, nn.Linear)
            and part.out_features == hf.config.num_labels
            and not name.startswith(f"{hf.base_model_prefix}.")
        ]
        if not heads:
            raise InputError(f"repair: {name_of(model)} has no last layer with a row per class")
        self.head_name, self.head = heads[-1]
        self.adds_bias = self.head.bias is None
        if self.adds_bias:
            self.head.bias = nn.Parameter(self.head.weight.new_zeros(self.head.out_features), False)
        self.weights: dict[str, Tensor] = dict(hf.named_parameters())

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.head.weight.device

    def logits(self, batch: Mapping[str, Tensor], weights: Weights) -> Float[Tensor, "row cls"]:
        """Logits with other weights; gradients flow into these."""
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if self.types else [])]
        inputs = {name: batch[name].to(self.device) for name in names if name in batch}
        return functional_call(self.hf, dict(weights), (), inputs).logits

    @torch.no_grad()
    def states(self, data: EncodedExamples, weights: Weights) -> Float[Tensor, "example d"]:
        """Inputs of the last layer, in order; raises `InputError` if logits need anything else."""
        read: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
        rows, index = list[Tensor](), list[Tensor]()
        try:
            for batch in data.batches(64):
                logits = self.logits(batch, weights)
                state = read.pop()
                if state.ndim == 3:  # a decoder's head runs at every position
                    last = batch["attention_mask"].sum(1).to(state.device) - 1
                    state = state[torch.arange(len(state), device=state.device), last]
                far = (self.classified(state, weights) - logits).abs().max()
                if not rows and far > 1e-3 * max(1.0, float(logits.abs().max())):
                    raise InputError(
                        f"repair: {type(self.hf).__name__} computes its logits from more than the "
                        f"inputs of {self.head_name} at one token; expected a plain last layer"
                    )
                rows.append(state)
                index.append(batch["index"])
        finally:
            hook.remove()
        return torch.cat(rows)[torch.cat(index).argsort().to(self.device)]

    def classified(self, states: Tensor, weights: Weights) -> Float[Tensor, "example cls"]:
        """Logits from inputs of the last layer; gradients flow into the weights."""
        weight, bias = (weights.get(name, self.weights[name]) for name in self.head_weights)
        return states @ weight.T + bias

    @torch.no_grad()
    def answers(self, data: EncodedExamples, weights: Weights) -> Float[Tensor, "example cls"]:
        """Logits of all examples, in order."""
        return self.classified(self.states(data, weights), weights)

    @property
    def head_weights(self) -> tuple[str, str]:
        """Names of the weight and the bias of the last layer."""
        return f"{self.head_name}.weight", f"{self.head_name}.bias"

    def gated(self, gates: Float[Tensor, "layer component"]) -> dict[str, Tensor]:
        """Output projections with gates folded in, see `mechcore.models.export.folded`."""
        return folded(self.hf, self.weights, gates, self.shape, self.means)

    def columns(self, components: Sequence[Any]) -> dict[str, Tensor]:
        """By name of an output projection, a mask of its weights that read one of these heads."""
        masks: dict[str, Tensor] = {}
        for component in components:
            name, transposed = projection_of(self.hf, component.layer, mlp=False)
            weight = self.weights[f"{name}.weight"]
            mask = masks.setdefault(f"{name}.weight", torch.zeros_like(weight))
            by_head = (mask.T if transposed else mask).unflatten(1, (self.shape.n_heads, -1))
            by_head[:, component.head] = 1
        return masks

    def save(self, weights: Weights, out: Path, facts: Mapping[str, Any]) -> None:
        """Write a checkpoint with these weights; `InputError` if its head lacks their bias."""
        if self.adds_bias and weights.get(self.head_weights[1], torch.zeros(1)).any():
            raise InputError(
                f"repair: {type(self.hf).__name__} has no bias for its classes to hold the repair; "
                "choose a repair that needs none, such as gates or fine-tune"
            )
        state = self.hf.state_dict() | {name: w.contiguous() for name, w in weights.items()}
        if self.adds_bias:
            state.pop(self.head_weights[1])
        with without_bars(), appearing(out) as folder:
            self.hf.save_pretrained(folder, state_dict=state)
            self.tokenizer.save_pretrained(folder)
            write_json(folder / "mechcore.json", dict(facts))
