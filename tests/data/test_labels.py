"""Labels and classes are matched by name, whatever their order."""

import itertools
import warnings
from types import SimpleNamespace

import pytest

from mechcore.data.labels import LabelMap, class_names
from mechcore.errors import InputError, MechcoreWarning

NLI = ("contradiction", "entailment", "neutral")


@pytest.mark.parametrize("classes", list(itertools.permutations(NLI)))
def test_a_label_is_its_class_in_any_order_of_the_classes(classes: tuple[str, ...]) -> None:
    matrix = LabelMap.between(set(NLI), classes).matrix(NLI)
    names = [[classes[i] for i in row.nonzero().flatten()] for row in matrix]
    assert names == [[name] for name in NLI]


@pytest.mark.parametrize(
    "label",
    ["non-entailment", "not entailment", "not_entailment", "Non Entailment", "NOT-ENTAILMENT"],
)
@pytest.mark.parametrize("classes", list(itertools.permutations(NLI)))
def test_three_classes_are_scored_on_two_labels(label: str, classes: tuple[str, ...]) -> None:
    correct = LabelMap.between([label], classes).correct[label]
    assert {classes[i] for i in correct} == {"contradiction", "neutral"}


def test_a_class_with_a_negated_name_is_matched_itself() -> None:
    labels = LabelMap.between(["not_entailment", "entailment"], ["not_entailment", "entailment"])
    assert labels.correct == {"not_entailment": {0}, "entailment": {1}}
    paws = LabelMap.between(["not equivalent"], ["Equivalent", "Not-Equivalent"])
    assert paws.correct == {"not equivalent": {1}}


@pytest.mark.parametrize("label", ["Entailment", "ENTAILMENT", "entailment ", "entailment"])
def test_case_and_spaces_do_not_matter(label: str) -> None:
    assert LabelMap.between([label], NLI).correct[label] == {1}


def test_the_mapping_reads_as_words() -> None:
    text = str(LabelMap.between(["entailment", "non-entailment"], NLI))
    assert text == (
        "entailment -> entailment (1); non-entailment -> contradiction (0) or neutral (2)"
    )


@pytest.mark.parametrize(
    "classes",
    [("LABEL_0", "LABEL_1", "LABEL_2"), ("label0", "label1"), ("0", "1"), ("Label_10", " 7 ")],
)
def test_classes_without_names_are_refused_with_a_remedy(classes: tuple[str, ...]) -> None:
    message = f"the checkpoint names its classes {', '.join(classes)}.*with --class-names"
    with pytest.raises(
        InputError, match=message + r" \(class_names= in Python\).*id2label in its co"
    ):
        LabelMap.between(["entailment"], classes)


NO_CLASS = "not a class of the checkpoint, which has contradiction, entailment, neutral"
NUMBER = "contradiction, entailment, neutral.*numbers have no agreed meaning"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        *(([label], f"{NUMBER}.*--label-map {label}=CLASS") for label in ("0", "LABEL_1", "-2")),
        *(([label], f"{NUMBER}.*--label-map {label.strip()}=CLASS") for label in ("2.0", " 1.0 ")),
        (
            ["-1"],
            rf"{NUMBER}.*--label-map -1=- \(label_map= in Python\); - skips rows without",
        ),
        *(
            (["entailment", label], NO_CLASS)
            for label in ("paraphrase", "not paraphrase", "nonentailment", "not", "", "not not a")
        ),
        (
            ["no", "neutral", "yes"],
            f"^examples 'dev': label 'no': {NO_CLASS}; map it to a class with --label-map "
            r"no=CLASS,yes=CLASS \(label_map= in Python\), or rename the classes with --class-na",
        ),
    ],
)
def test_labels_that_are_no_class_are_refused_with_a_remedy(
    labels: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        LabelMap.between(labels, NLI, data="dev")


def test_labels_without_an_answer_get_advice_on_answers_alone() -> None:
    message = r"^examples 'dev': label 'maybe': no answer; --answers has yes, no: add its "
    with pytest.raises(
        InputError, match=message + "answer, or rename it with --label-map maybe=NAME"
    ):
        LabelMap.between(["maybe", "yes"], ["yes", "no"], data="dev", answers=True)


def test_classes_that_cannot_be_distinguished_are_refused() -> None:
    with pytest.raises(InputError, match="not distinct"):
        LabelMap.between(["a"], ["not_a", "not-a", "a"])


def test_names_of_the_checkpoint_in_another_order_are_reported() -> None:
    names = ["entailment", "neutral", "not_entailment"]
    config = SimpleNamespace(
        id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)}
    )
    with pytest.warns(
        MechcoreWarning, match=r"^class names: neutral, Entailment, .* its index order is"
    ):
        class_names(config, "x", 3, ["neutral", "Entailment", "not entailment"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        class_names(config, "x", 3, ["Entailment", "neutral", "not entailment"])
        class_names(config, "x", 3, ["no", "yes", "neutral"])
