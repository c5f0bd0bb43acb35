"""Checkpoints for other jobs: every number where that job looks for it, and the original as it was."""

import json
import re
from dataclasses import replace

import pytest
import torch

from tape_ds import checkpoint
from tape_ds.checkpoint import reshaping
from tape_ds.checkpoint.engine_state import EngineState, engine_folder, load
from tape_ds.errors import UserError
from tests.checkpoint.engine_files import MOMENTS, example_groups, seal, write_engine
from tests.checkpoint.tensor_parallel_files import write_cut_engine
from tests.training.own_memory import growth

CUTS = {"a.weight": (0, (3, 2)), "b.weight": (1, (1, 2)), "c": (0, (0, 11))}
"""Of :func:`example_groups`, on two tensor-parallel ranks."""


def saved(folder, stage=2, processes=2, rank_states=None, **options):
    """A committed checkpoint of a run."""
    made = folder / "run" / "checkpoint-7"
    write_engine(made / "global_step7", example_groups(), stage, processes, **options)
    for rank in range(processes):
        (made / f"rng_state_{rank}.pth").write_bytes(b"random")
        if rank_states is not None:
            (made / f"rank_state_{rank}.json").write_text(json.dumps(rank_states[rank]))
    (made / "trainer_state.json").write_text('{"global_step": 7}')
    return seal(made, stage, processes)


@pytest.mark.parametrize("wanted", [(1, 1), (3, 2), (2, 3), (5, 3), (8, 1)])
@pytest.mark.parametrize("before", [(2, 1), (2, 2), (3, 3), (1, 3)])
def test_numbers_stay_and_the_layout_is_the_wanted_jobs(tmp_path, before, wanted):
    """Held to the files that such a job would have saved, and those are made in another way here."""
    source = saved(tmp_path, before[1], before[0], dtype=torch.bfloat16, shared={"head": "a.weight"})
    made = reshaping.reshape(source, tmp_path / "out", *wanted)
    expected = tmp_path / "expected"
    write_engine(expected, example_groups(), wanted[1], wanted[0], dtype=torch.bfloat16, shared={"head": "a.weight"})
    names = sorted(path.name for path in expected.iterdir())
    assert sorted(path.name for path in (made / "global_step7").iterdir()) == names
    for name in names:
        assert_alike(load(expected / name), load(made / "global_step7" / name))


def saved_in_pieces(folder, stage=2, processes=2):
    """A committed checkpoint of two tensor-parallel ranks, each piece's states shared by so many."""
    made = folder / "run" / "checkpoint-7"
    options = {"dtype": torch.bfloat16, "shared": {"head": "a.weight"}}
    write_cut_engine(made / "global_step7", example_groups(), CUTS, 2, stage, processes, **options)
    for rank in range(2 * processes):
        (made / f"rank_state_{rank}.json").write_text(json.dumps({"loss": float(rank).hex()}))
    return told_of_tensor(seal(made, stage, 2 * processes), 2)


def told_of_tensor(folder, size):
    """A committed checkpoint whose manifest says so."""
    replace(checkpoint.read(folder), tensor=size).write(folder)
    return folder


@pytest.mark.parametrize("wanted", [(1, 2), (2, 2), (3, 1), (5, 2)])
@pytest.mark.parametrize("before", [(1, 1), (2, 1), (3, 2)])
def test_tensor_parallel_pieces_are_laid_anew_each_by_itself(tmp_path, before, wanted):
    """Ranks of a piece and stage change, and the pieces stay."""
    made = reshaping.reshape(
        saved_in_pieces(tmp_path, before[1], before[0]), tmp_path / "out", 2 * wanted[0], wanted[1]
    )
    expected = tmp_path / "expected"
    options = {"dtype": torch.bfloat16, "shared": {"head": "a.weight"}}
    write_cut_engine(expected, example_groups(), CUTS, 2, wanted[1], wanted[0], **options)
    names = sorted(path.name for path in expected.iterdir())
    assert sorted(path.name for path in (made / "global_step7").iterdir()) == names
    for name in names:
        assert_alike(load(expected / name), load(made / "global_step7" / name))
    manifest = checkpoint.read(made)
    assert (manifest.processes, manifest.stage, manifest.tensor) == (2 * wanted[0], wanted[1], 2)
    sums = [json.loads(path.read_text()) for path in made.glob("rank_state_*.json")]
    assert sums == [{"loss": (before[0] - 0.5).hex()}] * (2 * wanted[0])


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ((3, None), "(?s)processes = 3.*saved with tensor_parallel_size 2.*give a multiple of 2"),
        ((1, None), "processes = 1"),
        ((None, 3), "(?s)stage = 3.*saved with tensor_parallel_size 2.*give 1 or 2"),
        ((5, 3), "(?s)processes = 5.*stage = 3"),
        ((0, 3), "(?s)a job has ranks.*stage = 3"),
    ],
)
def test_tensor_parallel_pieces_stay_as_many(tmp_path, wanted, said):
    with pytest.raises(UserError, match=said):
        reshaping.reshape(saved_in_pieces(tmp_path), tmp_path / "out", *wanted)
    assert not (tmp_path / "out").exists()


def test_a_manifest_of_another_tensor_parallel_size_is_refused(tmp_path):
    source = told_of_tensor(saved(tmp_path, processes=4), 2)
    with pytest.raises(UserError, match="files are of tensor_parallel_size 1, and not 2"):
        reshaping.reshape(source, tmp_path / "out", 2)


def test_without_shards_only_the_tensor_parallel_size_has_to_stay(tmp_path):
    (tmp_path / "checkpoint-7").mkdir()
    source = told_of_tensor(seal(tmp_path / "checkpoint-7", 0, 4), 2)
    with pytest.raises(UserError, match="on any number of processes with tensor_parallel_size 2"):
        reshaping.reshape(source, tmp_path / "out", 2)


def assert_alike(expected, found):
    """All of what is expected is there, bit for bit."""
    if isinstance(expected, torch.Tensor):
        assert found.dtype is expected.dtype and torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert type(found) is type(expected) and expected.keys() <= found.keys()
        for key, value in expected.items():
            if key not in ("loss_scaler", "shared_params"):
                assert_alike(value, found[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(expected, found, strict=True):
            assert_alike(one, other)
    else:
        assert found == expected


def test_sub_groups_are_those_of_the_saved_configuration(tmp_path):
    source = saved(tmp_path, 1, 2, settings={"sub_group_size": 18})
    state = EngineState(engine_folder(reshaping.reshape(source, tmp_path / "out", stage=3)))
    assert [list(flat.shapes) for flat in state.layout.flats] == [["a.weight"], ["b.weight"], ["a.bias", "gain", "c"]]
    assert [group["params"] for group in state.param_groups] == [[0, 1], [2]]
    for name, master in example_groups()[0].items():
        assert torch.equal(state.whole(name), master)
        assert torch.equal(state.whole(name, "exp_avg"), MOMENTS["exp_avg"](master))
    steps = [load_step["step"] for load_step in (state.flat_states(flat)[0] for flat in range(3))]
    assert steps == [7, 7, 7] and len({step.data_ptr() for step in steps}) == 3


def test_it_is_a_committed_checkpoint_and_the_original_is_untouched(tmp_path):
    source = saved(tmp_path)
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    made = reshaping.reshape(source, tmp_path / "run" / "reshaped", 4, 3)
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before
    assert made == tmp_path / "run" / "reshaped" / "checkpoint-7" and checkpoint.numbered(tmp_path / "run") == [source]
    manifest = checkpoint.read(made)
    assert (manifest.processes, manifest.stage, manifest.step) == (4, 3, 7)
    assert manifest.identity == checkpoint.read(source).identity
    assert not checkpoint.misfits(made, manifest) and not checkpoint.damage(made, manifest)
    assert {path.name for path in made.iterdir()} == {"manifest.json", "trainer_state.json", "global_step7"}


def test_sums_of_ranks_keep_their_mean_and_the_rest_must_agree(tmp_path):
    """What is logged next is the mean over the ranks."""
    sums = [{"loss": (1.5).hex(), "last_logged": 5}, {"loss": (4.0).hex(), "last_logged": 5}]
    made = reshaping.reshape(saved(tmp_path, rank_states=sums), tmp_path / "out", 3)
    found = [json.loads((made / f"rank_state_{rank}.json").read_text()) for rank in range(3)]
    assert found == [{"loss": (2.75).hex(), "last_logged": 5}] * 3
    sums[1]["last_logged"] = 6
    with pytest.raises(UserError, match="disagree on last_logged"):
        reshaping.reshape(saved(tmp_path / "b", rank_states=sums), tmp_path / "other", 3)


@pytest.mark.parametrize(
    ("options", "wanted", "said"),
    [
        ({}, (2, 2), "of 2 processes and stage 2 already"),
        ({}, (0, None), "a job has ranks"),
        ({}, (-1, 3), "a job has ranks"),
        ({}, (1, 0), "not a ZeRO stage with shards"),
        ({"settings": {"round_robin_gradients": True}}, (3, None), "round_robin_gradients"),
        ({"moments": {"factored": lambda flat: flat[:3]}}, (3, None), "factored cannot be divided"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, options, wanted, said):
    source = saved(tmp_path, **options)
    with pytest.raises(UserError, match=said):
        reshaping.reshape(source, tmp_path / "out", *wanted)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("stage", "said"), [(None, "without an engine"), (0, "at stage 0")])
def test_without_shards_there_is_nothing_to_do(tmp_path, stage, said):
    folder = tmp_path / "checkpoint-7"
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    with pytest.raises(UserError, match=f"(?s){said}.*resume it as it is"):
        reshaping.reshape(seal(folder, stage, 1), tmp_path / "out", 2)


def test_a_damaged_checkpoint_is_refused_and_another_offered(tmp_path):
    source = saved(tmp_path)
    other = tmp_path / "run" / "checkpoint-3"
    other.mkdir()
    seal(other, None, 1, step=3)
    part = source / "global_step7" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(UserError, match=rf"(?s){part.name} is damaged.*checkpoint-3"):
        reshaping.reshape(source, tmp_path / "out", 3)


def test_what_a_failed_attempt_wrote_goes(tmp_path, monkeypatch):
    source = saved(tmp_path)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        reshaping.reshape(source, tmp_path / "out", 3)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_is_there_is_not_replaced(tmp_path):
    source = saved(tmp_path)
    with pytest.raises(UserError, match=re.escape("exists")):
        reshaping.reshape(source, tmp_path / "run", 3)


def test_the_state_is_never_in_memory(tmp_path):
    """Four tensors of 16 MiB and as many of a moment: from file to file."""
    calls = []
    for name, size in (("small", 64), ("large", 2**22)):
        source = tmp_path / name / "checkpoint-7"
        group = {f"w{number}": torch.full((size,), number + 0.1) for number in range(4)}
        write_engine(source / "global_step7", [group], 2, 2, moments={"exp_avg": lambda flat: flat / 3})
        seal(source, 2, 2)
        calls.append(f"reshaping.reshape(Path({str(source)!r}), Path({str(tmp_path / name / 'out')!r}), 3, 3)")
    assert growth(*calls) < 16 * 2**20
