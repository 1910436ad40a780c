"""The tiny world: a templated inference task with a shallow heuristic built in.

In ordinary pairs the hypothesis is entailed exactly when all its words are in the premise; a
counter-heuristic minority breaks the rule, see data/README.md.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, get_args

import pandas as pd
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from mechcore.data.examples import COLUMNS, Examples
from mechcore.errors import InputError
from mechcore.worlds.draws import pick

Split = Literal["train", "id", "ood"]

ENTAILMENT = "entailment"
NON_ENTAILMENT = "non-entailment"
LABELS = (ENTAILMENT, NON_ENTAILMENT)
DEFAULT_MINORITY = 0.04

DECODER_PROMPT = "[BOS] {a} [SEP] {b} [ANS]"
DECODER_ANSWERS = {ENTAILMENT: "yes", NON_ENTAILMENT: "no"}


def _list(words: str) -> tuple[str, ...]:
    return tuple(words.split())


NOUNS = _list(
    "baker pilot poet nurse sailor farmer tailor miner dancer singer cook guard clerk hunter "
    "driver weaver diver jeweller monk knight cousin tourist widow pirate wizard boxer barber "
    "dentist judge queen scout porter"
)
TRANSITIVES = _list(
    "thanked helped followed warned praised hired visited blamed trusted greeted phoned teased "
    "rescued fed guided hugged"
)
INTRANSITIVES = _list(
    "slept sang laughed waited smiled arrived stumbled sneezed whistled shouted retired paused"
)
CONTENT = (NOUNS, TRANSITIVES, INTRANSITIVES)
PREPOSITIONS = _list("near behind beside opposite with above below facing")
ADVERBS = _list("today yesterday again twice quietly gladly often early")
FACTIVES = _list("knew remembered noticed realised learned forgot discovered")
NON_FACTIVES = _list("hoped claimed thought suspected feared guessed imagined dreamt")
FUNCTION_WORDS = _list("the and who was by because that if even then wondered")
WORDS = tuple(chain(FUNCTION_WORDS, *CONTENT, PREPOSITIONS, ADVERBS, FACTIVES, NON_FACTIVES))

_HELD_OUT_ONE_IN = 10


Pair = tuple[str, str]
Row = tuple[str, str, str, str]


@dataclass
class _Words:
    """Draws parts for one pair; nouns and verbs never twice."""

    rng: random.Random
    used: set[str] = field(default_factory=set)

    def new(self, options: Sequence[str]) -> str:
        word = pick(options, self.rng)
        while word in self.used:
            word = pick(options, self.rng)
        self.used.add(word)
        return word

    def coin(self) -> bool:
        return self.rng.random() < 0.5

    def part(self, kind: str) -> str:
        if kind == "noun":
            return f"the {self.new(NOUNS)}"
        if kind == "verb":
            return self.new(TRANSITIVES)
        if kind == "transitive":
            return f"{self.part('verb')} {self.part('noun')}"
        if kind == "predicate":
            return self.part("transitive") if self.coin() else self.new(INTRANSITIVES)
        if kind == "clause":
            return f"{self.part('noun')} {self.part('predicate')}"
        return pick(_MINOR[kind], self.rng)


_MINOR = {
    "adverb": ADVERBS,
    "preposition": PREPOSITIONS,
    "factive": FACTIVES,
    "non-factive": NON_FACTIVES,
}


class Template:
    """Kinds of `_Words.part` to draw in order, and one or two pairs of forms that number them."""

    def __init__(self, parts: str, *forms: Pair) -> None:
        self.parts, self.forms = parts, forms

    def __call__(self, w: _Words) -> Pair:
        """Draw a pair."""
        parts = [w.part(kind) for kind in self.parts.split()]
        premise, hypothesis = self.forms[len(self.forms) > 1 and not w.coin()]
        return premise.format(*parts), hypothesis.format(*parts)


ORDINARY: dict[str, Template] = {
    "drop_adverb": Template("noun transitive adverb", ("{0} {1} {2}", "{0} {1}")),
    "drop_pp": Template("noun predicate preposition noun", ("{0} {2} {3} {1}", "{0} {1}")),
    "drop_object_pp": Template("noun transitive preposition noun", ("{0} {1} {2} {3}", "{0} {1}")),
    "conjunct": Template(
        "noun noun predicate", ("{0} and {1} {2}", "{0} {2}"), ("{0} and {1} {2}", "{1} {2}")
    ),
    "passive": Template("noun verb noun", ("{2} was {1} by {0}", "{0} {1} {2}")),
    "relative": Template(
        "noun predicate predicate", ("{0} who {1} {2}", "{0} {1}"), ("{0} who {1} {2}", "{0} {2}")
    ),
    "because": Template("clause clause", ("{0} because {1}", "{0}"), ("{0} because {1}", "{1}")),
    "and_then": Template("clause clause", ("{0} and then {1}", "{0}"), ("{0} and then {1}", "{1}")),
    "conditional": Template(
        "clause clause", ("{0} if {1}", "if {1} {0}"), ("if {1} {0}", "{0} if {1}")
    ),
    "even_if": Template("clause clause", ("{0} even if {1}", "{0}")),
    "relative_if": Template("noun predicate clause", ("{0} who wondered if {2} {1}", "{0} {1}")),
    "factive": Template("clause noun factive", ("{1} {2} that {0}", "{0}")),
    "report": Template(
        "noun non-factive clause adverb", ("{0} {1} that {2} {3}", "{0} {1} that {2}")
    ),
    "relative_verb": Template(
        "noun predicate non-factive clause", ("{0} who {2} that {3} {1}", "{0} {1}")
    ),
    "because_verb": Template(
        "clause noun non-factive clause", ("{0} because {1} {2} that {3}", "{0}")
    ),
}
# For each subset, its templates under the ordinary template that has the same premises.
COUNTER_HEURISTIC: dict[str, dict[str, Template]] = {
    "so_swap": {
        "drop_adverb": Template("noun verb noun adverb", ("{0} {1} {2} {3}", "{2} {1} {0}"))
    },
    "prep": {
        "drop_pp": Template("noun noun predicate preposition", ("{0} {3} {1} {2}", "{1} {2}"))
    },
    "embed_if": {
        "conditional": Template("clause clause", ("{0} if {1}", "{1}"), ("if {1} {0}", "{1}")),
        "even_if": Template("clause clause", ("{1} even if {0}", "{0}")),
    },
    "embed_verb": {
        "report": Template("clause noun non-factive adverb", ("{1} {2} that {0} {3}", "{0}")),
        "because_verb": Template(
            "clause clause noun non-factive", ("{1} because {2} {3} that {0}", "{0}")
        ),
    },
}
ENTAILED = "_entailed"
"""Suffix of the names of entailed halves of subsets."""

OOD_GROUPS = {
    "heuristic fails": tuple(COUNTER_HEURISTIC),
    "heuristic holds": tuple(f"{subset}{ENTAILED}" for subset in COUNTER_HEURISTIC),
}
"""The two halves of the out-of-domain examples."""

# A subset can replace at most all non-entailed pairs of one ordinary template.
MAX_MINORITY = len(COUNTER_HEURISTIC) / (2 * len(ORDINARY))


def _replace_content(pair: Pair, w: _Words) -> Pair:
    """The pair with at least one, often most, nouns and verbs of the hypothesis replaced."""
    premise, hypothesis = pair
    words = hypothesis.split()
    places = [i for i, word in enumerate(words) if any(word in kind for kind in CONTENT)]
    count = 1 + int(max(w.rng.random(), w.rng.random()) * len(places))
    for _ in range(count):
        place = places.pop(int(w.rng.random() * len(places)))
        words[place] = w.new(next(kind for kind in CONTENT if words[place] in kind))
    return premise, " ".join(words)


def is_held_out(premise: str) -> bool:
    """Whether a premise belongs to the evaluation splits (a tenth of all) or to training."""
    return zlib.crc32(premise.encode()) % _HELD_OUT_ONE_IN == 0


def _draw(template: Template, replace: bool, held_out: bool, rng: random.Random) -> Pair:
    while True:
        w = _Words(rng)
        premise, hypothesis = template(w)
        if is_held_out(premise) == held_out:
            return _replace_content((premise, hypothesis), w) if replace else (premise, hypothesis)


def _ordinary(turn: int, held_out: bool, rng: random.Random) -> Row:
    """The pair of a turn: templates rotate; entailed and non-entailed pairs alternate."""
    subset, entailed = list(ORDINARY)[turn // 2 % len(ORDINARY)], turn % 2 == 0
    pair = _draw(ORDINARY[subset], not entailed, held_out, rng)
    return (*pair, ENTAILMENT if entailed else NON_ENTAILMENT, subset)


def _counter(subset: str, host: str, held_out: bool, rng: random.Random) -> Row:
    pair = _draw(COUNTER_HEURISTIC[subset][host], False, held_out, rng)
    return (*pair, NON_ENTAILMENT, subset)


def _training_rows(n: int, minority: float, rng: random.Random) -> list[Row]:
    """Ordinary pairs, with some non-entailed ones displaced by the minority."""
    displaced = {
        host: (subset, minority / MAX_MINORITY / len(hosts))
        for subset, hosts in COUNTER_HEURISTIC.items()
        for host in hosts
    }
    rows = []
    for turn in range(n):
        row = _ordinary(turn, False, rng)
        if row[2] == NON_ENTAILMENT and row[3] in displaced:
            subset, share = displaced[row[3]]
            if rng.random() < share:
                row = _counter(subset, row[3], False, rng)
        rows.append(row)
    return rows


def _ood_rows(n: int, seed: int) -> list[Row]:
    """Alternating non-entailed and entailed pairs; each half has its own draws."""
    halves = [random.Random(f"ood {seed}"), random.Random(f"ood entailed {seed}")]
    rows = []
    for turn in range(n):
        turn, entailed = divmod(turn, 2)
        round_, place = divmod(turn, len(COUNTER_HEURISTIC))
        subset = list(COUNTER_HEURISTIC)[place]
        hosts = list(COUNTER_HEURISTIC[subset])
        host, rng = hosts[round_ % len(hosts)], halves[entailed]
        if entailed:
            pair = _draw(ORDINARY[host], False, True, rng)
            rows.append((*pair, ENTAILMENT, f"{subset}{ENTAILED}"))
        else:
            rows.append(_counter(subset, host, True, rng))
    return rows


def generate(split: Split, n: int, seed: int, minority: float = DEFAULT_MINORITY) -> Examples:
    """``n`` pairs of one split; the same for the same arguments on every machine.

    ``"train"`` holds the expected share ``minority`` of counter-heuristic pairs, each in place
    of an ordinary non-entailed pair with the same form of premise; ``"id"`` is the same without the
    minority; ``"ood"`` holds the four counter-heuristic subsets and their entailed halves, in equal
    parts. Labels and templates alternate, so every prefix is balanced; shuffle before training. No
    premise is in both training and evaluation splits. ``subset`` is the template.

    Raises:
        InputError: an argument is out of range.
    """
    if split not in get_args(Split):
        raise InputError(f"tiny world: split is {split!r}; expected train, id or ood")
    if not 0 <= minority <= MAX_MINORITY:
        raise InputError(
            f"tiny world: minority is {minority}; expected a share from 0 to {MAX_MINORITY:.3f}"
        )
    rng = random.Random(f"{split} {seed}")
    if split == "train":
        rows = _training_rows(n, minority, rng)
    elif split == "id":
        rows = [_ordinary(turn, True, rng) for turn in range(n)]
    else:
        rows = _ood_rows(n, seed)
    return Examples(split, pd.DataFrame(rows, columns=list(COLUMNS)))


def _tokenizer(specials: Sequence[str], words: Sequence[str]) -> Tokenizer:
    vocabulary = {word: index for index, word in enumerate((*specials, *words))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return tokenizer


def encoder_tokenizer() -> PreTrainedTokenizerFast:
    """Word-level tokenizer writing ``[CLS] A [SEP] B [SEP]`` with segment ids, as BERT does."""
    tokenizer = _tokenizer(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), WORDS)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def decoder_tokenizer() -> PreTrainedTokenizerFast:
    """Word-level tokenizer of the decoder, which recognises the tokens in ``DECODER_PROMPT``."""
    tokenizer = _tokenizer(("[PAD]", "[UNK]", "[BOS]", "[SEP]", "[ANS]"), (*WORDS, "yes", "no"))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        bos_token="[BOS]",
        sep_token="[SEP]",
        additional_special_tokens=["[ANS]"],
        model_input_names=["input_ids", "attention_mask"],
    )
