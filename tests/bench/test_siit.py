"""The training's interventions against those of other code, and its losses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mechcore.bench import siit
from mechcore.bench.library import PROGRAMS
from mechcore.bench.programs import Program, values_of
from mechcore.components import Mask, ModelShape
from mechcore.masking.interventions import masked
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.running import hook_mlp_out, hook_z

KINDS = {"encoder": "majority", "decoder": "equality"}
STEPS = 120


class Made:
    """An untrained model with base and source texts, and the same model as a bridge."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.program = program
        tokenizer = siit.tokenizer_of(program)
        self.plain = siit.untrained(program, tokenizer, seed=1).eval()
        self.plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        self.bridge = load_model(folder)
        texts = program.texts("train", 24, 0)
        others = program.pairs(texts, "train", 1)
        self.slots, self.other_slots = values_of(texts), values_of(others)
        self.base, self.source = (siit.batch_of(tokenizer, each) for each in (texts, others))


@pytest.fixture(scope="module", params=KINDS)
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(PROGRAMS[KINDS[request.param]], tmp_path_factory.mktemp("model"))


def difference(logits: Tensor) -> Tensor:
    return logits[:, 1] - logits[:, 0]


def test_interventions_are_those_of_hooks_on_a_bridge(made: Made) -> None:
    assert 0 < made.base["attention_mask"].double().mean() < 1  # with padding
    shape = ModelShape.of(made.bridge)
    generator = torch.Generator().manual_seed(0)
    plan = torch.randint(3, (24, shape.n_layers, shape.n_heads + 1), generator=generator)
    names = [hook(i) for i in range(shape.n_layers) for hook in (hook_z, hook_mlp_out)]
    kept: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: Any) -> None:
        kept[hook.name] = value

    mask = made.source["attention_mask"]
    with torch.no_grad():
        made.bridge.run_with_hooks(
            made.source["input_ids"], attention_mask=mask, fwd_hooks=[(n, keep) for n in names]
        )

    def replace(value: Tensor, hook: Any) -> Tensor:
        key = next(name for name in kept if name == hook.name)
        layer = int(key.split(".")[1])
        other, out = kept[key], value.clone()
        for row in range(24):
            for column in range(shape.n_heads + 1):
                code = int(plan[row, layer, column])
                heads = value.ndim == 4
                if code == siit.KEEP or heads == (column == shape.n_heads):
                    continue
                place = (row, slice(None), column) if heads else (row,)
                of_one = other[:, :, column] if heads else other
                tokens = [of_one[i, j] for i in range(24) for j in range(int(mask[i].sum()))]
                mean = torch.stack(tokens).mean(0).expand_as(out[place])
                out[place] = other[place] if code == siit.SOURCE else mean
        return out

    with torch.no_grad():
        expected = made.bridge.run_with_hooks(
            made.base["input_ids"],
            attention_mask=made.base["attention_mask"],
            fwd_hooks=[(name, replace) for name in names],
        )
        _, outputs = siit.recorded(made.plain, made.source)
        means = siit.means_of(outputs, made.source)
        found = siit.patched(made.plain, made.base, plan, outputs, means)
        unchanged = siit.margins(made.plain, made.base)
    torch.testing.assert_close(found, difference(expected), atol=1e-4, rtol=1e-4)
    assert (found - unchanged).abs().min() > 1e-3


def test_means_and_their_ablation_are_those_of_the_package(made: Made) -> None:
    means = MeanActivations.compute(made.bridge, [made.source])
    shape = ModelShape.of(made.bridge)
    off = ["L0.H2", "L1.H0", "L1.MLP"]
    with masked(made.bridge, Mask.full(shape).without(*off), means) as run, torch.no_grad():
        expected = run(made.base)
    plan = torch.zeros(24, shape.n_layers, shape.n_heads + 1, dtype=torch.long)
    plan[:, 0, 2] = plan[:, 1, 0] = plan[:, 1, -1] = siit.MEAN
    with torch.no_grad():
        _, outputs = siit.recorded(made.plain, made.source)
        ours = siit.means_of(outputs, made.source)
        found = siit.patched(made.plain, made.base, plan, outputs, ours)
    torch.testing.assert_close(found, difference(expected), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours[1, False][0, 0].double(), means.z[1], atol=1e-5, rtol=1e-4)


def test_hooks_are_gone_afterwards_also_after_an_error(made: Made) -> None:
    before = siit.margins(made.plain, made.base)
    with pytest.raises(IndexError):
        siit.patched(made.plain, made.base, torch.zeros(24, 0, 5), {}, {})
    assert torch.equal(siit.margins(made.plain, made.base), before)


def test_gradients_flow_through_the_runs_of_base_and_source_texts(made: Made) -> None:
    words = made.plain.get_input_embeddings().weight
    _, outputs = siit.recorded(made.plain, made.source)
    means = siit.means_of(outputs, made.source)
    plan = torch.zeros(24, 2, 5, dtype=torch.long)
    plan[:, 0, 1] = siit.SOURCE
    changed = siit.patched(made.plain, made.base, plan, outputs, means)
    row = (changed - siit.margins(made.plain, made.base)).abs().argmax()
    (gradient,) = torch.autograd.grad(changed[row], words)
    sources, bases = (set(batch["input_ids"][row].tolist()) for batch in (made.source, made.base))
    only_source, only_base = sources - bases, bases - sources
    assert gradient[list(only_source)].abs().sum() > 0
    assert gradient[list(only_base)].abs().sum() > 0


def test_targets_are_answers_with_interchanged_and_absent_variables() -> None:
    program = PROGRAMS["conjunction"]  # first in L0.H1, second in L0.H3, both in L1.MLP
    base = {"colour": torch.tensor([1] * 5), "size": torch.tensor([1] * 5)}
    source = {"colour": torch.tensor([-1] * 5), "size": torch.tensor([1] * 5)}
    plan = torch.zeros(5, 2, 5, dtype=torch.long)
    plan[1, 0, 1] = siit.SOURCE
    plan[2, 0, 3] = siit.SOURCE
    plan[3, 1, -1] = siit.MEAN
    plan[4, 0, 0] = siit.SOURCE  # of no variable
    assert siit.targets(program, plan, base, source).tolist() == [1, -1, 1, 0, 1]


def test_plans_intervene_on_variables_on_other_components_and_on_both() -> None:
    program = PROGRAMS["conjunction"]
    own = siit.aligned(program)
    assert own.nonzero().tolist() == [[0, 1], [0, 3], [1, 4]]
    assert siit.aligned(program, ["second"]).nonzero().tolist() == [[0, 3]]
    plan, strict = siit.drawn_plan(program, 300, torch.Generator().manual_seed(0))
    on_own, on_others = (plan[:, which] != siit.KEEP for which in (own, ~own))
    assert torch.equal(strict, torch.arange(300) % 3 > 0)
    assert not on_others[~strict].any()
    assert not on_own[1::3].any()
    assert on_own[2::3].any()
    assert {1, 2, 3} <= set(on_own[0::3].sum(1).tolist())
    assert {1, 7} <= set(on_others[1::3].sum(1).tolist())
    assert set(plan.unique().tolist()) == {siit.KEEP, siit.SOURCE, siit.MEAN}


def test_a_short_training_lowers_all_three_losses() -> None:
    program = PROGRAMS["copy"]
    tokenizer = siit.tokenizer_of(program)
    model = siit.untrained(program, tokenizer, seed=0)
    rows: list[list[float]] = []
    siit.train(
        model,
        tokenizer,
        program,
        steps=STEPS,
        pool=500,
        log=lambda found: rows.append(
            [x.item() for x in (found.behaviour, found.interchange, found.strictness)]
        ),
    )
    start, end = torch.tensor(rows[:5]).mean(0), torch.tensor(rows[-5:]).mean(0)
    assert len(rows) == STEPS
    assert (end < 0.8 * start).all(), (start, end)
