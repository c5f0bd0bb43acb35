"""``tape-ds consolidate``: the masters it writes, and the checkpoints it refuses."""

import pytest
import torch
from safetensors.torch import load_file

from tape_ds.cli import consolidate
from tests.checkpoint.engine_files import seal
from tests.checkpoint.test_consolidation import saved_run


@pytest.fixture
def run(tmp_path):
    """(sealed checkpoint of a model trained whole, its masters)."""
    folder, masters = saved_run(tmp_path, "full", 3, 2)
    return seal(folder, 3, 2), masters


def test_the_masters_are_written(run, tmp_path):
    source, masters = run
    assert consolidate.main([str(source), str(tmp_path / "out")]) == 0
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(found[name], master) for name, master in masters.items())


def test_a_damaged_checkpoint_is_refused(run, tmp_path, capsys):
    source, _ = run
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert consolidate.main([str(source), str(tmp_path / "out"), "--unsealed"]) == 2
    assert "model.safetensors has" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_folder_without_a_manifest_needs_the_option_unsealed(run, tmp_path):
    source, _ = run
    (source / "manifest.json").unlink()
    assert consolidate.main([str(source), str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
    assert consolidate.main([str(source), str(tmp_path / "out"), "--unsealed"]) == 0
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "out", "said"),
    [
        ("nowhere", "out", "no such folder"),
        ("{run}", "{run}/out", "inside the checkpoint"),
        ("{run}/..", "out", "a checkpoint of its run: checkpoint-7"),
    ],
)
def test_refusals(run, tmp_path, capsys, source, out, said):
    arguments = [str(tmp_path / each.format(run=run[0])) for each in (source, out)]
    assert consolidate.main(arguments) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists() and not (run[0] / "out").exists()
