"""What flips without each component, for its panel on the page."""

from __future__ import annotations

from pathlib import Path

from mechcore.report.about import facts
from mechcore.report.flips import Flips, flips_of
from mechcore.report.run_folder import read_run


def test_what_flips_without_each_component(rich_run: Path) -> None:
    run = read_run(rich_run)
    flips = flips_of(run)
    assert flips["L0.H3"].lead == (
        "Without it answers flip: 9 out of domain (9 right to wrong) and none in domain. Those "
        "out of domain come first, and those with the largest change of margin. Its attention is "
        "drawn on short texts only."
    )
    first, second, third = flips["L0.H3"].examples
    assert first.title == "1. Right to wrong: tiny-ood (out-of-domain), so_swap"
    assert first.texts == ["so_swap 1 saw L0.H3", "a bird"]
    assert first.answers == (
        "Label: non-entailment. Answer: non-entailment, margin 1.50 nats. Without it: entailment, "
        "margin \u22122.00 nats."
    )
    assert first.attention is not None
    assert first.attention == second.attention
    assert third.attention is None
    idle = flips["L0.H1"]
    assert idle.lead.endswith(
        "All are here. Its attention is not drawn, as no effect of the head is shown."
    )
    assert flips["L0.MLP"].lead == (
        "Without it answers flip: 1 out of domain (1 right to wrong) and none in domain. All are "
        "here."
    )
    assert flips["L3.H7"] == Flips("No answer flips without it.")
    assert facts(run).about["L0.H3"].flips == flips["L0.H3"]
