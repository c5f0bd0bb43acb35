"""What of a data spec, a path or a command is shown to people elsewhere."""

import pytest

from tape_ds.export.redaction import command_line, hub_names, shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("text:/data/own/*.txt", "text:*.txt"),
        ("jsonl:~/own/a.jsonl#text", "jsonl:a.jsonl#text"),
        ("text:~somebody/own/a.txt", "text:a.txt"),
        ("/home/jo smith/models/tiny base", "tiny base"),
        ("typing.py (text:/home/jo smith/*.py)", "typing.py (text:*.py)"),
        ("hub:allenai/c4:en", "hub:allenai/c4:en"),
        ("--output_dir=/scratch/me/out", "--output_dir=out"),
        ('["text:/a/b c.txt", "arrow:../c/d"]', '["text:b c.txt", "arrow:d"]'),
        ("text:/a/b.txt,arrow:/c/d", "text:b.txt,arrow:d"),
        ("runs/demo", "runs/demo"),
        ("smollm2", "smollm2"),
    ],
)
def test_paths_are_cut_to_their_last_part(text, expected):
    assert shown(text) == expected


def test_a_command_can_be_typed_again():
    words = ["/opt/launchers/extend_llama.py", "--train_data", '["text:/a/b c.txt"]', "--seed", "3"]
    assert command_line(words) == """extend_llama.py --train_data '["text:b c.txt"]' --seed 3"""


def test_the_hub_knows_a_data_set_by_its_name_alone():
    """Revision, configuration, split, number and field are of our spec."""
    specs = [
        "hub:togethercomputer/RedPajama-Data-1T-Sample@refs/convert/parquet::train",
        "hub:allenai/c4:en:train[:20000]",
        "hub:imdb#text",
        "hub:allenai/c4:fr",
        "text:/a/b.txt",
    ]
    assert hub_names(specs) == ["togethercomputer/RedPajama-Data-1T-Sample", "allenai/c4", "imdb"]
