"""Which answers flip without a component, and what its head attends to in these texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mechcore import report
from mechcore.analyses.base import Analysis, of_study, tables_in
from mechcore.analyses.roles import Roles
from mechcore.steps.base import inputs_of
from mechcore.steps.config import TEST_SPLITS
from mechcore.study.step import Work

if TYPE_CHECKING:
    import pandas as pd

    from mechcore.steps.inputs import Inputs

MOST_TOKENS = 64
"""Attention on longer texts is not drawn: it is unreadable and inflates the page."""


@dataclass(frozen=True)
class Flips(Analysis):
    """Which answers flip without a component; heads with an effect are drawn on these texts."""

    kind = "flips"
    title = "Which answers flip?"
    opens = True
    label = "flipped answers"
    needs = ("swept", Roles.kind)
    splits = TEST_SPLITS
    schemas = tables_in("mechcore.ablation.effects.flips:FLIPS")

    names: Mapping[str, str] = of_study()

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        from mechcore.ablation.effects.flips import flip_table
        from mechcore.ablation.effects.roles import ranked
        from mechcore.attention.examples import FLIPS_ATTENTION_FILE
        from mechcore.components import Component
        from mechcore.files import write_json
        from mechcore.steps.answers import ablations_in

        inputs = inputs_of(work)
        label_map = inputs.readout(TEST_SPLITS[0]).label_map
        assert label_map is not None, "studies have data with labels"
        swept = list(ablations_in(work.needed("swept"), self.names).values())
        examples = {split: inputs.data[split].examples for split in TEST_SPLITS}
        table = flip_table(swept, examples, label_map.classes)
        acting = ranked(work.table(Roles.kind))["component"]
        heads = [name for name in acting if Component.parse(name).is_head]
        drawn = attention_on(inputs, table[table["component"].isin(heads)])
        write_json(work.folder / FLIPS_ATTENTION_FILE, drawn)
        return {self.kind: table}

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """The texts whose answers flip, for all components with an effect."""
        from mechcore.ablation.effects.flips import FLIPS, SHOWN
        from mechcore.ablation.effects.roles import ranked

        table, roles = run.filled(cls.kind), run.filled(Roles.kind)
        if table is None or roles is None:
            return
        order = {name: i for i, name in enumerate(ranked(roles)["component"])}
        rows = report.about.with_texts(table[table["component"].isin(order)])
        if rows.empty:
            return
        rows = rows.sort_values("component", key=lambda names: names.map(order), kind="stable")
        caption = (
            f"Answers that flip without one of {len(order)} components with an effect, at most "
            f"{SHOWN} per component"
        )
        yield report.table_of(
            rows, FLIPS, caption, ["component", *report.about.FLIP_COLUMNS], folded=True
        )


def attention_on(inputs: Inputs, flips: pd.DataFrame) -> list[list[dict[str, Any]]]:
    """Attention of heads on short texts that flip without them: by rank, as JSON."""
    from mechcore.ablation.effects.flips import SHOWN
    from mechcore.attention import attention_examples
    from mechcore.data.examples import Examples

    by_rank: list[list[dict[str, Any]]] = [[] for _ in range(SHOWN)]
    for _, part in flips.groupby(["split", "example"], sort=False):
        first = part.iloc[0]
        examples = inputs.data[first["split"]].examples
        one = Examples(examples.name, examples.frame.iloc[[first["example"]]])
        encoded = inputs.encode(one, words=True)
        if len(encoded.input_ids[0]) > MOST_TOKENS:
            continue
        heads = part["component"].tolist()
        patterns = attention_examples(inputs.model, encoded, inputs.tokenizer, heads)
        for rank, pattern in zip(part["rank"], patterns, strict=True):
            by_rank[rank - 1].append(asdict(pattern))
    return by_rank
