"""What tokenizers leave out: token types, what their file says, words that they do not know."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helpers
import pandas as pd
import pytest
import torch
import transformers as hf

from mechcore.data import tokens
from mechcore.data.encoding import EncodedExamples, encode
from mechcore.data.examples import Examples
from mechcore.errors import InputError, MechcoreWarning
from mechcore.models import load_model, load_tokenizer
from mechcore.models.architectures import trial
from mechcore.models.encoded import as_encoded
from mechcore.models.protocol import forward
from mechcore.training.objectives import classification

PAIRS = pd.DataFrame(
    [("the cat saw a dog", "a dog ran"), ("who saw the bird", "the dog never saw")],
    columns=["text_a", "text_b"],
).assign(label="neutral", subset="s")
TYPES = [[0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1]]
Change = Callable[[dict[str, Any]], Any]


def change(path: Path, file: str, how: Change) -> None:
    """Edit a file of a checkpoint."""
    content = json.loads((path / file).read_text())
    how(content)
    (path / file).write_text(json.dumps(content))


def messages(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call returns, and the warnings of mechcore that it gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [str(w.message) for w in caught if w.category is MechcoreWarning]


# -- token types --------------------------------------------------------------------------------


def updated(file: str, **changes: Any) -> tuple[str, Change]:
    return file, lambda content: content.update(changes)


def of_second(value: int) -> tuple[str, Change]:
    """A layout with this type for the second text."""
    return "tokenizer.json", lambda content: [
        next(iter(part.values())).update(type_id=value)
        for part in content["post_processor"]["pair"][-2:]
    ]


CONFIG, FILE = "tokenizer_config.json", "tokenizer.json"
SILENT: tuple[str, Change] = (CONFIG, lambda config: config.pop("model_input_names"))
OLD = updated("config.json", transformers_version="4.40.0")
OLDER: tuple[str, Change] = ("config.json", lambda config: config.pop("transformers_version"))
DENIED: tuple[str, Change] = (CONFIG, lambda config: config["model_input_names"].pop(1))
UNSAID, NONE = "does not specify token types", "gives no token types"
OF_TYPES: dict[str, tuple[list[tuple[str, Change]], bool, str | None]] = {
    "said": ([], True, None),
    "unsaid": ([SILENT], True, UNSAID),
    "unsaid in transformers 4": ([SILENT, OLD], True, None),
    "unsaid before transformers said who wrote": ([SILENT, OLDER], True, None),
    "denied": ([DENIED], False, NONE),
    "unsaid, and of no use": ([SILENT, of_second(0)], False, None),
    "unsaid, and unknown to the model": ([SILENT, of_second(2)], False, NONE),
}


@pytest.mark.parametrize("setting", OF_TYPES)
@pytest.mark.parametrize("whose", ["mechcore", "transformers"])
def test_token_types_are_those_of_the_layout_unless_the_configuration_denies_them(
    cases: helpers.Cases, tmp_path: Path, setting: str, whose: str
) -> None:
    changes, typed, message = OF_TYPES[setting]
    path = Path(shutil.copytree(cases.path("bert"), tmp_path / "checkpoint"))
    for file, how in changes:
        change(path, file, how)
    model = load_model(path)
    given = hf.AutoTokenizer.from_pretrained(path) if whose == "transformers" else None
    encoded, notices = messages(lambda: as_encoded(model, PAIRS, tokenizer=given))
    if message is None and setting.startswith("unsaid ") and given is not None:
        message = UNSAID  # the version is read where mechcore loads the tokenizer
    assert [message in text for text in notices] == [True] * (message is not None)
    read = [list(types) for types in encoded.token_type_ids or [] if any(types)]
    assert read == (TYPES if typed else [])
    batch = encoded.rows(range(len(encoded)))
    reference = cases.get("bert").reference
    types = torch.tensor(TYPES) if typed else None
    with torch.no_grad():
        expected = reference(batch["input_ids"], batch["attention_mask"], types).logits
        torch.testing.assert_close(forward(model, batch), expected, rtol=0, atol=1e-5)
    objective = classification(reference, given or load_tokenizer(path))
    trained, _ = messages(lambda: objective.encode(Examples("id", PAIRS)))
    assert trained.token_type_ids == encoded.token_type_ids
    if given is None and setting.startswith("unsaid") and typed:  # what was decided is saved
        load_tokenizer(path).save_pretrained(path)
        assert load_tokenizer(path)("a", "a")["token_type_ids"] == [0, 0, 0, 1, 1]
        assert messages(lambda: as_encoded(load_model(path), PAIRS))[1] == []


def test_a_class_that_leaves_token_types_out(tmp_path: Path) -> None:
    vocabulary = [("<pad>", 0.0), ("<unk>", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("\u2581", -2.0)]
    words = [(f"\u2581{word}", -1.0) for word in ("cat", "dog")]
    tokenizer = hf.AlbertTokenizer(vocab=[*vocabulary, *words])
    tokenizer.save_pretrained(tmp_path)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "embedding_size": 4}
    hf.AlbertConfig(vocab_size=len(tokenizer), **sizes).save_pretrained(tmp_path)
    assert "token_type_ids" not in hf.AutoTokenizer.from_pretrained(tmp_path)("cat", "dog")
    assert load_tokenizer(tmp_path)("cat", "dog")["token_type_ids"] == [0, 0, 0, 1, 1]


def test_a_bridge_that_mistakes_segments_is_refused(
    cases: helpers.Cases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(model: Any, batch: Any) -> Any:
        return forward(model, {key: batch[key] for key in ("input_ids", "attention_mask")})

    path = Path(shutil.copytree(cases.path("bert"), tmp_path / "checkpoint"))
    monkeypatch.setattr(trial, "forward", blind)
    with pytest.raises(InputError, match="its logits of a pair of texts are not those of Hugging"):
        load_model(path)
    (path / "tokenizer.json").unlink()
    assert load_model(path).cfg.n_layers == helpers.N_LAYERS  # there is no pair to try


# -- the tokenizer's file -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def wordpieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of a class that transformers builds anew from its vocabulary."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *helpers.WORDS, "##.", "-", "\ud55c"]
    tokenizer = hf.BertTokenizer(vocab={word: i for i, word in enumerate(words)})
    path = tmp_path_factory.mktemp("wordpieces")
    tokenizer.save_pretrained(path)
    hf.BertConfig(vocab_size=len(words)).save_pretrained(path)
    return path


DIFFERENT = pd.DataFrame(
    [("The cat ran.", "a dog ran"), ("who saw the bird", "the dog never saw")],
    columns=["text_a", "text_b"],
).assign(label="neutral", subset="s")
SHORT = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
PADDED = {"strategy": {"Fixed": 40}, "direction": "Left", "pad_to_multiple_of": None}
PADDED |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
REPLACE = {"type": "Replace", "pattern": {"String": "saw"}, "content": "ran"}


def cased(file: dict[str, Any]) -> None:
    file["normalizer"].update(lowercase=False)


def without_unknown(file: dict[str, Any]) -> None:
    cased(file)
    file["model"].update(unk_token="gone")


def other_id(file: dict[str, Any]) -> None:
    file["post_processor"]["special_tokens"]["[CLS]"].update(ids=[4])


OF_FILE: dict[str, tuple[tuple[str, Change], str | None]] = {
    "case": (
        (FILE, cased),
        r"1 of 2 texts compared have different tokens .* in BertTokenizer of .*: row 0, 'The cat "
        r"ran. / a dog ran', has \['the', .* from token 1 on, in the file \['\[UNK\]', ",
    ),
    "normaliser": (updated(FILE, normalizer=REPLACE), "2 of 2 texts"),
    "words": (
        updated(FILE, pre_tokenizer={"type": "WhitespaceSplit"}),
        r"1 of 2 .* has \['.', .* from token 4 on, in the file \['##.', ",
    ),
    "no unknown": (
        (FILE, without_unknown),
        r"tokenizer.json cannot encode them \(.*\), but BertTokenizer of",
    ),
    "ids": (
        (FILE, other_id),
        r"2 of 2 texts compared have different tokens \(or ids or types\)",
    ),
    "types": (of_second(0), r"2 of 2 texts compared have different tokens"),
    "configuration": (
        updated(CONFIG, cls_token="[MASK]"),
        r"2 of 2 .* has \['\[MASK\]', .* from token 0 on",
    ),
    "as it was": (updated(FILE), None),
    "truncation and padding": (updated(FILE, truncation=SHORT, padding=PADDED), None),
    "sides": (updated(CONFIG, padding_side="left", truncation_side="left"), None),
}


def encoded_by(path: Path, **options: Any) -> EncodedExamples:
    options = {"max_length": 30, **options}
    return encode(Examples("id", DIFFERENT), load_tokenizer(path), **options)


@pytest.mark.parametrize("setting", OF_FILE)
def test_other_tokens_than_from_the_file(wordpieces: Path, tmp_path: Path, setting: str) -> None:
    (file, how), message = OF_FILE[setting]
    path = Path(shutil.copytree(wordpieces, tmp_path / "checkpoint"))
    change(path, file, how)
    encoded, notices = messages(lambda: encoded_by(path))
    expected = hf.AutoTokenizer.from_pretrained(path)(
        [*DIFFERENT["text_a"]], [*DIFFERENT["text_b"]], padding=False, truncation=False
    )
    assert encoded.input_ids == expected["input_ids"]
    assert encoded.token_type_ids == expected["token_type_ids"]
    assert len(notices) == (message is not None)
    if message is not None:
        assert re.search(message, notices[0]), notices[0]
        load_tokenizer(path).save_pretrained(path)
        assert messages(lambda: encoded_by(path))[1] == []
        if setting != "configuration":  # which names the special tokens of both
            change(path, *updated(CONFIG, tokenizer_class="PreTrainedTokenizerFast"))
            assert messages(lambda: encoded_by(path))[1] == []


TEXTS = (
    "The cat's been  there, hasn't it?",
    "Na\u00efve caf\u00e9s \U0001f600 [SEP] </s> \u65e5\u672c",
)
CLASSES = (
    *("BertTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer"),
    *("MPNetTokenizer", "AlbertTokenizer", "DebertaV2Tokenizer", "DebertaTokenizer"),
    *("HerbertTokenizer", "GPT2Tokenizer", "Qwen2Tokenizer", "GPTNeoXTokenizer"),
    *("LlamaTokenizer", "GemmaTokenizer"),
)


@pytest.mark.parametrize("kind", CLASSES)
def test_no_class_that_is_saved_as_it_is_differs_from_its_file(kind: str, tmp_path: Path) -> None:
    tokenizer = getattr(hf, kind)().train_new_from_iterator([*TEXTS, *helpers.WORDS], 400)
    tokenizer.add_special_tokens({"pad_token": tokenizer.pad_token or "<pad>"})
    tokenizer.save_pretrained(tmp_path)
    read = load_tokenizer(tmp_path)
    assert read in tokens._files
    data = Examples("id", DIFFERENT.assign(text_a=TEXTS, text_b=TEXTS[::-1]))
    for options in ({}, {"prompt": "{a} {b}"}):
        encoded, notices = messages(
            lambda options=options: encode(data, read, max_length=200, **options)
        )
        assert notices == []
        assert encoded.input_ids[0] != encoded.input_ids[1]


# -- unknown words ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("the cat", "a dog")] * 2, None),
        ([("the cat", "")] * 2, None),
        ([("the cat", "the \u20ac dog")] * 5, None),
        ([("the [UNK]", "a [UNK]")], None),  # it is written there
        ([("the cat saw a dog ran", "xyz " * i + "a bird ran " * 4) for i in (0, 1)], None),
        (
            [("the cat", "the \u20ac dog")] * 6 + [("the cat", "a dog")] * 5,
            r"'id': 12.0% of all tokens are unknown to the tokenizer: the model cannot dist",
        ),
        (
            [("the cat ran " * 19, "a dog"), ("the cat", "Katze"), ("chien", "a dog ran")],
            r"'id': in 2 of 3 examples a text has no known token \(row 1: 'Katze'\): the model",
        ),
        (
            [("the cat ran " * 9, "a dog"), ("the cat ran " * 9, "\u200b\u200b")],
            r"'id': in 1 of 2 examples a text has no known token \(row 1: ",
        ),
    ],
)
def test_unknown_words(wordpieces: Path, rows: list[tuple[str, str]], message: str | None) -> None:
    frame = pd.DataFrame(rows, columns=["text_a", "text_b"]).assign(label="x", subset="s")
    tokenizer = load_tokenizer(wordpieces)
    _, notices = messages(lambda: encode(Examples("id", frame), tokenizer, max_length=90))
    assert len(notices) == (message is not None)
    if message is not None:
        assert re.search(message, notices[0]), notices[0]


def test_a_tokenizer_that_cannot_write_a_text(wordpieces: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(wordpieces, tmp_path / "checkpoint"))
    change(path, FILE, lambda file: file["model"].update(unk_token="gone"))
    change(path, *updated(CONFIG, tokenizer_class="Unheard"))
    with pytest.raises(
        InputError, match=r"'id': TokenizersBackend cannot encode them: .*; check t"
    ):
        encode(Examples("id", PAIRS.assign(text_a="xyz")), load_tokenizer(path), max_length=9)


@pytest.mark.parametrize("class_token", ["[CLS]", None])
def test_texts_without_the_token_that_the_head_reads(
    cases: helpers.Cases, tmp_path: Path, class_token: str | None
) -> None:
    path = Path(shutil.copytree(cases.path("bert"), tmp_path / "checkpoint"))
    change(path, *updated(FILE, post_processor=None))
    change(path, *updated(CONFIG, cls_token=class_token))
    encoded, notices = messages(lambda: as_encoded(load_model(path), PAIRS))
    assert len(encoded.input_ids[0]) == 8
    assert ["2 of 2 have no '[CLS]', as TokenizersBackend has" in m for m in notices] == (
        [True] * (class_token is not None)
    )


def test_a_length_is_a_whole_number(wordpieces: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(wordpieces, tmp_path / "checkpoint"))
    for length, expected in ((64.0, 64), (10**40, 10**40)):
        change(path, *updated(CONFIG, model_max_length=length))
        assert load_tokenizer(path).model_max_length == expected
