"""The page of other code's names gives names that exist here."""

import re

from tape_ds.config import trainer
from tape_ds.config.kinds import KINDS
from tests.docs import pages

PAGE = pages.ROOT / "docs" / "coming_from.md"


def test_flags_and_files_of_the_second_column_exist():
    fields = {field for kind in KINDS.values() for field in kind.fields()} | {"recipe", *trainer.ALIASES}
    for folder in ("tape_ds/cli", "tools"):
        for path in (pages.ROOT / folder).rglob("*.py"):
            fields |= set(re.findall(r'"--(\w+)"', path.read_text(encoding="utf-8")))
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    ours = "\n".join(row.split(" | ", 1)[1] for row in rows if not row.startswith("| ---"))
    flags = {flag for code in re.findall(r"`([^`]+)`", ours) for flag in re.findall(r"--(\w+)", code)}
    files = re.findall(r"(?:launchers|tools|ds_configs|tape_ds)/[\w/]+\.(?:py|json)", ours)
    assert len(flags) > 40 and flags - fields == set()
    assert [file for file in files if not (pages.ROOT / file).is_file()] == []
