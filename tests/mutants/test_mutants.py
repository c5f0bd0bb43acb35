"""The list of mutants fits the source; whether tests notice each is asked by ``python -m tests.mutants``."""

from collections import Counter
from pathlib import Path

import yaml

from tests.processes import ROOT


def test_every_mutant_can_be_planted():
    mutants = yaml.safe_load((Path(__file__).parent / "mutants.yaml").read_text(encoding="utf-8"))
    found = [
        (ROOT / each["file"]).read_text(encoding="utf-8").count(each["old"]) for each in mutants
    ]
    assert Counter(found) == {1: len(mutants)}, [
        each for each, n in zip(mutants, found, strict=True) if n != 1
    ]
    assert all(
        each["new"] != each["old"] and all((ROOT / f).exists() for f in each["tests"])
        for each in mutants
    )
