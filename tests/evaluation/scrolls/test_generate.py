"""From a model's folder to official files and scores: whole, cut short, resumed, with an oracle, and with mistakes."""

import json

import pytest

from evaluation import language_model, report
from evaluation.scrolls import generate, generate_options
from tape_ds import results
from tape_ds.data.scrolls import datasets, examples
from tests.evaluation.scrolls.conftest import DATA, byte_tokenizer

TINY = ("--max_tokens", "512", "--answer_tokens", "6", "--summary_tokens", "8")


def run(model, folder, *words, data=DATA):
    """The command's exit code."""
    given = ("--data_dir", data) if data is not None else ()
    return generate.main([str(word) for word in (model, "--output", folder, *given, *words)])


def figures(folder):
    return results.load(folder / "scrolls.json").figures


def text(folder):
    """The result without what may differ between two equal evaluations."""
    content = json.loads((folder / "scrolls.json").read_text())
    for name in ("command", "started", "finished"):
        content.pop(name)
    content["figures"].pop("cost")
    return content


def test_an_oracle_is_right_everywhere(llama, tmp_path, oracle):
    oracle(*datasets.DATASETS)
    assert run(llama, tmp_path, "--datasets", "all") == 0
    found = figures(tmp_path)["datasets"]
    assert set(found) == {*datasets.DATASETS, "quality_hard"}
    assert {name: entry["score"] for name, entry in found.items()} == dict.fromkeys(found, pytest.approx(100))
    assert {entry["cut_tokens"] for entry in found.values()} == {0}
    for name in datasets.DATASETS:
        rows = examples.read(name, "validation", DATA)
        written = json.loads((tmp_path / "scrolls" / f"{name}.json").read_text())
        assert written == {row.id: row.outputs[0] for row in rows}
        official = json.loads((tmp_path / "scrolls" / f"{name}_metrics.json").read_text())
        assert (official["scrolls_score"], official["num_predicted"]) == (100, len(rows))
    rouge = json.loads((tmp_path / "scrolls" / "gov_report_metrics.json").read_text())
    assert list(rouge)[:4] == ["rouge/rouge1", "rouge/rouge2", "rouge/rougeL", "rouge/geometric_mean"]
    assert (rouge["display_keys"], rouge["display"]) == (list(rouge)[:3], [100, 100, 100])
    hard = json.loads((tmp_path / "scrolls" / "quality_hard_metrics.json").read_text())
    assert hard["scrolls_score"] is None and hard["exact_match"] == 100
    assert 0 < hard["num_predicted"] < len(examples.read("quality", "validation", DATA))


def test_a_random_model_writes_and_is_wrong(llama, tmp_path, capsys):
    """Prompts are cut, which is said; texts reach their limit, which is said."""
    assert run(llama, tmp_path, "--datasets", "qasper", "qmsum", *TINY, "--max_tokens", "300") == 0
    found = figures(tmp_path)["datasets"]
    rows = examples.read("qasper", "validation", DATA)
    lengths = [1 + len(row.input.encode()) for row in rows]  # <s>, and an id for each byte
    assert found["qasper"]["cut_tokens"] == sum(max(0, length - (300 - 7)) for length in lengths) > 0
    assert found["qasper"]["score"] < 20
    said = capsys.readouterr().out
    assert f"qasper: {len(rows)} of {len(rows)} prompts were cut to fit into 300 tokens" in said
    assert f"by {found['qasper']['cut_tokens']:,} tokens together" in said
    assert found["qasper"]["unfinished"] == len(rows) and "reached their limit" in said


def test_batches_and_caches_change_no_text(llama, tmp_path):
    plans = {"one": (), "four": ("--batch_size", "4"), "no cache": ("--no_cache", "--batch_size", "3")}
    for name, words in plans.items():
        assert run(llama, tmp_path / name, "--datasets", "quality", "gov_report", *TINY, *words) == 0
    texts = [
        [(tmp_path / name / "scrolls" / f"{data}.json").read_bytes() for data in ("quality", "gov_report")]
        for name in plans
    ]
    assert texts[0] == texts[1] == texts[2]
    assert figures(tmp_path / "one")["datasets"] == figures(tmp_path / "four")["datasets"]


def test_twice_is_once(llama, tmp_path, oracle, capsys):
    asked = oracle("contract_nli")
    assert run(llama, tmp_path, "--datasets", "contract_nli") == 0
    before, count = (tmp_path / "scrolls.json").read_bytes(), len(asked)
    assert run(llama, tmp_path, "--datasets", "contract_nli") == 0
    assert len(asked) == count and (tmp_path / "scrolls.json").read_bytes() == before
    assert "complete already" in capsys.readouterr().out
    (tmp_path / "scrolls" / "contract_nli.json").unlink()
    assert run(llama, tmp_path, "--datasets", "contract_nli") == 0
    assert len(asked) == 2 * count, "the texts stand nowhere else, so they are written again"
    assert (tmp_path / "scrolls" / "contract_nli.json").exists()
    assert run(llama, tmp_path / "again", "--datasets", "contract_nli") == 0
    assert text(tmp_path) == text(tmp_path / "again")


def test_it_goes_on_after_a_kill(llama, tmp_path, monkeypatch):
    """What was written before is not written again, and the result is the one of an unbroken run."""
    real, written = language_model.continue_prompts, []

    def dies_at_the_third(model, prompts, **settings):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(prompts)
        return real(model, prompts, **settings)

    monkeypatch.setattr(language_model, "continue_prompts", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        run(llama, tmp_path / "broken", "--datasets", "qasper", *TINY)
    assert not (tmp_path / "broken" / "scrolls.json").exists() and not (tmp_path / "broken" / "scrolls").exists()
    left = []
    monkeypatch.setattr(
        language_model, "continue_prompts", lambda *given, **settings: left.append(given[1]) or real(*given, **settings)
    )
    assert run(llama, tmp_path / "broken", "--datasets", "qasper", *TINY) == 0
    assert len(left) == len(examples.read("qasper", "validation", DATA)) - 2
    assert not any(prompt in written for prompt in left)
    assert run(llama, tmp_path / "whole", "--datasets", "qasper", *TINY) == 0
    assert text(tmp_path / "broken") == text(tmp_path / "whole")


def test_killed_between_its_texts_and_its_result_it_leaves_no_other_result(llama, tmp_path, oracle, monkeypatch):
    """The result that it was to replace still stood there: that evaluation was complete, beside other texts."""
    oracle("contract_nli")
    assert run(llama, tmp_path, "--datasets", "contract_nli") == 0
    before = (tmp_path / "scrolls/contract_nli.json").read_bytes()

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as kill, pytest.raises(KeyboardInterrupt):
        kill.setattr(generate.journal.Evaluation, "finish", killed)
        run(llama, tmp_path, "--datasets", "contract_nli", "--limit", "1", "--overwrite")
    assert (tmp_path / "scrolls/contract_nli.json").read_bytes() != before
    assert run(llama, tmp_path, "--datasets", "contract_nli") == 0
    assert (tmp_path / "scrolls/contract_nli.json").read_bytes() == before


def test_only_summaries_are_drawn_and_the_seed_decides(llama, tmp_path):
    words = ("--datasets", "qasper", "gov_report", *TINY, "--batch_size", "2")
    for name, more in {
        "greedy": (),
        "one": ("--sample_summaries", "20"),
        "same": ("--sample_summaries", "20"),
        "other": ("--sample_summaries", "20", "--seed", "1"),
    }.items():
        assert run(llama, tmp_path / name, *words, *more) == 0

    def written(name, data):
        return (tmp_path / name / "scrolls" / f"{data}.json").read_bytes()

    assert written("greedy", "qasper") == written("one", "qasper") == written("other", "qasper")
    assert written("one", "gov_report") == written("same", "gov_report")
    assert len({written(name, "gov_report") for name in ("greedy", "one", "other")}) == 3
    assert results.load(tmp_path / "greedy" / "scrolls.json").seed is None
    assert results.load(tmp_path / "other" / "scrolls.json").seed == 1


def test_a_limit_asks_the_first(llama, tmp_path, oracle):
    oracle("narrative_qa")
    assert run(llama, tmp_path, "--datasets", "narrative_qa", "--limit", "2") == 0
    rows = examples.read("narrative_qa", "validation", DATA)
    assert len(rows) > 2
    assert list(json.loads((tmp_path / "scrolls" / "narrative_qa.json").read_text())) == [row.id for row in rows[:2]]


def test_without_a_download(llama, tmp_path):
    words = ("--datasets", "stdlib", "--limit", "3", *TINY)
    assert run(llama, tmp_path, *words, data=None) == 0
    assert figures(tmp_path)["datasets"]["stdlib"]["examples"] == 3


def test_a_split_without_answers_is_written_for_and_not_scored(llama, tmp_path, capsys):
    """What the benchmark's own tools make a submission of; scores of an earlier evaluation do not stay beside it."""
    words = ("--datasets", "quality", "gov_report", *TINY)
    assert run(llama, tmp_path, *words) == 0
    assert (tmp_path / "scrolls" / "quality_hard_metrics.json").exists()
    capsys.readouterr()
    assert run(llama, tmp_path, "--datasets", "quality", *TINY, "--split", "test", "--overwrite") == 0
    (row,) = examples.read("quality", "test", DATA)
    assert [path.name for path in (tmp_path / "scrolls").iterdir()] == ["quality.json"]
    assert list(json.loads((tmp_path / "scrolls" / "quality.json").read_text())) == [row.id]
    entry = figures(tmp_path)["datasets"]["quality"]
    assert [entry[name] for name in ("score", "standard_error", "parts", "examples")] == [None, None, None, 1]
    said = capsys.readouterr().out
    assert "| quality | exact_match | not scored |" in said and "the split test has no reference answers" in said
    assert report.main([str(tmp_path), "--output", str(tmp_path / "page")]) == 0


def test_answers_of_some_questions_alone_are_refused(llama, tmp_path, capsys):
    """An average over those that happen to have one would be no score of the split."""
    rows = [{"id": str(number), "input": "Which?", "output": output} for number, output in enumerate(["a", None])]
    (tmp_path / "qasper").mkdir()
    (tmp_path / "qasper" / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run(llama, tmp_path / "out", "--datasets", "qasper", "--split", "test", *TINY, data=tmp_path) == 2
    assert "1 of 2 questions of qasper have no reference answer" in capsys.readouterr().err


def test_prompts_beyond_what_the_model_is_made_for_are_counted(llama, tmp_path, capsys):
    """Such a score says more about the model's length than about its answers."""
    rows = [{"id": str(number), "input": "x" * length, "output": "a"} for number, length in enumerate([1022, 1023])]
    (tmp_path / "qasper").mkdir()
    (tmp_path / "qasper" / "validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("--datasets", "qasper", "--max_tokens", "2k", "--answer_tokens", "1")
    assert run(llama, tmp_path / "out", *words, data=tmp_path) == 0  # with <s> and an answer of one token: 1,024, 1,025
    assert figures(tmp_path / "out")["datasets"]["qasper"]["beyond_native"] == 1
    assert (
        "qasper: 1 of 2 prompts with their texts are longer than what the model is made for" in capsys.readouterr().out
    )


def test_all_stands_for_the_seven_beside_others(llama):
    options = generate_options.parse([str(llama), "--datasets", "stdlib", "all", "qasper"])
    assert options.datasets == ["stdlib", *datasets.DATASETS]


def test_a_wrong_folder_is_one_problem(llama, tmp_path, capsys):
    assert run(llama, tmp_path / "out", "--datasets", "all", data="./nowhere") == 2
    assert "1 problem found" in capsys.readouterr().err


def test_everything_wrong_is_told_at_once(llama, tmp_path, capsys):
    words = ("--datasets", "quasper", "qasper", "--split", "test", "--limit", "0", "--batch_size", "0")
    assert run("./nowhere", tmp_path / "out", *words) == 2
    said = capsys.readouterr().err
    for part in (
        "--datasets = 'quasper': no such data set",
        "did you mean 'qasper'?",
        "--limit = 0",
        "--batch_size = 0",
        "model = './nowhere'",
    ):
        assert part in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("--datasets", "gov_report", "--max_tokens", "1k"), "--max_tokens = 1024: 1001 of them are kept"),
        (("--datasets", "quality_hard"), "--datasets = 'quality_hard': no such data set"),
        (("--datasets", "qasper", "--data_dir", "./nowhere"), "--data_dir = './nowhere': no such folder"),
    ],
)
def test_what_cannot_be_done_is_told_before_the_model_loads(llama, tmp_path, capsys, words, wrong):
    assert run(llama, tmp_path / "out", *words) == 2
    assert wrong in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_begin_that_is_the_end_takes_no_reference_format(llama, tmp_path, capsys):
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = "<s>"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    words = ("--datasets", "qasper", "--reference_format", "--tokenizer", tmp_path / "tokenizer")
    assert run(llama, tmp_path / "out", *words) == 2
    assert "--reference_format = True: a model trained so begins its answer with BOS" in capsys.readouterr().err
