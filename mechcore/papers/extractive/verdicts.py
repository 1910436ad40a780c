"""Verdicts on the paper's claims, with their decision rules.

The claims are those of arXiv 2412.04614 on where a fine-tuned fact is stored, queried and read
out; the rules are this project's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from mechcore.papers.evidence import Finding, judged
from mechcore.papers.extractive.evidence import Evidence
from mechcore.papers.extractive.verdicts_on_scores import (
    first_hop,
    linear,
    localization,
    second_hop,
)
from mechcore.papers.extractive.verdicts_on_training import (
    freezing_reverted,
    freezing_trained,
    grafting,
    ordering_plain,
    ordering_replayed,
    recall_first,
    recall_second,
)

CLAIMS: tuple[tuple[str, Callable[[Evidence], Finding]], ...] = (
    ("First-hop implications of fine-tuned facts are known untrained", recall_first),
    ("Second-hop implications of fine-tuned facts are known untrained", recall_second),
    ("First-hop facts are stored in MLPs at the name and read out later at the end", first_hop),
    ("Second-hop facts are stored in later MLPs at the last token", second_hop),
    ("Undoing early layers costs first-hop implications, late ones second-hop", freezing_reverted),
    ("Training late layers alone does too for first-hop, early for second-hop", freezing_trained),
    ("Implications before facts teach less than facts first or both at once", ordering_plain),
    ("With replay, implications before facts teach less, too", ordering_replayed),
    ("What implications teach after facts can be grafted onto other facts", grafting),
    ("MLPs that learn implications are those that read out new facts", localization),
    ("The scores add up to about the actual change of the reward", linear),
)
"""Title of every claim, in order from 1, and what judges it."""


def verdicts(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Judge every claim by the tables of a study.

    "supported": the rule below is met. "not supported": the evidence contradicts it, as told below.
    "inconclusive": anything else, be it that a table is missing or that the data do not suffice;
    ``figure`` says which.

    **Seeds.** A seed counts if the facts that the claim is about were learned: their mean rank is
    below 1 (0 is best) after training. Seeds left out are named. A *difference* is met if it is
    above 0 in every seed, and so is its 95 % t interval over seeds; contradicted if it is not above
    0 in more than half of the seeds, or its interval is not at either end; open otherwise, and with
    one seed, whose difference has no interval. A claim with several differences is supported if all
    are met, and not supported if one is contradicted. Ranks are mean ranks.

    1. and 2. *Out-of-context reasoning* (``extractive_ranks``), first-hop and second-hop. Every
       seed: after training on the facts the implications' rank is below 2 / 9.5 of chance (below
       2 of 20 options), its bootstrap interval ends below chance, and below where that of before
       begins. Contradicted where the interval is above that limit; not supported if it is in more
       than half of the seeds.
    3. *First-hop map* (``extractive_scores``, MLPs, positive values). Differences: the share of
       informative scores at the tokens of the name minus that at the last token; the share of
       downstream scores at the last token minus that at the name; the centre of mass over layers
       of downstream minus that of informative scores.
    4. *Second-hop map* (the same). Differences: the share of informative scores at the last token
       minus that at the tokens of the place; their centre of mass over layers minus that of
       first-hop.
    5. and 6. *Freezing* (``extractive_freezing``), weights reverted after training, and a group
       not trained at all. The area between two curves, ranks of implications with early and with
       late layers frozen, as a mean over all cuts. It is above 0 for first-hop and below for
       second-hop in every seed, and the difference of the two areas is met. Contradicted if these
       signs are not found in more than half of the seeds, or the difference is.
    7. and 8. *Ordering* (``extractive_ordering``), without and with replay of the first phase's
       data in the second. Differences of the rank of test implications: implications first minus
       facts first, and minus joint. The facts that must be learned are the test facts, in all
       orders.
    9. *Grafting* (``extractive_grafting``). Differences of the rank of the other facts'
       implications: that model without a graft minus the graft, and the control graft minus the
       graft. The facts that must be learned are the other facts, before grafting.
    10. *Localisation* (``extractive_localization_r2``). Difference: r over MLPs. With one seed p
        must be at most 0.05: then met above 0, and contradicted below. Heads are told beside it.
    11. *Linear estimate* (``extractive_sums``). Every seed: for both tasks the mean estimate is
        between half and twice the mean actual change; else contradicted. Seeds in which training
        does not raise the reward of both tasks' implications do not count.

    The remaining columns and tables are named in the sentences and decide nothing.

    Args:
        tables: of a study, by name, see `mechcore.papers.extractive.study`.

    Returns:
        One row per claim: ``claim`` (1 to 11), ``title``, ``verdict`` and ``figure`` (sentences
        with ranks, shares in percent, layers from 0; for what is inconclusive also why).

    Raises:
        InputError: a table lacks a column, or has several rows where one is expected.
    """
    return judged(CLAIMS, Evidence(tables))
