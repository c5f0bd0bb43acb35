"""``randpe``: one sorted draw for all layers in training, one fixed draw in evaluation."""

import pytest
import torch

from tape_ds.encodings import base, registry
from tests.models.helpers import tiny_config, tiny_model, tokens

WINDOW = 64  # tiny_config's max_position_embeddings


def encoding(training=False, **options):
    return registry.build(tiny_config(encoding="randpe", position_options=options)).train(training)


def located(encoding, *places):
    """The drawn places of these positions."""
    text = base.TokenContext(None, None, 0, None)
    return encoding.positions_for(torch.tensor(places)[None], text)[0, :, 0].tolist()


@pytest.mark.parametrize("options, whole", [({}, 2 * WINDOW), ({"max_range": 64}, 64)])
def test_training_draws_sorted_places_without_repetition(options, whole):
    randpe, seen = encoding(training=True, **options), set()
    for _ in range(60):
        drawn = located(randpe, *range(WINDOW))
        assert drawn == sorted(set(drawn)) and len(drawn) == WINDOW
        seen.update(drawn)
    assert seen == set(range(whole))


def test_one_draw_reaches_all_layers():
    """The published code draws in every layer: a distance then means something else in each."""
    model, starts = tiny_model(encoding="randpe").train(), []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(
            lambda _, given, named: starts.append(named["inputs"].start), with_kwargs=True
        )
    model(tokens(2, 9))
    assert len(starts) == 3 and all(start is starts[0] for start in starts)


def test_evaluation_has_one_draw_whatever_the_seed():
    """Cached keys and later queries must stand on one grid."""
    first = located(encoding(), *range(WINDOW))
    torch.manual_seed(99)
    assert located(encoding(), *range(WINDOW)) == first == sorted(set(first))
    assert max(first) < 2 * WINDOW
    assert located(encoding(evaluation_seed=1), *range(WINDOW)) != first
    before = torch.get_rng_state()
    located(encoding(), 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_spreads_the_range_over_the_length_that_is_asked_for():
    """``max_range`` counts 0, 1, 2, ...; beyond the spread, tokens count on from the range's end."""
    assert located(encoding(evaluation_length=128), *range(128)) == list(range(128))
    few = located(encoding(evaluation_length=3, max_range=1000), 0, 1, 2, 3, 4, 999)
    assert few[:3] == sorted(few[:3]) and few[2] < 1000
    assert few[3:] == [1000, 1001, 1996]
    assert located(encoding(), WINDOW - 1, WINDOW, WINDOW + 1)[1:] == [2 * WINDOW, 2 * WINDOW + 1]


def test_a_position_beyond_the_draw_is_refused_in_training():
    """Beyond its window training would silently see plain distances."""
    model = tiny_model(encoding="randpe").train()
    assert model(tokens(1, WINDOW)).logits.isfinite().all()
    with pytest.raises(ValueError, match=r"draws 64 positions .*has position 64: train"):
        model(tokens(1, WINDOW + 1))
    assert model.eval()(tokens(1, WINDOW + 1)).logits.isfinite().all()


@pytest.mark.parametrize(
    "options, field",
    [
        ({"max_range": 63}, "max_range"),
        ({"evaluation_length": 129}, "evaluation_length"),
        ({"evaluation_length": 0}, "evaluation_length"),
        ({"evaluation_length": 101, "max_range": 100}, "evaluation_length"),
    ],
)
def test_the_range_holds_the_window_and_the_evaluation_length(options, field):
    with pytest.raises(ValueError, match=rf"position_options\.{field} = "):
        tiny_config(encoding="randpe", position_options=options)
    assert tiny_config(
        encoding="randpe", position_options={"max_range": 64, "evaluation_length": 64}
    )


def test_dynamic_scaling_sees_the_drawn_places():
    """The base follows from the farthest place that is rotated to, not from the number of tokens."""
    parameters = {
        "rope_type": "dynamic",
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 8,
    }
    config = tiny_config(encoding="randpe", rope_parameters=parameters)
    places = registry.build(config).positions_for(
        torch.arange(5)[None], base.TokenContext(None, None, 0, None)
    )
    assert places[0, :, 1].tolist() == [int(places[0, -1, 0]) + 1] * 5
