"""Every notebook runs from top to bottom, offline."""

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path):
    nbformat = pytest.importorskip("nbformat", reason="needs the notebooks extra")
    nbclient = pytest.importorskip("nbclient", reason="needs the notebooks extra")
    pytest.importorskip("ipykernel", reason="needs the notebooks extra")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "notebooks are kept empty"
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    last = notebook.cells[-1].outputs
    assert any("text/html" in output.get("data", {}) for output in last)
