"""Exact match by one pass over prompt and answer: it is what writing the answer says, in bounded batches."""

import pytest
import torch

from tape_ds.model.configuration import TapeConfig
from tape_ds.model.llama import TapeForCausalLM
from tape_ds.scoring import exact_match
from tape_ds.scoring.answers import Asked
from tape_ds.scoring.exact_match import ExactMatch
from tape_ds.scoring.generation import continue_prompts

VOCABULARY, EOS = 7, 1


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = TapeConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        position_encoding="tape",
        initializer_range=0.5,
        pad_token_id=None,
    )
    return TapeForCausalLM(config).eval()


def greedy(model, prompt, tokens):
    """What the model writes behind ``prompt``, the end included where it comes."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(tokens):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def asked(prompt, answer):
    return Asked(torch.tensor([[*prompt, *answer]]), len(answer))


@pytest.fixture(scope="module")
def questions(model):
    """Prompts of all lengths with what the model writes; each third answer is changed in one token."""
    torch.manual_seed(1)
    made, expected = [], []
    for number in range(24):
        prompt = torch.randint(2, VOCABULARY, (1 + number % 9,)).tolist()
        answer = greedy(model, prompt, 1 + number % 5)
        if number % 3 == 0:
            place = number % len(answer)
            answer[place] = (answer[place] + 1) % VOCABULARY
        made.append(asked(prompt, answer))
        expected.append(number % 3 != 0)
    return made, expected


@pytest.mark.parametrize("batch_tokens", [1, 40, 8192])
def test_right_is_what_the_model_would_have_written(model, questions, batch_tokens):
    made, expected = questions
    assert exact_match.right(model, made, batch_tokens=batch_tokens) == expected


def test_it_agrees_with_written_answers(model):
    """Whatever is asked: greedy decoding up to the end, with a cache, says the same."""
    torch.manual_seed(2)
    prompts = [torch.randint(2, VOCABULARY, (3,)).tolist() for _ in range(60)]
    answers = [[*torch.randint(2, VOCABULARY, (number % 2,)).tolist(), EOS] for number in range(60)]
    written = continue_prompts(model, prompts, new_tokens=4, ends=[EOS])
    expected = [list(reply) == answer[:-1] for reply, answer in zip(written, answers, strict=True)]
    found = exact_match.right(model, [asked(*pair) for pair in zip(prompts, answers, strict=True)])
    agreeing = [one == other for one, other in zip(found, expected, strict=True)]
    assert all(agreeing) and any(found) and not all(found)


def test_batches_are_bounded_and_of_similar_length(model, questions):
    """And each reads the model, and its head, once: under ZeRO-3 all ranks gather the same weights together."""
    made, expected = questions
    seen, heads = [], []
    hooks = [
        model.model.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape), with_kwargs=True
        ),
        model.lm_head.register_forward_hook(lambda *call: heads.append(call[2].shape[0])),
    ]
    assert exact_match.right(model, made, batch_tokens=40) == expected
    for hook in hooks:
        hook.remove()
    assert len(seen) == len(heads) > 4
    assert all(sequences * tokens <= 40 for sequences, tokens in seen)
    assert sum(sequences for sequences, _ in seen) == len(made) and sum(heads) == sum(one.targets for one in made)


def test_every_batch_is_shared_out(model, questions):
    made, expected = questions

    def backwards(work, jobs):
        return [work(job) for job in reversed(jobs)][::-1]

    assert exact_match.right(model, made, each=backwards, batch_tokens=40) == expected


def test_the_mode_of_training_is_restored(model, questions):
    model.train()
    exact_match.right(model, questions[0][:2])
    assert model.training
    model.eval()


def test_nothing_asked_is_nothing_found(model):
    assert exact_match.right(model, []) == []


def test_what_cannot_be_scored_is_refused(model, questions):
    with pytest.raises(ValueError, match="batch_tokens = 0"):
        exact_match.right(model, questions[0], batch_tokens=0)

    with pytest.raises(ValueError, match="not a causal LM"):
        exact_match.right(model.base_model, questions[0])


def test_scores_are_stored_and_read():
    one = ExactMatch(correct=3, answers=4)
    assert one.to_dict() == {"correct": 3, "answers": 4, "share": 0.75}
    assert ExactMatch.from_dict(one.to_dict()) == one
