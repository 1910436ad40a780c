"""Checks of what is added to mechcore, for the tests of those who add it.

Each runs what was added on a tiny model, in seconds; an AssertionError of one line names what was
checked, what was found and what was expected. ``check_fill("half")`` in a test of yours is all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from mechcore.analyses import ANALYSES
from mechcore.analyses.base import Analysis
from mechcore.attention.categories import (
    CATEGORIES,
    Category,
    register_category,
    registered_categories,
    unregister_category,
)
from mechcore.attention.inputs import batches_of
from mechcore.attention.patterns import attention_scores
from mechcore.components import Mask, ModelShape
from mechcore.errors import InputError, shown
from mechcore.main_study.config import StudyConfig
from mechcore.main_study.plan import make_plan
from mechcore.main_study.study import MainStudy
from mechcore.masking.counterfactual import with_pairs
from mechcore.masking.fills import FillMaker, fill_of
from mechcore.masking.interventions import masked
from mechcore.masking.masked_stack import masked_stack
from mechcore.masking.means import MeanActivations
from mechcore.models import load_model, running
from mechcore.models.architectures.base import ARCHITECTURES, Architecture, architecture_of
from mechcore.models.export import FoldFill, export_checkpoint
from mechcore.models.model_identity import check_masks
from mechcore.models.padding import real_positions
from mechcore.models.stack_of import stack_of
from mechcore.pruning.controls import random_subnetworks
from mechcore.pruning.methods import METHODS, PruningMethod, Request
from mechcore.pruning.settings import PruneSettings
from mechcore.pruning.subnetwork import Subnetwork
from mechcore.report.blocks import Block
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.settings import DESCRIBED, OF_STUDY, check, entries
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.steps.inputs import load_inputs
from mechcore.study.executors import done
from mechcore.study.step import Work
from mechcore.study.store import Store
from mechcore.worlds.embedded import tiny_encoder_dir

CLOSE = 1e-4
"""How far apart logits may be that should be the same, as a share of the largest if above 1."""


def _expect(holds: object, line: str) -> None:
    if not holds:
        raise AssertionError(line)


@contextmanager
def _checking(what: str, thing: Any) -> Iterator[None]:
    """All that goes wrong inside is said in one line."""
    name = thing if isinstance(thing, str) else getattr(thing, "__name__", repr(thing))
    try:
        yield
    except Exception as error:
        kind = (
            "" if isinstance(error, (AssertionError, InputError)) else f"{type(error).__name__}: "
        )
        said = shown(" ".join(str(error).split()), 600)
        raise AssertionError(f"{what} {shown(name)}: {kind}{said}") from error


def _agree(found: Tensor, expected: Tensor, line: str) -> None:
    scale = max(1.0, float(expected.abs().max()))
    apart = float((found.to(expected) - expected).abs().max()) / scale
    _expect(apart <= CLOSE, f"{line} are {apart:.2g} apart; expected at most {CLOSE:g}")


def _embedded(which: Literal["encoder", "decoder"] = "encoder", answers: bool = True) -> Any:
    """An embedded model of one's own, and a few examples."""
    model, data = ModelConfig(embedded=which), DataConfig(max_train=12)
    inputs = load_inputs(model, data, ("train",), answers=answers)
    return inputs.model, inputs.data["train"]


def check_fill(kind: FillMaker) -> None:
    """Check a fill, by its name or what makes it, on the embedded encoder.

    Values have the right shape, are finite and the same for one seed; masks of ones leave logits
    alone; masks of zeros give those of Hugging Face's own model with its outputs replaced by the
    values (where nothing is drawn).

    Raises:
        AssertionError: one of this is not so.
    """
    with _checking("fill", kind), torch.no_grad():
        model, data = _embedded()
        means = MeanActivations.compute(model, data)
        batch, maker, shape = data.rows(range(6)), with_pairs(kind, data, 0), ModelShape.of(model)
        positions, whole = real_positions(batch["attention_mask"]), running.forward(model, batch)
        values: dict[Any, Tensor] = {}
        for _ in range(2):
            fill = fill_of(model, means, maker, 1)
            fill.prepare(batch)
            draws = fill.draws_of_batch(shape, positions.shape)
            for place, drawn in draws.items():
                at, value = f"values{place}", fill.checked(*place, positions, drawn)
                rest = (
                    (shape.n_heads, model.cfg.d_head) if place[0] == "z" else (model.cfg.d_model,)
                )
                _expect(
                    value.shape in (rest, (*positions.shape, *rest)) and value.is_floating_point(),
                    f"{at} gave {value.dtype} of shape {tuple(value.shape)}; expected floating "
                    f"point of shape {rest} or {(*positions.shape, *rest)}",
                )
                _expect(value.isfinite().all(), f"{at} gave NaN or infinity; expected numbers")
                _expect(
                    torch.equal(values.setdefault(place, value.clone()), value),
                    f"{at} gave other values the second time; expected the same for the same seed, "
                    "and means that stay as they are",
                )
        static = all(each is None for each in draws.values())
        for m, line in ((1, "with m = 1 and of the model"), (0, "with m = 0 and of values")):
            mask = Mask(m * Mask.full(model).values, has_mlps=shape.has_mlps)
            with masked(model, mask, means, maker, seed=1) as run:
                found = run(batch)
            if m or static:
                _agree(found, whole if m else _replaced(batch, values), f"logits {line}")
        _agree(running.forward(model, batch), whole, "logits of the model before and after")


def _replaced(batch: Mapping[str, Tensor], values: Mapping[Any, Tensor]) -> Tensor:
    """Logits of the embedded encoder in Hugging Face's own code, its outputs replaced."""
    model: Any = AutoModelForSequenceClassification.from_pretrained(tiny_encoder_dir()).eval()

    def on_z(value: Tensor) -> Callable[..., Any]:
        return lambda module, args: (value.flatten(-2).to(args[0]).expand_as(args[0]), *args[1:])

    def on_mlp(value: Tensor) -> Callable[..., Any]:
        return lambda module, args, output: value.to(output).expand_as(output)

    for (kind, layer), value in values.items():
        block = model.base_model.encoder.layer[layer]
        if kind == "z":
            block.attention.output.dense.register_forward_pre_hook(on_z(value))
        else:
            block.output.dense.register_forward_hook(on_mlp(value))
    names = ("input_ids", "attention_mask", "token_type_ids")
    return model(**{name: batch[name] for name in names if name in batch}).logits


def check_architecture(kind: str | type[Architecture], checkpoint: str | Path) -> None:
    """Check a family of models on a small checkpoint whose components matter.

    Loading compares it with Hugging Face. Where there is a stack, its logits are the model's,
    masked or not; where there are projections, those of an exported checkpoint are the masked
    model's.

    Args:
        kind: its ``model_type``, or its class.
        checkpoint: a folder in Hugging Face format, with a tokenizer.

    Raises:
        AssertionError: one of this is not so, or masks change nothing, so that nothing is seen.
    """
    with _checking("architecture", kind), torch.no_grad():
        wanted = ARCHITECTURES[kind] if isinstance(kind, str) else kind
        model: Any = load_model(checkpoint)
        config: Any = running.weights_of(model).config
        family = architecture_of(config)
        _expect(
            type(family) is wanted,
            f"the checkpoint is of {config.model_type}, whose class is {type(family).__name__}; "
            f"expected {wanted.__name__}, registered under that name",
        )
        real, pad = torch.arange(7) < torch.tensor([[7], [3], [5]]), config.pad_token_id or 0
        ids = torch.arange(real.numel()).reshape(real.shape) % (running.n_tokens(model) - 1)
        ids = (ids + (ids >= pad)).where(real, torch.tensor(pad))
        batch = {"input_ids": ids, "attention_mask": real.long()}
        means, full = MeanActivations.compute(model, [batch]), Mask.full(model)
        some, whole = full.without(*full.shape.components[::2]), running.forward(model, batch)
        answers: dict[Any, Tensor] = {}
        for fill in ("zero", "mean"):
            with masked(model, some, means, fill) as run:
                answers[fill] = run(batch)
            matters = float((answers[fill] - whole).abs().max())
            line = f"logits change by {matters:.2g} without {len(some.ablated)} components"
            _expect(matters > 100 * CLOSE, f"{line}; expected more: give it larger weights")
        if type(family).stack is not Architecture.stack:
            inputs = running.model_inputs(model, batch)
            read, values = (
                running.read_position(model, inputs),
                torch.stack([full.values, some.values]),
            )
            found = masked_stack(stack_of(model), inputs, read, values, means.z, means.mlp)
            at = () if running.is_classifier(model) else (range(len(read)), read)
            for got, logits, of in zip(
                found, (whole, answers["mean"]), ("", "masked "), strict=True
            ):
                _agree(got, logits[at], f"logits of the stack and of the {of}model")
        fills: tuple[FoldFill, ...] = ("zero", "mean") if family.projections else ()
        for fill in fills:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    export_checkpoint(checkpoint, out := Path(folder) / "out", some, means, fill)
                except InputError:
                    if fill == "zero":  # biases, which means need, may be lacking
                        raise
                    continue
                folded = running.forward(load_model(out), batch)
                _agree(folded, answers[fill], f"logits masked by {fill} and of an export")


def check_pruning_method(method: str | PruningMethod) -> None:
    """Check a pruning method, by its name or itself, on the embedded encoder.

    It gives a subnetwork for each target and seed, or one for each target, with masks that keep as
    many components as asked for; the same the second time; and leaves the weights alone.

    Raises:
        AssertionError: one of this is not so.
    """
    with _checking("pruning method", method):
        find = METHODS[method] if isinstance(method, str) else method
        (model, data), targets, seeds = _embedded(), (0.25, 0.5), (1, 2)
        shape, means = ModelShape.of(model), MeanActivations.compute(model, data)
        weights = {
            name: weight.detach().clone() for name, weight in running.named_weights(model).items()
        }
        settings = PruneSettings(steps=30, warmup=2, batch_size=4, tolerance=1)
        trained = random_subnetworks(shape, sparsity=targets, seeds=seeds)
        request = Request(model, data, means, targets, seeds, settings, trained=trained)
        found, again = find(request), find(request)
        changed = [
            n for n, w in running.named_weights(model).items() if not torch.equal(w, weights[n])
        ]
        _expect(not changed, f"changed {len(changed)} weights of the model; expected none")
        kinds = {type(each).__name__ for each in (*found, *again)} - {Subnetwork.__name__}
        _expect(not kinds, f"gave {', '.join(kinds)}; expected a list of Subnetwork")
        asked = sorted((target, seed) for target in targets for seed in seeds)
        runs = sorted((each.target, each.seed) for each in found)
        _expect(
            runs == asked or [target for target, _ in runs] == [*targets],
            f"gave the targets and seeds {runs}; expected {asked}, or each target once",
        )
        for each, other in zip(found, again, strict=True):
            check_masks([each.mask], model)
            values, n = each.mask.values, len(shape.components)
            odd = {*values.flatten().tolist()} - {0, 1}
            _expect(not odd, f"{each.name}: mask values {odd}; expected 0 and 1 alone")
            kept, asks = int(values.sum()), n - round(each.target * n)
            _expect(kept == asks, f"{each.name}: keeps {kept} of {n} components; expected {asks}")
            same = torch.equal(values, other.mask.values) and torch.equal(each.scores, other.scores)
            line = f"{each.name}: has another mask or scores the second time; expected the same"
            _expect(same, line)
            line = f"{each.name}: its method is {each.method!r}; expected the name {method!r}"
            _expect(not isinstance(method, str) or each.method == method, line)
            with tempfile.TemporaryDirectory() as folder:
                each.save(path := Path(folder) / "mask.safetensors")
                Subnetwork.load(path)


def check_category(category: str | Category) -> None:
    """Check a head category, by its name or itself, on the embedded encoder and decoder.

    Its function gives a bool for each query and key of a batch, whatever else is in the batch, and
    the table of heads has its columns, with masses from 0 to 1, for the models that it is for.

    Raises:
        AssertionError: one of this is not so.
    """
    name = category if isinstance(category, str) else category.name
    with _checking("category", name), ExitStack() as after:
        known = {each.name: each for each in registered_categories()}
        if not isinstance(category, str) and name not in known:
            register_category(name, category.function, causal_only=category.causal_only)
            after.callback(unregister_category, name)
            known[name] = category
        given = known.get(name)
        own = CATEGORIES[name].name if given is None or name in CATEGORIES else name
        _expect(own == name, f"registered under {name!r}, but called {own!r}; expected one name")
        assert given is not None
        for which in ("encoder", "decoder"):
            model, data = _embedded(which, answers=False)
            [(_, tokens)] = batches_of(model, data, None, len(data))
            pairs, size = given.function(tokens), tuple(tokens.allowed.shape)
            _expect(
                pairs.dtype == torch.bool and pairs.shape == size,
                f"gave {pairs.dtype} of shape {tuple(pairs.shape)}; expected torch.bool of {size}, "
                "[batch, query, key]",
            )
            for row, (_, alone) in enumerate(batches_of(model, data, None, 1)):
                n = alone.ids.shape[1]
                single = (given.function(alone) & alone.allowed)[0]
                _expect(
                    torch.equal(single, (pairs & tokens.allowed)[row, :n, :n]),
                    f"gave other pairs for text {row} alone than in a batch; expected the same: "
                    "padding and other texts must not count",
                )
            table = attention_scores(model, data, resamples=0)
            columns = [f"{part}_{name}" for part in ("mass", "uniform", "share")]
            there = [column for column in columns if column in table]
            wanted = [] if given.causal_only and which == "encoder" else columns
            line = f"table of heads of the {which}: found the columns {there}; expected {wanted}"
            _expect(there == wanted, line)
            shares: Any = table[there].stack().dropna()
            line = f"{', '.join(there)} are from {shares.min():g} to {shares.max():g}"
            _expect(shares.between(0, 1 + CLOSE).all(), f"{line}; expected 0 to 1")


def check_analysis(
    kind: str | type[Analysis],
    settings: Mapping[str, Any] | None = None,
    *,
    others: Mapping[str, Any] | None = None,
    study: StudyConfig | None = None,
) -> None:
    """Check a registered analysis in a small study of the embedded encoder.

    It is a frozen dataclass of one name, imported without torch, each of whose fields is a setting
    with help or `of_study`; a study plans it, and other jobs for other values of a setting unless
    that is ``without_effect``; its tables are as their schemas, which have help, say, and the same
    the second time; and it shows them, and nothing where there are none.

    Args:
        kind: its name, or its class.
        settings: to run it with, where its defaults take long.
        others: another value of each setting for which none can be guessed.
        study: that it is part of, in place of one with two random subnetworks for each of two
            sparsities.

    Raises:
        AssertionError: one of this is not so.
    """
    with _checking("analysis", kind), tempfile.TemporaryDirectory() as folder:
        cls = ANALYSES[kind] if isinstance(kind, str) else kind
        _check_class(cls)
        _check_import(cls.__module__)
        check(cls(), "default settings")
        analysis = replace(cls(), **settings or {})  # type: ignore[type-var]
        study = study or StudyConfig(
            data=DataConfig(max_train=16, max_id=16, max_ood=16),
            method="random",
            seeds=(1, 2),
            sparsities=(0.3, 0.5),
            n_resamples=10,
        )
        _check_settings(analysis, study, others or {}, Store(folder))
        _check_results(analysis, study, Path(folder))


def _check_class(cls: type[Analysis]) -> None:
    made: Any = vars(cls).get("__dataclass_params__")
    _expect(made and made.frozen, "is no frozen dataclass; expected @dataclass(frozen=True)")
    names = [name for name in ANALYSES if cls.kind in (name, ANALYSES[name].kind)]
    _expect(
        names == [cls.kind] and ANALYSES[cls.kind] is cls,
        f"kind {cls.kind!r} is that of what is registered as {names}; expected of this class alone",
    )
    about = (cls.__doc__ or "").partition("(")[0] not in ("", cls.__name__)
    _expect(about, "has no docstring; expected a line, for its command and the study's file")
    for field in fields(cls):  # type: ignore[arg-type]
        said = getattr(field.metadata.get(DESCRIBED), "help", "") or OF_STUDY in field.metadata
        _expect(said, f"field {field.name} has no help; expected setting(...) or of_study()")
    for schema in cls.schemas:
        bare = [schema.name] * (not schema.meaning)
        bare += [column.name for column in schema.columns if not column.meaning]
        line = f"table {schema.name} says nothing of {', '.join(bare)}; expected a meaning"
        _expect(not bare, line)


def _check_import(module: str) -> None:
    code = f"import sys, {module}; print('torch' in sys.modules)"
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    new = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True)
    _expect(new.returncode == 0, f"{module} cannot be imported: {new.stderr[-300:]}")
    line = f"import of {module} loads torch; expected compute to import what it needs"
    _expect(new.stdout.split()[-1:] == ["False"], line)


def _asking(study: StudyConfig, analysis: Analysis) -> StudyConfig:
    analyses = copy(study.analyses)
    object.__setattr__(analyses, analysis.kind, analysis)  # it may have been registered later
    return replace(study, analyses=analyses, only=(analysis.kind,))


def _check_settings(
    analysis: Analysis, study: StudyConfig, others: Mapping[str, Any], store: Store
) -> None:
    def keys(**changed: Any) -> set[str]:
        asked = _asking(study, replace(analysis, **changed))  # type: ignore[type-var]
        return {job.key for job in make_plan(asked, store.hash_file).jobs}

    own = keys()
    for name, entry in entries(type(analysis)).items():
        value, differs = getattr(analysis, name), None
        for other in [others[name]] if name in others else _others(entry.type, value):
            with suppress(InputError):
                differs = keys(**{name: other}) != own if other != value else None
            if differs is not None:
                break
        line = f"setting {name}: no other value than {value!r} can be guessed; pass one in others"
        _expect(differs is not None, line)
        without = name in type(analysis).without_effect
        jobs = ("others", "the same") if without else ("the same", "others")
        line = f"setting {name}: jobs with {other!r} and with {value!r} are {jobs[0]}; expected"
        _expect(differs != without, f"{line} {jobs[1]}, see without_effect")


def _others(kind: Any, value: Any) -> Iterator[Any]:
    """Values that a setting of this type might have, too."""
    inner, origin = get_args(kind), get_origin(kind)
    if origin is Literal:
        yield from inner
    elif kind is bool:
        yield not value
    elif kind in (int, float):
        yield from (kind((value or 0) + by) for by in (1, -1, 0.1, -0.1))
    elif kind is str:
        yield from (f"{value}x", "mean", "zero")
    elif origin is tuple:
        yield from (value[1:], value[:-1]) if value else ()
        yield from ((*(value or ()), each) for each in _others(inner[0], None))
    elif is_dataclass(kind):
        for name, entry in entries(kind).items():
            for each in _others(entry.type, getattr(value, name, entry.default)):
                with suppress(InputError):
                    yield replace(value or kind(), **{name: each})  # type: ignore[operator]
    elif kind is type(None):
        yield None
    else:
        yield from (other for each in inner for other in _others(each, value))


def _check_results(analysis: Analysis, study: StudyConfig, folder: Path) -> None:
    cls, store, run, second = type(analysis), Store(folder / "store"), folder / "run", folder / "2"
    store.create()
    planned = MainStudy(_asking(study, analysis), store)
    for job in planned.jobs():
        error = done(job, store, None, "cpu").error
        _expect(error is None, f"job {job.name!r} failed: {error}")
        if type(job.step) is cls:
            job.step.run(Work(job, second, second / "partial", store, "cpu"))
            tables = [*(store.whole(job.key) / "tables").iterdir()]
            bare = {path.stem for path in tables} - {each.name for each in cls.schemas}
            _expect(tables and not bare, f"tables without a schema are {bare}; expected none")
            for path in tables:
                line = f"table {path.stem} is another one the second time; expected the same"
                _expect((second / "tables" / path.name).read_bytes() == path.read_bytes(), line)
    found = planned.results()[""]
    for name, path in found.files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, run / name)
    (run / "config.json").write_text(json.dumps(found.facts), encoding="utf-8")
    whole, empty = read_run(run), RunFolder(run, {})
    blocks = [block for section in cls.sections(whole) for block in section.blocks]
    odd: list[Any] = [each for each in blocks if not isinstance(each, get_args(Block))]
    odd += [each for each in cls.headlines(whole) if not isinstance(each, str) or not each.strip()]
    line = "expected blocks of mechcore.report.blocks, and headlines that are sentences"
    _expect(not odd, f"shows {shown(odd)}; {line}")
    shows = [*cls.blocks(empty), *cls.headlines(empty)]
    _expect(not shows, f"shows {shown(shows)} of a run without its tables; expected nothing")
