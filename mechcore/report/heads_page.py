"""A page on what every attention head of a model attends to, with the clearest heads drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

import mechcore
from mechcore.attention import AttentionExample, LabelAgreement, Thresholds, categories
from mechcore.attention.categories import MIXED
from mechcore.attention.labels import DEFAULT_THRESHOLDS
from mechcore.files import write_text
from mechcore.report import figures
from mechcore.report.attention_views import attention_view, library_script
from mechcore.report.blocks import Block, Paragraph, Section, View, embedded
from mechcore.report.page import environment
from mechcore.report.sections import mass_table


def build_heads_page(
    path: str | Path,
    table: pd.DataFrame,
    shown: Mapping[str, Sequence[AttentionExample]],
    *,
    model: str,
    data: str,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    agreement: LabelAgreement | None = None,
    ignored: Sequence[str] = (),
) -> Path:
    """Write a page that needs no network and no other file.

    Args:
        path: of the HTML file.
        table: from `mechcore.categorize_heads`.
        shown: the heads to draw, by label, see `mechcore.attention.clearest_heads`.
        model: what it is called on the page.
        data: what it is called there.
        thresholds: those of the labels.
        agreement: of the labels from two halves of the data.
        ignored: categories whose keys were left out.

    Returns:
        The path.
    """
    causal = any(each.causal for group in shown.values() for each in group)
    meanings = {category.name: category.description for category in categories(causal)}
    sections = [_all_heads(table, thresholds, agreement, ignored)]
    sections += [_label(label, shown[label], table, meanings) for label in shown]
    heads = mass_table(table, f"All {len(table)} heads")
    sections.append(Section("table", "Table", [heads]))
    n = int(table["n_examples"].iloc[0])
    text = (
        environment()
        .get_template("heads.html.j2")
        .render(
            title=f"What the heads of {model} attend to",
            subtitle=f"{len(table)} heads on {n} examples of {data}",
            sections=sections,
            version=mechcore.__version__,
            library=library_script() if shown else "",
        )
    )
    path = Path(path)
    write_text(path, text)
    return path


def _all_heads(
    table: pd.DataFrame,
    thresholds: Thresholds,
    agreement: LabelAgreement | None,
    ignored: Sequence[str],
) -> Section:
    rule = (
        "A head is called after the category of keys with the largest mass, its share of the "
        "attention of the queries that have such a key, among those with a mass of at least "
        f"{thresholds.mass:g} and at least {thresholds.ratio:g} times the mass under uniform "
        f"attention; {MIXED} where there is none."
    )
    blocks: list[Block] = [Paragraph(rule)]
    if ignored:
        text = f"Attention on {', '.join(ignored)} is left out, and the rest scaled up to 1."
        blocks.append(Paragraph(f"{text} The pictures show all attention.", note=True))
    if agreement is not None:
        blocks.append(Paragraph(agreement_sentence(agreement)))
    figure = figures.head_categories(table)
    alt = "Grid, layer by head, of attention categories; the categories are in the table below."
    blocks.append(embedded(figure, "heads", "The label of every head.", alt))
    return Section("heads", "All heads", blocks)


def agreement_sentence(agreement: LabelAgreement) -> str:
    """How stable labels are, in words."""
    return (
        f"Labels from the two halves of the examples are the same for {100 * agreement.share:.1f} "
        f"% of the heads (Cohen's kappa {agreement.kappa:.2f})."
    )


def _label(
    label: str, shown: Sequence[AttentionExample], table: pd.DataFrame, meanings: Mapping[str, str]
) -> Section:
    rows = table.set_index("component")

    def figure(example: AttentionExample, column: str) -> float:
        return float(rows.at[example.component, column])  # type: ignore[arg-type]

    count = int((table["category"] == label).sum())
    heads, attend = ("head", "attends") if count == 1 else ("heads", "attend")
    if label == MIXED:
        text = f"{count} {heads} with no label; drawn are those whose attention is spread most."
        titles = [f"{e.component}: entropy {figure(e, 'entropy'):.2f} nats" for e in shown]
    else:
        text = f"{count} {heads} that {attend} to {meanings.get(label) or label}."
        titles = [
            f"{e.component}: {figure(e, f'mass_{label}'):.2f}, "
            f"{figure(e, f'ratio_{label}'):.1f} times uniform"
            for e in shown
        ]
    view = attention_view(shown, titles=titles, together=False)
    key = "Queries are rows, keys are columns"
    if any(1 in each.segments for each in shown):
        key += "; \u2081 and \u2082 mark the two texts"
    caption = f"The clearest: mass and its ratio, over all examples, and one example. {key}."
    if label == MIXED:
        caption = f"One example. {key}."
    return Section(label, f"{label} ({count})", [Paragraph(text), View(caption, view.html(label))])
