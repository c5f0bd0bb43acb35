"""Which changes of a run are named when it is resumed, and which of them may be forced."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tape_ds.targets.target import FetchedModel
from tape_ds.training import identity
from tests.config import loads

FOLDER = Path("checkpoint-3")
RECIPE = ["--recipe", "tiny"]
TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
)


def of(*arguments, data=None, base=None):
    recipe = loads.pretraining([*RECIPE, *arguments], world_size=2)
    folder = None if base is None else SimpleNamespace(folder=str(base))
    fetched = FetchedModel(base=folder, config=None, tokenizer=TOKENIZER)
    read = {"text:a": "1", "text:b": "2"} if data is None else data
    return identity.of_data(read) | identity.collect(recipe, fetched)


def named(changed, anyway=False):
    found = identity.differences(of(), changed)
    return [problem.field for problem in identity.problems(FOLDER, found, anyway)]


@pytest.mark.parametrize(
    "free",
    [
        *(
            ["--output_dir", "x"],
            ["--save_steps", "7"],
            ["--dataloader_num_workers", "2"],
            ["--eval_data", ""],
        ),
        *(["--train_data", "stdlib"], ["--max_grad_norm", "1.0"], ["--skip_bad_rows", "9"]),
    ],
)
def test_what_changes_no_number_is_not_named(free):
    """Two of them give a default; which rows are bad is decided by the data."""
    assert identity.differences(of(), of(*free)) == []


@pytest.mark.parametrize(
    ("field", "value", "may_change"),
    [
        *(
            ("learning_rate", "1e-4", True),
            ("max_steps", "500", True),
            ("per_device_train_batch_size", "2", True),
        ),
        *(("position_learning_rate", "10x", True), ("seed", "7", False), ("window", "128", False)),
        *(
            ("hidden_size", "64", False),
            ("global_batch_size", "16", False),
            ("optim", "adafactor", False),
        ),
        *(("position_encoding", "rope", False), ("bf16", "true", False)),
    ],
)
def test_what_may_change_with_resume_anyway(field, value, may_change):
    changed = of(f"--{field}", value)
    assert field in named(changed)
    assert (field in named(changed, anyway=True)) != may_change


def test_data_are_what_they_hold_and_not_where_they_lie():
    assert named(of(data={"text:moved/a": "1", "text:moved/b": "2"})) == []
    assert named(of(data={"text:a": "1", "text:b": "another"}), anyway=True) == ["text:b"]
    assert named(of(data={"text:b": "2", "text:a": "1"}), anyway=True) == ["data"]
    assert named(of() | {"tokenizer": "another"}, anyway=True) == ["tokenizer"]


def test_weights_may_not_change():
    """Other weights would count other sequences as read already. Only their proportions matter."""

    def weighted(*weights):
        names = ("stdlib:ast.py", "stdlib:ssl.py")
        entries = [
            {"source": name, "weight": weight} for name, weight in zip(names, weights, strict=True)
        ]
        return of("--train_data", json.dumps(entries))

    saved = weighted(1, 3)
    assert identity.differences(saved, weighted(2, 6)) == []
    for now in (weighted(1, 2), of()):
        found = identity.differences(saved, now)
        assert [each.field for each in identity.problems(FOLDER, found, anyway=True)] == [
            "train_data.weight"
        ]
    assert not [name for name in of() if "weight" in name and "decay" not in name], (
        "as before, without weights"
    )


def test_a_file_of_the_base_model_that_was_changed_is_named(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(100))
    before = of(base=tmp_path)
    file.write_bytes(bytes(99) + b"1")
    (found,) = identity.differences(before, of(base=tmp_path))
    assert found.name == "base.model.safetensors" and not found.safe_to_change


def test_versions_may_change_and_a_commit_is_only_named():
    now = of() | {"code.torch": "9.9", identity.COMMIT: "another"}
    assert named(now) == ["torch"] and named(now, anyway=True) == []
    assert [each.name for each in identity.differences(of(), now)] == [
        identity.COMMIT,
        "code.torch",
    ]


def test_a_checkpoint_from_before_position_parameters_were_a_group_is_refused():
    """Its optimizer's state is divided otherwise, and would fail to load with a traceback."""
    saved = {
        name: value for name, value in of().items() if not name.startswith("recipe.position_weight")
    }
    refused = identity.problems(FOLDER, identity.differences(saved, of()), anyway=True)
    assert [problem.field for problem in refused] == ["position_weight_decay"]
    assert not any(
        name.startswith("recipe.position_weight") for name in of("--position_encoding", "rope")
    )


def test_a_checkpoint_goes_on_that_has_a_field_under_its_former_name():
    assert identity.differences({"recipe.stream_lanes": 32}, {"recipe.stream_workers": 32}) == []
    (found,) = identity.differences({"recipe.stream_lanes": 32}, {"recipe.stream_workers": 8})
    assert (found.name, found.saved, found.now) == ("recipe.stream_workers", 32, 8)


def test_an_identity_is_plain_json_whatever_a_recipe_holds():
    """JSON knows no infinity; and a number that is not itself would differ from what it was."""
    unlimited = of("--lr_scheduler_kwargs", '{"power": NaN, "lr_end": Infinity}')
    json.dumps(unlimited, allow_nan=False)
    assert identity.differences(unlimited, json.loads(json.dumps(unlimited))) == []
    assert unlimited["recipe.lr_scheduler_kwargs"] == {"power": "NaN", "lr_end": "Infinity"}
