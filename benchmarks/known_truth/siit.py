"""Trains small transformers to implement a program: each variable in one component, and only there.

Strict interchange-intervention training (SIIT, arXiv 2407.14494) of interchange interventions (IIT,
arXiv 2112.00826): outputs of components in the run of a base text are replaced, and the answer must
be the program's. There are three losses:

1. behaviour: without intervention, the answer is the program's;
2. interchange: components aligned with variables take their outputs from the run of a source text,
   and the answer is the program's with these variables' values in the source;
3. strictness: interventions on all other components do not change the answer.

Here the margin of an answer is regressed on `MARGIN` nats (0 where the program cannot know), and
components are not only interchanged but also ablated to their means, alone and in sets, as mechcore
does: the program's variable is then absent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from programs import LABELS, Program, Text, values_of
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from mechcore import progress
from mechcore.components import Component
from mechcore.errors import InputError
from mechcore.session import plain_session
from mechcore.worlds.small_gpt2 import widen, word_tokenizer

MARGIN = 4.0
"""Target margin of every answer, in nats."""
WIDTH, N_HEADS = 48, 4
MAX_LENGTH = 16
"""Positions of the models."""
BATCH_SIZE = 128
STEPS = 2000
LEARNING_RATE = 1e-3
WARMUP = 200
POOL = 20_000
"""Number of texts that batches are drawn from."""

KEEP, SOURCE, MEAN = 0, 1, 2
"""Intervention on a component's output: none, that of the source, or the mean."""

Outputs: TypeAlias = dict[tuple[int, bool], Float[Tensor, "row pos component dim"]]
"""By layer and whether they are the MLP's, which is one component, or the heads'."""
Plan: TypeAlias = Int[Tensor, "row layer component"]
"""Interventions on all components, heads first."""
Batch: TypeAlias = dict[str, Tensor]


# -- the model ------------------------------------------------------------------------------------


@plain_session()
@torch.random.fork_rng([])
def untrained(program: Program, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A small model with random weights and classes ``no`` and ``yes``."""
    torch.default_generator.manual_seed(seed)
    labels = dict(enumerate(LABELS.values()))
    common: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "initializer_range": 0.1,
        "id2label": labels,
        "label2id": {name: i for i, name in labels.items()},
        "pad_token_id": tokenizer.pad_token_id,
        "attn_implementation": "eager",
    }
    model: PreTrainedModel
    if program.architecture == "encoder":
        config = BertConfig(
            hidden_size=WIDTH,
            num_hidden_layers=program.n_layers,
            num_attention_heads=N_HEADS,
            intermediate_size=2 * WIDTH,
            max_position_embeddings=MAX_LENGTH,
            type_vocab_size=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            **common,
        )
        model = BertForSequenceClassification(config)
    else:
        model = GPT2ForSequenceClassification(
            GPT2Config(
                n_embd=WIDTH,
                n_layer=program.n_layers,
                n_head=N_HEADS,
                n_inner=2 * WIDTH,
                n_positions=MAX_LENGTH,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=None,
                eos_token_id=None,
                **common,
            )
        )
    widen(model)
    return model


def tokenizer_of(program: Program) -> PreTrainedTokenizerBase:
    """One token per word; every text starts with ``[BOS]``, where encoders answer."""
    return word_tokenizer(program.words, begins=True)


def batch_of(tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text]) -> Batch:
    """Token ids and attention mask, padded on the right."""
    rows = tokenizer([" ".join(text.words) for text in texts], padding=True, return_tensors="pt")
    return {"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"]}


# -- interventions ---------------------------------------------------------------------------------


def _layers(model: PreTrainedModel) -> list[tuple[nn.Module, nn.Module]]:
    """For every layer, the projection that reads the heads' outputs, and the MLP's last module."""
    layers: Any
    if isinstance(model, BertForSequenceClassification):
        layers = model.bert.encoder.layer
        return [(layer.attention.output.dense, layer.output.dense) for layer in layers]
    if isinstance(model, GPT2ForSequenceClassification):
        layers = model.transformer.h
        return [(layer.attn.c_proj, layer.mlp) for layer in layers]
    raise InputError(
        f"model: found {type(model).__name__}; expected BertForSequenceClassification or "
        "GPT2ForSequenceClassification"
    )


@contextmanager
def _edited(
    model: PreTrainedModel, edit: Callable[[tuple[int, bool], Tensor], Tensor]
) -> Iterator[None]:
    """Pass every component's output through ``edit`` inside the block."""

    def of_heads(layer: int) -> Callable[..., tuple[Tensor, ...]]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            by_head = inputs[0].unflatten(-1, (model.config.num_attention_heads, -1))
            return (edit((layer, False), by_head).flatten(-2), *inputs[1:])

        return hook

    def of_mlp(layer: int) -> Callable[..., Tensor]:
        def hook(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            return edit((layer, True), output[:, :, None])[:, :, 0]

        return hook

    handles = []
    try:
        for i, (heads, mlp) in enumerate(_layers(model)):
            handles.append(heads.register_forward_pre_hook(of_heads(i)))
            handles.append(mlp.register_forward_hook(of_mlp(i)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def margins(model: PreTrainedModel, batch: Batch) -> Float[Tensor, " row"]:
    """Log-odds of yes, in nats."""
    logits = model(**batch).logits
    return logits[:, 1] - logits[:, 0]


def recorded(model: PreTrainedModel, batch: Batch) -> tuple[Float[Tensor, " row"], Outputs]:
    """Log-odds of yes, and the outputs of all components."""
    outputs: Outputs = {}

    def keep(place: tuple[int, bool], output: Tensor) -> Tensor:
        outputs[place] = output
        return output

    with _edited(model, keep):
        return margins(model, batch), outputs


def means_of(outputs: Outputs, batch: Batch) -> Outputs:
    """Means over all tokens of all rows, without padding; [1, 1, component, dim]."""
    real = batch["attention_mask"].bool()
    return {place: output[real].mean(0)[None, None] for place, output in outputs.items()}


def patched(
    model: PreTrainedModel, batch: Batch, plan: Plan, source: Outputs, means: Outputs
) -> Float[Tensor, " row"]:
    """Log-odds of yes with components' outputs replaced, row by row.

    Args:
        model: a plain classifier.
        batch: the base texts.
        plan: `KEEP`, `SOURCE` or `MEAN` for every row and component.
        source: outputs in the runs of the source texts, which have the same lengths.
        means: see `means_of`.
    """

    def edit(place: tuple[int, bool], own: Tensor) -> Tensor:
        layer, is_mlp = place
        codes = plan[:, layer, -1:] if is_mlp else plan[:, layer, :-1]
        codes = codes[:, None, :, None]
        other = torch.where(codes == MEAN, means[place], source[place])
        return torch.where(codes == KEEP, own, other)

    with _edited(model, edit):
        return margins(model, batch)


def _column(component: Component) -> tuple[int, int]:
    return component.layer, -1 if component.head is None else component.head


def targets(
    program: Program, plan: Plan, base: Mapping[str, Tensor], source: Mapping[str, Tensor]
) -> Float[Tensor, " row"]:
    """The program's answers under a plan, given the slots of base and source texts."""
    of_source = program.run(source)
    swaps = {}
    for variable in program.variables:
        layer, column = _column(variable.component)
        codes = plan[:, layer, column]
        value = torch.where(codes == SOURCE, of_source[variable.name], variable.absent)
        swaps[variable.name] = (codes != KEEP, value)
    return program.run(base, swaps)[program.answer].float()


# -- training --------------------------------------------------------------------------------------


def aligned(
    program: Program, names: Collection[str] | None = None
) -> Bool[Tensor, "layer component"]:
    """The components aligned with any variable, or with the named ones."""
    components = torch.zeros(program.n_layers, N_HEADS + 1, dtype=torch.bool)
    for variable in program.variables:
        components[_column(variable.component)] |= names is None or variable.name in names
    return components


def drawn_plan(program: Program, n: int, generator: torch.Generator) -> tuple[Plan, Tensor]:
    """Random interventions.

    A third of the rows intervenes on variables, a third on the other components, a third on both:
    on one of them, on each with even chance, or on all.

    Returns:
        The plan, and the rows for strictness, which intervene on other components.
    """
    own = aligned(program).flatten()

    def some(columns: Tensor) -> Tensor:
        among = columns.nonzero()[:, 0]
        chances = torch.rand(n, len(among), generator=generator)
        one = chances == chances.amax(1, keepdim=True)
        kind = torch.randint(3, (n, 1), generator=generator)
        chosen = torch.zeros(n, len(own), dtype=torch.bool)
        chosen[:, among] = torch.where(kind == 0, one, (kind == 1) & (chances < 0.5) | (kind == 2))
        return chosen

    group = torch.arange(n)[:, None] % 3
    chosen = some(own) & (group != 1) | some(~own) & (group != 0)
    whole = torch.randint(SOURCE, MEAN + 1, (n, 1), generator=generator)
    single = torch.randint(SOURCE, MEAN + 1, (n, len(own)), generator=generator)
    mixed = torch.rand(n, 1, generator=generator) < 0.25
    codes = torch.where(chosen, torch.where(mixed, single, whole), KEEP)
    return codes.unflatten(1, (program.n_layers, -1)), group[:, 0] > 0


@dataclass(frozen=True)
class Losses:
    """Mean squared errors of margins, in units of `MARGIN` squared."""

    behaviour: Tensor
    interchange: Tensor
    strictness: Tensor


def losses(
    model: PreTrainedModel,
    program: Program,
    base: tuple[Batch, Mapping[str, Tensor]],
    source: tuple[Batch, Mapping[str, Tensor]],
    plan: Plan,
    strict: Tensor,
) -> Losses:
    """The three losses; gradients flow through the runs of base and source texts.

    Args:
        model: a plain classifier.
        program: the program to implement.
        base: base texts as a batch, and the values of their slots.
        source: source texts likewise, padded like the base texts.
        plan: interventions on all components in the run of the base texts.
        strict: the rows for strictness.
    """
    margin, outputs = recorded(model, source[0])
    right = program.run(source[1])[program.answer]
    behaviour = (margin / MARGIN - right).square().mean()
    changed = patched(model, base[0], plan, outputs, means_of(outputs, source[0])) / MARGIN
    errors = (changed - targets(program, plan, base[1], source[1])).square()
    return Losses(behaviour, errors[~strict].mean(), errors[strict].mean())


class _Pool:
    """Texts for training, drawn in pairs of the same length."""

    def __init__(self, program: Program, tokenizer: PreTrainedTokenizerBase, n: int, seed: int):
        texts = sorted(program.texts("train", n, seed), key=lambda text: len(text.words))
        self.batch, self.slots = batch_of(tokenizer, texts), values_of(texts)
        lengths = self.batch["attention_mask"].sum(1)
        _, self.which, self.counts = lengths.unique(return_inverse=True, return_counts=True)
        self.starts = self.counts.cumsum(0) - self.counts

    def pairs(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Rows of base texts and of source texts."""
        base = torch.randint(len(self.which), (n,), generator=generator)
        which = self.which[base]
        share = torch.rand(n, generator=generator)
        source = self.starts[which] + (share * self.counts[which]).long()
        return base, source

    def rows(self, index: Tensor) -> tuple[Batch, dict[str, Tensor]]:
        """These texts and their slots, padded to the longest of the pool."""
        batch = {name: tensor[index] for name, tensor in self.batch.items()}
        return batch, {name: tensor[index] for name, tensor in self.slots.items()}


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    program: Program,
    *,
    steps: int = STEPS,
    learning_rate: float = LEARNING_RATE,
    seed: int = 0,
    pool: int = POOL,
    log: Callable[[Losses], None] | None = None,
) -> None:
    """Train a model in place.

    Args:
        model: a plain classifier, see `untrained`.
        tokenizer: of the program's words.
        program: the program to implement.
        steps: of the optimiser.
        learning_rate: the peak, after a warm-up and before a linear decay.
        seed: of texts and interventions.
        pool: number of texts that batches are drawn from.
        log: called with the losses of every step.
    """
    texts = _Pool(program, tokenizer, pool, seed)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARMUP, 1.02 - step / steps)
    )
    model.train()
    with progress.bar("training", steps) as advance:
        for _ in range(steps):
            base, source = (texts.rows(index) for index in texts.pairs(BATCH_SIZE, generator))
            plan, strict = drawn_plan(program, BATCH_SIZE, generator)
            parts = losses(model, program, base, source, plan, strict)
            optimizer.zero_grad()
            (parts.behaviour + parts.interchange + parts.strictness).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            advance()
            if log is not None:
                log(parts)
    model.eval()
