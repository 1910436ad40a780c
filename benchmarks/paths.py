"""Cutting paths one by one, compared with sweeps of as many components and a loop of raw hooks.

The model is random, of MiniLM's shape, and the examples have the lengths of MNLI pairs;
``--model`` and ``--data`` take a real BERT classifier and labelled texts.

    python benchmarks/paths.py [--examples 48] [--pair-examples 8] [--rounds 3] [--json FILE]
    python benchmarks/paths.py --quick

Two comparisons: all paths from one set of senders, two heads of layer 0, to every later receiver,
against a sweep of all single components; and all paths from one component to another, against a
sweep of all pairs of components. All run in float32 on the prefix tree. The loop of raw hooks runs
a random sample of the paths on the plain Hugging Face model, with one forward for the full model,
one for each set of senders and one for each path; its time is extrapolated by forwards. Each round
runs every variant once, in turn, and ratios are within rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from full_forwards import INPUTS, RawHooks
from measuring import spread
from sweep_variants import Bench, Settings, add_options
from torch import Tensor

from mechcore.ablation import Ablations, ComponentSet, ablate, sets
from mechcore.ablation.sets import Cut
from mechcore.components import Component
from mechcore.components.names import PathSet
from mechcore.data.encoding import EncodedExamples

MAX_DIFFERENCE = 1e-4
"""Maximum difference of logits from those of the loop of raw hooks."""

SENDERS = (Component(0, 1), Component(0, 6))
BARS = {"one set of senders": 1.3, "all pairs": 1.5}
"""Maximum time of a sweep of paths, in times of the sweep it is compared with."""

QUICK = {"examples": 4, "pair_examples": 2, "batch_size": 2, "peer_paths": 4, "layers": 3}


class PathLoop(RawHooks):
    """Paths cut by definition, on the plain Hugging Face model."""

    @contextmanager
    def _outputs(self, change: Any) -> Iterator[None]:
        """Every component's output, changed by ``change``: heads side by side, then the MLP."""
        layers = self.model.bert.encoder.layer

        def heads(layer: int, module: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            z = arguments[0].unflatten(-1, (-1, self.means.shape[-1]))
            parts = [change(Component(layer, h), z[..., h, :]) for h in range(z.shape[-2])]
            return (torch.stack(parts, -2).flatten(-2), *arguments[1:])

        def mlp(layer: int, module: Any, arguments: Any, output: Tensor) -> Tensor:
            return change(Component(layer), output)

        with ExitStack() as hooks:
            for i, layer in enumerate(layers):
                dense = layer.attention.output.dense
                for handle in (
                    dense.register_forward_pre_hook(partial(heads, i)),
                    layer.output.dense.register_forward_hook(partial(mlp, i)),
                ):
                    hooks.callback(handle.remove)
            yield

    @torch.no_grad()
    def cut(
        self, paths: Sequence[PathSet], data: EncodedExamples, means: Any, batch_size: int
    ) -> tuple[Tensor, int]:
        """Logits with each set of paths to one receiver cut, [set, example, class], and forwards.

        Forwards are those of the whole model for every batch.
        """
        logits, order, n = [], [], 0
        for batch in data.batches(batch_size):
            run = partial(self.model, **{k: batch[k].to(self.device) for k in INPUTS if k in batch})
            order.append(batch["index"])
            clean: dict[Component, Tensor] = {}
            with self._outputs(lambda c, x, to=clean: to.setdefault(c, x)):
                full = run().logits
            n = 1
            rows = []
            views: dict[frozenset[Component], tuple[dict[Component, Tensor], Tensor]] = {}
            for path in paths:
                [(receiver, senders)] = path.senders.items()
                if senders not in views:
                    views[senders], n = self._view(senders, clean, means, run), n + 1
                seen, answer = views[senders]
                if receiver.component is None:
                    rows.append(answer)
                    continue
                blind, n = receiver.component, n + 1
                with self._outputs(lambda c, x, at=blind, to=seen: to[c] if c == at else x):
                    rows.append(run().logits)
            logits.append(torch.stack(rows or [full]))
        return torch.cat(logits, 1)[:, torch.cat(order).argsort()].cpu(), n

    def _view(
        self, senders: frozenset[Component], clean: Mapping[Component, Tensor], means: Any, run: Any
    ) -> tuple[dict[Component, Tensor], Tensor]:
        """Outputs of components where all others keep their outputs in the run."""
        seen: dict[Component, Tensor] = {}

        def change(component: Component, computed: Tensor) -> Tensor:
            seen[component] = computed
            if component not in senders:
                return clean[component]
            at = (component.layer, component.head) if component.is_head else component.layer
            mean = (means.z if component.is_head else means.mlp)[at]
            return mean.to(computed).expand_as(computed)

        with self._outputs(change):
            return seen, run().logits


def forwards(paths: Sequence[PathSet]) -> int:
    """Forwards of the whole model that the loop of raw hooks would need for all paths."""
    ends = [next(iter(path.senders.items())) for path in paths]
    receivers = sum(receiver.component is not None for receiver, _ in ends)
    return 1 + len({senders for _, senders in ends}) + receivers


class Comparison:
    """Sets of paths compared with sets of components.

    Args:
        bench: model, means and clock.
        name: one of `BARS`.
        paths: sets of paths to cut, each to one receiver.
        alone: sets of components to ablate for comparison.
        data: the examples.
        n_peer: number of paths that the loop of raw hooks runs.
    """

    def __init__(
        self,
        bench: Bench,
        name: str,
        paths: Sequence[PathSet],
        alone: Sequence[ComponentSet],
        data: EncodedExamples,
        n_peer: int,
    ) -> None:
        self.bench, self.name, self.data = bench, name, data
        self.paths, self.alone = paths, alone
        chosen = np.random.default_rng(0).permutation(len(paths))[:n_peer]
        self.sample = [paths[i] for i in sorted(chosen)]

    def ablate(self, cuts: Sequence[Cut]) -> Ablations:
        bench = self.bench
        options: dict[str, Any] = {"batch_size": bench.batch_size, "split": "ood"}
        return ablate(bench.model, cuts, self.data, bench.means, precision="float32", **options)

    def difference(self, loop: PathLoop) -> float:
        """Check the logits of the sample against the loop of raw hooks, which warms both up.

        Raises:
            SystemExit: they differ.
        """
        plain, _ = loop.cut(self.sample, self.data, self.bench.means, self.bench.batch_size)
        ablations = self.ablate(self.sample)
        ours = np.stack([ablations.without[path].logits for path in self.sample])
        difference = float(np.abs(ours - plain.numpy()).max())
        if not difference < MAX_DIFFERENCE:
            raise SystemExit(f"{self.name}: logits differ from raw hooks by {difference:.2g}")
        return difference

    def seconds(self, loop: PathLoop) -> dict[str, float]:
        """Seconds of every variant, once."""
        took = {"sweep": self._timed(lambda: self.ablate(self.alone))}
        took["paths"] = self._timed(lambda: self.ablate(self.paths))
        options = (self.sample, self.data, self.bench.means, self.bench.batch_size)
        n = forwards(self.sample)
        took["raw hooks"] = self._timed(lambda: loop.cut(*options)) * forwards(self.paths) / n
        return took

    def _timed(self, run: Any) -> float:
        start = self.bench.clock()
        run()
        if self.bench.device == "cuda":
            torch.cuda.synchronize()
        return self.bench.clock() - start


def comparisons(bench: Bench, n_peer: int) -> list[Comparison]:
    """Both comparisons, on the examples of the bench's sweeps."""
    shape = bench.shape
    alone = [ComponentSet((component,)) for component in shape.components]
    pairs = [ComponentSet(pair) for pair in itertools.combinations(shape.components, 2)]
    one = sets.paths(SENDERS, "all", bench.model)
    every = sets.paths("all", ["heads", "mlps"], bench.model, together=False)
    some, fewer = (sweep.data for sweep in bench.sweeps)
    cases = (("one set of senders", one, alone, some), ("all pairs", every, pairs, fewer))
    return [Comparison(bench, *case, n_peer) for case in cases]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=48, help="for one set of senders")
    parser.add_argument("--pair-examples", type=int, default=8, help="for all pairs")
    parser.add_argument("--peer-paths", type=int, default=24, help="paths of the loop")
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.quick:
        parser.set_defaults(**QUICK, rounds=1)
        options = parser.parse_args(arguments)
    if (options.model is None) != (options.data is None):
        parser.error("--model and --data belong together")
    torch.set_num_threads(options.threads)
    names = [setting.name for setting in fields(Settings) if hasattr(options, setting.name)]
    settings = Settings(peer_sets=1, **{name: getattr(options, name) for name in names})
    print(f"load average at the start: {os.getloadavg()[0]:.1f}")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(settings, Path(folder))
        loop = PathLoop(bench.source, bench.means, bench.device)
        for case in comparisons(bench, options.peer_paths):
            difference = case.difference(loop)
            timed = [case.seconds(loop) for _ in range(options.rounds)]
            cost = spread([took["paths"] / took["sweep"] for took in timed])
            speed = spread([took["raw hooks"] / took["paths"] for took in timed])
            print(
                f"\n== {case.name}: {len(case.paths)} paths beside {len(case.alone)} sets, "
                f"{len(case.data)} examples\n"
                + "   paths take {:.2f} ({:.2f}-{:.2f}) times the sweep; ".format(*cost)
                + f"wanted: at most {BARS[case.name]}\n"
                + "   they are {:.2f} ({:.2f}-{:.2f}) times as fast as raw hooks; ".format(*speed)
                + f"logits differ by {difference:.1g}"
            )
            results.append(
                {
                    "comparison": case.name,
                    "paths": len(case.paths),
                    "sets": len(case.alone),
                    "seconds of each round": timed,
                    "times the sweep": cost,
                    "times as fast as raw hooks": speed,
                    "largest logit difference to raw hooks": difference,
                }
            )
    print(f"load average at the end: {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps({"comparisons": results}, indent=1))


if __name__ == "__main__":
    main()
