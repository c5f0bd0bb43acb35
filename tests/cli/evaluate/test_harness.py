"""lm-eval on a tiny model: the numbers of its own class, long prompts, refusals, and resuming."""

import json
import math
import shutil
from types import SimpleNamespace

import datasets
import pytest
import torch
from lm_eval import evaluator, simple_evaluate, tasks
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

TEXTS = [
    "w5 w6 w7 w8 w9 w40",
    "w50 w51",
    "w5 w6 w7",
    "w30 w31 w32 w33 w34 w35 w36 w37 w38 w39",
    "w5 w6 w7 w8",
]
ANSWERS = [" w41", " w42", " w43 w44 w45"]
PAIRS = [(text, answer) for text in TEXTS for answer in ANSWERS] + [("", " w9 w8")]
GREEDY = {"until": ["w7"], "max_gen_toks": 9, "do_sample": False}


def harness_model(folder, *words, **reading):
    return HarnessModel(found(folder, *words), **reading)


def requests(kind, *arguments):
    return [
        Instance(kind, {}, each, number, ("task", number, 1))
        for number, each in enumerate(arguments)
    ]


def ask(lm):
    """What a model gives to one set of requests of each kind."""
    scores = lm.loglikelihood(requests("loglikelihood", *PAIRS), disable_tqdm=True)
    rolling = lm.loglikelihood_rolling(
        requests("loglikelihood_rolling", (" ".join(TEXTS * 3),)), disable_tqdm=True
    )
    texts = lm.generate_until(
        requests("generate_until", *((text, GREEDY) for text in TEXTS)), disable_tqdm=True
    )
    return scores, rolling, texts


def close(mine, others):
    assert [score for score, _ in mine[0]] == pytest.approx(
        [score for score, _ in others[0]], abs=1e-5
    )
    assert [greedy for _, greedy in mine[0]] == [greedy for _, greedy in others[0]]
    assert mine[1] == pytest.approx(others[1], abs=1e-4)
    assert mine[2] == others[2]


@pytest.fixture(scope="module")
def plain(base):
    return ask(harness_model(base))


def test_numbers_are_those_of_lm_evals_own_model(base, plain):
    theirs = HFLM(pretrained=str(base), device="cpu", dtype="float32")
    close(plain, ask(theirs))
    assert len({round(score, 4) for score, _ in plain[0]}) > 10 and any(
        len(text) > 5 for text in plain[2]
    )


@pytest.mark.parametrize("size", [4, "auto"])
def test_batches_change_nothing(base, plain, size):
    close(plain, ask(harness_model(base, batch_size=size)))


@pytest.mark.parametrize("size", [1, 4])
def test_a_trained_run_has_the_numbers_of_lm_evals_own_class(run, size, monkeypatch):
    monkeypatch.setattr(language_model, "CHUNK", 2)
    folder = str(run())
    model = found(folder)
    theirs = HFLM(
        pretrained=model.load(), tokenizer=model.tokenizer(), max_length=model.native_length
    )
    close(ask(harness_model(folder, batch_size=size)), ask(theirs))


def test_angles_are_those_of_the_evaluation_s_length(run):
    folder = str(
        run("rope", rope_parameters={"rope_type": "default", "rope_theta": 1e4}, trained=("norm",))
    )
    scaled = found(folder, "--rope_scaling", "yarn")
    ours = ask(harness_model(folder, "--rope_scaling", "yarn", max_length=512))
    model = scaled.load()
    with models.used_at(model, 512):
        close(ours, ask(HFLM(pretrained=model, tokenizer=scaled.tokenizer(), max_length=512)))
    assert ours[0] != ask(harness_model(folder, max_length=512))[0]


def test_generation_settings_of_the_folder_are_ignored(base, plain, tmp_path):
    folder = shutil.copytree(base, tmp_path / "sampling")
    settings = {"do_sample": True, "temperature": 5.0, "repetition_penalty": 9.0, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    close(ask(harness_model(folder)), plain)


def test_dynamic_scaling_is_refused_in_batches(base, tmp_path):
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
        ("loglikelihood", (TEXTS[3], ANSWERS[2]), None, r"request has 12 tokens.*max_length is 8"),
        ("generate_until", ("w5", GREEDY), "left", "the answer alone has 9 tokens"),
        ("generate_until", ("w5", {**GREEDY, "temperature": "x"}), "left", "could not convert"),
        ("loglikelihood", ("w5", ""), None, "an empty answer"),
    ],
)
def test_unanswerable_requests_are_refused_before_the_first_answer(
    base, monkeypatch, kind, asked, truncate, wrong
):
    lm = harness_model(base, truncate=truncate, max_length=8)
    lm.tasks = {
        "fine": SimpleNamespace(instances=[]),
        "wrong": SimpleNamespace(instances=requests(kind, asked)),
    }
    monkeypatch.setattr(lm, "_model_call", lambda *given: pytest.fail("nothing is asked"))
    with pytest.raises(UserError, match=wrong):
        lm.loglikelihood(requests("loglikelihood", ("w5", " w6")), True)


def test_what_is_cut_is_counted(base):
    long, short = (TEXTS[3], ANSWERS[2]), (TEXTS[1], ANSWERS[0])
    lm = harness_model(base, truncate="left", max_length=8)
    cut, whole = lm.loglikelihood(requests("loglikelihood", long, short), True)
    assert lm.cut == {"requests": 1, "tokens": 4}
    free = harness_model(base)
    assert free.loglikelihood(
        requests("loglikelihood", ("w34 w35 w36 w37 w38 w39", ANSWERS[2]), short), True
    ) == [
        pytest.approx(cut, abs=1e-5),
        pytest.approx(whole, abs=1e-5),
    ]


def test_an_eos_that_the_tokenizer_appends_is_removed_and_one_of_the_text_stays(base, tmp_path):
    plain = harness_model(base)
    folder = shutil.copytree(base, tmp_path / "ending")
    tokenizer = AutoTokenizer.from_pretrained(base)
    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {end[0]}", special_tokens=[end]
    )
    tokenizer.save_pretrained(folder)
    ending = harness_model(folder)
    assert ending.tokenizer("w5 w6")["input_ids"][-1] == end[1]
    for text in ("w5 w6", f"w5 w6 {end[0]}", f"{end[0]} w5", ""):
        assert ending.tok_encode(text) == plain.tok_encode(text)
    assert ending._encode_pair("w5 w6", " w7") == plain._encode_pair("w5 w6", " w7")
    pairs = [each.tok_batch_encode(TEXTS[:2]) for each in (ending, plain)]
    assert all(torch.equal(*each) for each in zip(*pairs, strict=True))


def beginning_with(folder, base, *tokens):
    """A copy of the base whose tokenizer begins every text with these tokens."""
    folder = shutil.copytree(base, folder)
    tokenizer = AutoTokenizer.from_pretrained(base)
    pairs = [(token, tokenizer.convert_tokens_to_ids(token)) for token in tokens]
    template = TemplateProcessing(single=f"{' '.join(tokens)} $A", special_tokens=pairs)
    tokenizer.backend_tokenizer.post_processor = template
    tokenizer.save_pretrained(folder)
    return folder


def rolling(lm, *texts):
    return lm.loglikelihood_rolling(
        requests("loglikelihood_rolling", *((text,) for text in texts)), disable_tqdm=True
    )


def direct(model, ids, scored):
    """The log-likelihood of the last ``scored`` tokens, by the model alone."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return sum(float(logits[place - 1, ids[place]]) for place in range(len(ids) - scored, len(ids)))


@pytest.mark.parametrize("size", [1, 4, "auto"])
def test_a_text_begins_with_one_bos_that_is_not_scored(base, tmp_path, size):
    """lm-eval's class reads BOS BOS where the tokenizer adds one, and scores the second as a token of the text: the
    model here gives every token the same probability, and a text of two had half as much again."""
    folder = beginning_with(tmp_path / "bos", base, "w1")
    lm = harness_model(folder, batch_size=size)
    torch.nn.init.zeros_(lm.model.get_output_embeddings().weight)
    bits = -math.log2(lm.model.config.vocab_size)
    theirs = HFLM(pretrained=lm.model, tokenizer=lm.tokenizer)
    assert [each / math.log(2) for each in rolling(lm, "w5 w6", "w7")] == pytest.approx(
        [2 * bits, bits], rel=1e-6
    )
    assert rolling(theirs, "w5 w6")[0] / math.log(2) == pytest.approx(3 * bits, rel=1e-6)


def test_a_text_that_is_scored_whole_is_tokenised_once(base, plain, monkeypatch):
    """It was tokenised when it was measured, and again when it was scored; and where nothing else was asked, it was
    scored first."""
    text = " ".join(TEXTS * 3)
    lm = harness_model(base)
    encoded = []
    real = lm.tokenizer.encode
    monkeypatch.setattr(
        lm.tokenizer,
        "encode",
        lambda string, **kwargs: encoded.append(string) or real(string, **kwargs),
    )
    assert rolling(lm, text) == plain[1] and encoded == [text]
    assert rolling(lm, text) == plain[1] and encoded == [text, text]


def test_rolling_scores_are_those_of_the_model_in_every_window(base, plain, tmp_path):
    """The first window begins with BOS; the next ones with a token of the text, as lm-eval's. A text that has BOS
    already has it once. Without a tokenizer that adds BOS, all is lm-eval's."""
    lm = harness_model(beginning_with(tmp_path / "bos", base, "w1"), max_length=4)
    ids = [5, 6, 7, 8, 9, 4]
    text = " ".join(f"w{index}" for index in ids)
    expected = direct(lm.model, [1, 5, 6, 7, 8], 4) + direct(lm.model, [6, 7, 8, 9, 4], 2)
    assert rolling(lm, text, f"w1 {text}") == pytest.approx([expected, expected], abs=1e-5)
    several = harness_model(beginning_with(tmp_path / "two", base, "w3", "w1"), max_length=4)
    expected = direct(several.model, [3, 1, 5, 6, 7], 3) + direct(several.model, [7, 8, 9, 4], 3)
    assert rolling(several, text) == pytest.approx([expected], abs=1e-5)
    scored = [
        each
        for each, _ in lm.loglikelihood(
            requests("loglikelihood", ("", " w9 w8")), disable_tqdm=True
        )
    ]
    assert scored == pytest.approx([direct(lm.model, [1, 9, 8], 2)], abs=1e-5)
    assert rolling(harness_model(base), " ".join(TEXTS * 3)) == plain[1]


@pytest.mark.parametrize(("words", "given"), [([], False), (["--trust_remote_code"], True)])
def test_a_tokenizer_with_code_reaches_no_task_unasked(base, tmp_path, words, given):
    """RULER would load it with the code."""
    folder = shutil.copytree(base, tmp_path / "coded")
    content = json.loads((folder / "config.json").read_text())
    content["auto_map"] = {"AutoTokenizer": [None, "tokenizer.Own"]}
    (folder / "config.json").write_text(json.dumps(content))
    code = "from transformers import PreTrainedTokenizerFast\n\n\nclass Own(PreTrainedTokenizerFast):\n    pass\n"
    (folder / "tokenizer.py").write_text(code)
    _, config = harness.prepare(harness.parse([str(folder), "--tasks", "a", *words]))
    assert ("tokenizer" in config.metadata) == given


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    local_tasks.write_data(root, 6)
    write = "\n".join(json.dumps({"prompt": text, "wanted": "w9"}) for text in TEXTS)
    (root / "write.jsonl").write_text(write + "\n")
    (root / "own").mkdir()
    (root / "own" / "write.yaml").write_text(WRITE.format(root / "write.jsonl"))
    (root / "own" / "text.yaml").write_text(TEXT.format(root / "write.jsonl"))
    return root, [
        root / "own",
        *local_tasks.write_tasks(root / "tasks"),
        local_tasks.OURS / "table9",
    ]


def test_scores_of_texts_say_that_they_differ_from_lm_evals(
    command, base, hub, tmp_path, monkeypatch, capsys
):
    """And the table has every metric of a task: bits per byte were in the file alone."""
    real = models.FoundModel.tokenizer
    assert command(tasks=["own_text"], folder="plain") == 0
    assert "unlike" not in capsys.readouterr().out
    assert (
        "unlike_lm_eval"
        not in json.loads((tmp_path / "plain" / "harness.json").read_text())["figures"]
    )
    shutil.copytree(tmp_path / "plain", tmp_path / "out")

    def tokenizer(self):
        found = real(self)
        found.backend_tokenizer.post_processor = TemplateProcessing(
            single="w1 $A", special_tokens=[("w1", 1)]
        )
        return found

    monkeypatch.setattr(models.FoundModel, "tokenizer", tokenizer)
    assert command(tasks=["own_text"]) == 2 and "config.text_begins_with" in capsys.readouterr().err
    assert command("--overwrite", tasks=["own_text"]) == 0
    printed = capsys.readouterr().out
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in printed.splitlines()
        if line.startswith("|")
    ]
    assert [row[1] for row in rows[2:]] == ["word_perplexity", "byte_perplexity", "bits_per_byte"]
    assert (
        "unlike lm-eval's own model: 'w1' before a text is read once and not scored (own_text)"
        in printed
    )
    stored = json.loads((tmp_path / "out" / "harness.json").read_text())
    assert stored["figures"]["unlike_lm_eval"] == {"tasks": ["own_text"], "unscored": "w1"}
    metrics = stored["figures"]["tasks"]["own_text"]["metrics"]
    assert float(rows[4][3]) == pytest.approx(metrics["bits_per_byte,none"]["value"], abs=1e-4)


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


TEXT = """
task: own_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{prompt}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
"""


@pytest.fixture
def command(base, hub, tmp_path, monkeypatch):
    """Starts the command with local data and a short index of tasks."""
    root, included = hub
    monkeypatch.setattr(
        datasets, "load_dataset", local_tasks.redirected(datasets.load_dataset, root)
    )
    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)

    def manager(include_path, metadata):
        return TaskManager(
            include_path=[str(each) for each in included], include_defaults=False, metadata=metadata
        )

    monkeypatch.setattr(tasks, "TaskManager", manager)

    def start(*words, tasks=("mmlu_stem", "own_write"), folder="out"):
        fixed = ["--max_length", "4k", "--output", str(tmp_path / folder), "--limit", "4"]
        return harness.main([str(base), "--tasks", *tasks, *fixed, *words])

    return start


def test_the_command_and_plain_lm_eval_give_equal_figures(command, base, hub, tmp_path):
    tasks = ["mmlu_stem", "own_write"]
    assert command(tasks=tasks) == 0
    ours = json.loads((tmp_path / "out" / "harness.json").read_text())["figures"]
    model_args = {"pretrained": str(base), "dtype": "float32", "max_length": 4096}
    manager = TaskManager(include_path=[str(each) for each in hub[1]], include_defaults=False)
    found = simple_evaluate(
        "hf", model_args, tasks=tasks, task_manager=manager, limit=4, device="cpu"
    )
    theirs = harness_tasks.figures(found, {"requests": 0, "tokens": 0})
    for kind in ("tasks", "groups"):
        assert set(ours[kind]) == set(theirs[kind]) != set()
        for name, entry in theirs[kind].items():
            mine = {each: score["value"] for each, score in ours[kind][name]["metrics"].items()}
            assert mine == pytest.approx(
                {each: score["value"] for each, score in entry["metrics"].items()}, abs=1e-5
            )


def test_a_killed_evaluation_resumes_to_the_same_result(command, tmp_path, monkeypatch):
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
    found = [
        json.loads((tmp_path / name / "harness.json").read_text())["figures"]
        for name in ("out", "unbroken")
    ]
    assert all(each.pop("cost")["seconds"] > 0 for each in found) and found[0] == found[1]
    assert (
        set(found[0]["tasks"]) == {"mmlu_anatomy", "own_write"}
        and found[0]["groups"]["mmlu_stem"]["samples"] == 4
    )
    assert not [each for each in (tmp_path / "out").iterdir() if each.name.startswith(".")]


def test_another_chat_template_is_another_evaluation(command, monkeypatch, capsys):
    template = {"now": "{% for m in messages %}{{ m.content + ' w5' }}{% endfor %}"}
    real = models.FoundModel.tokenizer

    def tokenizer(self):
        found = real(self)
        found.chat_template = template["now"]
        return found

    monkeypatch.setattr(models.FoundModel, "tokenizer", tokenizer)
    assert (
        command("--apply_chat_template", tasks=["own_write"]) == 0
        and command(tasks=["own_write"]) == 2
    )
    assert (
        command("--apply_chat_template", tasks=["own_write"]) == 0
        and "complete already" in capsys.readouterr().out
    )
    template["now"] = template["now"].replace("w5", "w6")
    assert command("--apply_chat_template", tasks=["own_write"]) == 2
    assert "config.chat_template" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "tasks", "said"),
    [
        (["--limit", "0"], ["own_write"], "--limit = 0.0: leaves no question"),
        (["--num_fewshot", "-2", "--batch_size", "x"], ["own_write"], "2 problems"),
        (["--num_fewshot", "50"], ["mmlu_stem"], "--num_fewshot = 50: mmlu_anatomy has 6 examples"),
    ],
)
def test_refusals_come_before_a_model_is_loaded(
    command, tmp_path, monkeypatch, capsys, words, tasks, said
):
    monkeypatch.setattr(models.FoundModel, "load", lambda self: pytest.fail("the model was loaded"))
    assert command(*words, tasks=tasks) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out" / "harness.json").exists()
