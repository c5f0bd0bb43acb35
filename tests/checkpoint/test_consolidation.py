"""Consolidated checkpoints: the engine's fp32 weights, bit for bit, in a folder like every trained one."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tape_ds import TapeForCausalLM
from tape_ds.checkpoint import consolidation, trained
from tape_ds.checkpoint.trained import TrainedRecord
from tape_ds.errors import UserError
from tape_ds.methods.prepare import prepare_model
from tests.checkpoint.engine_files import write_engine
from tests.checkpoint.own_memory import growth
from tests.checkpoint.tensor_parallel_files import write_cut_engine
from tests.methods.test_methods import settings
from tests.models.helpers import tiny_config


def saved_run(folder, method, stage, processes, dtype=torch.bfloat16, scale=1.0, size=1, **changes):
    """A checkpoint as a run saves it, with masters that 16 bits do not hold; (folder, masters by name). ``size`` is of
    tensor parallelism, ``processes`` are those that share a piece."""
    base = folder / "base"
    torch.manual_seed(1)
    TapeForCausalLM(tiny_config(tie_word_embeddings=True)).save_pretrained(base)
    model = TapeForCausalLM.from_pretrained(base, dtype=dtype)
    prepared = prepare_model(method, model, settings(**changes))
    own = dict(prepared.model.named_parameters())
    generator = torch.Generator().manual_seed(4)
    masters = {
        name: scale * torch.randn(own[name].shape, generator=generator) for name in prepared.names
    }
    with torch.no_grad():
        for name, master in masters.items():
            own[name].copy_(master)
    checkpoint = folder / "checkpoint-7"
    trained.save_trained(
        checkpoint, prepared.model, TrainedRecord(str(base), method, prepared.names)
    )
    if stage is not None:
        groups = [
            {n: m for n, m in masters.items() if (m.dim() > 1) is decays}
            for decays in (True, False)
        ]
        tied = {
            name: first for name, first in tied_names(prepared.model).items() if first in masters
        }
        engine, options = checkpoint / "global_step7", {"dtype": dtype, "shared": tied}
        if size == 1:
            write_engine(engine, groups, stage, processes, **options)
        else:
            write_cut_engine(
                engine, groups, cuts_of(masters, size), size, stage, processes, **options
            )
    (checkpoint / "trainer_state.json").write_text("{}")
    (checkpoint / "scheduler.pt").write_bytes(b"")
    (checkpoint / "chat_template.jinja").write_text("{{ messages }}")
    return checkpoint, masters


def cuts_of(masters, size):
    """Matrices by rows and columns in turn, the first piece the largest; vectors are left whole."""
    matrices = [
        name for name, master in masters.items() if master.dim() > 1 and min(master.shape) >= size
    ]
    cuts = {}
    for number, name in enumerate(matrices):
        length = masters[name].shape[number % 2]
        least = length // (size + 1)
        cuts[name] = (number % 2, [length - (size - 1) * least, *[least] * (size - 1)])
    return cuts


def tied_names(model: nn.Module):
    """Further names of parameters that have several -> their first."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in every if first[id(parameter)] != name}


@pytest.mark.parametrize(
    ("size", "stage", "processes"), [(1, 1, 2), (1, 2, 3), (1, 3, 4), (2, 1, 1), (3, 2, 3)]
)
@pytest.mark.parametrize(
    ("method", "changes"),
    [("tape", {"train_embeddings": True}), ("lora", {"train_embeddings": True}), ("full", {})],
)
def test_masters_come_back_in_a_trained_folder(tmp_path, method, changes, size, stage, processes):
    """Loaded in fp32, every trained parameter is its master; in the checkpoint's own folder it is rounded. Pieces of
    tensor parallelism are put together."""
    checkpoint, masters = saved_run(tmp_path, method, stage, processes, size=size, **changes)
    done = consolidation.consolidate(checkpoint, tmp_path / "out")
    assert load_file(done.file).keys() == load_file(checkpoint / done.file.name).keys()
    assert not {path.name for path in (tmp_path / "out").iterdir()} & {
        "trainer_state.json",
        "scheduler.pt",
    }
    own = dict(trained.load_trained(tmp_path / "out", dtype=torch.float32).named_parameters())
    for name, master in masters.items():
        assert own[name].dtype is torch.float32 and torch.equal(own[name], master), name


def test_a_tensor_parallel_piece_of_another_save_is_refused(tmp_path):
    """It fits by every shape, and is held to the trained weights like every other."""
    checkpoint, _ = saved_run(tmp_path, "full", 1, 1, size=2)
    other, _ = saved_run(tmp_path / "other", "full", 1, 1, size=2, scale=2.0)
    for path in other.glob("global_step7/*mp_rank_01*"):
        path.replace(checkpoint / "global_step7" / path.name)
    with pytest.raises(UserError, match="is not what the engine's fp32 weights round to"):
        consolidation.consolidate(checkpoint, tmp_path / "out")


def test_another_dtype_is_a_cast_of_the_masters(tmp_path):
    checkpoint, masters = saved_run(tmp_path, "full", 3, 2)
    done = consolidation.consolidate(checkpoint, tmp_path / "out", torch.float16)
    assert all(
        torch.equal(tensor, masters[name].half()) for name, tensor in load_file(done.file).items()
    )


def test_without_an_engine_weights_are_copied(tmp_path):
    checkpoint, masters = saved_run(tmp_path, "tape", None, 1)
    found = load_file(consolidation.consolidate(checkpoint, tmp_path / "out", None).file)
    assert all(torch.equal(found[name], master.bfloat16()) for name, master in masters.items())


def test_a_model_in_several_files_becomes_one(tmp_path):
    checkpoint, masters = saved_run(tmp_path, "full", 1, 2)
    tensors = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    names = sorted(tensors)
    save_file(
        {name: tensors[name] for name in names[:5]}, checkpoint / "model-00001-of-00002.safetensors"
    )
    save_file(
        {name: tensors[name] for name in names[5:]}, checkpoint / "model-00002-of-00002.safetensors"
    )
    (checkpoint / "model.safetensors.index.json").write_text("{}")
    done = consolidation.consolidate(checkpoint, tmp_path / "out")
    assert done.file.name == "model.safetensors" and set(load_file(done.file)) == set(names)
    assert not (tmp_path / "out" / "model.safetensors.index.json").exists()
    own = dict(trained.load_trained(tmp_path / "out").named_parameters())
    assert all(torch.equal(own[name], master) for name, master in masters.items())


def test_what_the_engine_has_not_trained_is_written_as_it_was_saved(tmp_path):
    checkpoint, masters = saved_run(tmp_path, "full", 1, 2)
    tensors = load_file(checkpoint / "model.safetensors")
    # a buffer, by the engine's own list
    tensors["steps"] = torch.tensor([1.0, 2.0])
    save_file(tensors, checkpoint / "model.safetensors")
    found = load_file(consolidation.consolidate(checkpoint, tmp_path / "out").file)
    assert found.pop("steps").tolist() == [1.0, 2.0]
    assert found.keys() == tensors.keys() - {"steps"}
    assert all(torch.equal(found[name], master) for name, master in masters.items())


def test_a_folder_that_exists_is_not_written_over(tmp_path):
    (tmp_path / "out").mkdir()
    (problem,) = consolidation.check_out(tmp_path / "out", tmp_path / "run" / "checkpoint-7")
    assert problem.field == "out" and "exists" in problem.wrong
    assert (
        consolidation.check_out(tmp_path / "run" / "whole", tmp_path / "run" / "checkpoint-7") == []
    )


def add_one(tensors):
    tensors["model.norm.weight"][3] += 1


@pytest.mark.parametrize("change", [add_one, lambda tensors: tensors.pop("model.norm.weight")])
def test_weights_of_another_save_are_refused(tmp_path, change):
    """An engine's part and a folder of trained weights of different steps fit by every shape."""
    checkpoint, _ = saved_run(tmp_path, "tape", 2, 2)
    tensors = {
        name: tensor.clone() for name, tensor in load_file(checkpoint / trained.WEIGHTS).items()
    }
    change(tensors)
    save_file(tensors, checkpoint / trained.WEIGHTS)
    with pytest.raises(UserError, match=r"model\.norm"):
        consolidation.consolidate(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("stage", "cuts", "weights"), [(3, None, 1), (2, {"w0": (0, (3, 5)), "w1": (1, (3, 5))}, 2)]
)
@pytest.mark.slow
def test_memory_is_one_weight_whatever_the_model(tmp_path, stage, cuts, weights):
    """A process's own memory, while three tensors of 36 MiB are put together; pieces come to the whole of one. Pages of
    mapped files are the system's, and go when it needs them."""
    for folder, rows in (("small", 8), ("large", 3072)):
        checkpoint = tmp_path / folder
        masters = {f"w{number}": torch.full((rows, rows), number + 0.1) for number in range(3)}
        engine, options = checkpoint / "global_step7", {"dtype": torch.bfloat16, "moments": {}}
        if cuts is None:
            write_engine(engine, [masters], stage, 2, **options)
        else:
            scaled = {
                name: (dim, [part * rows // 8 for part in parts])
                for name, (dim, parts) in cuts.items()
            }
            write_cut_engine(engine, [masters], scaled, 2, stage, 2, **options)
        save_file(
            {name: master.bfloat16() for name, master in masters.items()},
            checkpoint / trained.WEIGHTS,
        )
        record = {
            "base": "somewhere",
            "method": "tape",
            "names": sorted(masters),
            "format": trained.FORMAT,
        }
        (checkpoint / trained.RECORD).write_text(json.dumps(record))
    calls = [
        f"consolidation.consolidate(Path({str(tmp_path / name)!r}), Path({str(tmp_path / out)!r}))"
        for name, out in (("small", "first"), ("large", "out"))
    ]
    assert growth(*calls) < (weights + 0.75) * 36 * 2**20
    assert torch.equal(
        load_file(tmp_path / "out" / trained.WEIGHTS)["w1"], torch.full((3072, 3072), 1.1)
    )
