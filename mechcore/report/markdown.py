"""A report as GitHub Markdown: the words, tables and figures of the page, without its controls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from mechcore.report.blocks import Block, Command, Paragraph, Picture, Section, Table
from mechcore.report.data_section import shown_elsewhere
from mechcore.report.kinds import NOTHING, report_of
from mechcore.report.method import method_tables
from mechcore.report.run_folder import CONFIG_FILE, TABLES_FOLDER, RunFolder
from mechcore.wording import visible

_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_BLOCK = re.compile(r"[-#+=]|\d+(?=[.)](?: |$))")
_SPACES = re.compile(r"[ \t\r\n]+")
_VARIABLE = re.compile(r"(\*\w+\*)")


def markdown(
    run: RunFolder, opening: Section | None, parts: Sequence[Section], title: str, subtitle: str
) -> str:
    """The whole report as one text, its figures and tables as relative links."""
    return "\n\n".join(_pieces(run, opening, parts, title, subtitle)) + "\n"


def _pieces(
    run: RunFolder, opening: Section | None, parts: Sequence[Section], title: str, subtitle: str
) -> Iterator[str]:
    study = report_of(run.config)
    words = study.words
    yield f"# {escaped(title)}"
    yield escaped(subtitle)
    if opening is not None:
        yield from _section(run, opening)
    yield "## Summary"
    numbers = [[tile.label, tile.value, tile.note] for tile in study.tiles(run)]
    if numbers:
        yield _table(["", "value", ""], numbers, frozenset({0, 2}))
    found = list(study.findings(run))
    if found:
        yield "\n".join(f"- {escaped(each.text)}" for each in found)
        yield escaped(words.intervals)
    elif not numbers:
        yield escaped(NOTHING)
    for section in parts:
        yield from _section(run, section)
    yield "## Method"
    for text in (words.before_formula, words.formula, words.after_formula):
        yield _with_variables(text)
    for term, meaning in words.terms:
        yield f"**{escaped(term)}.** {_with_variables(meaning)}"
    for table in method_tables(run.config, shown_elsewhere(run)):
        yield from _block(table)
    yield "## Files"
    names = [(CONFIG_FILE, CONFIG_FILE)]
    names += [(name, f"{TABLES_FOLDER}/{name}") for name in run.table_files]
    yield "\n".join(f"- {_link(name, path)}" for name, path in names)
    yield escaped(words.credit)


def _section(run: RunFolder, section: Section) -> Iterator[str]:
    yield f"## {escaped(section.title)}"
    for block in section.blocks:
        yield from _block(block)
    present = [name for name in section.files if name in run.table_files]
    if present:
        yield "Tables: " + ", ".join(_link(name, f"{TABLES_FOLDER}/{name}") for name in present)


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Paragraph):
        text = escaped(block.text)
        yield f"> {text}" if block.note else f"**{text}**" if block.lead else text
    elif isinstance(block, Command):
        yield f"    {block.text}"
    elif isinstance(block, Picture):
        yield f"![{escaped(block.alt)}]({block.file('svg', 'png')})"
        yield escaped(block.caption)
    elif isinstance(block, Table):
        yield f"**{escaped(block.caption)}**"
        yield _table(block.header, block.rows, block.text_columns)


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: frozenset[int]
) -> str:
    rule = [":--" if i in text_columns else "--:" for i in range(len(header))]
    words = [[escaped(cell, inside=True) for cell in row] for row in (header, *rows)]
    lines = [words[0], rule, *words[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _with_variables(text: str) -> str:
    """Our own words, of which those between stars stay emphasised."""
    parts = _VARIABLE.split(text)
    return "".join(part if i % 2 else escaped(part, inside=i > 0) for i, part in enumerate(parts))


def _link(text: str, path: str) -> str:
    return f"[{escaped(visible(text))}]({quote(path, errors='surrogateescape')})"


def escaped(text: str, *, inside: bool = False) -> str:
    r"""Text that Markdown shows as it is.

    >>> print(escaped("a|b <i>*c*</i>"), escaped("1. no list"))
    a\|b &lt;i&gt;\*c\*&lt;/i&gt; 1\. no list

    Args:
        text: one line.
        inside: whether something stands before it, so that it cannot begin a list or a heading.
    """
    text = _SPECIAL.sub(r"\\\g<0>", _SPACES.sub(" ", text).translate(_ENTITIES))
    if inside:
        return text
    text = text.lstrip(" ")
    begins = _BLOCK.match(text)
    if begins is None:
        return text
    # A backslash before a digit would be shown: it goes before the dot.
    at = begins.end() if text[0].isdigit() else 0
    return f"{text[:at]}\\{text[at:]}"
