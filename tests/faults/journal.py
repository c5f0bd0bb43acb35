"""Which attempts are done: a line of JSON each, on the disk before the next attempt begins."""

import json
import os
from dataclasses import asdict
from pathlib import Path

from tests.faults.campaign import Outcome


class Journal:
    """The outcomes of one folder's campaigns.

    Args:
        file: read where it exists. A last line that a kill left unfinished is dropped, and its attempt made again.
    """

    def __init__(self, file: Path):
        self._file = file
        self._outcomes: dict[tuple[str, int, int], Outcome] = {}
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        for line in whole.splitlines():
            self._keep(Outcome(**json.loads(line)))
        file.parent.mkdir(parents=True, exist_ok=True)
        if whole != text:
            file.write_text(whole, encoding="utf-8")

    def _keep(self, outcome: Outcome) -> None:
        self._outcomes[outcome.fault, outcome.seed, outcome.number] = outcome

    def add(self, outcome: Outcome) -> None:
        """Note an outcome for good; one of the same attempt takes the place of an earlier one."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._keep(outcome)

    def survived(self, fault: str, seed: int, number: int) -> bool:
        """Whether this attempt was made and went well; one that failed is made again."""
        outcome = self._outcomes.get((fault, seed, number))
        return outcome is not None and outcome.survived

    def outcomes(self, fault: str, seed: int) -> list[Outcome]:
        """The campaign's outcomes by number."""
        return [self._outcomes[key] for key in sorted(self._outcomes) if key[:2] == (fault, seed)]
