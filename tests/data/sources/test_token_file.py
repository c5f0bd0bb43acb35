"""Files of token ids and their records: what is written, what is read back, what is refused."""

import json

import numpy as np
import pytest

from tape_ds.data.sources import parse, parse_all, token_file
from tape_ds.data.tokenized import tokenizer_fingerprint
from tape_ds.errors import UserError
from tests.data.conftest import build_tokenizer, tokenize

PARTS = [[5, 6, 7], [], [8, 299]]


def write(path, parts=PARTS, vocabulary=300, tokenizer="t"):
    return token_file.write(
        path,
        map(np.array, parts),
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        sources={"stdlib": "f"},
        choice={"n": 1},
    )


def rows(path, tokenizer, tmp_path):
    return [
        (row["name"], row["input_ids"])
        for row in tokenize([f"bin:{path}"], tokenizer, "heldout", tmp_path / "c")
    ]


@pytest.mark.parametrize(
    ("vocabulary", "width", "size"),
    [(300, "uint16", 2), (65_536, "uint16", 2), (65_537, "uint32", 4), (2**20, "uint32", 4)],
)
def test_ids_are_as_wide_as_the_vocabulary_needs(tmp_path, vocabulary, width, size):
    found = write(tmp_path / "x.bin", [[0, vocabulary - 1], [7]], vocabulary)
    assert (found.width, found.tokens, found.documents) == (width, 3, 2)
    raw = (tmp_path / "x.bin").read_bytes()
    assert len(raw) == 3 * size and int.from_bytes(raw[size : 2 * size], "little") == vocabulary - 1
    assert token_file.read_record(tmp_path / "x.bin") == found
    ((name, ids),) = parse(f"bin:{tmp_path}/x.bin").token_rows()
    assert (name, ids.tolist()) == ("x.bin", [0, vocabulary - 1, 7])


def test_the_whole_is_one_document_under_its_own_tokenizer(tmp_path, tokenizer):
    write(tmp_path / "x.bin", tokenizer=tokenizer_fingerprint(tokenizer))
    assert rows(tmp_path / "x.bin", tokenizer, tmp_path) == [("x.bin", [5, 6, 7, 8, 299])]
    with pytest.raises(UserError, match="those of another tokenizer"):
        rows(tmp_path / "x.bin", build_tokenizer(bos=False), tmp_path)


def test_a_bare_file_is_longloras(tmp_path, tokenizer):
    np.array([5, 299, 7], "<u2").tofile(tmp_path / "bare.bin")
    assert rows(tmp_path / "bare.bin", tokenizer, tmp_path) == [("bare.bin", [5, 299, 7])]
    np.array([5, 300, 7], "<u2").tofile(tmp_path / "beyond.bin")
    with pytest.raises(
        UserError, match=r"token ids 5 \.\. 300, outside the tokenizer's vocabulary of 300"
    ):
        rows(tmp_path / "beyond.bin", tokenizer, tmp_path)


def test_the_fingerprint_follows_the_ids_and_not_the_name(tmp_path):
    for name, parts in {"a": PARTS, "b": PARTS, "c": [[5]]}.items():
        write(tmp_path / f"{name}.bin", parts)
    np.array([5], "<u2").tofile(tmp_path / "d.bin")
    one, same, other, bare = (parse(f"bin:{tmp_path}/{name}.bin").fingerprint() for name in "abcd")
    assert one == same != other == bare


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (b"\1\0\2", "3 bytes are not a multiple of 2"),
        (np.arange(60_000, 150_000, 997, dtype="<u4").tobytes(), "ids of 32 or 64 bits"),
        (b"Some text, and no token ids.\n" * 40, "not unsigned 16-bit token ids"),
    ],
)
def test_files_of_something_else_are_refused(tmp_path, contents, said):
    (tmp_path / "x.bin").write_bytes(contents)
    with pytest.raises(UserError, match=said):
        parse_all([f"bin:{tmp_path}/x.bin"])


def test_a_file_that_its_record_does_not_fit_is_refused(tmp_path, tokenizer):
    path = tmp_path / "x.bin"
    write(path, tokenizer=tokenizer_fingerprint(tokenizer))
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    with pytest.raises(UserError, match="8 bytes, where its record has 5 ids of 2 bytes"):
        parse_all([f"bin:{path}"])
    path.write_bytes(whole[:-1] + b"\0")
    with pytest.raises(UserError, match="its contents are not those of its record"):
        rows(path, tokenizer, tmp_path)
    record = json.loads((tmp_path / "x.bin.json").read_text())
    for broken in ("{", json.dumps({**record, "format": 9})):
        (tmp_path / "x.bin.json").write_text(broken)
        with pytest.raises(UserError, match="its record cannot be read"):
            parse_all([f"bin:{path}"])


def test_what_fails_leaves_what_was_there(tmp_path):
    write(tmp_path / "x.bin")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def breaks():
        yield np.array([1, 2])
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        token_file.write(
            tmp_path / "x.bin", breaks(), tokenizer="t", vocabulary=300, sources={}, choice={}
        )
    with pytest.raises(UserError, match="no document has a token"):
        write(tmp_path / "x.bin", [[], []])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "index"),
    [("x.bin", "x.idx"), ("x.ds", "x.ds.index"), ("x.npy", "x.csv.gz")],
    ids=["megatron", "ds", "olmo"],
)
def test_a_file_whose_index_has_its_documents_is_not_one_document(name, index, tmp_path):
    """Megatron's, datatrove's and OLMo's 16-bit files were read as one document, whatever their index said."""
    np.arange(300, 900, dtype="<u2").tofile(tmp_path / name)
    parse_all([f"bin:{tmp_path}/{name}"])
    (tmp_path / index).write_bytes(b"")
    with pytest.raises(
        UserError,
        match=rf"{index} has the ends of its documents.*\n.*name it tokens:{tmp_path}/{name}",
    ):
        parse_all([f"bin:{tmp_path}/{name}"])


def test_the_remedy_of_wide_ids_reads_them(tmp_path):
    """The message said to write 16 bits, or to tokenise the text again."""
    np.arange(60_000, 150_000, 97, dtype="<u4").tofile(tmp_path / "x.bin")
    with pytest.raises(UserError, match="ids of 32 or 64 bits") as caught:
        parse_all([f"bin:{tmp_path}/x.bin"])
    (spec,) = (
        word for word in caught.value.problems[0].remedy.split() if word.startswith("tokens:")
    )
    ((_, ids),) = parse_all([spec])[0].token_rows()
    assert ids[:3].tolist() == [60_000, 60_097, 60_194]
