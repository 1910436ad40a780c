"""Sweeps over sets of paths: every engine against the paths as they are defined."""

from dataclasses import replace
from pathlib import Path as File
from typing import Any

import numpy as np
import pytest
import torch
from ablation.few import Runs, encoded, means_of
from helpers import Cases

from mechcore.ablation import ablate, sets
from mechcore.ablation.engines.path_cuts import PathEngine, StackCuts
from mechcore.components import ModelShape
from mechcore.components.names import PathSet
from mechcore.errors import InputError
from mechcore.evaluation.evaluate import margins
from mechcore.evaluation.readout import Readout
from mechcore.masking.blinding import blind
from mechcore.masking.means import MeanActivations
from mechcore.models.protocol import model_inputs

SETS = (
    "L0.H1>L1.H2",
    "L0.H1>L1.H2.q",
    "L0.H1>L1.H3.k",
    "L0.H1>L1.H3.v",
    "L0.H1>L0.MLP",
    "L0.H1>L1.MLP",
    "L0.H1>answer",
    "L0.H0+L0.MLP>L1.H0",
    "L0.H0+L0.MLP>answer",
    "L0.H0>L0.MLP+L1.H2",
    "L0.H0>L1.H1,L1.H1>L1.MLP,L0.MLP>answer",
)


@pytest.mark.parametrize("fill", ["mean", "resample"])
@pytest.mark.parametrize("engine", ["tree", "reference"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gpt2-lm"])
def test_engines_cut_paths_as_they_are_defined(
    cases: Cases, name: str, engine: str, fill: str
) -> None:
    model, data = cases.get(name).model, encoded(name)
    means = means_of(model, data, n_samples=16)
    options: dict[str, Any] = {"fill": fill, "seed": 5, "batch_size": 3, "split": "ood"}
    swept = ablate(model, SETS, data, means, engine=engine, **options)
    assert list(map(str, swept.without)) == list(SETS)
    np.testing.assert_allclose(
        [answers.margin for answers in swept.without.values()],
        defined(model, data, means, fill, seed=5),
        atol=1e-4,
    )


@pytest.mark.hooked
def test_grouped_heads_that_are_ungrouped_are_blind_one_by_one() -> None:
    """Keys and values of a head alone, though another shares its weights; by TransformerLens."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    config: dict[str, Any] = {"n_layers": 2, "n_heads": 4, "d_model": 16, "d_head": 4, "d_mlp": 24}
    config |= {"d_vocab": 40, "n_ctx": 8, "act_fn": "gelu_new", "normalization_type": "LN"}
    config |= {"n_key_value_heads": 2, "ungroup_grouped_query_attention": True, "seed": 0}
    model = HookedTransformer(HookedTransformerConfig(**config, device="cpu"))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.5 * torch.randn(weights.shape, generator=generator)
    ids = torch.randint(2, 40, (5, 6), generator=generator)
    labels = torch.randint(2, 40, (5,), generator=generator)
    data = [{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}]
    means = MeanActivations.compute(model, data, n_samples=0)
    swept = ablate(model, ["L0.H2>L1.H3.v"], data, means, engine="reference", split="ood")

    kept: dict[str, torch.Tensor] = {}
    names = ("blocks.0.attn.hook_z", "blocks.1.hook_resid_pre")
    layer = model.blocks[1]
    with torch.no_grad():
        keep = [(name, lambda x, hook: kept.update({hook.name: x.clone()})) for name in names]
        model.run_with_hooks(ids, fwd_hooks=keep)
        lost = (means.z[0, 2].float() - kept[names[0]][:, :, 2]) @ model.blocks[0].attn.W_O[2]
        seen = layer.ln1(kept[names[1]] + lost)
        value = seen @ layer.attn.W_V[3] + layer.attn.b_V[3]

        def blinded(x: torch.Tensor, hook: Any) -> torch.Tensor:
            return torch.cat([x[:, :, :3], value[:, :, None]], 2)

        logits = model.run_with_hooks(ids, fwd_hooks=[("blocks.1.attn.hook_v", blinded)])[:, -1]
    correct = torch.nn.functional.one_hot(labels, 40).bool()
    [answers] = swept.without.values()
    np.testing.assert_allclose(answers.margin, margins(logits, correct), atol=1e-4)


def defined(model: Any, data: Any, means: Any, fill: str = "mean", seed: int = 0) -> np.ndarray:
    """The margins [set, example] of paths as they are cut one batch after another."""
    readout, result = (
        Readout.of(model, data, None),
        torch.empty(len(SETS), len(data), dtype=torch.double),
    )
    correct = readout.correct_classes(data)
    cut = blind(model, [PathSet.of(paths) for paths in SETS], means, fill, seed=seed)
    with torch.no_grad(), cut as run:
        for batch in data.batches(3):
            inputs = model_inputs(model, readout.asked(batch))
            logits = readout.read(run(inputs), inputs, batch["index"])
            result[:, batch["index"]] = margins(logits, correct[batch["index"]])
    return result.numpy()


def test_an_interrupted_sweep_of_paths_goes_on(
    cases: Cases, tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = cases.get("bert").model, encoded()
    means = means_of(model, data, n_samples=16)
    options: dict[str, Any] = {"split": "ood", "fill": "resample", "batch_size": 3}
    whole = ablate(model, SETS, data, means, **options)
    options["state"] = tmp_path / "state.safetensors"
    runs, n_stopped = Runs(), 0
    monkeypatch.setattr(PathEngine, "run", runs.watched("run", PathEngine.run))
    for _ in range(20):
        runs.until(3)
        try:
            swept = ablate(model, SETS, data, means, **options)
            break
        except KeyboardInterrupt:
            n_stopped += 1
    assert n_stopped >= 2
    for cut, answers in swept.without.items():
        np.testing.assert_allclose(answers.margin, whole.without[cut].margin, atol=1e-6)


@pytest.mark.parametrize("fill", ["mean", "resample"])
@pytest.mark.parametrize("name", ["bert", "several tokens"])
def test_a_batch_that_is_too_much_to_keep_is_done_in_pieces(
    cases: Cases, name: str, fill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By examples: answers of several tokens have several rows of one example."""
    several = name == "several tokens"
    model, data = cases.get("gpt2-lm" if several else name).model, encoded("gpt2-lm")
    if several:
        assert data.answers is not None
        data = replace(data, answers={label: (*ids, 3) for label, ids in data.answers.items()})
    else:
        data = encoded(name)
    means = means_of(model, data, n_samples=16)
    options: dict[str, Any] = {"fill": fill, "seed": 5, "batch_size": 3, "split": "ood"}
    monkeypatch.setattr("mechcore.ablation.engines.path_cuts.MAX_KEPT", 0)
    examples: list[set[int]] = []
    start = StackCuts.start

    def counting(self: StackCuts, inputs: Any, read: Any, rows: torch.Tensor) -> Any:
        examples.append({row % 3 for row in rows.tolist()})
        return start(self, inputs, read, rows)

    monkeypatch.setattr(StackCuts, "start", counting)
    swept = ablate(model, SETS, data, means, engine="tree", **options)
    assert all({row} in examples for row in range(3))
    np.testing.assert_allclose(
        [answers.margin for answers in swept.without.values()],
        defined(model, data, means, fill, seed=5),
        atol=1e-4,
    )


def test_on_a_stack_paths_from_many_senders_share_the_full_model(cases: Cases) -> None:
    """Every receiver of the last of two layers costs one layer; answers cost nothing."""
    model, data = cases.get("bert").model, encoded()
    receivers = ModelShape.of(model).components[5:]
    for senders in (["L0.H1"], ["L0.H0", "L0.H1", "L0.MLP"]):
        cut = sets.paths(senders, receivers, model, together=False)
        cut += sets.paths(senders, "answer", model, together=False)
        swept = ablate(model, cut, data, means_of(model, data), split="ood")
        assert swept.layers == 2 + len(senders) * len(receivers)


def test_ready_sets_of_paths_and_what_is_refused(cases: Cases) -> None:
    model = cases.get("bert").model
    names = [str(path) for path in sets.paths(["L0.H1", "L1.H0"], ["L0.MLP", "L1.H2"], model)]
    assert names == ["L0.H1>L0.MLP", "L0.H1>L1.H2"]
    apart = sets.paths(["L0.H1", "L0.H2"], ["L1.H2", "answer"], model, together=False)
    expected = ["L0.H1>L1.H2", "L0.H2>L1.H2", "L0.H1>answer", "L0.H2>answer"]
    assert [str(path) for path in apart] == expected
    by_input = sets.paths("L0.H1", ["L1.H2", "L1.MLP"], model, inputs="qkv")
    expected = ["L0.H1>L1.H2.q", "L0.H1>L1.H2.k", "L0.H1>L1.H2.v", "L0.H1>L1.MLP"]
    assert [str(path) for path in by_input] == expected
    message = r"no sender runs .* \(senders: L1\.MLP; receivers: L0\.H1 L1\.H2\); expected a"
    with pytest.raises(InputError, match=message):
        sets.paths("L1.MLP", ["L0.H1", "L1.H2"], model)
    model, data = cases.get("bert").model, encoded()
    means = means_of(model, data)
    with pytest.raises(InputError, match=r"path L1.H1>L0.H2: the receiver does not run after"):
        ablate(model, ["L1.H1>L0.H2"], data, means)
    with pytest.raises(InputError, match="is given more than once"):
        ablate(model, ["L0.H1>L1.H2", PathSet.between("L0.H1", "1.2")], data, means)
    with pytest.raises(InputError, match="paths are cut in the model's own precision"):
        ablate(model, ["L0.H1>L1.H2"], data, means, precision="bfloat16")
