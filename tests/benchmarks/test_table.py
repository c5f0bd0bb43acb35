"""A file gives back what was stored, and the markdown shows it."""

import dataclasses

from benchmarks import table
from tests.benchmarks.helpers import row

ROWS = [
    row("sdpa cudnn", 3.0, encoding="rope", peak_bytes=2 * 2**20),
    row("sdpa flash", 4.0, encoding="rope", forward_p20=1.0, forward_p50=1.25, forward_p80=1.5),
    row("ours", 5.4, peak_bytes=3 * 2**20),
    row("flex, default", status="wrong", reason='dq is off by 1.0e-01, "much"', error=0.1),
    row(
        "one call, sdpa flash",
        status="refused",
        reason="No available kernel",
        error=None,
        peak_bytes=None,
    ),
]


def write(rows, path):
    for each in rows:
        table.append(dataclasses.asdict(each), path)


def test_a_later_row_replaces_an_earlier_one_and_other_lines_are_passed_over(tmp_path):
    path = tmp_path / "campaign_1.jsonl"
    write([row("attend triton", 5.0), row("attend sdpa", 6.0)], path)
    table.append({"stage": "attention", "end": "done"}, path)
    write([row("attend triton", 4.0)], path)
    with open(path, "a") as file:
        file.write('{"group": "attention", "sha')  # killed as it wrote
    assert [(each.implementation, each.total_p50) for each in table.read(path)] == [
        ("attend triton", 4.0),
        ("attend sdpa", 6.0),
    ]


def line_of(text, implementation):
    (line,) = [
        each
        for each in text.splitlines()
        if each.startswith("|") and f"| {implementation} |" in each
    ]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_markdown_divides_by_the_fastest_rope():
    text = table.markdown(ROWS)
    header = line_of(text, "implementation")
    ours = dict(zip(header, line_of(text, "ours"), strict=True))
    assert ours["/ fastest RoPE (sdpa cudnn)"] == "1.800"
    assert ours["total"] == "5.400 (4.860–5.940)"
    assert ours["peak MiB"] == "3.0"
    assert ours["peak / fastest RoPE (sdpa cudnn)"] == "1.500"
    assert "| flex, default |" not in text, "what is wrong has no line among times"
