"""A browser for tests: the system's Chromium, driven by playwright, that may reach no network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = (
    "no browser: expected MECHCORE_CHROMIUM to name one, or chromium, chromium-browser or "
    "google-chrome on the path"
)


def executable() -> str | None:
    """The browser to drive."""
    named = os.environ.get("MECHCORE_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Any]:
    """A running browser; skips where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = executable()
    if path is None:
        pytest.skip(MISSING)
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield running
        finally:
            running.close()


@dataclass
class Seen:
    """What a page has asked for and complained of."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def watch(self, page: Any) -> None:
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def check(self, path: Path) -> None:
        """Nothing but the file itself was asked for, and nothing went wrong."""
        outside = {url.split("#")[0] for url in self.requests if not url.startswith("data:")}
        assert outside == {path.as_uri()}
        assert self.complaints == []
