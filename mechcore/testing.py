"""Checks for the tests of packages that extend mechcore: an AssertionError says what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import torch
from torch import Tensor

from mechcore import Mask, MeanActivations, export_checkpoint, load_model, masked
from mechcore.analyses import ANALYSES
from mechcore.analyses.base import Analysis
from mechcore.attention.categories import CATEGORIES, Category, TokenInfo, registered_categories
from mechcore.errors import InputError, shown
from mechcore.main_study.config import StudyConfig
from mechcore.main_study.plan import make_plan
from mechcore.masking.fills import FillMaker, fill_of
from mechcore.masking.interventions import masked_stack
from mechcore.models import protocol
from mechcore.models.architectures.base import ARCHITECTURES, Architecture, architecture_of
from mechcore.models.architectures.layers import stack_of
from mechcore.models.batches import real_positions
from mechcore.pruning.methods import METHODS, PruningMethod, Request
from mechcore.pruning.settings import PruneSettings
from mechcore.pruning.subnetwork import Subnetwork
from mechcore.report.run_folder import RunFolder, read_run
from mechcore.settings import DESCRIBED, OF_STUDY, Entry, check, entries
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.steps.inputs import open_model, read_split
from mechcore.study.run import run_study

SMALL = StudyConfig(
    data=DataConfig(max_train=16, max_id=100, max_ood=100),
    method="random",
    seeds=(1, 2),
    n_resamples=10,
)
"""The study that an analysis is checked in: two random subnetworks for each of two sparsities."""


@contextmanager
def _checking(what: str, thing: Any) -> Iterator[None]:
    name = thing if isinstance(thing, str) else getattr(thing, "__name__", repr(thing))
    try:
        yield
    except Exception as error:
        own = isinstance(error, (AssertionError, InputError))
        line = f"{error}" if own else f"{type(error).__name__}: {error}"
        line = f"{what} {shown(name)}: {shown(' '.join(line.split()), 600)}"
        raise AssertionError(line) from error


def _expect(holds: object, line: str) -> None:
    if not holds:
        raise AssertionError(line)


def _agree(logits: Tensor, expected: Tensor, what: str) -> None:
    scale = max(1.0, float(expected.abs().max()))
    apart = float((logits.to(expected) - expected).abs().max()) / scale
    _expect(apart <= 1e-4, f"logits {what} differ by {apart:.2g}; expected at most 0.0001")


def _embedded(which: Any = "encoder", answers: bool = True) -> Any:
    config = ModelConfig(embedded=which)
    inputs = open_model(config, answers=answers)
    examples, _ = read_split("train", config, SMALL.data)
    return inputs.model, inputs.encode(examples, words=not answers)


def check_fill(kind: FillMaker) -> None:
    """Check a fill, given by name or maker, on the embedded encoder.

    Its values must be finite and depend only on the seed; masks of ones must not change the logits,
    and masks of zeros must give those of a model into which plain torch hooks put the values.
    """
    with _checking("fill", kind), torch.no_grad():
        model, data = _embedded()
        means, full = MeanActivations.compute(model, data), Mask.full(model)
        batch = data.rows(range(6))
        positions, whole = real_positions(batch["attention_mask"]), protocol.forward(model, batch)
        values: dict[Any, Tensor] = {}
        for _ in range(2):
            fill = fill_of(model, means, kind, 1)
            fill.prepare(batch)
            draws = fill.draws_of_batch(full.shape, positions.shape)
            for at, drawn in draws.items():
                value = fill.checked(*at, positions, drawn)
                _expect(value.isfinite().all(), f"values{at} are NaN or infinite; expected numbers")
                line = f"values{at} differ between two fills of one seed; expected equal ones"
                _expect(torch.equal(values.setdefault(at, value.clone()), value), line)
        logits: list[Tensor] = []
        for m in (0, 1):
            with masked(model, Mask(m * full.values), means, kind, seed=1) as run:
                logits += [run(batch)]
        _agree(protocol.forward(model, batch), whole, "of the model before and after")
        _agree(logits[1], whole, "under a mask of ones and of the model")
        if all(drawn is None for drawn in draws.values()):
            points, names = model.hook_dict, {"z": protocol.hook_z, "mlp": protocol.hook_mlp_out}
            for (part, layer), value in values.items():
                wide = value.expand(*positions.shape, *getattr(means, part)[layer].shape)
                point = points[names[part](layer)]
                point.register_forward_hook(lambda _, x, y, wide=wide: wide.to(y).reshape(y.shape))
            line = "under a mask of zeros and of the model with values put in"
            _agree(logits[0], protocol.forward(model, batch), line)


def check_architecture(kind: str | type[Architecture], checkpoint: str | Path) -> None:
    """Check a family, given by ``model_type`` or class, on a folder with a small checkpoint.

    Its stack, if any, must give the logits of the model, masked or not; with projections, an
    exported checkpoint those of the masked model. Components must matter.
    """
    with _checking("architecture", kind), torch.no_grad(), TemporaryDirectory() as folder:
        model: Any = load_model(checkpoint)
        config: Any = protocol.weights_of(model).config
        family = architecture_of(config)
        expected = ARCHITECTURES[kind] if isinstance(kind, str) else kind
        line = f"the checkpoint is of {config.model_type}, which is {type(family).__name__}"
        _expect(type(family) is expected, f"{line}; expected {expected.__name__}")
        real, pad = torch.arange(7) < torch.tensor([[7], [3], [5]]), config.pad_token_id or 0
        ids = (pad + 1 + torch.arange(21).reshape(3, 7)) % protocol.n_tokens(model)
        batch = {"input_ids": ids.where(real, torch.tensor(pad)), "attention_mask": real.long()}
        means, full = MeanActivations.compute(model, [batch]), Mask.full(model)
        some, whole = full.without(*full.shape.components[::2]), protocol.forward(model, batch)
        with masked(model, some, means, "zero") as run:
            logits = run(batch)
        change = float((logits - whole).abs().max())
        line = f"logits change by {change:.2g} without {len(some.ablated)} components"
        _expect(change > 0.01, f"{line}; expected more: give it larger weights")
        if type(family).stack is not Architecture.stack:
            inputs, values = protocol.model_inputs(model, batch), [full.values, some.values]
            read, zeros = protocol.read_position(model, inputs), (0 * means.z, 0 * means.mlp)
            of_stack = masked_stack(stack_of(model), inputs, read, torch.stack(values), *zeros)
            at = () if protocol.is_classifier(model) else (range(len(read)), read)
            _agree(of_stack, torch.stack([whole[at], logits[at]]), "of the stack and of the model")
        if family.projections:
            export_checkpoint(checkpoint, Path(folder, "out"), some, fill="zero")
            exported = protocol.forward(load_model(Path(folder, "out")), batch)
            _agree(exported, logits, "of the masked model and of its export")


def check_pruning_method(method: str | PruningMethod) -> None:
    """Check a pruning method, given by name or itself, on the embedded encoder.

    It must give a savable subnetwork for each target and seed, or one for each target, with
    reproducible binary masks of the right size, and leave the model's weights unchanged.
    """
    with _checking("pruning method", method), TemporaryDirectory() as folder:
        find = METHODS[method] if isinstance(method, str) else method
        (model, data), target_sparsities, seeds = _embedded(), (0.25, 0.5), (1, 2)
        weights = protocol.named_weights(model)
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        means, n = MeanActivations.compute(model, data), len(Mask.full(model).kept)
        settings = PruneSettings(steps=30, warmup=2, batch_size=4, tolerance=1)
        request = Request(model, data, means, target_sparsities, seeds, settings)
        first, again = find(request), find(request)
        changed = [name for name in before if not torch.equal(weights[name], before[name])]
        _expect(not changed, f"changes {len(changed)} weights of the model; expected none")
        runs = sorted((s.target_sparsity, s.seed) for s in first)
        asked = [(t, s) for t in target_sparsities for s in seeds]
        line = f"gives the targets and seeds {runs}; expected {asked}, or each target once"
        _expect(runs == asked or [t for t, _ in runs] == [*target_sparsities], line)
        for subnetwork, other in zip(first, again, strict=True):
            name, values = subnetwork.name, subnetwork.mask.values
            pruned = round(subnetwork.target_sparsity * n)
            line = f"{name} has a mask of {values.sum():g}; expected {n - pruned} ones of {n}"
            expected = [0.0] * pruned + [1.0] * (n - pruned)
            _expect(sorted(values.flatten().tolist()) == expected, f"{line}, and zeros")
            same = torch.equal(values, other.mask.values)
            _expect(same, f"{name} has another mask the second time; expected the same")
            subnetwork.save(path := Path(folder, "mask.safetensors"))
            Subnetwork.load(path)


def check_category(category: str | Category) -> None:
    """Check a head category, given by name or itself, on the embedded encoder and decoder.

    Its function must return a bool for each query and key, independent of the rest of the batch. A
    ``causal_only`` category is not checked on the encoder.
    """
    with _checking("category", getattr(category, "name", category)):
        if isinstance(category, str):
            known = {own.name: own for own in registered_categories()}
            category = known.get(category) or CATEGORIES[category]
        for which in ("encoder", "decoder")[category.causal_only :]:
            model, data = _embedded(which, answers=False)
            causal = protocol.is_causal(model)
            tokens = TokenInfo.of(data.rows(range(len(data))), causal=causal)
            pairs, like = category.function(tokens), tokens.allowed
            line = f"gives {pairs.dtype} of {tuple(pairs.shape)} for the {which}; expected"
            line = f"{line} torch.bool of {tuple(like.shape)}"
            _expect((pairs.dtype, pairs.shape) == (like.dtype, like.shape), line)
            for row, ids in enumerate(data.input_ids):
                n, single = len(ids), TokenInfo.of(data.rows([row]), causal=causal)
                alone = (category.function(single) & single.allowed)[0]
                line = f"gives other pairs for text {row} alone than in a batch; expected the same"
                _expect(torch.equal(alone, (pairs & tokens.allowed)[row, :n, :n]), line)


def check_analysis(
    kind: str | type[Analysis],
    settings: Mapping[str, Any] | None = None,
    *,
    others: Mapping[str, Any] | None = None,
) -> None:
    """Check a registered analysis, with ``settings``, in a small study of the embedded encoder.

    It must be a frozen dataclass of settings with help, in a module that loads no torch. A setting
    must change its jobs, unless it is ``without_effect``; tables must match their schemas and be
    reproducible. Without its tables it shows notes only; ``others`` has other values of settings.
    """
    with _checking("analysis", kind), TemporaryDirectory() as folder:
        cls = ANALYSES[kind] if isinstance(kind, str) else kind
        made: Any = vars(cls).get("__dataclass_params__")
        _expect(made and made.frozen, "is no frozen dataclass; expected @dataclass(frozen=True)")
        for field in fields(cls):  # type: ignore[arg-type]
            help = getattr(field.metadata.get(DESCRIBED), "help", "") or OF_STUDY in field.metadata
            _expect(help, f"field {field.name} has no help; expected setting(...) or of_study()")
        _check_import(cls.__module__)
        analysis = replace(cls(), **settings or {})  # type: ignore[type-var]
        check(analysis, "settings")
        jobs = _jobs(analysis)
        for name, entry in entries(cls).items():
            value = getattr(analysis, name)
            other = others[name] if others and name in others else _other(entry, value)
            same = _jobs(replace(analysis, **{name: other})) == jobs  # type: ignore[type-var]
            line = "the same jobs; expected others" if same else "other jobs; expected the same"
            line = f"setting {name}: {value!r} and {other!r} make {line}, see without_effect"
            _expect(same == (name in cls.without_effect), line)
        _check_results(analysis, Path(folder))


def _check_import(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    new = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True)
    line = new.stderr[-300:] or "loads torch, too; expected compute to import what it needs"
    _expect(new.returncode == 0, f"import of {module}: {line}")


def _asking(analysis: Analysis) -> StudyConfig:
    """A study of this analysis alone, which may have been registered after studies were defined."""
    analyses = copy(SMALL.analyses)
    object.__setattr__(analyses, analysis.kind, analysis)
    return replace(SMALL, analyses=analyses, only=(analysis.kind,))


def _jobs(analysis: Analysis) -> set[str]:
    return {job.key for job in make_plan(_asking(analysis)).jobs}


def _other(entry: Entry, value: Any) -> Any:
    options = get_args(entry.choices[0])  # of a Literal
    if isinstance(value, (int, float)):
        options = (not value, value + 1, value - 1, value / 2)
    for option in options:
        with suppress(InputError):
            entry.check(entry.name, option)
            if option != value:
                return option
    raise AssertionError(f"setting {entry.name}: pass another value than {value!r} in others")


def _check_results(analysis: Analysis, folder: Path) -> None:
    cls, first, second = type(analysis), folder / "first", folder / "second"
    run_study(_asking(analysis), first)
    whole, empty = read_run(first), RunFolder(first, {})
    extra = {name.removesuffix(".csv") for name in whole.table_files} - {*whole.schemas}
    _expect(not extra, f"tables {extra} have no schema; expected one for each")
    _expect(all(map(str.strip, cls.headlines(whole))), "has an empty headline; expected a sentence")
    shows: list[Any] = [block for block in cls.blocks(empty) if not getattr(block, "note", False)]
    shows += cls.headlines(empty)
    _expect(not shows, f"shows {shown(shows)} of a run without its tables; expected at most notes")
    run_study(_asking(analysis), second)
    for name in whole.table_files:
        same = (first / "tables" / name).read_bytes() == (second / "tables" / name).read_bytes()
        _expect(same, f"table {name} differs the second time; expected the same")
