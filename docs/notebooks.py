"""Execute the notebooks in full, and keep their outputs in them.

Run ``python docs/notebooks.py [NAME ...]``, for all of them without a name. What was executed is in
the metadata of a notebook, as a digest of its cells, so that outputs of other code do not go
unnoticed. Views of attention would bring 1.3 MB of JavaScript each; they are kept as pictures,
which takes playwright and a Chromium (``MECHCORE_CHROMIUM`` names one that is not found).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat

from mechcore.files import write_text
from mechcore.report.attention_views import library_script

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SHOWN = ("image/png", "text/html", "text/plain")
"""Forms in which an output is kept: the first that it has, and text."""
WIDTH = 900
LIMIT = 1_000_000
"""Bytes of a notebook."""


def digest(notebook: Any) -> str:
    """Of the cells, without their outputs."""
    cells = [[cell["cell_type"], "".join(cell["source"])] for cell in notebook["cells"]]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def execute(name: str) -> None:
    """Execute a notebook, and write it with its outputs.

    Raises:
        CellExecutionError: a cell fails.
        SystemExit: the notebook is larger than `LIMIT`.
    """
    path = FOLDER / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook, timeout=None, resources={"metadata": {"path": folder}}
        )
        client.execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [kept(output) for output in cell.outputs if not is_bar(output)]
    notebook.metadata = METADATA | {"mechcore": {"executed": digest(notebook)}}
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    if len(text.encode()) > LIMIT:
        raise SystemExit(f"{name}: {len(text.encode())} bytes; expected at most {LIMIT}")
    write_text(path, text)


def is_bar(output: Any) -> bool:
    """Whether an output is a progress bar of a library."""
    return "application/vnd.jupyter.widget-view+json" in output.get("data", {})


def kept(output: Any) -> Any:
    """An output as it is kept: text, with a table or a picture beside it."""
    if "data" not in output:
        return output
    page = output.data.get("text/html", "")
    if "CircuitsVis.render(" in page:
        output.data["image/png"] = picture(page)
    forms = [form for form in SHOWN if form in output.data]
    output.data = {form: output.data[form] for form in dict.fromkeys([*forms[:1], "text/plain"])}
    output.metadata = {}
    return output


def picture(page: str) -> str:
    """A view of attention as a PNG, in base64."""
    from playwright.sync_api import sync_playwright

    if library_script() not in page:
        page = library_script() + page
    chromium = os.environ.get("MECHCORE_CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as api:
        path = Path(folder) / "view.html"
        path.write_text(f"<!doctype html><meta charset=utf-8><body>{page}", encoding="utf-8")
        browser = api.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": WIDTH, "height": 400})
        shown.goto(path.as_uri())
        shown.wait_for_timeout(1000)  # it is drawn when it comes into view
        png = shown.screenshot(full_page=True)
        browser.close()
    return base64.b64encode(png).decode()


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        print(name, flush=True)
        execute(name)
