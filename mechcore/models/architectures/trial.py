"""Check that TransformerLens gives Hugging Face's logits: adapters may leave things out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mechcore.errors import InputError, reason
from mechcore.models.architectures.base import architecture_of
from mechcore.models.hooked import can_be_hooked
from mechcore.models.protocol import forward, is_causal, kind_of

_PADDING = 2


class Trial:
    """Runs a few tokens through Hugging Face's model, and then TransformerLens's.

    ``hf_model`` is not bridged yet; ``pair`` is a tokenized pair of texts, each [1, pos], skipped
    if the model lacks its tokens or positions. Raises `InputError` if Hugging Face's own model
    fails.
    """

    @torch.no_grad()
    def __init__(self, hf_model: Any, pair: Mapping[str, Tensor] | None = None) -> None:
        self.kind = type(hf_model).__name__
        embedding, config = hf_model.get_input_embeddings().weight, hf_model.config
        longest = architecture_of(config).longest_text - _PADDING
        self.pad = getattr(config, "pad_token_id", None) or 0
        ids = [i for i in range(min(len(embedding), 7)) if i != self.pad][: max(longest, 1)]
        self.inputs: list[dict[str, Tensor]] = [{"input_ids": torch.tensor([ids, ids[::-1]])}]
        if pair is not None and int((own := pair["input_ids"]).max()) < len(embedding):
            self.inputs += [{**pair}] * (own.shape[1] <= longest)
        self.inputs = [
            {name: rows.to(embedding.device) for name, rows in inputs.items()}
            for inputs in self.inputs
        ]
        try:
            self.expected = [_at(hf_model(**inputs)[0], -1) for inputs in self.inputs]
        except Exception as error:  # a precision can cause any kind of error
            remedy = "a model that runs: correct what the error names in its config.json"
            if embedding.dtype != torch.float32:
                remedy = "a dtype in which it runs, float32 in most cases"
            raise InputError(
                f"model: Hugging Face's own {self.kind} fails in {embedding.dtype} "
                f"on a text of {len(ids)} tokens: {reason(error)}; expected {remedy}"
            ) from error

    @torch.no_grad()
    def check(self, name: str, model: Any) -> None:
        """Raise `InputError` unless the other model gives the same logits for padded rows."""
        for inputs, expected in zip(self.inputs, self.expected, strict=True):
            dtype, length = expected.dtype, inputs["input_ids"].shape[1]
            # In float64 Hugging Face's own masks overflow at padding without any key.
            left = is_causal(model) and dtype != torch.float64
            sides = (_PADDING, 0) if left else (0, _PADDING)
            batch = {key: F.pad(rows, sides) for key, rows in inputs.items()}
            batch["input_ids"] = F.pad(inputs["input_ids"], sides, value=self.pad)
            batch["attention_mask"] = F.pad(torch.ones_like(inputs["input_ids"]), sides)
            try:
                logits = _at(forward(model, batch), -1 if left else length - 1)
            except Exception as error:  # an architecture can cause any kind of error
                raise InputError(
                    f"checkpoint {name}: TransformerLens cannot run a {self.kind}: {error!r}"
                ) from error
            exact = dtype in (torch.float32, torch.float64)
            most = 1e-5 + (1e-3 if exact else 0.2) * float(expected.abs().max())
            apart = float((logits - expected).abs().max())
            if apart > most:  # false for NaN, which is refused wherever logits are read
                pair = " of a pair of texts" * ("token_type_ids" in inputs)
                other = "hooked" if kind_of(model) == "bridge" else "bridge"
                there = other == "bridge" or can_be_hooked(self.kind)
                raise InputError(
                    f"checkpoint {name}: as TransformerLens runs a {self.kind}, its logits{pair} "
                    f"are not those of Hugging Face: they differ by {apart:.2g}; expected at most "
                    f"{most:.2g}; "
                    + f'load it with backend "{other}" (--backend {other}), or ' * there
                    + "use a model of another family"
                )


def _at(output: Tensor, position: int) -> Float[Tensor, "row out"]:
    """A classifier's logits, or the output of other models at a position."""
    return output if output.ndim == 2 else output[:, position]
