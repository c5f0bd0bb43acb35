"""``docs/results/README.md`` is made of the stored results."""

import shutil

from tape_ds.installation import ROOT
from tools.experiment import pages


def test_the_committed_page_is_what_the_results_give():
    """Change results and not this page: ``python -m tools.experiment --page``."""
    assert (ROOT / pages.OVERVIEW).read_text(encoding="utf-8") == pages.overview()


def test_every_page_of_results_is_listed(tmp_path):
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "docs" / "results")
    (tmp_path / "docs" / "results" / "new.md").write_text("# About `a`\n\nText.\n")
    assert "- [About `a`](new.md)\n" in pages.overview(tmp_path)
