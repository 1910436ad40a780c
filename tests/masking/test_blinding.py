"""Cut paths against plain torch loops over Hugging Face's layers, ablation and written-out sums."""

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path as File
from typing import Any

import helpers
import pytest
import torch
import transformers as hf
from helpers import hook_counts, padded, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mechcore.components import Component, Mask, ModelShape
from mechcore.components.names import Path, PathSet, Receiver
from mechcore.errors import InputError, MechcoreError
from mechcore.masking.blinding import blind, runs_in_parallel
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.protocol import forward

QKV = ("query", "key", "value")
N_LAYERS = 3
HEADS = helpers.N_HEADS
SIZES: dict[str, Any] = {
    "hidden_size": helpers.D_MODEL,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "max_position_embeddings": 48,
    "vocab_size": helpers.VOCABULARY,
    "pad_token_id": helpers.PAD,
    "num_labels": 3,
    "bos_token_id": None,
    "eos_token_id": None,
}


@dataclass
class Plain:
    """A Hugging Face model whose components are computed one after another.

    What each of them reads is the embedding and the outputs of the components before it, added and
    normalised as the architecture says; of those that it is blind to, the fill.
    """

    model: Any
    layers: Sequence[Any]
    mlp: Callable[[Any], nn.Module]
    project: Callable[[Any], nn.Module]
    inputs: Callable[[Any], dict[str, nn.Module]] = lambda layer: {}
    after: Callable[[Any, Tensor, Tensor], Tensor] = lambda layer, x, out: x + out
    after_mlp: Callable[[Any, Tensor, Tensor], Tensor] = lambda layer, x, out: x + out
    z: dict[int, Tensor] = field(default_factory=dict)
    out: dict[int, Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def run(self, ids: Tensor, paths: PathSet, z_fill: Tensor, mlp_fill: Tensor) -> Tensor:
        """Logits of one text [1, pos]."""
        self.ids, self.fills = ids, (z_fill, mlp_fill)
        senders = paths.senders
        for layer in range(N_LAYERS):
            blind_to = {
                (receiver.component.head, receiver.input): senders[receiver]
                for receiver in senders
                if receiver.component is not None and receiver.component.layer == layer
            }
            self.z[layer] = self._heads(layer, blind_to)
            of_mlp = blind_to.get((None, "all"), frozenset())
            self.out[layer] = self._at(layer, self._stream(layer, of_mlp, mlp=True))["mlp"]
        last = senders.get(Receiver(None), frozenset())
        return self._at(N_LAYERS - 1, self._stream(N_LAYERS - 1, last), last)["logits"]

    def _heads(self, layer: int, blind_to: dict[Any, Any]) -> Tensor:
        seen = self._at(layer, self._stream(layer))
        out = seen["z"].clone()
        for head in range(HEADS):
            if (head, "all") in blind_to:
                view = self._at(layer, self._stream(layer, blind_to[head, "all"]))
                out[:, :, head] = view["z"][:, :, head]
        swapped = {key: who for key, who in blind_to.items() if key[1] in "qkv"}
        if swapped:
            mixed = {name: seen[name].clone() for name in "qkv"}
            for (head, what), who in swapped.items():
                view = self._at(layer, self._stream(layer, who))
                size = helpers.D_MODEL // HEADS
                group = head * mixed[what].shape[-1] // size // HEADS
                columns = slice(group * size, (group + 1) * size)
                mixed[what][..., columns] = view[what][..., columns]
            whole = [head for head in range(HEADS) if (head, "all") in blind_to]
            z = self._at(layer, self._stream(layer), force=mixed)["z"]
            z[:, :, whole] = out[:, :, whole]
            out = z
        return out

    def _written(self, layer: int, blind_to: Collection[Component]) -> tuple[Tensor, Tensor]:
        """What attention and MLP of a layer add, for somebody blind to some."""
        z_fill, mlp_fill = self.fills
        z = self.z[layer].clone()
        for head in range(HEADS):
            if Component(layer, head) in blind_to:
                z[:, :, head] = z_fill[layer, head]
        attention = self.project(self.layers[layer])(z.flatten(-2))
        out = self.out.get(layer)
        if Component(layer) in blind_to:
            out = mlp_fill[layer].expand_as(attention)
        return attention, out

    def _stream(
        self, layer: int, blind_to: Collection[Component] = (), mlp: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The input of a layer, and what attention puts out there if an MLP is to read it."""
        x = self._embedding()
        for i in range(layer):
            attention, out = self._written(i, blind_to)
            x = self.after_mlp(self.layers[i], self.after(self.layers[i], x, attention), out)
        return x, self._written(layer, blind_to)[0] if mlp else None

    def _embedding(self) -> Tensor:
        kept = []

        def keep(module: Any, args: Any, kwargs: Any) -> None:
            kept.append(args[0] if args else kwargs["hidden_states"])

        handle = self.layers[0].register_forward_pre_hook(keep, with_kwargs=True)
        self.model(input_ids=self.ids)
        handle.remove()
        return kept[0]

    def _at(
        self,
        layer: int,
        stream: tuple[Tensor, Tensor | None],
        blind_to: Collection[Component] | None = None,
        force: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """What a layer's parts make of a stream; its outputs forced where that is asked for."""
        x, attention = stream
        block, seen = self.layers[layer], {}
        handles = []

        def enter(module: Any, args: Any, kwargs: Any) -> Any:
            if args:
                return (x, *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": x}

        def keep_z(module: Any, args: Any) -> None:
            seen["z"] = args[0].unflatten(-1, (HEADS, -1))

        forced = None if blind_to is None else self._written(layer, blind_to)

        def write(module: Any, args: Any, out: Tensor) -> Tensor | None:
            return attention if forced is None else forced[0]

        def write_mlp(module: Any, args: Any, out: Tensor) -> Tensor | None:
            seen["mlp"] = out
            return None if forced is None else forced[1]

        handles.append(block.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(self.project(block).register_forward_pre_hook(keep_z))
        handles.append(self.project(block).register_forward_hook(write))
        handles.append(self.mlp(block).register_forward_hook(write_mlp))
        for name, module in self.inputs(block).items():

            def read(module: Any, args: Any, out: Tensor, name: str = name) -> Tensor | None:
                seen[name] = out
                return None if force is None else force[name]

            handles.append(module.register_forward_hook(read))
        try:
            seen["logits"] = self.model(input_ids=self.ids).logits
        finally:
            for handle in handles:
                handle.remove()
        return seen


Kind = tuple[Any, Any, dict[str, Any], Callable[[Any], Plain]]
CLASSES: dict[str, Kind] = {
    "bert": (
        hf.BertConfig,
        hf.BertForSequenceClassification,
        {},
        lambda model: Plain(
            model,
            model.bert.encoder.layer,
            lambda b: b.output.dense,
            lambda b: b.attention.output.dense,
            lambda b: {name[0]: getattr(b.attention.self, name) for name in QKV},
            lambda b, x, out: b.attention.output.LayerNorm(x + out),
            lambda b, x, out: b.output.LayerNorm(x + out),
        ),
    ),
    "gpt2": (
        hf.GPT2Config,
        hf.GPT2ForSequenceClassification,
        {},
        lambda model: Plain(model, model.transformer.h, lambda b: b.mlp, lambda b: b.attn.c_proj),
    ),
    "llama": (
        hf.LlamaConfig,
        hf.LlamaForSequenceClassification,
        {"num_key_value_heads": 2},
        lambda model: Plain(
            model,
            model.model.layers,
            lambda b: b.mlp,
            lambda b: b.self_attn.o_proj,
            lambda b: {name[0]: getattr(b.self_attn, f"{name[0]}_proj") for name in QKV},
        ),
    ),
    "neox": (
        hf.GPTNeoXConfig,
        hf.GPTNeoXForSequenceClassification,
        {"use_parallel_residual": True},
        lambda model: Plain(
            model, model.gpt_neox.layers, lambda b: b.mlp, lambda b: b.attention.dense
        ),
    ),
}


@dataclass(frozen=True)
class Loaded:
    name: str
    model: Any
    plain: Plain
    means: MeanActivations

    @property
    def fills(self) -> tuple[Tensor, Tensor]:
        return self.means.z.float(), self.means.mlp.float()


Load = Callable[[str], Loaded]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Load:
    folder: File = tmp_path_factory.mktemp("checkpoints")

    @cache
    def load(name: str) -> Loaded:
        config, kind, own, plain = CLASSES[name]
        made = kind(config(**SIZES, **own, attn_implementation="eager")).eval()
        helpers.randomise(made)
        made.save_pretrained(folder / name)
        model = load_model(folder / name)
        means = MeanActivations.compute(model, padded(texts((7, 3, 8, 8), seed=9)))
        return Loaded(name, model, plain(made), means)

    return load


def logits(model: Any, paths: Any, means: Any, batch: Any, **options: Any) -> Tensor:
    with torch.no_grad(), blind(model, paths, means, **options) as run:
        return run(batch)


SETS = {
    "bert": (
        "L0.H1>L1.H2",
        "L0.H1+L0.MLP>L2.H0",
        "L0.H1>L0.MLP",
        "L1.H3>answer",
        "L0.H0+L0.H2>L1.H1+L1.MLP+L2.H3+answer",
        "L0.H0>L1.H1,L1.H1>L2.H3,L0.MLP>L2.MLP",
        "L0.H3>L1.H1.q",
        "L0.H3>L2.H1.k,L0.MLP>L2.H1.v,L1.H0>L2.H2.q",
        "L0.H3>L1.H1.q+L1.H1.v,L0.H2>L1.H0,L1.H1>L2.H2",
    ),
    "gpt2": (
        "L0.H1>L1.H2",
        "L0.H1>L0.MLP",
        "L0.MLP+L1.H3>answer",
        "L0.H0>L1.H1,L1.H1>L2.H3,L0.MLP>L2.MLP",
    ),
    "llama": (
        "L0.H1>L1.H2",
        "L0.H0+L0.H2>L1.H1+L1.MLP+L2.H3+answer",
        "L0.H3>L2.H1.q,L0.MLP>L2.H2.k",
    ),
    "neox": ("L0.H1>L1.H2", "L0.MLP>L1.MLP+L2.H0", "L2.H1+L2.MLP>answer", "L0.H2>L2.MLP"),
}


@pytest.mark.parametrize(("name", "paths"), [(n, p) for n, sets in SETS.items() for p in sets])
def test_cut_paths_are_those_of_a_plain_loop(loaded: Load, name: str, paths: str) -> None:
    of = loaded(name)
    rows = texts((6, 9))
    answers = logits(of.model, paths, of.means, padded(rows))
    for row, mine in zip(rows, answers, strict=True):
        expected = of.plain.run(row[None], PathSet.of(paths), *of.fills)[0]
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-5)
    whole = forward(of.model, padded(rows))
    assert (answers - whole).abs().max() > 1e-4  # something changed
    assert torch.equal(logits(of.model, PathSet.of([]), of.means, padded(rows)), whole)


def test_what_is_not_kept_is_cut_as_in_a_circuit_of_edges(
    loaded: Load,
) -> None:
    """A circuit keeps some edges; every receiver reads the fill along all others (AutoCircuit)."""
    of = loaded("gpt2")
    edges = every_path_out_of(ModelShape.of(of.model).components, of.model).paths
    kept = torch.rand(len(edges), generator=torch.Generator().manual_seed(2)) < 0.4
    cut = PathSet.of([edge for edge, keep in zip(edges, kept, strict=True) if not keep])
    row = texts((6,))[0]
    answers = logits(of.model, cut, of.means, padded([row]))
    expected = of.plain.run(row[None], cut, *of.fills)
    torch.testing.assert_close(answers, expected, rtol=0, atol=1e-5)


def test_without_norms_a_path_carries_its_difference_alone() -> None:
    """Attention only, every head attends to its own position, so all is a sum of products.

    One dimension a head; the stream has 2. Head 0 of layer 0 reads x0 and writes 2 x0 into x1; head
    1 writes 3 x0 into x1. Head 0 of layer 1 reads x1 and writes 5 x1 into x0. For x = (1, 10):
    layer 0 adds 2 and 3: x1 = 15. Layer 1 adds 75: x0 = 76. Blind to head 0 of layer 0 (filled with
    zero) it reads 13 and adds 65: x0 = 66, and x1 keeps its 15.
    """
    pytest.importorskip("transformer_lens.HookedTransformer")
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    sizes: dict[str, Any] = {"n_layers": 2, "n_heads": 2, "d_model": 2, "d_head": 1, "d_vocab": 2}
    sizes |= {"d_vocab_out": 2, "n_ctx": 1, "attn_only": True, "normalization_type": None}
    model = HookedTransformer(HookedTransformerConfig(**sizes, device="cpu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[0] = torch.tensor([1.0, 10.0])
        first, second = (block.attn for block in model.blocks)
        first.W_V[:, 0, 0] = 1.0
        first.W_O[0, 0, 1], first.W_O[1, 0, 1] = 2.0, 3.0
        second.W_V[0, 1, 0], second.W_O[0, 0, 0] = 1.0, 5.0
        model.unembed.W_U.copy_(torch.eye(2))
    batch = {"input_ids": torch.zeros(1, 1, dtype=torch.long)}
    sets = {"": (76, 15), "L0.H0>L1.H0": (66, 15), "L0.H0>L1.H0.v": (66, 15)}
    sets |= {"L0.H1>L1.H0": (61, 15), "L0.H0+L0.H1>L1.H0": (51, 15), "L0.H0>L1.H0.q": (76, 15)}
    sets |= {"L0.H0>answer": (76, 13), "L1.H0>answer": (1, 15), "L0.H0>L1.H0+answer": (66, 13)}
    for paths, expected in sets.items():
        answers = logits(model, PathSet.of(paths or []), None, batch, fill="zero")
        assert answers[0, 0].tolist() == list(expected), paths


@pytest.mark.parametrize("fill", ["mean", "zero", "resample"])
@pytest.mark.parametrize("name", CLASSES)
def test_all_paths_out_of_a_set_are_its_ablation(loaded: Load, name: str, fill: str) -> None:
    model = loaded(name).model
    model.double()
    try:
        means = MeanActivations.compute(model, padded(texts((7, 3, 8), seed=9)), n_samples=8)
        senders = [Component(0, 1), Component(0), Component(1, 2)]
        paths = every_path_out_of(senders, model)
        batch = padded(texts((6, 9, 2)))
        answers = logits(model, paths, means, batch, fill=fill, seed=3)
        mask = Mask.full(model).without(senders)
        with torch.no_grad(), masked(model, mask, means, fill, seed=3) as run:
            expected = run(batch)
        torch.testing.assert_close(answers, expected, rtol=0, atol=1e-12)
    finally:
        model.float()


def every_path_out_of(senders: Sequence[Component], model: Any) -> PathSet:
    parallel = runs_in_parallel(model)
    receivers = [*map(Receiver, ModelShape.of(model).components), Receiver(None)]
    paths = []
    for sender, receiver in itertools.product(senders, receivers):
        try:
            path = Path(sender, receiver)
            path.check(ModelShape.of(model), parallel=parallel)
        except InputError:
            continue
        paths.append(path)
    return PathSet.of(paths)


@pytest.mark.parametrize("what", ["k", "v"])
def test_a_group_is_blind_to_all_that_one_of_its_heads_is(loaded: Load, what: str) -> None:
    of = loaded("llama")  # heads 2 and 3 share keys and values
    apart, both = (
        logits(of.model, paths, of.means, padded(texts()))
        for paths in (
            f"L0.H1>L1.H2.{what},L0.MLP>L1.H3.{what},L0.H2>L1.H3.q",
            f"L0.H1+L0.MLP>L1.H2.{what},L0.H2>L1.H3.q",
        )
    )
    torch.testing.assert_close(apart, both, rtol=0, atol=1e-6)


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_sets_side_by_side_are_each_alone(loaded: Load, draw: st.DataObject) -> None:
    of = loaded(draw.draw(st.sampled_from(sorted(CLASSES))))
    possible = every_path_out_of(ModelShape.of(of.model).components, of.model).paths
    sets = [
        PathSet.of(draw.draw(st.lists(st.sampled_from(possible), max_size=4, unique=True)))
        for _ in range(3)
    ]
    batch = padded(texts((5, 3)), side=draw.draw(st.sampled_from(["left", "right"])))
    together = logits(of.model, sets, of.means, batch)
    for cut, mine in zip(sets, together, strict=True):
        alone = logits(of.model, cut, of.means, batch)
        torch.testing.assert_close(mine, alone, rtol=0, atol=1e-5)


def test_hooks_go_also_after_an_error(loaded: Load) -> None:
    of = loaded("bert")
    before = hook_counts(of.model)
    with pytest.raises(ZeroDivisionError), blind(of.model, "L0.H1>L1.H2", of.means):
        raise ZeroDivisionError
    assert hook_counts(of.model) == before
    cut, again = (blind(of.model, "L0.H1>L1.H2", of.means) for _ in range(2))
    with cut, pytest.raises(MechcoreError, match="already masked"), again:
        pass


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ("L1.H1>L0.H2", r"path L1.H1>L0.H2: the receiver does not run after the sender"),
        ("L1.H1>L1.H2", r"does not run after the sender; expected a sender in an earlier"),
        ("L1.MLP>L1.H2", "does not run after the sender"),
        ("L1.MLP>L1.MLP", "does not run after the sender"),
        ("L7.H1>answer", r"component L7.H1: out of range"),
        ("L0.H1>L1.H7", r"component L1.H7: out of range"),
        ("L0.H1", r"path 'L0.H1': cannot be read; write senders>receivers"),
        ("L0.H1>L1.H2>L2.H0", "cannot be read"),
        ("L0.H1>L1.MLP.q", "expected q, k or v of a head"),
        ("L0.H1>L1.H2.z", r"receiver 'L1.H2.z': cannot be read; write a head as L3.H9"),
        ("L0.H1>L1.H2+L1.H2.q", "is listed with all its inputs and as L1.H2.q"),
    ],
)
def test_what_is_refused(loaded: Load, paths: str, message: str) -> None:
    of = loaded("bert")
    before = hook_counts(of.model)
    with pytest.raises(InputError, match=message), blind(of.model, paths, of.means):
        pass
    assert hook_counts(of.model) == before


def test_side_by_side_no_sets_and_no_means_are_refused(loaded: Load) -> None:
    of, parallel = loaded("bert"), loaded("neox")
    assert runs_in_parallel(parallel.model)
    assert not runs_in_parallel(of.model)
    for model, paths, means, message in (
        (parallel.model, "L1.H0>L1.MLP", parallel.means, "attention and MLP of a layer run side"),
        (of.model, [], of.means, "no set of paths"),
        (of.model, "L0.H1>L1.H2", None, "needs means"),
    ):
        with pytest.raises(InputError, match=message), blind(model, paths, means):
            pass
