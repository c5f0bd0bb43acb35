"""A fault that is tried many times, and what came of one try."""

import contextlib
import random
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What came of one attempt; ``detail`` of a failure is what was expected instead."""

    fault: str
    number: int
    seed: int
    what: str
    survived: bool
    detail: str
    seconds: float

    @property
    def again(self) -> str:
        """The command that makes this attempt by itself."""
        return (
            f"python -m tests.faults --only {self.fault} --number {self.number} --seed {self.seed}"
        )


@dataclass
class Attempt:
    """One try while it is made; the campaign's function notes in ``what`` and ``seen`` what it does and sees.

    ``draw`` decides everything that is left to chance. All attempts share ``workspace`` (prepared data, reference
    runs); ``folder`` is this one's, and removed afterwards where all went well.
    """

    number: int
    draw: random.Random
    workspace: Path
    folder: Path
    what: str = ""
    seen: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Campaign:
    """A fault, and how often a full run and a test run try it; ``means`` describes an attempt in a sentence or two.
    An assertion of ``execute`` that does not hold is a failure."""

    name: str
    count: int
    daily: int
    means: str
    execute: Callable[[Attempt], None]

    def attempt(self, number: int, seed: int, workspace: Path) -> Outcome:
        """Make attempt ``number`` of ``seed``; never raises but for an interruption."""
        folder = workspace / "attempts" / f"{self.name}-{seed}-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        attempt = Attempt(number, random.Random(f"{self.name} {seed} {number}"), workspace, folder)
        begin = time.monotonic()
        survived = False
        try:
            self.execute(attempt)
            survived = True
        except AssertionError as error:
            attempt.seen.append(str(error) or traceback.format_exc(limit=-2))
        except Exception:
            attempt.seen.append(traceback.format_exc(limit=-4))
        if survived:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                (folder / "seen.txt").write_text("\n".join(attempt.seen))
        detail, seconds = "; ".join(attempt.seen), round(time.monotonic() - begin, 2)
        return Outcome(self.name, number, seed, attempt.what, survived, detail, seconds)

    def sample(self, seed: int) -> list[int]:
        """The numbers of a test run: evenly spread over the campaign, so that every kind of this fault has its turn."""
        return sorted(
            {(index * self.count // self.daily + seed) % self.count for index in range(self.daily)}
        )
