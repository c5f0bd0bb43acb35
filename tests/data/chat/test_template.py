"""What a conversation is rendered to, and which of its tokens are the assistant's."""

from datetime import date

import numpy as np
import pytest
from tokenizers import processors

from tape_ds.data.chat import template
from tape_ds.data.chat.template import UnfitTemplateError
from tape_ds.errors import UserError
from tests.data.chat import chatml
from tests.data.chat.chatml import CHATML, MARKED, by_hand, conversation, tokenizer

CONVERSATIONS = {
    "one answer": conversation("def add(a, b)?", "return a + b"),
    "two answers, a system prompt": conversation(
        "text?", "class Tape:\n    pass", "and?", "é", system="Be brief."
    ),
    "an answer of nothing": conversation("say nothing", "", "and now?", "pass"),
    "no answer": conversation("def add(a, b)?"),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_mask_is_the_one_made_by_hand(name):
    """ChatML, token for token: an answer and all that the rendering adds for it, its end of turn included."""
    of = tokenizer()
    ids, targets = template.encoded(CONVERSATIONS[name], of)
    expected, mask = by_hand(CONVERSATIONS[name], of)
    assert ids.dtype == np.int32 and targets.dtype == bool
    assert ids.tolist() == expected.tolist() and targets.tolist() == mask.tolist()


def test_marks_of_a_template_are_taken_at_their_word():
    of, turns = tokenizer(MARKED), CONVERSATIONS["two answers, a system prompt"]
    ids, targets = template.encoded(turns, of)
    expected, mask = by_hand(turns, of)
    line = of("\n", add_special_tokens=False)["input_ids"]
    ends = [*np.flatnonzero(np.diff(mask.astype(int)) == -1), len(mask) - 1]
    assert len(ends) == 2 and all([expected[end]] == line for end in ends)
    mask[ends] = False
    assert ids.tolist() == expected.tolist() and targets.tolist() == mask.tolist()


LINES = (
    "{% for m in messages %}{{ '### ' + m.role + ': ' + m.content + '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### assistant: ' }}{% endif %}"
)
INNER = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}|{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""Its marks leave an answer's end out."""


def test_every_answer_has_its_end_as_a_target():
    of = tokenizer(LINES)
    ids, targets = template.encoded(conversation("a", "yes", "b", "no"), of)
    begins = np.flatnonzero(np.diff(targets.astype(int), prepend=0) == 1)
    answers = [
        of.decode(part[mask])
        for part, mask in zip(np.split(ids, begins), np.split(targets, begins), strict=True)
    ]
    assert answers == ["", "yes\n\n", "no\n\n"]


@pytest.mark.parametrize("answer", ["🚀", "at the end é", " begins with a space", "ends with one "])
def test_marked_answers_are_whole(answer):
    of = tokenizer(INNER)
    turns = conversation("a", answer, "b", "no")
    for trimmed in (False, True):
        of.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=trimmed)
        ids, targets = template.encoded(turns, of)
        assert of.decode(ids[targets]).replace(" ", "") == f"{answer}no".replace(" ", "")


BEGUN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}|{% endfor %}"
    "{% if add_generation_prompt %}[assistant]<think>{% endif %}"
)


@pytest.mark.parametrize(
    ("text", "turns", "reason"),
    [
        (
            chatml.FORGETFUL,
            conversation("a", "so THOUGHT b", "c", "d"),
            "turn 2: .* once more turns follow",
        ),
        (BEGUN, conversation("a", "b"), "turn 2: .* begins an answer .* otherwise"),
        (CHATML, conversation("a", "b")[1:], "begins with an answer"),
        ("{{ raise_exception('no') }}", conversation("a", "b"), "does not render it .no"),
        ("{{ 1 / 0 }}", conversation("a", "b"), "does not render it .division"),
    ],
)
def test_a_template_that_does_not_fit_is_refused_with_the_reason(text, turns, reason):
    with pytest.raises(UnfitTemplateError, match=reason):
        template.encoded(turns, tokenizer(text))


def think(*, marked, header="<|im_start|>assistant\n", prompt="<|im_start|>assistant\n<think>\n"):
    """ChatML that writes ``header`` before an answer, and asks for one with ``prompt``."""
    begin, end = ("{% generation %}", "{% endgeneration %}") if marked else ("", "")
    return (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        + f"{{{{ {header!r} }}}}{begin}{{{{ m.content + '<|im_end|>\n' }}}}{end}"
        + "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
        + f"{{% if add_generation_prompt %}}{{{{ {prompt!r} }}}}{{% endif %}}"
    )


@pytest.mark.parametrize("marked", [False, True])
def test_answers_begin_as_they_are_asked_for_whoever_marks_them(marked):
    """A template with marks was never compared with its own generation prompt, which ends in ``<think>`` here: answers
    were trained behind another beginning than every server asks with. Without marks it was refused, and the remedy was
    to add marks."""
    of = tokenizer(think(marked=marked))
    with pytest.raises(UnfitTemplateError) as caught:
        template.encoded(conversation("count boat 0", "boat 0 is counted"), of)
    wrong = str(caught.value)
    assert wrong.startswith(
        "turn 2: the chat template begins an answer that is there otherwise than one that is asked"
    )
    assert "boat 0 is counted" in wrong or marked
    assert r"asked for by '" in wrong and r"<|im_start|>assistant\n<think>\n'" in wrong
    assert r"give answers that begin with '<think>\n'" in caught.value.remedy
    assert "generation %" not in caught.value.remedy

    followed = conversation("count boat 0", "<think>\nboats\n</think>\nboat 0 is counted")
    ids, targets = template.encoded(followed, of)
    assert of.decode(ids[targets]).endswith("boats\n</think>\nboat 0 is counted<|im_end|>\n")
    header = {"header": "<|im_start|>assistant\n<think>\n"}
    ids, targets = template.encoded(
        conversation("a", "b"), tokenizer(think(marked=marked, **header))
    )
    assert of.decode(ids[targets]) == "b<|im_end|>\n"


@pytest.mark.parametrize(
    ("header", "prompt", "missing"),
    [
        ("<|im_start|>assistant\n\n", "<|im_start|>assistant\n", r"'\n'"),
        ("<|im_start|>assistant\n<think></think>", "<|im_start|>assistant\n", "'<think></think>'"),
        ("<|im_start|>assistant\n", "", r"'<|im_start|>assistant\n'"),
    ],
)
def test_nothing_is_between_the_generation_prompt_and_a_mark(header, prompt, missing):
    """What is asked with neither has it, nor is it learnt."""
    with pytest.raises(UnfitTemplateError) as caught:
        template.encoded(
            conversation("a", "b"), tokenizer(think(marked=True, header=header, prompt=prompt))
        )
    assert f"also writes {missing} where add_generation_prompt is set" in caught.value.remedy


def test_reasoning_that_is_dropped_later_is_learnt_by_marks_where_all_turns_agree():
    """The remedy for such a template without marks, followed. Where an earlier turn reads otherwise while the answer
    is asked for, marks do not help."""
    marked = (
        "{% set last = namespace(user=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set last.user = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}[{{ m.role }}]"
        "{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content if loop.index0 > last.user else m.content.split('THOUGHT')[-1] }}|{% endgeneration %}"
        "{% else %}{{ m.content }}|{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    of = tokenizer(marked)
    ids, targets = template.encoded(conversation("a", "so THOUGHT b", "c", "so THOUGHT d"), of)
    assert of.decode(ids[targets]) == " b|so THOUGHT d|"
    calls = conversation("a", "so THOUGHT call")
    calls += [
        {"role": "tool", "content": "6"},
        {"role": "assistant", "content": "6"},
        *conversation("c", "d"),
    ]
    with pytest.raises(UnfitTemplateError, match=r"turn 4: .* otherwise") as caught:
        template.encoded(calls, of)
    assert "renders earlier turns alike whatever follows" in caught.value.remedy


def test_an_answer_that_a_template_does_not_mark_may_begin_otherwise():
    """Only the last answer is learnt."""
    last = think(marked=True).replace("{% generation %}", "{% if loop.last %}{% generation %}")
    last = last.replace(
        "{% endgeneration %}", "{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    )
    of = tokenizer(last)
    ids, targets = template.encoded(conversation("a", "b", "c", "<think>\nd"), of)
    assert of.decode(ids[targets]) == "<think>\nd<|im_end|>\n"


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.no.more }}",
        "{{ messages.append(1) }}",
        "{% for",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_does_not_render_a_prompt_is_a_mistake_and_no_crash(text):
    """``evaluate generate --chat`` printed jinja's traceback."""
    with pytest.raises(
        UserError, match=r"--chat = True: the tokenizer's chat template does not render it \(.+\)"
    ):
        template.prompt_ids("Hello", tokenizer(text))


def test_a_given_template_takes_the_place_of_the_models(tmp_path):
    (tmp_path / "mine.jinja").write_text(MARKED)
    of = tokenizer(None)
    (problem,) = template.give(of, None, "runs/x")
    assert problem.field == "chat_template" and "runs/x" in problem.wrong
    assert (
        template.give(of, str(tmp_path / "mine.jinja"), "runs/x") == []
        and of.chat_template == MARKED
    )


TALK = conversation("a", "yes", "b", "no")


def text_of(of, *more):
    ids, _ = template.encoded(TALK, of, *more)
    return of.decode(ids)


@pytest.mark.parametrize(
    "named",
    [chatml.TOOLED, {"default": CHATML, "tool_use": chatml.TOOLED}],
    ids=["one", "one of two"],
)
def test_tools_are_rendered_as_transformers_does(named):
    of = tokenizer(named)
    expected = of.apply_chat_template(TALK, tools=[chatml.WEATHER], tokenize=False)
    assert text_of(of, [chatml.WEATHER]) == expected and '"name": "weather"' in expected
    assert text_of(of) == of.apply_chat_template(TALK, tokenize=False)


def test_tools_that_the_template_leaves_out_are_refused():
    with pytest.raises(UnfitTemplateError, match="renders none"):
        template.encoded(TALK, tokenizer(CHATML), [chatml.WEATHER])


ALTERNATING = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ 'USER: ' + m.content }}{% elif m.role == 'assistant' %}"
    "{{ ' ASSISTANT:' + m.content + eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
    " ASSISTANT:{% endif %}"
)
"""As Vicuna's and Zephyr's: other roles fall through."""


@pytest.mark.parametrize(("role", "place"), [("system", 0), ("tool", 2)])
def test_a_turn_that_the_template_leaves_out_is_refused(role, place):
    turns = [*TALK[:place], {"role": role, "content": "6 degrees"}, *TALK[place:]]
    with pytest.raises(
        UnfitTemplateError, match=f"turn {place + 1}: .* leaves the role {role} out"
    ):
        template.encoded(turns, tokenizer(ALTERNATING))
    # what the template would write by itself
    own = [{"role": "system", "content": "You are kind"}, *TALK]
    for read, text in ((TALK, ALTERNATING), (turns, CHATML), (own, CHATML)):
        template.encoded(read, tokenizer(text))


LLAMA_3 = (
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}"
    "{%- endif %}{{ 'Today: ' + date_string + '\n' }}" + CHATML
)
"""How Llama 3.1 and 3.2 come by their date."""


@pytest.mark.parametrize("text", [chatml.DATED, LLAMA_3])
def test_a_template_writes_the_date_that_is_given(text):
    of = tokenizer(text)
    assert template.is_dated(of) and not template.is_dated(tokenizer(CHATML))
    found = text_of(of, None, date(2025, 3, 9))
    assert "09 Mar 2025" in found and "2026" not in found


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("{{ ['a', 'b'] | random }}" + CHATML, "at random"), ("{% for", "not a jinja template")],
)
def test_a_template_that_draws_or_does_not_parse_is_refused(text, wrong):
    (problem,) = template.give(tokenizer(text), None, "m")
    assert problem.field == "chat_template" and wrong in problem.wrong


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CHATML, "<|im_end|>"),  # and a line break after it
        (MARKED, "<|im_end|>"),
        (CHATML.replace("<|im_end|>", "</s>"), "</s>"),
        (CHATML.replace("<|im_end|>", " <|end|>"), None),  # a text of several tokens
        (LINES, None),
        (INNER, None),  # its end is no target
    ],
)
def test_what_ends_an_answer_is_seen_in_the_rendering(text, expected):
    of = tokenizer(text)
    ids, targets = template.encoded(TALK, of)
    assert (
        template.ends(ids, targets, of)
        == [-1 if expected is None else of.convert_tokens_to_ids(expected)] * 2
    )
