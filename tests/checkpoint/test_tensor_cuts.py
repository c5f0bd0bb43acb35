"""Pieces of tensor-parallel ranks: put together they are the whole, and what does not fit together is refused."""

import math

import pytest
import torch

from tape_ds.checkpoint.engine_state import TENSOR_PARALLEL, EngineState
from tape_ds.checkpoint.tensor_cuts import Cut, WholeState
from tests.checkpoint.engine_files import example_groups, write_engine
from tests.checkpoint.tensor_parallel_files import change, piece, write_cut_engine

CUTS = {
    2: {"a.weight": (0, (3, 2)), "b.weight": (1, (1, 2)), "c": (0, (0, 11))},
    3: {"a.weight": (1, (3, 3, 1)), "b.weight": (2, (1, 1, 1)), "a.bias": (0, (1, 3, 1))},
}
"""By number of ranks, of :func:`example_groups`: uneven ones, along every dimension, and an empty piece."""


def written(folder, size=2, stage=2, processes=2, **options):
    """An engine's folder."""
    write_cut_engine(folder / "e", example_groups(), CUTS[size], size, stage, processes, **options)
    return folder / "e"


def whole(state, name):
    """All of a parameter."""
    found = torch.empty(state.shapes[name])
    state.read(name, 0, found)
    return found


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("size", [2, 3])
def test_pieces_are_whole_again(tmp_path, size, stage, processes):
    state = WholeState(written(tmp_path, size, stage, processes))
    assert (state.stage, state.processes, len(state.states)) == (stage, size * processes, size)
    for name, expected in (item for group in example_groups() for item in group.items()):
        assert torch.equal(whole(state, name), expected), name


@pytest.mark.parametrize(("start", "count"), [(0, 1), (2, 3), (6, 8), (5, 29), (34, 1), (7, 0)])
@pytest.mark.parametrize("size", [2, 3])
def test_elements_are_read_from_anywhere_into_any_dtype(tmp_path, size, start, count):
    into = torch.empty(count, dtype=torch.bfloat16)
    WholeState(written(tmp_path, size)).read("a.weight", start, into)
    assert torch.equal(into, example_groups()[0]["a.weight"].flatten()[start : start + count].bfloat16())


@pytest.mark.parametrize("cut", [Cut(0, (4, 1)), Cut(1, (0, 2, 1)), Cut(2, (5, 2))])
def test_every_element_lies_in_one_run(cut):
    shape = torch.Size([5, 3, 7])
    pieces = torch.arange(math.prod(shape)).view(shape).split(list(cut.sizes), cut.dim)
    assert [cut.piece(shape, tensor) for tensor in range(len(pieces))] == [each.shape for each in pieces]
    assert cut.whole(pieces[0].shape) == shape
    for start, end in ((0, 105), (11, 94), (20, 22)):
        found = torch.full((end - start,), -1)
        for run in cut.runs(shape, start, end):
            assert (found[run.to : run.to + run.count] == -1).all()
            found[run.to : run.to + run.count] = pieces[run.tensor].flatten()[run.at : run.at + run.count]
        assert found.tolist() == list(range(start, end))


def test_parameters_that_are_not_cut_are_rank_0s(tmp_path):
    folder = written(tmp_path)
    changed = [{name: each + 1 for name, each in group.items()} for group in example_groups()]
    write_cut_engine(tmp_path / "f", changed, CUTS[2], 2, 2, 2)
    for path in (tmp_path / "f").glob("*mp_rank_01*"):
        path.replace(folder / path.name)
    state = WholeState(folder)
    assert torch.equal(whole(state, "gain"), example_groups()[1]["gain"])
    assert torch.equal(whole(state, "a.weight")[3:], changed[0]["a.weight"][3:])


@pytest.mark.parametrize("told", [{}, {TENSOR_PARALLEL: {}}, {TENSOR_PARALLEL: {"size": 1, "cuts": {}}}])
def test_without_tensor_parallelism_nothing_is_cut(tmp_path, told):
    write_engine(tmp_path / "e", example_groups(), 3, 2)
    change(tmp_path / "e" / "zero_pp_rank_0_mp_rank_00_model_states.pt", **told)
    state = WholeState(tmp_path / "e")
    assert (state.processes, len(state.states), state.cuts) == (2, 1, {})
    assert torch.equal(whole(state, "b.weight"), example_groups()[0]["b.weight"])


def test_tied_parameters_are_told_by_rank_0_alone(tmp_path):
    state = WholeState(written(tmp_path, shared={"head": "a.weight"}))
    assert "head" not in state.shapes and state.states[1].model["shared_params"] == {}
    assert [dict(each.shared) for each in state.states] == [{"head": "a.weight"}] * 2


def test_cuts_of_frozen_parameters_matter_to_nobody(tmp_path):
    folder = written(tmp_path)
    told = {"size": 2, "cuts": {"frozen": [0, [1, 1]], **{name: list(cut) for name, cut in CUTS[2].items()}}}
    for path in folder.glob("mp_rank_*"):
        change(path, **{TENSOR_PARALLEL: told})
    assert WholeState(folder).cuts.keys() == CUTS[2].keys()


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ("mp_rank_01_model_states.pt", r"mp_rank_01_model_states\.pt: missing"),
        ("zero_pp_rank_0_mp_rank_01_optim_states.pt", r"zero_pp_rank_0_mp_rank_01_optim_states\.pt: missing"),
        ("zero_pp_rank_1_mp_rank_01_optim_states.pt", r"zero_pp_rank_1_mp_rank_01_optim_states\.pt: missing"),
        ("zero_pp_rank_0_mp_rank_00_optim_states.pt", r"ranks \[1\] are no complete set"),
        ("zero_pp_rank_1_mp_rank_00_optim_states.pt", r"zero_pp_rank_1_mp_rank_00_optim_states\.pt: missing"),
        ("mp_rank_00_model_states.pt", r"mp_rank_00_model_states\.pt is missing"),
        ("*mp_rank_01*", r"of tensor-parallel ranks \[0\], and tensor_parallel_size was 2"),
        ("*mp_rank_00*", r"ranks \[\] are no complete set"),
    ],
)
def test_files_that_are_missing_are_named(tmp_path, lacking, said):
    folder = written(tmp_path)
    for path in list(folder.glob(lacking)):
        path.unlink()
    with pytest.raises(ValueError, match=said):
        WholeState(folder)


@pytest.mark.parametrize("told", [1, 3, 10**12, "2", None])
def test_another_number_of_ranks_than_the_files_have_is_refused(tmp_path, told):
    folder = written(tmp_path)
    for path in folder.glob("mp_rank_*"):
        change(path, **{TENSOR_PARALLEL: {"size": told, "cuts": {}}})
    with pytest.raises(ValueError, match=rf"ranks \[0, 1\], and tensor_parallel_size was {told}"):
        WholeState(folder)


def test_files_that_tell_of_no_cuts_are_of_another_program(tmp_path):
    folder = written(tmp_path)
    for path in folder.glob("mp_rank_*"):
        change(path, **{TENSOR_PARALLEL: None})
    with pytest.raises(ValueError, match=r"mp_rank_01_model_states\.pt.*a kind of parallelism"):
        WholeState(folder)


@pytest.mark.parametrize(
    ("cuts", "said"),
    [
        ({"a.weight": [0, [2, 3]]}, r"a\.weight is of shape \[3, 7\] on tensor-parallel rank 0, and not \[2, 7\]"),
        ({"a.weight": [0, [3, 3]]}, r"a\.weight is of shape \[2, 7\] on tensor-parallel rank 1, and not \[3, 7\]"),
        ({"a.weight": [1, [3, 4]]}, r"a\.weight is of shape \[3, 7\] on tensor-parallel rank 0"),
        ({"a.weight": [2, [3, 2]]}, r"a\.weight has 2 dimensions, and was cut along number 2"),
        ({}, r"a\.weight is of shape \[2, 7\] on tensor-parallel rank 1, and not \[3, 7\]"),
        ({"a.weight": [0, [5]]}, r"a\.weight was not cut into 2 pieces"),
        ({"a.weight": [-1, [3, 2]]}, r"a\.weight was not cut into 2 pieces"),
        ({"a.weight": [0, [6, -1]]}, r"a\.weight was not cut into 2 pieces"),
        ({"a.weight": [0, [2.5, 2.5]]}, r"a\.weight was not cut into 2 pieces"),
        ({"a.weight": 0}, "its cuts has another form"),
        ({"a.weight": [0]}, "its cuts has another form"),
        (["a.weight"], "its cuts has another form"),
    ],
)
def test_cuts_that_do_not_fit_the_pieces_are_refused(tmp_path, cuts, said):
    write_cut_engine(tmp_path / "e", example_groups(), {"a.weight": (0, (3, 2))}, 2, 2, 1)
    for path in (tmp_path / "e").glob("mp_rank_*"):
        change(path, **{TENSOR_PARALLEL: {"size": 2, "cuts": cuts}})
    with pytest.raises(ValueError, match=said):
        WholeState(tmp_path / "e")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"global_steps": 8}, "rank 1 tell of another step than"),
        ({"shared_params": {"head": "a.weight"}}, "another list of tied parameters than"),
        ({TENSOR_PARALLEL: {"size": 2, "cuts": {}}}, "another cut of the parameters than"),
    ],
)
def test_ranks_of_different_saves_are_refused(tmp_path, fields, said):
    folder = written(tmp_path)
    change(folder / "mp_rank_01_model_states.pt", **fields)
    with pytest.raises(ValueError, match=said):
        WholeState(folder)


@pytest.mark.parametrize(
    ("stage", "groups", "said"),
    [(1, example_groups(), "another ZeRO stage"), (2, example_groups()[::-1], "another list of parameters")],
)
def test_ranks_of_different_jobs_are_refused(tmp_path, stage, groups, said):
    folder = written(tmp_path)
    write_cut_engine(tmp_path / "f", groups, CUTS[2], 2, stage, 2)
    for path in (tmp_path / "f").glob("*mp_rank_01*"):
        path.replace(folder / path.name)
    with pytest.raises(ValueError, match=said):
        WholeState(folder)


def test_stage_3_goes_with_no_cuts(tmp_path):
    write_engine(tmp_path / "e", example_groups(), 3, 1)
    model = tmp_path / "e" / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    change(model, **{TENSOR_PARALLEL: {"size": 2, "cuts": {}}})
    (tmp_path / "e" / model.name.replace("00", "01")).write_bytes(b"")
    with pytest.raises(ValueError, match="tensor parallelism at ZeRO stage 3"):
        WholeState(tmp_path / "e")


def test_a_ranks_pieces_are_an_engines_state_of_their_own(tmp_path):
    folder = written(tmp_path)
    for tensor in range(2):
        state = EngineState(folder, tensor)
        assert (state.tensor, state.tensor_size, len(state.parts)) == (tensor, 2, 2)
        expected = example_groups()[0]["b.weight"]
        assert torch.equal(state.whole("b.weight"), piece(expected, CUTS[2]["b.weight"], tensor))
