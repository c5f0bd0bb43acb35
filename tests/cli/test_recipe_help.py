"""--help, --list and docs/fields.md say what there is."""

import pytest

from tape_ds.cli import recipe_help
from tape_ds.config import files, trainer
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.config.kinds import KINDS
from tape_ds.config.trainer import Trainer
from tape_ds.errors import UserError
from tape_ds.installation import ROOT

EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def said(capsys, kind, *argv):
    assert recipe_help.answered(list(argv), kind)
    return capsys.readouterr().out


@EVERY_KIND
def test_help_names_every_field(kind, capsys):
    text = said(capsys, kind, "--help")
    own = {name for section in kind.SECTIONS.values() for name in section.flat_fields()}
    assert not {name for name in own if f"--{name} " not in text and f"--{name}\n" not in text}
    trainers = set(trainer.FIELDS) - {*trainer.OWNED}
    assert not {name for name in trainers if name not in text}
    assert f"default: {kind.DEFAULT}\n" in text, "all recipes, which --list has, stood before the fields"
    assert text.count("recipe") < 20
    assert ":mod:" not in text and "``" not in text


@EVERY_KIND
def test_every_field_is_described(kind):
    own = {name: field for section in kind.SECTIONS.values() for name, field in section.flat_fields().items()}
    for name, field in {**own, **{name: Trainer.model_fields[name] for name in recipe_help.USUAL}}.items():
        assert recipe_help._described(field), name


@EVERY_KIND
def test_the_list_has_a_line_for_each_recipe(kind, capsys):
    lines = said(capsys, kind, "--list").splitlines()
    assert [line.split()[0] for line in lines] == files.recipes_of(kind.LAUNCHER)
    assert all(len(line.split()) > 2 for line in lines)


def test_help_of_one_field(capsys):
    text = said(capsys, ExtensionRecipe, "--help", "pose_chunks", "--learning-rate")
    assert "--pose_chunks  (a whole number)" in text and "[1]" in text and "--learning_rate  (a number)" in text
    assert "It stays false here" in said(capsys, ExtensionRecipe, "--help", "remove_unused_columns")


def test_help_of_a_field_that_there_is_not():
    for word, near in (("pose_chunk", "did you mean 'pose_chunks'"), ("tokenizer", "one of: ")):
        with pytest.raises(UserError) as caught:
            recipe_help.answered(["--help", word], ExtensionRecipe)
        assert near in caught.value.problems[0].remedy


def test_no_help_is_asked_for():
    assert not recipe_help.answered(["--local_rank=0", "--recipe", "demo"], ExtensionRecipe)


def test_only_the_first_rank_answers(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert said(capsys, ExtensionRecipe, "--list") == ""


def test_the_page_of_fields_is_made_of_the_fields():
    written = (ROOT / "docs" / "fields.md").read_text(encoding="utf-8")
    assert written == recipe_help.page(list(KINDS.values())), "run python -m tape_ds.cli.recipe_help > docs/fields.md"
