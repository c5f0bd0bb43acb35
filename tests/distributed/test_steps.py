"""A step whose sequences or layers are shared by processes is that of one: loss and every gradient, for every
encoding."""

from dataclasses import replace

import pytest

from tests.distributed import step_cases
from tests.distributed.step_cases import DIMENSIONS, PAIRWISE, TOLERANCE, Case
from tests.models.helpers import ENCODINGS

KINDS = DIMENSIONS["kind"]

EVERY_ENCODING = [
    Case(4 if at % 2 else 2, kind, name, sequences="packed" if at % 3 else "pose", tokens=13)
    for kind in KINDS
    for at, name in enumerate(ENCODINGS)
]
EVERY_HEADS = [
    Case(4, kind, encoding, heads)
    for kind in KINDS
    for encoding in ("rope", "tape", "tape from alibi")
    for heads in DIMENSIONS["heads"]
]
SPECIAL = {
    "one target": Case(4, encoding="tape", tokens=2),
    "fewer tokens than processes": Case(4, encoding="rope", tokens=3),
    "a whole share is padding": Case(4, encoding="tape", tokens=5),
    "adapters, PoSE": Case(2, encoding="tape", sequences="pose", lora=True),
    "adapters, PoSE, recomputed": Case(
        4, encoding="tape", sequences="pose", lora=True, checkpointing=True
    ),
    "positions drawn": Case(
        4, encoding="tape", options={"position_options": {"random_shift": 40, "form": "vector"}}
    ),
    "offsets of digits drawn": Case(
        2,
        encoding="rope",
        sequences="packed",
        tokens=13,
        options={
            "position_options": {
                "abacus": True,
                "abacus_digits": list(range(20, 50)),
                "abacus_shift": 40,
            }
        },
    ),
    "scores by the keys seen": Case(4, encoding="tape log scale", sequences="packed", tokens=13),
    "loss from logits": Case(2, encoding="rope", sequences="masked", tokens=13, logits=True),
    "tied embeddings": Case(
        2, encoding="tape", sequences="packed", options={"tie_word_embeddings": True}
    ),
    "weights": Case(4, encoding="tape", sequences="packed", tokens=13, weights="given"),
    "weights from losses": Case(2, encoding="rope", sequences="pose", tokens=13, weights="losses"),
    "biased projections": Case(2, encoding="tape", options={"qkv_bias": True}),
    # in fp32, as the norms are whatever the model is
    "normed heads": Case(
        2, encoding="tape", heads="mqa", dtype="float32", options={"qk_norm": True}
    ),
    "fp32": Case(4, encoding="tape", sequences="packed", tokens=13, dtype="float32"),
}


def named(case):
    return "-".join(
        str(value)
        for value in (case.kind, case.size, case.encoding, case.heads, case.sequences, case.tokens)
    )


def check(group, case, tolerance=TOLERANCE):
    """Loss and gradients, to the tolerance."""
    distances = group.run(step_cases.step, case)[0]
    assert len(distances) > 10
    worst = max(distances, key=distances.get)
    assert distances[worst] <= tolerance, f"{worst} is off by {distances[worst]:.1e}"


@pytest.mark.parametrize("case", PAIRWISE, ids=named)
def test_loss_and_gradients_are_those_of_one_process(group, case):
    """Lengths that do not divide, documents, PoSE, padding on the left, grouped heads, recomputation; every two of
    them. Their product takes hours: ``make scale`` runs it."""
    check(group, case)


@pytest.mark.parametrize("case", EVERY_ENCODING, ids=named)
def test_every_encoding_of_the_registry(group, case):
    """Those that read tokens, count documents or draw at random see whole sequences, whatever part of them a process
    has."""
    check(group, case)


@pytest.mark.parametrize("case", EVERY_HEADS, ids=named)
def test_four_processes_on_any_heads(group, case):
    """With two or one key/value heads, several processes read the same one: its gradient is the sum of theirs."""
    check(group, case)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SPECIAL)
def test_special_cases(group, name, kind):
    case = replace(SPECIAL[name], kind=kind)
    in_fp32 = case.dtype == "float32" or case.logits  # transformers' loss takes logits in fp32
    check(group, case, 2e-6 if in_fp32 else TOLERANCE)


@pytest.mark.parametrize(("heads", "size"), [("mha", 2), ("gqa", 4), ("mqa", 4)])
def test_tape_moves_a_third_more_than_rope(group, heads, size):
    """A wide value and a wide output next to a query and a key; but in the last layer, whose update is not read."""
    rope, tape = (group.run(step_cases.moved_bytes, name, heads, size) for name in ("rope", "tape"))
    assert len(set(rope)) == len(set(tape)) == 1
    assert tape[0] * 3 == rope[0] * 4  # two of three layers


def test_rope_moves_no_more_than_it_must(group):
    """Queries, keys, values and the output, forward and backward: 2 (2 H K + 2 G K) numbers per token and layer."""
    batch, tokens, layers, head_size, heads, groups = 2, 12, 3, 8, 4, 2
    numbers = 2 * (2 * heads + 2 * groups) * head_size * tokens // 2 * batch * layers
    assert group.run(step_cases.moved_bytes, "rope", "gqa", 2) == [4 * numbers] * group.ranks


def test_pieces_of_different_weights_are_refused(group):
    for message in group.run(step_cases.refused_cut, "weights"):
        assert "different weights" in message


@pytest.mark.parametrize("size", DIMENSIONS["size"])
def test_a_model_in_pieces_generates_as_a_whole_one(group, size):
    """In evaluation too, with a cache of its own heads; prompts of another length in the next group."""
    assert group.run(step_cases.generated, size) == [True] * group.ranks


@pytest.mark.parametrize("entries", [8 * 30, 3 * 31])
def test_pieces_of_other_sizes_exchange_chunks_of_equal_length(group, entries):
    """Of 31 and 30 entries of the vocabulary: as many logits are seven tokens of the larger, eight of the smaller."""
    case = Case(2, "tensor", sequences="packed", tokens=13)
    assert max(group.run(step_cases.step_in_chunks, case, entries)[0].values()) <= TOLERANCE


@pytest.mark.parametrize(
    ("encoding", "savings"),
    [
        ("tape", {"checkpoint_layers": "selective"}),
        ("tape flattened", {"checkpoint_layers": 1, "checkpoint_offload": True}),
        ("tape", {"mlp_tiles": 5, "checkpoint_layers": "selective"}),
    ],
    ids=["selective", "offloaded", "tiles"],
)
def test_memory_savings_on_a_model_in_pieces(group, encoding, savings):
    """What is computed again is exchanged again, by all in the same order; more tiles than a process has tokens."""
    case = Case(4, "tensor", encoding, sequences="packed", tokens=13)
    assert max(group.run(step_cases.step_with_savings, case, savings)[0].values()) <= TOLERANCE


@pytest.mark.parametrize("where, words", [("input_ids", "a token"), ("labels", "a target")])
def test_an_id_outside_the_vocabulary_is_refused(group, where, words):
    """Each process would take it for another's."""
    for message in group.run(step_cases.foreign_id, where, 2):
        assert f"{words} is none of the vocabulary's 61 entries" in message


def test_a_piece_counts_as_what_it_is_a_piece_of(group):
    assert group.run(step_cases.whole_numels, 4) == [True] * group.ranks


@pytest.mark.parametrize(
    "change, words",
    [
        ("attention_bias", "attention_bias"),
        ("dora", "lora_magnitude_vector"),
        ("adapted head", "lm_head"),
        ("foreign head", "lm_head"),
    ],
)
def test_what_cannot_be_cut_is_refused(group, change, words):
    for message in group.run(step_cases.refused_cut, change):
        assert words in message


def test_the_parts_of_a_sequence_add_up_without_a_count_of_targets(group):
    """10 tokens on four processes: three each, two of the last one's are padding."""
    for part in group.run(step_cases.part_of_a_sequence, 4, 10):
        assert part["logits"][:2] == (2, 3)
        assert part["loss"] == pytest.approx(part["alone"], rel=1e-6)  # from logits, in fp32


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"use_cache": True}, "use_cache=False"),
        ({"logits_to_keep": 1}, "logits_to_keep"),
        ({"group_tokens": 4}, "every head"),
    ],
)
def test_what_a_part_of_a_sequence_cannot_do_is_refused(group, arguments, words):
    for message in group.run(step_cases.refusal, arguments):
        assert words in message
