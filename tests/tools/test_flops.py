"""``tools/flops.py``: the paper's Table 3 to the last printed digit, and the command line's answers."""

import json

import pytest
from transformers import LlamaConfig

from evaluation import published
from tape_ds import results
from tape_ds.model import positions
from tests.model.helpers import tiny_model
from tools import flops


def row(rows, encoding, count):
    (found,) = [each for each in rows if each["encoding"] == encoding and each["count"] == count]
    return found


@pytest.mark.parametrize("encoding", ["rope", "fire", "t5"])
def test_table_3_comes_out_to_the_last_digit(encoding):
    rows = flops.table_3()
    published, ours = (row(rows, encoding, count) for count in ("published", "this project"))
    for name in ("MACs (G)", "parameters (M)"):
        assert f"{ours[name]:.2f}" == f"{published[name]:.2f}"


def test_tape_is_counted_as_published_and_as_it_is_here():
    rows = flops.table_3()
    published, code, ours = (row(rows, "tape", count) for count in ("published", "published code", "this project"))
    for name in ("MACs (G)", "parameters (M)"):
        assert code[name] == published[name]
        assert ours[name] < published[name]


def test_the_published_numbers_are_those_of_the_registry():
    """Typed twice, since a tool can be run where the evaluations are not."""
    names = {"tape": "TAPE", "rope": "RoPE", "fire": "FIRE", "t5": "T5"}
    assert {names[each]: row for each, row in flops.TABLE_3.items()} == published.find("Table 3").rows


def test_the_causal_half_is_told_of_what_is_counted_here():
    rows = flops.table_3()
    for each in rows:
        assert list(each) == list(rows[0])
        if each["count"] == "this project":
            assert each["MACs causal (G)"] < each["MACs (G)"]
            assert each["FLOPs causal (G)"] == pytest.approx(2 * each["MACs causal (G)"], abs=0.011)
        else:
            assert each["MACs causal (G)"] is None


def test_a_table_is_stored(tmp_path, capsys):
    assert flops.main(["--table3", "--output", str(tmp_path / "three")]) == 0
    stored = results.load(tmp_path / "three" / "table3.json")
    assert stored.figures["rows"] == flops.table_3() and stored.config["length"] == 1024
    assert stored.command == ["flops.py", "--table3", "--output", str(tmp_path / "three")]
    assert "| rope | published | 321.10 | 160.46 | 154.89 | - | - |" in (tmp_path / "three" / "table3.md").read_text()
    (tmp_path / "file").touch()
    assert flops.main(["--position_encoding", "rope", "--output", str(tmp_path / "one")]) == 0
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["flops.csv", "flops.json", "flops.md"]
    assert flops.main(["--output", str(tmp_path / "file" / "folder")]) == 2
    assert "is a file" in capsys.readouterr().err


def test_every_encoding_is_listed_by_default(capsys):
    assert flops.main(["--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [each["encoding"] for each in rows] == positions.available()
    assert len({each["length"] for each in rows}) == 1


def test_a_model_of_one_s_own(tmp_path, capsys):
    model = tiny_model(position_options={"rank": 3})
    model.save_pretrained(tmp_path)
    capsys.readouterr()
    assert flops.main(["--model", str(tmp_path), "--length", "100", "--json"]) == 0
    (counted,) = json.loads(capsys.readouterr().out)
    assert counted["length"] == 100
    assert counted["parameters (M)"] == round(model.num_parameters() / 2**20, 2)
    assert counted["MACs full (G)"] == round(model.multiply_adds(100, causal=False) / 1e9, 2)


def test_options_change_those_of_a_model_and_no_others(tmp_path, capsys):
    """Named with the value it has, an option changes nothing."""
    tiny_model(encoding="tape flattened", position_options={"form": "flattened", "rank": 5}).save_pretrained(tmp_path)
    found = []
    for own in ([], ["--position_encoding", "tape", "--position_options", '{"rank": 5}']):
        assert flops.main(["--model", str(tmp_path), "--length", "4096", "--json", *own]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


def test_what_a_model_cannot_have_is_left_out_unless_it_was_asked_for(tmp_path, capsys):
    scaled = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
    LlamaConfig(
        vocab_size=512, hidden_size=64, num_attention_heads=4, num_hidden_layers=2, rope_parameters=scaled
    ).save_pretrained(tmp_path)
    assert flops.main(["--model", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    names = {each["encoding"] for each in json.loads(said.out)}
    assert {"rope", "tape", "alibi"} <= names and "bipe_rope" not in names and "left out: bipe_rope: " in said.err
    assert flops.main(["--model", str(tmp_path), "--position_encoding", "bipe_rope"]) == 2


def test_the_table_lines_up(capsys):
    flops.main(["--position_encoding", "tape", "--position_options", '{"rank": 24}'])
    lines = capsys.readouterr().out.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert "tape" in lines[1]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--position_encoding", "tpae"], ["did you mean 'tape'"]),
        (["--position_encoding", "tape", "rpoe", "--length", "0"], ["did you mean 'rope'", "length"]),
        (["--position_options", '{"rank": 2}'], ["--position_encoding NAME"]),
        (["--position_options", "[1]"], ["not a mapping"]),
        (["--position_encoding", "tape", "--position_options", '{"rnak": 2}'], ["did you mean 'rank'"]),
        (["--model", "no/such/folder/here"], ["no configuration"]),
        (
            ["--table3", "--length", "64", "--position_encoding", "rope"],
            ["length", "position_encoding", "four encodings"],
        ),
    ],
)
def test_mistakes_are_named(arguments, words, capsys):
    assert flops.main(arguments) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words)
