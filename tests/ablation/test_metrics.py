"""Sweeps by any metric: every engine against raw torch hooks, and TransformerLens's patching."""

from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest
import torch

from mechcore import MeanActivations
from mechcore.ablation import ablate, as_sets, interactions, race, sets, sweep
from mechcore.ablation.effects.information import information_table
from mechcore.ablation.effects.stability import change_stability
from mechcore.ablation.paths.dependence import (
    beside_random,
    core_dependence_table,
    largest_readers,
    readers_of,
)
from mechcore.errors import InputError
from mechcore.evaluation.intervals import mean_intervals
from mechcore.evaluation.metrics import METRICS, Metric, as_metric

LENGTHS = (5, 3, 7, 4, 5, 6, 4, 3)
ROWS: list[dict[str, Any]] = [
    {"prompt": ids.tolist(), "correct": [5 + i, 20], "wrong": 6 + i, "subset": "ab"[i % 2]}
    for i, ids in enumerate(helpers.texts(LENGTHS))
]
NAMES = ("L0.H1", "L1.MLP", "L0.MLP+L1.H0", "L1.H0+L1.H3")


@pytest.fixture(scope="module")
def both(cases: helpers.Cases) -> tuple[Any, Any]:
    """A language model as the package has it, and as Hugging Face has it."""
    case = cases.get("gpt2-lm")
    return case.model, case.reference


def plain(reference: Any, name: str) -> list[torch.Tensor]:
    """Logits [pos, token] of every prompt on its own, with the outputs of components zeroed."""
    parts = [set(part.split(".")) for part in name.split("+") if part]

    def on_z(layer: int, z: torch.Tensor) -> torch.Tensor:
        z = z.clone()
        for head in range(helpers.N_HEADS):
            if {f"L{layer}", f"H{head}"} in parts:
                z[..., head, :] = 0
        return z

    def on_mlp(layer: int, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x) if {f"L{layer}", "MLP"} in parts else x

    with torch.no_grad(), helpers.torch_hooks(reference, on_z, on_mlp):
        return [reference(input_ids=torch.tensor([row["prompt"]])).logits[0] for row in ROWS]


def expected(metric: str, logits: torch.Tensor, full: torch.Tensor, row: dict[str, Any]) -> float:
    """A metric of one prompt, written out."""
    last, right, wrong = logits[-1].double(), row["correct"], row["wrong"]
    logp = last.log_softmax(-1)
    if metric == "accuracy":
        return float(last[right].max() > last[wrong])
    if metric == "margin":
        return float(last[right].exp().sum().log() - last[wrong])
    if metric == "logit_difference":
        return float(last[right].mean() - last[wrong])
    if metric == "logprob":
        return float(logp[right].exp().sum().log())
    if metric == "rank":
        return float((last > last[right].max()).sum() + 1)
    if metric == "kl":
        clean = full[-1].double().log_softmax(-1)
        return float((clean.exp() * (clean - logp)).sum())
    losses = -logits.double().log_softmax(-1)[:-1].gather(1, torch.tensor(row["prompt"])[1:, None])
    return float(losses.mean())


@pytest.mark.parametrize("engine", ["tree", "restart", "reference"])
def test_every_metric_is_that_of_raw_hooks(both: tuple[Any, Any], engine: Any) -> None:
    model, reference = both
    logits = {name: plain(reference, name) for name in ("", *NAMES)}
    for metric in METRICS:
        name = as_metric(metric).name
        swept = ablate(model, NAMES, ROWS, fill="zero", metric=metric, engine=engine, batch_size=3)
        assert swept.full.subsets.tolist() == [*"abababab"]
        values = {"": swept.full, **{str(cut): its for cut, its in swept.without.items()}}
        for cut, its in values.items():
            wanted = [
                expected(name, *case) for case in zip(logits[cut], logits[""], ROWS, strict=True)
            ]
            np.testing.assert_allclose(its.values(name), wanted, rtol=0, atol=2e-5, err_msg=name)


def test_paths_are_cut_by_any_metric(both: tuple[Any, Any]) -> None:
    cuts = ["L0.H1>answer", "L0.H1>L1.MLP", "L0.H1>L1.H2.q"]
    for metric in ("logprob", "loss"):
        options: dict[str, Any] = {"fill": "zero", "metric": metric}
        swept = ablate(both[0], [*cuts, "L0.H1"], ROWS, **options)
        alone = ablate(both[0], cuts, ROWS, engine="reference", **options)
        for cut, its in alone.without.items():
            np.testing.assert_allclose(its.by_example, swept.without[cut].by_example, atol=2e-5)
            assert np.abs(swept.changes(cut, metric)).max() > 1e-4


# -- labelled examples ----------------------------------------------------------------------------


def test_metrics_of_classes_are_those_of_answers(cases: helpers.Cases) -> None:
    from ablation.few import encoded, means_of

    for name in ("bert", "gpt2-lm"):
        model, data = cases.get(name).model, encoded(name)
        means = means_of(model, data)
        known = ablate(model, NAMES, data, means, split="ood")
        for metric in ("accuracy", "margin", "kl"):
            swept = ablate(model, NAMES, data, means, split="ood", metric=metric)
            for cut, its in known.without.items():
                wanted = its.kl if metric == "kl" else its.values(metric)
                np.testing.assert_allclose(swept.without[cut].by_example, wanted, atol=1e-6)


# -- patching -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hooked() -> Any:
    """A random HookedTransformer in memory, without a tokenizer."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    sizes: dict[str, Any] = {"n_layers": 2, "n_heads": 4, "d_model": 16, "d_head": 4, "n_ctx": 24}
    cfg = HookedTransformerConfig(
        **sizes, d_vocab=helpers.VOCABULARY, act_fn="gelu", device="cpu", seed=0
    )
    model = HookedTransformer(cfg)
    helpers.randomise(model)
    return model.eval()


def test_activation_patching_is_that_of_transformer_lens(hooked: Any) -> None:
    from transformer_lens import patching

    clean, corrupted = (torch.stack(helpers.texts((7, 7, 7, 7), seed=seed)) for seed in (3, 4))
    right, wrong = torch.tensor([3, 4, 5, 6]), torch.tensor([7, 8, 9, 10])
    rows = [
        {"prompt": bad, "counterfactual": good, "correct": int(r), "wrong": int(w)}
        for good, bad, r, w in zip(clean, corrupted, right, wrong, strict=True)
    ]

    def difference(logits: torch.Tensor) -> torch.Tensor:
        last, every = logits[:, -1], torch.arange(4)
        return (last[every, right] - last[every, wrong]).mean()

    def patch_mlp(activation: Any, index: Any, clean_activation: Any) -> Any:
        return clean_activation

    _, cache = hooked.run_with_cache(clean)
    with torch.no_grad():
        heads = patching.get_act_patch_attn_head_out_all_pos(hooked, corrupted, cache, difference)
        mlps = patching.generic_activation_patch(
            hooked, corrupted, cache, difference, patch_mlp, "mlp_out", index_axis_names=["layer"]
        )
    for engine in ("restart", "reference"):
        table = sweep(
            hooked,
            sets.singles(hooked),
            rows,
            fill="counterfactual",
            metric="logit_difference",
            engine=engine,
        )
        by_set = table.set_index("set")["logit_difference"]
        for layer in range(2):
            assert by_set[f"L{layer}.MLP"] == pytest.approx(float(mlps[layer]), abs=1e-6)
            for head in range(4):
                assert by_set[f"L{layer}.H{head}"] == pytest.approx(
                    float(heads[layer, head]), abs=1e-6
                )


# -- tables and what goes on from them ------------------------------------------------------------


def test_the_table_has_the_metric_with_paired_intervals(hooked: Any) -> None:
    means = MeanActivations.compute(hooked, ROWS)
    table = sweep(hooked, NAMES, ROWS, means, metric="rank", n_resamples=50)
    change = ["rank_change", "rank_change_low", "rank_change_high"]
    places = ["set", "kind", "size", "data", "split", "subset", "n"]
    assert list(table.columns) == [*places, "rank", *change]
    assert table["subset"].tolist() == ["a"] * 4 + ["b"] * 4 + ["all"] * 4
    swept = ablate(hooked, NAMES, ROWS, means, metric="rank")
    [cut] = as_sets(["L1.MLP"])
    differences = swept.without[cut].by_example - swept.full.by_example
    np.testing.assert_array_equal(swept.changes(cut, "rank"), differences)
    interval = mean_intervals(differences[None], n_resamples=50)[0]
    row = table[(table["set"] == "L1.MLP") & (table["subset"] == "all")]
    assert row[change].to_numpy()[0] == pytest.approx([interval.mean, interval.low, interval.high])
    assert float(row["rank"].iloc[0]) == pytest.approx(swept.without[cut].by_example.mean())
    assert "4 sets, 'id' (id), Measured(n=8, rank=" in repr(swept)
    assert "<table" in swept._repr_html_()


def test_prompts_have_clusters(hooked: Any) -> None:
    rows = [{**row, "cluster": str(i % 8)} for i, row in enumerate(ROWS * 3)]
    options: dict[str, Any] = {"fill": "zero", "metric": "logprob", "n_resamples": 50}
    table = sweep(hooked, ["L0.H1"], rows, **options)
    assert table[table["subset"] == "all"]["n_clusters"].tolist() == [8]


def test_interactions_know_which_direction_is_worse(hooked: Any) -> None:
    chosen = [*sets.singles(hooked, mlps=False), *sets.pairs(["L0.H1", "L0.H2", "L1.H0"])]

    def negative(logits: torch.Tensor, batch: Any) -> torch.Tensor:
        return -as_metric("loss").function(logits, batch)

    loss = ablate(hooked, chosen, ROWS * 4, fill="zero", metric="loss")
    gain = Metric("gain", negative, more_is_better=True, everywhere=True)
    tables = [
        interactions(swept, n_resamples=50)
        for swept in (loss, ablate(hooked, chosen, ROWS * 4, fill="zero", metric=gain))
    ]
    one, other = (t[t["subset"] == "all"] for t in tables)
    assert set(one["metric"]) == {"loss"}
    np.testing.assert_allclose(one["interaction"], -other["interaction"].to_numpy(), atol=1e-9)
    assert one["superadditive"].tolist() == other["superadditive"].tolist()
    assert one["superadditive"].any()
    assert not one["superadditive"].all()
    assert set(change_stability(loss, n_resamples=10)["metric"]) == {"loss"}
    unsaid = Metric("gain", negative, everywhere=True)
    with pytest.raises(InputError, match="metric 'gain' does not say whether more is better"):
        interactions(ablate(hooked, chosen, ROWS, fill="zero", metric=unsaid))


PAIRS = sets.pairs(["L0.H1", "L0.H2", "L1.H0", "L1.H3"])


@pytest.mark.parametrize("metric", ["loss", "logprob", "accuracy"])
def test_races_are_by_any_metric(hooked: Any, metric: str) -> None:
    """The largest losses are rises of the loss, and falls of the log-probability."""
    options: dict[str, Any] = {"fill": "zero", "metric": metric}
    raced = race(hooked, PAIRS, ROWS * 5, largest=2, **options)
    singles = sets.singles(hooked, mlps=False)
    exact = ablate(hooked, [*singles, *PAIRS], ROWS * 5, **options)
    table = interactions(exact, n_resamples=2).query("subset == 'all'").set_index("set")
    losses = table["interaction"] * (1 if metric == "loss" else -1)
    assert [str(cut) for cut in raced.decided("top")] == losses.nlargest(2).index.tolist()
    assert raced.audit.empty
    for cut, effect in raced.effects.items():
        if raced.decisions.set_index("set").loc[str(cut), "exact"]:
            assert effect == pytest.approx(table.loc[str(cut), "interaction"], abs=1e-5)
    assert (raced.goal.bound is None) == (metric == "accuracy")


def test_readers_of_a_core_by_any_metric(hooked: Any) -> None:
    means = MeanActivations.compute(hooked, ROWS)
    rows, more = [*ROWS, *ROWS, *ROWS], {"metric": "logit_difference"}
    core = ["L0.H1", "L0.H2"]
    readers = readers_of(hooked, core, rows, means, **more)
    table = core_dependence_table(beside_random(readers, hooked, core, rows, means, **more))
    cuts = [*table["receiver"].unique(), *(f"L0.H1+L0.H2>{r}" for r in table["receiver"].unique())]
    by_set = sweep(hooked, cuts, rows, means, **more).query("subset == 'all'").set_index("set")
    whole = table.query("subset == 'all'").set_index("receiver")
    assert set(whole["metric"]) == {"logit_difference"}
    for receiver, row in whole.iterrows():
        changes = by_set.loc[[receiver, f"L0.H1+L0.H2>{receiver}"], "logit_difference_change"]
        assert row[["change", "blind_change"]].tolist() == pytest.approx(changes.tolist(), abs=1e-5)
    assert largest_readers(table, 1) == [whole["blind_change"].abs().idxmax()]
    known = ablate(hooked, sets.singles(hooked), rows, means, **more)
    again = core_dependence_table(readers_of(hooked, core, rows, means, known=known, **more))
    np.testing.assert_allclose(again["change"], table["change"], atol=1e-5)
    with pytest.raises(InputError, match=r"answers in the known ablations .24. differ from"):
        readers_of(hooked, core, rows, means, known=known, metric="rank")


def test_what_needs_labelled_examples_says_so(hooked: Any) -> None:
    swept = ablate(hooked, NAMES, ROWS, fill="zero", metric="loss")
    with pytest.raises(InputError, match=r"metric 'loss': has no .*leave metric out"):
        information_table(swept)
    with pytest.raises(InputError, match=r"or pass a metric to mechcore\.ablation\.sweep"):
        ablate(hooked, NAMES, ROWS, fill="zero")


PROMPTS = [{"prompt": row["prompt"]} for row in ROWS]
BATCH = {"input_ids": torch.tensor([[5, 6, 7]]), "labels": torch.tensor([8])}


@pytest.mark.parametrize(
    ("data", "metric", "message"),
    [
        (PROMPTS, "logprob", "metric 'logprob': the data have no correct answers"),
        ([{**PROMPTS[0], "correct": 5}], "logit_difference", "the data have no wrong answers"),
        ([BATCH], "logit_difference", "the data have no wrong answers"),
        (PROMPTS, Metric("m", max, needs=("full",), everywhere=True), "reads all positions"),
        (PROMPTS, lambda logits, batch: logits, "expected a tensor .8,., a value for every"),
    ],
)
def test_data_and_metrics_that_do_not_go_together(
    hooked: Any, data: Any, metric: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ablate(hooked, NAMES, data, fill="zero", metric=metric)


def test_a_classifier_has_no_positions(cases: helpers.Cases) -> None:
    from ablation.few import encoded

    with pytest.raises(InputError, match="metric 'loss': reads all positions"):
        ablate(cases.get("bert").model, NAMES, encoded(), fill="zero", metric="loss")


def test_batches_and_functions(hooked: Any) -> None:
    batches = [{**BATCH, "labels": torch.tensor([label])} for label in (8, 9)]
    seen: list[dict[str, Any]] = []

    def watched(logits: torch.Tensor, batch: Any) -> torch.Tensor:
        seen.append({"logits": logits.shape, **batch})
        return logits[:, 8]

    swept = ablate(hooked, NAMES[:1], batches, fill="zero", metric=watched)
    assert {tuple(call["logits"]) for call in seen} == {(1, helpers.VOCABULARY)}
    assert [call["index"].tolist() for call in seen[::2]] == [[0], [1]]
    assert "correct" not in seen[0]
    with torch.no_grad():
        logits = hooked(BATCH["input_ids"])[0, -1]
    assert swept.full.by_example.tolist() == pytest.approx([float(logits[8])] * 2, abs=1e-6)
    known = ablate(hooked, NAMES[:1], batches, fill="zero", metric="logprob").full.by_example
    assert known == pytest.approx(logits.double().log_softmax(-1)[[8, 9]].numpy(), abs=1e-6)


def test_a_metric_by_name_can_be_resumed(hooked: Any, tmp_path: Path) -> None:
    def run(metric: Any) -> Any:
        return ablate(hooked, NAMES, ROWS, fill="zero", metric=metric, state=tmp_path)

    [once, again] = [run("loss") for _ in range(2)]
    files = {*tmp_path.iterdir()}
    assert len(files) == 1
    for cut, its in once.without.items():
        np.testing.assert_array_equal(its.by_example, again.without[cut].by_example)
    run("kl")
    assert len({*tmp_path.iterdir()}) == 2
    for n, other in enumerate((ROWS, ROWS[::-1]), 3):  # what is patched in makes another sweep
        rows = [
            {**a, "counterfactual": a["prompt"][:1] + b["prompt"][:2]}
            for a, b in zip(ROWS, other, strict=True)
        ]
        means = MeanActivations.compute(hooked, ROWS)
        options: dict[str, Any] = {"fill": "counterfactual", "metric": "kl", "state": tmp_path}
        ablate(hooked, NAMES[:1], rows, means, **options)
        assert len({*tmp_path.iterdir()}) == n
    with pytest.raises(InputError, match="to resume, a metric needs a name; register this one"):
        run(lambda logits, batch: logits.amax(-1))


def test_precision_of_all_positions(both: tuple[Any, Any]) -> None:
    with pytest.raises(InputError, match=r"a metric of all positions .* leave precision out"):
        ablate(both[0], NAMES, ROWS, fill="zero", metric="loss", precision="bfloat16")
    swept = ablate(both[0], NAMES, ROWS, fill="zero", metric="logprob", precision="bfloat16")
    assert swept.agreement is not None
