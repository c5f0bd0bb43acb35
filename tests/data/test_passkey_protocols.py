"""The grid's keys depend on their own cell alone; the published prompts are the published ones."""

import pytest

from tape_ds.data import passkey
from tape_ds.data.passkey import PUBLISHED_LENGTHS, fingerprint, grid, published
from tape_ds.errors import UserError
from tests.data.letters import Letters

ROUND = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def asked(lengths=(400, 600), depths=(0.0, 0.5), trials=2, seed=3, form="longlora", reply=10):
    return grid(Letters(), lengths, depths, trials, seed=seed, form=form, reply=reply)


def test_every_cell_has_its_trials():
    questions = asked()
    places = [(each.length, each.depth, each.trial) for each in questions]
    assert places == [(n, d, t) for n in (400, 600) for d in (0.0, 0.5) for t in range(2)]
    assert len({each.name for each in questions}) == len(questions)
    for question in questions:
        prompt = question.write()
        assert (prompt.length, prompt.depth, prompt.trial) == (question.length, question.depth, question.trial)
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


def test_lengths_without_room_are_refused_together():
    with pytest.raises(UserError) as caught:
        asked(lengths=[100, 200, 400])
    assert [(each.field, each.value) for each in caught.value.problems] == [("lengths", 100), ("lengths", 200)]
    needed = int(caught.value.problems[0].remedy.split()[1])
    assert len(asked(lengths=[needed])) == 4


def test_the_published_filler():
    """3.75 characters a token in whole kilobytes, cut anywhere; a seed puts its key at the same share everywhere."""
    questions = published(Letters())
    assert [each.length for each in questions[::20]] == list(PUBLISHED_LENGTHS) and len(questions) == 160
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


@pytest.mark.parametrize(("seed", "place", "key"), [(0, 2732, 43568), (1, 1061, 33004), (19, 1629, 10863)])
def test_the_published_keys_and_places(seed, place, key):
    """What ``numpy.random.seed(seed)``, ``randint(0, 3072)``, ``randint(1, 50000)`` give, in this order."""
    prompt = published(Letters(), [1000])[seed].write()
    assert (len(prompt.text.split("\n")[1]), prompt.key, prompt.trial) == (place, key, seed)


def test_a_fingerprint_tells_forms_and_words_apart(monkeypatch):
    one = fingerprint("longlora")
    assert one != fingerprint("pose") and one == fingerprint("longlora")
    monkeypatch.setattr(passkey, "text", lambda *_: "other words")
    assert fingerprint("longlora") != one
