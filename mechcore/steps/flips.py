"""A step that looks for answers that flip without a component, and at its head on these texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import pandas as pd

from mechcore.ablation.flips import FLIPS, SHOWN, flip_table
from mechcore.ablation.roles import ranked
from mechcore.attention import attention_examples
from mechcore.attention.examples import FLIPS_ATTENTION_FILE
from mechcore.components import Component
from mechcore.data.examples import Examples
from mechcore.files import write_json
from mechcore.steps.ablation import ablations_in
from mechcore.steps.base import MainStep, Size, inputs_of
from mechcore.steps.config import TEST_ROLES
from mechcore.steps.inputs import Inputs
from mechcore.study.step import Job, Work
from mechcore.tables import Schema

MOST_TOKENS = 64
"""Of longer texts attention is not drawn: nobody could read it, and pages would grow large."""


@dataclass(frozen=True)
class Flips(MainStep):
    """Examples whose answer flips without a component, from the answers of the sweep.

    For heads that were found to do something it also leaves their attention on these.
    """

    kind: ClassVar[str] = "flips"
    schemas: ClassVar[tuple[Schema, ...]] = (FLIPS,)
    needs: ClassVar[tuple[str, ...]] = ("sweep", "roles")
    roles: ClassVar[tuple[str, ...]] = TEST_ROLES
    names: Mapping[str, str]

    def passes(self, job: Job, size: Size) -> float:
        """See `MainStep.passes`."""
        return float(SHOWN * size.n_heads)

    def run(self, work: Work) -> None:
        """See `Step.run`."""
        inputs = inputs_of(work)
        label_map = inputs.readout(TEST_ROLES[0]).label_map
        assert label_map is not None, "studies have data with labels"
        found = list(ablations_in(work.needed("sweep"), self.names).values())
        examples = {role: inputs.data[role].examples for role in TEST_ROLES}
        table = flip_table(found, examples, label_map.classes)
        work.write_tables({"flips": table})
        doing = ranked(work.table("roles", "roles"))["component"]
        drawn = table[table["component"].isin([n for n in doing if Component.parse(n).is_head])]
        write_json(work.folder / FLIPS_ATTENTION_FILE, attention_on(inputs, drawn))


def attention_on(inputs: Inputs, flips: pd.DataFrame) -> list[list[dict[str, Any]]]:
    """Attention of heads, in the full model, on the examples that flip without them.

    Args:
        inputs: the model and the data.
        flips: rows of `FLIPS`, of heads.

    Returns:
        For each rank the `AttentionExample` objects as JSON has them; none of long texts.
    """
    found: list[list[dict[str, Any]]] = [[] for _ in range(SHOWN)]
    for _, part in flips.groupby(["role", "example"], sort=False):
        first = part.iloc[0]
        examples = inputs.data[first["role"]].examples
        one = Examples(examples.name, examples.frame.iloc[[first["example"]]])
        encoded = inputs.encode(one, words=True)
        if len(encoded.input_ids[0]) > MOST_TOKENS:
            continue
        heads = part["component"].tolist()
        shown = attention_examples(inputs.model, encoded, inputs.tokenizer, heads)
        for rank, each in zip(part["rank"], shown, strict=True):
            found[rank - 1].append(asdict(each))
    return found
