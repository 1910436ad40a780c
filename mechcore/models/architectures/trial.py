"""Whether a bridge that nobody has tried has Hugging Face's logits.

Some adapters of TransformerLens leave out what a family does, and no error says so.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechcore.errors import InputError
from mechcore.models.running import forward


class Trial:
    """A few tokens through a model, before it is bridged and after.

    Args:
        hf_model: a decoder of Hugging Face, not bridged yet; the padding token of a classifier is
            set.
    """

    @torch.no_grad()
    def __init__(self, hf_model: Any) -> None:
        embedding = hf_model.get_input_embeddings().weight
        self.pad = hf_model.config.pad_token_id or 0
        ids = [i for i in range(min(len(embedding), 9)) if i != self.pad]
        self.rows = [ids, ids[::-2]]
        rows = [torch.tensor([row], device=embedding.device) for row in self.rows]
        self.expected = torch.cat([self._read(hf_model(row).logits) for row in rows])

    @staticmethod
    def _read(logits: Tensor) -> Float[Tensor, "row out"]:
        return logits if logits.ndim == 2 else logits[:, -1]

    @torch.no_grad()
    def check(self, name: str, model: Any) -> None:
        """Make sure that the bridge gives the same logits, with padding on the left.

        Raises:
            InputError: it does not, or fails.
        """
        length = len(self.rows[0])
        padded = [[self.pad] * (length - len(row)) + row for row in self.rows]
        mask = [[0] * (length - len(row)) + [1] * len(row) for row in self.rows]
        kind = type(model.original_model).__name__
        try:
            found = self._read(forward(model, {"input_ids": padded, "attention_mask": mask}))
        except Exception as error:  # what a bridge makes of an architecture is of any kind
            raise InputError(
                f"checkpoint {name}: TransformerLens cannot run a {kind}: {error!r}"
            ) from error
        exact = self.expected.dtype == torch.float32
        most = (1e-3 if exact else 0.2) * float(self.expected.abs().max())
        apart = float((found - self.expected).abs().max())
        if apart > most:
            raise InputError(
                f"checkpoint {name}: as TransformerLens bridges a {kind}, its logits are not those "
                f"of Hugging Face: they differ by {apart:.2g}, expected at most {most:.2g}; use a "
                "model of another family"
            )
