"""What cases of a long product gave: a line of JSON each, so that a product that was cut short goes on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tape_ds import results


class Journal:
    """The findings of one product.

    Args:
        file: read where it exists; a last line that a kill left unfinished is dropped.
    """

    def __init__(self, file: Path):
        self._file = file
        self._kept: dict[str, dict[str, Any]] = {}
        self._commit = (results.commit() or {}).get("hash", "unknown")[:12]
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        for line in whole.splitlines():
            kept = json.loads(line)
            self._kept[kept["case"]] = kept
        file.parent.mkdir(parents=True, exist_ok=True)
        if whole != text:
            file.write_text(whole, encoding="utf-8")

    def of(self, case: Any, find: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What is kept of a case, else what ``find`` gives, which is kept then."""
        name = repr(case)
        if name not in self._kept:
            self._kept[name] = {"case": name, "found": find(), "commit": self._commit}
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self._kept[name]) + "\n")
        found: dict[str, float] = self._kept[name]["found"]
        return found

    @property
    def commits(self) -> list[str]:
        """That computed what is kept."""
        return sorted({kept["commit"] for kept in self._kept.values()})
