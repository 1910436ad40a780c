"""Claims and terms of a report on the cognitive task; stars stand around ``*variables*``."""

from __future__ import annotations

from mechcore.report.claims import Claims
from mechcore.report.kinds import Words

_SECTIONS = "samples head-ablation number-attention decoding selectivity head-decoding projection"
CLAIMS = Claims("cognitive_verdicts", dict(enumerate(_SECTIONS.split(), 1)))
_INTERVALS = (
    "Intervals in brackets are 95 % intervals over test trials, each for its own number "
    "alone: among many heads some leave out zero by chance. They say nothing about other seeds, "
    "for which the spread over seeds stands beside them, nor about other models or wordings. "
    "Intervals over seeds are called so."
)
_TERMS = (
    (
        "Task",
        "A prompt names a context, motion or colour, and gives evidence for left or right in both. "
        "The right answer is the side of the evidence that the context names. The answer is read "
        "at the last token, among the words left and right unless it is called unrestricted: then "
        "among the whole vocabulary.",
    ),
    (
        "Congruent and incongruent trials",
        "Both evidences are on the same side, or on different sides; half of the trials are of "
        "either kind. A model that ignores the context and follows one kind of evidence is right "
        "on 75 % of all trials and on 50 % of the incongruent ones.",
    ),
    (
        "Arms",
        "The pretrained model, which was not trained on the task; the same model fine-tuned on it; "
        "and a model of the same architecture trained on it from new random weights. A seed is "
        "that of an arm's training samples, their order and, from scratch, the new weights.",
    ),
    (
        "Centre of mass",
        "The mean layer of all heads, each weighted with its change if that is below zero: from 0, "
        "all in the first layer, to the number of the last one. Noise gives small negative changes "
        "in all layers and pulls it to the middle, so the centre is also taken of those heads "
        "alone whose change has an interval above zero.",
    ),
    (
        "Decoding, chance and floor",
        "Logistic regression with cross-validation tells a variable from the states (the residual "
        "stream after a layer, at one token); the choice is the right answer. Chance is the "
        "accuracy of guessing, and shuffled labels show what the fit finds where there is nothing "
        "to find. The floor is what the best of the other variables gives away: the right answer "
        "agrees with the side of either evidence on 75 % of the trials. Balanced trials are free "
        "of that: the side is not the one to answer by, and equally often with either answer.",
    ),
    (
        "Mixed selectivity",
        "Each unit of the last layer is regressed on context, motion, colour and choice, with a "
        "permutation test for every variable. A unit that follows several of them is of mixed "
        "selectivity. A follower of motion or colour is one of its side; strengths of evidence and "
        "products of variables are in the regression beside them. Expected is the share if no unit "
        "followed anything.",
    ),
    (
        "Silhouette",
        "How much nearer a state is to those of its own group than to those of the nearest other "
        "one, averaged: 1 for groups far apart, 0 for none. It is taken of the states themselves "
        "and of the projected points, for a projection can draw groups where there are none.",
    ),
)
_CREDIT = (
    "Claims after arXiv 2406.18926; the task after Mante et al. 2013 (doi 10.1038/nature12742), "
    "mixed selectivity after Rigotti et al. 2013 (doi 10.1038/nature12160). The wording of the "
    "prompts, the numbers and the sizes are this project's own."
)
WORDS = Words(_INTERVALS, _TERMS, _CREDIT)
