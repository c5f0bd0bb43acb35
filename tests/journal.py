"""Results of long work, a line of JSON each: work that was killed continues after its last line."""

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """Lines of a file, each on the disk before the next begins; a last line that a kill left unfinished is dropped."""

    def __init__(self, file: Path):
        self._file = file
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        file.parent.mkdir(parents=True, exist_ok=True)
        if whole != text:
            file.write_text(whole, encoding="utf-8")

    def add(self, line: dict[str, Any]) -> None:
        """Append a line."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines.append(line)
