"""Files of SCROLLS are read as they are published; what is wrong with one is said with its line."""

import json
import re
from pathlib import Path

import huggingface_hub
import pytest

from tape_ds.data.scrolls import examples
from tape_ds.data.scrolls.examples import DATASETS
from tape_ds.data.sources import HELD_OUT
from tape_ds.errors import UserError

ASSETS = Path(__file__).resolve().parents[2] / "assets" / "scrolls"


def write(folder, *lines, split="train"):
    """``folder`` with one split of qasper."""
    (folder / "qasper").mkdir(exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "qasper" / f"{split}.jsonl").write_text("\n".join(texts) + "\n")
    return folder


def row(name="a", text="What?\n\nThis.", output="yes"):
    return {"id": name, "pid": f"{name}_0", "input": text, "output": output}


def problem(*arguments):
    with pytest.raises(UserError) as caught:
        examples.read(*arguments)
    (found,) = caught.value.problems
    return found


@pytest.mark.parametrize("name", DATASETS)
def test_all_seven_are_read_from_plain_files_and_archives(name):
    """Each miniature has four training examples, three of validation, and one without an answer."""
    found = {split: examples.read(name, split, ASSETS) for split in ("train", "validation", "test")}
    assert [len(each) for each in found.values()] == [4, 3, 1]
    assert all(
        example.outputs and example.input.endswith("at noon.") for example in found["validation"]
    )
    assert found["test"][0].outputs == ()


def test_rows_of_one_id_are_one_example_in_the_order_of_the_file(tmp_path):
    write(
        tmp_path,
        row("b", output="1"),
        row("a", output="2"),
        row("b", output="3"),
        row("b", output="1"),
    )
    found = examples.read("qasper", "train", tmp_path)
    assert [(each.id, each.outputs) for each in found] == [("b", ("1", "3", "1")), ("a", ("2",))]
    assert [each.output for each in examples.rows("qasper", "train", tmp_path)] == [
        "1",
        "2",
        "3",
        "1",
    ]


def test_hard_questions_are_marked():
    found = examples.read("quality", "validation", ASSETS)
    assert [each.hard for each in found] == [False, True, False]
    assert not any(each.hard for each in examples.read("qasper", "validation", ASSETS))


def test_letters_beyond_ascii_and_line_separators_stay(tmp_path):
    """U+2028 ends a line for ``str.splitlines``, but not in JSON lines."""
    text = "naïve\u2028Ω"
    (tmp_path / "qasper").mkdir()
    line = json.dumps(row(text=text), ensure_ascii=False)
    (tmp_path / "qasper" / "train.jsonl").write_text(line, encoding="utf-8")
    assert examples.read("qasper", "train", tmp_path)[0].input == text


def test_the_hub_file_is_an_archive_of_the_repository(monkeypatch):
    asked = []

    def download(repository, file, repo_type):
        asked.append((repository, file, repo_type))
        return str(ASSETS / file)

    monkeypatch.setattr(examples, "hf_hub_download", download)
    assert len(examples.read("gov_report", "train")) == 4
    assert asked == [("tau/scrolls", "gov_report.zip", "dataset")]


@pytest.mark.network
def test_the_published_archive():
    assert len(examples.read("qasper", "validation")) > 500


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ((row(), "{not JSON"), "train.jsonl:2 is not JSON"),
        ((row(), row(text=" \n")), "train.jsonl:2 has an empty input"),
        ((row(text="half of a pair: \ud83d"),), "train.jsonl:1 is not Unicode text"),
        ((row(), row(output=None)), "train.jsonl:2 has no text under output"),
        (("", " "), "holds no rows"),
    ],
)
def test_damaged_files_are_refused(tmp_path, lines, wrong):
    found = problem("qasper", "train", write(tmp_path, *lines))
    assert wrong in found.wrong and found.field == "data_dir"


def test_what_is_not_there_is_refused(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise huggingface_hub.errors.LocalEntryNotFoundError("offline")

    monkeypatch.setattr(examples, "hf_hub_download", refuse)
    assert "offline" in problem("qasper", "train").wrong
    assert (
        "no qasper/train.jsonl and no qasper.zip there"
        in problem("qasper", "train", tmp_path).wrong
    )
    assert "did you mean 'train'" in problem("qasper", "trian", ASSETS).remedy


def test_another_data_set_s_archive_is_not_taken_for_this_one():
    archive = ASSETS / "gov_report.zip"
    assert len(examples.read("gov_report", "train", archive)) == 4
    assert "no file called qmsum/train.jsonl" in problem("qmsum", "train", archive).wrong


def test_the_fingerprint_changes_with_the_contents_and_with_nothing_else(tmp_path):
    first = examples.fingerprint("qasper", "train", write(tmp_path, row()))
    (tmp_path / "copy").mkdir()
    assert examples.fingerprint("qasper", "train", write(tmp_path / "copy", row())) == first
    assert examples.fingerprint("qasper", "train", write(tmp_path / "copy", row("c"))) != first
    archived = [
        examples.fingerprint("gov_report", split, ASSETS)
        for split in ("train", "validation", "train")
    ]
    assert archived[0] == archived[2] != archived[1]


@pytest.fixture(scope="module")
def made():
    return {split: examples.read("stdlib", split) for split in ("train", "validation", "test")}


def test_the_answer_is_in_the_excerpt(made):
    for each in made["train"] + made["validation"]:
        question, _, excerpt = each.input.partition("\n\n")
        name = re.fullmatch(r"Which arguments does the function (\w+) take\?", question)[1]
        definition = excerpt[re.search(rf"def {name} *\(", excerpt).start() :]
        assert all(argument in definition for argument in each.outputs[0].split(", ")), each.id


def test_splits_share_no_file_or_no_question(made):
    found = {split: [each.id for each in questions] for split, questions in made.items()}
    assert [len(ids) for ids in found.values()] == [2000, 100, 100]
    assert {name.split(":")[0] for name in found["train"]}.isdisjoint(HELD_OUT)
    assert set(found["validation"]).isdisjoint(found["test"])
    assert all(name.split(":")[0] in HELD_OUT for name in found["validation"])
    assert examples.fingerprint("stdlib", "train") != examples.fingerprint("stdlib", "validation")
