"""Terms that explain themselves where the page uses them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup

_TAG = re.compile(r"(<button.*?</button>|<[^>]*>)")
_VARIABLE = re.compile(r"\*(\w+)\*")


class Explainer:
    """Puts the meaning of terms behind their names, for the mouse and for the keyboard.

    Every use of a term can be pointed at. The Tab key stops at the first in each section alone: a
    table of ten columns would else take ten strokes to pass.

    Args:
        terms: each with its meaning; "Change and interaction" explains both words.
    """

    def __init__(self, terms: Sequence[tuple[str, str]] = ()) -> None:
        self._meanings = {
            name.lower().replace("-", " "): _VARIABLE.sub(r"\1", meaning)
            for names, meaning in terms
            for name in names.split(" and ")
        }
        longest_first = sorted(self._meanings, key=len, reverse=True)
        either = "|".join(re.escape(name).replace(r"\ ", "[- ]") for name in longest_first)
        self._naming = re.compile(rf"(?<![\w-])({either})(s?)(?![\w-])", re.IGNORECASE)
        self._met: set[str] = set()

    def begin(self) -> str:
        """A section begins; in templates it stands for nothing."""
        self._met.clear()
        return ""

    def explain(self, html: Markup) -> Markup:
        """A piece of HTML in which every term that is not in a button carries its meaning."""
        if not self._meanings:
            return html
        pieces = _TAG.split(str(html))
        pieces[::2] = [self._naming.sub(self._term, piece) for piece in pieces[::2]]
        return Markup("".join(pieces))

    def _term(self, found: re.Match[str]) -> str:
        name = found[1].lower().replace("-", " ")
        stop = "" if name in self._met else ' tabindex="0"'
        self._met.add(name)
        return str(
            Markup('<abbr title="{}"{}>{}</abbr>').format(
                self._meanings[name], Markup(stop), Markup(found[0])
            )
        )
