"""What an export starts from: found from any of its folders, refused by name otherwise."""

import json
import shutil

import pytest
import torch

from tape_ds.checkpoint import source_model
from tape_ds.errors import UserError
from tests.export.conftest import base, run
from tests.models.helpers import tiny_model

__all__ = ["base", "run"]


@pytest.fixture(scope="module")
def finished(run):
    return run()


def test_a_run_and_its_trained_folder_are_the_same_source(finished):
    by_run, by_folder = (source_model.find(str(path)) for path in (finished, finished / "trained"))
    assert by_run.folder == by_folder.folder == finished / "trained"
    assert (
        by_run.record.method == "tape"
        and by_run.result.figures["steps"] == 16
        and by_run.has_tokenizer
    )
    assert by_run.config.max_position_embeddings == 128 and by_run.dtype == torch.float32
    assert (
        by_run.whole().fill(torch.float32).model.layers[0].position.attend.weight.abs().max() > 0.05
    )


def test_results_of_another_run_are_not_shown(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "results" / "run.json"
    stored = json.loads(path.read_text())
    stored["figures"]["trained"].pop()
    path.write_text(json.dumps(stored))
    found = source_model.find(str(tmp_path / "run"))
    assert found.result is None and "another run" in found.without_result


def test_a_model_folder_is_a_source(tmp_path):
    tiny_model().to(torch.bfloat16).save_pretrained(tmp_path / "model")
    found = source_model.find(str(tmp_path / "model"))
    assert found.record is None and not found.has_tokenizer and found.dtype == torch.bfloat16
    assert found.whole().fill(torch.float32).dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder, base: folder / "nowhere", "no such folder"),
        (lambda folder, base: base, "'llama': transformers loads that as it is"),
    ],
)
def test_anything_else_is_refused(tmp_path, base, make, reason):
    with pytest.raises(UserError, match=reason):
        source_model.find(str(make(tmp_path, base)))
