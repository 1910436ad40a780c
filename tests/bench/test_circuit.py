"""What circuits answer, computed by hand."""

import numpy as np
import pytest

from mechcore.bench.circuit import ANSWER, SHARP, Circuit, Copy, Gate, GateKind, Means, Relay
from mechcore.components import Component

A, B, C, MLP = Component(0, 0), Component(1, 1), Component(1, 2), Component(1)


@pytest.mark.parametrize(
    ("kind", "n_inputs", "expected"),
    [
        ("and", 2, {2: 1, 1: 0, 0: 0, -1: 0, -2: -1}),
        ("or", 2, {2: 1, 1: 1, 0: 0, -1: -1, -2: -1}),
        ("equal", 2, {2: 1, 0: -1, -2: 1, 1: -1 / 3}),
        ("size", 1, {1: 1, 0: 0, -1: 1}),
    ],
)
def test_gates(kind: GateKind, n_inputs: int, expected: dict[int, float]) -> None:
    gate = Gate(0, kind, tuple("ab"[:n_inputs]), {ANSWER: 1})
    for total, value in expected.items():
        assert gate(np.array(float(total))) == pytest.approx(value)


def tokens(*slots: int) -> np.ndarray:
    return np.array([[0, *slots, 0]], dtype=float)


def test_heads_copy_add_relay_and_stand_in() -> None:
    first = Copy(A, 0, {"kept": 1, ANSWER: 2})
    circuit = Circuit(2, [first, Copy(B, 1, {ANSWER: -1}), Relay(C, "kept", {ANSWER: 5})])
    text = tokens(1, -1)
    expected = {(): 2 + 1 + 5, (A,): 1, (B,): 7, (C,): 3, (A, C): 1, (A, B, C): 0}
    nothing = dict.fromkeys((A, B, C), 0.0)
    for causal in (False, True):
        for without, answer in expected.items():
            output = circuit.answers(text, [4], causal=causal, without=without, means=nothing)
            assert output == pytest.approx(answer, abs=1e-6)
    some = circuit.answers(text, [4], causal=True, without=[A], means={A: 0.5})
    assert some == pytest.approx(0.5 * 2 + 0.5 * 5 + 1)
    gate = Gate(0, "size", ("seen",), {"there": 1})
    heads = [Copy(A, 0, {"seen": 1, ANSWER: 2}), Copy(B, 0, {ANSWER: 2}, unless="there")]
    circuit, mlp = Circuit(1, heads, [gate]), Component(0)
    means: Means = {A: 0.0, B: 0.0, mlp: {"there": 1.0}}
    expected = {(): -2, (A,): -2, (B,): -2, (A, B): 0, (A, mlp): 0, (mlp,): -2, (B, mlp): -2}
    for without, answer in expected.items():
        output = circuit.answers(tokens(-1), [3], causal=False, without=without, means=means)
        assert output == pytest.approx(answer, abs=1e-6)


def test_means_are_over_tokens_that_are_no_padding() -> None:
    """In a decoder, tokens before the slot see all tokens so far alike."""
    circuit = Circuit(2, [Copy(A, 1, {ANSWER: 1})])
    text = np.array([[0, -1, 1, 0, 0]], dtype=float)
    tiny = 10 * np.exp(-SHARP)
    assert circuit.means(text, [4], causal=False)[A] == pytest.approx(1, abs=tiny)
    first_two = (0 + -0.5) / 4 + (1 + 1) / 4
    assert circuit.means(text, [4], causal=True)[A] == pytest.approx(first_two, abs=tiny)
    two = np.repeat(text, 2, axis=0) * [[1], [-1]]
    weighted = circuit.means(two, [4, 4], causal=False, weights=np.array([3.0, 1.0]))
    assert weighted[A] == pytest.approx(0.5, abs=tiny)
