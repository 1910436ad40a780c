"""Masking against edited weights, plain torch hooks, finite differences and written-out numbers."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import helpers
import pytest
import torch
import transformers as hf
from helpers import (
    Case,
    Cases,
    close,
    edited,
    hook_counts,
    padded,
    reference_logits,
    texts,
    torch_hooks,
)

from mechcore.components import Component, Mask, ModelShape
from mechcore.errors import InputError, MechcoreError, MismatchError
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.protocol import forward, hook_mlp_out, hook_z

ABLATIONS = {
    "one head": ["L0.H1"],
    "heads of two layers": ["L1.H3", "L0.H0"],
    "one MLP": ["L0.MLP"],
    "heads and MLPs": ["L0.H2", "L1.H1", "L1.H0", "L1.MLP"],
    "everything": [str(component) for component in ModelShape(2, 4).components],
}
MASKS = torch.rand(3, helpers.N_LAYERS, 5, generator=torch.Generator().manual_seed(0))


def other_texts() -> list[torch.Tensor]:
    """Where means come from; not the texts that are masked."""
    return texts((7, 3, 8, 8), seed=9)


@cache
def means_of(model: Any, **options: Any) -> MeanActivations:
    """Means of a model whose weights stay as they are."""
    return MeanActivations.compute(model, padded(other_texts()), **options)


def masked_logits(model: Any, mask: Mask, means: Any, batch: Any, **options: Any) -> torch.Tensor:
    with torch.no_grad(), masked(model, mask, means, **options) as run:
        return run(batch)


def as_edit(components: Sequence[str], z: torch.Tensor, mlp: torch.Tensor) -> tuple[Any, Any]:
    """The vectors that stand in for ablated components, in the form of `helpers.edited`."""
    parsed = [Component.parse(name) for name in components]
    heads = {(c.layer, c.head): z[c.layer, c.head] for c in parsed if c.head is not None}
    return heads, {c.layer: mlp[c.layer] for c in parsed if c.head is None}


def hooked_logits(reference: Any, rows: Any, mask: torch.Tensor, z: Any, mlp: Any) -> torch.Tensor:
    """Hugging Face's, by torch hooks; fills are functions of layer and number of positions."""

    def mix(m: torch.Tensor, x: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
        return m.to(x) * x + (1 - m.to(x)) * fill.to(x)

    with torch_hooks(
        reference,
        lambda layer, x: mix(mask[layer, :4, None], x, z(layer, x.shape[1])),
        lambda layer, x: mix(mask[layer, 4], x, mlp(layer, x.shape[1])),
    ):
        return reference_logits(reference, rows)


@pytest.mark.parametrize(
    ("ablation", "fill"), [*((name, "mean") for name in ABLATIONS), ("heads and MLPs", "zero")]
)
def test_ablation_equals_editing_the_weights(case64: Case, ablation: str, fill: Any) -> None:
    model, components, rows = case64.model, ABLATIONS[ablation], texts()
    means = means_of(model) if fill == "mean" else None
    zeros = torch.zeros(2, 4, model.cfg.d_head), torch.zeros(2, helpers.D_MODEL)
    values = zeros if means is None else (means.z, means.mlp)
    expected = reference_logits(edited(case64.reference, *as_edit(components, *values)), rows)
    mask = Mask.full(model).without(components)
    close(masked_logits(model, mask, means, padded(rows), fill=fill), expected, 1e-6)
    assert (expected - reference_logits(case64.reference, rows)).abs().max() > 1e-2


@pytest.mark.parametrize("values", MASKS)
def test_continuous_masks_equal_plain_torch_hooks(case64: Case, values: torch.Tensor) -> None:
    rows, means = texts(), means_of(case64.model)
    fills = (lambda layer, n: means.z[layer]), (lambda layer, n: means.mlp[layer])
    expected = hooked_logits(case64.reference, rows, values, *fills)
    close(masked_logits(case64.model, Mask(values), means, padded(rows)), expected, 1e-6)


@pytest.mark.parametrize("side", ["right", "left"])
def test_means_per_position_stand_at_their_position(case: Case, side: str) -> None:
    model, rows = case.model, texts((8, 3, 6, 1))
    means = means_of(model, per_position=True)
    mask = Mask(MASKS[0]).without("0.1", "1.mlp")
    fills = (lambda layer, n: means.z[:n, layer]), (lambda layer, n: means.mlp[:n, layer])
    expected = hooked_logits(case.reference, rows, mask.values, *fills)
    for extra, noise in ((0, None), (4, 1)):
        batch = padded(rows, side, extra, noise)
        close(masked_logits(model, mask, means, batch), expected, 1e-5)
        two = masked_logits(model, Mask.stack([mask, Mask.full(model)]), means, batch)
        close(two[0], expected, 1e-5)


def test_means_per_position_need_positions_that_occurred(cases: Cases) -> None:
    model = cases.get("gpt2").model
    means = means_of(model, per_position=True)
    mask = Mask.full(model).without("0.0")
    with pytest.raises(InputError, match="input has 9 positions, the means per position only 8"):
        masked_logits(model, mask, means, padded(texts()))
    short = padded(texts((8, 2)), "left", extra=6)
    assert torch.isfinite(masked_logits(model, mask, means, short)).all()
    with (
        pytest.raises(InputError, match="means per position need the attention mask"),
        masked(model, mask, means),
    ):
        model(torch.stack(texts((4, 4))))


@pytest.mark.parametrize("fill", ["mean", "zero", "resample"])
def test_a_mask_of_ones_gives_the_unmasked_logits_bit_for_bit(case: Case, fill: Any) -> None:
    model, batch = case.model, padded(texts(), extra=2)
    means = means_of(model)
    with torch.no_grad():
        expected = forward(model, batch)
    plain = Mask.full(model)
    trained = Mask(plain.values.clone().requires_grad_())  # this one has its hooks in place
    for mask in (plain, trained):
        assert torch.equal(masked_logits(model, mask, means, batch, fill=fill), expected)
    # Under one zero every hook of that layer runs, and still nothing else changes.
    ablated = masked_logits(model, plain.without("0.0"), means, batch, fill=fill)
    assert not torch.equal(ablated, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_outputs_stay_bit_for_bit_and_others_are_means(case: Case, dtype: torch.dtype) -> None:
    model = case.model if dtype == torch.float32 else load_model(case.path, dtype=dtype)
    batch, means = padded(texts()), means_of(model)
    seen: dict[str, torch.Tensor] = {}

    def capture(mask: Mask) -> dict[str, torch.Tensor]:
        names = [place(layer) for layer in (0, 1) for place in (hook_z, hook_mlp_out)]
        hooks = [
            (name, lambda x, hook, name=name: seen.__setitem__(name, x.clone())) for name in names
        ]
        with torch.no_grad(), masked(model, mask, means) as run, model.hooks(fwd_hooks=hooks):
            run(batch)
        return dict(seen)

    before = capture(Mask.full(model))
    after = capture(Mask.full(model).without("1.2", "1.mlp"))
    for name in (hook_z(0), hook_mlp_out(0)):
        assert torch.equal(after[name], before[name])
    kept = [0, 1, 3]
    assert torch.equal(after[hook_z(1)][:, :, kept], before[hook_z(1)][:, :, kept])
    mean = means.z[1, 2].to(dtype).expand_as(after[hook_z(1)][:, :, 2])
    assert torch.equal(after[hook_z(1)][:, :, 2], mean)
    mean = means.mlp[1].to(dtype).expand_as(after[hook_mlp_out(1)])
    assert torch.equal(after[hook_mlp_out(1)], mean)


@pytest.mark.parametrize("fill", ["mean", "zero", "resample"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_batched_masks_equal_one_at_a_time_in_order(case: Case, fill: Any, side: str) -> None:
    model, batch = case.model, padded(texts(), side, extra=1)
    means = means_of(model)
    full = Mask.full(model)
    masks = [Mask(MASKS[0]), full, full.only("1.1", "0.mlp"), Mask(MASKS[1])]
    logits = masked_logits(model, Mask.stack(masks), means, batch, fill=fill, seed=5)
    assert logits.shape == (4, 5, 3)
    for i, mask in enumerate(masks):
        alone = masked_logits(model, mask, means, batch, fill=fill, seed=5)
        close(logits[i], alone, 1e-5)
        assert (logits[i] - logits[i - 1]).abs().max() > 1e-3


def test_rows_given_to_the_model_itself_are_ordered_mask_by_mask(case: Case) -> None:
    model, batch = case.model, padded(texts())
    repeated = {name: tensor.repeat(3, 1) for name, tensor in batch.items()}
    with torch.no_grad(), masked(model, Mask(MASKS), means_of(model)) as run:
        expected = run(batch)
        direct = model(repeated["input_ids"], attention_mask=repeated["attention_mask"])
    close(direct.unflatten(0, (3, 5)), expected, 1e-6)
    with (
        pytest.raises(InputError, match="5 rows for 3 masks; expected the batch repeated once"),
        masked(model, Mask(MASKS), means_of(model)),
    ):
        model(batch["input_ids"], attention_mask=batch["attention_mask"])


def masks_for_rows(n_rows: int) -> Mask:
    """Continuous masks, with values that are exactly 0 and 1 among them."""
    values = 1.4 * torch.rand(n_rows, 2, 5, generator=torch.Generator().manual_seed(8)) - 0.2
    return Mask(values.clamp(0, 1))


def logits_by_row(model: Any, masks: Mask, means: Any, batch: Any, **options: Any) -> torch.Tensor:
    with torch.no_grad(), masked(model, masks, means, **options) as run:
        return run.rows(batch)


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
def test_rows_are_those_alone_under_their_mask(case: Case, per_position: bool, side: str) -> None:
    model, rows = case.model, texts((8, 3, 6, 1, 8))
    means, masks = means_of(model, per_position=per_position), masks_for_rows(5)
    batch = padded(rows, side, extra=2, noise=4)
    logits = logits_by_row(model, masks, means, batch)
    assert logits.shape == (5, 3)
    with torch.no_grad():
        unmasked = forward(model, batch)
    for i, row in enumerate(rows):
        alone = masked_logits(model, masks[i], means, padded([row]))
        close(logits[i], alone[0], 1e-5)
        assert (logits[i] - unmasked[i]).abs().max() > 1e-3


def test_as_many_masks_as_rows_are_needed(case: Case) -> None:
    model, batch = case.model, padded(texts())
    before = hook_counts(model)
    for mask, counts in (
        (Mask(MASKS), "5 rows and 3 masks"),
        (masks_for_rows(10), "5 rows and 10 masks"),
        (Mask(MASKS[0]), "5 rows and 1 masks"),
    ):
        with (
            pytest.raises(InputError, match=f"{counts}; expected one for each row"),
            masked(model, mask, means_of(model)) as run,
        ):
            run.rows(batch)
        assert hook_counts(model) == before
    # What was refused leaves the block usable.
    with torch.no_grad(), masked(model, masks_for_rows(5), means_of(model)) as run:
        with pytest.raises(InputError, match="2 rows and 5 masks"):
            run.rows(padded(texts((3, 4))))
        assert run.rows(batch).shape == (5, 3)
        assert run(batch).shape == (5, 5, 3)


FLOAT32_INSIDE = ("llama", "mistral", "qwen2")
"""Hugging Face normalises and takes their softmax in float32, whatever the weights are."""


@pytest.mark.parametrize(("n_masks", "fill"), [(None, "mean"), (2, "zero")])
def test_gradients_are_those_of_finite_differences(case64: Case, n_masks: Any, fill: Any) -> None:
    rough = case64.architecture in FLOAT32_INSIDE
    step, tolerance = (1e-2, 1e-3) if rough else (1e-4, 1e-6)
    model, batch = case64.model, padded(texts((5, 3)))
    means = means_of(model)
    # Within 0.1 to 0.9, so that a step stays in the range of a mask.
    start = 0.1 + 0.8 * (MASKS[0] if n_masks is None else MASKS[:n_masks]).double()
    weights = torch.randn(2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def value(values: torch.Tensor) -> torch.Tensor:
        with masked(model, Mask(values), means, fill) as run:
            return (run(batch) * weights).sum()

    values = start.clone().requires_grad_()
    value(values).backward()
    expected = torch.zeros_like(start)
    with torch.no_grad():
        for i in range(start.numel()):
            nudge = torch.zeros_like(start)
            nudge.view(-1)[i] = step
            slope = (value(start + nudge) - value(start - nudge)) / (2 * step)
            if rough:  # the large step needs the next order, too
                wide = (value(start + 2 * nudge) - value(start - 2 * nudge)) / (4 * step)
                slope = (4 * slope - wide) / 3
            expected.view(-1)[i] = slope
    assert expected.abs().min() > (0 if rough else 1e-5)
    close(values.grad, expected, tolerance)
    assert all(parameter.grad is None for parameter in model.parameters())


def _in_place(mask: Mask) -> None:
    mask.values[..., 1, [0, 4]] = torch.tensor([0.0, 0.25])


def _others(mask: Mask) -> None:
    mask.values = mask.values.detach() / 2


def _by_an_optimiser(mask: Mask) -> None:
    mask.values.requires_grad_(True).grad = mask.values.detach().clone()
    torch.optim.SGD([mask.values], lr=0.25).step()


@pytest.mark.parametrize("change", [_in_place, _others, _by_an_optimiser])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_values_changed_inside_the_block_count_everywhere(
    cases: Cases, change: Any, trained: bool, several: bool
) -> None:
    """The mask begins with ones in the last layer, where a change was without effect."""
    model, batch = cases.get("bert").model, padded(texts())
    means = means_of(model)
    values = Mask.full(model).without("0.1").values.repeat(2, 1, 1)
    values[1] *= 0.75
    values = values if several else values[0]
    mask = Mask(values.clone().requires_grad_(trained))
    rows = {name: tensor.repeat(2 if several else 1, 1) for name, tensor in batch.items()}
    with masked(model, mask, means) as run:
        before = run(batch).detach()
        with torch.no_grad():
            change(mask)
        logits, of_the_model = run(batch), model(rows.pop("input_ids"), **rows)
    assert mask.values.requires_grad or not logits.requires_grad
    expected = masked_logits(model, Mask(mask.values.detach().clone()), means, batch)
    assert torch.equal(logits, expected)
    assert torch.equal(of_the_model.view_as(expected), expected)
    assert (expected - before).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda mask: mask.values.add_(1), r"mask: found the value 2\.0; expected values from 0"),
        (lambda mask: mask.values.fill_(float("nan")), "mask: found the value nan"),
        (
            lambda mask: setattr(mask, "values", mask.values[None]),
            r"changed from \(2, 5\) to \(1, 2, 5\) inside the block",
        ),
        (lambda mask: setattr(mask, "values", torch.ones(3, 5)), "the mask has 3 layers x 4 heads"),
        (lambda mask: setattr(mask, "values", torch.ones(2, 4)), "the mask has 2 layers x 3 heads"),
        (lambda mask: setattr(mask, "values", [[1] * 5] * 2), "mask: found list; expected a non-"),
    ],
)
def test_values_of_no_mask_are_refused_later(cases: Cases, change: Any, message: str) -> None:
    model, batch = cases.get("bert").model, padded(texts())
    mask = Mask.full(model)
    with masked(model, mask, means_of(model)) as run:
        change(mask)
        with pytest.raises(InputError, match=message):
            run(batch)
    if "inside the block" not in message:
        with pytest.raises(InputError, match=message), masked(model, mask, None):
            pass


def test_resampling_puts_in_outputs_of_random_tokens(case: Case) -> None:
    model = case.model
    means = means_of(model, n_samples=6)
    batch = padded(texts((9,) * 40))
    seen: list[torch.Tensor] = []

    def look(activation: torch.Tensor, hook: Any) -> None:
        seen.append(activation.clone())

    for name, component, samples in (
        (hook_z(1), "1.2", means.samples_z[:, 1, 2]),
        (hook_mlp_out(0), "0.mlp", means.samples_mlp[:, 0]),
    ):
        mask, see = Mask.full(model).without(component), [(name, look)]
        seen.clear()
        for seed in (0, 0, 1):
            with masked(model, mask, means, "resample", seed=seed) as run, model.hooks(see):
                run(batch)
        there = [x[:, :, 2] if component == "1.2" else x for x in seen]
        distances = (there[0].flatten(0, 1)[:, None] - samples).abs().amax(-1)
        assert (distances.min(1).values == 0).all()
        counts = distances.argmin(1).bincount(minlength=6)
        assert (counts - 60).abs().max() < 4 * 7.1  # 360 draws of 6: 60 +- 7.1 each
        assert torch.equal(there[0], there[1])
        assert not torch.equal(there[0], there[2])


def test_hooks_are_gone_after_the_block_and_a_mask_is_not_masked(case: Case) -> None:
    model, batch = case.model, padded(texts())
    means = means_of(model)
    counts = hook_counts(model)
    with torch.no_grad():
        expected = forward(model, batch)
        with masked(model, Mask(MASKS[0]), means):
            assert hook_counts(model) != counts
            assert not torch.equal(forward(model, batch), expected)
        assert hook_counts(model) == counts
        assert torch.equal(forward(model, batch), expected)
        for error in (RuntimeError, KeyboardInterrupt):
            with pytest.raises(error), masked(model, Mask(MASKS[0]), means):  # noqa: PT012
                forward(model, batch)
                raise error
            assert hook_counts(model) == counts
            assert torch.equal(forward(model, batch), expected)
        with pytest.raises(InputError), masked(model, Mask(MASKS[0]), means) as run:
            run({"labels": [0]})
        assert torch.equal(forward(model, batch), expected)
        with masked(model, Mask(MASKS[0]), means):  # and it can be masked again
            pass
    model, batch = case.model, padded(texts())
    means = means_of(model)
    with torch.no_grad():
        unmasked = forward(model, batch)
        with masked(model, Mask(MASKS[0]), means) as run:
            before = run(batch)
            counts = hook_counts(model)
            with (
                pytest.raises(MechcoreError, match=r"already masked.*combine the masks with &"),
                masked(model, Mask(MASKS[1]), means),
            ):
                pass
            assert hook_counts(model) == counts
            assert torch.equal(run(batch), before)
        assert torch.equal(forward(model, batch), unmasked)


def test_hooks_of_the_user_survive(case: Case) -> None:
    model, batch = load_model(case.path), padded(texts())
    calls: list[str] = []
    model.add_hook(hook_z(0), lambda x, hook: calls.append("z"))
    model.add_hook(hook_mlp_out(1), lambda x, hook: calls.append("mlp"))
    counts = hook_counts(model)
    assert sum(counts.values()) > sum(hook_counts(case.model).values())
    with torch.no_grad():
        with masked(model, Mask(MASKS[0]), fill="zero") as run:
            run(batch)
        assert sorted(calls) == ["mlp", "z"]
        assert hook_counts(model) == counts
        forward(model, batch)
    assert sorted(calls) == ["mlp", "mlp", "z", "z"]


def test_what_cannot_be_masked_is_refused_before_anything_is_hooked(cases: Cases) -> None:
    model = cases.get("bert").model
    counts = hook_counts(model)
    means = means_of(model, n_samples=0)
    full = Mask.full(model)
    wrong = Mask.full(ModelShape(3, 4))
    options: list[tuple[Any, ...]] = [
        ((full, None, "mean"), InputError, "fill 'mean' needs means"),
        ((full, None, "resample"), InputError, "fill 'resample' needs means"),
        ((full, means, "median"), InputError, "fill 'median': unknown"),
        ((full, means, "resample"), InputError, "no sampled activations.*n_samples > 0"),
        ((wrong, means, "mean"), MismatchError, "mask has 3 layers.*the model has 2 layers"),
        ((full, means_of(cases.get("gpt2").model), "mean"), MismatchError, "another model"),
    ]
    for arguments, error, message in options:
        with pytest.raises(error, match=message), masked(model, *arguments):
            pass
        assert hook_counts(model) == counts
    with masked(model, full, means):
        pass


@pytest.mark.parametrize("ablation", ["heads and MLPs", "everything"])
def test_a_bridged_language_model_equals_edited_weights(cases: Cases, ablation: str) -> None:
    case, components = cases.get("gpt2-lm", torch.float64), ABLATIONS[ablation]
    means, rows = means_of(case.model), texts((6, 6))
    other = edited(case.reference, *as_edit(components, means.z, means.mlp))
    mask = Mask.full(case.model).without(components)
    logits = masked_logits(case.model, mask, means, padded(rows))
    with torch.no_grad():
        expected = other(input_ids=torch.stack(rows)).logits
    assert logits.shape == (2, 6, helpers.VOCABULARY)
    close(logits, expected, 1e-9)


@pytest.fixture
def hooked(cases: Cases) -> Any:
    return helpers.hooked_transformer(cases.path("gpt2-lm"))


@torch.no_grad()
def edit_hooked(model: Any, components: Sequence[str], means: MeanActivations) -> None:
    """Make these components' outputs the mean by changing the weights of ``model``."""
    for component in map(Component.parse, components):
        block = model.blocks[component.layer]
        if component.head is None:
            block.mlp.W_out.zero_()
            block.mlp.b_out.copy_(means.mlp[component.layer])
        else:
            w_o = block.attn.W_O[component.head]
            block.attn.b_O += means.z[component.layer, component.head].to(w_o) @ w_o
            w_o.zero_()


@pytest.mark.hooked
@pytest.mark.parametrize("ablation", ["heads and MLPs", "everything"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_hooked_transformer_equals_edited_weights(hooked: Any, ablation: str, side: str) -> None:
    components, batch = ABLATIONS[ablation], padded(texts(), side, extra=1)
    means = means_of(hooked)
    logits = masked_logits(hooked, Mask.full(hooked).without(components), means, batch)
    with torch.no_grad():
        unmasked = forward(hooked, batch)
        edit_hooked(hooked, components, means)
        expected = forward(hooked, batch)
    close(logits, expected, 1e-5)
    assert (unmasked - expected).abs().max() > 1e-2


@pytest.mark.hooked
@pytest.mark.parametrize("ablation", ["heads and MLPs", "everything"])
def test_a_hooked_encoder_equals_edited_weights(ablation: str) -> None:
    model, components = helpers.hooked_encoder(), ABLATIONS[ablation]
    means, rows = means_of(model), texts()
    mask = Mask.full(model).without(components)
    batches = [padded(rows, "right", extra=2, noise=1), padded(rows, "left", noise=2)]
    by_batch = [masked_logits(model, mask, means, batch) for batch in batches]
    with torch.no_grad():
        edit_hooked(model, components, means)
        for i, row in enumerate(rows):
            expected = forward(model, {"input_ids": row[None]})[0]
            for logits in by_batch:  # an encoder's rows come back with their padding on the right
                close(logits[i, : len(row)], expected, 1e-5)


def test_hand_computed_gpt2_bridge(tmp_path: Any) -> None:
    config = hf.GPT2Config(
        n_layer=1, n_head=2, n_embd=4, n_inner=4, n_positions=4, vocab_size=4, num_labels=2,
        activation_function="relu", layer_norm_epsilon=0.0, pad_token_id=3,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    reference = hf.GPT2ForSequenceClassification(config)
    block, eye = reference.transformer.h[0], torch.eye(4)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            parameter.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
        # Vectors of mean 0 and variance 1: the first norm leaves them as they are.
        reference.transformer.wte.weight[0] = torch.tensor([1.0, 1.0, -1.0, -1.0])  # A
        reference.transformer.wte.weight[1] = torch.tensor([1.0, -1.0, 1.0, -1.0])  # B
        block.attn.c_attn.weight[:, 8:] = eye  # values are copied, queries and keys are 0, so
        block.attn.c_proj.weight.copy_(eye)  # attention is uniform over what is seen
        block.mlp.c_fc.weight.copy_(eye)
        block.mlp.c_proj.weight.copy_(eye)  # mlp(x) = relu(norm(x))
        reference.score.weight.copy_(eye[:2])  # the logits are the first two normed coordinates
    reference.save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype=torch.float64)

    # Means over the text "A": z = A, so head 0 is (1, 1) and head 1 is (-1, -1);
    # x = A + A = (2, 2, -2, -2), of variance 4: norm(x) = A; mlp = relu(A) = (1, 1, 0, 0).
    means = MeanActivations.compute(model, {"input_ids": torch.tensor([[0]])})
    assert means.z.tolist() == [[[1.0, 1.0], [-1.0, -1.0]]]
    assert means.mlp.tolist() == [[1.0, 1.0, 0.0, 0.0]]

    # The text "A B" at B: z = (A + B) / 2 = (1, 0 | 0, -1).
    expected = {
        # Head 1 and the MLP at their means: x = B + (1, 0, -1, -1) = (2, -1, 0, -2);
        # + (1, 1, 0, 0) = (3, 0, 0, -2): mean 1/4, deviations (2.75, -.25, -.25, -2.25),
        # variance (7.5625 + .0625 + .0625 + 5.0625) / 4 = 3.1875, its root 1.785357.
        (1.0, 0.0, 0.0): [2.75 / 1.785357, -0.25 / 1.785357],
        # The MLP alone: x = B + (1, 0, 0, -1) = (2, -1, 1, -2); + (1, 1, 0, 0) = (3, 0, 1, -2):
        # mean 1/2, deviations (2.5, -.5, .5, -2.5), variance 13 / 4 = 3.25, its root 1.802776.
        (1.0, 1.0, 0.0): [2.5 / 1.802776, -0.5 / 1.802776],
        # Both heads and the MLP: x = B + (1, 1, -1, -1) = (2, 0, 0, -2); + (1, 1, 0, 0) =
        # (3, 1, 0, -2): mean 1/2, deviations (2.5, .5, -.5, -2.5), variance 3.25.
        (0.0, 0.0, 0.0): [2.5 / 1.802776, 0.5 / 1.802776],
        # Head 0 and the MLP at one half: z0 = (1, .5), x = (2, -.5 | 1, -2) of mean .125, then
        # deviations d = (1.875, -.625, .875, -2.125), variance (3.515625 + .390625 + .765625 +
        # 4.515625) / 4 = 2.296875, root 1.515544; relu(norm(x)) = (1.237180, 0, .577350, 0);
        # halfway to (1, 1, 0, 0): (1.118590, .5, .288675, 0); sum (3.118590, 0, 1.288675, -2) of
        # mean .601816, deviations (2.516774, -.601816, .686859, -2.601816), variance
        # (6.334151 + .362183 + .471775 + 6.769447) / 4 = 3.484389, root 1.866652.
        (0.5, 1.0, 0.5): [2.516774 / 1.866652, -0.601816 / 1.866652],
        # Nothing masked: x = (2, -1, 1, -2), variance 2.5, root 1.581139; relu(norm(x)) =
        # (1.264911, 0, .632456, 0); sum (3.264911, -1, 1.632456, -2) of mean .474342, deviations
        # (2.790569, -1.474342, 1.158114, -2.474342), variance
        # (7.787278 + 2.173683 + 1.341228 + 6.122367) / 4 = 4.356139, root 2.087137.
        (1.0, 1.0, 1.0): [2.790569 / 2.087137, -1.474342 / 2.087137],
    }
    batch = {"input_ids": torch.tensor([[0, 1]])}
    for values, numbers in expected.items():
        logits = masked_logits(model, Mask(torch.tensor([values])), means, batch)
        assert logits[0].tolist() == pytest.approx(numbers, abs=2e-6), values
    together = Mask(torch.tensor(list(expected))[:, None])
    stacked = masked_logits(model, together, means, batch)[:, 0]
    close(stacked, torch.tensor(list(expected.values()), dtype=torch.float64), 2e-6)
