from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
import transformers as hf
from helpers import FEW, PAD, Cases, reference_logits
from models.families import config_of, save

from mechcore.errors import InputError
from mechcore.models import load_model
from mechcore.models.protocol import (
    forward,
    last_real_position,
    model_inputs,
    n_parameters,
    named_weights,
)
from mechcore.papers.extractive.weights import restored


@pytest.mark.parametrize("architecture", [*FEW, "gpt2-lm"])
def test_weights_are_the_checkpoints_and_share_no_memory(cases: Cases, architecture: str) -> None:
    model = cases.get(architecture).model
    weights = named_weights(model)
    assert n_parameters(model) == n_weights(cases.get(architecture).reference)
    assert not any("_original_component" in name for name in weights)
    with restored(model), torch.no_grad():
        for i, weight in enumerate(weights.values()):
            weight.fill_(i)
        assert all(bool((weight == i).all()) for i, weight in enumerate(weights.values()))


def n_weights(plain: Any) -> int:
    return sum(parameter.numel() for parameter in plain.parameters())


def test_the_parts_of_a_fused_gate_are_named_and_not_the_whole(tmp_path: Path) -> None:
    plain = hf.Phi3ForCausalLM(config_of("Phi3", num_hidden_layers=1))
    model = load_model(save(plain, tmp_path))
    weights = named_weights(model)
    gate, into = plain.model.layers[0].mlp.gate_up_proj.weight.chunk(2)
    assert torch.equal(weights["model.layers.0.mlp.gate.weight"], gate)
    assert torch.equal(weights["model.layers.0.mlp.in.weight"], into)
    assert not any("gate_up_proj" in name for name in weights)
    assert n_parameters(model) == n_weights(plain)


@pytest.mark.hooked
def test_a_hooked_transformer_has_its_own_names(cases: Cases) -> None:
    model = helpers.hooked_transformer(cases.path("gpt2-lm"))
    assert set(named_weights(model)) == {name for name, _ in model.named_parameters()}
    assert "blocks.0.attn.W_Q" in named_weights(model)


# -- batches made by hand -------------------------------------------------------------------------


def batch_of(*rows: list[int], mask: Any = None, **more: Any) -> dict[str, Any]:
    batch = {"input_ids": torch.tensor(rows), **more}
    return batch if mask is None else {**batch, "attention_mask": mask}


LONG, SHORT, ODD = [7, 8, 9, 10, 11], [12, 13, 14], [15, 16, 17, 18]
ROWS = (LONG, [*SHORT, PAD, PAD], [*ODD, PAD])
RIGHT = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])
ADDITIVE = torch.where(RIGHT == 1, 0.0, -10_000.0)


def answers(model: Any, batch: Any) -> torch.Tensor:
    """A classifier's logits, or a language model's at the last real token."""
    with torch.no_grad():
        logits = forward(model, batch)
    if logits.ndim == 2:
        return logits
    last = last_real_position(model_inputs(model, batch)["attention_mask"])
    return logits[torch.arange(len(last)), last]


@pytest.mark.parametrize("architecture", ["bert", "gpt2-lm"])
@pytest.mark.parametrize(
    "as_given", [torch.Tensor.bool, torch.Tensor.float, torch.Tensor.tolist, torch.Tensor.numpy]
)
def test_masks_of_any_type_are_the_same(cases: Cases, architecture: str, as_given: Any) -> None:
    case = cases.get(architecture)
    expected = reference_logits(case.reference, [torch.tensor(row) for row in (LONG, SHORT, ODD)])
    batch = batch_of(*ROWS, mask=as_given(RIGHT))
    torch.testing.assert_close(answers(case.model, batch), expected, rtol=0, atol=1e-5)
    assert {tensor.dtype for tensor in model_inputs(case.model, batch).values()} == {torch.long}


ONE_OR_ZERO = "expected 1 at real tokens and 0 at padding"
PADDED = "begins or ends with the padding token"
INVERTED = "attention_mask is 1 at the padding token .1. of row"
REFUSED: dict[str, tuple[Any, str]] = {
    "additive": (ADDITIVE, f"-10000 in row 1 at position 3; {ONE_OR_ZERO}: convert an additive"),
    "infinite": (ADDITIVE.clamp(max=0) * torch.inf, "attention_mask has nan in row 0"),
    "smallest": (torch.where(RIGHT == 1, 0.0, -3.4e38), "has -3.3.* in row 1 at position 3"),
    "one half": (RIGHT * 0.5, f"attention_mask has 0.5 in row 0 at position 0; {ONE_OR_ZERO}$"),
    "packed": (RIGHT * 2, "has 2 in row 0 at position 0; .*: put texts packed in one row"),
    "inverted": (1 - RIGHT, "a row has no real token: .* 0 throughout .row 0."),
    "other rows": (RIGHT.roll(1, 0), f"{INVERTED} 1"),
    "another side": (RIGHT.flip(1), f"{INVERTED} 1"),
    "four axes": (RIGHT[:, None, None], r"attention_mask has shape \(3, 1, 1, 5\), input_ids \(3"),
    "one axis": (RIGHT[0], r"attention_mask has shape \(5,\), input_ids \(3, 5\)"),
    "another length": (RIGHT[:, :4], r"attention_mask has shape \(3, 4\), input_ids \(3, 5\)"),
    "none": (None, rf"no attention_mask, and row 1 {PADDED} \(1\)"),
}


@pytest.mark.parametrize("architecture", ["bert", "gpt2-lm"])
@pytest.mark.parametrize("kind", REFUSED)
def test_other_masks_are_refused(cases: Cases, architecture: str, kind: str) -> None:
    mask, message = REFUSED[kind]
    with pytest.raises(InputError, match=message):
        forward(cases.get(architecture).model, batch_of(*ROWS, mask=mask))


def test_a_mask_inverted_in_padded_rows_alone_is_refused(cases: Cases) -> None:
    for rows, row in ((ROWS[1:], 0), ((LONG, [PAD] * 5), 1)):
        mask = 1 - RIGHT[1:] if row == 0 else torch.ones(2, 5)
        with pytest.raises(InputError, match=f"{INVERTED} {row}, and not at its real tokens"):
            forward(cases.get("gpt2").model, batch_of(*rows, mask=mask))


@pytest.mark.parametrize("architecture", ["bert", "gpt2", "gpt2-lm", "llama"])
@pytest.mark.parametrize("hidden", [PAD, 12])
def test_what_is_hidden_inside_of_a_row_is_as_if_it_were_not_there(
    cases: Cases, architecture: str, hidden: int
) -> None:
    """A prompt padded on the right, and what was generated after it."""
    case = cases.get(architecture)
    batch = batch_of([7, 8, hidden, hidden, 9], LONG, mask=[[1, 1, 0, 0, 1], [1] * 5])
    expected = reference_logits(case.reference, [torch.tensor([7, 8, 9]), torch.tensor(LONG)])
    torch.testing.assert_close(answers(case.model, batch), expected, rtol=0, atol=1e-5)


PAD_IDS: dict[str, tuple[dict[str, int | None], list[list[int]], str | None]] = {
    "full rows": ({"pad": 1}, [LONG, LONG[::-1]], None),
    "padding inside": ({"pad": 1}, [[7, 1, 8]], None),
    "on the left": ({"pad": 1}, [LONG, [1, *ODD]], PADDED),
    "padding alone": ({"pad": 1}, [[1]], PADDED),
    "padding is 0": ({"pad": 0}, [LONG, [*ODD, 0]], PADDED),
    "texts end in the end of text": ({"pad": 2, "eos": 2}, [[7, 8, 2], [9, 10, 2]], None),
    "texts cut out of a stream": ({"pad": 2, "eos": 2}, [[7, 8, 2], [2, 9, 10], LONG[:3]], None),
    "the end of text alone": ({"pad": 2, "eos": 2}, [[2]], None),
    "padded with it": ({"pad": 2, "eos": 2}, [[7, 8, 9, 2], [7, 8, 2, 2]], PADDED),
    "begun and padded with it": ({"pad": 2, "bos": 2}, [[2, 7, 8, 9], [2, 2, 7, 8]], PADDED),
    "no padding token": ({"pad": None}, [LONG, [*SHORT, 1, 1]], None),
    "none but the end of text": ({"pad": None, "eos": 2}, [LONG, [*SHORT, 2, 2]], PADDED),
}


@pytest.mark.parametrize("kind", PAD_IDS)
def test_a_mask_is_missing_only_where_padding_is_at_an_end(tmp_path: Path, kind: str) -> None:
    ids, rows, message = PAD_IDS[kind]
    plain = helpers.gpt2_language_model(**{f"{token}_token_id": i for token, i in ids.items()})
    plain.save_pretrained(tmp_path)
    model, ones = load_model(tmp_path), torch.ones(len(rows), len(rows[0]))
    if kind != "padding alone":  # what is said to be text is text
        expected = forward(model, batch_of(*rows, mask=ones))
    if message is None:
        assert torch.equal(forward(model, batch_of(*rows)), expected)
        return
    with pytest.raises(InputError, match=f"no attention_mask, and row {len(rows) - 1} {message}"):
        forward(model, batch_of(*rows))


ENTRIES: list[tuple[str, dict[str, Any], str | None]] = [
    ("gpt2-lm", {"position_ids": [[0, 1, 0, 1, 2]] * 3}, "position_ids is not read.*separate row"),
    ("bert", {"head_mask": None, "position_ids": None, "token_type_ids": None}, None),
    ("bert", {"head_mask": torch.ones(2, 4)}, None),
    ("bert", {"head_mask": torch.eye(4)[:2]}, r"head_mask is not read, .* \(mechcore.masked abl"),
    ("gpt2", {"inputs_embeds": torch.ones(3, 5, 16) / 2}, "inputs_embeds is not read"),
    ("llama", {"past_key_values": ()}, "past_key_values is not read"),
    ("bert", {"token_type_ids": (torch.tensor([[0, 0, 1, 1, 1]] * 3)).double()}, None),
    ("bert", {"token_type_ids": torch.tensor([[0, 0, 1, 1, 1]] * 3).bool()}, None),
    ("bert", {"token_type_ids": torch.full((3, 5), 0.5)}, "0.5 in row 0 at position 0; expected w"),
    ("bert", {"token_type_ids": torch.full((3, 5), -1)}, "token_type_ids has -1 in row 0"),
    ("bert", {"input_ids": torch.tensor(ROWS).half()}, "input_ids are torch.float16; expected tok"),
    ("bert", {"input_ids": torch.tensor(ROWS).short()}, None),
    ("gpt2", {"labels": torch.zeros(3), "index": [0, 1, 2], "special_tokens_mask": RIGHT}, None),
    ("gpt2", {"offset_mapping": torch.zeros(3, 5, 2), "length": [5, 3, 4], "text": "abc"}, None),
]


@pytest.mark.parametrize(("architecture", "entries", "message"), ENTRIES)
def test_entries_count_or_are_refused_or_make_no_difference(
    cases: Cases, architecture: str, entries: dict[str, Any], message: str | None
) -> None:
    case, plain = cases.get(architecture), batch_of(*ROWS, mask=RIGHT)
    if message is not None:
        with pytest.raises(InputError, match=message):
            forward(case.model, plain | entries)
        return
    types = entries.get("token_type_ids")
    expected = plain if types is None else plain | {"token_type_ids": types.long()}
    with torch.no_grad():
        logits = answers(case.model, plain | entries)
        reference = case.reference(**expected).logits
    if architecture == "bert":
        torch.testing.assert_close(logits, reference, rtol=0, atol=1e-5)
    assert torch.equal(logits, answers(case.model, expected))


@pytest.mark.hooked
def test_masks_for_hooked_models_are_looked_at_too(cases: Cases) -> None:
    decoder, encoder = helpers.hooked_transformer(cases.path("gpt2-lm")), helpers.hooked_encoder()
    for model in (decoder, encoder):
        for kind in ("additive", "one half", "packed", "inverted", "four axes"):
            mask, message = REFUSED[kind]
            with pytest.raises(InputError, match=message):
                forward(model, batch_of(*ROWS, mask=mask))
        as_floats = forward(model, batch_of(*ROWS, mask=RIGHT.float()))
        assert torch.equal(as_floats, forward(model, batch_of(*ROWS, mask=RIGHT)))
    with pytest.raises(InputError, match=PADDED):
        forward(decoder, batch_of(*ROWS))
    decoder.config = None  # as of one built by hand, of which is not known what padding is
    for model in (decoder, encoder):
        assert forward(model, batch_of(*ROWS)).shape[0] == 3
    decoder.tokenizer = helpers.word_tokenizer()
    with pytest.raises(InputError, match=PADDED):
        forward(decoder, batch_of(*ROWS))
