"""Claims and terms of a report on the cognitive task; asterisks mark ``*variables*``."""

from __future__ import annotations

from mechcore.report.claims import Claims
from mechcore.report.kinds import Words

_SECTIONS = "samples head-ablation number-attention decoding selectivity head-decoding projection"
CLAIMS = Claims("cognitive_verdicts", dict(enumerate(_SECTIONS.split(), 1)))
_INTERVALS = (
    "Intervals in brackets are 95 % intervals over test trials, not corrected for multiple "
    "comparisons: among many heads some exclude zero by chance. They do not cover other seeds, "
    "for which the spread over seeds is given, nor other models or wordings. "
    "Intervals over seeds are named as such."
)
_TERMS = (
    (
        "Task",
        "A prompt names a context, motion or colour, and gives evidence for left or right in both. "
        "The right answer is the side of the evidence that the context names. The answer is read "
        "at the last token, among the words left and right or, if unrestricted, among the whole "
        "vocabulary.",
    ),
    (
        "Congruent and incongruent trials",
        "Both pieces of evidence are on the same side, or on different sides; each kind makes up "
        "half of the trials. A model that ignores the context and follows one kind of evidence is "
        "right on 75 % of all trials and on 50 % of the incongruent ones.",
    ),
    (
        "Arms",
        "The pretrained model, which was not trained on the task; the same model fine-tuned on it; "
        "and a model of the same architecture trained on it from new random weights. A seed sets "
        "an arm's training samples, their order and, from scratch, the new weights.",
    ),
    (
        "Centre of mass",
        "The mean layer of all heads, each weighted with its change if that is below zero: from 0, "
        "all in the first layer, to the number of the last one. Noise gives small negative changes "
        "in all layers and pulls it to the middle, so the centre is also given for only "
        "those heads whose interval is below zero.",
    ),
    (
        "Decoding, chance and floor",
        "Logistic regression with cross-validation predicts a variable from the states (the "
        "residual stream after a layer, at one token); the choice is the right answer. Chance is "
        "the accuracy of guessing, and shuffled labels show the accuracy of the fit on noise. The "
        "floor is the accuracy from the best other variable: the right answer agrees with the side "
        "of either evidence on 75 % of the trials. Balanced trials avoid this: the side is not the "
        "one to answer by, and occurs equally often with either answer.",
    ),
    (
        "Mixed selectivity",
        "Each unit of the last layer is regressed on context, motion, colour and choice, with a "
        "permutation test for every variable. A unit that follows several of them has mixed "
        "selectivity. For motion and colour, units follow the side; the regression also includes "
        "strengths of evidence and products of variables. The expected share is for units that "
        "follow nothing.",
    ),
    (
        "Silhouette",
        "How much nearer a state is to those of its own group than to those of the nearest other "
        "group, averaged: 1 for groups far apart, 0 for none. It is computed for the states "
        "themselves and for the projected points, since a projection can show spurious groups.",
    ),
)
_CREDIT = (
    "Claims after arXiv 2406.18926; the task after Mante et al. 2013 (doi 10.1038/nature12742), "
    "mixed selectivity after Rigotti et al. 2013 (doi 10.1038/nature12160). The wording of the "
    "prompts, the numbers and the sizes are this project's own."
)
WORDS = Words(_INTERVALS, _TERMS, _CREDIT)
