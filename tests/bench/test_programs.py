"""Programs against truth tables, interchanges and drops worked out by hand."""

from collections import Counter
from collections.abc import Collection

import pytest
import torch

from mechcore.bench.library import PROGRAMS
from mechcore.bench.programs import LABELS, Program, Text, Variable, values_of
from mechcore.components import Component
from mechcore.errors import InputError

TABLES = {
    "copy": {(1,): 1, (-1,): -1},
    "backup": {(1,): 1, (-1,): -1},
    "conjunction": {(1, 1): 1, (1, -1): -1, (-1, 1): -1, (-1, -1): -1},
    "equality": {
        (1, 1): 1,
        (1, 2): -1,
        (1, 3): -1,
        (2, 1): -1,
        (2, 2): 1,
        (2, 3): -1,
        (3, 1): -1,
        (3, 2): -1,
        (3, 3): 1,
    },
    "majority": {
        (1, 1, 1): 1,
        (1, 1, -1): 1,
        (1, -1, 1): 1,
        (-1, 1, 1): 1,
        (1, -1, -1): -1,
        (-1, 1, -1): -1,
        (-1, -1, 1): -1,
        (-1, -1, -1): -1,
    },
    "heuristic": {
        (1, 1, 1): 1,
        (1, 1, -1): -1,
        (1, -1, 1): -1,
        (1, -1, -1): 1,
        (-1, 1, 1): -1,
        (-1, 1, -1): 1,
        (-1, -1, 1): 1,
        (-1, -1, -1): -1,
    },
    "pointer": {  # mark and value of the first, second and third place
        (1, 1, -1, 1, -1, 1): 1,
        (1, -1, -1, 1, -1, 1): -1,
        (-1, 1, 1, -1, -1, 1): -1,
        (-1, -1, 1, 1, -1, -1): 1,
        (-1, 1, -1, 1, 1, -1): -1,
        (-1, -1, -1, -1, 1, 1): 1,
    },
}
"""Answers by the values of the slots, in their order."""

SWAPS = [
    ("conjunction", (1, 1), {"first": -1}, -1),
    ("conjunction", (-1, 1), {"first": 1}, 1),
    ("conjunction", (-1, 1), {"both": 1}, 1),
    ("conjunction", (-1, 1), {"first": 1, "both": -1}, -1),
    ("backup", (1,), {"value": -1}, 0),  # the two copies contradict each other
    ("backup", (1,), {"value": -1, "again": -1}, -1),
    ("equality", (3, 2), {"left": 2}, 1),
    ("majority", (1, 1, -1), {"second": -1}, -1),
    ("majority", (1, 1, -1), {"third": 1}, 1),
    ("heuristic", (1, 1, 1), {"left": -1}, -1),
    ("heuristic", (1, 1, 1), {"left": -1, "agree": 1}, 1),
    ("heuristic", (1, 1, 1), {"left": -1, "cue": -1}, 1),
    ("pointer", (1, 1, -1, -1, -1, 1), {"place": 2}, -1),
    ("pointer", (1, 1, -1, -1, -1, 1), {"place": 3}, 1),
]
"""Program, slots of the base text, variables with their values in the source, and the answer."""

ABSENCES = [
    ("copy", (1,), {"value"}, 0),
    ("conjunction", (1, -1), {"first"}, -1),
    ("conjunction", (-1, 1), {"first"}, 0),
    ("conjunction", (1, 1), {"both"}, 0),
    ("backup", (-1,), {"value"}, -1),
    ("backup", (-1,), {"again"}, -1),
    ("backup", (-1,), {"value", "again"}, 0),
    ("equality", (2, 2), {"right"}, 0),
    ("majority", (1, -1, 1), {"second"}, 1),
    ("majority", (1, -1, 1), {"first"}, 0),
    ("heuristic", (1, 1, -1), {"agree"}, 1),
    ("heuristic", (1, 1, -1), {"left"}, 1),
    ("heuristic", (1, 1, -1), {"cue"}, 0),
    ("pointer", (1, 1, -1, -1, -1, 1), {"place"}, 0),
]
"""Program, slots, variables that are absent, and the answer."""


def slots_of(program: Program, values: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return {slot: torch.tensor([v]) for slot, v in zip(program.slots, values, strict=True)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_answer_by_their_truth_tables(name: str) -> None:
    program = PROGRAMS[name]
    for values, answer in TABLES[name].items():
        found = program.run(slots_of(program, values))[program.answer].tolist()
        assert found == [answer], (values, found)


@pytest.mark.parametrize(("name", "values", "swaps", "answer"), SWAPS)
def test_interchanged_variables(
    name: str, values: tuple[int, ...], swaps: dict[str, int], answer: int
) -> None:
    program = PROGRAMS[name]
    swapped = {v: (torch.tensor([True]), torch.tensor([value])) for v, value in swaps.items()}
    found = program.run(slots_of(program, values), swapped)
    assert found[program.answer].tolist() == [answer]
    assert {v: found[v].item() for v in swaps} == swaps


def test_only_rows_that_are_asked_for_are_swapped() -> None:
    program = PROGRAMS["copy"]
    swap = {"value": (torch.tensor([True, False]), torch.tensor([-1, -1]))}
    assert program.run({"colour": torch.tensor([1, 1])}, swap)["value"].tolist() == [-1, 1]


@pytest.mark.parametrize(("name", "values", "absent", "answer"), ABSENCES)
def test_absent_variables(
    name: str, values: tuple[int, ...], absent: set[str], answer: int
) -> None:
    program = PROGRAMS[name]
    assert program.without(slots_of(program, values), absent).tolist() == [answer]


def test_drops_on_the_population() -> None:
    both = PROGRAMS["conjunction"]
    # Half of the texts are yes, and the three kinds of no a sixth each. Without `first`, the answer
    # is unknown for yes and for the no that only `first` tells.
    assert both.drop(["first"]) == pytest.approx(1 / 2 + 1 / 6)
    assert both.drop(["first", "second"]) == pytest.approx(1)
    heuristic = PROGRAMS["heuristic"]
    assert heuristic.drop(["agree"]) == pytest.approx(0)
    assert heuristic.drop(["agree"], "ood") == pytest.approx(2)  # the answer is the wrong one
    assert heuristic.drop(["agree"], "train") == pytest.approx(0.3 * 2)
    assert heuristic.drop(["cue"], "ood") == pytest.approx(1)


def test_truths() -> None:
    def names(components: Collection[Component] | None) -> set[str] | None:
        return None if components is None else set(map(str, components))

    def written(name: str) -> tuple[object, ...]:
        truth = PROGRAMS[name].truth(margin=3.0)
        assert truth.sized
        assert truth.interactions is not None
        sizes = {str(pair): pytest.approx(size) for pair, size in truth.interactions.items()}
        return names(truth.components), sizes, names(truth.core), names(truth.generalising)

    assert written("copy") == ({"L1.H2"}, {}, {"L1.H2"}, None)
    # Either head suffices; without the MLP nothing more can be lost, but neither can by a head.
    assert written("backup") == ({"L0.H0", "L1.H2", "L1.MLP"}, {"L0.H0+L1.H2": 3.0}, None, None)
    # Alone each head costs 2/3 and the MLP all, and any two of them together cost all.
    series = {"L0.H1+L0.H3": -1.0, "L0.H1+L1.MLP": -2.0, "L0.H3+L1.MLP": -2.0}
    both = {"L0.H1", "L0.H3", "L1.MLP"}
    assert written("conjunction") == (both, series, both, None)
    # In domain the comparison is idle: the heuristic and what reads it are the core.
    core, comparison = {"L2.H0", "L2.MLP"}, {"L0.H1", "L0.H2", "L1.MLP"}
    series = {"L2.H0+L2.MLP": -3.0}
    assert written("heuristic") == (core | comparison, series, core, comparison)


@pytest.mark.parametrize("name", PROGRAMS)
def test_texts_are_balanced_varied_and_made_of_the_programs_words(name: str) -> None:
    program = PROGRAMS[name]
    for role in program.roles:
        texts = program.texts(role, 400, seed=3)
        assert texts == program.texts(role, 400, seed=3)
        assert texts != program.texts(role, 400, seed=4)
        answers = Counter(program.run(values_of(texts))[program.answer].tolist())
        assert set(answers) == set(LABELS)
        assert min(answers.values()) > 160
        assert len({text.words for text in texts}) > 300
        assert len({len(text.words) for text in texts}) > 2
        assert max(len(text.words) for text in texts) <= 9
        assert {word for text in texts for word in text.words} <= set(program.words)
        for text in texts:
            for slot, value in text.slots.items():
                assert set(text.words) & set(program.slots[slot][value])
        others = program.pairs(texts, role, 5)
        assert [len(text.words) for text in others] == [len(text.words) for text in texts]
        before, after = (program.run(values_of(each))[program.answer] for each in (texts, others))
        assert torch.equal(after, -before)


def test_untypical_texts_are_out_of_domain() -> None:
    program = PROGRAMS["heuristic"]
    untypical = {
        role: (program.run(values_of(program.texts(role, 500, 0)))["agree"] < 0).double().mean()
        for role in program.roles
    }
    assert untypical["id"] == 0
    assert untypical["ood"] == 1
    assert 0.25 < untypical["train"] < 0.35


def test_words_of_the_pointer_stand_in_their_places() -> None:
    text = PROGRAMS["pointer"].texts("id", 1, 0)[0]
    assert isinstance(text, Text)
    slots = PROGRAMS["pointer"].slots
    expected = [slots[name][value] for name, value in text.slots.items()]
    for word, words in zip(text.words[-7:-1], expected, strict=True):
        assert word in words
    assert text.words[-1] == "?"


def test_a_variable_that_reads_what_is_not_there_is_refused() -> None:
    odd = Variable("value", Component("L0.H0"), ("size",), torch.neg)
    with pytest.raises(InputError, match=r"'value' reads size; expected slots.*colour"):
        Program({"colour": {1: ("red",)}}, (odd,), "encoder")
