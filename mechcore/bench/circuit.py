"""Circuits of planted transformers, and their exact answers with parts ablated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float

from mechcore.components import Component

ANSWER = "answer"
"""The feature read as the answer."""
SHARP = 24.0
"""Attention score, in nats, of a head's target; all others have 0."""

GateKind: TypeAlias = Literal["and", "or", "equal", "size"]
Features: TypeAlias = dict[str, Float[np.ndarray, "text pos"]]
Means: TypeAlias = Mapping[Component, float | Mapping[str, float]]
"""Mean outputs: the value of a head, and what an MLP writes to each feature."""


@dataclass(frozen=True)
class Copy:
    """A head that attends to one slot, counted from 0, and adds its weighted value to features.

    Where the feature ``unless`` is 1, it attends to the first token instead, whose value is 0.
    """

    head: Component
    slot: int
    into: Mapping[str, float]
    unless: str | None = None


@dataclass(frozen=True)
class Relay:
    """A head that attends to its own position and adds a weighted feature to others."""

    head: Component
    source: str
    into: Mapping[str, float]


@dataclass(frozen=True)
class Gate:
    """A function of a sum of features, computed by the MLP of a layer and added with weights.

    With inputs of +1 or -1, ``and`` is their common value, or 0 if one of them is 0; ``or`` is
    their sign, also if all but one are 0; ``equal``, of two, is 1 where they agree and -1 where
    they differ; ``size`` is 1 where its input is not 0.
    """

    layer: int
    kind: GateKind
    inputs: tuple[str, ...]
    into: Mapping[str, float]

    @property
    def units(self) -> list[tuple[float, float, float]]:
        """The gate as a sum of ``weight * relu(sign * sum - threshold)``: sign, threshold, weight.

        Thresholds lie between the sums that occur, so no derivative is taken at a kink.
        """
        n = len(self.inputs)
        if self.kind == "and":
            return [(sign, n - 0.75, sign / 0.75) for sign in (1.0, -1.0)]
        if self.kind == "or":
            rise = [(sign, 0.0, sign / 0.75) for sign in (1.0, -1.0)]
            return rise + [(sign, 0.75, -sign / 0.75) for sign in (1.0, -1.0)]
        start = 0.5 if self.kind == "equal" else 0.25
        weight = 4 / 3
        return [(sign, start, weight) for sign in (1.0, -1.0)]

    @property
    def constant(self) -> float:
        """The constant added to the sum of units."""
        return -1.0 if self.kind == "equal" else 0.0

    def __call__(self, total: np.ndarray) -> np.ndarray:
        """The result for a sum of inputs."""
        parts = [w * np.maximum(sign * total - t, 0) for sign, t, w in self.units]
        return np.sum(parts, axis=0) + self.constant


@dataclass(frozen=True)
class Circuit:
    """What a planted transformer computes.

    Attributes:
        heads: functions of its heads, at most one each; all other heads do nothing.
        gates: functions of its MLPs.
        distractors: heads that attend to a slot and write to an unread feature.
    """

    n_slots: int
    heads: Sequence[Copy | Relay]
    gates: Sequence[Gate] = ()
    distractors: Sequence[Copy] = field(default=())

    @property
    def features(self) -> list[str]:
        """All features in order of first mention."""
        parts = (*self.heads, *self.distractors, *self.gates)
        return list(dict.fromkeys([ANSWER, *(f for part in parts for f in part.into)]))

    @property
    def components(self) -> frozenset[Component]:
        """Components that affect some answer."""
        return frozenset(
            [head.head for head in self.heads] + [Component(gate.layer) for gate in self.gates]
        )

    @property
    def n_layers(self) -> int:
        """Number of layers needed."""
        active = [*self.components, *(head.head for head in self.distractors)]
        return 1 + max(component.layer for component in active)

    def answers(
        self,
        tokens: Float[np.ndarray, "text pos"],
        lengths: Sequence[int] | np.ndarray,
        *,
        causal: bool,
        without: Collection[Component] = (),
        means: Means | None = None,
    ) -> Float[np.ndarray, " text"]:
        """Log-odds of "plus" at the read position (the last token if ``causal``), in nats.

        Tokens are 0 for the first, then the values of the slots, then 0; ``lengths`` exclude
        padding. Components in ``without`` are fixed at their `means`.
        """
        features, _ = self._run(tokens, lengths, causal, frozenset(without), means or {})
        answer = features[ANSWER]
        if not causal:
            return answer[:, 0]
        return answer[np.arange(len(answer)), np.asarray(lengths) - 1]

    def means(
        self,
        tokens: Float[np.ndarray, "text pos"],
        lengths: Sequence[int] | np.ndarray,
        *,
        causal: bool,
        weights: Float[np.ndarray, " text"] | None = None,
    ) -> Means:
        """Mean output of every component over real tokens, see `answers`."""
        _, outputs = self._run(tokens, lengths, causal, frozenset(), {})
        real = _real(tokens, lengths)
        per_token = real * (1.0 if weights is None else np.asarray(weights)[:, None])

        def mean(values: np.ndarray) -> float:
            return float((values * per_token).sum() / per_token.sum())

        return {
            component: mean(output)
            if isinstance(output, np.ndarray)
            else {name: mean(values) for name, values in output.items()}
            for component, output in outputs.items()
        }

    def _run(
        self,
        tokens: np.ndarray,
        lengths: Sequence[int] | np.ndarray,
        causal: bool,
        without: frozenset[Component],
        means: Means,
    ) -> tuple[Features, dict[Component, np.ndarray | Features]]:
        """Features after the last layer, and the outputs of all components."""
        seen = np.repeat(_real(tokens, lengths)[:, None], tokens.shape[1], axis=1)
        if causal:
            seen = np.tril(seen)
        stream: Features = {name: np.zeros(tokens.shape) for name in self.features}
        outputs: dict[Component, np.ndarray | Features] = {}
        for layer in range(self.n_layers):
            before = {name: values.copy() for name, values in stream.items()}
            for head in (*self.heads, *self.distractors):
                if head.head.layer != layer:
                    continue
                value = _attended(head, tokens, before, seen)
                outputs[head.head] = value
                if head.head in without:
                    value = np.full(tokens.shape, means[head.head])
                for name, weight in head.into.items():
                    stream[name] += weight * value
            mlp, written = Component(layer), dict[str, np.ndarray]()
            for gate in (gate for gate in self.gates if gate.layer == layer):
                result = gate(np.sum([stream[name] for name in gate.inputs], axis=0))
                for name, weight in gate.into.items():
                    written[name] = written.get(name, 0.0) + weight * result
            if written:
                outputs[mlp] = written
            for name, values in written.items():
                mean = means.get(mlp)
                if mlp in without and isinstance(mean, Mapping):
                    values = np.full(tokens.shape, mean[name])
                stream[name] = stream[name] + values
        return stream, outputs


def _attended(
    head: Copy | Relay, tokens: np.ndarray, stream: Features, seen: Bool[np.ndarray, "t q k"]
) -> Float[np.ndarray, "text pos"]:
    """The output of a head at every position."""
    if isinstance(head, Relay):
        return stream[head.source]
    scores = np.zeros(seen.shape)
    scores[..., head.slot + 1] += SHARP
    if head.unless is not None:
        scores[..., 0] += 2 * SHARP * stream[head.unless]
    scores = np.where(seen, scores, -np.inf)
    pattern = np.exp(scores - scores.max(-1, keepdims=True))
    pattern /= pattern.sum(-1, keepdims=True)
    return np.einsum("tqk,tk->tq", pattern, tokens)


def _real(tokens: np.ndarray, lengths: Sequence[int] | np.ndarray) -> Bool[np.ndarray, "text pos"]:
    return np.arange(tokens.shape[1]) < np.asarray(lengths)[:, None]
