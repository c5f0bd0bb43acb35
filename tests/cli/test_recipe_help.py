"""``--help``, ``--list`` and docs/fields.md are complete."""

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
def test_help_describes_every_field(kind, capsys):
    text = said(capsys, kind, "--help")
    own = {name: field for section in kind.SECTIONS.values() for name, field in section.flat_fields().items()}
    assert not {name for name in own if f"--{name} " not in text and f"--{name}\n" not in text}
    trainers = set(trainer.FIELDS) - {*trainer.OWNED}
    assert not {name for name in trainers if name not in text}
    described = own | {name: Trainer.model_fields[name] for name in recipe_help.USUAL}
    assert [name for name, field in described.items() if not recipe_help._described(field)] == []


@EVERY_KIND
def test_the_list_has_a_line_for_each_recipe(kind, capsys):
    lines = said(capsys, kind, "--list").splitlines()
    assert [line.split()[0] for line in lines] == files.recipes_of(kind.LAUNCHER)
    assert all(len(line.split()) > 2 for line in lines)


def test_help_of_one_field(capsys):
    text = said(capsys, ExtensionRecipe, "--help", "pose_chunks", "--learning-rate")
    assert "--pose_chunks" in text and "--learning_rate" in text
    assert "It stays false here" in said(capsys, ExtensionRecipe, "--help", "remove_unused_columns")
    with pytest.raises(UserError, match="pose_chunk"):
        recipe_help.answered(["--help", "pose_chunk"], ExtensionRecipe)


def test_the_page_of_fields_is_made_of_the_fields():
    written = (ROOT / "docs" / "fields.md").read_text(encoding="utf-8")
    assert written == recipe_help.page(list(KINDS.values())), "run python -m tape_ds.cli.recipe_help > docs/fields.md"
