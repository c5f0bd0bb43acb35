"""``generated:retrieval`` as a data spec: what is refused, and what its fingerprint is made of."""

import pytest

from tape_ds.data.sources import GeneratedDocuments, parse, parse_all
from tape_ds.data.sources.generated import check_conversations, check_drawn, only_one, written_text
from tape_ds.errors import UserError


@pytest.fixture
def text(tmp_path):
    (tmp_path / "a.txt").write_text("a text\n")
    return f"text:{tmp_path}/a.txt"


def refused(spec, field="train_data"):
    with pytest.raises(UserError) as caught:
        parse_all([spec], field)
    return [problem.wrong for problem in caught.value.problems]


def drawn(*specs, window=2048, steps=10, weight=None):
    entries = [{"source": spec, "weight": weight} if weight else spec for spec in specs]
    return [problem.wrong for problem in check_drawn(entries, window, steps)]


def test_the_text_is_the_last_option_and_any_data_spec(text):
    (source,) = parse_all([f"generated:retrieval#rivals=3&text={text}"], "train_data")
    assert isinstance(source, GeneratedDocuments) and source.text.spec == text
    for split in ("train", "heldout"):
        assert source.identities(split) == parse(text).identities(split)
    (source,) = parse_all(["generated:retrieval"], "train_data")
    assert source.text is None and source.identities("train") == set()


def test_what_is_wrong_is_said_at_once(text):
    assert refused("generated:arithmetic#tokens=0&rivals=x") == [
        "there is no 'arithmetic' to generate",
        "'tokens=0' cannot be read",
        "'rivals=x' cannot be read",
        "rivals are counted, and there is no text between them",
    ]
    assert refused("generated:retrieval#text=text:/absent/*.txt") == ["no file matches"]
    assert refused("generated:retrieval#text=pdf:a") == ["unknown kind of data 'pdf'"]
    assert refused(f"generated:retrieval#text=generated:retrieval#text={text}") == [
        "its text is generated, too"
    ]


@pytest.mark.parametrize("field", ["eval_data", "--data", "data", "--haystack"])
def test_it_is_for_training_alone(field):
    assert refused("generated:retrieval", field) == [
        "its documents are made for training, each when it is needed"
    ]


def test_the_fingerprint_has_every_option_and_the_text(text, tmp_path):
    specs = [
        "",
        "#tokens=5",
        "#tokens=6",
        "#questions=2",
        "#place=0-0.5",
        "#targets=all",
        "#families=list:2,lookup",
    ]
    specs += ["#families=list", f"#text={text}", f"#rivals=3&text={text}", f"#rivals=4&text={text}"]
    found = [parse(f"generated:retrieval{spec}").fingerprint() for spec in specs]
    assert len(set(found)) == len(found)
    same = parse("generated:retrieval#families=lookup:1,list:2").fingerprint()
    assert same == found[6], "whatever the order"
    (tmp_path / "a.txt").write_text("another text\n")
    assert parse(f"generated:retrieval{specs[8]}").fingerprint() != found[8]
    assert parse("generated:retrieval").fingerprint() == found[0]


def test_a_run_needs_weights_steps_and_a_window(text):
    spec = f"generated:retrieval#tokens=1k-2k&text={text}"
    assert (
        drawn(spec)
        == drawn(spec, text, weight=1)
        == drawn(spec, spec.replace("1k", "512"), weight=1)
        == []
    )
    assert drawn(spec, text) == ["it has no end, and the sources have no weights"]
    assert drawn(spec, steps=-1) == ["generated data have no end"]
    assert drawn(spec, window=1500) == [
        "its documents have up to 2,048 tokens, and a sequence has 1,500 (window)",
    ]
    assert drawn("generated:retrieval#documents=7") == [
        "it is drawn without end, and documents=7 is of conversations"
    ]
    assert drawn(text) == drawn("generated:retrieval#documents=x") == [], (
        "which the source itself reports"
    )


def test_conversations_need_a_number_and_a_length():
    def wrong(spec, most=4096):
        return [problem.wrong for problem in check_conversations([spec, "stdlib"], most)]

    assert wrong("generated:retrieval#documents=9&tokens=1k-4k") == []
    assert wrong("generated:retrieval#targets=all") == [
        "it has no end",
        "nothing says how long its conversations are",
        "the targets of a conversation are its answers",
    ]
    assert wrong("generated:retrieval#documents=9&tokens=4k", 2048) == [
        "its conversations have up to 4,096 tokens, and would lose their questions at max_tokens",
    ]


def test_a_tokenizer_is_trained_on_the_text_of_it():
    assert written_text(["stdlib", "generated:retrieval#text=stdlib", "generated:retrieval"]) == [
        "stdlib"
    ]
    assert written_text(["generated:retrieval#rivals=2&text=text:a#b", "text:c"]) == [
        "text:a#b",
        "text:c",
    ]
    assert only_one(["stdlib"]) is only_one(["generated:retrieval", "stdlib"]) is None
    assert only_one(["generated:retrieval"]).spec == "generated:retrieval"
