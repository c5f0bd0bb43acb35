"""``tape-ds prepare-test-set``: each test set from small files in the real ones' formats and places."""

import gzip

import datasets
import numpy as np
import pytest

from tape_ds.cli import prepare_test_set
from tape_ds.cli.prepare_test_set import TEST_SETS
from tape_ds.data import tokenized
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.sources import token_file
from tests.data.conftest import build_tokenizer
from tests.data.local_hub import local_hub
from tests.data.sources.test_opening import archive, lines, zstd

PROOF = "datasets/hoskinson-center/proof-pile@490b980249446f2f3bd2df3a8cf085d0f2de240a/test/proofpile_test.jsonl.gz"
PILE = (
    "datasets/monology/pile-uncopyrighted@3be90335b66f24456a5d6659d9c8d208c0357119/test.jsonl.zst"
)
REPORTS = "datasets/tau/scrolls/gov_report.zip"


@pytest.fixture
def hub(monkeypatch):
    """The four sets as the hub has them; PG-19 through ``datasets``, which is replaced."""
    pile = [
        {"text": f"code {n}", "meta": {"pile_set_name": ("Github", "ArXiv")[n % 2]}}
        for n in range(4)
    ]
    books = datasets.IterableDataset.from_generator(
        lambda n: ({"text": f"book {i}"} for i in n), gen_kwargs={"n": [1, 2]}
    )
    asked = []
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *args, **options: asked.append((args, options)) or books
    )
    files = {
        PROOF: gzip.compress(
            lines({"text": "short"}, *({"text": f"proof {n} " * 3} for n in range(9)))
        ),
        PILE: zstd(lines(*pile)),
        REPORTS: archive("gov_report/test.jsonl", lines({"input": "a report", "output": None})),
    }
    with local_hub(files):
        yield asked


@pytest.fixture
def make(tmp_path, monkeypatch, capsys):
    """Calls the tool; gives the text of the file it writes, and the record."""
    build_tokenizer().save_pretrained(tmp_path / "tokenizer")
    tokens = tokenizers.load_tokenizer(str(tmp_path / "tokenizer"))

    def call(name, *arguments):
        path = tmp_path / f"{name}.bin"
        command = [
            name,
            "--tokenizer",
            str(tmp_path / "tokenizer"),
            "--output",
            str(path),
            *map(str, arguments),
        ]
        assert prepare_test_set.main(command) == 0
        record = token_file.read_record(path)
        ids = np.fromfile(path, token_file.WIDTHS[record.width])
        assert f"{record.tokens:,} tokens" in capsys.readouterr().out and len(ids) == record.tokens
        assert record.tokenizer == tokenized.tokenizer_fingerprint(tokens)
        return tokens.decode(ids), record

    return call


def test_pg19(hub, make):
    text, record = make("pg19")
    assert (text, record.documents) == ("book 1book 2", 2)
    (((name, _), options),) = hub
    assert (name, options["split"]) == ("emozilla/pg19-test", "test")


def test_github_is_the_part_of_the_pile(hub, make):
    text, record = make("github")
    assert (text, record.documents) == ("code 0code 2", 2)
    assert list(record.sources) == TEST_SETS["github"]["data"]


def test_gov_report_is_read_inside_its_archive(hub, make):
    assert make("gov_report")[0] == "a report"


def test_proof_pile_takes_the_first_that_are_long(hub, make, monkeypatch):
    assert (TEST_SETS["proof_pile"]["min_tokens"], TEST_SETS["proof_pile"]["max_documents"]) == (
        32_768,
        128,
    )
    text, record = make("proof_pile", "--min_tokens", 10, "--max_documents", 2)
    assert text == "proof 0 " * 3 + "proof 1 " * 3
    assert record.choice == {
        "min_tokens": 10,
        "max_tokens": None,
        "max_documents": 2,
        "keep_special": False,
    }


def test_own_texts_with_and_without_special_tokens(make, tmp_path):
    for name in "ba":
        (tmp_path / f"{name}.txt").write_text(f"text {name} and more")
    spec = f"text:{tmp_path}/*.txt"
    assert make("own", "--data", spec, "--max_tokens", 6)[1].tokens == 12
    assert make("own", "--data", spec, "--overwrite")[0] == "text a and moretext b and more"
    text, record = make("own", "--data", spec, "--keep_special", "--overwrite")
    assert text == "<s>text a and more<s>text b and more" and record.documents == 2


def test_refusals_leave_everything_as_it_was(make, tmp_path, capsys):
    (tmp_path / "x.txt").write_text("text")
    (tmp_path / "old.bin").write_bytes(b"old")
    (tmp_path / "link.bin").symlink_to("a disk that is not mounted")

    def refused(*arguments):
        command = ["own", "--tokenizer", str(tmp_path / "tokenizer"), *map(str, arguments)]
        assert prepare_test_set.main(command) == 2
        return capsys.readouterr().err

    before = sorted(path.name for path in tmp_path.iterdir())
    text = ("--data", f"text:{tmp_path}/x.txt")
    message = refused("--output", tmp_path / "new.txt", "--min_tokens", 0, "--max_documents", -1)
    assert "4 problems" in message and "does not end in .bin" in message
    assert "old.bin is a file" in refused("--output", tmp_path / "old.bin" / "new.bin", *text)
    assert "exists" in refused("--output", tmp_path / "old.bin", *text)
    assert "exists" in refused("--output", tmp_path / "link.bin", *text)
    assert "no document has a token" in refused(
        "--output", tmp_path / "new.bin", *text, "--min_tokens", 1000
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "old.bin").read_bytes() == b"old" and (tmp_path / "link.bin").is_symlink()
