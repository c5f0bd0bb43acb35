"""Read the files of data sources once on a machine, by its ranks together."""

from collections.abc import Callable
from typing import Any

from tape_ds.data.sources import file_identity
from tape_ds.distributed import process_info
from tape_ds.distributed.rank_sync import RankSync


def identify_together(identify: Callable[[], Any], rank_sync: RankSync) -> None:
    """Read the files that ``identify`` asks the identity of, each by one rank of a machine; all ranks must call it.
    What cannot be read is left to the message of ``identify``, when it is called."""
    here = process_info.current().host
    hosts = rank_sync.objects(here)
    neighbours = [rank for rank, host in enumerate(hosts) if host == here]
    files = sorted(file_identity.asked_for(identify))
    share = files[neighbours.index(rank_sync.rank) :: len(neighbours)]
    of_ranks = rank_sync.objects(file_identity.read(share))
    for rank in neighbours:
        file_identity.learn(of_ranks[rank])
