"""What a study works on: its model, its examples, truncation and label balance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mechcore import report
from mechcore.analyses.base import Analysis
from mechcore.errors import warn
from mechcore.steps.base import FACTS_FILE, inputs_of
from mechcore.steps.config import TEST_SPLITS
from mechcore.study.step import Work
from mechcore.tables import PLACE, Column, N, Schema
from mechcore.wording import DASH, PLACES, count, listed, percent, split_name, whole

if TYPE_CHECKING:
    import pandas as pd

DATA_TABLE = Schema(
    "data",
    "Number of examples of each label in every subset.",
    (
        *PLACE,
        Column("label", "text", "empty where the training data have no labels"),
        N,
        Column("share", "share", "of the subset's examples"),
    ),
)

_MOST_LABELS = 4
_MOST_ROWS = 20

_NO_SUBSETS = (
    "The data have no subsets. If a column gives the kind of each example, name it with "
    "--columns subset=NAME to report every figure by subset as well."
)


@dataclass(frozen=True)
class Describe(Analysis):
    """What the study works on, for ``config.json`` and the report."""

    kind = "describe"
    section = "data"
    title = "Data"
    always = True
    question = False
    answers = False
    schemas = (DATA_TABLE,)

    names: Mapping[str, str]
    judges: bool
    """Whether components get a role; if so, warn when examples are too few."""

    def compute(self, work: Work) -> Mapping[str, pd.DataFrame]:
        """See `Analysis.compute`."""
        import pandas as pd

        from mechcore.components import ModelShape
        from mechcore.evaluation.recalibration import TOO_FEW, reason_against
        from mechcore.files import write_json
        from mechcore.models.model_identity import ModelIdentity
        from mechcore.models.protocol import kind_of, model_classes, n_parameters

        inputs = inputs_of(work)
        model = inputs.model
        data = {
            split: {
                "name": encoded.examples.name,
                "n": len(encoded),
                "n_available": inputs.available[split],
                "n_cut": encoded.n_cut,
                "subsets": encoded.examples.subset_names,
                "fingerprint": encoded.fingerprint,
            }
            for split, encoded in inputs.data.items()
        }
        facts = {
            "kind": kind_of(model),
            "architecture": getattr(model.cfg, "architecture", None) or type(model).__name__,
            **asdict(ModelShape.of(model)),
            "n_parameters": n_parameters(model),
            "class_names": list(inputs.config.class_names or model_classes(model) or []),
            "identity": asdict(ModelIdentity.of(model)),
        }
        readouts = {split: inputs.readout(split) for split in TEST_SPLITS if split in inputs.data}
        for split, readout in readouts.items() if self.judges else ():
            reason = reason_against(readout.correct_classes(inputs.data[split]).numpy())
            if reason.startswith(TOO_FEW):
                warn(
                    f"{PLACES[split]}: {reason} to measure information and so to assign roles; "
                    f"draw or add more examples (--max-{split})"
                )
        mapping = {split: readout.mapping for split, readout in readouts.items()}
        content = {"model": facts, "data": data, "label_mapping": mapping}
        write_json(work.folder / FACTS_FILE, content)
        tables = []
        for split, encoded in inputs.data.items():
            examples = encoded.examples
            by_label = examples.frame.groupby(["subset", "label"], sort=False)
            table = by_label.size().reset_index(name="n")
            table["share"] = table["n"] / table.groupby("subset")["n"].transform("sum")
            tables.append(table.assign(data=examples.name, split=split)[DATA_TABLE.names])
        return {"data": pd.concat(tables, ignore_index=True)}

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """The data read, how many texts were cut, and the label balance."""
        if (table := run.filled("data")) is None:
            return
        yield from map(report.Paragraph, cls.headlines(run))
        data_sets = dict.fromkeys(zip(table["split"], table["data"], strict=True))
        facts = {split: run.data_facts(split) for split, _ in data_sets}
        yield from (report.Paragraph(text, note=cut) for text, cut in _cut_texts(run, facts))
        overview, by_subset = [], []
        for split, data in data_sets:
            name = f"{data} ({split_name(split)})"
            labels = report.groups.labels_in(table, split, data)
            subsets = report.groups.proper_subsets(table, split, data)
            counts = (*map(facts[split].get, ("n_available", "n_cut")), len(subsets) or None)
            cells = [DASH if n is None else whole(n) for n in counts]
            overview.append([name, whole(labels.sum()), *cells, _balance(labels)])
            for subset in subsets:
                labels = report.groups.labels_in(table, split, data, subset)
                by_subset.append([name, subset, whole(labels.sum()), _balance(labels)])
        header = ["data", "examples", "of available", "texts cut", "subsets", "labels"]
        yield report.Table("The data and their label balance", header, overview, frozenset({0, 5}))
        if not by_subset:
            yield report.Paragraph(_NO_SUBSETS, note=True)
            return
        header = ["data", "subset", "n", "labels"]
        caption, folded = "Every subset and its label balance", len(by_subset) > _MOST_ROWS
        yield report.Table(caption, header, by_subset, frozenset({0, 1, 3}), folded=folded)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """The majority baseline of all test data, in one sentence."""
        table, parts = run.filled("data"), []
        if table is None:
            return
        for split, data in dict.fromkeys(zip(table["split"], table["data"], strict=True)):
            if split != "train" and (most := report.groups.most_frequent(table, split, data)):
                label, share = most
                parts.append(f"{percent(share)} on {data} ({split_name(split)}: {label})")
        if parts:
            yield f"Majority baseline: {listed(parts)}."


def _cut_texts(run: report.RunFolder, facts: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """How many texts of each split were cut, one sentence per split, and whether any was."""
    settings = run.config.get("settings") or {}
    length = (settings.get("model") or {}).get("max_length")
    where = f" at {whole(length)} tokens" if length else ""
    known = {split: of["n_cut"] for split, of in facts.items() if "n_cut" in of}
    for split, n_cut in known.items():
        if n_cut:
            of = f"of {count(facts[split]['n'], 'text')} of {facts[split].get('name', split)}"
            verb = "was" if n_cut == 1 else "were"
            yield f"{whole(n_cut)} {of} ({split_name(split)}) {verb} cut{where}.", True
    if len(known) == len(facts) and not any(known.values()):
        yield "No text was cut.", False


def _balance(labels: pd.Series) -> str:
    """``yes 30 (60 %), no 20 (40 %)``; of many labels the most frequent, and how many there are."""
    parts = [
        f"{label or 'without labels'} {whole(n)} ({percent(n / labels.sum())})"
        for label, n in labels.items()
    ]
    if len(parts) <= _MOST_LABELS:
        return ", ".join(parts)
    return f"{', '.join(parts[:_MOST_LABELS])}; {len(parts) - _MOST_LABELS} more in data.csv"
