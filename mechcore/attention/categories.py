"""What a query token can attend to: categories of keys (arXiv 2403.03942, section 5).

Pieces of a word count whole. `claims` gives every category all of its (query, key) pairs, which is
what masses are made of; `partition` gives a pair to the first category, so that shares sum to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mechcore.data.tokens import SPECIAL
from mechcore.errors import InputError
from mechcore.models.protocol import Batch
from mechcore.registry import Registry


@dataclass(frozen=True, eq=False)
class TokenInfo:
    """What is known about the tokens of one batch, for deciding who attends to what.

    Attributes:
        real: False at padding.
        segments: 0 and 1 for tokens of the first and second text, `SPECIAL` elsewhere.
        words: equal numbers for tokens of equal words, `SPECIAL` for what is no word.
        causal: whether keys after the query are out of reach.
        spans: equal numbers for the tokens of one word where it stands; None where the pieces of
            words are not known.
    """

    ids: Int[Tensor, "batch pos"]
    real: Bool[Tensor, "batch pos"]
    segments: Int[Tensor, "batch pos"]
    words: Int[Tensor, "batch pos"]
    separators: Bool[Tensor, "batch pos"]
    causal: bool
    spans: Int[Tensor, "batch pos"] | None = None

    @classmethod
    def of(cls, batch: Batch, *, causal: bool) -> TokenInfo:
        """Read a right-padded batch of examples that were encoded with ``words=True``."""
        names = ("input_ids", "attention_mask", "segments", "words", "separators")
        missing = [name for name in names if batch.get(name) is None]
        if missing:
            raise InputError(
                f"batch: no {' and no '.join(missing)}; expected examples whose words are known: "
                "encode them with encode(..., words=True)"
            )
        ids, real, segments, words, separators = (batch[name] for name in names)
        return cls(ids, real != 0, segments, words, separators != 0, causal, batch.get("spans"))

    def to(self, device: torch.device) -> TokenInfo:
        """The same on another device."""
        names = ("ids", "real", "segments", "words", "separators")
        there = {name: getattr(self, name).to(device) for name in names}
        return replace(self, **there, spans=None if self.spans is None else self.spans.to(device))

    @cached_property
    def positions(self) -> Int[Tensor, " pos"]:
        """0, 1, 2 and so on."""
        return torch.arange(self.ids.shape[1], device=self.ids.device)

    @cached_property
    def allowed(self) -> Bool[Tensor, "batch query key"]:
        """Pairs of real tokens whose key the query can see."""
        pairs = self.real[:, :, None] & self.real[:, None, :]
        return pairs & (self._distance >= 0) if self.causal else pairs

    @cached_property
    def same_word(self) -> Bool[Tensor, "batch query key"]:
        """Pairs of tokens of equal words."""
        is_word = self.words != SPECIAL
        return (self.words[:, :, None] == self.words[:, None, :]) & is_word[:, :, None]

    @cached_property
    def occurrences(self) -> Int[Tensor, "batch pos"]:
        """Equal numbers for the pieces of one occurrence of a word, rising along the row.

        Without spans, it ends where the word or segment changes, or its first piece comes again.
        """
        changes = torch.ones_like(self.real)
        if self.spans is not None:
            changes[:, 1:] = self.spans.diff(dim=1) != 0
            return changes.cumsum(1)
        changes[:, 1:] = self.words.diff(dim=1) != 0
        changes[:, 1:] |= self.segments.diff(dim=1) != 0
        run_start = (changes * self.positions).cummax(1).values
        return (changes | (self.ids == self.ids.gather(1, run_start))).cumsum(1)

    @cached_property
    def two_segments(self) -> Bool[Tensor, " batch"]:
        """Whether a row has a second text."""
        return (self.segments == 1).any(1)

    @cached_property
    def _distance(self) -> Int[Tensor, "query key"]:
        return self.positions[:, None] - self.positions[None, :]

    def at_distance(self, distance: int) -> Bool[Tensor, "batch query key"]:
        """Pairs whose key is ``distance`` tokens before the query, behind it where negative."""
        return (self._distance == distance).expand_as(self.allowed)

    def key_is(self, which: Bool[Tensor, "*batch pos"]) -> Bool[Tensor, "batch query key"]:
        """Pairs whose key is one of ``which``."""
        return which[..., None, :].expand_as(self.allowed)


OTHER = "other"
MIXED = "mixed"

CategoryFunction: TypeAlias = Callable[[TokenInfo], Bool[Tensor, "batch query key"]]


@dataclass(frozen=True)
class Category:
    """A named set of (query, key) pairs; ``causal_only`` for causal models alone.

    ``function`` says which pairs of a batch it claims; padding and keys out of reach may be among
    them. ``description`` says which keys it has, to finish the sentence "attends to".
    """

    name: str
    function: CategoryFunction
    causal_only: bool = False
    description: str = ""


def _repeated(tokens: TokenInfo) -> Bool[Tensor, "batch query key"]:
    other_segment = tokens.segments[:, :, None] != tokens.segments[:, None, :]
    elsewhere = tokens.occurrences[:, :, None] != tokens.occurrences[:, None, :]
    both = tokens.two_segments[:, None, None]
    return tokens.same_word & torch.where(both, other_segment, elsewhere)


def _induction(tokens: TokenInfo) -> Bool[Tensor, "batch query key"]:
    """Inside a word pieces must agree; at its end the whole word, whatever its case."""
    last_piece = torch.ones_like(tokens.real)
    last_piece[:, :-1] = tokens.occurrences.diff(dim=1) != 0
    same_end = tokens.same_word & last_piece[:, :, None] & last_piece[:, None, :]
    matches = same_end | (tokens.ids[:, :, None] == tokens.ids[:, None, :])
    follows = torch.zeros_like(matches)
    follows[:, :, 1:] = matches[:, :, :-1]
    return follows


BUILT_IN = (
    Category(
        "first",
        lambda tokens: tokens.key_is(tokens.positions == 0),
        description="the first token, the attention sink",
    ),
    Category(
        "separator",
        lambda tokens: tokens.key_is(tokens.separators & (tokens.positions > 0)),
        description="separators",
    ),
    Category("self", lambda tokens: tokens.at_distance(0), description="the query itself"),
    Category("previous", lambda tokens: tokens.at_distance(1), description="the token before"),
    Category("next", lambda tokens: tokens.at_distance(-1), description="the token after"),
    Category(
        "repeated",
        _repeated,
        description="the same word in the other segment, or elsewhere where there is but one",
    ),
    Category(
        "induction",
        _induction,
        causal_only=True,
        description="what came after the same token or word before",
    ),
)


def _of_texts(tokens: TokenInfo, same: bool) -> Bool[Tensor, "batch query key"]:
    query, key = tokens.segments[:, :, None], tokens.segments[:, None, :]
    return ((query == key) == same) & (query != SPECIAL) & (key != SPECIAL)


OF_TEXTS = (
    Category("other_text", lambda tokens: _of_texts(tokens, False), description="the other text"),
    Category("same_text", lambda tokens: _of_texts(tokens, True), description="its own text"),
)
"""For knockouts alone: query and key are in different texts of a pair, or in the same text."""

_RESERVED = {category.name for category in (*BUILT_IN, *OF_TEXTS)} | {OTHER, MIXED}

CATEGORIES: Registry[Category] = Registry("category", "mechcore.categories")
"""Categories of installed packages, and those added in code; they come after mechcore's own."""


def categories(causal: bool) -> tuple[Category, ...]:
    """Registered categories of encoders or causal models, the first to claim a pair first."""
    return tuple(c for c in registered_categories() if causal or not c.causal_only)


def registered_categories() -> tuple[Category, ...]:
    """All categories, built in, of packages and added, in their order."""
    for name in CATEGORIES:
        _check_name(name)
    return (*BUILT_IN, *(CATEGORIES[name] for name in CATEGORIES))


def register_category(
    name: str,
    function: CategoryFunction,
    *,
    causal_only: bool = False,
    description: str = "",
) -> None:
    """Add a category of keys, see `Category`, to every table computed from now on.

    `TokenInfo.at_distance` and `TokenInfo.key_is` are the usual building blocks. Of pairs that
    others claim too, shares count those categories first. It replaces one of the same name.

    Raises:
        InputError: the name is that of a built-in category or no identifier.

    >>> register_category("two_back", lambda tokens: tokens.at_distance(2))
    >>> [category.name for category in categories(causal=False)][-2:]
    ['repeated', 'two_back']
    >>> unregister_category("two_back")
    """
    _check_name(name)
    CATEGORIES.register(name)(Category(name, function, causal_only, description))


def key_is_word(tokenizer: PreTrainedTokenizerBase, *words: str) -> CategoryFunction:
    """For `register_category`: the key is a piece of one of ``words``, however capitalised.

    Raises:
        InputError: no word is given, or the tokenizer has no token for a part of one.

    >>> register_category("negation", key_is_word(tokenizer, "no", "not"))  # doctest: +SKIP
    """
    if not words:
        raise InputError("key_is_word: no word; name at least one, such as 'not'")
    written: set[tuple[int, ...]] = set()
    for word in words:
        forms = {word, word.lower(), word.capitalize(), word.upper()}
        texts = sorted(space + form for space in ("", " ") for form in forms)
        pieces = {tuple(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]}
        known = {ids for ids in pieces if ids and tokenizer.unk_token_id not in ids}
        if not known:
            raise InputError(
                f"key_is_word: the tokenizer reads {word!r} as unknown; leave it out, as no text "
                "can show it to the model"
            )
        written |= known
    return lambda tokens: tokens.key_is(_at_words(tokens, written))


def _at_words(tokens: TokenInfo, written: Iterable[tuple[int, ...]]) -> Bool[Tensor, "batch pos"]:
    """Tokens of these pieces, whole words from end to end; *don't* may be three of them."""
    marked = torch.zeros_like(tokens.real)
    starts, ends = torch.ones_like(marked), torch.ones_like(marked)
    starts[:, 1:] = ends[:, :-1] = tokens.occurrences.diff(dim=1) != 0
    for ids in written:
        n = marked.shape[1] - len(ids) + 1
        if n < 1:
            continue
        last = slice(len(ids) - 1, None)
        here = starts[:, :n] & ends[:, last]
        for place, piece in enumerate(ids):
            here = here & (tokens.ids[:, place : place + n] == piece)
        for place in range(len(ids)):
            marked[:, place : place + n] |= here
    return marked


def unregister_category(name: str) -> None:
    """Take a registered category out again; `InputError` if it is not registered."""
    CATEGORIES.remove(name)


def _check_name(name: str) -> None:
    if not name.isidentifier():
        raise InputError(
            f"category {name!r}: expected a name of letters, digits and underscores, which column "
            "names are made of"
        )
    if name in _RESERVED:
        raise InputError(
            f"category {name!r}: is mechcore's own; choose another name than "
            f"{', '.join(sorted(_RESERVED))}"
        )


def claims(
    tokens: TokenInfo, more: Sequence[Category] = ()
) -> dict[str, Bool[Tensor, "batch query key"]]:
    """The allowed pairs of every category and of ``more``, in order; a pair may be in several."""
    allowed, pairs = tokens.allowed, {}
    for category in (*categories(tokens.causal), *more):
        claimed = category.function(tokens)
        if claimed.shape != allowed.shape or claimed.dtype != torch.bool:
            raise InputError(
                f"category {category.name!r}: its function returned {claimed.dtype} of shape "
                f"{tuple(claimed.shape)}; expected torch.bool of shape {tuple(allowed.shape)}, "
                "[batch, query, key]"
            )
        pairs[category.name] = claimed & allowed
    return pairs


def partition(tokens: TokenInfo) -> dict[str, Bool[Tensor, "batch query key"]]:
    """The categories of a batch made disjoint, ``other`` last; together the allowed pairs."""
    return disjoint(claims(tokens), tokens.allowed)


def disjoint(
    claimed: Mapping[str, Bool[Tensor, "batch query key"]],
    allowed: Bool[Tensor, "batch query key"],
) -> dict[str, Bool[Tensor, "batch query key"]]:
    """Give every allowed pair to the first that claims it, the rest to ``other``."""
    free, parts = allowed, {}
    for name, pairs in claimed.items():
        parts[name] = pairs & free
        free = free & ~pairs
    return {**parts, OTHER: free}
