"""Notebooks of the book: stored without outputs, with links that lead somewhere, and run in miniature."""

import json
import os

import pytest

from tests.docs import pages
from tests.docs.test_links import broken

NOTEBOOKS = sorted((pages.ROOT / "docs" / "notebooks").glob("*.ipynb"))
SECONDS = 900
"""Longer than a cell takes in miniature, on a busy machine as well."""
PICTURES = 6


@pytest.mark.parametrize("path", NOTEBOOKS, ids=pages.name)
def test_it_is_stored_without_outputs_and_its_links_lead_somewhere(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert list(broken(path, text)) == []


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
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources=where
    )
    client.execute(env=environment)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == PICTURES
    results = [output.data for output in outputs if output.output_type == "execute_result"]
    (answer,) = (data["text/plain"] for data in results if "text/html" not in data)
    assert "68497" in answer, "in a short text the model finds the key"
