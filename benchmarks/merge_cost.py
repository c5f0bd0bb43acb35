"""Memory and CPU time of merging a LoRA, of exporting it and of loading it, beside peft and an earlier version.

    python -m benchmarks merge --earlier CHECKOUT --repeats 3

A Llama of random weights in bf16 (by default of 839 M parameters) gets a LoRA of random weights on every linear map,
once as peft saves it and once as a run does. The commands take turns, each in a process of its own: ``tape-ds merge``,
``export`` (a folder, and a GGUF file), ``convert`` and ``evaluate generate``, the first two of the checkout
``--earlier`` as well, and peft's ``merge_and_unload`` with ``save_pretrained``. Then ``merge`` and ``export`` with four
times the layers, once. Memory is the largest resident set of a process, mapped files included; time is that of the CPU,
user and system. What the versions have merged is compared number by number.
"""

import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.checkout import check_checkout, run_python
from benchmarks.choose import RESULTS
from benchmarks.stored_page import versions_of, write_page
from tape_ds import results
from tape_ds.arguments import Parser, below_one
from tape_ds.checkpoint import trained
from tape_ds.errors import Problem, check_folder, raise_if_any
from tape_ds.installation import ROOT
from tape_ds.markdown_table import markdown_table
from tape_ds.methods.prepare import prepare_model
from tape_ds.models import hollow
from tape_ds.models.files import weight_files
from tape_ds.models.files.tensor_rows import StoredRows, pieces
from tape_ds.models.loading import extendable
from tape_ds.models.writing import SafetensorsFile

REPEATED = ("merge", "export")
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK = 16
OURS = "this version"
EARLIER = "earlier"
PEFT = "peft"
_BY_PEFT = """
import sys, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
PeftModel.from_pretrained(model, sys.argv[2]).merge_and_unload().save_pretrained(sys.argv[3])
"""
_MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(code)
"""
"""A small process that starts a command: a child's largest memory is at first that of its parent."""


def main(argv: list[str]) -> int:
    parser = Parser(prog="python -m benchmarks merge", description=__doc__)
    parser.add_argument("--layers", type=int, default=14, help="default: %(default)s")
    parser.add_argument("--width", type=int, default=2048, help="columns; default: %(default)s")
    parser.add_argument(
        "--rows", type=int, default=32000, help="of the vocabulary; default: %(default)s"
    )
    help = "of merge and export, the others run once; default: %(default)s"
    parser.add_argument("--repeats", type=int, default=3, help=help)
    parser.add_argument("--earlier", type=Path, help="a checkout to compare with")
    parser.add_argument("--work", type=Path, help="folder for models; default: a temporary one")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the result; default: %(default)s"
    )
    options = parser.parse_args(argv)
    problems = below_one(options, "layers", "width", "rows", "repeats") + check_folder(
        "--out", options.out
    )
    problems += check_checkout(options.earlier)
    if options.width % 128:
        problems.append(
            Problem("--width", options.width, "not a multiple of 128", "give a multiple of 128")
        )
    raise_if_any(problems)
    config = {
        "layers": options.layers,
        "width": options.width,
        "rows": options.rows,
        "repeats": options.repeats,
    }
    started = results.collect(
        command=["python", "-m", "benchmarks", "merge", *argv], seed=0, config=config
    )
    if options.work is not None:
        Path(options.work).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        figures = measure(Path(folder), options)
    stored = started.finish(figures)
    write_page(stored, options.out / "merge_cost_cpu.json", page(stored))
    return 0


def measure(folder: Path, options: Any) -> dict[str, Any]:
    few = make(folder / "few", options.layers, options.width, options.rows)
    rows: dict[str, dict[str, list[dict[str, float]]]] = {}
    versions = {OURS: ROOT} | (
        {} if options.earlier is None else {EARLIER: options.earlier.resolve()}
    )
    for turn in range(options.repeats):
        for name, command in commands(few).items():
            if turn and name not in REPEATED:
                continue
            for version, root in versions.items() if name in REPEATED else [(OURS, ROOT)]:
                found = timed(command, root, few / version / name)
                rows.setdefault(name, {}).setdefault(version, []).append(found)
                print(
                    f"{name}, {version}: {found['seconds']:.1f} s, {found['bytes'] / 2**30:.2f} GiB",
                    flush=True,
                )
        by_peft = [sys.executable, "-c", _BY_PEFT, few / "base", few / "adapter", "out"]
        rows["merge"].setdefault(PEFT, []).append(timed(by_peft, ROOT, few / PEFT))
    differing = {}
    if EARLIER in versions:
        for name in REPEATED:
            differing[name] = compare(few / OURS / name / "out", few / EARLIER / name / "out")
    many = make(folder / "many", 4 * options.layers, options.width, options.rows)
    deep = {}
    for name in REPEATED:
        deep[name] = timed(commands(many)[name], ROOT, many / name)
        shutil.rmtree(many / name)
    weights = sum(file.stat().st_size for file in weight_files.files(few / "base"))
    return {
        "rows": rows,
        "four_times_the_layers": deep,
        "differing": differing,
        "weights_bytes": weights,
    }


def commands(folder: Path) -> dict[str, list[Any]]:
    """Return the commands by name; each writes into the present folder."""
    tape_ds = [sys.executable, "-m", "tape_ds"]
    prompt = ["--prompt", "w1 w2 w3", "--max_new_tokens", "1"]
    return {
        "merge": [*tape_ds, "merge", folder / "adapter", "out"],
        "export": [*tape_ds, "export", folder / "trained", "out"],
        "export --gguf": [
            *tape_ds,
            "export",
            folder / "trained",
            "--gguf",
            "x.gguf",
            "--gguf_tokenizer",
            "none",
        ],
        "convert": [*tape_ds, "convert", "llama-to-tape", folder / "base", "out"],
        "evaluate generate": [*tape_ds, "evaluate", "generate", folder / "trained", *prompt],
    }


def timed(command: Sequence[Any], root: Path, folder: Path) -> dict[str, float]:
    """Run a command of the checkout ``root`` in a folder; return CPU seconds, user and system, and peak bytes."""
    # of the last time
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    printed = run_python(root, ["-S", "-c", _MEASURED, *map(str, command)], folder)
    seconds, peak = printed.split()[-2:]
    return {"seconds": float(seconds), "bytes": int(peak) * 1024}


def compare(ours: Path, theirs: Path) -> dict[str, int]:
    """Return how many numbers of two folders differ, of how many, and by how many units of the last place at most."""
    one = StoredRows(weight_files.files(ours))
    other = StoredRows(weight_files.files(theirs))
    assert set(one.names()) == set(other.names())
    counted = {"numbers": 0, "differing": 0, "largest": 0}
    for name in one.names():
        for a, b in zip(pieces(one, name), pieces(other, name), strict=True):
            steps = (_ordered(a) - _ordered(b)).abs()
            counted["numbers"] += steps.numel()
            counted["differing"] += int(steps.count_nonzero())
            counted["largest"] = max(counted["largest"], int(steps.max()))
    return counted


def _ordered(rows: Tensor) -> Tensor:
    """Return bf16 numbers as whole numbers, in their order and without gaps."""
    bits = rows.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def make(folder: Path, layers: int, width: int, rows: int) -> Path:
    """Make a base with its tokenizer, an adapter as peft saves it and a run's folder, of random weights."""
    random = torch.Generator().manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 43 // 16,
        num_hidden_layers=layers,
        num_attention_heads=width // 128,
        vocab_size=rows,
        max_position_embeddings=2048,
        dtype=torch.bfloat16,
    )
    base = folder / "base"
    base.mkdir(parents=True)
    config.save_pretrained(base)
    with torch.device("meta"):
        forms = LlamaForCausalLM(config).to(torch.bfloat16).state_dict()
    file = SafetensorsFile(base / weight_files.WHOLE, forms)
    for name, form in forms.items():
        list(file.write(name, [(0.02 * torch.randn(form.shape, generator=random)).bfloat16()]))
    file.close()
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(rows)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w2").save_pretrained(
        base
    )

    model = hollow.hollow(LlamaForCausalLM.from_pretrained(base, device_map={"": "meta"}))
    lora = LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=2 * RANK, target_modules=TARGETS)
    adapted = get_peft_model(model, lora)
    _randomise(dict(adapted.named_parameters()), random)
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(folder / "adapter", save_embedding_layers=False)

    native = extendable.read(base)
    extended = extendable.configure(native, position_encoding="rope")
    model = hollow.hollow(extendable.load(base, extended, device_map={"": "meta"}))
    fields = {"lora_r": RANK, "lora_alpha": 2 * RANK, "lora_dropout": 0.0, "lora_targets": TARGETS}
    switches = {"train_position": False, "train_norms": False, "train_embeddings": False}
    prepared: Any = prepare_model("lora", model, SimpleNamespace(**fields, **switches))
    _randomise({name: prepared.model.get_parameter(name) for name in prepared.names}, random)
    record = trained.TrainedRecord(str(base), "lora", prepared.names)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    trained.save_trained(folder / "trained", prepared.model, record, tokenizer)
    return folder


def _randomise(parameters: Mapping[str, nn.Parameter], random: torch.Generator) -> None:
    for name, parameter in parameters.items():
        if "lora_B" in name:
            parameter.data = 0.01 * torch.randn(parameter.shape, generator=random)


def page(stored: results.Result) -> str:
    """Return the figures with what they were measured with."""
    config = stored.config
    figures = stored.figures
    weights = figures["weights_bytes"]
    rows = []
    for name, versions in figures["rows"].items():
        for version, runs in versions.items():
            seconds = statistics.median(map(itemgetter("seconds"), runs))
            peak = max(map(itemgetter("bytes"), runs))
            row = [name, version, f"{seconds:.1f}", f"{peak / 2**30:.2f}"]
            deep = figures["four_times_the_layers"].get(name)
            # the earlier version was measured with the first model alone
            if version == OURS and deep is not None:
                rows.append([*row, f"{deep['seconds']:.1f}", f"{deep['bytes'] / 2**30:.2f}"])
            else:
                rows.append([*row, "", ""])
    columns = ["command", "by", "CPU seconds", "peak GiB", "4 x layers: CPU seconds", "peak GiB"]
    compared = []
    for name, each in figures["differing"].items():
        text = f"`{name}`: {each['differing']:,} of {each['numbers']:,} numbers differ from the earlier version's"
        compared.append(f"{text}, by {each['largest']} units of the last place at most.")
    versions = versions_of(stored, "python", "torch", "transformers", "peft")
    lines = [
        "# Merging, exporting and loading a LoRA",
        f"A Llama of {config['layers']} layers, {config['width']:,} columns and {config['rows']:,} tokens, "
        f"{weights / 2**30:.2f} GiB in bf16, with a LoRA of rank {RANK} on every linear map. One thread of "
        f"{stored.hardware['cpu']}; CPU seconds (user and system) are medians of {config['repeats']} for merge and "
        "export, the others of one; memory is the largest resident set of a process, mapped files included.",
        markdown_table(columns, rows),
        *compared,
        f"Seed {stored.seed}, {stored.started}, commit {stored.commit}. {versions}.",
        f"    {' '.join(stored.command)}",
    ]
    return "\n\n".join(lines) + "\n"
