from __future__ import annotations

from collections.abc import Callable, Iterator

import helpers
import pytest
import torch
from papers.extractive.tiny import KINDS, Decoder, decoder, facts

from mechcore.papers.extractive.encoded import EncodedFacts, prompt_batch
from mechcore.papers.extractive.passes import Question
from mechcore.papers.extractive.weights import snapshot


@pytest.fixture(scope="session")
def data() -> EncodedFacts:
    """Five facts for the tiny decoders, in prompts of 5, 6, 6, 7 and 5 tokens."""
    return facts()


@pytest.fixture
def question(data: EncodedFacts) -> Question:
    return Question(prompt_batch(data.prompt_ids), data.option_ids, data.answers, range(5))


@pytest.fixture(scope="session")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Decoder]:
    """Tiny decoders by kind, each loaded when first asked for."""
    known: dict[str, Decoder] = {}

    def get(kind: str) -> Decoder:
        if kind not in known:
            known[kind] = decoder(kind, tmp_path_factory.mktemp(kind))
        return known[kind]

    return get


_BY_KIND = [pytest.param(k, marks=[pytest.mark.hooked] * (k == "hooked")) for k in KINDS]


@pytest.fixture(params=_BY_KIND)
def tiny(request: pytest.FixtureRequest, decoders: Callable[[str], Decoder]) -> Iterator[Decoder]:
    """A tiny decoder of every kind in turn; a test gives it back as it was."""
    yield from _given_back(decoders(request.param))


@pytest.fixture
def tiny_bridge(decoders: Callable[[str], Decoder]) -> Iterator[Decoder]:
    """The tiny GPT-2 as a bridge; a test gives it back as it was."""
    yield from _given_back(decoders("bridge"))


@pytest.fixture
def tiny_llama(decoders: Callable[[str], Decoder]) -> Iterator[Decoder]:
    """The tiny Llama; a test gives it back as it was."""
    yield from _given_back(decoders("llama"))


@pytest.fixture(params=[p for p in _BY_KIND if p.values != ("llama",)])
def tiny_gpt2(
    request: pytest.FixtureRequest, decoders: Callable[[str], Decoder]
) -> Iterator[Decoder]:
    """The tiny GPT-2 as a bridge and as a HookedTransformer; a test gives it back as it was."""
    yield from _given_back(decoders(request.param))


def _given_back(case: Decoder) -> Iterator[Decoder]:
    before, hooks = snapshot(case.model), helpers.hook_counts(case.model)
    wanted = [p.requires_grad for p in case.model.parameters()]
    yield case
    assert helpers.hook_counts(case.model) == hooks
    assert [p.requires_grad for p in case.model.parameters()] == wanted
    for name, tensor in snapshot(case.model).items():
        assert torch.equal(tensor, before[name]), name
