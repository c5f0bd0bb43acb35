"""What recipes mean and how mistakes are answered, frozen: ``tests/assets/recipes``.

``values.jsonl`` has what every shipped recipe loads to (of each launcher one in full, the others as differences), and
``malformed.jsonl`` the field and the kind of every mistake in some hundred recipes and command lines that must not
load: a new rule gets a line there. Words may get better; fields, kinds and values change only on purpose.
"""

import json
from pathlib import Path

import pytest

from tape_ds.config import files
from tape_ds.errors import Problem, UserError
from tape_ds.planning import recipe_job
from tape_ds.training import library_checks
from tests.config import loads
from tests.config.helpers import has_bitsandbytes

FROZEN = Path(__file__).parents[1] / "assets" / "recipes"
LOAD = {
    "extend_llama": loads.extension,
    "finetune": loads.chat,
    "finetune_scrolls": loads.scrolls,
    "pretrain_c4": loads.pretraining,
    "train_generated": loads.generated,
}
KINDS = {
    "unknown field": "unknown",
    "no field any more": "unknown",
    "no such recipe": "unknown",
    "wrong type": "type",
    "missing": "missing",
    "written twice": "twice",
}
"""How the words of a problem begin -> its kind; any other is about the value."""

NEW_FIELDS = (
    *("allow_cpu", "sample_prompts", "sample_steps", "sample_tokens", "skip_bad_rows"),
    *("average_last", "ruler_lengths", "ruler_samples", "ruler_tasks"),
)
"""Fields that came after the values were frozen."""


def lines(name):
    return [json.loads(line) for line in (FROZEN / name).read_text().splitlines()]


def load(case):
    return LOAD[case["launcher"]](case["argv"], world_size=case.get("world_size"))


def kind(problem: Problem) -> str:
    return next((kind for words, kind in KINDS.items() if problem.wrong.startswith(words)), "value")


def test_every_recipe_has_the_values_it_had(monkeypatch):
    """Without a GPU, where what a recipe leaves to the plan has its cautious values."""
    has_bitsandbytes(monkeypatch)
    whole, seen = {}, set()
    for case in lines("values.jsonl"):
        expected = case.get("values")
        if expected is None:
            same = {
                name: value
                for name, value in whole[case["launcher"]].items()
                if name not in case["absent"]
            }
            expected = same | case["differences"]
        else:
            whole[case["launcher"]] = expected
        recipe = load(case)
        assert library_checks.check(recipe) == [], case["argv"]
        found = json.loads(json.dumps(recipe_job.settle(recipe, None, None).as_dict(), default=str))
        found = {name: value for name, value in found.items() if name not in NEW_FIELDS}
        assert found == expected, case["argv"]
        seen.add(case["argv"][1])
    assert seen == set(files.shipped())


@pytest.mark.parametrize("case", lines("values.jsonl")[::5], ids=lambda case: case["argv"][1])
def test_a_recipe_written_out_loads_to_itself(case, monkeypatch):
    has_bitsandbytes(monkeypatch)
    recipe = load(case)
    Path("again.yaml").write_text(recipe.to_yaml())
    again = load(case | {"argv": ["--recipe", "again.yaml"]})
    assert again.to_yaml() == recipe.to_yaml()


@pytest.mark.parametrize("name", sorted({case["test"] for case in lines("malformed.jsonl")}))
def test_every_mistake_is_named_as_it_was(name, tmp_path, monkeypatch):
    different = []
    for number, case in enumerate(lines("malformed.jsonl")):
        if case["test"] != name:
            continue
        here = tmp_path / str(number)
        for file, text in case.get("files", {}).items():
            (here / file).parent.mkdir(parents=True, exist_ok=True)
            (here / file).write_text(
                text.replace("{here}", str(here)).replace("{assets}", str(FROZEN.parent))
            )
        here.mkdir(exist_ok=True)
        with monkeypatch.context() as patch:
            patch.chdir(here)
            for variable, value in case.get("env", {}).items():
                patch.setenv(variable, value)
            try:
                load(case | {"argv": [word.replace("{here}", str(here)) for word in case["argv"]]})
                found = []
            except UserError as error:
                found = sorted([problem.field, kind(problem)] for problem in error.problems)
        if found != case["problems"]:
            different.append((case["argv"], case.get("files"), case["problems"], found))
    assert not different
