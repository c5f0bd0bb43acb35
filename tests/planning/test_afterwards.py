"""Memory of merging and loading against sums done by hand."""

from tape_ds.planning import afterwards
from tape_ds.planning.shape import TrainedShape
from tests.planning.helpers import job

ADAPTERS = tuple((name, 8) for name in ("q_proj", "k_proj", "v_proj", "o_proj"))


def test_a_merge_holds_what_was_trained_and_no_model():
    """Adapters of rank 8 on four maps of 4,096 x 4,096 in 32 layers, and a copy of 32,000 rows of embeddings."""
    adapters = 4 * 32 * 8 * (4096 + 4096)
    found = afterwards.merging(job("rope", TrainedShape(adapters=ADAPTERS)))
    assert found == afterwards.LIBRARIES + 4 * adapters
    whole = TrainedShape(adapters=ADAPTERS, embeddings=True)
    assert afterwards.merging(job("rope", whole)) == found + 4 * 32_000 * 4096
    assert afterwards.merging(job("rope")) == afterwards.LIBRARIES, (
        "trained without adapters, weights are copied"
    )


def test_a_loaded_model_is_its_weights_once():
    """Llama-2-7B has 6,738,415,616 parameters."""
    trained = TrainedShape(adapters=ADAPTERS, embeddings=True)
    lora = job("rope", trained)
    assert afterwards.loading(lora) - afterwards.merging(lora) == 2 * 6_738_415_616
    assert afterwards.loading(job("rope", element=4)) == afterwards.LIBRARIES + 4 * 6_738_415_616
