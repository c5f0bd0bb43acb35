"""Files of experiments: each one loads, with runs and commands that exist."""

import json

import pytest

from tape_ds.errors import UserError
from tests.docs import commands
from tests.export.conftest import base
from tools.experiment import runs, table
from tools.experiment.table import FOLDER, PAPER, SMALL
from tools.experiments import new_decoder

__all__ = ["base"]

FORMS = [(name, SMALL) for name in table.shipped()]
FORMS += [
    (name, PAPER) for name in table.shipped() if "\npaper:" in (FOLDER / f"{name}.yaml").read_text()
]


@pytest.mark.parametrize("name, scale", FORMS)
def test_every_run_of_every_experiment_loads(name, scale, tmp_path, base, monkeypatch):
    asked = table.read(name, scale)
    model = asked.fields.get("model", "")
    if model.startswith("runs/"):  # made by commands in the experiment's file
        monkeypatch.chdir(tmp_path)
        sizes = {
            "num_hidden_layers": 1,
            "hidden_size": 16,
            "head_dim": 8,
            "max_position_embeddings": 1024,
        }
        command = [
            "gemma2",
            "--tokenizer",
            str(base),
            "--config",
            json.dumps(sizes),
            "--output",
            model,
        ]
        assert new_decoder.main(command) == 0
    planned = runs.plan(asked, [], tmp_path, asked.processes or (8 if scale == PAPER else 2))
    drawn = {run.arm for run in planned if run.depends_on_seed}
    assert len(planned) == len(drawn) * max(1, len(asked.seeds)) + len(asked.arms.keys() - drawn)
    assert planned or asked.then
    for arm in asked.arms:
        assert not asked.names or asked.then or arm in asked.names


COMMANDS = {
    tuple(table.filled(text, {"run": "runs/x", "output": "runs", "own": "runs/own", "arm": "x"}))
    for name, scale in FORMS
    for asked in [table.read(name, scale)]
    for text in (*asked.before, *asked.score, *asked.then)
}


@pytest.mark.parametrize("words", sorted(COMMANDS), ids=" ".join)
def test_every_command_is_parsed_by_its_program(words):
    commands.check(["deepspeed", *words[1:]] if words[0] == "launch" else list(words))


@pytest.mark.parametrize(
    "text, words",
    [
        ("arms: {a: {}}", ["about", "missing", "arms.a.recipe"]),
        ("about: x\nrecipe: tiny\narms: {a: {seed: 1}, '?': {}}", ["arms.a", "runner's"]),
        ("about: x\nrecipe: tiny\narms: {a: {}}\nreference: b", ["no such arm"]),
        ("about: x\nscore: ['', launch]", ["score = ''", "score = 'launch'"]),
        ("about: x\nrecipe: tiny\narms: {a: {}, a: {}}", ["written twice"]),
    ],
)
def test_mistakes_in_a_file_are_named(text, words, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        table.read(str(tmp_path / "mine.yaml"))
    assert all(word in str(caught.value) for word in words), caught.value


def test_json_in_a_command_keeps_its_braces():
    assert table.filled("""x --m '{"a": [1]}' {run}/y""", {"run": "r"}) == [
        "x",
        "--m",
        '{"a": [1]}',
        "r/y",
    ]


def test_an_unknown_name_or_form_is_refused():
    with pytest.raises(UserError, match="did you mean 'table6'"):
        table.read("tabel6")
    with pytest.raises(UserError, match="no such form"):
        table.read("look_back", PAPER)
