"""Sweeps with one forward of the whole model per set, by hand and in other packages.

Every variant writes the same means into the same heads' outputs, before W_O, so all give the same
logits. `FullForwards.logits` is timed.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from mechcore.data.encoding import EncodedExamples
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.checkpoint_files import without_bars

Heads: TypeAlias = tuple[tuple[int, int], ...]
"""A set: layer and head of each member."""

Run: TypeAlias = Callable[[dict[str, Tensor]], Tensor]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


OUTPUTS = {
    "bert": "bert.encoder.layer.{}.attention.output.dense",
    "gpt2": "transformer.h.{}.attn.c_proj",
    "llama": "model.layers.{}.self_attn.o_proj",
}
"""Path of a layer's W_O in a classifier, by model type."""


class NotHere(Exception):
    """Why a variant cannot run in this environment."""


def batches_of(
    data: EncodedExamples, batch_size: int, *, by_length: bool
) -> Iterator[dict[str, Tensor]]:
    """Batches of similar lengths, or in the order of the examples."""
    if by_length:
        yield from data.batches(batch_size)
        return
    for rows in torch.arange(len(data)).split(batch_size):
        yield data.rows(rows.tolist())


class FullForwards:
    """The common base of the variants.

    Args:
        source: folder of the checkpoint, a BERT classifier; or the Hugging Face model itself, of
            any family in `OUTPUTS`.
        means: the heads' mean outputs.
        device: where the model runs.
    """

    by_length = False
    package: str | None = None

    def __init__(self, source: Any, means: MeanActivations, device: str) -> None:
        if self.package is not None:
            try:
                version(self.package)
            except PackageNotFoundError as error:
                raise NotHere("not installed") from error
        self.device = device
        self.means = means.z.float().to(device)
        self.model = self.load(source)

    def load(self, source: Any) -> Any:
        """The Hugging Face model, with transformers' default attention."""
        if not isinstance(source, str):
            return source
        with without_bars():
            model: Any = AutoModelForSequenceClassification.from_pretrained(
                source, dtype=torch.float32
            )
        return model.to(self.device).eval().requires_grad_(False)

    def without(self, heads: Heads) -> AbstractContextManager[Run]:
        """The model without ``heads``: a function from inputs to logits."""
        raise NotImplementedError

    @torch.no_grad()
    def logits(self, sets: Sequence[Heads], data: EncodedExamples, batch_size: int) -> Tensor:
        """Logits without each set, [set, example, class]."""
        batches = list(batches_of(data, batch_size, by_length=self.by_length))
        inputs = [{k: b[k].to(self.device) for k in INPUTS if k in b} for b in batches]
        order = torch.cat([batch["index"] for batch in batches]).argsort()
        logits = []
        for heads in sets:
            with self.without(heads) as run:
                logits.append(torch.cat([run(batch) for batch in inputs]).cpu()[order])
        return torch.stack(logits)

    def output(self, layer: int) -> str:
        """Where a layer's W_O is in the Hugging Face model."""
        return OUTPUTS[self.model.config.model_type].format(layer)

    def write(self, z: Tensor, layer: int, heads: Sequence[int]) -> None:
        """Write the means of ``heads`` into z [batch, pos, head * d_head]."""
        size = self.means.shape[-1]
        for head in heads:
            z[..., head * size : (head + 1) * size] = self.means[layer, head]


class RawHooks(FullForwards):
    """Forward-pre-hooks of torch on the plain Hugging Face model, batches sorted by length."""

    by_length = True

    @contextmanager
    def without(self, heads: Heads) -> Iterator[Run]:
        with ExitStack() as hooks:
            for layer, members in by_layer(heads).items():
                dense = self.model.get_submodule(self.output(layer))
                handle = dense.register_forward_pre_hook(self._hook(layer, members))
                hooks.callback(handle.remove)
            yield lambda inputs: self.model(**inputs).logits

    def _hook(self, layer: int, heads: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
        def hook(module: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            z = arguments[0].clone()
            self.write(z, layer, heads)
            return (z, *arguments[1:])

        return hook


class RawHooksUnsorted(RawHooks):
    """The same with batches in the data's order."""

    by_length = False


class Bridge(FullForwards):
    """Hooks of a TransformerLens bridge, loaded with mechcore's adapter."""

    def load(self, source: str) -> Any:
        return load_model(source, device=self.device)

    @contextmanager
    def without(self, heads: Heads) -> Iterator[Run]:
        hooks = [
            (f"blocks.{layer}.attn.hook_z", self._hook(layer, members))
            for layer, members in by_layer(heads).items()
        ]

        def run(inputs: dict[str, Tensor]) -> Tensor:
            others = {name: tensor for name, tensor in inputs.items() if name != "input_ids"}
            return self.model(inputs["input_ids"], return_type="logits", **others)

        with self.model.hooks(fwd_hooks=hooks):
            yield run

    def _hook(self, layer: int, heads: Sequence[int]) -> Callable[..., Tensor]:
        def hook(z: Tensor, hook: Any) -> Tensor:  # [batch, pos, head, d_head]
            z = z.clone()
            z[:, :, heads] = self.means[layer, heads]
            return z

        return hook


class Pyvene(FullForwards):
    """An `IntervenableModel` per set; pyvene lacks BERT, so modules are named in full."""

    package = "pyvene"

    @contextmanager
    def without(self, heads: Heads) -> Iterator[Run]:
        import pyvene

        places = [
            {
                "component": re.sub(r"\.(\d+)", r"[\1]", self.output(layer)) + ".input",
                "intervention": self._intervention(layer, members),
            }
            for layer, members in by_layer(heads).items()
        ]
        model = pyvene.IntervenableModel(places, model=self.model)
        yield lambda inputs: model(base=inputs)[1].logits

    def _intervention(self, layer: int, heads: Sequence[int]) -> Callable[..., Tensor]:
        def intervene(base: Tensor, source: Any, *args: Any, **kwargs: Any) -> Tensor:
            z = base.clone()
            self.write(z, layer, heads)
            return z

        return intervene


class Nnsight(FullForwards):
    """A trace per set and batch."""

    package = "nnsight"

    def load(self, source: str) -> Any:
        import nnsight

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # BERT's modules "output" are called E_output there
            return nnsight.NNsight(super().load(source))

    @contextmanager
    def without(self, heads: Heads) -> Iterator[Run]:
        # A module called "output" is called "E_output" there.
        places = {
            self.output(layer).replace(".output.", ".E_output."): (layer, members)
            for layer, members in by_layer(heads).items()
        }
        write = self.write

        def run(inputs: dict[str, Tensor]) -> Tensor:
            with self.model.trace(**inputs):
                for place, (layer, members) in places.items():
                    write(operator.attrgetter(place)(self.model).input, layer, members)
                logits = self.model.output.logits.save()
            return logits  # noqa: RET504 a trace has no return

        yield run


VARIANTS: Mapping[str, type[FullForwards]] = {
    "raw hooks": RawHooks,
    "raw hooks, unsorted": RawHooksUnsorted,
    "TransformerLens bridge": Bridge,
    "pyvene": Pyvene,
    "nnsight": Nnsight,
}


def by_layer(heads: Heads) -> dict[int, list[int]]:
    """Heads by layer, first layer first."""
    layers = sorted({layer for layer, _ in heads})
    return {layer: [h for at, h in heads if at == layer] for layer in layers}


def versions() -> dict[str, str]:
    """Versions of the compared packages that are installed."""
    installed = {}
    for name in ("torch", "transformers", "transformer-lens", "pyvene", "nnsight"):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed
