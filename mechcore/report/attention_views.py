"""Interactive attention patterns, drawn by circuitsvis, whose library a page embeds once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

from mechcore.attention.examples import AttentionExample
from mechcore.errors import InputError
from mechcore.files import write_text
from mechcore.report.blocks import script_json

_SUBSCRIPTS = ("\u2081", "\u2082")


@cache
def library_script() -> str:
    """Circuitsvis's JavaScript as an element for a page, about 1.3 MB."""
    source = files("circuitsvis").joinpath("dist", "cdn", "iife.js").read_text(encoding="utf-8")
    source = source.replace("</script", "<\\/script")
    return (
        "<script>if (!window.CircuitsVis) { (function () {\n"
        f"{source}\nwindow.CircuitsVis = CircuitsVis; }})(); }}</script>"
    )


class _Shown:
    """Whether an output of this process already contains the library."""

    library = False


@dataclass(frozen=True, eq=False, repr=False)
class AttentionView:
    """Attention of some heads on one example, for a notebook or, by `html`, for a page."""

    examples: Sequence[AttentionExample]
    titles: Sequence[str]

    def __post_init__(self) -> None:
        if not self.examples:
            raise InputError("attention view: no head; expected at least one")
        if len(self.titles) != len(self.examples):
            raise InputError(
                f"attention view: {len(self.titles)} titles for {len(self.examples)} heads"
            )
        if len({tuple(example.tokens) for example in self.examples}) > 1:
            raise InputError(
                "attention view: the heads' examples have different tokens; make a view for each"
            )

    def __repr__(self) -> str:
        return f"AttentionView({', '.join(self.titles)})"

    def html(self, name: str | None = None) -> str:
        """The view without the library; ``name`` is an element id, unique in the page."""
        name = name or f"attention-{uuid4().hex[:12]}"
        place, element = f"{name}-heads", "AttentionPattern"
        first = self.examples[0]
        props: dict[str, Any] = {"attention": first.pattern, "tokens": marked_tokens(first)}
        props |= {"maskUpperTri": first.causal, "minValue": 0, "maxValue": 1}
        props["positiveColor"] = "#0b5394"
        if len(self.examples) > 1:
            element = "AttentionHeads"
            props["attention"] = [example.pattern for example in self.examples]
            props["attentionHeadNames"] = list(self.titles)
        values = {"place": script_json(place), "element": element, "props": script_json(props)}
        path = files("mechcore.report").joinpath("templates", "attention.js")
        script = path.read_text(encoding="utf-8").strip() % values
        return f'<div><div id="{place}"></div><script>{script}</script></div>'

    def save(self, path: str | Path) -> Path:
        """Write a stand-alone page, which needs no network and no other file."""
        names = ", ".join(example.component for example in self.examples)
        path = Path(path)
        write_text(
            path,
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f"<title>Attention of {escape(names)}</title></head>\n"
            f"<body>{library_script()}\n{self.html()}</body></html>\n",
        )
        return path

    def _repr_html_(self) -> str:
        script = "" if _Shown.library else library_script()
        _Shown.library = True
        return script + self.html()


def attention_view(
    examples: Sequence[AttentionExample], *, titles: Sequence[str] | None = None
) -> AttentionView:
    """Draw the attention of heads on an example with circuitsvis, heads of encoders without a mask.

    Tokens of the first and second text carry a small 1 and 2; titles are by default the head and
    its category. An `InputError` says that there is no head, or that titles or tokens differ.
    """
    names = titles or [f"{e.component} {e.category}".strip() for e in examples]
    return AttentionView(list(examples), list(names))


def marked_tokens(example: AttentionExample) -> list[str]:
    """Tokens with a subscript for their segment if there are two segments."""
    if 1 not in example.segments:
        return list(example.tokens)
    return [
        token + _SUBSCRIPTS[segment] if segment >= 0 else token
        for token, segment in zip(example.tokens, example.segments, strict=True)
    ]
