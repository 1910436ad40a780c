"""Masked models as Hugging Face checkpoints: constant outputs are folded into the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError
from mechcore.files import appearing, check_can_write, write_json
from mechcore.identity import Identity
from mechcore.models import load_model, load_tokenizer
from mechcore.models.architectures.base import ARCHITECTURES, architecture_of
from mechcore.models.checkpoint_files import without_bars
from mechcore.models.model_identity import ModelIdentity, check_masks
from mechcore.models.protocol import weights_of
from mechcore.session import plain_session

if TYPE_CHECKING:
    from mechcore.masking.means import MeanActivations

FORMAT = "mechcore-export-1"
FoldFill: TypeAlias = Literal["mean", "zero"]


@plain_session()
def export_checkpoint(
    source: str | Path,
    out: str | Path,
    mask: Mask,
    means: MeanActivations | None = None,
    fill: FoldFill = "mean",
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
) -> None:
    """Write a checkpoint with ``mask`` folded into its weights, which runs without mechcore.

    Its logits are those of ``masked(load_model(source), mask, means, fill)``. Weights of kept
    components stay identical, in float32. Llama, Mistral and Qwen2 have no bias to hold a mean;
    where one is needed, the checkpoint becomes a Llama with ``attention_bias`` or ``mlp_bias``.
    ``mechcore.json`` lists what was pruned. ``out``, a new or empty folder, is written fully or not
    at all. The mask is single and discrete, [layer, component]; ``means`` are those of
    ``load_model(source)``, pooled over positions, and not needed for ``fill="zero"``.

    Raises:
        InputError: the source cannot be loaded or folded, the mask is not single and discrete,
            the means are missing or per position, or ``out`` is in use.
        MismatchError: mask or means belong to another model.
    """
    if not isinstance(source, (str, Path)):
        raise InputError(
            f"export: source is a {type(source).__name__}; expected the directory or hub id of a "
            "checkpoint: save the model first"
        )
    pruned = mask.ablated
    means = _means_to_fold(means, fill)
    out = _free_folder(out)
    load = partial(load_model, source, revision=revision, allow_pickle=allow_pickle)
    checked = load()
    if mask.identity is not None and _is_of(mask.identity, checked, load):
        mask = mask.with_identity(None)
    kind, pad_id = _check_fits(source, checked, mask, means)
    tokenizer = load_tokenizer(source, revision=revision)
    facts = {
        "format": FORMAT,
        "source": str(source),
        "revision": revision,
        "fill": fill,
        "sparsity": len(pruned) / len(mask.shape.components),
        "kept": [str(component) for component in mask.kept],
        "pruned": [str(component) for component in pruned],
        "means_data": None if means is None else means.data,
    }
    with without_bars():
        model = kind.from_pretrained(source, revision=revision, dtype=torch.float32)
        if kind.__name__.endswith("ForSequenceClassification"):  # reads the last token unpadded
            model.config.pad_token_id = pad_id
        model = _fold(model, mask, means)
        with appearing(out) as folder:
            _save(model, folder)
            tokenizer.save_pretrained(folder)
            write_json(folder / "mechcore.json", facts)


def _save(model: Any, folder: Path) -> None:
    """Write weights and configurations; older transformers reject some published ones."""
    generation = model.generation_config if model.can_generate() else None
    if generation is not None:
        model.generation_config = type(generation)()
    model.save_pretrained(folder)
    if generation is not None:
        generation.to_json_file(folder / "generation_config.json", keys_to_pop=["compile_config"])


# -- checks ---------------------------------------------------------------------------------------


def _means_to_fold(means: MeanActivations | None, fill: FoldFill) -> MeanActivations | None:
    """The means, or None if pruned components become zero."""
    if fill == "zero":
        return None
    if fill != "mean":
        raise InputError(
            f"export: fill is {fill!r}; expected 'mean' or 'zero', the only fills with the same "
            "vector for every input"
        )
    if means is None:
        raise InputError(
            "export: fill 'mean' needs means; pass MeanActivations.compute(model, batches), or "
            "use fill='zero'"
        )
    if means.per_position:
        raise InputError(
            f"export: the means are per position ({len(means.z)} positions), but a bias is one "
            "for all; compute them with per_position=False"
        )
    return means


def _free_folder(out: str | Path) -> Path:
    out = Path(out).resolve()
    check_can_write(out.parent)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        what = "a folder with files" if out.is_dir() else "a file"
        raise InputError(
            f"export: {out} is {what}; expected a new or empty folder: remove it, or choose another"
        )
    return out


def _check_fits(
    source: str | Path, model: Any, mask: Mask, means: MeanActivations | None
) -> tuple[Any, int | None]:
    """Check everything against the model that mechcore runs; return its class and padding id."""
    hf_model: Any = weights_of(model)
    family = architecture_of(hf_model.config)
    if family.projections is None:
        known = [name for name in ARCHITECTURES if ARCHITECTURES[name].projections]
        raise InputError(
            f"checkpoint {source}: found {type(hf_model).__name__}, which cannot be exported: "
            f"{family.unfoldable}; families that can are {', '.join(known)}"
        )
    check_masks([mask], model)
    if means is not None:
        means.check(model)
    return type(hf_model), hf_model.config.pad_token_id


def _is_of(identity: Identity, model: Any, load: Callable[..., Any]) -> bool:
    """Whether a mask was found on the checkpoint, in any precision or backend."""
    if not identity.differences(ModelIdentity.of(model)):
        return True
    for backend in ("bridge", "hooked"):
        try:
            other = load(dtype=identity.dtype, backend=backend)
        except InputError:  # an unknown precision, or no HookedTransformer of the checkpoint
            continue
        if not identity.differences(ModelIdentity.of(other)):
            return True
    return False


# -- folding --------------------------------------------------------------------------------------


@torch.no_grad()
def _fold(model: Any, mask: Mask, means: MeanActivations | None) -> Any:
    """The model with the outputs of pruned components moved into its weights."""
    if means is not None:
        pruned = [component.head is None for component in mask.ablated]
        architecture = architecture_of(model.config)
        model = architecture.with_biases(model, attention=not all(pruned), mlp=any(pruned))
    weights = dict(model.named_parameters())
    for name, value in folded(model, weights, mask.values, mask.shape, means).items():
        weights[name].copy_(value)
    return model


def projection_of(model: Any, layer: int, *, mlp: bool) -> tuple[str, bool]:
    """The path of the output projection of heads or an MLP, and whether it is transposed."""
    paths = architecture_of(model.config).projections
    assert paths is not None
    path = paths[mlp].format(layer)
    prefix = f"{model.base_model_prefix}." if model.base_model is not model else ""
    return prefix + path, isinstance(model.base_model.get_submodule(path), Conv1D)


def folded(
    model: Any,
    weights: Mapping[str, Tensor],
    gates: Float[Tensor, "layer component"],
    shape: ModelShape,
    means: MeanActivations | None,
) -> dict[str, Tensor]:
    """Output projections with gates ``mean + m * (x - mean)`` folded in, differentiably.

    With gates of 1 they equal the model's own exactly. ``means`` are pooled over positions; None
    stands for means of zero.
    """
    new: dict[str, Tensor] = {}
    for layer in range(shape.n_layers):
        name, transposed = projection_of(model, layer, mlp=False)
        weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
        by_head = (weight.T if transposed else weight).unflatten(1, (shape.n_heads, -1))
        m = gates[layer, : shape.n_heads].to(weight)
        columns = (by_head * m[:, None]).flatten(1)
        new[f"{name}.weight"] = columns.T if transposed else columns
        if means is not None and bias is not None:
            z = means.z[..., layer, :, :].to(weight.device, torch.float64)
            constant = torch.einsum("mhd,hd,h->m", by_head.double(), z, 1 - m.double())
            new[f"{name}.bias"] = (bias.double() + constant).to(bias)
        if shape.has_mlps:
            name, _ = projection_of(model, layer, mlp=True)
            m = gates[layer, shape.n_heads].to(weight)
            new[f"{name}.weight"] = weights[f"{name}.weight"] * m
            if (bias := weights.get(f"{name}.bias")) is not None:
                mean = 0 if means is None else means.mlp[..., layer, :].to(bias)
                new[f"{name}.bias"] = bias * m + (1 - m) * mean
    return new
