"""``docs/results/README.md`` is made of the stored results."""

import shutil

import pytest

from tape_ds import results
from tape_ds.installation import ROOT
from tools.experiment import pages, table
from tools.experiment.pages import Measured, StoredSource
from tools.experiment.published import Quantity

COMMITTED = ROOT / pages.OVERVIEW


@pytest.fixture(scope="module")
def built():
    return pages.overview()


@pytest.fixture
def copy(tmp_path):
    """A checkout with nothing in it but results, those that stand on the page left out: tests store their own."""
    left_out = shutil.ignore_patterns(pages.STORED.name)
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "docs" / "results", ignore=left_out)
    return tmp_path


def store(root, name, rows, scale="small"):
    """What ``python -m tools.experiment NAME --results docs/results/reproduce`` leaves."""
    source = StoredSource("runs/x.json", "python tools/x.py --y", "2 x H100", "2027-01-01T00:00:00+00:00", "abc")
    ours = Measured(name, "a small model", rows, (source,), remarks=("It shows nothing.",), scale=scale)
    results.save(results.collect(command=["x"]).finish(ours.figures()), root / pages.STORED / f"{name}_{scale}.json")


def row_of(text, label):
    """Cells of a table's row."""
    line = next(line for line in text.splitlines() if line.startswith(f"| [{label}]"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_committed_page_is_what_the_results_give(built):
    """Change results and not this page: ``python -m tools.experiment --page``."""
    assert COMMITTED.read_text(encoding="utf-8") == built


def test_every_experiment_has_a_row_and_a_section(built):
    for name in table.shipped():
        asked = table.read(name)
        if asked.label:
            cells = row_of(built, asked.label)
            assert len(cells) == 4 and asked.about in cells[0]
            assert f"## {asked.label}: {asked.about}" in built.splitlines()


def test_every_page_of_results_is_listed(copy):
    (copy / "docs" / "results" / "new.md").write_text("# About `a`\n\nText.\n")
    assert "- [About `a`](new.md)\n" in pages.overview(copy)


def test_what_is_stored_is_shown_the_larger_scale_first(copy):
    quantity, github = Quantity("stdlib", "perplexity", 256), Quantity("github", "perplexity", 1024)
    store(copy, "table6", {"TAPE": {quantity: 71.25}})
    store(copy, "table6", {"TAPE": {github: 51.0}}, "paper")
    text = pages.overview(copy)
    rows = [line for line in text.splitlines() if line.startswith("| [Table 6]")]
    assert "--scale paper" in rows[0] and "--scale paper" not in rows[1]
    assert "| TAPE | 51.0 |" in text
