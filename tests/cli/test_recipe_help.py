"""``--help`` of a field, and docs/fields.md is complete."""

import pytest

from tape_ds.cli import recipe_help
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.config.kinds import KINDS
from tape_ds.errors import UserError
from tape_ds.installation import ROOT


def said(capsys, kind, *argv):
    assert recipe_help.answered(list(argv), kind)
    return capsys.readouterr().out


def test_help_of_one_field(capsys):
    text = said(capsys, ExtensionRecipe, "--help", "pose_chunks", "--learning-rate")
    assert "--pose_chunks" in text and "--learning_rate" in text
    assert "It stays false here" in said(capsys, ExtensionRecipe, "--help", "remove_unused_columns")
    with pytest.raises(UserError, match="pose_chunk"):
        recipe_help.answered(["--help", "pose_chunk"], ExtensionRecipe)


def test_the_page_of_fields_is_made_of_the_fields():
    written = (ROOT / "docs" / "fields.md").read_text(encoding="utf-8")
    assert written == recipe_help.page(list(KINDS.values())), (
        "run python -m tape_ds.cli.recipe_help > docs/fields.md"
    )
