"""Notebooks of the book: stored without outputs, their links lead somewhere, and they run in miniature."""

import json
import os

import pytest

from tests.docs import pages
from tests.docs.test_links import broken

NOTEBOOKS = sorted((pages.ROOT / "docs" / "notebooks").glob("*.ipynb"))
SECONDS = 900
"""Longer than a cell takes in miniature, on a busy machine as well."""
PICTURES = 6


def cells(path, kind):
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=pages.name)
def test_it_is_stored_as_it_was_written(path):
    """Without outputs, which would be of one machine and one day, and in cells that fit a screen."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in found if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert all(len(text.splitlines()) <= 20 for text in cells(path, "code"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=pages.name)
def test_its_links_lead_somewhere(path):
    assert list(broken(path, "\n\n".join(cells(path, "markdown")))) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=pages.name)
def test_it_runs(path, tmp_path):
    """Cell by cell as in Jupyter, from an empty folder, with the real model."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    import nbformat

    environment = {**os.environ, "NOTEBOOK_SIZE": "tiny", "PYTHONPATH": str(pages.ROOT)}
    del environment["MPLBACKEND"]  # the notebook's own shows pictures
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=where)
    client.execute(env=environment)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == PICTURES
    (answer,) = (
        output.data["text/plain"]
        for output in outputs
        if output.output_type == "execute_result" and "text/html" not in output.data
    )
    assert "68497" in answer, "in a short text the model finds the key"
