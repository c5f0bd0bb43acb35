"""The command: what it verifies, what it says, and that a folder nobody vouches for is taken only when asked."""

import pytest
import torch
from safetensors.torch import load_file

from tape_ds.cli import consolidate, merge
from tests.checkpoint.engine_files import seal
from tests.checkpoint.test_consolidation import saved_run


@pytest.fixture
def run(tmp_path):
    """(sealed checkpoint of a model trained whole, its masters)."""
    folder, masters = saved_run(tmp_path, "full", 3, 2)
    return seal(folder, 3, 2), masters


def test_it_writes_and_says_what(run, tmp_path, capsys):
    source, masters = run
    assert consolidate.main([str(source), str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    for expected in (f"{len(masters)} tensors", "float32", "masters of ZeRO-3 on 2 ranks"):
        assert expected in said.out
    assert "warning" not in said.err
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(found[name], master) for name, master in masters.items())


def test_other_tools_take_what_it_writes(tmp_path, capsys):
    """Adapters in fp32, merged into their base."""
    checkpoint, _ = saved_run(tmp_path, "lora", 2, 2, scale=0.05)
    assert consolidate.main([str(seal(checkpoint, 2, 2)), str(tmp_path / "out")]) == 0
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=_tokenizer()).save_pretrained(tmp_path / "out")
    assert merge.main([str(tmp_path / "out"), str(tmp_path / "merged")]) == 0
    assert (tmp_path / "merged" / "model.safetensors").exists()


def _tokenizer():
    from tokenizers import Tokenizer, models

    return Tokenizer(models.BPE())


def test_a_damaged_checkpoint_is_refused(run, tmp_path, capsys):
    source, _ = run
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert consolidate.main([str(source), str(tmp_path / "out"), "--unsealed"]) == 2
    assert "model.safetensors has" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_folder_without_a_manifest_is_taken_only_when_asked(run, tmp_path, capsys):
    source, _ = run
    (source / "manifest.json").unlink()
    assert consolidate.main([str(source), str(tmp_path / "out")]) == 2
    assert "--unsealed" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert consolidate.main([str(source), str(tmp_path / "out"), "--unsealed"]) == 0
    assert "warning" in capsys.readouterr().err and (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "out", "said"),
    [
        ("nowhere", "out", "no such folder"),
        ("{run}", "{run}", "exists"),
        ("{run}", "{run}/out", "inside the checkpoint"),
        ("{run}", "{run}/model.safetensors/out", "is not a folder"),
        ("{run}/..", "out", "a checkpoint of its run: checkpoint-7"),
        ("y" * 300, "out", "no such folder"),
    ],
)
def test_mistakes_are_told(run, tmp_path, capsys, source, out, said):
    arguments = [str(tmp_path / each.format(run=run[0])) for each in (source, out)]
    assert consolidate.main(arguments) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists() and not (run[0] / "out").exists()
