"""Every decoder of transformers with rotary positions: computed as transformers' eager attention does, or refused."""

import copy
import math

import pytest
import torch
import transformers
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, DynamicCache, MllamaConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from tape_ds.encodings import scaling, trained_rope
from tape_ds.errors import UserError
from tape_ds.models import decoder, decoder_configuration, hybrids
from tape_ds.models.flops import decoder_shape
from tape_ds.models.loading import extendable
from tests.models import families_page
from tests.models.families_page import KINDS, unscaled
from tests.models.tiny_decoders import VOCABULARY, families, tiny_config

TOKENS = 40
WANTED = (
    *(
        "mistral",
        "mixtral",
        "gemma",
        "gemma2",
        "gemma3_text",
        "phi3",
        "olmo2",
        "olmo3",
        "granite",
        "smollm3",
    ),
    *("qwen2_moe", "qwen3_moe", "gpt_neox", "stablelm", "cohere", "cohere2", "glm4", "gpt_oss"),
)
HYBRIDS = (
    *(
        "qwen3_next",
        "qwen3_5_text",
        "qwen3_5_moe_text",
        "olmo_hybrid",
        "bailing_hybrid",
        "kimi_linear",
        "lfm2",
    ),
    *("lfm2_moe", "lfm3", "nemotron_h", "granitemoehybrid", "bamba", "falcon_h1", "zamba2"),
)
OF_MODELS = families_page.PAGE.parents[1] / "model.md"


def pair(name, **changes):
    """Return transformers' model with eager attention and ours with the same weights, in evaluation mode."""
    config = tiny_config(name, **changes)
    native = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    plain = copy.deepcopy(config)
    plain._attn_implementation = "eager"
    eager = native(plain)
    with torch.no_grad():  # norms, biases and sinks with an effect
        for weight in eager.parameters():
            if weight.ndim < 2:
                weight.add_(0.1 * torch.randn_like(weight))
    ours = decoder.class_of(native)(decoder_configuration.configure(config))
    ours.load_state_dict(eager.state_dict())
    return eager.eval(), ours.eval()


def assert_equal(ours, eager, room=2e-5):
    """To fp32's rounding: another order of the sums of a few layers, relative to the largest number."""
    torch.testing.assert_close(ours, eager, rtol=0, atol=room * float(eager.detach().abs().max()))


@torch.no_grad()
def check_logits(eager, ours):
    ids = torch.randint(3, VOCABULARY, (2, TOKENS))
    ones, positions = torch.ones_like(ids), torch.arange(TOKENS).expand(2, -1)

    def of_eager(ids, **given):
        return eager(
            ids, **{"attention_mask": torch.ones_like(ids), "use_cache": False, **given}
        ).logits

    assert_equal(ours(ids, use_cache=False).logits, of_eager(ids))

    for padding in (slice(0, 7), slice(-7, None)):
        mask = ones.clone()
        mask[0, padding] = 0
        padded = ours(ids, attention_mask=mask, use_cache=False).logits
        assert_equal(padded[mask > 0], of_eager(ids, attention_mask=mask)[mask > 0])

    at = TOKENS // 2 - 3
    documents, restarting = (ones.cumsum(1) > at).long(), positions.clone()
    restarting[:, at:] -= at
    packed = ours(ids, position_ids=restarting, document_ids=documents, use_cache=False).logits
    assert_equal(packed, torch.cat([of_eager(ids[:, :at]), of_eager(ids[:, at:])], dim=1))

    # transformers counts a window's keys; for skips beyond it see below
    skipping = positions.clone()
    skipping[:, at:] += 5 if "window" in decoder_configuration.needs(ours.config) else 300
    skipped = ours(ids, position_ids=skipping, use_cache=False).logits
    assert_equal(skipped, of_eager(ids, position_ids=skipping))


def check_generation(eager, ours, **how):
    ids = torch.randint(3, VOCABULARY, (2, TOKENS - 3))
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    how = {
        "max_new_tokens": 5,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
        **how,
    }
    expected = eager.generate(ids, attention_mask=mask, eos_token_id=None, **how)
    found = ours.generate(ids, attention_mask=mask, eos_token_id=None, **how)
    assert torch.equal(found.sequences, expected.sequences)
    assert_equal(torch.stack(found.logits), torch.stack(expected.logits))


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {
        name: weight.grad.clone()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


def check_training(eager, ours):
    ids = torch.randint(3, VOCABULARY, (2, TOKENS))
    mask, labels = torch.ones_like(ids), ids.clone()
    mask[0, :7], labels[0, :9] = 0, -100
    eager.train(), ours.train()
    logits = eager(ids, attention_mask=mask, use_cache=False).logits
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    wanted = gradients(eager, expected)
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    for checkpointing in (False, True)[: 1 + ours.supports_gradient_checkpointing]:
        if checkpointing:
            ours.gradient_checkpointing_enable({"use_reentrant": False})
        out = ours(ids, attention_mask=mask, labels=labels, use_cache=False)
        assert out.logits is None
        assert_equal(out.loss, expected)
        found = gradients(ours, out.loss)
        assert found.keys() == wanted.keys()
        for name, gradient in found.items():
            room = 1e-4 * max(float(wanted[name].abs().max()), 1e-3 * largest)
            torch.testing.assert_close(gradient, wanted[name], rtol=0, atol=room, msg=name)
    eager.eval(), ours.eval()
    ours.gradient_checkpointing_disable()


def check_documents(ours):
    """Of any length, beside padding anywhere: logits and gradients are those of each document alone, recomputed or
    not."""
    ids = torch.randint(3, VOCABULARY, (2, 120))
    lengths = [[3, 40, 1, 40, 17, 19], [90, 5, 25]]
    documents = torch.stack(
        [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in lengths]
    )
    documents[0, 44:50] = -1  # padding, in the middle
    positions = torch.zeros_like(ids)
    for row, own in enumerate(documents.tolist()):
        for at, number in enumerate(own):
            positions[row, at] = own[:at].count(number)
    labels = ids.masked_fill((documents < 0) | (positions == 0), -100)
    ours.train()
    expected = torch.zeros(())
    for row, number in torch.nonzero(torch.ones(2, 6)).tolist():
        alone = ids[row][documents[row] == number][None]
        if not alone.numel():
            continue
        logits = ours(alone, use_cache=False).logits
        expected = expected + F.cross_entropy(logits[0, :-1], alone[0, 1:], reduction="sum")
    wanted = gradients(ours, expected)
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    for checkpointing in (False, True)[: 1 + ours.supports_gradient_checkpointing]:
        if checkpointing:
            ours.gradient_checkpointing_enable({"use_reentrant": False})
        given = {"position_ids": positions, "document_ids": documents}
        out = ours(ids, **given, labels=labels, num_items_in_batch=1, use_cache=False)
        assert_equal(out.loss, expected)
        for name, gradient in gradients(ours, out.loss).items():
            room = 1e-4 * max(float(wanted[name].abs().max()), 1e-3 * largest)
            torch.testing.assert_close(gradient, wanted[name], rtol=0, atol=room, msg=name)
    ours.gradient_checkpointing_disable()
    ours.eval()


@torch.no_grad()
def check_pieces(ours):
    """A text that is read in pieces, its state kept in a cache, is the text read whole."""
    ids = torch.randint(3, VOCABULARY, (1, TOKENS))
    whole = ours(ids, use_cache=False).logits
    cache, found = DynamicCache(config=ours.config), []
    for piece in ids.split([13, 1, 20, 6], dim=1):
        found.append(ours(piece, past_key_values=cache, use_cache=True).logits)
    assert_equal(torch.cat(found, dim=1), whole)
    documents = torch.arange(TOKENS)[None] // 8
    with pytest.raises(ValueError, match="several documents: give use_cache=False"):
        ours(ids, document_ids=documents, use_cache=True)


def check_foretold(ours, monkeypatch):
    """What reaches the attention, what the head does, and parameters are as the configuration says beforehand."""
    seen = set()
    real = decoder.attend

    def attend(*arguments, **named):
        seen.update(name for name in ("window", "softcap", "sinks") if named.get(name) is not None)
        return real(*arguments, **named)

    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(decoder, "attend", attend)
        ours(torch.arange(3, 3 + TOKENS)[None], use_cache=False)
    assert decoder_configuration.needs(ours.config) == seen
    assert ours._plain_head != decoder_configuration.changes_logits(ours.config)
    counted = sum(each.numbers * each.times for each in decoder_shape(ours.config).weights)
    assert counted == sum(weight.numel() for weight in ours.parameters())


@torch.no_grad()
def check_positions(family):
    """Layers that see everything have positions that can be scaled, but for those of a few families."""
    kinds = getattr(tiny_config(family), "layer_types", None) or []
    if "sliding_attention" not in kinds:
        return
    all_full = ["full_attention" if kind == "sliding_attention" else kind for kind in kinds]
    _, ours = pair(family, layer_types=all_full, num_hidden_layers=len(kinds))
    ids, positions = torch.randint(3, VOCABULARY, (1, 12)), torch.arange(12)[None]
    near, far = (
        ours(ids, position_ids=positions * step, use_cache=False).logits for step in (1, 3)
    )
    assert torch.equal(near, far) == (family in decoder_configuration.ROTATED_WINDOWS)


def buffers(model):
    return {
        f"{path}.{name}": value
        for path, module in decoder.rotary_modules(model).items()
        for name, value in module.named_buffers(recurse=False)
    }


def check_angles(ours):
    before = buffers(ours)
    assert before
    cast = copy.deepcopy(ours).bfloat16()
    assert {weight.dtype for weight in cast.parameters()} == {torch.bfloat16}
    for name, after in buffers(cast).items():
        assert torch.equal(after, before[name]) and after.dtype == before[name].dtype
        angles = torch.arange(131_072.0) * after.max()
        rows = torch.stack((angles.cos(), angles.sin()), dim=1).view(torch.int64)
        assert len(rows.unique()) == 131_072
    assert {value.device.type for value in buffers(copy.deepcopy(ours).to("meta")).values()} == {
        "meta"
    }


@torch.no_grad()
def check_scaling(eager, ours):
    """Scaled as the formulas of :mod:`tape_ds.encodings.scaling` are, and computed by transformers' class."""
    native = eager.config
    own = trained_rope.read(native.to_dict(), native.model_type)
    length = 4 * int(own.reach)
    if own.type in trained_rope.KEPT:
        assert "kept as it is" in str(next(trained_rope.check_change(own, {}, length)))
        return
    for kind in [own.type] if own.is_scaled else KINDS:
        assert not list(trained_rope.check_change(own, {"rope_type": kind}, length))
        wanted = trained_rope.extended(own, {"rope_type": kind}, length)
        if kind in unscaled(native.model_type):
            with pytest.raises(UserError, match="rope_parameters"):
                decoder_configuration.configure(native, rope_parameters=wanted)
            continue
        scaled = check_scaled(eager, ours, wanted, length)
        if kind != "dynamic":
            check_frequencies(scaled, ours, *scaling.frequencies(wanted, own.head_size))


def check_scaled(eager, ours, wanted, length):
    """A model with these parameters, one that is measured with them, and transformers' own are equal."""
    config = decoder_configuration.configure(
        eager.config, rope_parameters=wanted, max_position_embeddings=length
    )
    scaled = type(ours)(config).eval()
    scaled.load_state_dict(ours.state_dict())
    plain = copy.deepcopy(config)
    plain._attn_implementation = "eager"
    expected = type(eager)(plain).eval()
    expected.load_state_dict(eager.state_dict())
    ids = torch.randint(3, VOCABULARY, (1, TOKENS))
    step, window = length // TOKENS, getattr(config, "sliding_window", None)
    if window and "window" in decoder_configuration.needs(config):
        step = min(step, window - 1)  # a larger one puts every other token out of its reach
    given = {"position_ids": torch.arange(TOKENS)[None] * step, "use_cache": False}
    logits = scaled(ids, **given).logits
    assert_equal(logits, expected(ids, attention_mask=torch.ones_like(ids), **given).logits)
    before = ours(ids, **given).logits
    assert not torch.equal(before, logits)
    with ours.with_rope_parameters(wanted):
        assert torch.equal(ours(ids, **given).logits, logits)
    assert torch.equal(ours(ids, **given).logits, before)
    with scaled.with_rope_parameters(eager.config.rope_parameters):
        assert torch.equal(scaled(ids, **given).logits, before)
    return scaled


def check_frequencies(scaled, ours, frequencies, factor):
    """Those of layers that see everything; a window's stay."""
    for path, module in decoder.rotary_modules(scaled).items():
        before = ours.get_submodule(path)
        names = [
            name for name, _ in module.named_buffers() if not name.endswith("original_inv_freq")
        ]
        of_full = "full_attention_inv_freq" if "full_attention_inv_freq" in names else "inv_freq"
        assert of_full in names
        for name in names:
            if name == of_full:
                wanted = torch.tensor(frequencies)
                torch.testing.assert_close(
                    getattr(module, name).double(), wanted, rtol=1e-6, atol=0
                )
                assert getattr(
                    module, name.replace("inv_freq", "attention_scaling")
                ) == pytest.approx(factor)
            else:
                assert torch.equal(getattr(module, name), getattr(before, name))


def check_without_positions(native):
    """Extended by training alone: nothing is scaled."""
    own = trained_rope.read(native.to_dict(), native.model_type)
    length = 4 * int(own.reach)
    config = extendable.configure(
        native,
        rope_parameters=trained_rope.extended(own, {}, length),
        max_position_embeddings=length,
    )
    assert config.max_position_embeddings == length
    assert getattr(config, "rope_parameters", None) == getattr(native, "rope_parameters", None)
    with pytest.raises(
        UserError,
        match=r"(?s)attention without positions, extended by training alone.*rope_parameters: \{\}",
    ):
        extendable.configure(
            native, rope_parameters=trained_rope.extended(own, {"rope_type": "yarn"}, length)
        )


@torch.no_grad()
def check_folder(eager, folder):
    """Extended from a folder, and read from a folder by plain transformers."""
    eager.save_pretrained(folder / "base")
    native = extendable.read(folder / "base")
    assert extendable.check(native) == []
    own = trained_rope.read(native.to_dict(), native.model_type)
    changes = {}
    scalable = own.type not in trained_rope.KEPT and "yarn" not in unscaled(native.model_type)
    if scalable and hybrids.rotates(native):
        length = 2 * int(own.reach)
        changes = {
            "rope_parameters": trained_rope.extended(own, {"rope_type": "auto"}, length),
            "max_position_embeddings": length,
        }
    ours = decoder.load(
        folder / "base", decoder_configuration.configure(native, **changes), dtype=torch.float32
    ).eval()
    ours.save_pretrained(folder / "extended")
    plain = AutoModelForCausalLM.from_pretrained(
        folder / "extended", attn_implementation="eager"
    ).eval()
    rope = [getattr(model.config, "rope_parameters", None) for model in (plain, ours)]
    assert type(plain) is type(eager) and rope[0] == rope[1]
    ids = torch.randint(3, VOCABULARY, (2, TOKENS))
    assert_equal(ours(ids).logits, plain(ids, attention_mask=torch.ones_like(ids)).logits)


@torch.no_grad()
@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("skip", [16, 500])
def test_a_window_counts_positions_where_they_skip(family, skip):
    """PoSE: a layer with a window of 16 sees nothing that a skip of as many puts out of its reach."""
    eager, ours = pair(family)
    ids, positions = torch.randint(VOCABULARY, (2, TOKENS)), torch.arange(TOKENS).repeat(2, 1)
    positions[0, 11:] += skip - 1
    positions[1, 30:] += skip - 1
    back = positions[:, :, None] - positions[:, None, :]
    seen = {
        "full_attention": back >= 0,
        "sliding_attention": (back >= 0) & (back < ours.config.sliding_window),
    }
    masks = {kind: torch.where(mask, 0.0, -math.inf)[:, None] for kind, mask in seen.items()}
    given = masks["sliding_attention"] if family == "mistral" else masks
    expected = eager(
        input_ids=ids, position_ids=positions, attention_mask=given, use_cache=False
    ).logits
    assert_equal(ours(input_ids=ids, position_ids=positions, skip_logits=False).logits, expected)
    # with a second document in each sequence
    documents = (torch.arange(TOKENS) >= 20).int().repeat(2, 1)
    apart = torch.where(documents[:, :, None] == documents[:, None, :], 0.0, -math.inf)[:, None]
    given = (
        given + apart
        if family == "mistral"
        else {kind: mask + apart for kind, mask in masks.items()}
    )
    expected = eager(
        input_ids=ids, position_ids=positions, attention_mask=given, use_cache=False
    ).logits
    found = ours(
        input_ids=ids, position_ids=positions, document_ids=documents, skip_logits=False
    ).logits
    assert_equal(found, expected)


@pytest.mark.parametrize("family", families())
def test_a_family_is_computed_as_transformers_does_or_refused(family, monkeypatch, tmp_path):
    if not extendable.check(tiny_config(family)):  # docs/results/decoders.md has the reason
        check_family(family, monkeypatch, tmp_path)


def test_a_gptj_is_computed_as_its_class_does(monkeypatch, tmp_path):
    """That class is compared with transformers' GPT-J in :mod:`tests.models.test_gptj`."""
    check_family("tape_gptj", monkeypatch, tmp_path)


def check_family(family, monkeypatch, tmp_path):
    eager, ours = pair(family)
    check_logits(eager, ours)
    check_generation(eager, ours)
    check_training(eager, ours)
    if decoder_configuration.carries_state(ours.config):
        check_documents(ours)
        check_pieces(ours)
    check_foretold(ours, monkeypatch)
    check_positions(family)
    if hybrids.rotates(ours.config):
        check_angles(ours)
        check_scaling(eager, ours)
    else:
        check_without_positions(eager.config)
    check_folder(eager, tmp_path)


def test_what_people_have_is_computed():
    computed = set(families_page.taken())
    assert {*WANTED, *HYBRIDS} & set(families()) <= computed and len(computed) >= 35


def test_the_page_says_what_is_computed():
    page = families_page.PAGE.read_text()
    if f"(transformers {transformers.__version__})" not in page:
        pytest.skip(f"the page is of another version than {transformers.__version__}")
    assert page == families_page.with_table(page)
    counts = len(families_page.taken()), len(families()) - len(families_page.taken())
    assert (
        f"has {counts[0]} that are taken, {len(HYBRIDS)} of them hybrids," in OF_MODELS.read_text()
    )
    assert f"and {counts[1]} that are refused" in OF_MODELS.read_text()
    taken_hybrids = [
        name
        for name in families_page.taken()
        if decoder_configuration.carries_state(tiny_config(name))
    ]
    assert sorted(taken_hybrids) == sorted(HYBRIDS)


@pytest.mark.parametrize("family", ["gemma2", "granite", "qwen3"])
@pytest.mark.parametrize("cap", [None, 1.1], ids=["given", "from losses"])
def test_targets_have_weights_in_every_family(family, cap):
    """Of the logits as the family's class computes them: with a soft cap, divided, or the head's own."""
    eager, ours = pair(family, **({"logits_scaling": 3.0} if family == "granite" else {}))
    ids = torch.randint(3, VOCABULARY, (2, TOKENS))
    labels, values = ids.clone(), 3 + 3 * torch.rand(2, TOKENS)
    labels[0, :9], values[1, 5:8] = -100, torch.nan if cap else 0.0
    eager.train(), ours.train()
    logits = eager(ids, use_cache=False).logits
    losses = F.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none"
    ).view(2, -1)
    weights = values[:, 1:]
    if cap:
        weights = (weights - losses.detach()).exp().clamp(max=cap).masked_fill(weights.isnan(), 1.0)
    counted = labels[:, 1:] != -100
    wanted = gradients(eager, (weights * losses)[counted].sum() / 7)
    out = ours(
        ids,
        labels=labels,
        target_weights=values,
        weight_cap=cap,
        num_items_in_batch=7,
        use_cache=False,
    )
    torch.testing.assert_close(out.plain_sum, losses[counted].sum().detach(), rtol=2e-5, atol=0)
    torch.testing.assert_close(out.weight_sum, weights[counted].sum(), rtol=2e-5, atol=0)
    found = gradients(ours, out.loss)
    assert found.keys() == wanted.keys()
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    for name, gradient in found.items():
        room = 1e-4 * max(float(wanted[name].abs().max()), 1e-3 * largest)
        torch.testing.assert_close(gradient, wanted[name], rtol=0, atol=room, msg=name)
    with torch.no_grad():
        hidden = ours.decode(input_ids=ids, use_cache=False).last_hidden_state
        apart = ours.separate_losses(hidden[:, :-1], labels[:, 1:])
    torch.testing.assert_close(apart, losses.detach(), rtol=2e-5, atol=2e-5)
    assert ours._plain_head == (family == "qwen3")


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss"])
def test_a_static_cache_gives_the_same(family):
    check_generation(*pair(family), cache_implementation="static")


# longrope with other factors beyond 32 tokens, as Phi-3 has it
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0 + 0.1 * n for n in range(8)],
    "long_factor": [1.5 + 0.5 * n for n in range(8)],
}


def test_longrope_is_computed_and_kept():
    eager, ours = pair("phi3", rope_parameters=LONGROPE, original_max_position_embeddings=32)
    check_logits(eager, ours)
    check_generation(eager, ours)
    own = trained_rope.read(eager.config.to_dict(), "phi3")
    assert own.is_scaled and not list(trained_rope.check_change(own, {}, 64))
    assert "kept as it is" in str(next(trained_rope.check_change(own, {}, 65)))
    kept = decoder_configuration.configure(
        eager.config, rope_parameters=trained_rope.extended(own, {}, 64)
    )
    assert kept.rope_parameters == eager.config.rope_parameters


@torch.no_grad()
def test_deepseek_s_factors_follow_the_new_scaling():
    """Of the cosine by ``mscale``, of the scores by ``mscale_all_dim``: both from the factor, which changes."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 32,
    }
    eager, ours = pair(
        "deepseek_v3", rope_parameters={**rope, "mscale": 0.7, "mscale_all_dim": 1.0}
    )
    check_logits(eager, ours)
    wanted = trained_rope.extended(
        trained_rope.read(eager.config.to_dict(), "deepseek_v3"), {}, 256
    )
    assert wanted["factor"] == 8
    scaled = check_scaled(eager, ours, wanted, 256)
    assert scaled.config.rope_parameters["mscale"] == 0.7
    assert scaled.model.rotary_emb.attention_scaling == pytest.approx(
        (0.07 * math.log(8) + 1) / (0.1 * math.log(8) + 1)
    )
    assert scaled.model.layers[0].self_attn.scaling == pytest.approx(
        24**-0.5 * (0.1 * math.log(8) + 1) ** 2
    )


def test_ministral_s_factor_on_queries_stays():
    """Transformers' class applies it to the scores of far queries."""
    native = tiny_config("ministral3")
    own = trained_rope.read(native.to_dict(), "ministral3")
    config = decoder_configuration.configure(
        native, rope_parameters=trained_rope.extended(own, {}, 4 * int(own.reach))
    )
    assert (
        config.rope_parameters["llama_4_scaling_beta"]
        == native.rope_parameters["llama_4_scaling_beta"]
        == 0.1
    )


REFUSED = {
    "made of several models": MllamaConfig(),
    "attention_dropout is 0.1": tiny_config("gemma2", attention_dropout=0.1),
    "output_router_logits": tiny_config("mixtral", output_router_logits=True),
    "see later ones": tiny_config("gemma2", use_bidirectional_attention=True),
    "layers of other kinds": tiny_config("deepseek_v32"),
    "an indexer scores all keys": tiny_config("glm_moe_dsa"),
    "none of its layers is attention": tiny_config("falcon_mamba"),
    "outside transformers' caches": tiny_config("minimax"),
    "without a state (mamba_inner_fn, selective_scan_fn)": tiny_config("jamba"),
    "code that takes no other": tiny_config("falcon"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_nothing_here_computes_is_refused_before_weights_are_read(reason, tmp_path):
    REFUSED[reason].save_pretrained(tmp_path)  # config.json alone
    (problem,) = extendable.check(extendable.read(tmp_path))
    assert problem.field == "model" and reason in problem.wrong
