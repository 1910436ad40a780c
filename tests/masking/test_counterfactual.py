"""The counterfactual fill against activations patched by hand with plain torch hooks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import D_MODEL, N_HEADS, N_LAYERS, Case, Cases, captured, padded, torch_hooks
from pruning.oracles import encoded_for
from torch import Tensor

from mechcore import evaluate
from mechcore.ablation import ablate, race
from mechcore.components import Mask
from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import Examples
from mechcore.errors import InputError, MismatchError
from mechcore.masking.blinding import blind
from mechcore.masking.counterfactual import Counterfactual, paired
from mechcore.masking.fills import fill_of
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations

ABLATED = ["L0.H1", "L1.H3", "L0.MLP"]
N = 7


def plain(data: EncodedExamples) -> EncodedExamples:
    """The examples without token types, which `helpers.captured` does not pass on."""
    return replace(data, token_type_ids=None)


def by_hand(case: Case, values: Tensor, row: Any, pair: Any, means: MeanActivations) -> Tensor:
    """Hugging Face's logits of one text, patched with activations of another one."""
    z, mlp = captured(case.reference, torch.tensor(pair))

    def patch(own: Tensor, other: Tensor, mean: Tensor, m: Tensor) -> Tensor:
        fill = mean.to(own).expand_as(own).clone()
        n = min(own.shape[1], len(other))
        fill[0, :n] = other[:n]
        return fill + m * (own - fill)

    def on_z(layer: int, x: Tensor) -> Tensor:
        return patch(x, z[layer], means.z[layer], values[layer, :N_HEADS, None])

    def on_mlp(layer: int, x: Tensor) -> Tensor:
        return patch(x, mlp[layer], means.mlp[layer], values[layer, -1])

    with torch.no_grad(), torch_hooks(case.reference, on_z, on_mlp):
        return case.reference(input_ids=torch.tensor([row])).logits[0]


def prepared(case: Case) -> tuple[EncodedExamples, EncodedExamples, MeanActivations]:
    """Examples, pairs that are shorter, as long and longer, and means."""
    every = plain(encoded_for(case.architecture, 2 * N))
    data, pairs = every.part(range(N)), every.part(range(N, 2 * N))
    more = [len(pairs.input_ids[i]) - len(data.input_ids[i]) for i in range(N)]
    assert min(more) < 0 < max(more)
    return data, pairs, MeanActivations.compute(case.model, every)


def test_it_is_patching_by_hand(case64: Case) -> None:
    data, pairs, means = prepared(case64)
    generator = torch.Generator().manual_seed(0)
    several = torch.rand(3, N_LAYERS, N_HEADS + 1, generator=generator, dtype=torch.float64)
    several[0] = Mask.full(case64.model).without(*ABLATED).values
    fill = Counterfactual.of(pairs)
    rows = [5, 0, 3, 6]
    with torch.no_grad(), masked(case64.model, Mask(several), means, fill) as run:
        answers = run(data.rows(rows))
    for values, logits in zip(several, answers, strict=True):
        for row, got in zip(rows, logits, strict=True):
            given = list(data.input_ids[row]), list(pairs.input_ids[row])
            expected = by_hand(case64, values, *given, means)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    whole = evaluate(case64.model, data, in_domain=False).logits
    alone = evaluate(case64.model, data, mask=Mask(several[0]), means=means, fill=fill)
    assert (alone.logits - whole).abs().max() > 1e-3
    torch.testing.assert_close(alone.logits[rows].double(), answers[0], rtol=0, atol=1e-5)


def test_each_row_may_have_a_mask_and_padding_any_side(cases: Cases) -> None:
    case = cases.get("gpt2", torch.float64)
    data, pairs, means = prepared(case)
    masks = torch.rand(N, N_LAYERS, N_HEADS + 1, dtype=torch.float64)
    batch = data.rows(range(N))
    left = padded([torch.tensor(ids) for ids in data.input_ids], "left")
    left["index"] = batch["index"]
    assert not torch.equal(left["input_ids"], batch["input_ids"])
    with torch.no_grad(), masked(case.model, Mask(masks), means, Counterfactual.of(pairs)) as run:
        answers = run.rows(left)
    for i in range(N):
        given = list(data.input_ids[i]), list(pairs.input_ids[i])
        expected = by_hand(case, masks[i], *given, means)
        torch.testing.assert_close(answers[i], expected, rtol=0, atol=1e-6)


def turned(data: EncodedExamples) -> EncodedExamples:
    """The same examples, beginning with the sixth."""
    return data.part([*range(5, len(data)), *range(5)])


def test_all_engines_agree(case: Case) -> None:
    data = encoded_for(case.architecture, 12)
    pairs = turned(data)
    means = MeanActivations.compute(case.model, data)
    options: dict[str, Any] = {"fill": Counterfactual.of(pairs), "split": "ood", "batch_size": 5}
    sets = ["L0.H0", "L1.H1+L0.MLP", "L1.MLP"]
    tree, restart, reference = (
        ablate(case.model, sets, data, means, engine=engine, **options)
        for engine in ("tree", "restart", "reference")
    )
    for cut in reference.without:
        drops = reference.changes(cut, "margin")
        assert np.abs(drops).max() > 1e-4
        for swept in (tree, restart):
            np.testing.assert_allclose(swept.changes(cut, "margin"), drops, rtol=0, atol=1e-4)


def labelled(data: EncodedExamples, labels: list[str]) -> EncodedExamples:
    return replace(data, examples=Examples("x", data.examples.frame.assign(label=labels)))


def test_by_its_name_a_sweep_takes_pairs_of_another_label(cases: Cases, tmp_path: Any) -> None:
    case = cases.get("bert")
    data = labelled(encoded_for("bert", 12), ["entailment", "neutral"] * 6)
    means = MeanActivations.compute(case.model, data)
    arguments = case.model, ["L0.H0", "L1.MLP"], data, means
    options: dict[str, Any] = {"split": "ood", "seed": 4}
    named = ablate(*arguments, fill="counterfactual", state=tmp_path / "state", **options)
    given = ablate(*arguments, fill=Counterfactual.of(paired(data, 4)), **options)
    for cut, other in zip(named.without, given.without, strict=True):
        drops = named.changes(cut, "margin")
        np.testing.assert_array_equal(drops, given.changes(other, "margin"))
        assert np.abs(drops).max() > 1e-4
    unnamed: Any = {"fill": lambda *given: fill_of(*given[:2], "mean", 0)}
    with pytest.raises(InputError, match="partial results need a registered fill"):
        ablate(*arguments, **unnamed, state=tmp_path / "other", **options)


def test_a_state_is_that_of_the_pairs(cases: Cases, tmp_path: Any) -> None:
    case, data = cases.get("bert"), encoded_for("bert", 12)
    arguments = case.model, ["L0.H0"], data, MeanActivations.compute(case.model, data)
    options: dict[str, Any] = {"split": "ood", "state": tmp_path / "state"}
    pairs = turned(data)
    first, again = (ablate(*arguments, fill=Counterfactual.of(pairs), **options) for _ in range(2))
    for cut in first.without:
        np.testing.assert_array_equal(first.changes(cut, "margin"), again.changes(cut, "margin"))
    ablate(*arguments, fill=Counterfactual.of(data), **options)
    assert len(list((tmp_path / "state").iterdir())) == 2
    with pytest.raises(InputError, match="has 12 pairs for 5 examples"):
        ablate(case.model, ["L0.H0"], data.part(range(5)), None, fill=Counterfactual.of(pairs))


def test_in_a_race_an_example_has_the_pair_of_a_sweep(cases: Cases, tmp_path: Any) -> None:
    case = cases.get("bert")
    data = labelled(encoded_for("bert", 40), ["entailment", "neutral"] * 20)
    means = MeanActivations.compute(case.model, data)
    names = ["L0.H0+L1.MLP", "L0.H1+L1.H2"]
    members = [name for pair in names for name in pair.split("+")]
    for fill in ("counterfactual", Counterfactual.of(turned(data))):
        options: dict[str, Any] = {"fill": fill, "split": "ood", "seed": 4}
        folder = tmp_path / f"race-{isinstance(fill, str)}"
        raced = race(case.model, names, data, means, least=1e-9, state=folder, **options)
        swept = ablate(case.model, [*names, *members], data, means, **options)
        changes = {str(cut): swept.changes(cut, "margin").mean() for cut in swept.sets}
        expected = [changes[n] - sum(changes[c] for c in n.split("+")) for n in names]
        assert raced.decisions["exact"].all()
        np.testing.assert_allclose(raced.decisions["effect"], expected, rtol=0, atol=1e-5)


def test_pairs_have_another_label_and_the_nearest_length() -> None:
    lengths = [4, 4, 9, 5, 5, 20]
    data = labelled(plain(encoded_for("bert", 6)), ["a", "a", "a", "b", "b", "c"])
    data = replace(data, input_ids=[[7 + i] * n for i, n in enumerate(lengths)])
    drawn = [paired(data, seed).input_ids for seed in range(20)]
    chosen = [{one[row][0] - 7 for one in drawn} for row in range(6)]
    # 4 tokens: one of 5; 9: one of 5 (4 away; the 20 is 11 away); 5: one of 4; 20: the 9.
    assert chosen == [{3, 4}, {3, 4}, {3, 4}, {0, 1}, {0, 1}, {2}]
    assert drawn[0] == paired(data, 0).input_ids
    with pytest.raises(InputError, match="at least two labels; found 'a'; pass your own pairs"):
        paired(data.part([0, 1]))
    data = labelled(plain(encoded_for("bert", 4)), ["Not_A", "not-a", "b", "B"])
    names = [paired(data, seed).examples.frame["label"].str.lower().tolist() for seed in range(5)]
    assert all(two == ["b", "b"] for two in (one[:2] for one in names))
    assert all("b" not in one[2:] for one in names)
    for unknown in ("", "-"):
        some = labelled(plain(encoded_for("bert", 4)), ["a", "b", unknown, unknown])
        with pytest.raises(InputError, match="2 of 4 have no label; pairs need"):
            paired(some)


def test_what_is_refused(cases: Cases) -> None:
    case = cases.get("bert")
    data, pairs, means = prepared(case)
    mask, model = Mask.full(case.model).without(*ABLATED), case.model
    fill, short = Counterfactual.of(pairs), Counterfactual.of(pairs.part(range(3)))
    for given, of, message in (
        ("counterfactual", means, "needs a paired example for every example; pass fill="),
        (fill, None, "needs means because an example is longer than its pair"),
        (short, means, "has 3 pairs, but the batch holds example 6"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate(model, data, mask=mask, means=of, fill=given, in_domain=False)
    batch = data.rows([0, 1])
    unknown = {name: tensor for name, tensor in batch.items() if name != "index"}
    with masked(model, mask, means, fill) as run:
        with pytest.raises(InputError, match="found 2 rows in a batch and an index of 0"):
            run(unknown)
        expected = run(batch)
        # What was read of the last batch is not taken for another one.
        with pytest.raises(InputError, match="does not know which examples are run"):
            model(batch["input_ids"])
        torch.testing.assert_close(run(batch), expected)
    with (
        blind(model, "L0.H0>L1.H1", means, fill) as run,
        pytest.raises(InputError, match="paths cannot be cut with this fill"),
    ):
        run(batch)
    other = cases.get("bert", torch.float64).model
    with pytest.raises(MismatchError), masked(other, mask, means, fill):
        pass
    assert means.mlp.shape[-1] == D_MODEL
