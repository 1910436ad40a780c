"""What an analysis shows of a run, as its tests read it."""

from collections.abc import Iterable
from typing import Any

from mechcore.report.blocks import Block, Drawing
from mechcore.report.run_folder import RunFolder
from mechcore.wording import MINUS, SPACE


def plain(text: str) -> str:
    """With the space and the minus sign of a keyboard."""
    return text.replace(SPACE, " ").replace(MINUS, "-")


def headlines_of(analysis: Any, run: RunFolder) -> list[str]:
    """Its sentences in the summary."""
    return [*map(plain, analysis.headlines(run))]


def drawings_of(blocks: Iterable[Block]) -> list[Drawing]:
    """All drawings."""
    return [block for block in blocks if isinstance(block, Drawing)]
