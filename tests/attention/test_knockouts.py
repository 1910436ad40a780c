"""Attention knockouts against Hugging Face's own attention with its scores masked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
import transformers as hf
from helpers import CLASSES, close
from torch import Tensor

from mechcore.ablation import ablate
from mechcore.attention.categories import (
    OF_TEXTS,
    TokenInfo,
    claims,
    register_category,
    unregister_category,
)
from mechcore.attention.knockouts import knockout, masses, other_keys
from mechcore.components import Mask
from mechcore.data.encoding import EncodedExamples
from mechcore.errors import InputError
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.hooks import hooked
from mechcore.models.protocol import forward, is_causal

NAMES = ("bert", "gpt2", "llama", "deberta")
ATTENTION = {
    "bert": "bert.encoder.layer.{}.attention.self",
    "gpt2": "transformer.h.{}.attn",
    "llama": "model.layers.{}.self_attn",
    "deberta": "deberta.encoder.layer.{}.attention.self",
}


def batch_of(n: int = 5, length: int = 9) -> dict[str, Tensor]:
    """Pairs of texts of few words, so that many are repeated; the last rows are padded."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(5, 9, (n, length), generator=generator)
    real = torch.arange(length) < torch.tensor([[length - (i % 3)] for i in range(n)])
    ids = ids.masked_fill(~real, helpers.PAD)
    segments = (torch.arange(length) >= length // 2).long().expand(n, -1).clone()
    special = (torch.arange(length) == 0) | ~real
    segments[special] = -1
    words = ids.masked_fill(special, -1)
    separators = torch.zeros_like(real)
    return {
        "input_ids": ids,
        "attention_mask": real.long(),
        "segments": segments,
        "words": words,
        "separators": separators,
        "index": torch.arange(n),
    }


def deberta() -> Any:
    names = {
        "id2label": dict(enumerate(CLASSES)),
        "label2id": {c: i for i, c in enumerate(CLASSES)},
    }
    config = hf.DebertaV2Config(
        vocab_size=helpers.VOCABULARY,
        hidden_size=helpers.D_MODEL,
        num_hidden_layers=helpers.N_LAYERS,
        num_attention_heads=helpers.N_HEADS,
        intermediate_size=24,
        max_position_embeddings=48,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        type_vocab_size=0,
        pad_token_id=helpers.PAD,
        **names,
    )
    model = hf.DebertaV2ForSequenceClassification(config).eval()
    helpers.randomise(model)
    return model


@dataclass(frozen=True, eq=False)
class Case:
    """A tiny classifier as a bridge and as Hugging Face's own, with a batch."""

    name: str
    model: Any
    plain: Any
    batch: dict[str, Tensor]
    means: MeanActivations
    pairs: dict[str, Tensor]

    @classmethod
    def opened(cls, name: str, folder: Path) -> Case:
        plain, batch = deberta() if name == "deberta" else helpers.hf_classifier(name), batch_of()
        plain.save_pretrained(folder / name)
        model = load_model(str(folder / name))
        pairs = claims(TokenInfo.of(batch, causal=is_causal(model)))
        means = MeanActivations.compute(model, [batch])
        return cls(name, model, plain, batch, means, pairs)

    def without(self, names: list[str], fill: Any) -> Tensor:
        mask = Mask.full(self.model).without(*names)
        with masked(self.model, mask, self.means, fill) as run, torch.no_grad():
            return run(self.batch)


def by_hand(
    plain: Any, name: str, heads: list[str], hidden: Tensor, batch: dict[str, Tensor]
) -> Tensor:
    """Logits of Hugging Face's model with minus infinity on some scores of these heads."""
    lowest = torch.finfo(torch.float32).min

    def hide(of: list[int], module: Any, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
        if name == "deberta":  # whose mask says what is seen
            seen = args[1].bool().repeat(1, helpers.N_HEADS, 1, 1)
            seen[:, of] &= ~hidden[:, None]
            return (args[0], seen, *args[2:]), kwargs
        n, length = batch["input_ids"].shape
        scores = torch.zeros(n, helpers.N_HEADS, length, length)
        scores[:, of] = scores[:, of].masked_fill(hidden[:, None], lowest)
        if (mask := kwargs.get("attention_mask")) is not None:
            scores = (scores + mask.float()).clamp_min(lowest)
        return args, {**kwargs, "attention_mask": scores}

    handles = []
    for layer in range(helpers.N_LAYERS):
        of = [int(head[4]) for head in heads if int(head[1]) == layer]
        module = plain.get_submodule(ATTENTION[name].format(layer))
        handles.append(module.register_forward_pre_hook(partial(hide, of), with_kwargs=True))
    with torch.no_grad():
        logits = plain(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    for handle in handles:
        handle.remove()
    return logits


@pytest.fixture(scope="module", params=NAMES)
def case(request: Any, tmp_path_factory: Any) -> Case:
    return Case.opened(request.param, tmp_path_factory.mktemp("knockouts"))


@pytest.mark.parametrize("heads", [["L0.H1"], ["L1.H3"], ["L0.H2", "L0.H3", "L1.H0"]])
def test_a_knockout_is_minus_infinity_on_the_scores_of_its_heads(
    case: Case, heads: list[str]
) -> None:
    for category in ("repeated", "previous"):
        hidden = case.pairs[category]
        logits = case.without(heads, knockout(category))
        close(logits, by_hand(case.plain, case.name, heads, hidden, case.batch))
        close(logits, case.without(heads, knockout(category, otherwise="zero")), atol=0)
        if heads[0] != "L1.H3":  # in the last layer one position alone is read
            assert (logits - case.without([], "zero")).abs().max() > 1e-4


def test_of_nothing_it_is_the_same_to_the_last_bit(case: Case) -> None:
    heads = [f"L{layer}.H{head}" for layer in range(2) for head in range(4)]
    assert not case.pairs["separator"].any()
    close(case.without(heads, knockout("separator")), case.without([], "zero"), atol=0)


def test_a_query_that_attends_to_nothing_else_puts_out_the_fill(case: Case) -> None:
    everything = register_everything()
    try:
        for fill in ("mean", "zero"):
            logits = case.without(["L0.H1", "L1.H3"], knockout(everything, otherwise=fill))
            close(logits, case.without(["L0.H1", "L1.H3"], fill))
        dropped = knockout(everything, renormalise=False)
        close(case.without(["L0.H1"], dropped), case.without(["L0.H1"], "zero"))
    finally:
        unregister_category(everything)


def seen_of(case: Case, point: str, batch: dict[str, Tensor] | None = None) -> Tensor:
    """What layer 0 has at a hook point in the full model."""
    seen: list[Tensor] = []

    def keep(activation: Tensor, hook: Any) -> None:
        seen.append(activation)

    with hooked(case.model, [(f"blocks.0.attn.{point}", keep)]), torch.no_grad():
        forward(case.model, batch or case.batch)
    return seen[0]


@pytest.mark.parametrize("renormalise", [True, False])
def test_as_much_of_other_attention_is_hidden_key_after_key(case: Case, renormalise: bool) -> None:
    """By a plain loop over rows, queries and keys in the order that was drawn."""
    fill = other_keys("repeated", renormalise=renormalise)(case.model, case.means, 3)
    fill.prepare(case.batch)
    output = fill.values("z", 0, case.batch["attention_mask"], None)[:, :, 1]
    pattern, values = seen_of(case, "hook_pattern")[:, 1], seen_of(case, "hook_v")
    v = values[:, :, values.shape[2] * 1 // helpers.N_HEADS]
    expected, hidden = seen_of(case, "hook_z")[:, :, 1].clone(), case.pairs["repeated"]
    for row, query in hidden.any(-1).nonzero().tolist():
        weights = pattern[row, query].clone()
        left = float(weights[hidden[row, query]].sum())
        for key in fill.order[row, query].tolist():
            if not hidden[row, query, key]:
                gone = min(left, float(weights[key]))
                weights[key] -= gone
                left -= gone
        expected[row, query] = (weights / (weights.sum() if renormalise else 1)) @ v[row]
    close(output, expected)
    real = hidden.any(-1)
    assert (output - seen_of(case, "hook_z")[:, :, 1])[real].abs().max() > 1e-4


def test_keys_are_drawn_by_example_and_seed(case: Case) -> None:
    def order(seed: int, rows: list[int]) -> Tensor:
        fill = other_keys("repeated")(case.model, case.means, seed)
        fill.prepare({name: values[rows] for name, values in case.batch.items()})
        return fill.order

    close(order(0, [0, 1, 2])[1:], order(0, [1, 2]), atol=0)
    assert (order(0, [1]) != order(0, [2])).any()
    assert (order(0, [1]) != order(1, [1])).any()


def test_masses_are_those_of_a_plain_loop(case: Case) -> None:
    data = examples(case.name)
    (batch,) = data.batches(8)
    tokens = TokenInfo.of(batch, causal=is_causal(case.model))
    by_head, pattern = masses(case.model, data), seen_of(case, "hook_pattern", batch)[:, 2]
    for name, hidden in claims(tokens, OF_TEXTS).items():
        every = [
            float(pattern[row, query][hidden[row, query]].sum())
            for row, query in hidden.any(-1).nonzero().tolist()
        ]
        if not every:
            assert ("L0.H2", name) not in by_head
            continue
        matched = sum(min(mass, 1 - mass) for mass in every) / sum(every)
        expected = {"mass": sum(every) / len(every), "control_mass": matched}
        assert by_head["L0.H2", name] == pytest.approx(expected, abs=1e-5)


def register_everything() -> str:
    register_category("every", lambda tokens: torch.ones_like(tokens.allowed))
    return "every"


def test_dropped_weights_are_not_made_up_for(case: Case) -> None:
    """The head's output with weights renormalised, times the weight that was left."""
    name, hidden = "blocks.0.attn.hook_pattern", case.pairs["repeated"]
    seen: list[Tensor] = []
    outputs: dict[bool, Tensor] = {}

    def keep(activation: Tensor, hook: Any) -> None:
        seen.append(activation)

    with hooked(case.model, [(name, keep)]), torch.no_grad():
        forward(case.model, case.batch)
    left = seen[0][:, 1].masked_fill(hidden, 0).sum(-1)
    for renormalise in (True, False):
        fill = knockout("repeated", renormalise=renormalise)(case.model, case.means, 0)
        fill.prepare(case.batch)
        outputs[renormalise] = fill.values("z", 0, case.batch["attention_mask"], None)[:, :, 1]
    some = hidden.any(-1)
    close(outputs[False][some], (outputs[True] * left[..., None])[some])


def of(answers: Any) -> Tensor:
    return torch.from_numpy(answers.logits)


def examples(name: str) -> EncodedExamples:
    pairs = [
        ("the cat saw a dog", "the cat saw"),
        ("a bird ran", "the bird ran quickly , and a cat saw the dog"),
        ("the dog who saw a cat ran here", "no"),
    ]
    labels = ["entailment", "neutral", "contradiction"]
    return helpers.encoded_of(pairs, labels, name == "bert", words=True)


@pytest.mark.parametrize("make", [knockout, other_keys])
def test_engines_agree_on_heads_alone(case: Case, make: Any) -> None:
    sets = [[f"L{layer}.H{head}"] for layer in range(2) for head in range(4)]
    data = examples(case.name)
    options: dict[str, Any] = {"fill": make("repeated", "previous"), "split": "ood"}
    engines = ["restart", "reference"] + ["tree"] * (case.name != "deberta")
    swept = {
        engine: ablate(case.model, sets, data, case.means, engine=engine, **options)
        for engine in engines
    }
    plain = ablate(case.model, sets, data, case.means, split="ood")
    for one, expected in swept["reference"].without.items():
        for engine in engines:
            close(of(swept[engine].without[one]), of(expected))
        assert abs(plain.without[one].logits - expected.logits).max() > 1e-5


def test_several_heads_are_ablated_as_they_run(case: Case) -> None:
    batch = {**case.batch, "labels": torch.arange(5) % 3}
    both, fill = ["L0.H1", "L1.H0"], knockout("previous")
    options: dict[str, Any] = {"fill": fill, "class_names": CLASSES, "split": "ood"}
    by_set = ablate(case.model, [both], [batch], case.means, **options).without
    expected = by_hand(case.plain, case.name, both, case.pairs["previous"], batch)
    (without,) = by_set.values()
    close(of(without), expected)
    with pytest.raises(InputError, match="use engine='reference'"):
        ablate(case.model, [both], [batch], case.means, engine="tree", **options)


def test_the_gradient_is_that_of_finite_differences(case: Case) -> None:
    mask = Mask.full(case.model)
    values = torch.ones_like(mask.values)
    values[0, 1], values[1, 0] = 0.6, 0.3

    def answer(values: Tensor) -> Tensor:
        changed = Mask(values)
        with masked(case.model, changed, case.means, knockout("previous")) as run:
            return run(case.batch)[:, 0].sum()

    values.requires_grad_()
    answer(values).backward()
    for layer, head in ((0, 1), (1, 0)):
        step = torch.zeros_like(values)
        step[layer, head] = 1e-2
        with torch.no_grad():
            slope = (answer(values + step) - answer(values - step)) / 2e-2
        assert float(values.grad[layer, head]) == pytest.approx(float(slope), rel=2e-2, abs=1e-3)


def test_what_cannot_be_hidden(case: Case) -> None:
    with pytest.raises(InputError, match="no category; name at least one"):
        knockout()
    with pytest.raises(InputError, match=r"no category 'nowhere'; there are .*repeated"):
        case.without(["L0.H1"], knockout("nowhere"))
    with pytest.raises(InputError, match="MLPs have no attention"):
        case.without(["L1.MLP"], knockout("repeated"))
    plain = {name: case.batch[name] for name in ("input_ids", "attention_mask")}
    mask = Mask.full(case.model).without("L0.H1")
    with masked(case.model, mask, case.means, knockout("self")) as run:
        for call in (run, lambda batch: case.model(batch["input_ids"])):
            with pytest.raises(InputError, match="words=True"):
                call(plain)


@pytest.mark.hooked
def test_a_hooked_transformer_with_its_own_scores_hidden(cases: helpers.Cases) -> None:
    model, batch = helpers.hooked_transformer(cases.path("gpt2-lm")), batch_of()
    hidden = claims(TokenInfo.of(batch, causal=True))["repeated"]

    def hide(scores: Tensor, hook: Any) -> Tensor:
        scores[:, 2] = scores[:, 2].masked_fill(hidden, -torch.inf)
        return scores

    mask = Mask.full(model).without("L0.H2")
    with masked(model, mask, fill=knockout("repeated", otherwise="zero")) as run, torch.no_grad():
        logits = run(batch)
    inputs = {"attention_mask": batch["attention_mask"], "return_type": "logits"}
    with torch.no_grad(), model.hooks(fwd_hooks=[("blocks.0.attn.hook_attn_scores", hide)]):
        expected = model(batch["input_ids"], **inputs)
    real = batch["attention_mask"].bool()
    close(logits[real], expected[real])
