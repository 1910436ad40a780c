from __future__ import annotations

import random

from mechcore.worlds.draws import pick


class Known(random.Random):
    """Draws these numbers, one after another."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


def test_each_option_has_an_equal_share_of_the_numbers_from_0_to_1() -> None:
    rng = Known(0.0, 0.3333, 0.3334, 0.6666, 0.6667, 0.9999)
    assert [pick("abc", rng) for _ in range(6)] == ["a", "a", "b", "b", "c", "c"]
