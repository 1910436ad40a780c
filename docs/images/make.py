"""The pictures of the README, from the report of a finished run.

Run ``python docs/images/make.py FOLDER``, where FOLDER is what ``mechcore demo --out FOLDER`` left.
It needs Pillow, playwright and a Chromium (``MECHCORE_CHROMIUM`` names one that is not found).
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
WIDTH = 1100
THUMBNAIL = (480, 300)
LIMIT = 300_000
"""Bytes of a picture."""

ROWS = 5
"""Of the ranked list, in the picture of the report."""

THUMBNAILS = {
    "roles": "#blame figure",
    "head-frequency": "[aria-label='Figure head-frequency'] img",
    "attention": "#categories .view .canvas",
    "sweep": "[aria-label='Figure single-changes-accuracy'] img",
}
"""Name of each thumbnail, and what it shows of the report."""


@contextmanager
def report(path: Path) -> Iterator[Any]:
    """The page without its table of contents, open in a browser, in its light theme."""
    chromium = os.environ.get("MECHCORE_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as api:
        browser = api.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": WIDTH, "height": 1600}, color_scheme="light", device_scale_factor=2
        )
        page.goto(path.resolve().as_uri())
        page.add_style_tag(content="nav { display: none !important }")
        yield page
        browser.close()


def top(page: Any) -> Image.Image:
    """The title, the verdict, the scatter and the first rows of the ranked list."""
    row = page.query_selector(f"#blame tbody tr:nth-child({ROWS})").bounding_box()
    height = row["y"] + row["height"] + 1
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": height}
    return _image(page.screenshot(clip=clip, full_page=True)).resize(
        (WIDTH, round(height)), Image.Resampling.LANCZOS
    )


def thumbnail(page: Any, selector: str) -> Image.Image:
    """What ``selector`` names, on a white card of the size of all thumbnails."""
    part = page.query_selector(selector)
    if part is None:
        raise SystemExit(f"the report has no {selector}; expected that of mechcore demo")
    part.scroll_into_view_if_needed()  # attention is drawn when it comes into view
    page.wait_for_timeout(1000)
    image = _image(part.screenshot())
    if image.height > image.width:  # a part of it says more than the whole, made small
        return ImageOps.fit(image, THUMBNAIL, Image.Resampling.LANCZOS, centering=(0.5, 0.36))
    return ImageOps.pad(image, THUMBNAIL, Image.Resampling.LANCZOS, "white")


def save(image: Image.Image, name: str) -> None:
    """As a PNG of 256 colours within the limit."""
    path = HERE / f"{name}.png"
    image.quantize(256, kmeans=4).save(path, optimize=True)
    if path.stat().st_size > LIMIT:
        raise SystemExit(f"{path}: {path.stat().st_size} bytes; expected at most {LIMIT}")


def _image(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def main(folder: str) -> None:
    """Write all pictures."""
    with report(Path(folder) / "report.html") as page:
        save(top(page), "report")
        for part in page.query_selector_all("details"):
            part.evaluate("part => part.open = true")
        for name, selector in THUMBNAILS.items():
            save(thumbnail(page, selector), f"thumbnail-{name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
