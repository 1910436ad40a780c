"""The named tasks of the paper: MNLI with HANS, and QQP with PAWS-QQP.

Each is made from a folder with the official files, see `mechcore.data.official`, or from the hub.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from mechcore.data.examples import CLUSTER
from mechcore.data.official import (
    DICT_FILE,
    HANS,
    MNLI_MATCHED,
    MNLI_MISMATCHED,
    MNLI_TRAIN,
    PAWS_QQP,
    QQP_DEV,
    QQP_TRAIN,
    Official,
)
from mechcore.data.sources import Source, read_sources
from mechcore.data.task import Task
from mechcore.errors import InputError, warn

NON_ENTAILED = (
    "ln_subject/object_swap",
    "ln_preposition",
    "ln_relative_clause",
    "ln_passive",
    "ln_conjunction",
    "sn_NP/S",
    "sn_PP_on_subject",
    "sn_relative_clause_on_subject",
    "sn_past_participle",
    "sn_NP/Z",
    "cn_embedded_under_if",
    "cn_after_if_clause",
    "cn_embedded_under_verb",
    "cn_disjunction",
    "cn_adverb",
)
"""Subcases of HANS without entailment, as its authors call them."""

ENTAILED = (
    "le_relative_clause",
    "le_around_prepositional_phrase",
    "le_around_relative_clause",
    "le_conjunction",
    "le_passive",
    "se_conjunction",
    "se_adjective",
    "se_understood_object",
    "se_relative_clause_on_obj",
    "se_PP_on_obj",
    "ce_embedded_under_since",
    "ce_after_since_clause",
    "ce_embedded_under_verb",
    "ce_conjunction",
    "ce_adverb",
)
"""Subcases of HANS with entailment."""

MAIN_TEXT = (
    "ln_subject/object_swap",
    "ln_preposition",
    "cn_embedded_under_if",
    "cn_embedded_under_verb",
)
"""Subcases in the main text of the paper: SO-Swap, Prep, Embed-If and Embed-Verb."""

_HEURISTICS = ("lexical_overlap_", "subsequence_", "constituent_")
_DUPLICATE = {"0": "not_duplicate", "1": "duplicate"}


def mnli_hans(folder: Path | None = None) -> Task:
    """MNLI, and HANS: 15 subcases in which its heuristics fail, 15 in which they hold.

    The paper reports the first, called OOD, and calls the second OOD-E (arXiv 2403.03942).
    Clusters are the premises of MNLI, and the templates of HANS where its file has them.

    Raises:
        InputError: a file is missing, or HANS lacks a subcase.
    """
    if folder is not None:
        _check_all(folder, (MNLI_TRAIN, MNLI_MATCHED, HANS))
    tests = {"matched": MNLI_MATCHED, "mismatched": MNLI_MISMATCHED}
    if folder is not None and MNLI_MISMATCHED.find(folder) is None:
        warn(
            f"{folder}: no {MNLI_MISMATCHED.what}, so that the in-domain examples are the matched "
            f"ones alone; looked for {MNLI_MISMATCHED.looked_for}"
        )
        del tests["mismatched"]
    groups = {"OOD": NON_ENTAILED, "OOD-E": ENTAILED, "main text": MAIN_TEXT}
    names, hans = _hans(folder, (*NON_ENTAILED, *ENTAILED))
    return Task(
        name="mnli-hans",
        train=(_source(MNLI_TRAIN, folder),),
        id=tuple(
            replace(_source(test, folder), subset=part, columns={CLUSTER: "text_a"})
            for part, test in tests.items()
        ),
        ood=(replace(hans, subsets=tuple(names.values())),),
        classes=("entailment", "neutral", "contradiction"),
        groups={group: tuple(names[each] for each in members) for group, members in groups.items()},
        about="MNLI, out of domain HANS: 15 subcases of non-entailment, 15 of entailment.",
    )


def qqp_paws(folder: Path | None = None) -> Task:
    """QQP, and PAWS-QQP: pairs of the same words that are duplicates or not, each a subset.

    Some rows of the official QQP files lack a question or are broken in two; they are left out,
    with a count, as everybody's readers of GLUE do.

    Raises:
        InputError: a file is missing; PAWS-QQP always needs one.
    """
    if folder is None:
        raise InputError(
            "task qqp-paws: the texts of PAWS-QQP are not on the hub, as they may not be passed "
            f"on; give a folder with {PAWS_QQP.looked_for} (from {PAWS_QQP.project}), and with QQP"
        )
    _check_all(folder, (QQP_TRAIN, QQP_DEV, PAWS_QQP))
    train, dev, paws = (
        replace(_source(official, folder), label_map=_DUPLICATE)
        for official in (QQP_TRAIN, QQP_DEV, PAWS_QQP)
    )
    return Task(
        name="qqp-paws",
        train=(replace(train, skip_empty=True),),
        id=(replace(dev, skip_empty=True),),
        ood=tuple(replace(paws, labels=(each,), subset=each) for each in _DUPLICATE.values()),
        classes=("not_duplicate", "duplicate"),
        about="QQP, out of domain PAWS-QQP: pairs that share their words, duplicates or not.",
    )


def _hans(folder: Path | None, subcases: tuple[str, ...]) -> tuple[dict[str, str], Source]:
    """What the subcases are called in the data, by their official names, and the data.

    There are copies of HANS that put the heuristic before the subcase, and a dash for a slash.
    """
    if folder is None:
        return {name: name for name in subcases}, _source(HANS, None)
    source = _source(HANS, folder)
    status = Path(source.path or "").stat()
    names = _subset_names(source.path, source.split, status.st_mtime_ns, status.st_size)
    found = {_official_name(name): name for name in names}
    missing = [name for name in subcases if _official_name(name) not in found]
    if missing:
        raise InputError(
            f"{source.place}: has no subcase {', '.join(missing)}; expected HANS with a column "
            "subcase that has all of its 30 subcases"
        )
    return {name: found[_official_name(name)] for name in subcases}, source


@lru_cache(maxsize=8)
def _subset_names(path: str | None, split: str | None, changed: int, size: int) -> tuple[str, ...]:
    """Read once as long as the file stays the same: a study asks for its task often."""
    return tuple(read_sources([Source(path=path, split=split)]).subset_names)


def _official_name(subcase: str) -> str:
    for heuristic in _HEURISTICS:
        subcase = subcase.removeprefix(heuristic)
    return subcase.replace("/", "-")


def _source(official: Official, folder: Path | None) -> Source:
    if folder is None:
        return Source(
            dataset=official.dataset,
            config=official.config,
            split=official.split,
            revision=official.revision,
        )
    path = official.find(folder)
    assert path is not None
    several = (path / DICT_FILE).is_file()
    return Source(path=str(path), split=official.split if several else None)


def _check_all(folder: Path, needed: tuple[Official, ...]) -> None:
    """Make sure that all are there, or name all that are not."""
    missing = [official for official in needed if official.find(folder) is None]
    if missing:
        raise InputError(
            f"{folder}: "
            + "; ".join(
                f"no {each.what}: looked for {each.looked_for}, from {each.project}"
                + (f" ({each.dataset} on the Hugging Face hub)" if each.dataset else "")
                for each in missing
            )
        )
