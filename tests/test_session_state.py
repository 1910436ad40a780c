"""What a session is in does not reach mechcore's numbers, and mechcore leaves it as it was."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
import torch

import mechcore
from mechcore import (
    Mask,
    MeanActivations,
    evaluate,
    load_model,
    load_tokenizer,
    masked,
    prune,
)
from mechcore.ablation import (
    ablate,
    ablation_table,
    find_superadditive,
    information_table,
    race,
    sets,
)
from mechcore.ablation.paths import readers_of
from mechcore.attention import attention_examples, categorize_heads
from mechcore.bench import faithfulness_of
from mechcore.bench import methods as bench
from mechcore.components import ModelShape
from mechcore.evaluation.evaluate import paired_change
from mechcore.main_study.config import StudyConfig
from mechcore.models.encoded import as_encoded
from mechcore.models.export import export_checkpoint
from mechcore.models.protocol import forward
from mechcore.papers.cognitive.probing import activations_at, decode
from mechcore.pruning import (
    PruneSettings,
    Request,
    attribution_scores,
    layer_matched,
    random_subnetworks,
)
from mechcore.pruning.methods import attribution, ugs
from mechcore.session import plain_session
from mechcore.subnetworks.core import heuristic_core
from mechcore.training import TrainSettings, classification, new_model, train
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import tiny_encoder_dir
from mechcore.worlds.small_gpt2 import small_gpt2
from mechcore.worlds.tiny_world import LABELS

FEW = PruneSettings(steps=6, warmup=1, batch_size=8, tolerance=1, precision="float32")
FEWER = tiny_world.generate("train", 6, seed=5)
TRAIN, ID = (tiny_world.generate(split, 16, seed=5) for split in ("train", "id"))
HOOKED = ("L0.H1", "L0.H3", "L1.MLP", "L2.H4", "L3.H2")


@contextmanager
def setting(put: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    """A state that a function sets."""
    put(value)
    try:
        yield
    finally:
        put(before)


@contextmanager
def error_on_numpy() -> Iterator[None]:
    with np.errstate(all="raise"):
        yield


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no gradients": torch.no_grad,
    "gradients off": lambda: setting(torch.set_grad_enabled, False, True),
    "inference": torch.inference_mode,
    "float64": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "bfloat16": lambda: setting(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "tensor type": lambda: setting(
        torch.set_default_tensor_type, torch.DoubleTensor, torch.FloatTensor
    ),
    "device": lambda: setting(torch.set_default_device, "meta", None),
    "device block": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "medium products": lambda: setting(torch.set_float32_matmul_precision, "medium", "highest"),
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "strict numpy": error_on_numpy,
    "seeded": lambda: setting(torch.manual_seed, 7, 0),
}


def state_of_session() -> tuple[Any, ...]:
    """All that mechcore could leave changed."""
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
        np.geterr(),
        random.getstate(),
        str(np.random.get_state()),  # noqa: NPY002
        torch.get_rng_state().tolist(),
    )


class Given:
    """A model, data and means, made in the state that they are asked about in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = load_model(tiny_encoder_dir())
        self.data = as_encoded(self.model, ID, split="id", words=True)
        means = MeanActivations.compute(self.model, TRAIN)
        means.save(folder / "means.safetensors")
        self.means = MeanActivations.load(folder / "means.safetensors", self.model)
        self.all = self.model, self.data, self.means


def answers(g: Given) -> Any:
    batch = next(iter(g.data.batches(16)))
    full = Mask.full(g.model)
    mask = Mask.stack([full, *(full.without(name) for name in HOOKED), full.only(*HOOKED)])
    with masked(g.model, mask, g.means, "resample") as run:
        logits = run(batch)
    return [forward(g.model, batch), logits, mask.values, mask.sparsity, g.means.z]


def accuracy(g: Given) -> Any:
    full = evaluate(g.model, g.data)
    other = evaluate(g.model, g.data, mask=Mask.full(g.model).without(*HOOKED), means=g.means)
    return [full.logits, other.table(), paired_change(full, other, "margin", n_resamples=20)]


def sweeps(g: Given) -> Any:
    wanted = sets.singles(g.model, heads=False)
    engines: tuple[Literal["tree", "restart", "reference"], ...] = ("tree", "restart", "reference")
    swept = [ablate(g.model, wanted, g.data, g.means, engine=engine) for engine in engines]
    return [swept, ablation_table(swept[0], n_resamples=20), information_table(swept[0])]


def searches(g: Given) -> Any:
    options: dict[str, Any] = {"components": HOOKED[:3], "n_resamples": 20}
    tables = [
        find_superadditive(*g.all, screening_by=by, max_size=2, **options).tables
        for by in ("screening", "exact")
    ]
    raced = race(g.model, sets.pairs(HOOKED), g.data, g.means, least=0.1)
    return [tables, raced]


def paths(g: Given) -> Any:
    cuts = sets.paths(HOOKED[:2], ["L2.H0", "L3.MLP", "answer"], g.model)
    ablations = ablate(g.model, cuts, g.data, g.means)
    return [ablations, readers_of(g.model, HOOKED[:1], g.data, g.means)]


def attention(g: Given) -> Any:
    tokenizer = load_tokenizer(tiny_encoder_dir())
    table = categorize_heads(g.model, g.data, tokenizer=tokenizer, resamples=20)
    return [table, attention_examples(g.model, g.data, tokenizer, ["L0.H1"])]


def states(g: Given) -> Any:
    activations = activations_at(g.model, g.data, ["blocks.1.hook_mlp_out"])
    labels = g.data.examples.frame["label"].tolist()
    return [activations, decode(activations["blocks.1.hook_mlp_out"][:, 0], labels, shuffles=2)]


def pruned(g: Given) -> Any:
    kept = prune(g.model, TRAIN, g.means, target_sparsities=0.3, seeds=(1, 2), preset=FEW)
    drawn = random_subnetworks(ModelShape.of(g.model), target_sparsities=0.3, seeds=1)
    return [kept, drawn, layer_matched(kept), heuristic_core([s.mask for s in kept])]


def ranked(g: Given) -> Any:
    scores = [attribution_scores(g.model, FEWER, g.means)]
    curve = faithfulness_of(g.model, scores[0], g.data, g.means)
    kept = attribution(Request(g.model, FEWER, g.means, [0.3], [1], FEW))
    return [scores, kept, curve]


def ranked_slowly(g: Given) -> Any:
    short: dict[str, Any] = {"optimal": {"steps": 2}, "ugs": {"steps": 3, "n_masks": 4}}
    return [
        ranking.scores(g.model, FEWER, g.means, **short.get(ranking.name, {}))
        for ranking in (*bench.RANKINGS, attribution, ugs)
    ]


def checkpoints(g: Given) -> Any:
    export_checkpoint(tiny_encoder_dir(), g.folder / "out", Mask.full(g.model), g.means)
    exported = load_model(g.folder / "out")
    fresh, tokenizer = new_model(tiny_encoder_dir(), classes=LABELS, from_scratch=True, seed=1)
    settings = TrainSettings(
        steps=3, batch_size=8, warmup_steps=1, evaluate_every=3, checkpoint_every=3
    )
    objective = classification(fresh, tokenizer)
    history = train(fresh, objective, TRAIN, {"id": ID}, g.folder / "run", settings)
    words = tiny_world.decoder_tokenizer()
    untrained = small_gpt2(words, 1, width=16, n_heads=2, end=words.sep_token_id).state_dict()
    return [untrained, dict(exported.named_parameters()), dict(fresh.named_parameters()), history]


def jobs(g: Given) -> Any:
    data = {split: tiny_world.generate(split, 16, seed=5).frame for split in ("train", "id", "ood")}
    config = StudyConfig(n_resamples=20, prune=FEW, target_sparsities=(0.3,), seeds=(1,))
    lab = mechcore.open("embedded", **data, store=g.folder / "store", settings=config)
    return [lab.sweep().table, lab.subnetworks(), lab.means.z]


def flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Everything that a result holds, bit for bit."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        yield place, (str(value.dtype), value.shape, value.tobytes())
    elif isinstance(value, pd.DataFrame):
        yield place, (value.dtypes.astype(str).to_dict(), value.to_csv())
    elif is_dataclass(value):
        for field in fields(value):
            yield from flat(getattr(value, field.name), f"{place}.{field.name}")
    elif isinstance(value, Mask):
        yield from flat(value.values, f"{place}.values")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(item, f"{place}[{key}]")
    elif isinstance(value, (list, tuple, np.ndarray)):
        for i, item in enumerate(value):
            yield from flat(item, f"{place}[{i}]")
    else:
        yield place, repr(value)


Ask = Callable[[Given], Any]
Plain = Callable[[Ask], dict[str, Any]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """What is right: the answers in the state of a new process."""
    given = Given(tmp_path_factory.mktemp("plain"))
    return cache(lambda ask: dict(flat(ask(given))))


# One state among several is as good as alone, and many runs of the same questions are slow.
TOGETHER: list[Any] = [
    pytest.param(
        (answers, accuracy, pruned, attention),
        ["inference", "float64", "device", "autocast", "medium products"],
        marks=pytest.mark.everyday,
    ),
    ((answers, sweeps, pruned), ["no gradients", "bfloat16", "device block", "medium products"]),
    (
        (accuracy, attention, states, ranked),
        ["gradients off", "tensor type", "deterministic", "strict numpy", "seeded"],
    ),
    (
        (searches, paths, ranked_slowly, checkpoints, jobs),
        ["inference", "float64", "device", "autocast", "medium products", "strict numpy"],
    ),
]


@pytest.mark.parametrize(("asked", "names"), TOGETHER)
def test_numbers_do_not_depend_on_the_state_of_the_session(
    asked: tuple[Ask, ...], names: list[str], plain: Plain, tmp_path: Path
) -> None:
    expected = {ask: plain(ask) for ask in asked}
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(STATES[name]())
        before = state_of_session()
        given = Given(tmp_path)
        for ask in asked:
            values = dict(flat(ask(given)))
            wrong = [k for k, v in expected[ask].items() if values.get(k) != v]
            assert not wrong, (ask.__name__, wrong)
            assert state_of_session() == before, ask.__name__


def test_gradients_flow_into_mask_values_as_the_session_has_it(tmp_path: Path) -> None:
    model = load_model(tiny_encoder_dir())
    with torch.inference_mode():  # what is made here is used outside
        means = MeanActivations.compute(model, FEWER)
        outer = Mask(torch.ones(ModelShape.of(model).n_layers, 7))
    batch = next(iter(as_encoded(model, FEWER, split="train").batches(6)))
    values = outer.values.clone().requires_grad_()
    for recorded in (True, False):
        with torch.set_grad_enabled(recorded), masked(model, Mask(values), means) as run:
            for logits in (run(batch), model(batch["input_ids"])):
                assert logits.requires_grad is recorded
                assert not recorded or bool(torch.autograd.grad(logits.sum(), values)[0].any())


@pytest.mark.everyday
def test_the_state_comes_back_after_an_error_and_threads_do_not_disturb_one_another() -> None:
    inside, leave = threading.Event(), threading.Event()

    def stay() -> torch.dtype:
        with plain_session():
            inside.set()
            leave.wait(60)
            return torch.get_default_dtype()

    with STATES["float64"](), STATES["autocast"](), torch.inference_mode():
        before = state_of_session()
        with pytest.raises(ZeroDivisionError), plain_session():
            _ = 1 // 0
        assert state_of_session() == before
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(stay)
            inside.wait(60)
            with plain_session():
                pass
            leave.set()
            assert other.result() == torch.float32
        assert state_of_session() == before
