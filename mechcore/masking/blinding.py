"""Cutting paths: receivers that read the residual stream with some outputs replaced by a fill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechcore.components import Component, ModelShape
from mechcore.components.names import INPUTS, Path, PathSet, PathSetLike, Receiver
from mechcore.errors import InputError
from mechcore.masking.fills import Fill, FillMaker, Kind, fill_of
from mechcore.masking.interventions import blended, intervening
from mechcore.masking.means import MeanActivations
from mechcore.models.batches import real_positions
from mechcore.models.devices import sent
from mechcore.models.hooks import Hook
from mechcore.models.protocol import (
    Batch,
    device_of,
    hook_mlp_out,
    hook_resid_mid,
    hook_z,
    logits_of,
    model_inputs,
    n_kv_heads,
)

_ANSWER = Receiver(None)


class BlindModel:
    """Runs batches through a model some of whose components are blind; made by `blind`."""

    def __init__(self, model: Any, rows: _Rows, *, one: bool) -> None:
        self.model, self.rows, self.one = model, rows, one
        self.positions: Tensor | None = None

    def __call__(self, batch: Batch) -> Float[Tensor, "*sets batch *pos out"]:
        """Logits of ``batch``, with a leading axis of sets of paths if there are several."""
        inputs, n = model_inputs(self.model, batch), len(self.rows.run)
        self.positions = real_positions(inputs["attention_mask"])
        try:
            repeated = {name: tensor.repeat(n, 1) for name, tensor in inputs.items()}
            logits = logits_of(self.model, repeated).unflatten(0, (n, -1))[self.rows.answers]
        finally:
            self.positions = None
        return logits[0] if self.one else logits


class _Rows:
    """The rows that run side by side, and whose outputs they take.

    The model runs the *run* and, for each set of senders, a *view*. At every component a view takes
    the run's output, or the fill for its senders; so its residual stream is the run's without them,
    for any order of adds and norms. A blind receiver's output is the one that its view computed.
    ``answers`` are the rows whose logits are each set's.
    """

    def __init__(self, sets: Sequence[PathSet]) -> None:
        self.senders: list[frozenset[Component]] = []
        self.run: list[int] = []
        self.answers: list[int] = []
        self.blind: dict[tuple[int, Receiver], int] = {}
        full: int | None = None  # the run of the full model, and views of it
        views_of_full: dict[frozenset[Component], int] = {}
        for cut in sets:
            inner = [r.component for r in cut.senders if r.component is not None]
            # Before the first receiver, nothing differs from the full model.
            together = len({(c.layer, c.is_head) for c in inner}) <= 1
            shares = together and not (inner and _ANSWER in cut.senders)
            if shares and full is None:
                full = self._row(frozenset())
            run = self._row(frozenset()) if inner or full is None else full
            seen, views = (run, {}) if full is None or not shares else (full, views_of_full)
            for receiver, senders in cut.senders.items():
                if senders not in views:
                    views[senders] = self._row(senders, seen)
                if receiver != _ANSWER:
                    self.blind[run, receiver] = views[senders]
            self.answers.append(views[cut.senders[_ANSWER]] if _ANSWER in cut.senders else run)

    def _row(self, senders: frozenset[Component], run: int | None = None) -> int:
        self.senders.append(senders)
        self.run.append(len(self.run) if run is None else run)
        return len(self.run) - 1

    def sources(
        self, components: Sequence[Component], what: str = "all", *, runs_only: bool = False
    ) -> Int[Tensor, "row component"]:
        """The row that computes each row's output of a layer, or the input of heads."""
        by_run = {
            run: [self.blind.get((run, Receiver(c, what)), run) for c in components]
            for run in set(self.run)
        }
        own = [[row] * len(components) for row in range(len(self.run))]
        return torch.tensor(
            [
                own[row] if runs_only and row != run else by_run[run]
                for row, run in enumerate(self.run)
            ]
        )

    def kept(self, components: Sequence[Component]) -> Float[Tensor, "row component"]:
        """0 for a row's senders, 1 for all others."""
        return torch.tensor(
            [[float(c not in senders) for c in components] for senders in self.senders]
        )


@contextmanager
def blind(
    model: Any,
    paths: PathSetLike | Iterable[PathSet],
    means: MeanActivations | None = None,
    fill: FillMaker = "mean",
    *,
    seed: int = 0,
) -> Iterator[BlindModel]:
    """Cut paths for the duration of a with block, whose value runs a batch.

    ``paths`` are one set of paths, such as ``"L1.H1>L3.H9.q"``, or a list of `PathSet`, cut
    separately; the rows of a batch are then repeated for each set. In grouped-query attention a key
    or value is blind for all heads of its group. For what a receiver reads instead of its senders'
    outputs, the other arguments and errors see `masked`.

    Raises:
        InputError: a receiver does not run after its sender, or the model lacks a component or hook
            point.

    >>> with blind(model, "L1.H1>L3.H9.q", means) as run:  # doctest: +SKIP
    ...     logits = run(batch)
    """
    sets, several = _sets(paths)
    sets = [_by_group(path_set, model) for path_set in sets]
    shape, parallel = ModelShape.of(model), runs_in_parallel(model)
    for path_set in sets:
        for path in path_set.paths:
            path.check(shape, parallel=parallel)
    filling = fill_of(model, means, fill, seed)
    rows = _Rows(sets)
    runner = BlindModel(model, rows, one=not several)
    with _running(rows, shape, runner, filling):
        yield runner


def _sets(paths: PathSetLike | Iterable[PathSet]) -> tuple[list[PathSet], bool]:
    """The sets, and whether several were given."""
    if isinstance(paths, (str, Path, PathSet)):
        return [PathSet.of(paths)], False
    given = list(paths)
    if not given:
        raise InputError("blind: no set of paths; expected at least one")
    sets = [part for part in given if isinstance(part, PathSet)]
    if sets:
        return sets, True
    return [PathSet.of([part for part in given if not isinstance(part, PathSet)])], False


def _by_group(paths: PathSet, model: Any) -> PathSet:
    """The paths with blind keys and values for all heads of their group, which share them."""
    size = ModelShape.of(model).n_heads // n_kv_heads(model)
    of_group: dict[tuple[int, int, str], set[Component]] = {}
    keys: dict[Receiver, tuple[int, int, str]] = {}
    for receiver, senders in paths.senders.items():
        to = receiver.component
        if to is not None and to.head is not None and receiver.input in ("k", "v"):
            keys[receiver] = to.layer, to.head // size, receiver.input
            of_group.setdefault(keys[receiver], set()).update(senders)
    more = [Path(sender, to) for to, key in keys.items() for sender in of_group[key]]
    return PathSet.of([*paths.paths, *more], paths.name)


def runs_in_parallel(model: Any) -> bool:
    """Whether a layer's MLP reads what its heads read, not what they write."""
    return hook_resid_mid(0) not in model.hook_dict


@contextmanager
def _running(rows: _Rows, shape: ModelShape, runner: BlindModel, fill: Fill) -> Iterator[None]:
    """Make rows exchange their outputs."""
    hooks: list[tuple[str, Hook]] = []
    device = device_of(runner.model)
    own = torch.arange(len(rows.run))
    if len(own) == len(set(rows.run)):  # no component is blind
        with intervening(runner.model, []):
            yield
        return
    for layer in range(shape.n_layers):
        heads = [Component(layer, head) for head in range(shape.n_heads)]
        for what in INPUTS[1:]:
            sources = rows.sources(heads, what, runs_only=True)
            if bool((sources != own[:, None]).any()):
                read = partial(_read, sent(sources, device))
                hooks.append((f"blocks.{layer}.attn.hook_{what}", read))
        places: list[tuple[Kind, str, list[Component]]] = [("z", hook_z(layer), heads)]
        places += [("mlp", hook_mlp_out(layer), [Component(layer)])] * shape.has_mlps
        for kind, name, components in places:
            sources, kept = rows.sources(components), rows.kept(components)
            there = None if bool((kept == 1).all()) else sent(kept, device)
            place = kind, layer, sent(sources, device), there
            hooks.append((name, partial(_write, place, runner, fill)))
    with intervening(runner.model, hooks):
        yield


def _read(sources: Int[Tensor, "row head"], activation: Tensor, hook: Any) -> Tensor:
    """Queries, keys or values [rows, pos, head, d_head] of other rows; grouped ones are fewer."""
    # A group reads like the first of its blind heads, or else like the run.
    by_group = sources.unflatten(1, (activation.shape[2], -1))
    own = torch.arange(len(sources), device=sources.device)[:, None, None]
    first = (by_group != own).int().argmax(-1, keepdim=True)
    return _exchanged(activation, by_group.gather(-1, first)[..., 0])


def _write(
    place: tuple[Kind, int, Tensor, Tensor | None],
    runner: BlindModel,
    fill: Fill,
    activation: Tensor,
    hook: Any,
) -> Tensor:
    """The outputs of rows [rows, pos, ...]; ``kept`` is 0 [row, component] for senders, or None."""
    kind, layer, sources, kept = place
    heads = activation if kind == "z" else activation[:, :, None]
    out = _exchanged(heads, sources).view_as(activation)
    if kept is None:
        return out
    rows = out.unflatten(0, (len(sources), -1))
    m = kept.to(out)[:, None, None, :]
    draws = fill.draws(kind, layer, rows.shape[1:])
    values = fill.checked(kind, layer, runner.positions, draws)
    return blended(rows, m[..., None] if kind == "z" else m, values).flatten(0, 1)


def _exchanged(
    activation: Float[Tensor, "rows pos component d"], sources: Int[Tensor, "row component"]
) -> Float[Tensor, "rows pos component d"]:
    """Every row's components as another row computed them."""
    rows = activation.unflatten(0, (len(sources), -1))  # [row, batch, pos, component, d]
    sources = sources.to(activation.device)
    components = torch.arange(sources.shape[1], device=activation.device)
    taken = rows.permute(0, 3, 1, 2, 4)[sources, components]  # [row, component, batch, pos, d]
    return taken.permute(0, 2, 3, 1, 4).flatten(0, 1).contiguous()
