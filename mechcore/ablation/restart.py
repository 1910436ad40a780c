"""The restart engine: prefixes shared on any model, by calling the model's own layers again.

Masks that agree on all components of the layers before some layer share the residual stream there.
It is computed once: the model's own forward runs with the layers before that one passing on what
they are given, its input replaced by the residual stream repeated for every mask, and the forward
is left where the next layer would be called. Attention masks, positions, rotary tables and relative
embeddings are made by the model itself each time, and so is the head.

Of the last layer only the position read is wanted. The heads' outputs z are computed there for
all positions, once for masks that agree up to that layer, and the forward is left at ``hook_z``.
Everything after z treats each position alone, so the last layer and the head then run on texts of
one token: what attention makes of that is replaced by the z that is known. A head that reads more
than one position shows in the check before the sweep, and has the last layer run everywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mechcore.ablation.engines import Job, SharingEngine
from mechcore.ablation.tree import Emit, Node, Runner
from mechcore.components import ModelShape
from mechcore.errors import InputError, MechcoreError
from mechcore.masking.fills import Fill, Kind
from mechcore.masking.interventions import ELSEWHERE, blended, intervening
from mechcore.models.running import forward, name_of


class _Left(Exception):
    """A forward was left where ``value`` was wanted."""

    def __init__(self, value: Tensor) -> None:
        super().__init__("left a forward")
        self.value = value


class Layers:
    """A model's own forward, from any layer and up to any other.

    Layers are told by the order of their calls, so that one module may be several of them. Before
    a layer can be passed over it has to run once, which shows what it returns.

    Args:
        model: any TransformerLens model.

    Raises:
        InputError: the model has no layers that can be called.
    """

    def __init__(self, model: Any) -> None:
        blocks = getattr(model, "blocks", None)
        if not isinstance(blocks, nn.ModuleList) or len(blocks) == 0:
            raise InputError(
                f"restart engine: {type(model).__name__} has no layers in model.blocks that can "
                "be called again; engine='reference' runs any model"
            )
        self.model, self.blocks = model, list(dict.fromkeys(blocks))
        self.sizes: dict[int, int | None] = {}

    def __call__(
        self,
        inputs: Mapping[str, Tensor],
        start: int = 0,
        x: Float[Tensor, "row pos d_model"] | None = None,
        stop: int | None = None,
    ) -> Tensor:
        """Run layers ``start`` up to ``stop``, or up to the logits.

        Args:
            inputs: model inputs [row, pos].
            start: first layer to run.
            x: the residual stream before it; None for the embedding.
            stop: the layer before which the residual stream is wanted.

        Raises:
            InputError: the model's forward does not call its layers.
        """
        self.calls, self.start, self.x, self.stop = 0, start, x, stop
        with self._watched():
            try:
                logits = forward(self.model, inputs)
            except _Left as left:
                return left.value
        if stop is not None or self.calls <= start:
            raise InputError(
                f"restart engine: the forward of {type(self.model).__name__} called "
                f"{self.calls} layers of model.blocks; expected more than {stop or start}"
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
            args, kwargs = (self.x, *args[1:]), dict(kwargs)
            if kwargs.pop("hidden_states", None) is not None:
                args, kwargs["hidden_states"] = (), self.x
        out = run(*args, **kwargs)
        self.sizes[layer] = len(out) if isinstance(out, tuple) else None
        return out


class RestartRunner(Runner):
    """Runs a batch through a model's own layers; emits logits [batch, *pos, out].

    Args:
        layers: of the model.
        shape: of the model.
        fills: what stands in.
        max_tokens: see `Runner`.
        everywhere: run the last layer and the head at all positions.
    """

    def __init__(
        self, layers: Layers, shape: ModelShape, fills: Fill, max_tokens: int, everywhere: bool
    ) -> None:
        super().__init__(shape, fills, max_tokens)
        self.layers, self.everywhere = layers, everywhere

    @torch.no_grad()
    def run(self, inputs: Mapping[str, Tensor], read: Tensor, tree: Node, emit: Emit) -> None:
        """See `Runner.run`."""
        self.inputs = self.read_inputs = dict(inputs)
        if not self.everywhere:
            self.read_inputs = {k: v.gather(1, read[:, None]) for k, v in inputs.items()}
        self._start(inputs, None if self.everywhere else read, emit)
        x = self.layers(inputs, stop=0)
        acts = {(kind, i): partial(self._act, kind, i) for kind, i in self.draws}
        with intervening(self.layers.model, acts):
            self._below(0, x[None], [tree])

    # x is the residual stream [node, batch, pos, d_model] of ``nodes``.

    def _below(self, layer: int, x: Tensor, nodes: Sequence[Node]) -> None:
        last, z, inputs = layer == self.shape.n_layers - 1, None, self.inputs
        parts = list(self._parts(nodes, x))
        if last and self.read is not None:
            z, x, inputs = self._at(self._last_z(x)), self._at(x), self.read_inputs
        for part in parts:
            parents = [n for n, *_ in part]
            children = [child for *_, child in part]
            self.values: Tensor | None = torch.stack([values for _, values, _ in part])
            self.z = None if z is None else z[parents]
            rows = self._rows(inputs, len(part))
            stop = None if last else layer + 1
            out = self.layers(rows, layer, x[parents].flatten(0, 1), stop)
            out = out.unflatten(0, (len(part), -1))
            if not last:
                self._below(layer + 1, out, children)
                continue
            for child, logits in zip(children, out, strict=True):
                self.emit(child.masks, logits)

    def _last_z(self, x: Tensor) -> Float[Tensor, "node batch pos head d_head"]:
        """What the heads of the last layer put out, which their masks do not change."""
        self.values = None
        z = self.layers(self._rows(self.inputs, len(x)), self.shape.n_layers - 1, x.flatten(0, 1))
        return z.unflatten(0, (len(x), -1))

    @staticmethod
    def _rows(inputs: Mapping[str, Tensor], n: int) -> dict[str, Tensor]:
        return {name: tensor.repeat(n, 1) for name, tensor in inputs.items()}

    def _at(self, values: Float[Tensor, "node batch pos *rest"]) -> Tensor:
        """Values at the position read, [node, batch, 1, *rest]."""
        assert self.read is not None
        read = self.read.to(values.device)
        return values[:, torch.arange(len(read), device=read.device), read][:, :, None]

    def _act(self, kind: Kind, layer: int, activation: Tensor) -> Tensor | None:
        """The one intervention, every row with its own mask."""
        if self.values is None:
            if kind == "z":
                raise _Left(activation)
            return None
        values, n = self.values, self.shape.n_heads
        m = values[:, None, None, :n, None] if kind == "z" else values[:, None, None, n:]
        rows = activation.unflatten(0, (len(values), -1))
        if kind == "z" and self.z is not None:
            rows = self.z.to(activation.device)
        elif bool((m == 1).all()):
            return None
        return blended(rows, m, self._fill(kind, layer, activation)).flatten(0, 1)


class RestartEngine(SharingEngine):
    """Prefixes shared at the granularity of layers, on a model that is called as it is."""

    name = "restart"

    def __init__(self, job: Job, layers: Layers, max_tokens: int | None) -> None:
        self.model_layers = layers
        self.everywhere: bool | None = None  # not known before the check
        columns = job.shape.n_heads + job.shape.has_mlps
        super().__init__(job, ModelShape(job.shape.n_layers, columns, has_mlps=False), max_tokens)
        # Longest, as a head that reads several positions does not show in texts of one token.
        longest = max(self.batches, key=lambda batch: batch["input_ids"].shape[1])
        self.checked = {name: values[:4] for name, values in longest.items()}

    def layers(self, tree: Node) -> float:
        """See `SharingEngine.layers`: of the last layer only the attention counts."""
        counts, level = [], [tree]
        while level[0].children:
            counts.append(len(level))
            level = [child for node in level for _, child in node.children]
        last = list(self.job.model.blocks)[-1]
        attention = sum(weight.numel() for weight in last.attn.parameters())
        share = attention / sum(weight.numel() for weight in last.parameters())
        return sum(counts[1:]) + share * counts[-1]

    def _new_runner(self, exact: bool = False) -> RestartRunner:
        everywhere = bool(self.everywhere)
        return RestartRunner(
            self.model_layers, self.job.shape, self._fills(), self.max_tokens, everywhere
        )

    def _answers(self, runner: RestartRunner, x: Tensor, index: Tensor) -> Tensor:
        return self.job.readout.read(x, runner.read_inputs, index)

    def check(self) -> None:
        """Make sure once that the engine gives the model's logits, see `TreeEngine.check`.

        Raises:
            NotFiniteError: the model's are not finite.
            MechcoreError: it does not.
        """
        if self.everywhere is not None:
            return
        self.expected  # whatever is wrong with the model itself is said as it is  # noqa: B018
        found: str | None = None
        for everywhere in (False, True):
            self.everywhere = everywhere
            try:
                found = self.disagreement()
            except Exception as error:  # what a model makes of being restarted is of any kind
                found = f"{type(error).__name__}: {error}"
            if found is None:
                return
        self.everywhere = None
        raise MechcoreError(
            f"restart engine: {name_of(self.job.model)} run from a layer on: {found}; expected the "
            "logits of its whole forward: use engine='reference'"
        )
