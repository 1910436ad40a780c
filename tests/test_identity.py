"""Masks record the model that they were found on, and are used on another only on request."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Case, Cases, padded, texts
from pruning.oracles import QUICK, encoded_for
from safetensors.torch import save_file

from mechcore import evaluate, heuristic_core, masked
from mechcore.ablation import ComponentSet, as_sets, sweep
from mechcore.components import Mask, ModelShape, same_model
from mechcore.errors import InputError, MismatchError
from mechcore.identity import Identity
from mechcore.masking.means import MeanActivations
from mechcore.models.export import export_checkpoint
from mechcore.models.model_identity import ModelIdentity, check_masks
from mechcore.pruning import (
    METHODS,
    Request,
    Subnetwork,
    layer_matched,
    prune,
    random_subnetworks,
)
from mechcore.subnetworks.core import head_frequency, head_overlap

SHAPE = ModelShape(2, 4)
HERE = Identity(2, 4, 4, 16, "float32", "a" * 64)
OTHER = replace(HERE, weights="b" * 64)
FULL = Mask.full(SHAPE)
FOUND, FOREIGN = FULL.without("0.1").with_identity(HERE), FULL.without("1.2").with_identity(OTHER)


def found_on(case: Case) -> Mask:
    return FULL.without("0.1", "1.mlp").with_identity(ModelIdentity.of(case.model))


def subnetwork(mask: Mask, seed: int = 1) -> Subnetwork:
    return Subnetwork(mask, 0.1, seed, torch.zeros_like(mask.values))


@pytest.mark.parametrize("identity", [HERE, None])
def test_a_mask_comes_back_with_its_model(tmp_path: Path, identity: Any) -> None:
    path = tmp_path / "mask.safetensors"
    FOUND.with_identity(identity).save(path)
    back = Mask.load(path)
    assert (back, back.identity) == (FOUND, identity)
    assert Mask.load(path, any_model=True).identity is None


@pytest.mark.parametrize(
    "identity",
    [
        *("me", [], {}, 3, {**asdict(HERE), "more": 1}, {**asdict(HERE), "n_heads": "4"}),
        *({**asdict(HERE), "n_layers": True}, {**asdict(HERE), "weights": None}),
    ],
)
def test_an_identity_that_is_none_is_refused(tmp_path: Path, identity: Any) -> None:
    path = tmp_path / "mask.safetensors"
    save_file({"mask": FULL.values}, path, {**FULL.facts, "identity": json.dumps(identity)})
    for any_model in (False, True):
        with pytest.raises(InputError, match=r"not a mask written by mechcore \(found"):
            Mask.load(path, any_model=any_model)


def test_what_is_made_of_a_mask_is_of_its_model() -> None:
    batched = Mask.stack([FOUND, FULL])
    made = [FOUND.without("0.0"), FOUND.only("0.0"), ~FOUND, batched, batched[0], batched[:1]]
    made += [FOUND & FULL, FULL & FOUND, FULL | FOUND, FULL - FOUND, *batched]
    assert all(mask.identity == HERE for mask in made)
    assert (FULL & FULL).identity is None
    assert FOUND.with_identity(OTHER) == FOUND  # equal is what keeps the same


def test_masks_of_two_models_do_not_mix() -> None:
    many: list[Callable[[Mask, Mask], Any]] = [
        Mask.__and__,
        Mask.__or__,
        Mask.__sub__,
        lambda a, b: Mask.stack([FULL, a, b]),
        lambda a, b: heuristic_core([FULL, a, b]),
        lambda a, b: head_frequency([a, b], [0.1, 0.1]),
        lambda a, b: head_overlap([a, b], ["a", "b"]),
    ]
    for together in many:
        with pytest.raises(MismatchError, match=r"masks of different models: .* differ in weights"):
            together(FOUND, FOREIGN)
        together(FOUND, FOREIGN.with_identity(None))
    assert same_model([FULL, FOUND]) == HERE
    with pytest.raises(
        MismatchError,
        match=r": mask 1 and mask 3 were made .*.*aaaaaaaaaaaa against bbbbbbbbbbbb; use",
    ):
        same_model([FOUND, FULL, FOREIGN])


def test_a_mask_is_used_on_its_own_model_only(cases: Cases) -> None:
    case, other = cases.get("bert"), cases.get("roberta")
    batch, mask = padded(texts()), found_on(case)
    means = MeanActivations.compute(case.model, batch)
    with torch.no_grad(), masked(case.model, mask, means) as run:
        got = run(batch)
    with torch.no_grad(), masked(case.model, mask.with_identity(None), means) as run:
        assert torch.equal(got, run(batch))
    message = (
        "mask: made for another model, which differs in weights .* against "
        r".*, load it with any_model=True$"
    )
    batch = {name: tensor for name, tensor in batch.items() if name != "token_type_ids"}
    with pytest.raises(MismatchError, match=message), masked(other.model, mask, fill="zero"):
        pass
    labelled = {**batch, "labels": torch.zeros(len(batch["input_ids"]), dtype=torch.long)}
    for masks in (mask, Mask.stack([mask] * 2)):
        with pytest.raises(MismatchError, match=message):
            evaluate(other.model, labelled, mask=masks, fill="zero", in_domain=False)
    with masked(other.model, mask.with_identity(None), fill="zero"):
        pass


def test_sets_of_masks_are_those_of_the_model(cases: Cases, tmp_path: Path) -> None:
    case, other = cases.get("bert"), cases.get("roberta")
    mask = found_on(case)
    assert as_sets([mask], case.model) == [ComponentSet.of(["0.1", "1.mlp"])]
    small = Mask.full(ModelShape(1, 4)).without("0.1")  # its components are there, by chance
    data = [{**padded(texts()), "labels": torch.zeros(5, dtype=torch.long)}]
    for cut, message in ((mask, "made for another model"), (small, "mask has 1 layers x 4 heads")):
        for wanted in ([cut], {"a": cut}):
            with pytest.raises(MismatchError, match=message):
                sweep(other.model, wanted, data, fill="zero")


def test_a_mask_is_exported_from_its_own_checkpoint_only(cases: Cases, tmp_path: Path) -> None:
    case, mask = cases.get("bert"), found_on(cases.get("bert"))
    export_checkpoint(case.path, tmp_path / "own", mask, fill="zero")
    with pytest.raises(MismatchError, match="mask: made for another model"):
        export_checkpoint(cases.path("roberta"), tmp_path / "out", mask, fill="zero")
    assert not (tmp_path / "out").exists()
    free = mask.with_identity(None)
    export_checkpoint(cases.path("roberta"), tmp_path / "out", free, fill="zero")


def test_every_way_to_prune_says_on_which_model(cases: Cases, tmp_path: Path) -> None:
    model, data = cases.get("bert").model, encoded_for("bert")
    means, identity = MeanActivations.compute(model, data), ModelIdentity.of(model)
    settings = replace(QUICK, tolerance=1.0)
    subnetworks = prune(model, data, means, target_sparsities=0.4, seeds=1, preset=settings)
    subnetworks += METHODS["attribution"](Request(model, data, means, [0.4], [1], settings))
    subnetworks += layer_matched(subnetworks)
    for i, pruned in enumerate(subnetworks):
        pruned.save(tmp_path / f"{i}.safetensors")
        back = Subnetwork.load(tmp_path / f"{i}.safetensors")
        for mask in (pruned.mask, back.mask, Mask.load(tmp_path / f"{i}.safetensors")):
            assert mask.identity is not None
            assert not identity.differences(mask.identity)
        assert Subnetwork.load(tmp_path / f"{i}.safetensors", any_model=True).mask.identity is None
        check_masks([back.mask], model)
    (drawn,) = random_subnetworks(SHAPE, target_sparsities=0.4, seeds=1)  # of any of the shape
    assert drawn.mask.identity is None
