"""Data for the pruning tests, and a second implementation of what the package computes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import helpers
import pandas as pd
import pytest
import torch
from torch import Tensor

from mechcore.components import Mask
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.protocol import weights_of
from mechcore.pruning import PruneSettings, Subnetwork, prune
from mechcore.pruning.teacher import Teacher

N_EXAMPLES = 48
N_COLUMNS = helpers.N_HEADS + 1
PLANTED = {"L0.H1", "L1.H2", "L1.MLP"}
QUICK = PruneSettings(
    steps=8, warmup=2, batch_size=6, lr=0.1, lr_lambda=0.5, log_alpha_mean=2.0, tolerance=1
)

CLOSE = 2e-3
"""How far scores of masks trained together may be from those trained alone. Batched products round
differently, and Adam divides a gradient by its own size: on a component with next to no gradient
that shows, but stays far below one step (0.1)."""


def some_examples(n: int = N_EXAMPLES, seed: int = 3) -> Examples:
    rng = random.Random(seed)

    def sentence() -> str:
        return " ".join(rng.choice(helpers.WORDS) for _ in range(rng.randint(2, 7)))

    rows = [(sentence(), sentence(), "entailment", "s") for _ in range(n)]
    frame = pd.DataFrame(rows, columns=["text_a", "text_b", "label", "subset"])
    return Examples("x", frame)


ANSWERS = {"entailment": "yes", "non-entailment": "no", "neutral": "never"}


def encoded_for(architecture: str, n: int = N_EXAMPLES) -> EncodedExamples:
    """Examples as an architecture of `helpers` reads them; ``"gpt2-lm"`` answers with a word."""
    is_lm = architecture == "gpt2-lm"
    options: dict[str, Any] = {"prompt": "{a} , {b} .", "answers": ANSWERS} if is_lm else {}
    tokenizer = helpers.word_tokenizer(segments=architecture == "bert")
    return encode(some_examples(n), tokenizer, max_length=48, **options)


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, Hugging Face's model of the same weights, data, and the model's means over them."""

    model: Any
    plain: Any
    data: EncodedExamples
    means: MeanActivations

    @classmethod
    def of(cls, plain: Any, path: Path) -> Subject:
        """With a classifier that is sure of its answers."""
        with torch.no_grad():
            plain.classifier.weight *= 8
        plain.save_pretrained(path)
        model, data = load_model(path), encoded_for("bert")
        return cls(model, plain, data, MeanActivations.compute(model, data, n_samples=0))

    def prune(self, preset: Any = QUICK, **options: Any) -> list[Subnetwork]:
        """The subnetwork of seed 1 at 60 %, by default."""
        given = {"model": self.model, "data": self.data, "means": self.means, "preset": preset}
        return prune(**given | {"seeds": 1, "target_sparsities": 0.6} | options)


class Steps:
    """Counts the steps of all trainings, and forbids, interrupts or spoils them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.masks: list[int] = []
        """How many masks each step evaluated."""
        self.stop_at: int | None = None
        self.allowed = True
        self.spoilt: tuple[int, int] | None = None
        """The step, and the mask, whose gradient is NaN."""
        self.warnings: Any = ()
        self.n_warnings: list[int] = []
        """How many ``warnings`` there were before each step."""
        real = Teacher.kl_gradients

        def watched(teacher: Teacher, values: Tensor, *args: Any, **options: Any) -> Any:
            assert self.allowed, "a step was taken"
            if len(self.masks) == self.stop_at:
                raise KeyboardInterrupt
            self.n_warnings.append(len(self.warnings))
            losses, gradients = real(teacher, values, *args, **options)
            if self.spoilt is not None and len(self.masks) == self.spoilt[0]:
                gradients[self.spoilt[1]] = math.nan
            self.masks.append(len(values))
            return losses, gradients

        monkeypatch.setattr(Teacher, "kl_gradients", watched)

    def until(self, stop_at: int | None) -> None:
        self.masks, self.stop_at = [], stop_at


def names(mask: Mask) -> set[str]:
    return set(map(str, mask.kept))


def snapshot(model: Any) -> dict[str, Any]:
    """Everything about a model that a caller could find changed."""
    weights = weights_of(model)
    return {
        "weights": {name: tensor.clone() for name, tensor in weights.state_dict().items()},
        "flags": [p.requires_grad for p in weights.parameters()],
        "grads": [p.grad for p in weights.parameters()],
        "hooks": helpers.hook_counts(model),
        "training": model.training,
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Compare two snapshots; weights bit for bit."""
    old, new = before["weights"], after["weights"]
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert {**after, "weights": None} == {**before, "weights": None}


class Recorded(EncodedExamples):
    """Examples that remember which batches were asked for."""

    asked: list[list[int]]

    def rows(self, index: Sequence[int]) -> dict[str, Tensor]:
        self.asked.append(list(index))
        return super().rows(index)


def recorded(data: EncodedExamples) -> Recorded:
    watched = Recorded(**{name: getattr(data, name) for name in data.__dataclass_fields__})
    object.__setattr__(watched, "asked", [])
    return watched


# -- a masked model, one example after the other, with hooks of plain torch -----------------------


def plain_logits(
    model: Any,
    means: MeanActivations,
    z: Tensor,
    data: EncodedExamples,
    row: int,
    *,
    pairs: EncodedExamples | None = None,
    dropped: int | None = None,
) -> Tensor:
    """Hugging Face's logits of one example; those of the answers after it for language models.

    With ``pairs``, outputs on the row of the same number stand in, and the mean after its end; no
    gradient passes through what the layer ``dropped`` puts out.
    """
    paired: dict[Any, Tensor] = {}
    if pairs is not None:
        with (
            torch.no_grad(),
            helpers.torch_hooks(
                model,
                lambda layer, x: paired.__setitem__(("z", layer), x),
                lambda layer, x: paired.__setitem__(("mlp", layer), x),
            ),
        ):
            model(**inputs_of_row(pairs, row))

    def masked(name: str, layer: int, x: Tensor, m: Tensor) -> Tensor:
        kind = getattr(means, name)
        fill = (kind[: x.shape[1], layer] if means.per_position else kind[layer]).to(x)
        if pairs is not None:
            fill = fill.expand_as(x).clone()
            n = min(x.shape[1], paired[name, layer].shape[1])
            fill[:, :n] = paired[name, layer][:, :n]
        out = fill + m * (x - fill)
        return out.detach() if layer == dropped else out

    def on_z(layer: int, x: Tensor) -> Tensor:
        return masked("z", layer, x, z[layer, : helpers.N_HEADS, None])

    def on_mlp(layer: int, x: Tensor) -> Tensor:
        return masked("mlp", layer, x, z[layer, -1])

    with helpers.torch_hooks(model, on_z, on_mlp):
        logits = model(**inputs_of_row(data, row)).logits[0]
    if data.answers is None:
        return logits
    return logits[-1, [token for (token,) in data.answers.values()]]


def inputs_of_row(data: EncodedExamples, row: int) -> dict[str, Tensor]:
    inputs = {"input_ids": torch.tensor([data.input_ids[row]])}
    if data.token_type_ids is not None:
        inputs["token_type_ids"] = torch.tensor([data.token_type_ids[row]])
    return inputs


@torch.no_grad()
def full_logits(
    model: Any, means: MeanActivations, data: EncodedExamples, rows: Sequence[int]
) -> Tensor:
    ones = torch.ones(model.config.num_hidden_layers, N_COLUMNS)
    return torch.stack([plain_logits(model, means, ones, data, i) for i in rows])


def plain_kl(
    model: Any,
    means: MeanActivations,
    z: Tensor,
    data: EncodedExamples,
    rows: Sequence[int],
    full: Tensor | None = None,
    pairs: EncodedExamples | None = None,
) -> Tensor:
    """KL(full model || masked model), nats, mean over ``rows``; ``full`` saves time if known."""
    if full is None:
        full = full_logits(model, means, data, rows)
    got = torch.stack([plain_logits(model, means, z, data, i, pairs=pairs) for i in rows])
    return torch.nn.functional.kl_div(
        got.log_softmax(-1), full.log_softmax(-1), reduction="batchmean", log_target=True
    )


def slopes(value: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The gradient of ``value`` by every mask value; masks may leave [0, 1] here."""
    leaf = at.clone().requires_grad_()
    return torch.autograd.grad(value(leaf), leaf)[0]


# -- pruning, implemented a second time -----------------------------------------------------------


class Adam:
    """Adam written out: m and v with bias correction, no weight decay."""

    def __init__(self, value: Tensor) -> None:
        self.m, self.v, self.t = torch.zeros_like(value), torch.zeros_like(value), 0

    def change(self, gradient: Tensor, lr: float) -> Tensor:
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * gradient
        self.v = 0.999 * self.v + 0.001 * gradient**2
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return lr * m / (v.sqrt() + 1e-8)


@dataclass
class PlainRun:
    """What `plain_pruning` found.

    Attributes:
        log_alpha: the trained scores.
        history: KL, s, wanted s, lambda1 and lambda2 of every step.
        norms: of every step's gradient by log_alpha, before clipping.
    """

    log_alpha: Tensor
    history: list[list[float]] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)


def plain_pruning(
    model: Any,
    means: MeanActivations,
    data: EncodedExamples,
    batches: list[list[int]],
    settings: PruneSettings,
    target_sparsity: float,
    seed: int,
) -> PlainRun:
    generator = torch.Generator().manual_seed(seed)
    shape = (helpers.N_LAYERS, N_COLUMNS)
    start = torch.randn(shape, generator=generator)
    log_alpha = settings.log_alpha_mean + settings.log_alpha_std * start
    multipliers = torch.zeros(2)
    adam, ascent = Adam(log_alpha), Adam(multipliers)
    run = PlainRun(log_alpha)
    for step, rows in enumerate(batches):
        n = min(settings.draws, len(rows))
        size = shape if n == 1 else (n, *shape)
        u = 1e-6 + (1 - 2e-6) * torch.rand(size, generator=generator)
        leaf, both = run.log_alpha.clone().requires_grad_(), multipliers.clone().requires_grad_()
        s = torch.sigmoid((torch.log(u) - torch.log(1 - u) + leaf) * 3 / 2)
        z = torch.clamp(1.2 * s - 0.1, 0, 1)
        kl = torch.zeros(())
        for i, one in enumerate([z] if n == 1 else z):
            own = [row for k, row in enumerate(rows) if k * n // len(rows) == i]
            kl = kl + plain_kl(model, means, one, data, own) * len(own) / len(rows)
        if settings.sparsity == "sampled":
            sparsity = torch.stack([1 - one.mean() for one in ([z] if n == 1 else z)])
        else:
            sparsity = torch.sigmoid(-2 / 3 * math.log(11) - leaf).mean()[None]
        wanted = target_sparsity * min(1.0, step / (settings.ramp * settings.steps))
        gap = wanted - sparsity
        (kl + (both[0] * gap + both[1] * gap**2).mean()).backward()
        assert leaf.grad is not None
        assert both.grad is not None
        norm = float(leaf.grad.square().sum().sqrt())
        if settings.clip and norm > settings.clip:
            leaf.grad *= settings.clip / norm
        factor = min(
            1.0,
            (step + 1) / settings.warmup if settings.warmup else 1.0,
            (settings.steps - step) / (settings.steps - settings.warmup),
        )
        run.history.append([kl.item(), sparsity.mean().item(), wanted, *multipliers.tolist()])
        run.norms.append(norm)
        run.log_alpha = run.log_alpha - adam.change(leaf.grad, settings.lr * factor)
        multipliers = multipliers + ascent.change(both.grad, settings.lr_lambda * factor)
    return run
