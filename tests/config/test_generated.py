"""Recipes of generated tasks: fields that follow from digits or lengths."""

from tape_ds import TapeConfig
from tests.config import helpers
from tests.config.loads import generated as load

GOOD = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "position_encoding": "rope",
    "task": "addition",
    "max_digits": 5,
    "max_steps": 4,
    "global_batch_size": 8,
}


def loaded(**fields):
    """A recipe of addition, or of the task that ``fields`` name."""
    without = ("max_digits",) if "train_lengths" in fields else ()
    return load(["--recipe", helpers.write(good=GOOD, without=without, **fields)])


def test_what_follows_from_the_digits():
    recipe = loaded(max_digits=5)
    assert (recipe.data.max_digits_second, recipe.data.test_digits, recipe.window) == (5, 10, 19)
    assert recipe.test_tokens == 34
    uneven = loaded(max_digits=5, max_digits_second=3)
    assert (uneven.window, uneven.data.test_digits, uneven.test_tokens) == (17, 10, 30)
    assert loaded(window=64).window == 64
    assert (recipe.model.num_key_value_heads, recipe.model.head_dim) == (4, 16)


def test_what_follows_from_the_lengths():
    recipe = loaded(task="look_back", train_lengths=[32, 48])
    assert (
        recipe.data.test_lengths == [48, 72, 96]
        and recipe.window == 51
        and recipe.test_tokens == 99
    )
    assert recipe.data.task_options == {"letters": 26, "most": 16, "markers": 1, "queries": 1}
    assert TapeConfig(**recipe.configuration()).vocab_size == 4 + 26 + 1 + 1 + 16
    assert loaded(task="recall", train_lengths=[30]).data.test_lengths == [30, 44, 60], (
        "pairs have two tokens"
    )
    assert loaded(task="recall", train_lengths=[100]).data.test_lengths == [100, 128], (
        "and there are 64 keys"
    )
    assert (
        loaded(task="look_back", train_lengths=[32, 48], task_options={"queries": 4}).window == 60
    )


def test_arithmetic_has_nothing_new_in_its_identity():
    """A checkpoint from before there were lengths can be resumed."""
    data = loaded().data
    assert data.train_lengths is data.test_lengths is data.task_options is None


def test_the_model_has_the_letters_of_its_task():
    config = TapeConfig(**loaded(task="sorting").configuration())
    assert config.vocab_size == 69 and (config.eos_token_id, config.pad_token_id) == (3, 0)
    assert TapeConfig(**loaded().configuration()).vocab_size == 19
    assert config.max_position_embeddings == loaded(task="sorting").window


def test_drawn_positions_reach_the_tests():
    """Evaluation spreads the range over the tokens of the longest test; what somebody writes is kept."""
    options = TapeConfig(**loaded(position_encoding="randpe").configuration()).position_options
    assert options == {"max_range": 68, "evaluation_length": 34}
    longer = TapeConfig(
        **loaded(position_encoding="randpe", test_digits=25).configuration()
    ).position_options
    assert longer["evaluation_length"] == 79
    given = {"max_range": 30}
    own = TapeConfig(
        **loaded(position_encoding="randpe", position_options=given).configuration()
    ).position_options
    assert own == {"max_range": 30, "evaluation_length": 30}


def test_digits_can_be_given_places():
    """Abacus embeddings take the digits' ids from the task's letters."""
    options = TapeConfig(
        **loaded(position_options={"abacus": True}).configuration()
    ).position_options
    assert options["abacus_digits"] == list(range(4, 14))
