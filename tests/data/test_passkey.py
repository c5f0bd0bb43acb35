"""Passkey prompts: the published text, exactly as long as asked for, and a function of seed, trial and length."""

import hashlib
import json

import pytest

from tape_ds.data import passkey
from tape_ds.data.passkey import (
    PUBLISHED_LENGTHS,
    answer_ids,
    draw,
    grid,
    published,
    same_ids,
    write,
)
from tape_ds.errors import UserError
from tests.data.letters import Letters

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
    "about the important information there."
)
ROUND = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def test_the_published_text():
    """LongLoRA's cut in the middle of a word, and PoSE's whole rounds, which follow each other without a space."""
    prompt = write(Letters(), 500, 777, 0.5, "longlora")
    task, before, key, after, question = prompt.text.split("\n")
    assert task == TASK and question == "What is the pass key? The pass key is"
    assert key == "The pass key is 777. Remember it. 777 is the pass key."
    endless = f"{ROUND} " * 9
    assert before == endless[: len(before)] and after == endless[: len(after)], (
        "each begins with the grass"
    )
    assert abs(len(before) - len(after)) <= 1
    _, before, _, after, _ = write(Letters(), 620, 777, 0.5, "pose").text.split("\n")
    assert (before, after) == (ROUND * 2, ROUND * 2)


@pytest.mark.parametrize("length", [249, 250, 1000])
def test_it_has_exactly_the_length_where_filler_is_cut_anywhere(length):
    prompt = write(Letters(), length, 12345, 0.3)
    assert len(prompt.ids) == prompt.length == length
    assert list(prompt.ids) == Letters()(prompt.text)["input_ids"]


def test_room_for_a_reply_is_kept_free():
    assert len(write(Letters(), 400, 12345, 0.3, reply=10).ids) == 390
    assert write(Letters(), 400, 12345, 0.3, reply=10).length == 400
    with pytest.raises(UserError, match="give 258 or more"):
        write(Letters(), 257, 12345, 0.3, reply=10)


def test_the_ids_of_an_answer():
    assert answer_ids(Letters(), 123) == tuple(map(ord, " 123"))
    assert same_ids(Letters(), " 123.", 123) and same_ids(Letters(), "1234", 123)
    assert not same_ids(Letters(), " so 123", 123) and not same_ids(Letters(), "12", 123)
    ending = Letters(end=[2])
    assert answer_ids(ending, 123) == tuple(map(ord, " 123")) and same_ids(ending, " 123.", 123)

    class Joining(Letters):
        def __call__(self, text, **options):
            return {"input_ids": [*super().__call__(text, **options)["input_ids"][:-3], len(text)]}

    assert answer_ids(Joining(), 123) is None and not same_ids(Joining(), " 123", 123)


def test_it_is_never_longer_where_a_token_is_many_letters():
    """The real case: the number of tokens moves in jumps, and not by one for a letter."""

    class Words(Letters):
        def __call__(self, text, verbose=True, add_special_tokens=True):
            return {"input_ids": [1] * add_special_tokens + [len(word) for word in text.split()]}

    for length in (60, 61, 257, 1024):
        assert length - 2 <= len(write(Words(), length, 5, 0.7).ids) <= length


@pytest.mark.parametrize("form", passkey.FORMS)
def test_depth_is_the_share_of_filler_before_the_key(form):
    for depth, expected in ((0.0, 0.0), (0.25, 0.25), (1.0, 1.0)):
        _, before, _, after, _ = write(Letters(), 4000, 7, depth, form).text.split("\n")
        assert len(before) / (len(before) + len(after)) == pytest.approx(expected, abs=0.02)


def test_a_prompt_is_a_function_of_seed_trial_and_length():
    one = draw(Letters(), [300, 500], 3, seed=7)
    assert [(prompt.length, prompt.trial) for prompt in one] == [
        (n, t) for n in (300, 500) for t in range(3)
    ]
    assert draw(Letters(), [500], 2, seed=7) == one[3:5], "whatever else is asked for"
    assert len({prompt.key for prompt in one}) == len({prompt.depth for prompt in one}) == 6
    assert draw(Letters(), [500], 1, seed=8)[0].key != one[3].key
    assert [p.key for p in draw(Letters(), [500], 2, seed=7, form="pose")] == [
        p.key for p in one[3:5]
    ]


def test_a_drawn_prompt_leaves_room_for_its_reply():
    """In a run's scores prompt and reply had 8 tokens more than their length, and the command's had not: the same model
    got different numbers at "8k"."""
    prompts = draw(Letters(), [300, 500], 3, seed=7)
    assert [len(prompt.ids) + passkey.REPLY_TOKENS for prompt in prompts] == [300] * 3 + [500] * 3


def test_keys_and_depths_are_uniform():
    """Of 2,000 each tenth holds 200 +- 13 (one standard deviation); 5 of them never happen by chance."""
    prompts = draw(Letters(), [260], 2000, seed=1)
    for share in (
        [prompt.key / passkey.LARGEST_KEY for prompt in prompts],
        [prompt.depth for prompt in prompts],
    ):
        tenths = [
            sum(int(min(value, 0.999) * 10) == tenth for value in share) for tenth in range(10)
        ]
        assert max(abs(count - 200) for count in tenths) < 67
    assert (
        min(prompt.key for prompt in prompts) >= 1
        and max(prompt.key for prompt in prompts) <= 50_000
    )


def test_what_cannot_be_is_named():
    with pytest.raises(UserError) as caught:
        draw(Letters(), [100, 240, 300], 2, seed=1)
    found = [(problem.field, problem.value) for problem in caught.value.problems]
    assert found == [("passkey_lengths", 100), ("passkey_lengths", 240)]


def asked(lengths=(400, 600), depths=(0.0, 0.5), trials=2, seed=3, form="longlora", reply=10):
    return grid(Letters(), lengths, depths, trials, seed=seed, form=form, reply=reply)


def test_every_cell_has_its_trials():
    questions = asked()
    places = [(each.length, each.depth, each.trial) for each in questions]
    assert places == [(n, d, t) for n in (400, 600) for d in (0.0, 0.5) for t in range(2)]
    assert len({each.name for each in questions}) == len(questions)
    for question in questions:
        prompt = question.write()
        assert (prompt.length, prompt.depth, prompt.trial) == (
            question.length,
            question.depth,
            question.trial,
        )
        assert len(prompt.ids) == question.length - 10, "room for the reply"
        before = prompt.text.index(f"The pass key is {prompt.key}.")
        assert (before < 200) == (question.depth == 0)


def keys(questions):
    return {each.name: each.write().key for each in questions}


def test_a_key_follows_from_its_cell_and_the_seed():
    few = keys(asked(lengths=[600], depths=[0.5], trials=1))
    many = keys(asked())
    assert few.items() <= many.items(), "whatever else is asked for"
    assert len(set(many.values())) == 8
    assert keys(asked(form="pose")) == many
    assert not set(keys(asked(seed=4)).values()) & set(many.values())


def test_the_published_filler():
    """3.75 characters a token in whole kilobytes, cut anywhere; a seed puts its key at the same share everywhere."""
    questions = published(Letters())
    assert [each.length for each in questions[::20]] == list(PUBLISHED_LENGTHS) and len(
        questions
    ) == 160
    characters = []
    for question in questions[::20]:
        prompt = question.write()
        _, before, key, after, last = prompt.text.split("\n")
        characters.append(len(before) + len(after))
        endless = f"{ROUND} " * 400
        assert before == endless[: len(before)] and after == endless[: len(after)]
        assert prompt.depth == len(before) / characters[-1] and question.depth is None
        assert key == f"The pass key is {prompt.key}. Remember it. {prompt.key} is the pass key."
        assert last == "What is the pass key? The pass key is"
    assert characters == [3072, 7168, 10240, 14336, 18432, 21504, 25600, 29696]


@pytest.mark.parametrize(
    ("seed", "place", "key"), [(0, 2732, 43568), (1, 1061, 33004), (19, 1629, 10863)]
)
def test_the_published_keys_and_places(seed, place, key):
    """What ``numpy.random.seed(seed)``, ``randint(0, 3072)``, ``randint(1, 50000)`` give, in this order."""
    prompt = published(Letters(), [1000])[seed].write()
    assert (len(prompt.text.split("\n")[1]), prompt.key, prompt.trial) == (place, key, seed)


def digest(prompts):
    kept = [(each.length, each.trial, each.key, each.depth, each.ids) for each in prompts]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]


def test_stored_results_were_asked_these_prompts():
    """Another prompt for the same seed would change what stored numbers are of, by no one's notice."""
    letters = Letters()
    assert digest(draw(letters, [600, 1000], 3, 5)) == "29b2cf7c1c80fc0a"
    assert digest(draw(letters, [600, 1000], 3, 5, "pose")) == "1d1dfba51bfced33"
    for form, expected in (("longlora", "a1ce0a8ecfaf973f"), ("pose", "b27539fb27f9ece5")):
        questions = grid(letters, [600, 1000], [0.0, 0.5, 1.0], 2, seed=5, form=form, reply=10)
        assert digest(question.write() for question in questions) == expected
    assert (
        digest(question.write() for question in published(letters, [1000, 3000], 3))
        == "fca2a5779fe168c7"
    )
