"""A headless browser that shows pages in frames and measures them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(PROGRAM is None, reason="no Chromium or Chrome on this machine")


def measured(outer: Path, body: str, profile: Path, *options: str, milliseconds: int = 5000) -> str:
    """Return what the page ``outer``, made of ``body``, writes into its ``<pre>``; its frames may be of other files."""
    outer.write_text(f"<!doctype html><body>{body}</body>", encoding="utf-8")
    command = [
        *(str(PROGRAM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *(f"--user-data-dir={profile}", "--allow-file-access-from-files", "--window-size=1400,1000"),
        *(*options, f"--virtual-time-budget={milliseconds}", "--dump-dom", outer.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    outer.unlink()
    found = re.search(r"<pre>(.+?)</pre>", done.stdout, re.S)
    assert found, done.stdout[-500:] + done.stderr[-2000:]
    return found[1]
