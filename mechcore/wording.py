"""Numbers as readers see them: percent, points, nats, intervals, p-values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

SPACE = "\u00a0"  # keeps a number and its unit on one line
MINUS = "\u2212"
DASH = "\u2013"
NOT_AVAILABLE = "n/a"
SPLITS = {"train": "training", "id": "in-domain", "ood": "out-of-domain"}
PLACES = {"id": "in domain", "ood": "out of domain"}
ALL = "all"
"""The subset that holds every example of a data set."""
FULL = "full"

OUT_FIRST = ("ood", "id")
SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "supported", "not supported", "inconclusive"

SIGNIFICANT = 0.05

QUICK = "--quick"
"""The option for trial runs without meaningful results, as origins of settings name it."""


def split_name(split: str) -> str:
    """``in-domain`` for ``id``, and so on; other splits keep their own name."""
    return SPLITS.get(split, split)


def number(value: float, digits: int = 2, *, signed: bool = False) -> str:
    """A plain number with a true minus sign; missing values are ``n/a``.

    >>> number(1.234), number(0.5, 1, signed=True)
    ('1.23', '+0.5')
    """
    if not math.isfinite(value):
        return NOT_AVAILABLE
    exact = isinstance(value, Integral) and digits == 0
    text = str(value) if exact else f"{rounded(value, digits):.{digits}f}"
    if float(text) == 0:
        return text.lstrip("-")
    if value < 0:
        return MINUS + text[1:]
    return f"+{text}" if signed else text


def rounded(value: float, digits: int) -> float:
    """Round to ``digits``, treating 97.65 and 97.64999999999999 (its floating-point sum) alike."""
    return round(round(value, digits + 9), digits)


def percent(share: float) -> str:
    """A share from 0 to 1 in percent, one decimal."""
    text = number(100 * share, 1)
    return text if text == NOT_AVAILABLE else f"{text}{SPACE}%"


def sparsity(share: float) -> str:
    """A target sparsity, with only the decimals it has."""
    return f"{100 * share:.4g}{SPACE}%" if math.isfinite(share) else NOT_AVAILABLE


def span(values: Iterable[float], show: Callable[[float], str] = number, to: str = " to ") -> str:
    """The smallest and largest of some values, or one value if they look the same."""
    finite = [value for value in values if math.isfinite(value)] or [math.nan]
    low, high = show(min(finite)), show(max(finite))
    return low if low == high else low.removesuffix(f"{SPACE}%") + to + high


def percent_range(shares: Iterable[float]) -> str:
    """The smallest and largest of some shares, or the one value when they look the same."""
    return span(shares, percent, DASH)


def effect(value: float, metric: str, *, unit: bool = True) -> str:
    """A signed difference: accuracy in percentage points, margin in nats."""
    digits, scale, name = _unit(metric)
    text = number(scale * value, digits, signed=True)
    return f"{text}{SPACE}{name}" if unit and text != NOT_AVAILABLE else text


def interval(low: float, high: float, metric: str, *, signed: bool = True) -> str:
    """The ends of an interval in brackets, in the unit of the metric; a dash when missing."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"[{DASH}]"
    digits, scale, _ = _unit(metric)
    ends = [number(scale * end, digits, signed=signed) for end in (low, high)]
    return f"[{ends[0]}, {ends[1]}]"


def with_interval(value: float, low: float, high: float, metric: str, *, unit: bool = False) -> str:
    """A signed difference followed by its interval."""
    return f"{effect(value, metric, unit=unit)} {interval(low, high, metric)}"


def _unit(metric: str) -> tuple[int, float, str]:
    return (1, 100.0, "points") if metric == "accuracy" else (2, 1.0, "nats")


_SUPERSCRIPT = str.maketrans(
    "-0123456789",
    "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079",
)


def p_value(p: float) -> str:
    """``p = 0.012`` and the like; a value that underflowed to zero is not printed as zero."""
    if not math.isfinite(p):
        return f"p {NOT_AVAILABLE}"
    return f"p = {small(p)}" if p > 0 else f"p < 10{'-300'.translate(_SUPERSCRIPT)}"


def small(value: float) -> str:
    """A positive number to two digits, in powers of ten where it is tiny.

    >>> small(0.0123), small(2.3e-7) == "2.3 \u00d7 10\u207b\u2077".replace(" ", SPACE)
    ('0.012', True)
    """
    if not math.isfinite(value):
        return NOT_AVAILABLE
    if value == 0 or value >= 0.001:
        return f"{value:.2g}" if value < 1 else number(value)
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}{SPACE}\u00d7{SPACE}10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def count(n: float, noun: str, plural: str | None = None) -> str:
    """A count with its noun in the right number.

    >>> count(1, "head"), count(3, "head")
    ('1 head', '3 heads')
    """
    return f"{whole(n)} {noun if n == 1 else plural or noun + 's'}"


def whole(value: float) -> str:
    """A whole number with thousands separators; missing values are ``n/a``."""
    return f"{round(value):,}" if math.isfinite(value) else NOT_AVAILABLE


def listed(items: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def short_source(source: str) -> str:
    """The end of a model's path, long enough to tell: a hub id whole, and "run/final" of a path."""
    return "/".join(source.strip("/").split("/")[-2:])


def subsets_named(names: Sequence[str], limit: int = 100) -> str:
    """How many subsets there are and, where that takes few letters, which."""
    number_of, which = count(len(names), "subset"), ", ".join(names)
    return f"{number_of}: {which}" if len(which) <= limit else number_of


_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


def visible(text: str) -> str:
    """Text with characters that control lines, direction or files shown as escapes."""
    return _HIDDEN.sub(lambda match: repr(match[0])[1:-1], text)


def plain(value: Any) -> str:
    """A setting of a configuration file as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    return str(value)
