"""The restart engine: counts written out by hand, and the logits of masks run one by one."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch
import transformers as hf
from ablation.few import assert_close
from ablation.planted import examples
from helpers import padded, texts
from torch import Tensor

from mechcore.ablation import Ablations, ablate
from mechcore.ablation.engines.restart import (
    Layers,
    RestartEngine,
    RestartRunner,
    by_layers,
    evaluations,
)
from mechcore.ablation.engines.tree import grow
from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError, MechcoreError, MechcoreWarning
from mechcore.masking.fills import fill_of
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.protocol import is_causal, last_real_position, model_inputs

HUGE = 10**9
N_LAYERS = 3
SIZES: dict[str, Any] = {
    "vocab_size": helpers.VOCABULARY,
    "pad_token_id": helpers.PAD,
    "bos_token_id": None,
    "eos_token_id": None,
    "hidden_size": helpers.D_MODEL,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": helpers.N_HEADS,
    "max_position_embeddings": 48,
    "id2label": dict(enumerate(helpers.CLASSES)),
    "label2id": {name: i for i, name in enumerate(helpers.CLASSES)},
}
WIDE = {"intermediate_size": 24}
SHARED = {**WIDE, "num_key_value_heads": 2, "head_dim": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": WIDE,
    "Bloom": {},  # whose layers return tuples
    "GPTNeoX": WIDE,  # attention and MLP in parallel
    "Gemma2": {**SHARED, "sliding_window": 4},
    "Qwen3": SHARED,
}
HEADS = {"classifier": "ForSequenceClassification", "language model": "ForCausalLM"}
CASES = (
    *(("Bert", "classifier"), ("Bloom", "language model"), ("GPTNeoX", "classifier")),
    *(("Gemma2", "language model"), ("Qwen3", "classifier")),
)


def saved(folder: Path, family: str, head: str = "classifier", **changes: Any) -> Path:
    """A tiny random checkpoint."""
    config = getattr(hf, f"{family}Config")(**SIZES | FAMILIES[family] | changes)
    model = getattr(hf, family + HEADS[head])(config)
    helpers.randomise(model)
    model.save_pretrained(folder)
    helpers.word_tokenizer(segments=False).save_pretrained(folder)
    return folder


@pytest.fixture
def neox(tmp_path: Path) -> Any:
    """A model that no prefix tree can run."""
    return load_model(saved(tmp_path, "GPTNeoX"))


def restarted(model: Any, batch: Any, values: Tensor, **options: Any) -> Tensor:
    """Logits [mask, batch, out] at the position read; ``options`` are of fill and runner."""
    max_tokens = options.pop("max_tokens", HUGE)
    shape, inputs = ModelShape.of(model), model_inputs(model, batch)
    fills = fill_of(model, options.pop("means", None), options.pop("fill", "zero"), 3)
    runner = RestartRunner(Layers(model), shape, fills, max_tokens, **options)
    runner.begin(inputs)
    read = torch.zeros(len(inputs["input_ids"]), dtype=torch.long)
    if is_causal(model):
        read = last_real_position(inputs["attention_mask"])
    by_mask: dict[int, Tensor] = {}

    def emit(nodes: Sequence[Sequence[int]], logits: Tensor) -> None:
        if logits.ndim == 4:
            logits = logits[:, torch.arange(len(read)), read if runner.everywhere else 0]
        for masks, rows in zip(nodes, logits, strict=True):
            by_mask.update((mask, rows) for mask in masks)

    runner.run(inputs, read, grow(values, by_layers(shape)), emit)
    assert sorted(by_mask) == list(range(len(values)))
    return torch.stack([by_mask[n] for n in range(len(values))])


@torch.no_grad()
def one_by_one(model: Any, batch: Any, values: Tensor, means: Any, fill: str) -> Tensor:
    """The same from whole masked forwards."""
    logits = []
    for row in values:
        with masked(model, Mask(row), means, fill, seed=3) as run:
            logits.append(run(batch))
    if logits[0].ndim == 2:
        return torch.stack(logits)
    last = last_real_position(batch["attention_mask"])
    return torch.stack([rows[torch.arange(len(last)), last] for rows in logits])


def sets_of(n_layers: int, columns: int) -> Tensor:
    """The full mask, all singles, some pairs, random sets, values between, equal masks."""
    generator = torch.Generator().manual_seed(0)
    places = list(itertools.product(range(n_layers), range(columns)))
    pairs = list(itertools.combinations(places, 2))[::30]
    masks = [torch.ones(n_layers, columns)]
    for group in [*([place] for place in places), *pairs]:
        masks.append(torch.ones(n_layers, columns))
        for place in group:
            masks[-1][place] = 0
    masks += list((torch.rand(5, n_layers, columns, generator=generator) < 0.7).float())
    masks += [torch.rand(n_layers, columns, generator=generator), masks[3], masks[-1] * 0]
    return torch.stack(masks)


@pytest.mark.once
@pytest.mark.parametrize(("family", "head"), CASES)
def test_logits_are_those_of_masks_run_one_by_one(family: str, head: str, tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, family, head))
    many = sets_of(N_LAYERS, helpers.N_HEADS + 1)
    few = many[[0, 2, 18, -5, -3, -1]]
    for values, side, fill, per_position, options in (
        (many, "left", "mean", False, {}),
        (few, "right", "mean", True, {"max_tokens": 30}),
        (few, "left", "resample", False, {"max_tokens": 1, "stepwise": True}),
        (few, "right", "zero", False, {"everywhere": True}),
    ):
        batch = padded(texts(), side, extra=2, noise=3)
        means = MeanActivations.compute(model, batch, per_position=per_position, n_samples=8)
        logits = restarted(model, batch, values, means=means, fill=fill, **options)
        expected = one_by_one(model, batch, values, means, fill)
        scale = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * scale)
        assert (expected[1:] - expected[0]).abs().max() > 1e-2
    assert all("forward" not in vars(block) for block in model.blocks)


@pytest.mark.hooked
def test_a_hooked_transformer_is_restarted(cases: helpers.Cases) -> None:
    model = helpers.hooked_transformer(cases.path("gpt2-lm"))
    values, batch = sets_of(2, 5), padded(texts(), "left")
    means = MeanActivations.compute(model, batch, n_samples=0)
    logits = restarted(model, batch, values, means=means, fill="mean", max_tokens=100)
    helpers.close(logits, one_by_one(model, batch, values, means, "mean"))


@contextmanager
def counted(model: Any) -> Iterator[Counter[int]]:
    """Positions that each layer is called on, over all rows."""
    tokens: Counter[int] = Counter()

    def noted(layer: int) -> Callable[..., None]:
        def note(module: Any, args: Any, kwargs: Any) -> None:
            x = args[0] if args else kwargs["hidden_states"]
            tokens[layer] += x.shape[0] * x.shape[1]

        return note

    handles = [
        block.original_component.register_forward_pre_hook(noted(i), with_kwargs=True)
        for i, block in enumerate(model.blocks)
    ]
    yield tokens
    for handle in handles:
        handle.remove()


def test_layers_run_as_often_as_written_out(tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, "Qwen3", num_attention_heads=2))
    batch, n, length = padded(texts((5, 3))), 2, 5
    values = torch.ones(7, 3, 3)
    for i, (layer, head) in enumerate(itertools.product(range(3), range(2))):
        values[1 + i, layer, head] = 0
    with counted(model) as tokens:
        restarted(model, batch, values)
    # Before layer 0 all are equal; after it the full model and two sets; after layer 1 two more.
    # All five attend in the last layer, and seven rows of one token go on from there.
    assert tokens == {0: 3 * n * length, 1: 5 * n * length, 2: 5 * n * length + 7 * n}
    # Of a layer's weights attention has 4 * 16 x 4 in four matrices of 2 (1) heads and two norms.
    attention = 16 * 4 * (2 + 2 + 2 + 2) + 2 * 4
    whole = attention + 3 * 16 * 24 + 2 * 16
    tree = grow(values, by_layers(ModelShape.of(model)))
    assert evaluations(model, tree) == pytest.approx(3 + 5 + 5 * attention / whole)
    with counted(model) as tokens:
        restarted(model, batch, values, everywhere=True)
    assert tokens == {0: 3 * n * length, 1: 5 * n * length, 2: 7 * n * length}
    # The full model, with which all others are compared, is alone where only other sets part.
    sets = ["L0.H0", "L0.H1+L1.H0", "L0.H1+L1.H1"]
    batches = [{**padded(texts((5, 3))), "labels": torch.tensor([0, 1])}]
    options: dict[str, Any] = {"fill": "zero", "split": "ood"}
    assert_close(
        ablate(model, sets, batches, engine="restart", **options),
        ablate(model, sets, batches, engine="reference", **options),
    )


NAMES = ("L0.H1", "L1.MLP", "L0.H0+L0.H2+L1.H3", "L2.H0", "L1.H2+L2.MLP")


def swept(model: Any, engine: str) -> Ablations:
    options: dict[str, Any] = {"fill": "zero", "split": "ood", "batch_size": 5}
    return ablate(model, NAMES, examples(), engine=engine, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("reads", ["one", "all"])
def test_a_head_that_reads_all_positions_is_noticed(
    tmp_path: Path, reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(saved(tmp_path, "Bert"))
    if reads == "all":
        model.original_model.bert.pooler.register_forward_pre_hook(
            lambda module, args: (args[0].mean(1, keepdim=True),)
        )
    engines, check = [], RestartEngine.check

    def watched(self: RestartEngine) -> None:
        engines.append(self)
        check(self)

    monkeypatch.setattr(RestartEngine, "check", watched)
    assert_close(swept(model, "restart"), swept(model, "reference"))
    assert {engine.everywhere for engine in engines} == {reads == "all"}


def test_a_layer_that_reads_what_another_left_takes_the_reference(neox: Any) -> None:
    left: list[Tensor] = []
    first, _, last = (block.original_component for block in neox.blocks)
    first.register_forward_hook(lambda module, args, out: left.append(out))
    last.register_forward_hook(lambda module, args, out: out + left.pop())
    message = "restart engine: GPTNeoXForSequenceClass.* .* run from a layer on: .*; expected"
    with pytest.raises(MechcoreError, match=message):
        swept(neox, "restart")
    left.clear()
    with pytest.warns(MechcoreWarning, match=f"{message}.*one forward per set runs instead"):
        swept(neox, "auto")


def test_a_model_whose_layers_cannot_be_identified_is_refused(neox: Any) -> None:
    with pytest.raises(InputError, match=r"SimpleNamespace has no layers in model\.blocks"):
        Layers(SimpleNamespace())
    layers = Layers(neox)
    layers.blocks = [torch.nn.Identity()]
    with torch.no_grad(), pytest.raises(InputError, match="called 0 layers of model"):
        layers(model_inputs(neox, padded(texts())), stop=0)
