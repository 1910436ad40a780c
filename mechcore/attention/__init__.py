"""What every attention head attends to: scores per category of tokens, and labels."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.attention.categories import (
        Category,
        CategoryFunction,
        categories,
        claims,
        partition,
        register_category,
        unregister_category,
    )
    from mechcore.attention.examples import (
        AttentionExample,
        attention_examples,
        clearest_heads,
        telling_example,
    )
    from mechcore.attention.inputs import HeadData
    from mechcore.attention.labels import (
        Explanation,
        LabelAgreement,
        Thresholds,
        categorise,
        explain,
        label_agreement,
    )
    from mechcore.attention.patterns import (
        attention_scores,
        categorize_heads,
        score_heads,
        score_patterns,
    )
    from mechcore.attention.scores import HeadScores
    from mechcore.attention.tokens import TokenInfo

attach(__name__)

__all__ = [
    "AttentionExample",
    "Category",
    "CategoryFunction",
    "Explanation",
    "HeadData",
    "HeadScores",
    "LabelAgreement",
    "Thresholds",
    "TokenInfo",
    "attention_examples",
    "attention_scores",
    "categories",
    "categorise",
    "categorize_heads",
    "claims",
    "clearest_heads",
    "explain",
    "label_agreement",
    "partition",
    "register_category",
    "score_heads",
    "score_patterns",
    "telling_example",
    "unregister_category",
]
