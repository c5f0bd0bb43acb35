"""Files of SCROLLS are read as they are published; what is wrong with one is said with its line."""

import json
import zipfile
from pathlib import Path

import huggingface_hub
import pytest

from tape_ds.data.scrolls import examples
from tape_ds.data.scrolls.examples import DATASETS
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
    assert all(example.outputs and example.input.endswith("at noon.") for example in found["validation"])
    assert found["test"][0].outputs == ()


def test_rows_of_one_id_are_one_example_in_the_order_of_the_file(tmp_path):
    write(tmp_path, row("b", output="1"), row("a", output="2"), row("b", output="3"), row("b", output="1"))
    found = examples.read("qasper", "train", tmp_path)
    assert [(each.id, each.outputs) for each in found] == [("b", ("1", "3", "1")), ("a", ("2",))]
    assert [each.output for each in examples.rows("qasper", "train", tmp_path)] == ["1", "2", "3", "1"]


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
    """Asked for by name, read in place."""
    asked = []

    def download(repository, file, repo_type):
        asked.append((repository, file, repo_type))
        return str(ASSETS / file)

    monkeypatch.setattr(examples, "hf_hub_download", download)
    assert len(examples.read("gov_report", "train")) == 4
    assert asked == [("tau/scrolls", "gov_report.zip", "dataset")]


def test_an_unreachable_hub_is_said(monkeypatch):
    def refuse(*_, **__):
        raise huggingface_hub.errors.LocalEntryNotFoundError("offline")

    monkeypatch.setattr(examples, "hf_hub_download", refuse)
    found = problem("qasper", "train")
    assert found.field == "dataset" and "offline" in found.wrong and "data_dir" in found.remedy


@pytest.mark.network
def test_the_published_archive():
    assert len(examples.read("qasper", "validation")) > 500


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ((row(), "{not JSON"), "train.jsonl:2 is not JSON"),
        ((row(), row(text=" \n")), "train.jsonl:2 has an empty input"),
        ((row(text="half of a pair: \ud83d"),), "train.jsonl:1 is not Unicode text"),
        ((row(name="\udc00"),), "train.jsonl:1 is not Unicode text"),
        (("[1]",), "train.jsonl does not have one JSON object a line"),
        ((row(), row(output=None)), "train.jsonl:2 has no text under output"),
        (({"pid": "a", "input": 3, "output": "x"},), "train.jsonl:1 has no text under id, input"),
        (({"pid": "a"},), "train.jsonl:1 has no column 'input'"),
        (("", " "), "holds no rows"),
        (("\udcff",), "train.jsonl:1 is not JSON ('utf-8' codec can't decode byte 0xff"),  # which no UTF-8 has
    ],
)
def test_damaged_files_are_refused(tmp_path, lines, wrong):
    (tmp_path / "qasper").mkdir()
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    data = ("\n".join(texts) + "\n").encode("utf-8", "surrogateescape")
    (tmp_path / "qasper" / "train.jsonl").write_bytes(data)
    found = problem("qasper", "train", tmp_path)
    assert wrong in found.wrong and found.field == "data_dir"


def test_a_flipped_byte_in_an_archive_is_found(tmp_path):
    """The archive's own checksum tells."""
    write(tmp_path, *[row(str(number), text="x" * 50 + str(number)) for number in range(200)])
    with zipfile.ZipFile(tmp_path / "qasper.zip", "w", zipfile.ZIP_STORED) as archive:
        archive.write(tmp_path / "qasper" / "train.jsonl", "qasper/train.jsonl")
    data = bytearray((tmp_path / "qasper.zip").read_bytes())
    data[data.index(b"x" * 50) + 5] = ord("y")
    (tmp_path / "damaged.zip").write_bytes(data)
    assert "cannot be read" in problem("qasper", "train", tmp_path / "damaged.zip").wrong


@pytest.mark.parametrize(("at", "value"), [(6, 1), (8, 99)], ids=["encrypted", "an unknown compression"])
def test_an_archive_that_cannot_be_unpacked_is_said(tmp_path, at, value):
    """zipfile raises RuntimeError for either."""
    with zipfile.ZipFile(tmp_path / "qasper.zip", "w") as archive:
        archive.writestr("qasper/train.jsonl", json.dumps(row()))
    data = bytearray((tmp_path / "qasper.zip").read_bytes())
    data[at] = data[data.index(b"PK\x01\x02") + at + 2] = value  # in the file's own header, and in the directory
    (tmp_path / "qasper.zip").write_bytes(data)
    assert "train.jsonl cannot be read" in problem("qasper", "train", tmp_path).wrong
    data[data.index(b"PK\x01\x02") + 6] = 112  # the version of the format that is needed
    (tmp_path / "qasper.zip").write_bytes(data)
    assert "not a readable zip file (zip file version 11.2)" in problem("qasper", "train", tmp_path).wrong


def test_a_byte_order_mark_is_no_text(tmp_path):
    write(tmp_path, row())
    path = tmp_path / "qasper" / "train.jsonl"
    path.write_bytes("\ufeff".encode() + path.read_bytes())
    assert examples.read("qasper", "train", tmp_path)[0].id == "a"


@pytest.mark.parametrize(("mark", "hard"), [(True, True), (False, False), ("False", False), (None, False)])
def test_only_true_marks_a_hard_question(tmp_path, mark, hard):
    assert examples.read("qasper", "train", write(tmp_path, row() | {"is_hard": mark}))[0].hard is hard


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda folder: folder / "nowhere", "no such folder"),
        (lambda folder: folder, "no qasper/train.jsonl and no qasper.zip there"),
        (lambda folder: write(folder, row()) / "qasper" / "train.jsonl", "not a readable zip file"),
    ],
)
def test_missing_files_are_named(tmp_path, make, wrong):
    assert wrong in problem("qasper", "train", make(tmp_path)).wrong


def test_an_archive_has_each_split_by_its_whole_name(tmp_path):
    """A Mac's shadow files and other folders are none of it."""
    path = tmp_path / "qasper.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("qasper/train.jsonl", json.dumps(row()))
        for other in ("__MACOSX/qasper/train.jsonl", "other/train.jsonl", "./qasper/test.jsonl"):
            archive.writestr(other, "shadow")
    assert len(examples.read("qasper", "train", path)) == 1
    assert "no file called qasper/test.jsonl" in problem("qasper", "test", path).wrong


def test_another_data_set_s_archive_is_not_taken_for_this_one():
    """With one archive as data_dir, each of several data sets would else be answered with the same rows."""
    archive = ASSETS / "gov_report.zip"
    assert len(examples.read("gov_report", "train", archive)) == 4
    assert "no file called qmsum/train.jsonl" in problem("qmsum", "train", archive).wrong


def test_unknown_names_and_splits():
    assert "did you mean 'train'" in problem("qasper", "trian", ASSETS).remedy
    assert problem("quasper", "train", ASSETS).field == "dataset"


def test_the_fingerprint_changes_with_the_contents_and_with_nothing_else(tmp_path):
    first = examples.fingerprint("qasper", "train", write(tmp_path, row()))
    (tmp_path / "copy").mkdir()
    assert examples.fingerprint("qasper", "train", write(tmp_path / "copy", row())) == first
    assert examples.fingerprint("qasper", "train", write(tmp_path / "copy", row("c"))) != first
    archived = [examples.fingerprint("gov_report", split, ASSETS) for split in ("train", "validation", "train")]
    assert archived[0] == archived[2] != archived[1]


def test_what_the_disk_can_tell_is_checked_without_reading(tmp_path):
    folder = write(tmp_path, row())
    assert examples.check("qasper", ("train",), folder) == []
    assert [each.field for each in examples.check("qasper", ("train", "validation"), folder)] == ["data_dir"]
    assert [each.field for each in examples.check("quasper", ("train",), folder)] == ["dataset"]
    assert [each.wrong for each in examples.check("qasper", ("train", "validation"), "./nowhere")] == ["no such folder"]
    assert examples.check("qasper", ("train",), None) == []
    assert "is generated" in examples.check("stdlib", ("train",), folder)[0].wrong
