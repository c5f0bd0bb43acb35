"""Choose what of a model is trained: whole groups of parameters, low-rank adapters (LoRA, Hu et al. 2021,
arXiv:2106.09685) through peft, or everything."""

from dataclasses import dataclass
from typing import Any

from peft import LoraConfig, get_peft_model
from peft.utils import ModulesToSaveWrapper
from torch import nn
from transformers import PreTrainedModel

from tape_ds.attention.shifted_groups import use_groups
from tape_ds.errors import Problem, UserError, did_you_mean
from tape_ds.methods import METHODS, groups
from tape_ds.models import decoder, recurrent
from tape_ds.models.output_head import OutputHead


@dataclass(frozen=True)
class Trained:
    """A model ready for training, and the exact names of its trained parameters."""

    model: nn.Module
    names: tuple[str, ...]


def prepare_model(name: str, model: nn.Module, settings: Any) -> Trained:
    """Choose what ``model`` trains; ``settings`` is the method section of a recipe."""
    method = METHODS[name]
    prepared = model.requires_grad_(method.trains == "everything")
    # a router is trained only on request: it may send all tokens to a few experts
    trains_router = method.trains == "everything" and getattr(settings, "train_router", False)
    for router in decoder.routers(model).values():
        router.requires_grad_(bool(trains_router))
    chosen: dict[str, nn.Module] = {}
    if method.trains in ("groups", "adapters"):
        chosen = groups.chosen_modules(model, settings)
    if method.trains == "adapters":
        prepared = attach(model, settings, list(chosen))
    else:
        for module in chosen.values():
            module.requires_grad_(True)
    if method.grouped:
        use_groups(model, settings.group_tokens)
    names = tuple(_trainable(prepared))
    if not names and method.trains != "nothing":
        remedy = "set train_position, train_norms or train_embeddings, or choose another method"
        raise UserError(Problem("method", name, "there is nothing to train", remedy))
    return Trained(prepared, names)


def attach(model: PreTrainedModel, settings: Any, whole: list[str]) -> nn.Module:
    """Wrap the model: LoRA on ``lora_targets``, whole copies of the modules at the paths ``whole``."""
    # peft matches targets by suffix, so it is given their full names
    linears = recurrent.linear_maps(model)
    names = set(linears.values())
    targets = []
    for target in settings.lora_targets:
        if target not in names:
            wrong = "no linear layer of this model"
            raise UserError(Problem("lora_targets", target, wrong, did_you_mean(target, names)))
        targets += [path for path, name in linears.items() if name == target]
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=targets,
        modules_to_save=whole or None,
        ensure_weight_tying=bool(settings.train_embeddings and model.config.tie_word_embeddings),
    )
    # The engine keeps fp32 masters itself; adapters upcast by peft next to 16-bit copies break ZeRO-3's partitions.
    wrapped = get_peft_model(model, config, autocast_adapter_dtype=False)
    # Where a head is tied to trained embeddings, peft's copy of it is a plain ``nn.Linear`` (with its two sizes in the
    # wrong order), which could only give logits.
    for module in wrapped.modules():
        if isinstance(module, ModulesToSaveWrapper) and isinstance(
            module.original_module, OutputHead
        ):
            for copied in module.modules_to_save.values():
                head: Any = OutputHead.of(copied)
                head.out_features, head.in_features = head.weight.shape
    return wrapped


def assert_trainable(model: nn.Module, names: tuple[str, ...]) -> None:
    """Raise RuntimeError unless exactly ``names`` require gradients: a wrapper may have changed that."""
    trainable = set(_trainable(model))
    if trainable != set(names):
        extra = sorted(trainable - set(names))
        lost = sorted(set(names) - trainable)
        raise RuntimeError(
            f"trainable parameters changed: not meant to train {extra}, meant to train {lost}"
        )


def _trainable(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]
