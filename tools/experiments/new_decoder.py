"""Make a model folder of one of transformers' families, with random weights, to be trained from scratch.

    tape-ds train-tokenizer --data stdlib --vocab_size 2048 --output tokenizer
    python -m tools.experiments.new_decoder gemma2 --config '{"hidden_size": 128, ...}' --tokenizer tokenizer \\
        --output start

``tape-ds pretrain`` builds Llama-shaped models; ``tape-ds extend --method full`` at the native length trains such a
folder instead. Exit codes: 0 done; 2 bad input.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tape_ds import building, paths
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, command, did_you_mean, raise_if_any


def write_folder(output: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a new folder of a model, whole or not at all."""

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    building.build_aside(output, write, "--output")


@command
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m tools.experiments.new_decoder", description=__doc__)
    parser.add_argument("family", help="transformers' model type")
    parser.add_argument(
        "--config", type=json.loads, default={}, help="fields of its configuration, as JSON"
    )
    parser.add_argument(
        "--tokenizer", required=True, help="a folder; the vocabulary is its number of tokens"
    )
    parser.add_argument("--output", required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    output = Path(options.output)
    problems = paths.check_new("--output", output)
    if not isinstance(options.config, dict):
        remedy = 'give a mapping, such as {"hidden_size": 128}'
        problems.append(Problem("--config", options.config, "not a mapping", remedy))
    raise_if_any(problems)
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    try:
        known = AutoConfig.for_model(options.family).to_dict()
    except ValueError as error:
        reason = f"transformers makes no such model: {error}"
        raise UserError(Problem("family", options.family, reason, "")) from None
    # a family ignores fields that it does not know
    for name, value in options.config.items():
        if name not in known:
            reason = f"is no field of {options.family}"
            problems.append(Problem(f"--config {name}", value, reason, did_you_mean(name, known)))
    raise_if_any(problems)
    fields = {"vocab_size": len(tokenizer)}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        fields[name] = getattr(tokenizer, name)
    config = AutoConfig.for_model(options.family, **fields | options.config)
    torch.manual_seed(options.seed)
    model = AutoModelForCausalLM.from_config(config)
    write_folder(output, model, tokenizer)
    print(f"{options.output}: {type(model).__name__}, {model.num_parameters():,} parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
