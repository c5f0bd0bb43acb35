"""``docs/results/README.md``: made from what is stored, and nothing else; numbers are found where they are."""

import json
import re
import shutil

import pytest

from evaluation import published
from evaluation.published import Quantity
from tape_ds import results
from tools.reproduce import __main__ as reproduce
from tools.reproduce import page, readings, registry, render
from tools.reproduce.experiment import PAPER, ROOT, TINY, Measured, Place, Source

COMMITTED = ROOT / page.PAGE


@pytest.fixture(scope="module")
def built():
    return page.build()


@pytest.fixture
def copy(tmp_path):
    """A checkout with nothing in it but results, those of ``tools.reproduce`` left out: tests store their own."""
    left_out = shutil.ignore_patterns(page.STORED.name)
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "docs" / "results", ignore=left_out)
    shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "benchmarks" / "results")
    shutil.copy(ROOT / "docs" / "pose.md", tmp_path / "docs")
    return tmp_path


def store(root, name, values, scale=TINY, **changes):
    """What ``python -m tools.reproduce NAME --results docs/results/reproduce`` leaves."""
    each = registry.EXPERIMENTS[name]
    source = Source(ROOT / "runs" / "x.json", "python tools/x.py --y", "2 x H100", "2027-01-01T00:00:00+00:00", "abc")
    ours = Measured(values, (source,))
    place = Place(root / "runs" / name)
    whole = render.as_result(results.collect(command=["x"]), each, scale, each.forms[scale], ours, place)
    results.save(whole, root / page.STORED / f"{name}_{scale}.json")


def row_of(text, label):
    """Cells of a table's row."""
    line = next(line for line in text.splitlines() if line.startswith(f"| [{label}]"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_committed_page_is_what_the_results_give(built):
    """Change results and not this page: ``python -m tools.reproduce --page``."""
    assert COMMITTED.read_text(encoding="utf-8") == built


def test_the_command_writes_it(built, monkeypatch, tmp_path):
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    monkeypatch.setattr(reproduce, "WORK", tmp_path)
    assert reproduce.main(["--page"]) == 0
    assert (tmp_path / page.PAGE).read_text() == built


def test_every_experiment_has_a_row_and_a_section(built):
    for each in registry.EXPERIMENTS.values():
        cells = row_of(built, each.label)
        assert len(cells) == 6 and each.title in cells[0]
        assert f"## {each.label}: {each.title}" in built.splitlines()


def test_a_mean_over_what_was_trained_stands_beside_that_of_the_rest(copy):
    metrics = {"exact_match": 25.0, "exact_match beyond": 0.25, "exact_match within": 99.0}
    store(copy, "figure5", {"RoPE": {Quantity("addition_6", name): value for name, value in metrics.items()}}, PAPER)
    ours = row_of(page.build(copy), "Figure 5")[2]
    assert ours.endswith("addition 6 exact match / addition 6 exact match beyond: RoPE 25.00 / 0.25")


def test_links_lead_somewhere(built):
    headings = {
        re.sub(r"[^\w\- ]", "", line[3:].lower()).replace(" ", "-") for line in built.splitlines() if line[:3] == "## "
    }
    links = re.findall(r"\]\(([^)]+)\)", built)
    assert len(links) > 20
    for link in links:
        assert link[1:] in headings if link.startswith("#") else (COMMITTED.parent / link).exists(), link


def test_every_page_and_folder_of_results_is_listed(copy):
    """By its own page, by the page elsewhere that names it, or where nobody does, by itself."""
    (copy / "docs" / "results" / "nameless").mkdir()
    (copy / "docs" / "a.md").write_text("# About a\n\nSee [it](results/somewhere/x.json).\n")
    (copy / "docs" / "results" / "somewhere").mkdir()
    listed = {link: title for title, link, _ in page.pages(copy)}
    assert listed["../a.md"] == "About a" and listed["nameless"] == "nameless"
    assert {path.name for path in (copy / page.RESULTS).glob("*.md")} - {page.PAGE.name} <= set(listed)
    assert "../pose.md" in listed


def test_published_numbers_stand_on_the_page(built):
    """All of them, in the sections: taken from a table, a row's numbers follow one another."""
    assert "| TAPE | 3.641 | 3.196 | 2.901 | 2.708 | 8.226 | 7.642 | 7.278 | 7.063 |" in built
    assert "| I = 24 | 133.0 | 86.1 | 63.2 | 51.8 | 0.22 |" in built


def test_what_is_not_stored_is_not_measured(copy):
    text = page.build(copy)
    assert row_of(text, "Table 6")[2:4] == ["not measured", ""]
    assert "python -m tools.reproduce table6 --scale paper" in row_of(text, "Table 6")[4]
    assert not page.is_stored(registry.EXPERIMENTS["table6"], copy)


def test_what_is_stored_is_shown(copy):
    quantity = Quantity("stdlib", "perplexity", 256)
    store(copy, "table6", {"TAPE": {quantity: 71.25}, "not equivariant, vector": {quantity: 80.5}})
    cells = row_of(page.build(copy), "Table 6")
    assert "stdlib perplexity 256: TAPE 71.2; not equivariant, vector 80.5" in cells[2]
    assert cells[3] == "2 x H100" and "table6 --scale tiny" in cells[4]
    assert page.is_stored(registry.EXPERIMENTS["table6"], copy)


def test_the_larger_scale_comes_first_and_each_has_a_row(copy):
    github = Quantity("github", "perplexity", 1024)
    store(copy, "table6", {"TAPE": {Quantity("stdlib", "perplexity", 256): 71.25}})
    store(copy, "table6", {"TAPE": {github: 51.0}}, scale=PAPER)
    lines = [line for line in page.build(copy).splitlines() if line.startswith(("| [Table 6]", "| Table 6, again"))]
    assert "github perplexity 1,024: TAPE 51.0" in lines[0] and "stdlib" in lines[1] and "as above" in lines[1]


def test_a_stored_file_that_is_none_is_told(copy, monkeypatch, capsys):
    (copy / page.STORED).mkdir(exist_ok=True)
    (copy / page.STORED / "table6_tiny.json").write_text("{}")
    with pytest.raises(ValueError, match="schema"):
        page.build(copy)


def test_numbers_of_other_commands_are_found():
    """The evaluations of SmolLM2, where their own files have them."""
    entry = next(page.entries(registry.EXPERIMENTS["table2"], ROOT))
    own = json.loads((ROOT / "docs/results/evaluate_smollm2/tape/perplexity.json").read_text())
    expected = next(each["perplexity"] for each in own["figures"]["perplexity"] if each["length"] == 16384)
    assert entry.ours.values["TAPE"][Quantity("stdlib", "perplexity", 16384)] == expected
    assert {"LoRA", "untouched"} <= set(entry.ours.values)


def test_settings_are_those_of_the_recipes():
    """Table 5 is typed by nobody: the project's own settings are read from its recipes."""
    found = registry.EXPERIMENTS["table5"].kept[0].read(ROOT).values
    assert set(found) == set(published.TABLE_5.rows)
    batch, steps = Quantity("recipe", "batch"), Quantity("recipe", "steps")
    for row, numbers in found.items():
        assert numbers[batch] == published.TABLE_5.value(row, batch)[0]
        assert numbers[steps] == published.TABLE_5.value(row, steps)[0]
    assert found["SCROLLS"][Quantity("recipe", "tokens")] == 8192


@pytest.mark.parametrize(
    ("text", "title", "first"),
    [
        ("# A `b`\n\nOne. Two.", "A b", "One."),
        (
            "# A\n\n    code. here\n\n| t |\n|---|\n\nWhat [it](x.md) is (1.5 GB: much): more.",
            "A",
            "What it is (1.5 GB: much).",
        ),
        ("# A\n\nNo end", "A", "No end"),
    ],
)
def test_a_page_is_told_by_its_title_and_its_first_sentence(text, title, first):
    assert page.opening(text) == (title, first)


def result(figures, **config):
    return results.Result(command=["x"], started="", config=config, figures=figures)


@pytest.mark.parametrize(
    ("take", "stored", "expected"),
    [
        (
            readings.perplexity,
            result(
                {
                    "perplexity": [
                        {"source": "bin:a/pg19.bin", "convention": "all_tokens", "length": 8192, "perplexity": 7.5}
                    ]
                }
            ),
            {Quantity("pg19", "perplexity", 8192): 7.5},
        ),
        (
            readings.perplexity,
            result(
                {
                    "perplexity": [
                        {"source": "bin:a/pg19.bin", "convention": "blocks", "length": 8192, "perplexity": 7.5}
                    ]
                }
            ),
            {Quantity("pg19", "perplexity (blocks)", 8192): 7.5},
        ),
        (
            readings.passkeys,
            result({"passkeys": [{"length": 8000, "correct": 19, "trials": 20}]}, protocol="published"),
            {Quantity("passkey", "accuracy", 8000): 95.0},
        ),
        (
            readings.passkeys,
            result({"passkeys": [{"length": 8000, "correct": 1, "trials": 4}]}, protocol="grid"),
            {Quantity("passkey", "accuracy, own prompts", 8000): 25.0},
        ),
        (
            readings.scrolls,
            result(
                {
                    "datasets": {
                        "qasper": {"metric": "f1", "score": 11.5},
                        "quality": {"metric": "exact_match", "score": None},
                    }
                }
            ),
            {Quantity("qasper", "f1"): 11.5},
        ),
        (
            readings.harness,
            result(
                {
                    "tasks": {
                        "mmlu_a": {"metric": "acc", "value": 0.1},
                        "arc_easy": {"metric": "acc_norm", "value": 0.75},
                    },
                    "groups": {"mmlu_other": {"metric": "acc", "value": 0.5, "tasks": ["mmlu_a"]}},
                }
            ),
            {Quantity("arc_easy", "accuracy"): 75.0, Quantity("mmlu_other", "accuracy"): 50.0},
        ),
        (
            readings.arithmetic,
            result(
                {
                    "task": "addition",
                    "trained": [20, 20],
                    "means": {"twice": {"value": 0.25}, "beyond": {"value": 0.0}, "trained": {"value": None}},
                }
            ),
            {Quantity("addition_20", "exact_match"): 25.0, Quantity("addition_20", "exact_match beyond"): 0.0},
        ),
    ],
)
def test_numbers_are_read_under_the_published_names(take, stored, expected):
    assert take(stored) == expected


def test_both_halves_of_table_8_are_read_apart():
    layers = {
        "1": {"attention_l1": 0.0893, "positions_percent": 0.03},
        "8": {"attention_l1": 0.1, "positions_percent": None},
    }
    stored = result({"models": [{"name": "RoPE", "mean": {"add_tokens": {"layers": layers}}}]})
    ((name, numbers),) = readings.stability(stored)
    first = Quantity("add_tokens", "layer 1")
    assert name == "RoPE" and numbers[first] == pytest.approx(published.TABLE_8_ATTENTION.value("RoPE", first)[0])
    assert numbers[readings.halved(first)] == 0.03 and len(numbers) == 3


def test_benchmarks_give_the_fastest_way_of_each(tmp_path):
    header = "group,shape,dtype,encoding,rival,status,forward_p50,total_p50,repeats,device,chip,date,commit"
    lines = [
        *(
            "table4,L1,float32,tape,attend sdpa,timed,2.0,2.0,3,CPU,cpu,2027,abc",
            "table4,L1,float32,tape,attend x,timed,1.0,1.0,3,CPU,cpu,2027,abc",
        ),
        *(
            'table4,L1,float32,tape,"published, three sdpa",timed,4.0,4.0,3,CPU,cpu,2027,abc',
            "table4,L1,float32,t5,attend x,refused,,,3,CPU,cpu,2027,abc",
        ),
    ]
    (tmp_path / "table4_cpu.csv").write_text("\n".join([header, *lines]) + "\n")
    found = registry.EXPERIMENTS["table4"].kept[0].read(tmp_path / "table4_cpu.csv")
    time, throughput = Quantity("L1", "time"), Quantity("L1", "throughput")
    assert found.values == {
        "TAPE, fused": {time: 10.0, throughput: 1000.0},
        "TAPE, not fused": {time: 40.0, throughput: 250.0},
    }
    assert found.sources[0].command == "python -m benchmarks table4 --device cpu --dtype float32 --repeats 3"


@pytest.mark.parametrize("name", registry.EXPERIMENTS)
def test_headlines_are_published(name):
    each = registry.EXPERIMENTS[name]
    assert bool(each.tables) == bool(each.headline)
    assert all(any(quantity in table.quantities for table in each.tables) for quantity in each.headline)
