"""Mean activations against a slow loop over Hugging Face's own activations."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
from helpers import LENGTHS, Case, Cases, captured, padded, texts
from safetensors.torch import save_file

from mechcore.components import Mask
from mechcore.errors import InputError, MismatchError, NotFiniteError
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.protocol import weights_of

D, H, L = helpers.D_MODEL, helpers.N_HEADS, helpers.N_LAYERS


def slow_means(reference: Any, rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Over the tokens of one text after the other, in float64."""
    z, mlp = zip(*(captured(reference, row) for row in rows), strict=True)
    return torch.cat(z, 1).double().mean(1), torch.cat(mlp, 1).double().mean(1)


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol, check_dtype=False)


def test_means_equal_a_slow_loop_over_hugging_face_activations(case64: Case) -> None:
    rows = texts()
    z, mlp = slow_means(case64.reference, rows)
    batches = [padded(rows[:3], extra=4, noise=1), padded(rows[3:], noise=2)]
    means = MeanActivations.compute(case64.model, batches)
    assert means.z.dtype == means.mlp.dtype == torch.float64
    assert means.z.shape == (L, H, case64.model.cfg.d_head)
    assert means.mlp.shape == (L, D)
    assert int(means.counts) == sum(LENGTHS)
    assert z.abs().mean() > 0.01
    close(means.z, z, 1e-6)
    close(means.mlp, mlp, 1e-6)


@pytest.mark.parametrize("side", ["right", "left"])
def test_means_per_position_count_from_the_first_real_token(case: Case, side: str) -> None:
    rows = texts()
    batches = [padded(rows[3:4], side), padded(rows[:3], side, extra=2), padded(rows[4:], side)]
    means = MeanActivations.compute(case.model, batches, per_position=True)
    assert means.per_position
    assert means.counts.tolist() == [sum(n > p for n in LENGTHS) for p in range(max(LENGTHS))]
    for position in range(max(LENGTHS)):
        here = [captured(case.reference, row) for row in rows if len(row) > position]
        z = torch.stack([z[:, position] for z, _ in here]).mean(0)
        mlp = torch.stack([mlp[:, position] for _, mlp in here]).mean(0)
        close(means.z[position], z)
        close(means.mlp[position], mlp)


def test_what_cannot_be_averaged_leaves_no_hook(cases: Cases) -> None:
    model = cases.get("gpt2").model
    before = helpers.hook_counts(model)
    with pytest.raises(InputError, match="n_samples is -1"):
        MeanActivations.compute(model, padded(texts()), n_samples=-1)
    with pytest.raises(InputError, match="no batch; expected at least one"):
        MeanActivations.compute(model, iter([]))
    with pytest.raises(InputError, match="no input_ids"):
        MeanActivations.compute(model, [padded(texts()), {"labels": [1]}])
    assert helpers.hook_counts(model) == before


def occurring(reference: Any, rows: list[torch.Tensor]) -> torch.Tensor:
    """Every real token's activations, flattened together: [token, numbers]."""
    activations = [captured(reference, row) for row in rows]
    return torch.cat(
        [
            torch.cat([z.transpose(0, 1).flatten(1), m.transpose(0, 1).flatten(1)], 1)
            for z, m in activations
        ]
    )


def flat(means: MeanActivations) -> torch.Tensor:
    return torch.cat([means.samples_z.flatten(1), means.samples_mlp.flatten(1)], 1)


def origins(means: MeanActivations, tokens: torch.Tensor) -> list[int]:
    """Which token each sample is; z and mlp of all layers must be of the same one."""
    distances = (flat(means)[:, None] - tokens[None]).abs().amax(-1)
    assert distances.min(1).values.max() < 1e-5
    return distances.argmin(1).tolist()


@pytest.mark.parametrize("side", ["right", "left"])
def test_samples_are_tokens_that_occurred_each_at_most_once(case: Case, side: str) -> None:
    rows = texts()
    tokens = occurring(case.reference, rows)
    assert (torch.cdist(tokens, tokens) + 10 * torch.eye(len(tokens))).min() > 1e-2
    batches = [padded(rows[:2], side, noise=1), padded(rows[2:], side, extra=3, noise=2)]
    for n in (1, 7):
        sample = origins(MeanActivations.compute(case.model, batches, n_samples=n), tokens)
        assert len(set(sample)) == len(sample) == n
    everything = MeanActivations.compute(case.model, batches, n_samples=1000)
    assert sorted(origins(everything, tokens)) == list(range(sum(LENGTHS)))
    assert len(MeanActivations.compute(case.model, batches, n_samples=0).samples_z) == 0


def test_samples_are_drawn_uniformly_by_the_seed_alone(cases: Cases) -> None:
    case = cases.get("bert")
    rows = texts((4, 2, 3, 1, 2))
    tokens = occurring(case.reference, rows)
    batches = [padded(rows[:1]), padded(rows[1:2]), padded(rows[2:4], "left"), padded(rows[4:])]
    inclusions: Counter[int] = Counter()
    first: Counter[int] = Counter()
    for seed in range(72):
        drawn = MeanActivations.compute(case.model, batches, n_samples=4, seed=seed)
        sample = origins(drawn, tokens)
        inclusions.update(sample)
        first[sample[0]] += 1
    again = MeanActivations.compute(case.model, batches, n_samples=4, seed=71)
    assert torch.equal(again.samples_z, drawn.samples_z)
    # Each of the 12 tokens is in a sample of 4 with probability 1/3: in 24 +- 4 of 72.
    assert set(inclusions) == set(range(12))
    assert all(abs(count - 24) < 4 * 4 for count in inclusions.values())
    # The order within a sample is random too: each is the first with probability 1/12, 6 +- 2.3.
    assert all(abs(first[token] - 6) < 4 * 2.3 for token in range(12))


@pytest.mark.parametrize("per_position", [False, True])
def test_saved_means_read_back(cases: Cases, tmp_path: Path, per_position: bool) -> None:
    case = cases.get("llama")
    options = {"per_position": per_position, "n_samples": 3}
    means = MeanActivations.compute(case.model, padded(texts()), **options)
    means.save(tmp_path / "new" / "means.safetensors")
    loaded = MeanActivations.load(tmp_path / "new" / "means.safetensors", case.model)
    for name in ("z", "mlp", "counts", "samples_z", "samples_mlp"):
        assert torch.equal(getattr(loaded, name), getattr(means, name))
    assert loaded.identity == means.identity
    assert loaded.data == means.data
    assert loaded.per_position == per_position


def test_the_fingerprint_is_that_of_the_tokens(cases: Cases) -> None:
    model = cases.get("bert").model

    def fingerprint(batch: dict[str, torch.Tensor]) -> str:
        return MeanActivations.compute(model, batch, n_samples=0).data

    assert fingerprint(padded(texts(), extra=2)) == fingerprint(padded(texts(), extra=2, noise=1))
    assert fingerprint(padded(texts())) != fingerprint(padded(texts(seed=2)))


def test_means_of_another_model_are_refused_by_name(cases: Cases, tmp_path: Path) -> None:
    path = tmp_path / "means.safetensors"
    means = MeanActivations.compute(cases.get("llama").model, padded(texts()))
    means.save(path)
    with pytest.raises(MismatchError, match="d_head 4 against 8; weights") as caught:
        MeanActivations.load(path, cases.get("mistral").model)
    assert "compute the means again" in str(caught.value)
    with pytest.raises(MismatchError, match="dtype float32 against float64"):
        MeanActivations.load(path, cases.get("llama", torch.float64).model)
    helpers.hf_classifier("llama", seed=1).save_pretrained(tmp_path / "other")
    other = load_model(tmp_path / "other")
    with pytest.raises(MismatchError, match=r"differs in weights \w{12} against \w{12}; compute"):
        MeanActivations.load(path, other)
    with (
        pytest.raises(MismatchError, match="computed on another model"),
        masked(other, Mask.full(other).without("0.0"), means),
    ):
        pass


def test_files_that_hold_no_means_are_refused(cases: Cases, tmp_path: Path) -> None:
    path = tmp_path / "means.safetensors"
    with pytest.raises(InputError, match=r"means\.safetensors: no such file"):
        MeanActivations.load(path)
    whole = tmp_path / "whole.safetensors"
    MeanActivations.compute(cases.get("bert").model, padded(texts())).save(whole)
    for make in (
        lambda: path.write_bytes(b"rubbish"),
        lambda: path.write_bytes(whole.read_bytes()[:-50]),
        lambda: save_file({"z": torch.ones(2)}, path),
        lambda: save_file({"z": torch.ones(2)}, path, {"format": "mechcore-means-1"}),
        lambda: Mask(torch.ones(2, 3)).save(path),
    ):
        make()
        with pytest.raises(InputError, match="not means written by mechcore"):
            MeanActivations.load(path)


@pytest.mark.hooked
@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
def test_hooked_and_bridge_have_the_same_means(cases: Cases, side: str, per_position: bool) -> None:
    case = cases.get("gpt2-lm")
    batch = padded(texts(), side, extra=2, noise=4)
    bridged, hooked = (
        MeanActivations.compute(model, batch, per_position=per_position)
        for model in (case.model, helpers.hooked_transformer(case.path))
    )
    close(hooked.z, bridged.z)
    close(hooked.mlp, bridged.mlp)
    close(hooked.samples_z, bridged.samples_z)
    assert torch.equal(hooked.counts, bridged.counts)


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize(
    ("component", "weight"),
    [("L0.H2", "attention.self.value.bias"), ("L1.MLP", "output.dense.bias")],
)
def test_activations_that_are_not_finite_have_no_mean(
    cases: Cases, tmp_path: Path, component: str, weight: str, per_position: bool
) -> None:
    case = cases.get("bert")
    model, layer = copy.deepcopy(case.model), int(component[1])
    bias = weights_of(model).get_submodule(f"bert.encoder.layer.{layer}").get_parameter(weight)
    with torch.no_grad():
        bias[2 * D // H] = float("inf")  # the first dimension of head 2, and one of an MLP's output
    expected = rf"means: the output of {component} is not finite \(NaN or infinity, float32\); "
    with pytest.raises(NotFiniteError, match=f"^{expected}"):
        MeanActivations.compute(model, [padded(texts())], per_position=per_position)

    means = MeanActivations.compute(case.model, [padded(texts())])
    means.z[1, 3, 0] = float("nan")
    means.save(path := tmp_path / "means.safetensors")
    with pytest.raises(NotFiniteError, match=rf"^means file {path}: means: the output of L1.H3 is"):
        MeanActivations.load(path)
