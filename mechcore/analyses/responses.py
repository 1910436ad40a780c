"""Which features of the texts the effects of components, the core and subnetworks depend on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mechcore import report
from mechcore.analyses.base import Ablating, Analysis, Tables, of_study, tables_in
from mechcore.analyses.roles import Roles
from mechcore.steps.base import core_of, inputs_of, means_of
from mechcore.steps.config import TEST_SPLITS
from mechcore.study.step import Work
from mechcore.wording import ALL, FULL, PLACES, count, listed

_DRAWN = 20  # sets in the figure
_DRAWING = "Spearman's rho of features with the change in margin without a set, within labels; of "
_DRAWING += "the full model, with its margin."


@dataclass(frozen=True)
class Responses(Ablating, Analysis):
    """Which features of the texts effects depend on, and whether the core computes shallow ones."""

    kind = "responses"
    title = "What do effects respond to?"
    story = True
    label = "responses to features of texts"
    needs = ("means", "answers", "core", "swept", Roles.kind)
    splits = TEST_SPLITS
    per_text = 1.0
    schemas = tables_in("mechcore.ablation.effects.responses:RESPONSES")

    names: Mapping[str, str] = of_study()
    n_resamples: int = of_study()

    def settings(self) -> dict[str, Any]:
        """With the features that there are."""
        from mechcore.data.features import FEATURES

        return {**super().settings(), "features": FEATURES.names()}

    def uses(self) -> list[object]:
        """The fill, and the functions of the features."""
        from mechcore.data.features import FEATURES

        return [*super().uses(), *(FEATURES[name] for name in FEATURES)]

    def compute(self, work: Work) -> Tables:
        """See `Analysis.compute`."""
        from mechcore.ablation import ComponentSet
        from mechcore.ablation.effects import responses
        from mechcore.ablation.effects.changes import Answers
        from mechcore.ablation.effects.roles import ranked
        from mechcore.data.features import feature_table
        from mechcore.steps.answers import ablations_in, answers_of

        inputs, answered, rows = inputs_of(work), answers_of(work), list[Mapping[str, Any]]()
        means, core = means_of(work, inputs), ComponentSet.of(core_of(work), responses.CORE)
        acting = [*ranked(work.table(Roles.kind))["component"], *core.components]
        options: dict[str, Any] = {"n_resamples": self.n_resamples, "seed": self.seed}
        for split, of in ablations_in(work.needed("swept"), self.names).items():
            singles = [one for one in map(ComponentSet.of, acting) if one in of.without]
            kinds = dict.fromkeys(singles, responses.COMPONENT)
            masked = dict(of.without)
            for pruned, one in zip(answered.subnetworks, answered.masked[split], strict=True):
                kinds[without := ComponentSet.of(pruned.mask, pruned.name)] = responses.SUBNETWORK
                masked[without] = Answers.of(one, of.full)
            if len(core):
                kinds[core] = responses.CORE
                masked |= self.ablations(inputs, means, [core], split).without
            of, texts = replace(of, without=masked), inputs.data[split].examples
            about = (feature_table(texts), texts.frame["label"].tolist())
            rows += responses.response_rows(of, kinds, *about, **options)
        return {self.kind: responses.with_adjusted_p(rows)}

    @classmethod
    def blocks(cls, run: report.RunFolder) -> Iterator[report.Block]:
        """The headlines, the responses of the core and of components, and the strongest of them."""
        from mechcore.ablation.effects.responses import CORE, RESPONSES, SUBNETWORK, strongest

        if (table := run.filled(cls.kind)) is None:
            return
        yield from map(report.Paragraph, cls.headlines(run))
        shown = strongest(table[table["kind"] != SUBNETWORK])
        drawn = table[table["label"] != ALL]
        names = [n for n in dict.fromkeys([FULL, CORE, *shown["set"]]) if n in {*drawn["set"]}]
        figure = report.ablation_figures.responses(drawn, names[:_DRAWN])
        alt = "Heatmaps, set by feature; the numbers are in responses.csv."
        yield report.Drawing(figure, cls.kind, _DRAWING, alt)
        columns: list[report.Shown] = ["set", report.groups.PLACED, "label", "feature"]
        columns += ["rho", "partial", "slope", "p_adjusted"]
        caption = "The strongest response of every set on each data set, where one is shown"
        yield report.table_of(report.groups.placed(shown), RESPONSES, caption, columns, folded=True)

    @classmethod
    def headlines(cls, run: report.RunFolder) -> Iterator[str]:
        """The strongest response, what explains the core's effect, and the verdict on the core."""
        from mechcore.ablation.effects import responses
        from mechcore.ablation.effects.roles import OUT, OUT_ONLY

        if (table := run.filled(cls.kind)) is None:
            return
        shown, rho = responses.strongest(table), responses.RESPONSES["rho"]
        acting = shown[shown["kind"] == responses.COMPONENT]
        n = table.loc[table["kind"] == responses.COMPONENT, "set"].nunique()
        text = f"{acting['set'].nunique()} of {count(n, 'component')} respond to the texts"
        for _, row in acting[:1].iterrows():
            ends = rho.show(row["rho"], row["rho_low"], row["rho_high"])
            text += f", most {row['set']}: the change in margin without it "
            text += f"{'rises' if row['rho'] > 0 else 'falls'} with {row['feature']} (rho {ends}, "
            text += f"{rho.show(row['partial'])} given the full model's margin; {row['label']}, "
            text += f"{PLACES[row['split']]})"
        yield f"{text}."
        core = table[(table["kind"] == responses.CORE) & (table["label"] == ALL)]
        if core.empty or (roles := run.table(Roles.kind)) is None:
            return
        core = core.assign(text=responses.RESPONSES["share"].texts(core))
        for split, part in core.sort_values("share", ascending=False).groupby("split"):
            share = dict(part[["feature", "text"]].to_numpy().tolist())
            yield (
                f"{PLACES[str(split)].capitalize()}, features explain {share.pop(ALL)} of the "
                "variance of the change in margin without the core: "
                f"{listed([' '.join(one) for one in share.items()][:2])}."
            )
        yield "That the core computes shallow features is {}: {}.".format(*responses.verdict(table))
        leading = dict(shown.loc[shown["split"] == "ood", ["set", "feature"]].to_numpy().tolist())
        own = leading.get(responses.CORE)
        needed = roles.loc[roles["role"].isin([OUT_ONLY, OUT]), "component"].tolist()
        others = [f"{name} ({leading[name]})" for name in needed if leading.get(name, own) != own]
        yield (
            f"{len(others)} of {count(len(needed), 'component')} needed out of domain only respond "
            f"most to another feature there than the core{': ' * bool(others)}{listed(others)}."
        )
