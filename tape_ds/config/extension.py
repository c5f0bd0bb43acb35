"""The recipe of ``extend_llama.py``: extend the context of a pretrained model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

from tape_ds import encodings
from tape_ds.config.extension_fields import SPAN, ExtensionData, ExtensionEvaluation, ExtensionModel
from tape_ds.config.files import Given
from tape_ds.config.method import LLAMAS_MAPS, MethodSection, check_targets, targets, unread
from tape_ds.config.reading import DocumentReading
from tape_ds.config.recipe import Recipe
from tape_ds.config.ruler_scores import RulerScores
from tape_ds.config.sections import learns
from tape_ds.data import sources
from tape_ds.data.pose import Pose
from tape_ds.data.sources import generated, weights
from tape_ds.distributed.launch_command import TRAINING
from tape_ds.encodings import scaling, trained_rope
from tape_ds.errors import Problem, UserError, did_you_mean
from tape_ds.fields import rule
from tape_ds.methods import METHODS
from tape_ds.models.files import config_file
from tape_ds.models.files.config_file import other_family
from tape_ds.models.loading import known_config
from tape_ds.models.sizes import STATE_DTYPES


@dataclass(frozen=True, kw_only=True)
class ExtensionRecipe(Recipe):
    """A recipe of this launcher."""

    LAUNCHER: ClassVar[str] = TRAINING["extend"]
    DEFAULT: ClassVar[str] = "demo"
    STAND_INS: ClassVar[Mapping[str, Any]] = {
        "model": config_file.SMOLLM2,
        "target_length": config_file.SMOLLM2_LENGTH,
        "train_data": ["stdlib"],
    }

    model: ExtensionModel
    data: ExtensionData
    method: MethodSection
    evaluation: ExtensionEvaluation
    ruler: RulerScores

    def __post_init__(self) -> None:
        if not self.trains:
            # each process scores by itself
            object.__setattr__(self, "deepspeed", None)

    @classmethod
    def superseded(cls, collected: Mapping[str, Given]) -> tuple[str, ...]:
        """Settings of the base's method, where another method is chosen above it."""
        method = collected.get("method")
        if method is None or not isinstance(method.value, str) or method.value not in METHODS:
            return ()
        fields = [name for name in unread(METHODS[method.value]) if name in collected]
        return tuple(sorted(name for name in fields if collected[name].level > method.level))

    def derived(self) -> dict[str, Any]:
        target = self.model.target_length
        method = self.method.chosen

        window = self.data.window or target
        if method.drops_rope and not self.data.window:
            # without RoPE it trains within the native length, all other methods up to the target
            known = known_config.known(self.model.model, online=False) or {}
            window = min(target, trained_rope.native_length(known) or target)

        packs_many = self.data.pose.chunks == 1 and self.data.packing != "single"
        shortest = 1 if packs_many else window

        # a quarter of the window, and even: half of the heads have groups that begin in the middle of these
        group_tokens = window // 8 * 2 if method.grouped else None

        encoding = self.model.position_encoding or method.encoding
        learns_positions = method.learns_positions and learns(encoding, self.model.position_options)
        return {
            "position_encoding": method.encoding,
            "window": window,
            "min_document_tokens": shortest,
            "train_position": method.trains == "everything" or learns_positions,
            "train_embeddings": method.embeddings,
            "group_tokens": group_tokens,
            "eval_length": target,
            "eval_span": min(SPAN, self.evaluation.eval_length or target),
        }

    @property
    def trains(self) -> bool:
        """Whether the run takes any steps; some methods are RoPE scaling alone."""
        return self.method.chosen.trains != "nothing"

    @property
    def section_of_method(self) -> MethodSection:
        return self.method

    @property
    def reading(self) -> DocumentReading:
        data = self.data
        return DocumentReading(
            self.model.model,
            data.pose,
            data.packing,
            data.attend_across,
            data.min_document_tokens,
            data.upsample,
        )

    @property
    def trains_positions(self) -> bool:
        return self.trains and self.method.train_position and super().trains_positions

    @property
    def rope_parameters(self) -> dict[str, Any]:
        """``rope_parameters`` to start from, the method's own included; the model's length is still to be filled in."""
        own = dict(self.method.chosen.rope_parameters)
        if self.method.theta_linear:
            own["rope_type"] = "linear"
        given = {
            name: value for name, value in self.model.rope_parameters.items() if value is not None
        }
        kind = own.get("rope_type")
        if kind is not None and given.pop("rope_type", kind) not in (trained_rope.AUTO, kind):
            # another type is a problem of its own: what only that one has would be a second one
            given = {
                name: value
                for name, value in given.items()
                if name in ("rope_theta", *scaling.named(kind))
            }
        return own | given

    @property
    def position_options(self) -> dict[str, Any]:
        """``position_options``, the method's own included; the model's length is still to be filled in."""
        method = self.method.chosen
        own = method.position_options if self.model.position_encoding == method.encoding else {}
        return dict(own) | self.model.position_options

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe without the settings of other methods.

        Targets of adapters are spelled out as a Llama's, unless the model is known to be of another family.
        """
        found = {
            name: value
            for name, value in super().as_dict().items()
            if name not in self.method.unused_fields
        }
        # nor in a checkpoint's identity, so that older runs resume
        if not self.data.upsample:
            del found["upsample"]
        if "lora_targets" in found:
            is_given = "lora_targets" in self.given
            if other_family(self.native_config() or {}) is None:
                found["lora_targets"] = targets(self.method, is_given, LLAMAS_MAPS)
            elif not is_given:
                found["lora_targets"] = None
        return found

    def outline(self) -> dict[str, str]:
        target = self.model.target_length
        start = f"{self.rope_parameters or 'its own RoPE'} (the model's own RoPE is not known before the run)"
        method = self.method.outline()
        if self.left_out:
            method += f"; the base's {', '.join(self.left_out)} left out"
        data = "none is read: nothing is trained"
        if self.trains:
            data = self.data.outline()
        scores = self.evaluation
        held_out = "nothing"
        if self.data.eval_data:
            held_out = ", ".join(self.data.eval_data)
            held_out += f": loss at {scores.eval_length:,} tokens in spans of {scores.eval_span:,}"
        return {
            "model": f"{self.model.model}, extended to {target:,} positions",
            "encoding": f"{self.chosen_encoding} from {start}",
            "method": method,
            "data": data,
            "held out": held_out,
            "passkeys": scores.outline_of_passkeys(target),
            "RULER": self.ruler.outline(),
        }

    @property
    def chosen_encoding(self) -> str:
        """The encoding and its options, for people."""
        if self.position_options:
            return f"{self.model.position_encoding} {self.position_options}"
        return self.model.position_encoding

    def problems(self, broken: set[str]) -> Iterator[Problem]:
        other = "model" not in broken and other_family(self.native_config() or {}) is not None
        if other and known_config.check_model(self.model.model, online=self.dry_run):
            # the rules of lengths would blame the wrong fields of a model that is not supported
            broken = broken | {"target_length", "window", "rope_parameters"}
        yield from super().problems(broken)

    def native_config(self) -> Mapping[str, Any] | None:
        """Return what is known of the model's configuration without loading or unpacking anything."""
        return known_config.known(self.model.model, online=self.dry_run)

    # a run repeats these two for a model whose configuration is not known yet
    @rule("model", "method", "target_length", "rope_parameters")
    def _model_has_the_length(self) -> Iterator[Problem]:
        window = self.rope_parameters.get(scaling.WINDOW)
        config = self.native_config()
        if config is not None:
            yield from check_against_model(self, config)
        elif isinstance(window, int) and window > 0:  # the length that a factor multiplies
            for problem in check_against_model(self, {"max_position_embeddings": window}):
                if problem.field == "rope_parameters.factor":
                    yield problem

    @rule("model", "method", "lora_targets")
    def _targets(self) -> Iterator[Problem]:
        if (config := self.native_config()) is not None and other_family(config) is None:
            yield from check_targets(
                self.method, str(config.get("model_type") or "llama").removeprefix("tape_")
            )

    @rule(
        "method",
        "position_encoding",
        "position_options",
        "state_dtype",
        "rope_parameters",
        "theta_linear",
    )
    def _encoding(self) -> Iterator[Problem]:
        model = self.model
        for problem in encodings.check_options(model.position_encoding, self.position_options):
            if "position_encoding" in self.given:
                yield problem
            else:  # the encoding is the method's, the options may be a base's, meant for another
                yield replace(
                    problem, remedy=f"{problem.remedy}; or without any, position_options: {{}}"
                )
        if model.state_dtype is not None and model.state_dtype not in STATE_DTYPES:
            remedy = did_you_mean(model.state_dtype, STATE_DTYPES)
            yield Problem("state_dtype", model.state_dtype, "unknown dtype", remedy)
        rope = self.rope_parameters
        kind = rope.get("rope_type")
        # a value that config.json leaves open may be given for a type that auto takes from it
        others = rope.keys() - {"rope_type", "factor", scaling.WINDOW}
        if kind == trained_rope.AUTO and others:
            wrong = f"rope_type auto chooses the type, and takes only factor and {scaling.WINDOW}"
            remedy = ", ".join(f"rope_parameters.{name}: null" for name in sorted(others))
            remedy += "; or rope_parameters.rope_type: one of " + ", ".join(scaling.available())
            yield Problem("rope_parameters", rope, wrong, remedy)
        elif kind is not None:
            if kind == trained_rope.AUTO:
                kind = "yarn"
            # parameters that are missing may be the model's own; they are checked with its configuration
            missing = scaling.named(kind) - rope.keys()
            problems = scaling.check(dict.fromkeys(missing) | rope | {"rope_type": kind})
            problems += scaling.check_factor(rope, "give a number of at least 1, or leave it out")
            for problem in problems:
                if problem.field.rpartition(".")[2] not in missing:
                    yield problem

    @rule("eval_length", "eval_span")
    def _scores(self) -> Iterator[Problem]:
        length = self.evaluation.eval_length
        span = self.evaluation.eval_span
        if span > length:
            yield Problem(
                "eval_span",
                span,
                f"longer than eval_length = {length}",
                "give the tokens of one stretch",
            )
        lengths = self.evaluation.passkey_lengths
        if len(set(lengths)) < len(lengths):
            yield Problem(
                "passkey_lengths",
                lengths,
                "a length is repeated",
                "give each number of tokens once",
            )

    @rule("train_data", "eval_data", "skip_bad_rows")
    def _data(self) -> Iterator[Problem]:
        entries = self.data.train_data
        most = self.data.max_documents
        yield from sources.check_lists(entries, self.data.eval_data, self.data.skip.bad_rows)
        if self.trains:
            yield from weights.check_steps(entries, self.trainer.max_steps)
        if most is not None and weights.is_weighted(entries):
            wrong = (
                "ends the reading of all sources together, and each one in train_data has a weight"
            )
            remedy = "remove it (null), or cut off a source by itself: hub:NAME:SPLIT[:N]"
            yield Problem("max_documents", most, wrong, remedy)
        elif most is not None and generated.only_one(weights.specs_of(entries)) is not None:
            yield Problem(
                "max_documents",
                most,
                "generated data have no end, whatever is read",
                "remove it (null)",
            )

    @rule(
        "train_data",
        "window",
        "max_steps",
        "method",
        "pose_reach",
        "pose_content",
        "min_document_tokens",
    )
    def _generated(self) -> Iterator[Problem]:
        specs = weights.specs_of(self.data.train_data)
        of_these = [spec for spec in specs if generated.is_generated(spec)]
        if not self.trains or not of_these:
            return
        yield from generated.check_drawn(self.data.train_data, self.window, self.trainer.max_steps)
        method = self.method
        pose = self.data.pose
        if method.chosen.grouped:
            wrong = "attends within groups while it trains, where most questions of generated documents have no answer"
            yield Problem("method", method.method, wrong, "method: lora; or other data")
        if len(of_these) < len(specs):
            return
        wrong = "is of documents that are read, and all data are generated"
        if pose.reach is not None:
            yield Problem("pose_reach", pose.reach, wrong, "remove it")
        if pose.content != Pose().content:
            yield Problem("pose_content", pose.content, wrong, "remove it")
        if "min_document_tokens" in self.given:
            yield Problem("min_document_tokens", self.data.min_document_tokens, wrong, "remove it")

    @rule("upsample", "min_document_tokens", "train_data")
    def _upsample(self) -> Iterator[Problem]:
        times = self.data.upsample
        least = self.data.min_document_tokens
        if not times:
            return
        specs = weights.specs_of(self.data.train_data)
        if specs and all(map(generated.is_generated, specs)):
            wrong = "is of documents that are read, and all data are generated"
            yield Problem("upsample", times, wrong, "remove it")
        elif min(times) < 1:
            yield Problem(
                "upsample", times, "a length below 1", "give lengths in tokens, such as 8k: 2"
            )
        elif len({1, *times.values()}) == 1:
            yield Problem(
                "upsample",
                times,
                "every document is read once",
                "remove it, or give 2 or more for a length",
            )
        elif len(times) == 1 and min(times) <= least:
            wrong = f"no document is shorter: min_document_tokens = {least}"
            remedy = f"remove it, or min_document_tokens: {max(1, min(times) // 2)}"
            yield Problem("upsample", times, wrong, remedy)

    @rule("pose_chunks", "pose_reach", "pose_content", "pose_skips", "window", "target_length")
    def _window(self) -> Iterator[Problem]:
        if self.window > self.model.target_length:
            wrong = f"longer than target_length = {self.model.target_length}"
            yield Problem("window", self.window, wrong, f"give {self.model.target_length} or less")
        elif self.window >= 2:
            yield from self.data.pose.problems(self.window, self.model.target_length)

    @rule("position_encoding", "pose_chunks")
    def _packing(self) -> Iterator[Problem]:
        data = self.data
        encoding = self.model.position_encoding
        if data.pose.chunks >= 2:
            if (
                encoding in encodings.available()
                and encodings.options_of(encoding, {}).reads_tokens
            ):
                wrong = (
                    f"position_encoding = {encoding!r} counts tokens itself, and would see no skip"
                )
                remedy = "give pose_chunks: 1 (and a longer window), or another encoding"
                yield Problem("pose_chunks", data.pose.chunks, wrong, remedy)
            wrong = f"pose_chunks = {data.pose.chunks} draws a sequence from one document, nothing is packed"
            for name, default in {
                "packing": "cut",
                "attend_across": False,
                "append_eos": False,
            }.items():
                value = getattr(data, name)
                if value != default:
                    yield Problem(name, value, wrong, "remove it, or pose_chunks: 1")
        elif data.attend_across and data.packing == "single":
            wrong = "packing = 'single' makes sequences of one document, there is nothing to attend across"
            yield Problem("attend_across", True, wrong, "remove it, or packing: cut")


def of_method(recipe: ExtensionRecipe, problem: Problem) -> Problem:
    """Return a problem of the type of scaling as one of the method, where the method brings the type."""
    method = recipe.method
    if (
        problem.field != "rope_parameters.rope_type"
        or "rope_type" not in method.chosen.rope_parameters
    ):
        return problem
    # methods have the names of their types
    remedy = problem.remedy.replace("rope_parameters.rope_type: ", "method: ")
    return replace(problem, field="method", value=method.method, remedy=remedy)


def check_against_model(recipe: ExtensionRecipe, model_config: Any) -> list[Problem]:
    """Return the fields of a recipe that its model does not allow, once its configuration is known: a transformers
    configuration, or the content of a ``config.json``."""
    config = model_config if isinstance(model_config, Mapping) else model_config.to_dict()
    try:
        own = trained_rope.read(config, recipe.model.model)
    except UserError as error:
        return error.problems
    problems = []
    target = recipe.model.target_length
    native = own.native_length
    model = recipe.model.model
    if target < native:
        wrong = f"shorter than the {native} tokens that {model} has natively"
        if own.is_scaled:
            wrong += f" ({scaling.described(own.parameters)})"
        problems.append(Problem("target_length", target, wrong, f"give {native} or more"))
    if recipe.method.chosen.drops_rope:
        name = recipe.method.method
        if not encodings.is_plain(SimpleNamespace(**config)):
            wrong = f"{model} has position_encoding = {config['position_encoding']!r}, no plain RoPE to drop"
            problems.append(
                Problem("method", name, wrong, "give a model with RoPE, or method: full")
            )
        # there no score is scaled, and texts of any length are trained on
        by_own_class = other_family(config) is not None
        if recipe.window > native and not by_own_class:
            wrong = f"method = {name!r} trains at the {native} tokens that {model} has natively"
            problems.append(Problem("window", recipe.window, wrong, f"give {native}, or less"))
        return problems

    has = config.get("position_encoding") or "rope"
    gets = recipe.model.position_encoding
    # whose tensors would have no place
    learned = learns(has, config.get("position_options") or {})
    if has not in ("rope", gets) and (learned or "position_encoding" not in recipe.given):
        wrong = f"{model} has position_encoding = {has!r}, which would be lost"
        remedy = f"give position_encoding: {has}"
        if not learned:
            remedy += ", or the one to change to"
        problems.append(Problem("position_encoding", gets, wrong, remedy))

    change = recipe.rope_parameters
    method = recipe.method
    for problem in trained_rope.check_change(own, change, target):
        if (
            problem.field == "rope_parameters.rope_type"
            and "rope_type" in method.chosen.rope_parameters
        ):
            remedy = f"method: lora and {problem.remedy}"
            if own.type in METHODS:
                remedy = f"method: {own.type}; or {remedy}"
            problem = replace(problem, remedy=remedy)
        problems.append(of_method(recipe, problem))

    # a base frequency that a method is about must be larger than the model's
    theta = change.get("rope_theta")
    present = own.unscaled_theta
    if (
        "rope_theta" in method.chosen.rope_parameters
        and isinstance(theta, (int, float))
        and theta <= present
    ):
        wrong = f"not larger than the rope_theta of {model}, {present:g}: it would reach no further"
        remedy = "give a larger one, or choose another method"
        problems.append(Problem("rope_parameters.rope_theta", theta, wrong, remedy))
    return problems
