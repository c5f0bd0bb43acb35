"""``python -m tools.reproduce``: every experiment's commands are ones that their programs take, and are run as they
should be: in order, once, and not beyond one that fails."""

import functools
import json
import sys
import tempfile
from pathlib import Path

import pytest

from evaluation.published import Quantity, Table
from tape_ds import results
from tests.tools import reproduce_commands
from tools.reproduce import __main__ as reproduce
from tools.reproduce import estimate, experiment, readings, registry, render, running
from tools.reproduce.estimate import Cluster
from tools.reproduce.experiment import PAPER, ROOT, SCALES, SMALL, TINY, Form, Measured, Place, Step

FORMS = [(name, scale) for name, each in registry.EXPERIMENTS.items() for scale in each.forms]
ERROR = Quantity("toy", "error")
TOY = Table("Table 99", "a toy", "nothing", "%", (ERROR,), {"TAPE": (1.25,), "RoPE": (2.5,)})
WRITES = "import pathlib, sys; path = pathlib.Path(sys.argv[1]); path.parent.mkdir(parents=True, exist_ok=True); "
WRITES += "path.write_text(sys.argv[2]); print('toy', 'said', 'this')"


@functools.cache
def stored(value):
    """A result whose rows are RoPE's ``value`` and TAPE's 0.5, as text."""
    with tempfile.TemporaryDirectory() as folder:
        figures = {"rows": [["rope", value], ["tape", 0.5]]}
        return results.save(results.collect(command=["toy.py"]).finish(figures), Path(folder) / "x").read_text()


def place(tmp_path, **changes):
    return Place(tmp_path / "runs" / "toy", **changes)


def writing(name, value=3.5, folder="{output}"):
    file = f"{folder}/{name}.json"
    return Step(name, ("python", "-c", WRITES, file, stored(value)), file, minutes=1)


FAILING = Step("fails", ("python", "-c", "import sys; print('broken here'); sys.exit(3)"), "{output}/no.json")


def rows(result):
    for label, value in result.figures["rows"]:
        yield label, {ERROR: value}


def toy(*steps):
    read = readings.one("[ot][nhw]*.json", rows, {"rope": "RoPE", "tape": "TAPE"})
    form = Form("a toy of ours", steps, {"{output}": read}, ("It shows nothing.",))
    return experiment.Experiment("table99", "Table 99", "a toy", (TOY,), (ERROR,), {TINY: form})


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Run the command on a toy experiment of these steps."""

    def run(*steps, argv=()):
        monkeypatch.setitem(registry.EXPERIMENTS, "table99", toy(*steps))
        return reproduce.main(["table99", "--output", str(tmp_path / "runs" / "toy"), "--processes", "2", *argv])

    return run


# --- what there is


def test_every_table_and_figure_of_the_paper_is_there():
    numbers = [f"figure{n}" for n in (2, 3, 5, 6, 7)] + [f"table{n}" for n in range(1, 11)]
    assert list(registry.EXPERIMENTS) == numbers
    assert all({TINY, PAPER} <= set(each.forms) <= set(SCALES) for each in registry.EXPERIMENTS.values())


@pytest.mark.parametrize(("name", "scale"), FORMS)
def test_commands_are_ones_that_their_programs_take(name, scale, tmp_path):
    form = registry.EXPERIMENTS[name].forms[scale]
    for step in form.steps:
        reproduce_commands.take(step.command(place(tmp_path)))


@pytest.mark.parametrize(
    "command",
    [
        ["python", "tools/flops.py", "--tabel3"],
        ["python", "-m", "evaluation", "passkey", "MODEL", "--length", "none"],
        ["python", "-m", "evaluation", "scrolls", "generate", "MODEL"],
        ["python", "-m", "evaluation", "perplexity", "MODEL", "--lengths", "128", "--convention", "all_tokens"],
        ["deepspeed", "launchers/pretrain_c4.py", "--recipe", "tiny", "--max_step", "3"],
        ["deepspeed", "launchers/pretrain_c4.py", "--recipe", "llama2_7b_8k"],
        ["python", "tools/compare_encodings.py", "--encodings", 'tape{"rang": 4}'],
    ],
    ids=" ".join,
)
def test_the_check_of_commands_finds_wrong_ones(command):
    with pytest.raises((SystemExit, ValueError, AssertionError)):
        reproduce_commands.take(command)


@pytest.mark.parametrize("name", registry.EXPERIMENTS)
def test_no_two_steps_share_a_name_or_a_result(name, tmp_path):
    for form in registry.EXPERIMENTS[name].forms.values():
        for kind in ([step.name for step in form.steps], [step.result for step in form.steps]):
            assert len(set(kind)) == len(kind)


def test_what_experiments_share_is_made_by_the_same_command(tmp_path):
    """Else each would take the other's run for another's, and train it again."""
    for scale in SCALES:
        made = {}
        for each in registry.EXPERIMENTS.values():
            for step in each.forms[scale].steps if scale in each.forms else ():
                if step.result.startswith("{shared}"):
                    assert made.setdefault(step.name, step) == step
        assert made or scale == SMALL


def test_models_that_tables_have_in_common_are_trained_once():
    trained = {
        name: {step.name for step in registry.EXPERIMENTS[name].forms[PAPER].steps if step.name.startswith("c4_155m")}
        for name in ("table1", "table6", "table7", "table8", "table10")
    }
    assert set.intersection(*trained.values()) == {"c4_155m_tape"}
    assert "c4_155m_tape_flattened" in trained["table6"] & trained["table8"]
    steps = [step for name in trained for step in registry.EXPERIMENTS[name].forms[PAPER].steps]
    assert all(step.written == f"{{shared}}/{step.name}" for step in steps if step.name.startswith("c4_155m"))


@pytest.mark.parametrize(("name", "scale"), FORMS)
def test_tiny_and_small_forms_need_no_cluster(name, scale):
    form = registry.EXPERIMENTS[name].forms[scale]
    if scale != PAPER:
        assert form.minutes is not None and not form.needs
        assert not any("{launcher}" in step.words for step in form.steps)
    if scale == TINY:
        assert form.minutes <= 10


@pytest.mark.parametrize("name", ["figure2", "figure6", "table1", "table2", "table6", "table8"])
def test_every_training_run_at_paper_scale_is_planned(name, tmp_path):
    form = registry.EXPERIMENTS[name].forms[PAPER]
    cost = estimate.of_form(form, place(tmp_path), Cluster("a100-80", 8))
    assert cost is not None and cost.fits and cost.gpu_hours == pytest.approx(8 * cost.hours)
    half = estimate.of_form(form, place(tmp_path), Cluster("a100-80", 4))
    assert cost.hours < half.hours < 2.5 * cost.hours


def test_a_run_that_cannot_be_planned_says_why(tmp_path):
    """512 rows a step are too few for 16 GPUs with 64 rows each: nobody adds up the others and calls it the cost."""
    form = registry.EXPERIMENTS["figure2"].forms[PAPER]
    told = estimate.of_step(form.steps[0], place(tmp_path), Cluster("a100-80", 16))
    assert isinstance(told, str) and "global_batch_size" in told
    assert estimate.of_form(form, place(tmp_path), Cluster("a100-80", 16)) is None


def test_fine_tuning_is_planned_by_the_model_it_starts_from(tmp_path):
    """The recipe names a folder that is not there yet: the 155M model's, and not the stand-in's 7B."""
    step = next(each for each in registry.EXPERIMENTS["table1"].forms[PAPER].steps if each.starts_from)
    assert estimate.of_step(step, place(tmp_path), Cluster()).gpu_hours < 10


# --- what a user types


@pytest.mark.parametrize("text", ["table6", "Table 6", "TABLE_6", "tab6", "tab. 6"])
def test_names_as_people_write_them(text):
    assert registry.find(text).name == "table6"
    assert registry.find("fig5").name == "figure5"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["tabel6"], "did you mean 'table6'?"),
        ([], "ask for the --list"),
        (["table1", "--scale", "small"], "one of: tiny, paper"),
        (["table6", "--gpu", "a100"], "gpu = 'a100'"),
        (["table6", "--gpus", "0", "--price", "-1", "--processes", "0"], "3 problems"),
        (["table6", "--launcher", "deepspeed 'x"], "No closing quotation"),
        (["table6", "--launcher", "no_such_launcher --hostfile hosts"], "there is no program no_such_launcher"),
        (["table6", "--output", __file__], "is a file"),
    ],
)
def test_mistakes_are_told_at_once_and_nothing_is_run(argv, told, capsys, monkeypatch):
    monkeypatch.setattr(running, "run", lambda *_: pytest.fail("something was run"))
    assert reproduce.main(argv) == 2
    assert told in capsys.readouterr().err


def test_a_plan_runs_nothing_and_says_every_command(start, capsys, monkeypatch):
    monkeypatch.setattr(running, "run", lambda *_: pytest.fail("something was run"))
    assert start(writing("one"), writing("two"), argv=["--plan"]) == 0
    shown = capsys.readouterr().out
    assert "1. one (about 1 min" in shown and "2. two" in shown and "in all: about 2 min" in shown


def test_paper_scale_is_planned_with_hours_and_price(tmp_path, capsys):
    launcher = "deepspeed --hostfile my_hosts"
    argv = ["figure5", "--scale", "paper", "--plan", "--gpus", "4", "--price", "2", "--launcher", launcher]
    assert reproduce.main([*argv, "--output", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"{launcher} launchers/train_arithmetic.py --recipe addition_20 --position_encoding rope" in shown
    assert "4 x a100-80" in shown and "at 2 a GPU hour" in shown


# --- what is run


def test_steps_run_in_order_and_ours_stands_beside_the_published(start, tmp_path, capsys):
    assert start(writing("one", 7.0), writing("two", 3.5)) == 0
    folder = tmp_path / "runs" / "toy"
    text = (folder / "table99_tiny.md").read_text()
    assert "| RoPE | published | 2.50 |" in text and "| RoPE | ours | 3.50 |" in text
    assert "| TAPE | ours | 0.50 |" in text and "- It shows nothing." in text
    assert "toy said this" in (folder / "steps" / "one.log").read_text()
    assert "toy said this" not in capsys.readouterr().out
    stored = results.load(folder / "table99_tiny.json")
    assert render.measured(stored).values == {"RoPE": {ERROR: 3.5}, "TAPE": {ERROR: 0.5}}
    assert [step["seconds"] > 0 for step in stored.figures["steps"]] == [True, True]


def test_a_step_that_is_done_is_not_repeated(start, tmp_path, capsys):
    assert start(writing("one")) == 0
    before = (tmp_path / "runs" / "toy" / "one.json").read_bytes()
    assert start(writing("one"), writing("two")) == 0
    assert (tmp_path / "runs" / "toy" / "one.json").read_bytes() == before
    assert "1/2 one: done, not repeated" in capsys.readouterr().out


@pytest.mark.parametrize("harm", ["another command", "result gone", "result damaged", "record damaged"])
def test_a_step_whose_result_does_not_fit_is_repeated(harm, tmp_path):
    own = place(tmp_path)
    step, file = writing("one"), own.output / "one.json"
    assert running.carry_out([step], own) is None and running.is_done(step, own)
    if harm == "another command":
        step = writing("one", 9.0)
    elif harm == "result gone":
        file.unlink()
    elif harm == "result damaged":
        file.write_text(file.read_text()[:100])
    else:
        running.record_of(step, own).write_text("{")
    assert not running.is_done(step, own)
    assert running.carry_out([step], own) is None and running.is_done(step, own)


def reading(name, other):
    """A step that names another's result."""
    words = ("python", "-c", WRITES, f"{{output}}/{name}.json", stored(3.5), f"ITS={{output}}/{other}.json")
    return Step(name, words, f"{{output}}/{name}.json")


def test_a_step_whose_input_was_made_anew_is_repeated(tmp_path, monkeypatch, capsys):
    """And no other."""
    own, steps = place(tmp_path), [writing("one"), writing("two"), reading("after", "one"), reading("last", "after")]
    clock = iter(f"2027-01-01T00:00:{second:02}+00:00" for second in range(60))
    monkeypatch.setattr(running.results, "now", lambda: next(clock))
    assert running.carry_out(steps, own) is None
    (own.output / "one.json").unlink()
    capsys.readouterr()
    assert running.carry_out(steps, own) is None
    shown = capsys.readouterr().out
    assert [name for name in ("one", "two", "after", "last") if f" {name}: done" in shown] == ["two"]
    assert running.carry_out(steps, own) is None
    assert capsys.readouterr().out.count("done, not repeated") == 4


@pytest.mark.parametrize(
    ("word", "reads"),
    [
        ("{shared}/models", True),
        ("TAPE={shared}/models/tape", True),
        ("bin:{shared}/models/x.bin", True),
        ("{shared}/models_of_mine", False),
        ("{shared}", False),
        ("models", False),
    ],
)
def test_what_a_command_reads(word, reads):
    made = Step("made", ("python", "x.py", "--output", "{shared}/models", "--", "3"), "{shared}/models/results/x.json")
    assert made.written == "{shared}/models"
    assert Step("next", ("python", "y.py", word), "{output}/y.json").reads(made) is reads


@pytest.mark.parametrize(("name", "scale"), FORMS)
def test_every_step_that_is_no_models_reads_what_is_made_before_it(name, scale):
    """An evaluation that is told of nothing made before it would never be repeated."""
    steps = registry.EXPERIMENTS[name].forms[scale].steps
    for number, step in enumerate(steps):
        asks = "evaluation" in step.words or "tools.stability" in step.words or "tools.visualise" in step.words
        assert not asks or any(step.reads(other) for other in steps[:number])


def test_a_step_that_fails_is_named_and_ends_the_run(start, tmp_path, capsys):
    assert start(writing("one"), FAILING, writing("three")) == 1
    log = tmp_path / "runs" / "toy" / "steps" / "fails.log"
    assert f"FAILED: fails, see {log}" in capsys.readouterr().err and "broken here" in log.read_text()
    assert (tmp_path / "runs" / "toy" / "one.json").exists()
    assert not (tmp_path / "runs" / "toy" / "three.json").exists()
    assert not (tmp_path / "runs" / "toy" / "table99_tiny.md").exists()


def test_a_step_without_a_result_has_failed_whatever_its_exit_code(tmp_path):
    silent = Step("silent", ("python", "-c", "pass"), "{output}/no.json")
    assert running.carry_out([silent], place(tmp_path)) is silent


def test_shared_runs_lie_beside_the_experiments(tmp_path):
    step, own = writing("model", folder="{shared}"), place(tmp_path)
    assert running.carry_out([step], own) is None
    other = Place(tmp_path / "runs" / "another")
    assert running.is_done(step, other) and own.shared == tmp_path / "runs" / "shared"


def test_programs_are_started_by_this_python_on_a_free_port():
    assert running.real(["python", "tools/x.py", "a/b"]) == [sys.executable, str(ROOT / "tools" / "x.py"), "a/b"]
    launched = running.real(["deepspeed", "--num_accelerators", "2", "launchers/x.py"])
    assert launched[1:4] == ["-m", "deepspeed.launcher.runner", "--master_port"] and launched[4].isdigit()
    on_hosts = ["deepspeed", "--hostfile", "hosts", "launchers/x.py"]
    expected = [sys.executable, "-m", "deepspeed.launcher.runner", *on_hosts[1:3], str(ROOT / "launchers" / "x.py")]
    assert running.real(on_hosts) == expected, "hosts agree on a port by themselves"


def test_without_a_checkout_commands_run_where_one_stands(monkeypatch, tmp_path):
    """And write there, with the scripts of the installed package; its page of results is nobody's."""
    for module in (reproduce, experiment, running):
        monkeypatch.setattr(module, "WORK", tmp_path)
    own = Place(Path("runs") / "toy")
    assert running.carry_out([writing("here")], own) is None
    assert (tmp_path / "runs" / "toy" / "here.json").is_file()
    assert reproduce.main(["--page"]) == 2


def test_placeholders_leave_json_alone(tmp_path):
    words = ("{launcher}", "x.py", '--o={"a": {"b": 1}}', "{output}/y", "{processes}")
    own = place(tmp_path, processes=4, launcher='deepspeed --hostfile "my hosts"')
    found = Step("one", words, "{output}/*.csv").command(own)
    assert found == ["deepspeed", "--hostfile", "my hosts", "x.py", '--o={"a": {"b": 1}}', f"{own.output}/y", "4"]


# --- how ours is written


def test_other_quantities_get_a_table_of_their_own(tmp_path):
    ours = Measured({"TAPE": {Quantity("toy", "loss", 64): 3.25, Quantity("toy", "loss", 32): 4.5}})
    text = render.markdown(toy(), "small", ours, (), tmp_path)
    assert "| published | toy error |" in text and "| ours | toy loss 32 | toy loss 64 |" in text
    assert "| TAPE | 4.50 | 3.25 |" in text


def test_pictures_are_linked_from_where_the_page_lies(tmp_path):
    ours = Measured(files=(tmp_path / "a" / "my_map.png", tmp_path / "answers.html"))
    text = render.markdown(registry.EXPERIMENTS["figure7"], "small", ours, (), tmp_path / "pages")
    assert "![my map](../a/my_map.png)" in text and "\n[answers](../answers.html)" in text


def test_a_quantity_of_ours_that_is_not_published_stands_beside_those_that_are():
    more = Quantity("toy", "error beyond")
    text = render.markdown(toy(), "small", Measured({"TAPE": {ERROR: 1.0, more: 9.0}}), (), experiment.ROOT)
    assert "| TAPE | published | 1.25 | - |" in text and "| TAPE | ours | 1.00 | 9.00 |" in text


@pytest.mark.parametrize(
    ("value", "decimals", "expected"),
    [
        (None, 2, "-"),
        (26.118, 2, "26.12"),
        (3910.2, 0, "3,910"),
        (3.4e-5, 2, "3.4e-05"),
        (0.0, 2, "0.00"),
        (2e7, 1, "2.0e+07"),
    ],
)
def test_numbers_have_the_published_decimals(value, decimals, expected):
    assert render.number(value, decimals) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["tools/compare_methods.py", "--a", "b c"], "python tools/compare_methods.py --a 'b c'"),
        (["stability.py", "m"], "python -m tools.stability m"),
        (["launchers/pretrain_c4.py", "--local_rank=0", "--x", "1"], "deepspeed launchers/pretrain_c4.py --x 1"),
        (["python", "-m", "evaluation", "passkey"], "python -m evaluation passkey"),
    ],
)
def test_stored_commands_are_told_as_they_are_typed(command, expected):
    assert experiment.typed(command) == expected


def test_a_record_of_a_step_is_plain_json(tmp_path):
    own = place(tmp_path)
    running.carry_out([writing("one")], own)
    record = json.loads(running.record_of(writing("one"), own).read_text())
    assert record["command"][0] == "python" and record["seconds"] > 0
