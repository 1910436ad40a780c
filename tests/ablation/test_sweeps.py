"""Sweeps: all engines against edited weights, what stops them, and what they go on from."""

import importlib
import itertools
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from ablation.few import Runs, assert_close, encoded, means_of
from helpers import Cases

from mechcore import progress
from mechcore.ablation import Ablations, ComponentSet, ablate, as_sets, sweep
from mechcore.ablation.engines.restart import RestartRunner
from mechcore.ablation.engines.tree import TreeRunner
from mechcore.components import Component, Mask, ModelShape
from mechcore.data.encoding import EncodedExamples
from mechcore.data.examples import Examples
from mechcore.errors import InputError, MechcoreError, MechcoreWarning, MismatchError
from mechcore.evaluation.evaluate import kl
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model
from mechcore.models.protocol import hook_mlp_out

ENGINE = importlib.import_module("mechcore.ablation.engines.engine")
"""The module, which the function of the same name hides."""

MODELS = (*helpers.ARCHITECTURES, "gpt2-lm")
NAMES = ("L0.H1", "L1.MLP", "L0.H0+L0.H2+L1.H3", "L0.MLP+L1.H0", "L1.H0+L1.H1+L1.H2+L1.H3")


@pytest.fixture(scope="module")
def bert(cases: Cases) -> dict[str, Any]:
    """What `ablate` needs first; not to be changed."""
    model, data = cases.get("bert").model, encoded()
    means = means_of(model, data, n_samples=16)
    return {"model": model, "sets": NAMES, "data": data, "means": means, "split": "ood"}


def assert_equal(swept: Ablations, expected: Ablations) -> None:
    """Bit for bit."""
    assert list(swept.without) == list(expected.without)
    assert torch.equal(swept.full.logits, expected.full.logits)
    for cut in expected.without:
        for name in ("correct", "margin", "kl", "logits"):
            values = [getattr(a.without[cut], name) for a in (swept, expected)]
            np.testing.assert_array_equal(*values)


def test_sets_are_lists_names_masks_components_and_dicts() -> None:
    mask = Mask.full(ModelShape(2, 4)).without("1.3", "0.mlp")
    given: dict[str, Any] = {
        "L0.H1+L1.H2": ["L1.H2", "0.1"],
        "L0.H1+L1.MLP": "L0.H1+L1.MLP",
        "L0.H3": "L0.H3",
        "L0.MLP+L1.H3": mask,
        "L1.MLP": Component(1),
        "L0.H0+L0.H2": ComponentSet.of(["0.0", "0.2"]),
        "L0.H3+L1.H0": ("1.0", Component(0, 3)),
        "nothing": [],
    }
    chosen = as_sets(iter(given.values()))
    assert [str(cut) for cut in chosen] == [*given]
    assert [cut.name for cut in chosen] == [None] * 8
    assert chosen[1].components == (Component(0, 1), Component(1))
    assert as_sets([]) == []
    mask = Mask.full(ModelShape(2, 4)).without("0.0", "1.0")
    named = as_sets({"core": "0.1+1.1", "rest": mask, "one": ["0.2"], "none": []})
    assert [str(cut) for cut in named] == ["core", "rest", "one", "none"]
    assert [len(cut) for cut in named] == [2, 2, 1, 0]
    # The name is only a label: two sets of the same components are the same.
    assert named[0] == ComponentSet.of(["0.1", "1.1"])
    assert str(ComponentSet.of(named[0], "again")) == "again"
    assert ComponentSet.of(named[0]).name == "core"


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("L0.H1", r"found str 'L0\.H1'; expected a list of sets; put it in brackets"),
        (Component(0, 1), r"found Component 'L0\.H1'; expected a list of sets"),
        (ComponentSet.of(["0.1"]), r"found ComponentSet 'L0\.H1'; expected a list of sets"),
        (Mask.full(ModelShape(2, 4)), "found Mask .*; expected a list of sets"),
        (["L0.H1", "head 3"], "head 3"),
        ([["L0.H1", "L0"]], "L0"),
        ([["0.1", "0.2"], "0.2+0.1"], r"L0\.H1\+L0\.H2 is given more than once; leave one out"),
        ({"a": ["0.1"], "b": "0.1"}, "b is given more than once, as a; leave one out"),
        ([ComponentSet.of(["0.1"], "a"), ComponentSet.of(["0.2"], "a")], "a is given more than"),
        ([Mask(torch.ones(3, 2, 5))], "single mask of zeros and ones"),
        ([Mask(torch.full((2, 5), 0.5))], "single mask of zeros and ones"),
    ],
    ids=str,
)
def test_sets_that_cannot_be_read(sets: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_sets(sets)


def edited_logits(reference: Any, data: EncodedExamples, means: Any, names: str) -> torch.Tensor:
    """Logits of the classes of a Hugging Face model with these components' outputs fixed."""
    parts = [Component.parse(name) for name in names.split("+") if name]
    z = torch.zeros(2, 4, 8) if means is None else means.z
    mlp = torch.zeros(2, helpers.D_MODEL) if means is None else means.mlp
    if means is None and reference.config.model_type != "mistral":
        z = z[..., :4]  # only Mistral's heads are wider here
    heads = {(c.layer, c.head): z[c.layer, c.head] for c in parts if c.head is not None}
    mlps = {c.layer: mlp[c.layer] for c in parts if not c.is_head}
    model = helpers.edited(reference, heads, mlps)
    logits = []
    for i, ids in enumerate(data.input_ids):
        inputs = {"input_ids": torch.tensor([ids])}
        if data.token_type_ids is not None:
            inputs["token_type_ids"] = torch.tensor([data.token_type_ids[i]])
        with torch.no_grad():
            answer = model(**inputs).logits
        if data.answers is not None:
            answer = answer[:, -1, [token for (token,) in data.answers.values()]]
        logits.append(answer)
    return torch.cat(logits)


def check_against_edits(model: Any, reference: Any, name: str, fill: Any) -> None:
    data = encoded(name)
    means = None if fill == "zero" else means_of(model, data)
    logits = {n: edited_logits(reference, data, means, n) for n in ("", *NAMES)}
    for engine in ("auto", "reference"):
        options: dict[str, Any] = {"fill": fill, "engine": engine, "split": "ood", "batch_size": 3}
        swept = ablate(model, list(NAMES), data, means, **options)
        assert (swept.data, swept.split, swept.agreement) == ("few", "ood", None)
        assert swept.full.subsets.tolist() == ["u", "v", "u", "v", "v", "v", "u"]
        truth = {n: replace(swept.full, logits=exact) for n, exact in logits.items()}
        torch.testing.assert_close(swept.full.logits, logits[""], rtol=0, atol=2e-5)
        assert list(map(str, swept.without)) == list(NAMES)
        for cut, got in swept.without.items():
            wanted = truth[str(cut)]
            np.testing.assert_array_equal(got.correct, wanted.correct)
            np.testing.assert_allclose(got.margin, wanted.margin, rtol=0, atol=4e-5)
            np.testing.assert_allclose(
                got.kl, kl(truth[""].logits, wanted.logits), rtol=0, atol=4e-5
            )
            assert got.kl.max() > 1e-4
            assert got.correct.dtype == bool
            assert len(got.correct) == len(got.margin) == len(got.kl) == len(data)


@pytest.mark.parametrize(
    ("name", "fill"), [*((name, "mean") for name in MODELS), ("bert", "zero"), ("gpt2-lm", "zero")]
)
def test_sweeping_is_editing_the_weights(cases: Cases, name: str, fill: Any) -> None:
    case = cases.get(name)
    check_against_edits(case.model, case.reference, name, fill)


@pytest.mark.hooked
def test_sweeping_a_hooked_transformer_is_editing_the_weights(cases: Cases) -> None:
    case = cases.get("gpt2-lm")
    check_against_edits(helpers.hooked_transformer(case.path), case.reference, "gpt2-lm", "mean")


def as_plain(data: EncodedExamples, labels: torch.Tensor, size: int = 3) -> list[dict[str, Any]]:
    """Batches as a loader gives them, in order, with entries that no model reads."""
    batches: list[dict[str, Any]] = []
    for start in range(0, len(data), size):
        batch = data.rows(range(len(data))[start : start + size])
        texts = [f"text {i}" for i in batch["index"].tolist()]
        more = {"labels": labels[batch["index"]], "texts": texts, "weights": None}
        batches.append({**{n: batch[n] for n in ("input_ids", "attention_mask")}, **more})
        if "token_type_ids" in batch:
            batches[-1]["token_type_ids"] = batch["token_type_ids"]
    batches[0] |= {n: x.tolist() for n, x in batches[0].items() if torch.is_tensor(x)}
    return batches


@pytest.mark.parametrize(
    ("name", "fill"),
    [*((name, "mean") for name in MODELS), ("bert", "resample"), ("gpt2-lm", "resample")],
)
def test_plain_batches_are_swept_alike(cases: Cases, name: str, fill: Any, tmp_path: Path) -> None:
    model, data = cases.get(name).model, encoded(name)
    means = means_of(model, data, n_samples=16)
    options: dict[str, Any] = {"fill": fill, "split": "ood"}
    whole = ablate(model, NAMES, data, means, **{**options, "fill": "mean"})
    labels = whole.full.correct_classes.int().argmax(1)
    if data.answers is not None:
        labels = torch.tensor([token for (token,) in data.answers.values()])[labels]
    batches = as_plain(data, labels)
    tree, restart, reference = (
        ablate(model, NAMES, batches, means, engine=engine, **options)
        for engine in ("tree", "restart", "reference")
    )
    assert_close(tree, reference)
    assert_close(restart, reference)
    assert (tree.data, tree.full.subset_names) == ("data", ["all"])
    assert tree.full.logits.shape[1] == (helpers.VOCABULARY if name == "gpt2-lm" else 3)
    if name != "gpt2-lm":
        torch.testing.assert_close(tree.full.logits, whole.full.logits, rtol=0, atol=1e-5)
        if fill == "mean":
            for cut, answers in whole.without.items():
                np.testing.assert_allclose(tree.without[cut].kl, answers.kl, rtol=0, atol=1e-5)
    for given in (iter(batches), batches):
        assert_equal(ablate(model, NAMES, given, means, state=tmp_path, **options), tree)
    assert len(list(tmp_path.iterdir())) == 1
    ablate(model, NAMES, batches[::-1], means, state=tmp_path, **options)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_empty_set_is_the_full_model_and_limits_do_not_matter(bert: dict[str, Any]) -> None:
    for engine in ("tree", "restart", "reference"):
        swept = ablate(**{**bert, "sets": [[], "0.1"], "engine": engine})
        nothing = swept.without[ComponentSet(())]
        np.testing.assert_array_equal(nothing.correct, swept.full.correct)
        np.testing.assert_allclose(nothing.margin, swept.full.margin, rtol=0, atol=1e-5)
        np.testing.assert_allclose(nothing.kl, 0, atol=1e-9)
    expected = ablate(**bert, engine="reference")
    limits = ({"batch_size": 1, "max_tokens": 50}, {"batch_size": 3}, {"max_tokens": 1})
    for engine, options in itertools.product(("tree", "restart"), limits):
        assert_close(ablate(**bert, **options, engine=engine), expected)


def test_accuracy_under_chance_warns_in_domain_alone(bert: dict[str, Any]) -> None:
    data = bert["data"]
    worst = ablate(**bert).full.logits.argmin(1).tolist()
    labels = [helpers.CLASSES[i] for i in worst]
    wrong = replace(data, examples=Examples("few", data.examples.frame.assign(label=labels)))
    with pytest.warns(MechcoreWarning, match=r"in-domain accuracy 0\.000 is under chance"):
        ablate(**{**bert, "data": wrong, "split": "id"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ablate(**{**bert, "data": wrong}).full.accuracy == 0


def test_what_cannot_be_swept(bert: dict[str, Any], cases: Cases) -> None:
    roberta = cases.get("roberta").model
    others = means_of(roberta, encoded("roberta"))
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"engine": "fast"}, InputError, "engine is 'fast'; expected 'auto' or 'tree' or"),
        ({"precision": "float64"}, InputError, "precision is 'float64'; expected 'float32' or"),
        ({"split": "OOD"}, InputError, "split is 'OOD'; expected 'id' or 'ood'"),
        *(
            (
                {"engine": engine, "precision": "bfloat16"},
                InputError,
                f"engine '{engine}' has the model's own precision only",
            )
            for engine in ("restart", "reference")
        ),
        ({"sets": ["0.1", "2.0"]}, InputError, r"component L2\.H0: out of range"),
        ({"sets": ["0.4"]}, InputError, r"component L0\.H4: out of range"),
        ({"sets": "0.1"}, InputError, "put it in brackets"),
        ({"sets": ["0.1", "L0.H1"]}, InputError, "given more than once"),
        ({"means": None}, InputError, "fill 'mean' needs means"),
        ({"means": others}, MismatchError, "computed on another model"),
        ({"fill": "median"}, InputError, "fill 'median': unknown"),
        ({"class_names": ["a", "b"]}, InputError, "2 given .* the checkpoint has 3 classes"),
        ({"data": []}, InputError, "no batch; expected at least one"),
    ]
    for engine in ("auto", "tree", "restart", "reference"):
        for changes, error, message in refused:
            with pytest.raises(error, match=message):
                ablate(**{**bert, "engine": engine, **changes})
    with pytest.raises(InputError, match="no set; expected at least one set of components"):
        sweep(**{**bert, "sets": []})


def test_other_models_are_restarted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Mistral with a sliding window is not a plain stack of layers."""
    plain = helpers.hf_classifier("mistral")
    plain.config.sliding_window = 4
    plain.save_pretrained(tmp_path)
    helpers.word_tokenizer(segments=False).save_pretrained(tmp_path)
    windowed, data = load_model(tmp_path), encoded("mistral")
    means = means_of(windowed, data)
    options: dict[str, Any] = {"split": "ood", "batch_size": 1}
    with progress.shown():
        swept = ablate(windowed, NAMES, data, means, **options)
    assert capsys.readouterr().err.splitlines()[-1] == "ablate on few (engine 'restart'): 100 %"
    assert_equal(swept, ablate(windowed, NAMES, data, means, engine="restart", **options))
    assert_close(swept, ablate(windowed, NAMES, data, means, engine="reference", **options))
    message = "found a mistral with a sliding window of 4 positions; .*; engine='restart' runs"
    with pytest.raises(InputError, match=message):
        ablate(windowed, NAMES, data, means, engine="tree")
    with pytest.raises(InputError, match="engine 'restart' has the model's own precision only"):
        ablate(windowed, NAMES, data, means, precision="bfloat16")


@pytest.mark.parametrize(("name", "engine"), [("bert", "auto"), ("gpt2", "tree")])
def test_a_model_that_does_not_compute_what_its_weights_say(
    cases: Cases, name: str, engine: Any
) -> None:
    message = (
        r"its logits differ from the model's by .* of their size; the model does not compute what "
        "its weights say .*: use engine='restart'"
    )
    model, data = load_model(cases.path(name)), encoded(name)
    means = means_of(model, data)
    plain = ablate(model, NAMES, data, means, engine="reference", split="ood")
    inner = model.blocks[1].mlp.out.original_component
    handle = inner.register_forward_hook(lambda module, args, output: 1.5 * output)
    with pytest.raises(MechcoreError, match=message):
        ablate(model, NAMES, data, means, engine=engine, split="ood")
    swept = ablate(model, NAMES, data, means, engine="reference", split="ood")
    assert (swept.full.logits - plain.full.logits).abs().max() > 1e-2
    handle.remove()
    assert_close(ablate(model, NAMES, data, means, engine=engine, split="ood"), plain)
    model.add_hook(hook_mlp_out(0), lambda x, hook: 2 * x)
    with pytest.raises(MechcoreError, match=message):
        ablate(model, NAMES, data, means, engine=engine, split="ood")


def test_a_model_of_half_precision_may_differ_as_by_its_own_rounding(
    cases: Cases,
) -> None:
    model, data = load_model(cases.path("gpt2"), dtype="bfloat16"), encoded("gpt2")
    means = means_of(model, data)
    options: dict[str, Any] = {"engine": "tree", "split": "ood"}
    swept = ablate(model, NAMES, data, means, **options)

    def rounded(together: float, alone: float) -> Any:
        def hook(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
            return output * (1 + (together if len(output) > 1 else alone))

        return model.blocks[1].mlp.out.original_component.register_forward_hook(hook)

    for together, alone in ((0.5, 0.5), (50.0, 0.0)):  # by no rounding
        handle = rounded(together, alone)
        with pytest.raises(MechcoreError, match="its logits differ from the model's by"):
            ablate(model, NAMES, data, means, **options)
        handle.remove()
    handle = rounded(0.5, 0.0)
    assert_close(ablate(model, NAMES, data, means, **options), swept)
    handle.remove()


def test_the_check_covers_masks_too(bert: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = ENGINE.masked

    def without_effect(model: Any, mask: Mask, *args: Any, **options: Any) -> Any:
        return real(model, Mask.full(mask.shape), *args, **options)

    monkeypatch.setattr(ENGINE, "masked", without_effect)
    with pytest.raises(MechcoreError, match="its logits differ from the model's"):
        ablate(**bert)


SINGLES = [str(component) for component in ModelShape(2, 4).components]
MANY = [*SINGLES, *("+".join(pair) for pair in itertools.combinations(SINGLES[:7], 2))]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Watches runs of trees (the check before the sweep is one, too) and plain evaluations."""
    runs = Runs()
    for runner in (TreeRunner, RestartRunner):
        monkeypatch.setattr(runner, "run", runs.watched("batch", runner.run))
    plain = ENGINE.ReferenceEngine
    monkeypatch.setattr(plain, "run", runs.watched("sets", plain.run))
    return runs


@pytest.mark.parametrize(
    ("engine", "fill", "stop_at", "left"),
    [
        # A check, and three batches.
        *(("tree", "resample", 1, 4), ("tree", "mean", 3, 2)),
        *(("restart", "mean", 1, 4), ("restart", "resample", 3, 2)),
        # The full model, then 31 sets, 8 at a time.
        *(("reference", "mean", 0, 5), ("reference", "resample", 1, 4)),
        ("reference", "resample", 4, 1),
    ],
)
def test_an_interrupted_sweep_ends_as_if_it_had_not_been(
    bert: dict[str, Any],
    runs: Runs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fill: Any,
    engine: Any,
    stop_at: int,
    left: int,
) -> None:
    monkeypatch.setattr(ENGINE, "MAX_ROWS", 8 * 3)
    options = {**bert, "sets": MANY, "fill": fill, "engine": engine, "batch_size": 3}
    whole = ablate(**options)
    path = tmp_path / "folder"
    runs.until(stop_at)
    with pytest.raises(KeyboardInterrupt):
        ablate(**options, state=path)
    assert path.exists() == (stop_at > (engine != "reference"))
    runs.until(None)
    assert_equal(ablate(**options, state=path), whole)
    assert len(runs.done) == left


def test_other_sweeps_take_nothing_from_a_state(
    bert: dict[str, Any], cases: Cases, runs: Runs, tmp_path: Path
) -> None:
    ablate(**bert, fill="resample", state=tmp_path)
    model, data = bert["model"], bert["data"]
    frame = data.examples.frame
    relabelled = replace(data, examples=Examples("few", frame.assign(label="neutral")))
    other = load_model(cases.path("bert"))
    helpers.randomise(other.original_model, seed=1)
    swapped = ["neutral", "entailment", "contradiction"]
    others: list[dict[str, Any]] = [
        {"sets": NAMES[:-1]},
        {"sets": NAMES[::-1]},
        {"fill": "mean"},
        {"seed": 1},
        {"engine": "reference"},
        {"precision": "bfloat16"},
        {"batch_size": 3},
        {"class_names": swapped},
        {"data": relabelled},
        {"data": replace(data, input_ids=data.input_ids[::-1])},
        {"data": replace(data, token_type_ids=None)},
        {"means": means_of(model, data, n_samples=15)},
        {"means": means_of(model, data.rows([0, 1]), n_samples=16)},
        {"model": other, "means": means_of(other, data, n_samples=16)},
        {"fill": "zero", "means": None, "seed": 2},
    ]
    for n_files, changes in enumerate(others, 2):
        ablate(**{**bert, "fill": "resample", "state": tmp_path, **changes})
        assert len(list(tmp_path.iterdir())) == n_files, changes
    # Names, the table's options and how much runs at a time do not matter.
    runs.until(1, AssertionError)
    named = {f"set {i}": name for i, name in enumerate(NAMES)}
    swept = ablate(**{**bert, "sets": named}, fill="resample", state=tmp_path, max_tokens=7)
    assert [str(cut) for cut in swept.without] == list(named)


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "bfloat16") for name in MODELS), ("bert", "float16")]
)
def test_half_precision_is_close_and_says_so(cases: Cases, name: str, precision: Any) -> None:
    model, data = cases.get(name).model, encoded(name)
    means = means_of(model, data)
    options: dict[str, Any] = {"split": "ood", "batch_size": 3}
    half = ablate(model, MANY, data, means, precision=precision, **options)
    plain = ablate(model, MANY, data, means, **options)
    assert plain.agreement is None
    assert half.agreement is not None
    assert 0.9 <= half.agreement <= 1
    scale = float(plain.full.logits.abs().max())
    torch.testing.assert_close(half.full.logits, plain.full.logits, rtol=0, atol=0.05 * scale)
    assert not torch.equal(half.full.logits, plain.full.logits)
    same = []
    for cut, answers in plain.without.items():
        margins = (answers.margin, half.without[cut].margin)
        np.testing.assert_allclose(*margins, rtol=0, atol=0.1 * scale)
        same.append(np.mean(answers.correct == half.without[cut].correct))
    assert np.mean(same) > 0.9


@pytest.mark.parametrize(("sample", "size"), [((4, 5), 4), ((1, 2), 2), ((1, 5), 3)])
def test_agreement_is_the_share_of_equal_answers_on_a_sample(
    bert: dict[str, Any], monkeypatch: pytest.MonkeyPatch, sample: tuple[int, int], size: int
) -> None:
    real = ENGINE.TreeEngine._logits
    asked: list[tuple[int, int]] = []

    def spoilt(self: Any, runner: TreeRunner, batch: Any, tree: Any, take: Any) -> None:
        def spoil(numbers: torch.Tensor, logits: torch.Tensor) -> None:
            if runner.stack is not self.exact:
                asked.append((len(numbers), logits.shape[1]))
                logits = logits.roll(1, -1)  # every answer becomes another
            take(numbers, logits)

        real(self, runner, batch, tree, spoil)

    monkeypatch.setattr(ENGINE.TreeEngine, "_logits", spoilt)
    monkeypatch.setattr(ENGINE, "SAMPLE", sample)
    monkeypatch.setattr(ENGINE, "SHARE_OF_SAMPLE", 9.5 / 42)
    swept = ablate(**bert, precision="bfloat16", batch_size=64)
    assert swept.agreement == 0
    assert asked == [(size, size), (6, 7)]  # some sets and examples, then all


@pytest.mark.parametrize("engine", ["tree", "restart"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_texts_that_end_in_the_padding_token(architecture: str, engine: Any, cases: Cases) -> None:
    """As where the end of text serves for padding; the head passes over it, as Hugging Face's."""
    case = cases.get(architecture)
    rows = helpers.texts((6,) * 8)
    rows[6][-1:] = rows[7][-2:] = helpers.PAD  # not among those that engines are checked on
    batch = helpers.padded(rows) | {"labels": torch.arange(8) % 3}
    means = MeanActivations.compute(case.model, [batch], n_samples=0)
    swept = ablate(case.model, [["L0.H1"]], [batch], means, engine=engine)
    edited = helpers.edited(case.reference, {(0, 1): means.z[0, 1]}, {})
    (without,) = swept.without.values()
    for model, answers in ((case.reference, swept.full), (edited, without)):
        expected = helpers.reference_logits(model, rows)
        np.testing.assert_allclose(answers.logits, expected, rtol=0, atol=1e-5)
