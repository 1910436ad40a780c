"""What every attention head attends to: scores per category of tokens, and labels."""

from mechcore.attention.categories import (
    Category,
    CategoryFunction,
    Thresholds,
    TokenInfo,
    categories,
    categorise,
    partition,
    register_category,
    unregister_category,
)
from mechcore.attention.patterns import attention_scores, score_patterns

__all__ = [
    "Category",
    "CategoryFunction",
    "Thresholds",
    "TokenInfo",
    "attention_scores",
    "categories",
    "categorise",
    "partition",
    "register_category",
    "score_patterns",
    "unregister_category",
]
