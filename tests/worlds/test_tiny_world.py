"""The tiny world: splits, hold-out, the absence of give-away words, the tokenizers."""

import pandas as pd
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline

from mechcore.data.examples import Examples
from mechcore.errors import InputError
from mechcore.worlds import tiny_world
from mechcore.worlds.tiny_world import COUNTER_HEURISTIC, ENTAILMENT, NON_ENTAILMENT, ORDINARY

SIZE = 60_000


@pytest.fixture(scope="module")
def train() -> pd.DataFrame:
    return tiny_world.generate("train", SIZE, seed=0).frame


@pytest.fixture(scope="module")
def in_domain() -> pd.DataFrame:
    return tiny_world.generate("id", 9000, seed=0).frame


@pytest.fixture(scope="module")
def out_of_domain() -> pd.DataFrame:
    return tiny_world.generate("ood", 8000, seed=0).frame


def overlaps(frame: pd.DataFrame) -> pd.Series:
    """Whether every word of the hypothesis is in the premise."""
    pairs = zip(frame["text_a"], frame["text_b"], strict=True)
    return pd.Series([set(b.split()) <= set(a.split()) for a, b in pairs], frame.index)


def fitted(frame: pd.DataFrame, column: str) -> Pipeline:
    """A bag-of-words classifier of one side of the pair."""
    return make_pipeline(
        CountVectorizer(token_pattern=r"\S+"), LogisticRegression(max_iter=1000)
    ).fit(frame[column], frame["label"])


def test_every_word_is_in_the_vocabulary_once(train: pd.DataFrame) -> None:
    assert len(set(tiny_world.WORDS)) == len(tiny_world.WORDS)
    used = set(" ".join(train["text_a"] + " " + train["text_b"]).split())
    assert used == set(tiny_world.WORDS)


def test_overlap_is_right_on_ordinary_pairs_and_wrong_on_the_others(
    in_domain: pd.DataFrame, out_of_domain: pd.DataFrame
) -> None:
    assert ((in_domain["label"] == ENTAILMENT) == overlaps(in_domain)).all()
    assert overlaps(out_of_domain).all()
    fails, holds = tiny_world.OOD_GROUPS.values()
    labels = out_of_domain.groupby("subset")["label"].agg(set).to_dict()
    expected = {subset: {NON_ENTAILMENT} for subset in fails}
    assert labels == expected | {subset: {ENTAILMENT} for subset in holds}


def test_a_half_stays_the_same_with_the_other_beside_it(out_of_domain: pd.DataFrame) -> None:
    """Draws of one half do not depend on the other: the pairs are those of a split of one half."""
    half = Examples("ood", out_of_domain[out_of_domain["label"] == NON_ENTAILMENT].head(1000))
    assert half.fingerprint[:16] == "1e09f5c3d34c03ee"


def test_both_halves_have_premises_of_the_same_form(out_of_domain: pd.DataFrame) -> None:
    words = {word for kind in tiny_world.CONTENT for word in kind}

    def forms(subset: str) -> set[str]:
        """Premises with a star for every noun and verb, and for every word of a list of choices."""
        lists = (tiny_world.PREPOSITIONS, tiny_world.ADVERBS, tiny_world.NON_FACTIVES)
        choices = words.union(*map(set, lists))
        chosen = out_of_domain.loc[out_of_domain["subset"] == subset, "text_a"]
        return {" ".join("*" if w in choices else w for w in text.split()) for text in chosen}

    for subset in COUNTER_HEURISTIC:
        assert forms(subset) == forms(f"{subset}_entailed"), subset


def test_splits_have_their_shares_and_no_premise_in_common(
    train: pd.DataFrame, in_domain: pd.DataFrame, out_of_domain: pd.DataFrame
) -> None:
    shares = train["subset"].value_counts(normalize=True)
    for subset in COUNTER_HEURISTIC:
        assert shares[subset] == pytest.approx(0.01, abs=0.003)
    assert (train["label"] == ENTAILMENT).mean() == 0.5
    assert (in_domain["label"] == ENTAILMENT).mean() == 0.5
    assert set(in_domain["subset"]) == set(ORDINARY)
    counts = out_of_domain["subset"].value_counts().to_dict()
    both = [*COUNTER_HEURISTIC, *(f"{subset}_entailed" for subset in COUNTER_HEURISTIC)]
    assert counts == dict.fromkeys(both, 1000)
    evaluated = set(in_domain["text_a"]) | set(out_of_domain["text_a"])
    assert all(map(tiny_world.is_held_out, evaluated))
    assert not any(map(tiny_world.is_held_out, train["text_a"]))
    assert not evaluated & set(train["text_a"])


@pytest.mark.everyday
def test_the_data_of_a_seed_never_changes() -> None:
    """The stored models were trained on this data: a new fingerprint means new models."""
    expected = {"train": "e398b9828a220759", "id": "68948770da77ccdc", "ood": "e4415f8a4cf3fe81"}
    for split, fingerprint in expected.items():
        assert tiny_world.generate(split, 1000, seed=0).fingerprint[:16] == fingerprint


@pytest.mark.parametrize("column", ["text_a", "text_b"])
def test_one_side_alone_is_near_chance(
    train: pd.DataFrame, in_domain: pd.DataFrame, out_of_domain: pd.DataFrame, column: str
) -> None:
    """Bags of words tell no pair from entailed ones of the same form, at any threshold."""
    model = fitted(train, column)
    accuracy = float((model.predict(in_domain[column]) == in_domain["label"]).mean())
    assert accuracy == pytest.approx(0.5, abs=0.03)
    longer_hypotheses = {"conditional", "report"}
    for subset, hosts in COUNTER_HEURISTIC.items():
        same_form = set(hosts) - (longer_hypotheses if column == "text_b" else set())
        entailed = in_domain["subset"].isin(same_form) & (in_domain["label"] == ENTAILMENT)
        counter = out_of_domain[out_of_domain["subset"] == subset]
        both = pd.concat([in_domain[entailed], counter])
        score = model.decision_function(both[column])
        area = roc_auc_score(both["label"] == model.classes_[1], score)
        assert area == pytest.approx(0.5, abs=0.06), subset


def entailed_by_word(frame: pd.DataFrame, column: str) -> pd.Series:
    """Of the pairs that have a word on that side, the share that is entailed."""
    words = frame[column].map(lambda text: sorted(set(text.split()))).explode()
    return (frame["label"] == ENTAILMENT)[words.index].groupby(words.to_numpy()).mean()


def test_no_word_gives_the_minority_or_the_label_away(train: pd.DataFrame) -> None:
    """Among fully overlapping pairs every word, on either side, is more often in entailed ones."""
    overlapping = train[overlaps(train)]
    for column in ("text_a", "text_b"):
        shares = entailed_by_word(overlapping, column)
        assert shares.min() > 0.5, shares.idxmin()
    for column in ("text_a", "text_b"):
        shares = entailed_by_word(train, column)
        assert shares.between(0.35, 0.65).all(), shares[~shares.between(0.35, 0.65)]


def test_unusable_arguments_are_named() -> None:
    with pytest.raises(InputError, match=r"minority is 0\.5"):
        tiny_world.generate("train", 10, 0, 0.5)


def test_tokenizers_write_segments_and_special_tokens() -> None:
    tokenizer = tiny_world.encoder_tokenizer()
    tokens = tokenizer("the baker fed the poet", "the poet fed")
    text = " ".join(tokenizer.convert_ids_to_tokens(tokens["input_ids"]))
    assert text == "[CLS] the baker fed the poet [SEP] the poet fed [SEP]"
    assert tokens["token_type_ids"] == [0] * 7 + [1] * 4
    padded = tokenizer(["the", "the poet"], ["fed", "fed"], padding=True)
    assert padded["attention_mask"] == [[1, 1, 1, 1, 1, 0], [1] * 6]
    assert padded["input_ids"][0][-1] == tokenizer.pad_token_id
    tokenizer = tiny_world.decoder_tokenizer()
    prompt = tiny_world.DECODER_PROMPT.format(a="the baker fed the poet", b="the poet fed")
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    assert " ".join(tokenizer.convert_ids_to_tokens(ids)) == prompt
    assert prompt == "[BOS] the baker fed the poet [SEP] the poet fed [ANS]"
    assert tokenizer(prompt)["input_ids"] == ids
    for answer in tiny_world.DECODER_ANSWERS.values():
        (token,) = tokenizer(answer, add_special_tokens=False)["input_ids"]
        assert token != tokenizer.unk_token_id
