"""Logits, loss and the hooks of generation, the same for every decoder here.

Shape letters: B batch, T tokens of this call, S keys (cached ones included), D hidden size, V vocabulary entries.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import can_return_tuple

from tape_ds.models.inputs import CACHE
from tape_ds.models.output_head import OutputHead, causal_lm_loss, divergence, local_targets
from tape_ds.models.sharding import UNSHARED, shards_of


@dataclass
class DistilledOutput(CausalLMOutputWithPast):
    """A sum of two losses, and its terms."""

    cross_entropy: Tensor | None = None
    divergence: Tensor | None = None


@dataclass
class WeightedOutput(CausalLMOutputWithPast):
    """A loss whose targets have weights, and over the targets of this process the sums of losses and of weights."""

    plain_sum: Tensor | None = None
    weight_sum: Tensor | None = None


class LanguageModel:
    """A decoder (transformers' ``base_model``) and an output head called ``lm_head``. A subclass lists it before
    ``PreTrainedModel`` and ``GenerationMixin``, which transformers expects among a class's immediate bases."""

    base_model: Any
    config: Any
    get_output_embeddings: Any
    config_class: Any
    lm_head: nn.Module
    loss_function: Any
    training: bool

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class by its name, for a plain Trainer, which must know that labels are of the next token, and
        for pipelines."""
        super().__init_subclass__(**kwargs)
        if model_type := getattr(getattr(cls, "config_class", None), "model_type", None):
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] = cls.__name__

    def decode(self, **arguments: Any) -> Any:
        return self.base_model(**arguments)

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        return self.lm_head(hidden_BTD)

    def loss(self, hidden_BTD: Tensor, labels_BT: Tensor, **kwargs: Any) -> Tensor | None:
        return causal_lm_loss(self.lm_head, hidden_BTD, labels_BT, **kwargs)

    def separate_losses(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the loss of each target, already shifted, in nats; fp32 [B, T], without gradients."""
        return self.lm_head(hidden_BTD, targets=targets_BT, apart=True)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        teacher: Any = None,
        target_weights: Tensor | None = None,
        weight_cap: float | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """As the decoder's forward, and:

        Under sequence parallelism (:mod:`tape_ds.models.sharding`) the logits are those of this process's tokens, and
        the loss its part of the sum: divided by the targets of whole sequences, so that the parts of all processes add
        up to the loss. Under tensor parallelism logits and loss are whole in every process.

        Args:
            labels: int64 [B, T], -100 for tokens that are not predicted; shifted inside. ``num_items_in_batch``
                (transformers' Trainer) divides the sum of losses instead of the number of targets.
            logits_to_keep: only the last n logits (0: all), or an index tensor.
            skip_logits: return ``logits=None``, the loss computed a chunk of tokens at a time. Default: yes in training
                with labels and transformers' own loss, without ``logits_to_keep``. A head that only gives logits (see
                :func:`tape_ds.models.output_head.causal_lm_loss`) returns them all the same.
            cache: ``past_key_values`` by transformers' name since 5.24.
            teacher: predictions of another model (:class:`tape_ds.methods.distillation.TeacherTokens`); the loss is
                then the weighted sum of cross-entropy and divergence, which are returned too.
            target_weights: [B, T], one for each label, with ``weight_cap`` as in
                :func:`tape_ds.models.output_head.causal_lm_loss`; the output is then a :class:`WeightedOutput`.

        Raises:
            ValueError: as there; ``skip_logits`` without labels; a teacher or weights where the loss takes logits;
                both of them; ``logits_to_keep`` under sequence parallelism.
        """
        given = input_ids if inputs_embeds is None else inputs_embeds
        shards = UNSHARED if given is None else shards_of(self.base_model, given.shape[1])
        everything = isinstance(logits_to_keep, int) and logits_to_keep == 0
        if shards.splits_sequences and not everything:
            raise ValueError(
                "logits_to_keep counts along a sequence, and this process has a part of it: leave it out"
            )
        possible = labels is not None and self.loss_function is ForCausalLMLoss
        if skip_logits is None:
            skip_logits = possible and self.training and everything
        elif skip_logits and not possible:
            raise ValueError(
                "skip_logits leaves nothing to return: it needs labels and transformers' own loss"
            )
        outputs = self.decode(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            document_ids=document_ids,
            past_key_values=cache if past_key_values is None else past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_BTD = outputs.last_hidden_state
        if target_weights is not None:
            kwargs |= {"target_weights": target_weights, "weight_cap": weight_cap}
        if shards.splits_sequences and labels is not None:
            kwargs |= local_targets(shards, labels, **kwargs)
        loss = logits_BTV = None
        if skip_logits and labels is not None:
            loss = self.loss(hidden_BTD, labels, **kwargs)
        if loss is None:
            kept = (
                slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            )
            logits_BTV = self.logits(hidden_BTD[:, kept])
            if labels is not None:
                loss = self.loss_function(
                    logits=logits_BTV, labels=labels, vocab_size=self.config.vocab_size, **kwargs
                )
        past = getattr(outputs, CACHE)
        if target_weights is not None:
            if loss is None or logits_BTV is not None or teacher is not None:
                raise ValueError(
                    "target weights need labels, training mode, a head that gives the loss, no teacher"
                )
            # a copy, not a view: transformers' Trainer multiplies it in place
            return WeightedOutput(
                loss[0].clone(), past_key_values=past, plain_sum=loss[1], weight_sum=loss[2]
            )
        if teacher is not None:
            if loss is None or labels is None or logits_BTV is not None:
                raise ValueError(
                    "a teacher needs labels, training mode, and a head that gives the loss itself"
                )
            divided = divergence(
                self.get_output_embeddings(), hidden_BTD, labels, teacher, **kwargs
            )
            mixed = (1 - teacher.share) * loss + teacher.share * divided
            return DistilledOutput(
                loss=mixed, cross_entropy=loss.detach(), divergence=divided.detach()
            )
        return CausalLMOutputWithPast(
            loss, logits_BTV, past, outputs.hidden_states, outputs.attentions
        )

    def _get_resized_lm_head(self, *args: Any, **kwargs: Any) -> nn.Linear:
        # transformers makes a plain nn.Linear, and moves accelerate's hooks to it after this
        return OutputHead.of(super()._get_resized_lm_head(*args, **kwargs))  # type: ignore[misc]  # PreTrainedModel's

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            "continuous batching keeps its own pages of keys and values, which have no room for places and position "
            "states: call generate with a padded batch, or serve without continuous batching"
        )

    def _get_static_cache_init_shape(self) -> None:
        """Values may be wider than keys, so the first call sizes a static cache."""
        return None

    @staticmethod
    def create_masks_for_generate(
        config: PreTrainedConfig,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None,
        past_key_values: Cache | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor | None:
        """Return the 2D mask, padded to the length of a static cache: ``attend`` needs no other."""
        past = cache if past_key_values is None else past_key_values
        if attention_mask is None or past is None:
            return attention_mask
        missing = past.get_max_length() - attention_mask.shape[-1]
        if missing > 0:
            return nn.functional.pad(attention_mask, (0, missing))
        return attention_mask
