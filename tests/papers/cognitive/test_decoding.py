"""Decoding of states in the cognitive task: planted codes, leaks, and what no prompt has said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mechcore.errors import InputError, MechcoreWarning
from mechcore.models import load_model
from mechcore.papers.cognitive import decoding
from mechcore.papers.cognitive.decoding import (
    Site,
    check_trials,
    decoding_tables,
    share_read,
)
from mechcore.papers.cognitive.probing import (
    correlation_floor,
    decode,
)
from mechcore.papers.cognitive.text import LANDMARKS, WORDS
from mechcore.papers.cognitive.trials import Trials, generate
from mechcore.worlds.small_gpt2 import word_tokenizer

TWO_SIDED = LANDMARKS["two_sided"]
TABLE = "cognitive_decoding"
N, P, Y = "no", "partly", "yes"
READ = {  # by landmark: context, motion_left, motion_right, color_left, color_right, answer
    "context": [Y, Y, Y, Y, Y, Y],
    "motion": [N, P, Y, Y, Y, Y],
    "color": [N, N, N, P, Y, Y],
    "choice": [N, P, P, P, Y, Y],
}
SUBSETS = [
    *[("context", "all"), ("motion", "all"), ("motion", "balanced")],
    *[("color", "all"), ("color", "balanced"), ("choice", "all")],
]
SIGNED_WORDS = [
    *("Context:", "motion.", "color.", "Motion", "Color", "coherence:", "Choice:"),
    *(f"{sign}0.{size:02d}." for sign in ("", "-") for size in range(1, 100)),
]


@pytest.fixture(scope="module")
def trials() -> Trials:
    return generate(120, 0, split="test")


@pytest.fixture(scope="module")
def tables(tiny: tuple[Any, Any], trials: Trials) -> dict[str, pd.DataFrame]:
    return decoding_tables(*tiny, trials)


def plant(monkeypatch: pytest.MonkeyPatch, trials: Trials, codes: dict[Site, np.ndarray]) -> None:
    """States of noise, with these codes [trial] in the first unit at some layers and landmarks."""

    def noise(model: Any, data: Any, hooks: list[str], positions: Tensor, **options: Any) -> Any:
        generator, values = np.random.default_rng(5), {}
        for layer, hook in enumerate(hooks):
            states = generator.standard_normal((len(trials), len(trials.landmarks), 6))
            for (at, landmark), code in codes.items():
                if at == layer:
                    states[:, trials.landmarks.index(landmark), 0] += code
            values[hook] = torch.tensor(states, dtype=torch.float32)
        return values

    monkeypatch.setattr(decoding, "activations_at", noise)
    monkeypatch.setattr(decoding, "svm_table", lambda *args, **options: pd.DataFrame())


def at_answer(trials: Trials, code: np.ndarray, n_units: int = 6) -> pd.DataFrame:
    """What is decoded at the answer from noise with this code [trial, unit] in the first units."""
    states = np.random.default_rng(5).standard_normal((len(trials), n_units))
    states[:, : code.shape[1]] += code
    sites = {(0, "answer"): torch.tensor(states, dtype=torch.float32)}
    problems = decoding._problems(trials)
    return pd.concat([decoding._decoded(problem, sites, trials, 20) for problem in problems])


def at(table: pd.DataFrame, **where: Any) -> pd.DataFrame:
    return table[np.logical_and.reduce([table[name] == value for name, value in where.items()])]


def check_read(table: pd.DataFrame, expected: dict[str, list[str]]) -> None:
    for variable, read in expected.items():
        assert at(table, variable=variable)["read"].tolist() == read


def test_one_row_for_each_layer_landmark_and_variable(tables: dict[str, pd.DataFrame]) -> None:
    assert list(tables) == ["cognitive_decoding", "cognitive_svm", "cognitive_check"]
    table = tables["cognitive_decoding"]
    assert list(table) == [
        *("layer", "position", "place", "variable", "subset", "n", "accuracy", "low", "high"),
        *("chance", "floor", "shuffled", "shuffled_high", "p", "read"),
    ]
    rows = table[["layer", "position", "place", "variable", "subset"]].itertuples(index=False)
    assert list(map(tuple, rows)) == [
        (layer, landmark, place, *subset)
        for layer in range(2)
        for place, landmark in enumerate(TWO_SIDED)
        for subset in SUBSETS
    ]
    check_read(at(table, layer=1, subset="all"), READ)
    # 120 trials, 15 of each condition. A modality is not cued in half of them, where its sides and
    # the choices make four conditions. The choice is either side in 0.75.
    last = table.query("layer == 0 and position == 'answer'")
    assert last["n"].tolist() == [120, 120, 60, 120, 60, 120]
    assert last["chance"].tolist() == [0.5] * 6
    assert last["floor"].tolist() == [0.5, 0.75, 0.5, 0.75, 0.5, 0.75]


def test_what_a_model_has_read_is_decoded_and_what_it_has_not_is_not(
    tables: dict[str, pd.DataFrame],
) -> None:
    table, check = tables["cognitive_decoding"], tables["cognitive_check"]
    assert (at(table, position="context", variable="context")["accuracy"] == 1).all()
    unread = table[table["read"] == "no"]
    assert (unread["low"] <= 0.5).all()
    # Unread in each of 2 layers: motion and color in two subsets at the context and the choice
    # there, color at both numbers of motion. With 20 shuffles p <= 0.05 in 1 of 21.
    facts = {"n_rows": 18, "n_above": int((unread["p"] <= 0.05).sum()), "holds": True}
    facts |= {"expected": pytest.approx(18 / 21), "p": pytest.approx(check["p"][0])}
    assert check.to_dict("records") == [facts]
    assert check["p"][0] >= 0.1  # known after the first 19 shuffles


def test_share_that_is_read_by_hand() -> None:
    trials = generate(64, 0, random_order=True)
    shares, frame = share_read(trials), trials.frame
    for context, motion, color in (
        ("motion", [0, 0.5, 1, 1, 1, 1], [0, 0, 0, 0.5, 1, 1]),
        ("color", [0, 0.5, 1, 0, 0, 1], [0, 1, 1, 0.5, 1, 1]),
    ):
        # Columns are as in LANDMARKS, motion first, whichever is shown first: here the cued one.
        trial = int(((frame["context"] == context) & (frame["first"] == context)).argmax())
        assert shares["context"][trial].tolist() == [1] * 6
        assert shares["motion"][trial].tolist() == motion
        assert shares["color"][trial].tolist() == color
        assert shares["choice"][trial].tolist() == (motion if context == "motion" else color)


def test_with_modalities_in_random_order_most_is_read_in_some_trials_only(
    monkeypatch: pytest.MonkeyPatch, tiny: tuple[Any, Any]
) -> None:
    trials = generate(80, 0, split="test", random_order=True)
    plant(monkeypatch, trials, {})
    every = at(decoding_tables(*tiny, trials, layers=[0], shuffles=1)[TABLE], subset="all")
    read = {"motion": [N, P, Y, P, P, Y], "color": [N, P, P, P, Y, Y]}
    check_read(every, read | {"choice": [N, P, P, P, P, Y], "context": [Y] * 6})
    assert at(every, variable="motion")["place"].isna().tolist() == [False, *[True] * 4, False]


def test_signed_prompts(tmp_path: Path) -> None:
    tokenizer = word_tokenizer((*WORDS, *SIGNED_WORDS))
    model = helpers.gpt2_language_model(vocab_size=len(tokenizer), n_head=2, pad_token_id=0)
    model.save_pretrained(tmp_path)
    trials = generate(80, 0, split="test", rendering="signed")
    results = decoding_tables(load_model(tmp_path), tokenizer, trials, layers=[0], shuffles=1)
    table = at(results[TABLE], subset="all")
    assert list(dict.fromkeys(table["position"])) == ["context", "motion", "color", "answer"]
    check_read(table, {"motion": [N, Y, Y, Y], "color": [N, N, Y, Y], "choice": [N, P, Y, Y]})
    assert results["cognitive_check"][["n_rows", "holds"]].values.tolist() == [[7, True]]


@settings(max_examples=15)
@given(n=st.integers(40, 90), seed=st.integers(0, 99), random_order=st.booleans())
def test_nothing_settles_a_side_where_it_is_balanced(n: int, seed: int, random_order: bool) -> None:
    trials = generate(n, seed, random_order=random_order)
    problems = {(p.variable, p.subset): p for p in decoding._problems(trials)}
    assert list(problems) == SUBSETS
    for modality in ("motion", "color"):
        rows = problems[modality, "balanced"].rows
        others = trials.codes.drop(columns=[modality, f"{modality}_evidence", "congruent"])
        others = others.drop(columns=[name for name in others if name.endswith("evidence")])
        together = list(zip(*(others[name].iloc[rows] for name in others), strict=True))
        sides = trials.codes[modality].iloc[rows].tolist()
        assert sorted(set(sides)) == [-1, 1]
        assert correlation_floor(sides, together) == 0.5
        assert (trials.frame["context"].iloc[rows] != modality).all()


def test_knowing_context_and_choice_passes_for_a_side_only_where_it_is_not_balanced() -> None:
    trials = generate(800, 0, split="test")  # half of them a coin flip: 0.0125 is a standard error
    known = trials.codes[["context", "choice"]].to_numpy() * 1.0
    table = at_answer(trials, 9 * np.column_stack([known, known.prod(1)]))
    accuracy = table.set_index(["variable", "subset"])["accuracy"]
    assert accuracy["context", "all"] == accuracy["choice", "all"] == 1
    for modality in ("motion", "color"):
        assert accuracy[modality, "all"] == pytest.approx(0.75, abs=0.03)
        assert accuracy[modality, "balanced"] < 0.65  # two standard errors of 60 trials
    assert at(table, subset="balanced")["p"].min() > 0.05


def test_a_side_that_is_known_is_decoded_where_it_is_balanced(trials: Trials) -> None:
    table = at_answer(trials, 9.0 * trials.codes[["motion"]].to_numpy())
    rows = at(table, variable="motion")
    assert rows["accuracy"].tolist() == [1, 1]
    assert rows["p"].tolist() == pytest.approx([1 / 21] * 2)
    assert at(table, variable="color", subset="balanced")["accuracy"].item() < 0.65


def test_a_leak_makes_the_check_fail(
    monkeypatch: pytest.MonkeyPatch, tiny: tuple[Any, Any], trials: Trials
) -> None:
    monkeypatch.setattr(decoding, "_CHECK_SHUFFLES", (19, 199))
    plant(monkeypatch, trials, {(0, "motion_left"): 1.0 * trials.codes["color"].to_numpy()})
    with pytest.warns(
        MechcoreWarning, match=r"color is decoded at motion_left, layer 3, with accuracy 0\.[789]"
    ):
        results = decoding_tables(*tiny, trials, layers=[3])
    check = results["cognitive_check"]
    assert check["p"].tolist() == [1 / 200]
    assert check["holds"].tolist() == [False]
    above = results[TABLE].query("read == 'no' and p <= 0.05")
    assert check["n_above"].tolist() == [len(above)]
    assert len(at(above, layer=3, position="motion_left", variable="color")) == 2


def test_the_check_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # Standard errors of 0.05 and 0.025: the labels are 2 and 3 of them over chance, and of the
    # four shuffles 4, 1, 3 and 2.9 at most.
    made_up = (
        (100, 0.60, [0.70, 0.50, 0.40, 0.50]),
        (400, 0.575, [0.50, 0.525, 0.575, 0.5725]),
    )
    fakes: list[Any] = [
        SimpleNamespace(n=n, accuracy=share, chance=0.5, shuffled_accuracies=np.array(shuffled))
        for n, share, shuffled in made_up
    ]
    excess, null = decoding._excess(fakes)
    np.testing.assert_allclose(excess, [2, 3])
    np.testing.assert_allclose(null, [4, 1, 3, 2.9])

    monkeypatch.setattr(decoding, "_CHECK_SHUFFLES", (4,))
    monkeypatch.setattr(decoding, "decode", lambda states, *args, **options: fakes[len(states) - 1])
    problems = [
        decoding._Problem(name, "all", np.arange(n), {name: [1]}, None)
        for n, name in ((1, "motion"), (2, "color"))
    ]
    unread = pd.DataFrame(
        {"variable": ["motion", "color"], "subset": "all", "layer": 0, "position": "context"}
    ).assign(p=[0.05, 0.06])
    check = decoding._check(unread, {(0, "context"): torch.zeros(2, 1)}, problems, 39)
    # Two of four shuffles are as large as the labels: (1 + 2) / (1 + 4). With 39 shuffles p <= 0.05
    # in 2 of 40.
    assert check.to_dict("records") == [
        {"n_rows": 2, "n_above": 1, "expected": pytest.approx(0.1), "p": 0.6, "holds": True}
    ]


@pytest.mark.parametrize("variable", ["motion", "color", "choice"])
def test_numbers_that_are_known_again_decode_nothing(variable: str) -> None:
    """A state that tells the numbers of a prompt, and not what they mean."""
    trials = generate(400, 0, split="test", differences=[5, 15, 50])
    texts = trials.frame["text"].str.split()
    shown = {"motion": texts.str[5] + texts.str[7], "color": texts.str[11] + texts.str[13]}
    cued = trials.frame["context"]
    shown["choice"] = cued + shown["motion"].where(cued == "motion", shown["color"])
    names = sorted(set(shown[variable]))
    drawn = np.random.default_rng(1).standard_normal((len(names), 60))
    states = 9 * drawn[[names.index(label) for label in shown[variable]]]
    leaking = decode(states, trials.codes[variable].tolist(), shuffles=20)
    assert (leaking.accuracy, leaking.p) == (1, 1 / 21)
    table = at_answer(trials, states, n_units=60)
    for row in at(table, variable=variable).itertuples():
        assert row.accuracy < 0.75
        assert row.low < 0.5
        assert row.p > 0.05


def test_trials_that_are_too_few_are_refused(tiny: tuple[Any, Any], trials: Trials) -> None:
    known = generate(400, 0, split="test", differences=[5, 15, 50])
    check_trials(known)
    shown = known.frame["text"].str.split().str[5:8:2].str.join(" ")
    right = known.frame["motion"] > 0
    four = shown.isin(sorted(set(shown[right]))[:4])
    for few, message in (
        (
            known.rows((~right | four).to_numpy()),
            r"motion, all trials: 4 different numbers of one side for 5 folds, which share none; "
            r"expected at least 5: ask for more differences \(--differences\)",
        ),
        (trials.rows(range(39)), "4 trials of condition .* for 5 folds; expected at least 5"),
        (trials.rows(trials.frame["context"] == "motion"), "0 trials of condition color/"),
    ):
        with pytest.raises(InputError, match=message):
            check_trials(few)
    with pytest.raises(InputError, match="4 trials of condition"):
        decoding_tables(*tiny, trials.rows(range(39)))
    with pytest.raises(InputError, match=r"no hook point blocks\.2\.hook_resid_post"):
        decoding_tables(*tiny, trials, layers=[2])
