"""The engine's files: nothing in them is executed, and every parameter is found again, wherever its pieces lie."""

import pickle

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from tape_ds.checkpoint import engine_state
from tape_ds.checkpoint.engine_state import EngineState
from tests.checkpoint.engine_files import MOMENTS, example_groups, write_engine


class Malicious:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_all_that_engines_save_comes_back(tmp_path):
    """As without safety: tensors, plain values and DeepSpeed's small classes."""
    scaler = DynamicLossScaler(2.0**16, 1000, 1.0, 2, False)
    content = {
        "a": torch.ones(3, dtype=torch.bfloat16),
        "s": scaler,
        "z": ZeroStageEnum.weights,
        "n": [1, (2.5, None)],
    }
    content["f"] = fragment_address(numel=3, start=4)
    torch.save(content, tmp_path / "x.pt")
    for mmap in (True, False):
        found = engine_state.load(tmp_path / "x.pt", mmap)
        assert torch.equal(found.pop("a"), content["a"]) and vars(found.pop("s")) == vars(scaler)
        assert (
            found == {name: content[name] for name in "znf"} and type(found["z"]) is ZeroStageEnum
        )


@pytest.mark.parametrize("mmap", [True, False])
def test_a_malicious_pickle_is_never_executed(tmp_path, mmap):
    torch.save({"optimizer_state_dict": Malicious(tmp_path / "executed")}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match=r"x\.pt names (io|_io)\.open, and was not loaded"):
        engine_state.load(tmp_path / "x.pt", mmap)
    (tmp_path / "y.pt").write_bytes(pickle.dumps(Malicious(tmp_path / "executed"), protocol=2))
    with pytest.raises(ValueError, match=r"y\.pt"):
        engine_state.load(tmp_path / "y.pt", mmap)
    assert not (tmp_path / "executed").exists()


def test_a_file_that_was_cut_is_damaged(tmp_path):
    torch.save({"a": torch.ones(300)}, tmp_path / "x.pt")
    (tmp_path / "x.pt").write_bytes((tmp_path / "x.pt").read_bytes()[:600])
    with pytest.raises(ValueError, match=r"x\.pt"):
        engine_state.load(tmp_path / "x.pt")


@pytest.mark.parametrize("processes", [1, 3, 8])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_parameters_are_whole_again(tmp_path, stage, processes):
    """Weights and optimizer states, also where a rank holds nothing but padding."""
    write_engine(tmp_path / "e", example_groups(), stage, processes)
    state = EngineState(tmp_path / "e")
    assert (state.stage, len(state.parts)) == (stage, processes)
    for name, expected in (item for group in example_groups() for item in group.items()):
        assert torch.equal(state.whole(name), expected)
        for key, moment in MOMENTS.items():
            assert torch.equal(state.whole(name, key), moment(expected))


@pytest.mark.parametrize("missing", [1, 2])
def test_a_part_that_is_missing_is_found(tmp_path, missing):
    write_engine(tmp_path / "e", example_groups(), 2, 3)
    (tmp_path / "e" / f"zero_pp_rank_{missing}_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(ValueError, match=r"are no complete set|not those of one job"):
        EngineState(tmp_path / "e")


def test_a_part_of_another_model_is_found(tmp_path):
    write_engine(tmp_path / "e", example_groups(), 2, 2)
    larger = [
        {name: torch.ones(7, *each.shape) for name, each in group.items()}
        for group in example_groups()
    ]
    write_engine(tmp_path / "f", larger, 2, 2)
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    (tmp_path / "f" / name).replace(tmp_path / "e" / name)
    with pytest.raises(ValueError, match=f"{name} is of another job than zero_pp_rank_0"):
        EngineState(tmp_path / "e")


@pytest.mark.parametrize("stage", [2, 3])
def test_parts_that_do_not_fit_the_parameters_are_found(tmp_path, stage):
    write_engine(tmp_path / "e", example_groups(), stage, 1)
    (path,) = (tmp_path / "e").glob("*model_states.pt")
    model = torch.load(path)
    model["param_shapes"][0]["b.weight"] = torch.Size((9, 9))
    torch.save(model, path)
    with pytest.raises(ValueError, match=r"do not fit the shape of b\.weight"):
        EngineState(tmp_path / "e").whole("b.weight")
