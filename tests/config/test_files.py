"""Recipes in files: variants, where their values stand, what they are called, and the messages about wrong ones."""

import pytest
import yaml

from tape_ds.config import files
from tests.config.helpers import problems_of, write

TABLE = """\
# Rows of a table. More of it.
launcher: extend_llama
seed: 1
rope_parameters: {factor: 2.0}

variants:
  second:
    about: The second row.
    seed: 2

  third:
    about: The third row.
    base: second
    window: 64
  far:
    about: Of another file.
    base: other
    window: 32
"""


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Write files as those of ``launchers/recipes``; returns the writer."""
    monkeypatch.setattr(files, "RECIPES", tmp_path / "recipes")

    def write_all(**texts):
        for name, text in texts.items():
            file = tmp_path / "recipes" / "rows" / f"{name}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return write_all


def read(name):
    problems = []
    found = files.read_recipe(name, "", problems)
    return {key: (given.value, given.where) for key, given in found.items()}, problems


def test_a_variant_builds_on_its_file_and_keeps_the_place_of_each_value(shipped):
    shipped(first=TABLE, other="seed: 9\n")
    found, problems = read("second")
    assert not problems and "about" not in found and "variants" not in found
    assert found["seed"] == (2, "first.yaml line 9") and found["launcher"] == (
        "extend_llama",
        "first.yaml line 2",
    )
    assert read("first")[0].keys() == {"launcher", "seed", "rope_parameters"}, (
        "the file itself, without its variants"
    )


def test_a_variant_builds_on_another_or_on_another_file(shipped):
    shipped(first=TABLE, other="seed: 9\n")
    found, _ = read("third")
    assert (found["seed"][0], found["window"]) == (
        2,
        (64, "first.yaml line 14"),
    ) and "launcher" in found
    assert {name: value for name, (value, _) in read("far")[0].items()} == {"seed": 9, "window": 32}


def test_a_file_of_one_s_own_builds_on_a_variant(shipped, tmp_path):
    shipped(first=TABLE)
    (tmp_path / "mine.yaml").write_text("base: third\nwindow: 16\n")
    found, problems = read(str(tmp_path / "mine.yaml"))
    assert not problems and (found["seed"][0], found["window"][0]) == (2, 16)


@pytest.mark.parametrize("name", ["rows/second", "second", "rows/first"])
def test_a_name_may_have_its_folder_before_it(shipped, name):
    shipped(first=TABLE)
    assert str(files.find(name, files.RECIPES)) in ("second", "first.yaml")


@pytest.mark.parametrize(
    "name", ["columns/second", "about", "variants", "rows/", "second.yaml", ""]
)
def test_what_is_no_name_is_not_found(shipped, name):
    shipped(first=TABLE)
    assert files.find(name, files.RECIPES) is None


def test_what_a_run_changes_in_its_recipe_reaches_no_other(shipped):
    shipped(first=TABLE)
    files.read_recipe("second", "", [])["rope_parameters"].value["factor"] = 4.0
    assert read("third")[0]["rope_parameters"][0] == {"factor": 2.0}


WRONG = {
    "base of no text": (
        "variants:\n  a: {base: 7}\n",
        "a",
        "base",
        "not the name of a recipe (first.yaml line 2)",
    ),
    "circle of variants": ("variants: {a: {base: b}, b: {base: a}}\n", "a", "base", "a -> b -> a"),
    "a variant twice": (
        "variants:\n  a: {seed: 1}\n  a: {seed: 2}\n",
        "a",
        "a",
        "the second time in line 3",
    ),
    "no table": (
        "seed: 1\nvariants: [a]\n",
        "first",
        "variants",
        "not a mapping (first.yaml line 2)",
    ),
    "no name": (
        "variants:\n  yes: {seed: 1}\n",
        "first",
        "variants",
        "not a recipe (first.yaml line 2)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant_is_named_with_its_place(shipped, name):
    text, recipe, field, wrong = WRONG[name]
    shipped(first=text)
    _, problems = read(recipe)
    assert [problem.field for problem in problems] == [field] and wrong in problems[0].wrong


def test_a_file_of_one_s_own_has_no_variants():
    found, message = problems_of("--recipe", write(variants={"a": {"seed": 1}}))
    assert set(found) == {"variants"} and "mine.yaml line" in message and "base: NAME" in message


def test_a_name_means_one_recipe():
    contents = {
        path.stem: yaml.safe_load(path.read_text()) for path in files.RECIPES.rglob("*.yaml")
    }
    names = [
        *contents,
        *(name for content in contents.values() for name in content.get("variants", ())),
    ]
    assert sorted(names) == list(files.shipped())
    assert all(name.isidentifier() for name in names), (
        "a dot would cut the name of its folder short"
    )
