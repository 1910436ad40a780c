"""The report of the main study: the results of `mechcore run` on heads and subnetworks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from mechcore.analyses import ANALYSES
from mechcore.analyses.base import Analysis
from mechcore.analyses.effective_size import EffectiveSize
from mechcore.report.blocks import Finding, Paragraph, Section, Story
from mechcore.report.kinds import StudyReport, Words
from mechcore.report.run_folder import RunFolder


def _opening(run: RunFolder) -> Section | None:
    """The story, and all analyses that open the page without the headlines that it tells."""
    parts = [part for kind in _asked(run) if kind.opens for part in kind.sections(run)]
    blocks = [b for part in parts for b in part.blocks if not (isinstance(b, Paragraph) and b.lead)]
    files = [file for part in parts for file in part.files]
    opening = [Story(lines)] if (lines := [*story(run)]) else []
    first = next(iter(parts), Section("story", "In short", []))
    return replace(first, blocks=[*opening, *blocks], files=files) if opening or parts else None


def story(run: RunFolder) -> Iterator[Finding]:
    """The first headlines of the analyses that tell what fails, why, and what helps."""
    for kind in (kind for kind in _asked(run) if kind.story):
        for text in islice(kind.headlines(run), 1):
            yield Finding(text, kind.section or kind.kind, kind.title)


def _findings(run: RunFolder) -> Iterator[Finding]:
    for kind in _after_summary(run):
        texts = islice(kind.headlines(run), int(kind.story), None)
        yield from (Finding(text, kind.section or kind.kind) for text in texts)


def _after_summary(run: RunFolder) -> list[type[Analysis]]:
    return [kind for kind in _asked(run) if not kind.opens]


def _asked(run: RunFolder) -> list[type[Analysis]]:
    """The analyses that a run shows: those named by ``only``; without masks, a few."""
    only = (run.config.get("settings") or {}).get("only") or ()
    names = sorted(ANALYSES, key=lambda name: not ANALYSES[name].first)
    if only:
        names = [name for name in names if name in only or not ANALYSES[name].question]
    elif _only_sizes(run.config):
        names = [name for name in names if not ANALYSES[name].needs]
    return [ANALYSES[name] for name in names]


def _only_sizes(config: Mapping[str, Any]) -> bool:
    only = (config.get("settings") or {}).get("only")
    return not config.get("target_sparsities", True) or only == [EffectiveSize.kind]


_INTERVALS = (
    "Intervals in brackets are 95 % intervals over examples, not corrected for multiple "
    "comparisons: among many sets some exclude zero by chance. They do not cover other seeds, "
    "other data or other models."
)
_TERMS: Sequence[tuple[str, str]] = (
    (
        "In domain and out of domain",
        "Data like the training data, and data that differs from it, usually so that a shallow "
        "rule that works in domain fails.",
    ),
    (
        "Change without it",
        "A metric without the component minus that of the full model; the component's output is "
        "replaced by its mean, or by the fill that the section on ablation names. "
        "Below zero the model is worse without it.",
    ),
    (
        "Information",
        "The part of a change in balanced accuracy that remains after one bias per label has been "
        "refitted.",
    ),
    (
        "Threshold, shifted threshold",
        "The rest of a change in balanced accuracy: the model predicts one label more or less "
        "often, which one bias per label would undo. No information is lost. On data with a single "
        "label the two cannot be distinguished.",
    ),
    (
        "Shift",
        "How much more or less often the model predicts the label whose share of answers changes "
        "most, with equal weight for every label. It can be large where a new threshold would gain "
        "nothing, as one label may gain what another loses.",
    ),
    (
        "Balanced accuracy",
        "The mean over labels of the accuracy on their examples.",
    ),
    (
        "Flip",
        "An answer flips without a component if it is right with it and wrong without it, or the "
        "other way round. A change between two wrong classes, or between two classes that are "
        "correct for the label, is not a flip.",
    ),
    (
        "Means over subsets",
        "Means over subsets give every subset the same weight (macro-average); values of a data "
        "set are over all its examples.",
    ),
    (
        "Subnetwork",
        "The model with a binary mask that removes a given share of the components, the "
        "target sparsity. Pruning with the method l0 trains the mask, not the model, to keep the "
        "answers on training data close to the full model's (Kullback\u2013Leibler divergence, "
        "KL), and each seed may give another subnetwork; other methods rank the components, or "
        "draw them at random.",
    ),
    ("Sparsity and target sparsity", "The share of components that is pruned."),
    (
        "Heuristic core and core",
        "The heads that every subnetwork keeps, at every seed and sparsity. The size expected by "
        "chance is for subnetworks that keep as many heads of each layer at random.",
    ),
    (
        "Spearman's rho and rho",
        "Agreement of two rankings: 1 if they are the same, 0 if they are unrelated, "
        "\u22121 if one reverses the other.",
    ),
    (
        "Jaccard index and Jaccard",
        "Overlap of two sets: shared members as a share of the members of either; 1 if they are "
        "the same, 0 if they are disjoint.",
    ),
    (
        "Margin",
        "The log-odds of the correct class or classes, in nats, averaged over examples. Unlike "
        "accuracy it has no floor or ceiling.",
    ),
    (
        "Interaction and superadditive",
        "The interaction of a set is the change without the whole set minus the sum of the changes "
        "without each of its members. Below zero the set is superadditive: ablating its components "
        "together costs more than ablating them one by one, as when they can stand in for "
        "one another. Accuracy cannot fall below zero, so joint changes saturate near that floor "
        "and interactions on accuracy come out too small; near its ceiling, where ablation helps, "
        "they come out too large.",
    ),
    (
        "Attention mass and mass",
        "The share of a head's attention that goes to one category of tokens (the same word "
        "repeated elsewhere, the token before or after, a separator, the first token, the token "
        "itself), averaged over the query tokens that have such a token to attend to.",
    ),
    (
        "Effective size",
        "The share of components that the sparsest faithful subnetwork keeps, one whose accuracy "
        "is below the full model's by less than a set tolerance; 100 % if there is none.",
    ),
)
_CREDIT = "Method after the heuristic core of fine-tuned language models (arXiv 2403.03942)."


def _title(model: str, config: Mapping[str, Any]) -> str:
    if (config.get("model") or {}).get("base"):
        model += ", trained here"
    if _only_sizes(config):
        return f"Effective size of {model}"
    settings = config.get("settings") or {}
    if len(only := [*(settings.get("only") or ())]) == 1:
        return f"{ANALYSES[only[0]].title.rstrip('?')}: {model}"
    if "ood" in (config.get("data") or {}) and (settings.get("analyses") or {}).get("failure"):
        return f"Does {model} fail out of domain, and why?"
    return f"What the answers of {model} depend on"


REPORT = StudyReport(
    title=_title,
    subtitle="",
    tables=lambda: {of.name: of for name in ANALYSES for of in ANALYSES[name].schemas}.values(),
    tiles=lambda run: (tile for kind in _asked(run) for tile in kind.tiles(run)),
    findings=_findings,
    sections=lambda run: (part for kind in _after_summary(run) for part in kind.sections(run)),
    words=Words(_INTERVALS, _TERMS, _CREDIT),
    opening=_opening,
)
