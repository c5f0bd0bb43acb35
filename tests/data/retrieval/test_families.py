"""The five families: every answer follows from the records, and from no rival."""

import re

import numpy as np
import pytest

from tape_ds.data.retrieval import families
from tape_ds.data.retrieval.families import FAMILIES
from tape_ds.data.retrieval.names import JOINTS, VALUES, draw_names, draw_values


def drawn(family, count=60, questions=3, rivals=25):
    return [
        FAMILIES[family](np.random.default_rng(seed), questions, rivals) for seed in range(count)
    ]


def fields(template, text):
    """What a record has in the places of a template; None if it is of another form."""
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+?)", re.escape(template))
    match = re.fullmatch(pattern, text)
    return match and match.groupdict()


def name_in(question, asks):
    return next(found for ask in asks if (found := fields(ask, question.ask)))


def test_names_differ_in_one_part_from_one_that_is_asked_for():
    joints = set()
    for seed in range(40):
        names = draw_names(np.random.default_rng(seed), 3, 30)
        (joint,) = [each for each in JOINTS if names[0].count(each) == 2]
        joints.add(joint)
        parts = [tuple(name.split(joint)) for name in names]
        assert len(set(parts)) == 33
        for index, name in enumerate(parts[1:], 1):
            nearest = [
                sum(a != b for a, b in zip(name, asked, strict=True))
                for asked in parts[: min(index, 3)]
            ]
            assert min(nearest) == 1, "as one of those before it that are asked for"
    assert joints == set(JOINTS)


def test_values_are_different_and_of_one_kind():
    kinds = set()
    for seed in range(40):
        values = draw_values(np.random.default_rng(seed), 50)
        assert len(set(values)) == 50
        kinds.add(re.sub(r"[a-z]+", "a", re.sub(r"[A-Z]+", "A", re.sub(r"\d+", "0", values[0]))))
    assert kinds == {"A0", "0.0 a", "A0/A0", "a a"} and len(VALUES) == 4


@pytest.mark.parametrize("family", FAMILIES)
def test_as_many_questions_and_rivals_as_asked_for(family):
    for questions, rivals in ((1, 0), (1, 1), (3, 25), (7, 200)):
        for puzzle in drawn(family, 5, questions, rivals):
            assert len(puzzle.questions) == len(puzzle.asked) == questions
            assert rivals <= len(puzzle.rivals) <= rivals + 6
            records = [*puzzle.rivals, *(record for group in puzzle.asked for record in group)]
            assert len(set(records)) == len(records) and not any(
                "\n" in record for record in records
            )


def test_a_lookup_has_one_value():
    for puzzle in drawn("lookup"):
        (form,) = [form for form in families.RECORDS if fields(form, puzzle.rivals[0])]
        for question, (record,) in zip(puzzle.questions, puzzle.asked, strict=True):
            found = fields(form, record)
            assert found["value"] == question.answer
            assert name_in(question, families.LOOKUPS)["name"] == found["name"]
            assert all(fields(form, rival)["name"] != found["name"] for rival in puzzle.rivals)
            assert all(fields(form, rival)["value"] != question.answer for rival in puzzle.rivals)


def test_values_are_listed_in_the_order_of_their_records():
    for puzzle in drawn("values"):
        (form,) = [form for form in families.RECORDS if fields(form, puzzle.rivals[0])]
        for question, group in zip(puzzle.questions, puzzle.asked, strict=True):
            assert len(group) >= 2 and len({fields(form, record)["name"] for record in group}) == 1
            assert ", ".join(fields(form, record)["value"] for record in group) == question.answer


def test_a_chain_leads_to_its_value():
    for puzzle in drawn("chain"):
        records = [record for group in puzzle.asked for record in group] + list(puzzle.rivals)
        (link, end), *_ = [
            pair
            for pair in families.LINKS
            if all(fields(pair[0], each) or fields(pair[1], each) for each in records)
        ]
        ends = {
            found["name"]: found["value"] for record in records if (found := fields(end, record))
        }
        steps = {
            found["name"]: found["other"] for record in records if (found := fields(link, record))
        }
        for question, group in zip(puzzle.questions, puzzle.asked, strict=True):
            name = name_in(question, families.ENDINGS)["name"]
            taken = 0
            while name not in ends:
                name = steps[name]
                taken += 1
            assert ends[name] == question.answer and taken == len(group) - 1 >= 1


def test_counts_are_those_of_the_records():
    for puzzle in drawn("count"):
        for question, group in zip(puzzle.questions, puzzle.asked, strict=True):
            name = name_in(question, families.COUNTS)["name"]
            assert question.answer == str(len(group)) and all(name in record for record in group)
            others = [record for other in puzzle.asked if other is not group for record in other]
            assert not any(name in record for record in (*others, *puzzle.rivals))


def test_an_item_is_the_one_that_is_asked_for():
    wanted = set()
    for puzzle in drawn("list"):
        (form, joint), *_ = [pair for pair in families.LISTS if fields(pair[0], puzzle.asked[0][0])]
        for question, (record,) in zip(puzzle.questions, puzzle.asked, strict=True):
            items = fields(form, record)["items"].split(joint)
            kind, found = next(
                (kind, found)
                for kind, asks in families.ITEMS.items()
                for ask in asks
                if (found := fields(ask, question.ask))
            )
            wanted.add(kind)
            assert found["name"] in record
            place = {"first": 0, "last": -1}.get(kind)
            place = items.index(found["item"]) + 1 if place is None else place
            assert items[place] == question.answer
    assert wanted == {"after", "last", "first"}
