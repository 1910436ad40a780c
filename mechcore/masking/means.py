"""Mean activations over training data, without padding (arXiv 2403.03942, section 3)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mechcore.components import Component, ModelShape
from mechcore.data.encoding import as_batches, batch_bar
from mechcore.errors import InputError, MismatchError, NotFiniteError, reason
from mechcore.files import write_safetensors
from mechcore.models.batches import real_positions
from mechcore.models.devices import sent
from mechcore.models.encoded import as_data
from mechcore.models.finite import not_finite_advice
from mechcore.models.hooks import hooked
from mechcore.models.model_identity import ModelIdentity
from mechcore.models.protocol import check_hooks, device_of, forward, model_inputs, output_hooks
from mechcore.session import plain_session
from mechcore.showing import Shown

FORMAT = "mechcore-means-1"


@dataclass(frozen=True, eq=False, repr=False)
class MeanActivations(Shown):
    """Mean and sampled activations at ``hook_z`` (heads) and ``hook_mlp_out`` (MLPs).

    Attributes:
        z: float64 [layer, head, d_head], or [pos, layer, head, d_head] per position.
        mlp: float64 [layer, d_model], or [pos, layer, d_model]; no layers if there are no MLPs.
        counts: tokens averaged, a single number or [pos].
        samples_z, samples_mlp: outputs at single tokens drawn at random.
        identity: the model they were computed on.
        data: SHA-256 of the data they were computed on.
    """

    z: Float[Tensor, "*pos layer head d_head"]
    mlp: Float[Tensor, "*pos layer d_model"]
    counts: Tensor
    samples_z: Float[Tensor, "sample layer head d_head"]
    samples_mlp: Float[Tensor, "sample layer d_model"]
    identity: ModelIdentity
    data: str

    @property
    def per_position(self) -> bool:
        """Whether there is one mean per position instead of one for all."""
        return self.z.ndim == 4

    @classmethod
    @plain_session()
    def compute(
        cls,
        model: Any,
        data: Any,
        *,
        per_position: bool = False,
        n_samples: int = 64,
        seed: int = 0,
    ) -> MeanActivations:
        """Average the activations over all tokens of the data, in float64.

        ``data`` are examples of any form, whose labels are not used, or batches, such as those of a
        ``DataLoader``. With ``per_position`` each position is averaged separately, counted from the
        first real token. ``n_samples`` single-token activations are kept for ``fill="resample"``,
        drawn uniformly by ``seed``.

        Raises:
            InputError: there is no batch, ``n_samples`` is negative, or an activation is not
                finite.
        """
        if n_samples < 0:
            raise InputError(f"means: n_samples is {n_samples}; expected 0 or more")
        shape = ModelShape.of(model)
        # Means per position are sums over tokens, whose order is not deterministic on GPUs.
        far = not per_position and device_of(model).type != "mps"
        device = device_of(model) if far else torch.device("cpu")
        sums = _Sums(shape, model.cfg, per_position, n_samples, seed, device)
        digest = hashlib.sha256()
        hooks = [(name, sums.adder(kind, layer)) for kind, layer, name in output_hooks(shape)]
        check_hooks(model, [name for name, _ in hooks])
        batches = as_data(model, data, "train", labelled=False)
        with torch.no_grad(), batch_bar("means", batches) as advance, hooked(model, hooks):
            for batch in as_batches(batches):
                inputs = model_inputs(model, batch)
                mask = inputs["attention_mask"].cpu()
                digest.update(str(tuple(mask.shape)).encode())
                digest.update((inputs["input_ids"].cpu() * mask).numpy().tobytes())
                digest.update(mask.numpy().tobytes())
                sums.begin(mask)
                forward(model, batch)
                advance()
        if not sums.started:
            raise InputError("means: no batch; expected at least one")
        means = cls(
            **sums.results(),
            identity=ModelIdentity.of(model),
            data=getattr(batches, "fingerprint", None) or digest.hexdigest(),
        )
        means._check_finite()
        return means

    def to(self, device: torch.device) -> MeanActivations:
        """The same on another device; in float32 on one without float64 (mps)."""
        if device == self.z.device:
            return self
        dtype = torch.float32 if device.type == "mps" else None
        there = {name: getattr(self, name).to(device, dtype) for name in _TENSORS}
        return replace(self, **there)

    def check(self, model: Any) -> None:
        """Raise `MismatchError` unless these are the means of ``model``, and say why."""
        differences = self.identity.differences(ModelIdentity.of(model))
        if differences:
            raise MismatchError(
                "means: computed on another model, which differs in "
                f"{'; '.join(differences)}; compute the means again for this model"
            )

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, atomically."""
        facts = {
            "format": FORMAT,
            "identity": json.dumps(asdict(self.identity)),
            "data": self.data,
        }
        tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
        write_safetensors(path, tensors, facts)

    @classmethod
    @plain_session()
    def load(cls, path: str | Path, model: Any | None = None) -> MeanActivations:
        """Read means written by `save`, and check that they belong to ``model`` if given.

        Raises:
            InputError: the file is missing or holds no means.
            MismatchError: they belong to another model.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(f"means file {path}: no such file")
        try:
            with safe_open(path, framework="pt") as file:
                facts = file.metadata() or {}
                if facts.get("include_padding", "false") != "false":
                    raise ValueError("padding was pooled in; compute them again")
                if facts.get("format") != FORMAT:
                    raise ValueError(f"format {facts.get('format')!r}, expected {FORMAT!r}")
                means = cls(
                    **{name: file.get_tensor(name) for name in _TENSORS},
                    identity=ModelIdentity.from_fields(json.loads(facts["identity"])),
                    data=facts["data"],
                )
            means._check_finite()
        except NotFiniteError as error:
            raise NotFiniteError(f"means file {path}: {error}") from error
        except (KeyError, ValueError, TypeError, RecursionError, SafetensorError) as error:
            raise InputError(
                f"means file {path}: not means written by mechcore ({reason(error)})"
            ) from error
        if model is not None:
            try:
                means.check(model)
            except MismatchError as error:
                raise MismatchError(f"means file {path}: {error}") from error
        return means

    def _check_finite(self) -> None:
        """Check that all activations were finite; otherwise the fill would not be."""
        heads, mlps = (
            [place for part in pair for place in (~part.isfinite().all(-1)).nonzero().tolist()]
            for pair in ((self.z, self.samples_z), (self.mlp, self.samples_mlp))
        )
        broken = [Component(*place[-2:]) for place in heads] + [Component(p[-1]) for p in mlps]
        if broken:
            dtype = self.identity.dtype
            raise NotFiniteError(
                f"means: the output of {min(broken)} is not finite (NaN or infinity, {dtype}); "
                + not_finite_advice(dtype)
            )

    def _summary(self) -> str:
        size = self.identity
        what = f"{size.n_layers} layers x {size.n_heads} heads, tokens={int(self.counts.sum())}"
        return f"{what}{', per position' * self.per_position}, data={self.data[:12]}"


def check_means(means: Any, model: Any) -> None:
    """Raise unless ``means`` are mean activations (`InputError`), of ``model`` if not None."""
    if not isinstance(means, MeanActivations):
        raise InputError(
            f"means: found {type(means).__name__}; expected MeanActivations: "
            "MeanActivations.compute(model, data), or MeanActivations.load(file)"
        )
    if model is not None:
        means.check(model)


_TENSORS = ("z", "mlp", "counts", "samples_z", "samples_mlp")


class _Sums:
    """Running float64 sums and a uniform sample of tokens, filled by the hooks of one forward."""

    def __init__(
        self,
        shape: ModelShape,
        cfg: Any,
        per_position: bool,
        n_samples: int,
        seed: int,
        device: torch.device,
    ) -> None:
        mlps, self.device = shape.n_layers if shape.has_mlps else 0, device
        self.sizes = {"z": (shape.n_layers, shape.n_heads, cfg.d_head), "mlp": (mlps, cfg.d_model)}
        self.per_position = per_position
        self.totals = {
            name: torch.zeros(0 if per_position else 1, *size, dtype=torch.float64, device=device)
            for name, size in self.sizes.items()
        }
        self.counts = torch.zeros(0 if per_position else 1, dtype=torch.float64)
        self.n_samples = n_samples
        self.keys = torch.zeros(0, dtype=torch.float64)
        self.samples = {
            name: torch.zeros(0, *size, device=device) for name, size in self.sizes.items()
        }
        self.generator = torch.Generator().manual_seed(seed)
        self.started = False

    def begin(self, weights: Tensor) -> None:
        """Prepare for one batch whose tokens count where ``weights`` [batch, pos] is not 0."""
        self.started = True
        rows, columns = (weights != 0).nonzero(as_tuple=True)
        self.rows, self.columns = sent(rows, self.device), sent(columns, self.device)
        if self.per_position:
            self.slots = real_positions(weights)[rows, columns]
            missing = int(self.slots.max()) + 1 - len(self.counts)
            if missing > 0:
                self.counts = torch.cat([self.counts, self.counts.new_zeros(missing)])
                for name, total in self.totals.items():
                    more = total.new_zeros(missing, *self.sizes[name])
                    self.totals[name] = torch.cat([total, more])
        else:
            self.slots = torch.zeros(len(rows), dtype=torch.long)
        self.counts.index_add_(0, self.slots, torch.ones(len(self.slots), dtype=torch.float64))
        # The n smallest of independent uniform keys are a uniform sample of the stream.
        keys = torch.cat(
            [self.keys, torch.rand(len(rows), generator=self.generator, dtype=torch.float64)]
        )
        chosen = keys.argsort()[: self.n_samples]
        kept, taken = chosen[chosen < len(self.keys)], chosen[chosen >= len(self.keys)]
        self.n_kept, self.take = len(kept), sent(taken - len(self.keys), self.device)
        self.keys = torch.cat([keys[kept], keys[taken]])
        for name, size in self.sizes.items():
            old = self.samples[name].index_select(0, sent(kept, self.device))
            self.samples[name] = torch.cat([old, old.new_zeros(len(taken), *size)])

    def adder(self, name: str, layer: int) -> Any:
        def add(activation: Tensor, hook: Any) -> None:
            there = activation.device
            tokens = activation[self.rows.to(there), self.columns.to(there)].detach()
            tokens = tokens.to(self.device)
            if self.per_position:
                self.totals[name][:, layer].index_add_(0, self.slots, tokens.double())
            else:
                self.totals[name][0, layer] += tokens.double().sum(0)
            new = slice(self.n_kept, None)
            self.samples[name][new, layer] = tokens[self.take].float()

        return add

    def results(self) -> dict[str, Tensor]:
        means = {
            name: total.cpu() / self.counts.reshape(-1, *[1] * (total.ndim - 1))
            for name, total in self.totals.items()
        }
        means["counts"] = self.counts
        if not self.per_position:
            means = {name: mean[0] for name, mean in means.items()}
        order = torch.randperm(len(self.keys), generator=self.generator)
        return means | {f"samples_{name}": of.cpu()[order] for name, of in self.samples.items()}
