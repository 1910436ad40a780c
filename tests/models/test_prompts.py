"""Prompts as texts, token ids and tensors, with answers and counterfactuals of their own."""

from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from mechcore import MeanActivations, evaluate
from mechcore.ablation import ablate
from mechcore.data.tokens import SPECIAL
from mechcore.errors import InputError, MechcoreWarning
from mechcore.models.encoded import as_encoded

pytestmark = pytest.mark.hooked
WORDS = ("<s>", "<pad>", "?", "The", " cat", " dog", " saw", " ran", " a", "cat", " ")
ID = {word: i for i, word in enumerate(WORDS)}


def spaced_tokenizer(folder: Path) -> Any:
    """Words with the space before them, as GPT-2's are, and a token that begins texts."""
    tokenizer = Tokenizer(WordLevel(ID, unk_token="?"))
    tokenizer.pre_tokenizer = Split(Regex(" ?[^ ]+| +"), "isolated")
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", ID["<s>"])]
    )
    special = {"bos_token": "<s>", "eos_token": "<s>", "pad_token": "<pad>", "unk_token": "?"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)  # TransformerLens asks where it is from


def hooked(tokenizer: Any = None) -> Any:
    """A random HookedTransformer in memory."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    sizes: dict[str, Any] = {"n_layers": 1, "n_heads": 2, "d_model": 8, "d_head": 4, "n_ctx": 12}
    cfg = HookedTransformerConfig(**sizes, d_vocab=len(WORDS), act_fn="gelu", device="cpu", seed=0)
    return HookedTransformer(cfg, tokenizer=tokenizer).eval()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return hooked(spaced_tokenizer(tmp_path_factory.mktemp("tokenizer")))


ROWS = [
    {"prompt": "The cat saw a", "correct": " dog", "wrong": [" cat", " ran"], "subset": "x"},
    {"prompt": "The dog ran", "correct": [" a", " saw"], "wrong": " cat", "subset": "y"},
]


@pytest.mark.parametrize("form", [list, pd.DataFrame], ids=["rows", "frame"])
def test_texts_begin_as_the_models_own_do(model: Any, form: Any) -> None:
    encoded = as_encoded(model, form(ROWS))
    assert encoded.input_ids == [[0, 3, 4, 6, 8], [0, 3, 5, 7]]
    for ids, row in zip(encoded.input_ids, ROWS, strict=True):
        assert ids == model.to_tokens(row["prompt"])[0].tolist()
    assert (encoded.correct, encoded.wrong) == ([(5,), (8, 6)], [(4, 7), (4,)])
    assert encoded.examples.subset_names == ["x", "y"]
    assert encoded.pairs is None
    part = encoded.part([1])
    assert (part.correct, part.wrong) == ([(8, 6)], [(4,)])
    assert as_encoded(model, [{"prompt": "<s>The dog"}]).input_ids == [[0, 3, 5]]


def test_the_words_of_prompts_are_known_where_they_are_asked_for(model: Any) -> None:
    prompts = [{"prompt": "The cat saw a cat"}, {"prompt": "<s>The dog"}]
    assert as_encoded(model, prompts).words is None
    batch = as_encoded(model, prompts, words=True).rows([0, 1])
    the, cat, saw, a, dog, none = 0, 1, 2, 3, 5, SPECIAL  # 4 is <s>, which is no word
    assert batch["input_ids"][0].tolist() == [
        ID[w] for w in ("<s>", "The", " cat", " saw", " a", " cat")
    ]
    assert batch["words"].tolist() == [[none, the, cat, saw, a, cat], [none, the, dog, *[none] * 3]]
    assert batch["segments"].tolist() == [[none, *[0] * 5], [none, 0, 0, *[none] * 3]]
    assert batch["separators"].tolist() == [[1, *[0] * 5], [1, 0, 0, *[0] * 3]]  # also its end
    with pytest.raises(InputError, match="token ids, whose words are not known"):
        as_encoded(model, [{"prompt": [3, 4]}], words=True)


def test_nothing_is_put_at_the_end_of_a_prompt(cases: helpers.Cases) -> None:
    # This tokenizer writes [CLS] text [SEP].
    encoded = as_encoded(cases.get("gpt2-lm").model, [{"prompt": "the cat"}])
    ids = helpers.word_tokenizer().convert_tokens_to_ids(["[CLS]", "the", "cat"])
    assert encoded.input_ids == [ids]


def test_token_ids_need_no_tokenizer() -> None:
    model = hooked()
    tokens = torch.tensor([[3, 4, 6], [3, 5, 7]])
    rows = [{"prompt": ids, "correct": 8, "wrong": np.int64(4)} for ids in tokens]
    encoded = as_encoded(model, rows)
    assert encoded.input_ids == as_encoded(model, tokens).input_ids == tokens.tolist()
    assert (encoded.correct, encoded.wrong) == ([(8,), (8,)], [(4,), (4,)])
    means = [
        MeanActivations.compute(model, data) for data in (tokens, rows, [{"input_ids": tokens}])
    ]
    for other in means[1:]:
        helpers.close(other.z, means[0].z, atol=1e-7)
    ablation = ablate(model, ["L0.H1"], tokens, means[0], metric="loss")
    with torch.no_grad():
        loss = model(tokens, return_type="loss", loss_per_token=True).mean(1)
    np.testing.assert_allclose(ablation.full.by_example, loss, atol=1e-6)


def test_a_list_of_texts_is_prompts(model: Any) -> None:
    texts = [row["prompt"] for row in ROWS]
    means = MeanActivations.compute(model, texts)
    helpers.close(means.z, MeanActivations.compute(model, ROWS).z, atol=1e-7)
    ablation = ablate(model, ["L0.H1"], texts, means, metric="kl")
    rows = ablate(model, ["L0.H1"], ROWS, means, metric="kl")
    for cut, its in rows.without.items():
        np.testing.assert_array_equal(ablation.without[cut].by_example, its.by_example)


def test_counterfactuals_are_the_fill_of_a_patch(model: Any) -> None:
    rows = [
        {**row, "counterfactual": text}
        for row, text in zip(ROWS, ("The dog ran a", "The cat ran"), strict=True)
    ]
    encoded = as_encoded(model, rows)
    assert encoded.pairs is not None
    assert encoded.pairs.input_ids == [[0, 3, 5, 7, 8], [0, 3, 4, 7]]
    swapped = encoded.part([1, 0])
    assert swapped.pairs is not None
    assert swapped.pairs.input_ids == encoded.pairs.input_ids[::-1]
    ablation = ablate(model, ["L0.H1"], rows, fill="counterfactual", metric="logit_difference")
    for i, row in enumerate(rows):
        ids, other = (model.to_tokens(row[name]) for name in ("prompt", "counterfactual"))
        _, cache = model.run_with_cache(other)

        def patch(z: torch.Tensor, hook: Any, cache: Any = cache) -> torch.Tensor:
            z[:, :, 1] = cache["z", 0][:, :, 1]
            return z

        with torch.no_grad():
            last = model.run_with_hooks(ids, fwd_hooks=[("blocks.0.attn.hook_z", patch)])[0, -1]
        right, wrong = encoded.correct[i], encoded.wrong[i]  # type: ignore[index]
        wanted = last[[*right]].mean() - last[[*wrong]].mean()
        [its] = ablation.without.values()
        assert its.by_example[i] == pytest.approx(float(wanted), abs=1e-6)


def test_a_word_that_the_text_would_not_have_warns(model: Any) -> None:
    with pytest.warns(MechcoreWarning, match=r"column correct: 1 of 2 .*'cat' after 'The'"):
        as_encoded(
            model, [{"prompt": p, "correct": c} for p, c in (("The", "cat"), ("The", " cat"))]
        )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "The", "correct": " cat dog"}], r"row 1, column correct: ' cat dog' is \["),
        ([{"prompt": "The", "correct": " bird"}], "expected one known token: mind the leading"),
        ([{"prompt": "The", "wrong": []}], r"row 1, column wrong: found \[\]; expected a word"),
        ([{"prompt": "The", "wrong": None}], "row 1, column wrong: found None"),
        ([{"prompt": "The", "wrong": -1}], "row 1, column wrong: found -1"),
        ([{"prompt": "The", "wrong": 1.5}], r"found 1\.5; expected a word, a token id"),
        ([{"prompt": "The", "correct": 4, "wrong": " cat"}], r"row 1 has the answers \[4, 4\]"),
        ([{"prompt": "The", "correct": 99}], "expected different tokens, from 0 to 10"),
        ([{"prompt": ""}], "row 1, column prompt: found ''; expected a text or a list"),
        ([{"prompt": "The"}, {"prompt": [3, 4]}], "row 2, .* of one kind in all rows"),
        ([{"prompt": []}], r"found \[\]; expected a text"),
        ([{"prompt": [3] * 13}], "expected a text or a list of at most 12 token ids"),
        ([{"prompt": "The" + " cat" * 12}], "1 of 1 prompts are longer than 11 tokens"),
        (
            torch.tensor([[3, 4], [3, 1]]),
            r"row 2, column prompt: found \[3, 1\]; .* without padding",
        ),
        (
            torch.tensor([[1, 3], [4, 3]]),
            r"row 1, column prompt: found \[1, 3\]; .* without padding",
        ),
        (torch.tensor([[0.5, 1.0]]), "row 1, column prompt: found"),
    ],
)
def test_prompts_that_cannot_be_read(model: Any, rows: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_encoded(model, rows)


def test_other_models_and_other_data(model: Any, cases: helpers.Cases) -> None:
    with pytest.raises(
        InputError, match=r"prompts: found Bert.*; expected a causal language model"
    ):
        as_encoded(cases.get("bert").model, ROWS)
    with pytest.raises(InputError, match="tokenizer: not known for HookedTransformer"):
        as_encoded(hooked(), ROWS)
    with pytest.raises(InputError, match="or pass a metric to"):
        evaluate(model, ROWS)
    # A column that examples are known by comes first.
    both = pd.DataFrame({"text": ["The cat"], "prompt": ["The dog"], "label": ["x"]})
    assert as_encoded(hooked(), both, tokenizer=model.tokenizer).input_ids == [[0, 3, 4]]
