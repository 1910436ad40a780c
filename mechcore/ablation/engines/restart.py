"""The restart engine: prefixes shared on any model, by calling the model's own layers again.

Of the last layer, z is computed once, and the rest runs on the position read alone, as one token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mechcore.ablation.engines.engine import Job, SharingEngine
from mechcore.ablation.engines.tree import Child, Emit, Inputs, Node, Runner, children_of
from mechcore.components import ModelShape
from mechcore.errors import InputError, MechcoreError
from mechcore.masking.fills import Fill, Kind
from mechcore.masking.interventions import ELSEWHERE, blended, intervening
from mechcore.models.devices import chosen, sent
from mechcore.models.protocol import hook_mlp_out, hook_z, logits_of, name_of


class _Left(Exception):
    """A forward was left where its argument was wanted."""


class Layers:
    """A model's own forward, from any layer up to any other; layers are identified by call order.

    A layer has to run once, which shows what it returns, before it can be passed over.
    """

    def __init__(self, model: Any) -> None:
        blocks = getattr(model, "blocks", None)
        if not isinstance(blocks, nn.ModuleList) or len(blocks) == 0:
            raise InputError(
                f"restart engine: {type(model).__name__} has no layers in model.blocks; "
                "engine='reference' runs any model"
            )
        self.model, self.blocks = model, list(dict.fromkeys(blocks))
        self.sizes: dict[int, int | None] = {}

    def __call__(
        self,
        inputs: Inputs,
        start: int = 0,
        x: Float[Tensor, "row pos d_model"] | None = None,
        stop: int | None = None,
    ) -> Tensor:
        """The residual stream before ``stop``, or the logits, from ``x`` before layer ``start``."""
        self.calls, self.start, self.x, self.stop = 0, start, x, stop
        with self._watched():
            try:
                logits = logits_of(self.model, inputs)
            except _Left as left:
                return left.args[0]
        if stop is not None:
            raise InputError(
                f"restart engine: the forward of {name_of(self.model)} called {self.calls} layers "
                f"of model.blocks; expected more than {stop}"
            )
        return logits

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Have the layers' calls go through `_call`."""
        known = [(vars(block), vars(block).get("forward")) for block in self.blocks]
        for block, (own, _) in zip(self.blocks, known, strict=True):
            own["forward"] = partial(self._call, threading.get_ident(), block.forward)
        try:
            yield
        finally:
            for own, before in known:
                del own["forward"]
                if before is not None:
                    own["forward"] = before

    def _call(self, thread: int, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            raise MechcoreError(ELSEWHERE)
        layer, self.calls = self.calls, self.calls + 1
        given = args[0] if args else kwargs["hidden_states"]
        if layer == self.stop:
            raise _Left(given)
        if layer < self.start:
            size = self.sizes[layer]
            return given if size is None else (given, *[None] * (size - 1))
        if layer == self.start and self.x is not None:
            args = (self.x, *args[1:]) if args else ()
            kwargs |= {} if args else {"hidden_states": self.x}
        out = run(*args, **kwargs)
        self.sizes[layer] = len(out) if isinstance(out, tuple) else None
        return out


class RestartRunner(Runner):
    """Runs a batch through a model's own layers; emits logits [node, batch, *pos, out].

    ``everywhere`` runs the last layer and the head at all positions; ``stepwise`` leaves the
    forward after every layer, also where no masks part.
    """

    def __init__(
        self,
        layers: Layers,
        shape: ModelShape,
        fills: Fill,
        max_tokens: int,
        *,
        everywhere: bool = False,
        stepwise: bool = False,
    ) -> None:
        super().__init__(shape, fills, max_tokens)
        self.layers, self.last = layers, shape.n_layers - 1
        self.everywhere, self.stepwise = everywhere, stepwise
        self.z: Tensor | None = None
        self.values: dict[int, Tensor] = {}

    @torch.no_grad()
    def run(self, inputs: Inputs, read: Tensor | None, tree: Node, emit: Emit) -> None:
        """See `Runner.run`."""
        self._start(inputs, None if self.everywhere else read, emit)
        self.inputs = self.read_inputs = inputs
        if self.read is not None:
            at = self.read[:, None]
            self.read_inputs = {k: v.gather(1, at) for k, v in inputs.items()}
        names = {"z": hook_z, "mlp": hook_mlp_out}
        hooks = [(names[kind](i), partial(self._hook, kind, i)) for kind, i in self.draws]
        with intervening(self.layers.model, hooks):
            x = self.layers(inputs, stop=0)
            self._below(0, x[None], [tree])

    # x is the residual stream [node, batch, pos, d_model] of ``nodes``.
    def _below(self, layer: int, x: Tensor, nodes: Sequence[Node]) -> None:
        if layer == self.last:
            self._logits(x, nodes)
            return
        by_parting: dict[bool, list[Child]] = {}  # the full mask's first, as it is handed out first
        for child in children_of(nodes):
            parting = self._parts_at(layer + 1, child[-1]) < self.last
            by_parting.setdefault(parting, []).append(child)
        for part in chain.from_iterable(self._parts(family, x) for family in by_parting.values()):
            children = [child for *_, child in part]
            stop = min(self._parts_at(layer + 1, child) for child in children)
            self.z = None
            self.values = {layer: torch.stack([values for _, values, _ in part])}
            for between in range(layer + 1, stop):
                only = [child.children[0] for child in children]
                self.values[between] = torch.stack([values for values, _ in only])
                children = [child for _, child in only]
            out = self._call(self.inputs, layer, chosen(x, 0, [n for n, *_ in part]), stop)
            self._below(stop, out, children)

    def _parts_at(self, layer: int, node: Node) -> int:
        """The first layer from this on whose masks differ among those of a node before it."""
        while layer < self.last and len(node.children) == 1 and not self.stepwise:
            layer, node = layer + 1, node.children[0][1]
        return layer

    def _logits(self, x: Tensor, nodes: Sequence[Node]) -> None:
        z: Tensor | None = None
        at, inputs = x, self.inputs
        if self.read is not None:
            self.values = {}
            rows = torch.arange(len(self.read), device=self.read.device)
            z = self._call(inputs, self.last, x)
            z, at = (
                whole[:, rows.to(whole.device), self.read.to(whole.device)][:, :, None]
                for whole in (z, x)
            )
            inputs = self.read_inputs
        for part in self._parts(children_of(nodes), x):
            parents = [n for n, *_ in part]
            self.z = None if z is None else chosen(z, 0, parents)
            self.values = {self.last: torch.stack([values for _, values, _ in part])}
            out = self._call(inputs, self.last, chosen(at, 0, parents))
            self.emit([child.masks for *_, child in part], out)

    def _call(
        self, inputs: Inputs, start: int, x: Tensor, stop: int | None = None
    ) -> Float[Tensor, "node batch *rest"]:
        """Run layers for all nodes in one batch."""
        rows = {name: tensor.repeat(len(x), 1) for name, tensor in inputs.items()}
        return self.layers(rows, start, x.flatten(0, 1), stop).unflatten(0, (len(x), -1))

    def _hook(self, kind: Kind, layer: int, activation: Tensor, hook: Any) -> Tensor | None:
        """The one intervention, every row with its own mask; without masks, z is wanted."""
        values, n = self.values.get(layer), self.shape.n_heads
        if values is None:
            if kind == "z":
                raise _Left(activation)
            return None
        values = values[:, None, None, :n, None] if kind == "z" else values[:, None, None, n:]
        rows = activation.unflatten(0, (len(values), -1))
        if kind == "z" and self.z is not None:
            rows = self.z.to(activation.device)
        elif bool((values == 1).all()):
            return None
        m = sent(values.to(activation.dtype), activation.device)
        return blended(rows, m, self._fill(kind, layer, activation)).flatten(0, 1)


def by_layers(shape: ModelShape) -> ModelShape:
    """What makes `grow` a tree with one level a layer."""
    return ModelShape(shape.n_layers, shape.columns, has_mlps=False)


def evaluations(model: Any, tree: Node) -> float:
    """How often a layer runs for one batch, over a tree by layers; of the last its attention."""
    counts, level = [], [tree]
    while level[0].children:
        counts.append(len(level))
        level = [child for *_, child in children_of(level)]
    attention, whole = (
        sum(weight.numel() for weight in part.parameters())
        for part in (model.blocks[-1].attn, model.blocks[-1])
    )
    return sum(counts[1:]) + attention / whole * counts[-1]


class RestartEngine(SharingEngine):
    """Prefixes shared at the granularity of layers, on a model that is called as it is."""

    name = "restart"

    def __init__(self, job: Job, layers: Layers) -> None:
        self.model_layers = layers
        self.everywhere: bool | None = None  # not known before the check
        super().__init__(job, by_layers(job.shape))
        # The longest texts: a head that reads several positions does not show in a single token.
        longest = max(self.batches, key=lambda batch: int(batch["attention_mask"].sum(1).max()))
        rows = longest["attention_mask"].sum(1).argsort(descending=True)[:4]
        self.checked = {name: values[rows] for name, values in longest.items()}

    def layers(self, tree: Node) -> float:
        """See `SharingEngine.layers`."""
        return evaluations(self.job.model, tree)

    def _new_runner(self, exact: bool = False) -> RestartRunner:
        given = (self.model_layers, self.job.shape, self._fills(), self.max_tokens)
        # The check is to restart from every layer.
        return RestartRunner(*given, everywhere=bool(self.everywhere), stepwise=exact)

    def _answers(self, runner: RestartRunner, x: Tensor) -> Tensor:
        return self.job.readout.taken(x, runner.read_inputs)

    def check(self) -> None:
        """Make sure once that the engine gives the model's logits, see `SharingEngine.check`."""
        if self.everywhere is not None:
            return
        self.expected  # whatever is wrong with the model itself is said as it is  # noqa: B018
        for everywhere in (True,) if self.job.readout.everywhere else (False, True):
            self.everywhere = everywhere
            try:
                wrong = self.disagreement()
            except Exception as error:  # what a model makes of being restarted is of any kind
                wrong = f"{type(error).__name__}: {error}"
            if wrong is None:
                return
        self.everywhere = None
        raise MechcoreError(
            f"restart engine: {name_of(self.job.model)} run from a layer on: {wrong}; expected the "
            "logits of its whole forward: use engine='reference'"
        )
