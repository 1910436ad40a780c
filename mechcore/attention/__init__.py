"""What every attention head attends to: scores per category of tokens, and labels."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.attention.categories import Category as Category
    from mechcore.attention.categories import TokenInfo as TokenInfo
    from mechcore.attention.categories import categories as categories
    from mechcore.attention.categories import claims as claims
    from mechcore.attention.categories import key_is_word as key_is_word
    from mechcore.attention.categories import partition as partition
    from mechcore.attention.categories import register_category as register_category
    from mechcore.attention.categories import unregister_category as unregister_category
    from mechcore.attention.examples import AttentionExample as AttentionExample
    from mechcore.attention.examples import attention_examples as attention_examples
    from mechcore.attention.examples import clearest_heads as clearest_heads
    from mechcore.attention.examples import telling_example as telling_example
    from mechcore.attention.labels import Thresholds as Thresholds
    from mechcore.attention.labels import categorise as categorise
    from mechcore.attention.labels import explain as explain
    from mechcore.attention.labels import label_agreement as label_agreement
    from mechcore.attention.scores import HeadScores as HeadScores
    from mechcore.attention.scores import categorize_heads as categorize_heads
    from mechcore.attention.scores import score_heads as score_heads

attach(__name__)
