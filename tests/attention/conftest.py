"""Fixtures of the tests of attention."""

from collections.abc import Iterator

import pytest

from mechcore.attention import categories, unregister_category


@pytest.fixture
def clean_registry() -> Iterator[None]:
    """Categories that a test registers are gone after it."""
    before = categories(causal=True)
    yield
    for category in categories(causal=True):
        if category not in before:
            unregister_category(category.name)
