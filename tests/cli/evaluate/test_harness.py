"""The model and the command on a tiny model: the numbers of lm-eval's own class, long prompts, mistakes and kills."""

import argparse
import json
import shutil
from types import SimpleNamespace

import datasets
import pytest
import torch
from lm_eval import evaluator, simple_evaluate, tasks
from lm_eval._cli.run import Run
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from tape_ds.cli.evaluate import harness
from tape_ds.errors import UserError
from tape_ds.scoring import harness_tasks, language_model, models
from tape_ds.scoring.language_model import HarnessModel
from tests.evaluation import local_tasks
from tests.evaluation.test_models import found

TEXTS = ["w5 w6 w7 w8 w9 w40", "w50 w51", "w5 w6 w7", "w30 w31 w32 w33 w34 w35 w36 w37 w38 w39", "w5 w6 w7 w8"]
ANSWERS = [" w41", " w42", " w43 w44 w45"]
PAIRS = [(text, answer) for text in TEXTS for answer in ANSWERS] + [("", " w9 w8")]
GREEDY = {"until": ["w7"], "max_gen_toks": 9, "do_sample": False}


def harness_model(folder, *words, **reading):
    return HarnessModel(found(folder, *words), **reading)


def requests(kind, *arguments):
    return [Instance(kind, {}, each, number, ("task", number, 1)) for number, each in enumerate(arguments)]


def ask(lm):
    """What a model gives to one set of requests of each kind."""
    scores = lm.loglikelihood(requests("loglikelihood", *PAIRS), disable_tqdm=True)
    rolling = lm.loglikelihood_rolling(requests("loglikelihood_rolling", (" ".join(TEXTS * 3),)), disable_tqdm=True)
    texts = lm.generate_until(requests("generate_until", *((text, GREEDY) for text in TEXTS)), disable_tqdm=True)
    return scores, rolling, texts


def close(mine, others):
    assert [score for score, _ in mine[0]] == pytest.approx([score for score, _ in others[0]], abs=1e-5)
    assert [greedy for _, greedy in mine[0]] == [greedy for _, greedy in others[0]]
    assert mine[1] == pytest.approx(others[1], abs=1e-4)
    assert mine[2] == others[2]


@pytest.fixture(scope="module")
def plain(base):
    return ask(harness_model(base))


def test_numbers_are_those_of_lm_evals_own_model(base, plain):
    theirs = HFLM(pretrained=str(base), device="cpu", dtype="float32")
    close(plain, ask(theirs))
    assert len({round(score, 4) for score, _ in plain[0]}) > 10 and any(len(text) > 5 for text in plain[2])


@pytest.mark.parametrize("size", [4, "auto"])
def test_batches_change_nothing(base, plain, size):
    close(plain, ask(harness_model(base, batch_size=size)))


@pytest.mark.parametrize("size", [1, 4])
def test_a_trained_run_has_the_numbers_of_lm_evals_own_class(run, size, monkeypatch):
    """Its position updates are trained, and its prompts are read in pieces."""
    monkeypatch.setattr(language_model, "CHUNK", 2)
    folder = str(run())
    model = found(folder)
    theirs = HFLM(pretrained=model.load(), tokenizer=model.tokenizer(), max_length=model.native_length)
    close(ask(harness_model(folder, batch_size=size)), ask(theirs))


def test_an_encoding_that_follows_the_length_has_the_evaluations(run):
    """However short a request is."""
    folder = str(run("rope", rope_parameters={"rope_type": "default", "rope_theta": 1e4}, trained=("norm",)))
    scaled = found(folder, "--rope_scaling", "yarn")
    ours = ask(harness_model(folder, "--rope_scaling", "yarn", max_length=512))
    model = scaled.load()
    with models.used_at(model, 512):
        close(ours, ask(HFLM(pretrained=model, tokenizer=scaled.tokenizer(), max_length=512)))
    assert ours[0] != ask(harness_model(folder, max_length=512))[0]


def test_a_text_alone_needs_the_logits_of_its_answer_only(base, plain, monkeypatch):
    """Those of a whole text would be its length times the vocabulary."""
    lm, rows = harness_model(base), []
    forward = lm.model.forward
    lm.model.forward = lambda *given, **named: rows.append(named.get("logits_to_keep")) or forward(*given, **named)
    assert lm.loglikelihood(requests("loglikelihood", (TEXTS[3], ANSWERS[2])), True)[0][0] == pytest.approx(
        plain[0][PAIRS.index((TEXTS[3], ANSWERS[2]))][0], abs=1e-5
    )
    assert rows == [3]


def test_a_checkpoints_own_generation_settings_are_put_aside(base, plain, tmp_path):
    folder = shutil.copytree(base, tmp_path / "sampling")
    settings = {"do_sample": True, "temperature": 5.0, "repetition_penalty": 9.0, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    close(ask(harness_model(folder)), plain)


def test_scaling_by_the_longest_text_of_a_batch_takes_one_text(base, tmp_path):
    folder = shutil.copytree(base, tmp_path / "dynamic")
    content = json.loads((folder / "config.json").read_text())
    content["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    (folder / "config.json").write_text(json.dumps(content))
    harness_model(folder)
    with pytest.raises(UserError, match=r"batch_size = 4: with dynamic scaling"):
        harness_model(folder, batch_size=4)


@pytest.mark.parametrize(
    ("kind", "asked", "truncate", "wrong"),
    [
        ("loglikelihood", (TEXTS[3], ANSWERS[2]), None, r"request has 12 tokens.*max_length is 8.*\n.*--max_length 12"),
        ("generate_until", ("w5", GREEDY), "left", "the answer alone has 9 tokens"),
        ("generate_until", ("w5", {**GREEDY, "temperature": "x"}), "left", "could not convert"),
        ("loglikelihood", ("w5", ""), None, "it asks for the likelihood of an empty answer"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_the_first_answer(base, monkeypatch, kind, asked, truncate, wrong):
    """Whichever task it belongs to."""
    lm = harness_model(base, truncate=truncate, max_length=8)
    lm.tasks = {"fine": SimpleNamespace(instances=[]), "wrong": SimpleNamespace(instances=requests(kind, asked))}
    monkeypatch.setattr(lm, "_model_call", lambda *given: pytest.fail("nothing is asked"))
    with pytest.raises(UserError, match=wrong):
        lm.loglikelihood(requests("loglikelihood", ("w5", " w6")), True)
    unaware = harness_model(base, truncate=truncate, max_length=8)
    with pytest.raises(UserError, match=wrong):
        getattr(unaware, kind)(requests(kind, ("w5", " w6" if kind == "loglikelihood" else asked[1]), asked), True)


def test_what_is_cut_is_counted(base):
    long, short = (TEXTS[3], ANSWERS[2]), (TEXTS[1], ANSWERS[0])
    lm = harness_model(base, truncate="left", max_length=8)
    cut, whole = lm.loglikelihood(requests("loglikelihood", long, short), True)
    assert lm.cut == {"requests": 1, "tokens": 4}
    free = harness_model(base)
    assert free.loglikelihood(requests("loglikelihood", ("w34 w35 w36 w37 w38 w39", ANSWERS[2]), short), True) == [
        pytest.approx(cut, abs=1e-5),
        pytest.approx(whole, abs=1e-5),
    ]


def test_nothing_goes_on_behind_an_end_of_text(base, tmp_path):
    """A tokenizer that puts EOS behind every text would have answers written, and scored, behind it. An EOS that the
    text has itself stays."""
    plain = harness_model(base)
    folder = shutil.copytree(base, tmp_path / "ending")
    tokenizer = AutoTokenizer.from_pretrained(base)
    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"$A {end[0]}", special_tokens=[end])
    tokenizer.save_pretrained(folder)
    ending = harness_model(folder)
    assert ending.tokenizer("w5 w6")["input_ids"][-1] == end[1]
    for text in ("w5 w6", f"w5 w6 {end[0]}", f"{end[0]} w5", ""):
        assert ending.tok_encode(text) == plain.tok_encode(text)
    assert ending._encode_pair("w5 w6", " w7") == plain._encode_pair("w5 w6", " w7")
    pairs = [each.tok_batch_encode(TEXTS[:2]) for each in (ending, plain)]
    assert all(torch.equal(*each) for each in zip(*pairs, strict=True))


@pytest.mark.parametrize(
    ("kind", "words", "given"),
    [("AutoTokenizer", [], False), ("AutoTokenizer", ["--trust_remote_code"], True), ("AutoConfig", [], False)],
)
def test_a_tokenizer_with_code_reaches_no_task_unasked(base, tmp_path, kind, words, given):
    """RULER loads the tokenizer that it is told of with all the code it carries, a configuration's among it."""
    folder = shutil.copytree(base, tmp_path / "coded")
    content = json.loads((folder / "config.json").read_text())
    content["auto_map"] = {kind: [None, "tokenizer.Own"] if kind == "AutoTokenizer" else "tokenizer.Own"}
    (folder / "config.json").write_text(json.dumps(content))
    code = "from transformers import PreTrainedTokenizerFast\n\n\nclass Own(PreTrainedTokenizerFast):\n    pass\n"
    (folder / "tokenizer.py").write_text(code)
    for where, expected in ((base, True), (folder, given)):
        options = harness.parse([str(where), "--tasks", "a", *words])
        _, config = harness.prepare(options)
        assert ("tokenizer" in config.metadata) == expected


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    local_tasks.write_data(root, 6)
    write = "\n".join(json.dumps({"prompt": text, "wanted": "w9"}) for text in TEXTS)
    (root / "write.jsonl").write_text(write + "\n")
    (root / "own").mkdir()
    (root / "own" / "write.yaml").write_text(WRITE.format(root / "write.jsonl"))
    return root, [root / "own", *local_tasks.write_tasks(root / "tasks"), local_tasks.OURS / "table9"]


WRITE = """
task: own_write
dataset_path: json
dataset_kwargs: {{data_files: {{test: {}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{wanted}}}}"
generation_kwargs: {{until: ["w7"], max_gen_toks: 5, do_sample: false}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture
def command(base, hub, tmp_path, monkeypatch):
    """Starts the command with local data and a short index of tasks."""
    root, included = hub
    monkeypatch.setattr(datasets, "load_dataset", local_tasks.redirected(datasets.load_dataset, root))
    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)

    def manager(include_path, metadata):
        return TaskManager(include_path=[str(each) for each in included], include_defaults=False, metadata=metadata)

    monkeypatch.setattr(tasks, "TaskManager", manager)

    def start(*words, tasks=("mmlu_stem", "own_write"), folder="out"):
        fixed = ["--max_length", "4k", "--output", str(tmp_path / folder), "--limit", "4"]
        return harness.main([str(base), "--tasks", *tasks, *fixed, *words])

    return start


def test_the_command_and_plain_lm_eval_give_equal_figures(command, base, hub, tmp_path):
    """``lm_eval --model hf`` on the same folder: likelihoods of choices, and written answers."""
    tasks = ["mmlu_stem", "own_write"]
    assert command(tasks=tasks) == 0
    ours = json.loads((tmp_path / "out" / "harness.json").read_text())["figures"]
    told = {"pretrained": str(base), "dtype": "float32", "max_length": 4096}
    manager = TaskManager(include_path=[str(each) for each in hub[1]], include_defaults=False)
    found = simple_evaluate("hf", told, tasks=tasks, task_manager=manager, limit=4, device="cpu")
    theirs = harness_tasks.figures(found, {"requests": 0, "tokens": 0})
    for kind in ("tasks", "groups"):
        assert set(ours[kind]) == set(theirs[kind]) != set()
        for name, entry in theirs[kind].items():
            mine = {each: score["value"] for each, score in ours[kind][name]["metrics"].items()}
            assert mine == pytest.approx({each: score["value"] for each, score in entry["metrics"].items()}, abs=1e-5)


def test_a_killed_evaluation_resumes(command, tmp_path, monkeypatch):
    """What was answered is not asked again, and the result is that of an unbroken start, but for its cost."""
    assert command(folder="unbroken") == 0
    real, asked = HarnessModel._model_generate, []

    def killed_at_the_third(self, context, *given, **settings):
        asked.append(context)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(self, context, *given, **settings)

    monkeypatch.setattr(HarnessModel, "_model_generate", killed_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        command()
    assert not (tmp_path / "out" / "harness.json").exists()
    monkeypatch.setattr(HarnessModel, "_model_call", lambda self, ids: pytest.fail("that is done"))
    assert command() == 0 and len(asked) == 5 and asked[3].equal(asked[2])
    found = [json.loads((tmp_path / name / "harness.json").read_text())["figures"] for name in ("out", "unbroken")]
    assert all(each.pop("cost")["seconds"] > 0 for each in found) and found[0] == found[1]
    assert set(found[0]["tasks"]) == {"mmlu_anatomy", "own_write"} and found[0]["groups"]["mmlu_stem"]["samples"] == 4
    assert not [each for each in (tmp_path / "out").iterdir() if each.name.startswith(".")]


def test_what_was_cut_is_stored_where_all_answers_are_known_already(command, tmp_path, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    words = ["--max_length", "7", "--truncate", "left"]
    with monkeypatch.context() as kill, pytest.raises(KeyboardInterrupt):
        kill.setattr("lm_eval.loggers.EvaluationTracker.save_results_aggregated", killed)
        command(*words, tasks=["own_write"])
    monkeypatch.setattr(HarnessModel, "_model_generate", lambda *given, **named: pytest.fail("that is done"))
    assert command(*words, tasks=["own_write"]) == 0
    stored = json.loads((tmp_path / "out" / "harness.json").read_text())["figures"]["cut"]
    assert stored == {"requests": 3, "tokens": 4 + 1 + 8}  # 6, 2, 3 and 10 words with 5 tokens to write


def test_a_finished_evaluation_is_not_repeated(command, tmp_path, monkeypatch, capsys):
    assert command(tasks=["own_write"]) == 0
    (theirs,) = (tmp_path / "out" / "lm_eval").rglob("results_*.json")
    assert "own_write" in json.loads(theirs.read_text())["results"]
    before = (tmp_path / "out" / "harness.json").read_bytes()
    monkeypatch.setattr(models.FoundModel, "load", lambda self: pytest.fail("nothing is to be asked"))
    assert command(tasks=["own_write"]) == 0 and "complete already" in capsys.readouterr().out
    assert (tmp_path / "out" / "harness.json").read_bytes() == before
    assert command(tasks=["mmlu_stem"]) == 2
    assert "config.tasks" in capsys.readouterr().err


def test_another_chat_template_is_another_evaluation(command, monkeypatch, capsys):
    """It was complete already, with the numbers of the former template."""
    template = {"now": "{% for m in messages %}{{ m.content + ' w5' }}{% endfor %}"}
    real = models.FoundModel.tokenizer

    def tokenizer(self):
        found = real(self)
        found.chat_template = template["now"]
        return found

    monkeypatch.setattr(models.FoundModel, "tokenizer", tokenizer)
    assert command("--apply_chat_template", tasks=["own_write"]) == 0 and command(tasks=["own_write"]) == 2
    assert command("--apply_chat_template", tasks=["own_write"]) == 0 and "complete already" in capsys.readouterr().out
    template["now"] = template["now"].replace("w5", "w6")
    assert command("--apply_chat_template", tasks=["own_write"]) == 2
    assert "config.chat_template" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "tasks", "said"),
    [
        ([], ["own_writ", "mmlu_*"], ["--tasks = 'own_writ mmlu_*'", "Tasks not found: own_writ"]),
        (["--num_fewshot", "-2", "--batch_size", "x"], ["own_write"], ["--batch_size = 'x'", "2 problems"]),
        (["--limit", "0"], ["own_write"], ["--limit = 0.0: leaves no question"]),
        (["--num_fewshot", "50"], ["mmlu_stem"], ["--num_fewshot = 50: mmlu_anatomy has 6 examples"]),
        (["--samples", '{"own_write": [0]}'], ["own_write"], ["--limit must be None"]),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(command, tmp_path, monkeypatch, capsys, words, tasks, said):
    monkeypatch.setattr(models.FoundModel, "load", lambda self: pytest.fail("a mistake is told first"))
    assert command(*words, tasks=tasks) == 2
    told = capsys.readouterr().err
    assert all(each in told for each in said), told
    assert not (tmp_path / "out" / "harness.json").exists()


def test_every_option_of_lm_eval_is_known_but_those_that_the_command_sets(capsys):
    theirs = Run(argparse.ArgumentParser().add_subparsers())._parser._option_string_actions
    with pytest.raises(SystemExit):
        harness.parse(["--help"])
    shown = capsys.readouterr().out
    assert [name for name in theirs if name.startswith("--") and name not in shown] == [
        name for name in theirs if name in harness.SET_HERE
    ]
    options = harness.parse(["m", "--tasks", "a,b", "--seed", "3"])
    assert (options.model, options.tasks) == ("m", ["a", "b"])
    assert torch.is_grad_enabled()


def test_a_file_may_hold_names_as_one_string_and_no_seed(base, tmp_path):
    """A result had the letters of such a string for its tasks, and without a seed none could be written."""
    (tmp_path / "mine.yaml").write_text("tasks: arc_easy,hellaswag\nseed: null\n")
    options = harness.parse([str(base), "--config", str(tmp_path / "mine.yaml")])
    _, config = harness.prepare(options)
    assert config.tasks == ["arc_easy", "hellaswag"]
    assert config.seed == [None, None, None, None]
    (tmp_path / "mine.yaml").write_text("tasks: 3")
    with pytest.raises(UserError, match=r"options = .*not iterable"):
        harness.prepare(options)
