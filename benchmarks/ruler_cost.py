"""The CPU time of one of RULER's questions: alone, after a text that questions share, and in lm-eval's own run.

    python -m benchmarks ruler smollm2 --length 4k --questions 5

The same model is asked the same prompts, questions about one text, in one process on one thread: by lm-eval's ``hf``
(a batch of one), by ``evaluate ruler``, and by ``evaluate ruler --questions_per_text``. The first two take turns by
question; then come all questions after the shared text. Times are CPU seconds of the process, which other work on the
machine disturbs less than wall time.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.choose import RESULTS
from benchmarks.stored_page import versions_of, write_page
from tape_ds import results
from tape_ds.arguments import Parser, add_model, below_one, length
from tape_ds.errors import Problem, UserError, check_folder, raise_if_any
from tape_ds.markdown_table import markdown_table
from tape_ds.scoring import generation, models, replies, ruler_questions
from tape_ds.scoring.losses import bare
from tape_ds.scoring.ruler_generators import Generators, NoQuestionError, configuration
from tape_ds.scoring.ruler_questions import RulerQuestion
from tape_ds.scoring.ruler_texts import TooFewKeysError

TASK = "niah_multikey_2"
LM_EVAL = "lm-eval, hf"
ALONE = "evaluate ruler"
SHARED = "evaluate ruler --questions_per_text"


def main(argv: list[str]) -> int:
    parser = Parser(prog="python -m benchmarks ruler", description=__doc__)
    add_model(parser)
    parser.add_argument(
        "--length", type=length, default=4096, help="tokens of prompt and reply (default: 4k)"
    )
    parser.add_argument(
        "--questions", type=int, default=5, help="about one text (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="0: lm-eval's own seeds (default)")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the result; default: %(default)s"
    )
    options = parser.parse_args(argv)
    raise_if_any(below_one(options, "questions") + check_folder("--out", options.out))
    torch.set_num_threads(1)
    tested = models.find(options)
    tokenizer = tested.tokenizer()
    count = options.questions
    try:
        drawn = ruler_questions.draw(
            Generators(list),
            TASK,
            tokenizer,
            options.length,
            count,
            seed=options.seed or None,
            per_text=count,
        )
    except (NoQuestionError, TooFewKeysError) as error:
        remedy = "give a longer --length, or fewer --questions"
        raise UserError(
            Problem("--length", options.length, f"too short ({error})", remedy)
        ) from error
    prompts = ruler_questions.prompts(
        TASK, [each.document for each in drawn.questions], tokenizer, chat=False
    )
    started = results.collect(
        command=["python", "-m", "benchmarks", "ruler", *argv],
        seed=options.seed,
        model=tested.about(),
        config={
            "task": TASK,
            "length": options.length,
            "questions": options.questions,
            "threads": 1,
        },
        data={"questions": ruler_questions.fingerprint(drawn.questions)},
    )
    figures = measure(tested.load(), tokenizer, drawn.questions, prompts)
    stored = started.finish(figures)
    write_page(stored, options.out / "ruler_cost_cpu.json", page(stored))
    return 0


def measure(
    model: Any, tokenizer: Any, questions: Sequence[RulerQuestion], prompts: Sequence[str]
) -> dict[str, Any]:
    """Return CPU seconds by way of asking, and the replies."""
    causal_lm = bare(model)
    reading: dict[str, Any] = {
        "new_tokens": questions[0].new_tokens,
        "ends": generation.ends_of(model, tokenizer),
    }
    ask_lm_eval = through_lm_eval(model, tokenizer, questions[0].length)
    seconds: dict[str, list[float]] = {LM_EVAL: [], ALONE: []}
    texts: dict[str, list[str]] = {LM_EVAL: [], ALONE: []}
    with models.used_at(model, questions[0].length), torch.no_grad():
        # what a first call alone takes
        replies.reply(causal_lm, questions[0].ids[:64], new_tokens=2)
        for question, prompt in zip(questions, prompts, strict=True):
            taken, text = timed(ask_lm_eval, prompt)
            seconds[LM_EVAL].append(taken)
            texts[LM_EVAL].append(text)
            taken, ids = timed(replies.reply, causal_lm, question.ids, **reading)
            seconds[ALONE].append(taken)
            texts[ALONE].append(tokenizer.decode(ids, skip_special_tokens=True))
        asked = [question.ids for question in questions]
        taken, together = timed(replies.replies_sharing, causal_lm, asked, **reading)
    seconds[SHARED] = [taken / len(questions)] * len(questions)
    texts[SHARED] = list(map(partial(tokenizer.decode, skip_special_tokens=True), together))
    ways = {}
    of_lm_eval = sum(seconds[LM_EVAL])
    for name, each in seconds.items():
        ways[name] = {
            "seconds": sum(each) / len(each),
            "share": sum(each) / of_lm_eval,
            "replies": texts[name],
        }
    tokens = [len(question.ids) for question in questions]
    return {"ways": ways, "prompt_tokens": tokens, "shared_tokens": replies.shared_beginning(asked)}


def through_lm_eval(model: Any, tokenizer: Any, length: int) -> Callable[[str], str]:
    """Return what asks lm-eval's own model one prompt."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, max_length=length)
    settings = configuration(TASK)["generation_kwargs"]

    def ask(prompt: str) -> str:
        request = Instance(
            request_type="generate_until", doc={}, arguments=(prompt, dict(settings)), idx=0
        )
        (text,) = lm.generate_until([request], disable_tqdm=True)
        return str(text)

    return ask


def timed(work: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[float, Any]:
    """Return the CPU seconds of this process, all threads, and the outcome."""
    began = time.process_time()
    outcome = work(*arguments, **options)
    return time.process_time() - began, outcome


def page(stored: results.Result) -> str:
    """Return the figures with what they were measured with."""
    config = stored.config
    ways = stored.figures["ways"]
    rows = []
    for name, each in ways.items():
        pairs = zip(each["replies"], ways[LM_EVAL]["replies"], strict=True)
        same = sum(reply == other for reply, other in pairs)
        rows.append(
            [
                name,
                f"{each['seconds']:.1f}",
                f"{each['share']:.3f}",
                f"{same} of {len(each['replies'])}",
            ]
        )
    columns = ["asked by", "CPU seconds a question", "/ lm-eval", "replies as lm-eval's"]
    model = described(stored.model or {})
    versions = versions_of(stored, "python", "torch", "transformers", "lm-eval")
    tokens = stored.figures["prompt_tokens"]
    lines = [
        "# One of RULER's questions, CPU time",
        f"{model}, one thread of {stored.hardware['cpu']}: {config['questions']} questions of `{config['task']}` about "
        f"one text of {config['length']:,} tokens (prompts of {min(tokens):,} to {max(tokens):,}, of which "
        f"{stored.figures['shared_tokens']:,} are shared). Replies are greedy, and end at the model's end of text.",
        markdown_table(columns, rows),
        f"Seed {stored.seed}, {stored.started}, commit {stored.commit}. {versions}.",
        f"    {' '.join(stored.command)}",
    ]
    return "\n\n".join(lines) + "\n"


def described(model: Mapping[str, Any]) -> str:
    return f"`{model['address']}` in {model['dtype']}"
