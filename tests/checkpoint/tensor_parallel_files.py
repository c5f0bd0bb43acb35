"""A tensor-parallel engine's files made by hand: an ordinary engine's for each rank's pieces, in one folder.

Pieces are cut by ``torch.split``, so whoever reads them is held to ``torch.cat``.
"""

import torch

from tape_ds.checkpoint.engine_state import TENSOR_PARALLEL
from tests.checkpoint.engine_files import write_engine


def write_cut_engine(folder, groups, cuts, size, stage, processes, **options):
    """Write the files of an engine of ``size`` tensor-parallel x ``processes`` ranks to ``folder``, a ``global_stepN``.

    ``groups`` hold whole tensors, ``cuts`` has a name -> (dimension, size of each rank's piece); ``options`` are
    :func:`write_engine`'s.
    """
    folder.mkdir(parents=True)
    record = {
        "size": size,
        "cuts": {name: [dim, list(sizes)] for name, (dim, sizes) in cuts.items()},
    }
    for tensor in range(size):
        own = [
            {name: piece(each, cuts.get(name), tensor) for name, each in group.items()}
            for group in groups
        ]
        aside = folder / f"of{tensor}"
        write_engine(aside, own, stage, processes, **options)
        tied = {"shared_params": {}} if tensor else {}  # the job's rank 0 alone has them
        change(aside / "mp_rank_00_model_states.pt", **{TENSOR_PARALLEL: record}, **tied)
        for path in aside.iterdir():
            path.rename(folder / path.name.replace("mp_rank_00", f"mp_rank_{tensor:02d}"))
        aside.rmdir()


def piece(tensor, cut, rank):
    """A rank's piece of a whole tensor; all of it where ``cut`` is None."""
    return tensor if cut is None else torch.split(tensor, list(cut[1]), cut[0])[rank].contiguous()


def change(path, **fields):
    """Have a file say something else."""
    torch.save(torch.load(path, weights_only=False) | fields, path)
