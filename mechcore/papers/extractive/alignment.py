"""Which token of one prompt stands for which token of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile


def common_ends(prompts: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Lengths of the longest prefix and of the longest suffix that all prompts share.

    They do not overlap in the shortest: what could be both is prefix.
    """
    prefix, suffix = (
        sum(1 for _ in takewhile(lambda tokens: len({*tokens}) == 1, zip(*each)))  # noqa: B905
        for each in (prompts, [prompt[::-1] for prompt in prompts])
    )
    return prefix, min(suffix, min(map(len, prompts)) - prefix)


def align(prompt: Sequence[int], other: Sequence[int]) -> list[int]:
    """The position in ``other`` that stands for each position of ``prompt``.

    As in arXiv 2412.04614: what both begin and end with is mapped to itself; the middles, such as
    two names, are aligned at their right ends, and where that of ``other`` is too short, its first
    token stands for all that lack one (if it has none, the token after the common beginning, or
    the last).
    """
    prefix, suffix = common_ends([prompt, other])
    middle, other_middle = (len(each) - prefix - suffix for each in (prompt, other))
    first = min(prefix, len(other) - 1)
    shift = other_middle - middle
    between = [max(first, prefix + i + shift) for i in range(middle)]
    end = [len(other) - suffix + i for i in range(suffix)]
    return [*range(prefix), *between, *end]


@dataclass(frozen=True)
class Places:
    """Columns that the tokens of several prompts share.

    Attributes:
        names: of the columns: the text of tokens that all prompts begin or end with, and
            ``"subject -1"`` for the last token of what differs, ``"subject -2"`` for that before.
        columns: the column of every token of each prompt.
    """

    names: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]


def places(prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[str]]) -> Places:
    """Columns for prompts of one wording, whose subjects are aligned at their right ends."""
    prefix, suffix = common_ends(prompts)
    middles = [len(each) - prefix - suffix for each in prompts]
    widest = max(middles)
    names = [*texts[0][:prefix], *(f"subject {i - widest}" for i in range(widest))]
    names += texts[0][len(texts[0]) - suffix :]
    columns = tuple(
        (*range(prefix), *range(prefix + widest - middle, prefix + widest + suffix))
        for middle in middles
    )
    return Places(tuple(names), columns)
