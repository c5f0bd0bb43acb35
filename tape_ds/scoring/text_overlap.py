"""How much of a reference text a written text has: F1, exact match and ROUGE, as the SCROLLS benchmark computes them.

Each text is held against every reference and the best value counts. Source: Shaham et al. 2022 (arXiv:2201.03533,
section 3.3) and the benchmark's official scorer (``tau/scrolls``, ``metrics/``), whose conventions are:

- ``f1`` and ``exact_match`` compare texts after SQuAD's normalisation (Rajpurkar et al. 2016, arXiv:1606.05250): lower
  case, punctuation dropped, the articles *a*, *an*, *the* dropped, one space between words. F1 is over bags of words.
- ``rouge`` takes the F-measures of ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004), without a stemmer. The best reference is
  chosen for each of the three by itself, the three are averaged over the examples, and the score is the geometric
  mean of the three averages.

The scorer also prints ROUGE-Lsum, which enters no score and needs a sentence splitter's downloaded data: left out.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
ROUGE = ("rouge1", "rouge2", "rougeL")


def normalised(text: str) -> str:
    """Return the text as SQuAD compares it; only ASCII punctuation is dropped."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def f1(text: str, reference: str) -> float:
    """Harmonic mean of precision and recall over the two bags of words, 0 to 1; 0 where they share none."""
    ours, theirs = normalised(text).split(), normalised(reference).split()
    shared = (Counter(ours) & Counter(theirs)).total()
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0


def exact_match(text: str, reference: str) -> float:
    """1 where the normalised texts are the same, else 0."""
    return float(normalised(text) == normalised(reference))


def rouge(text: str, reference: str) -> tuple[float, float, float]:
    """F-measures of ROUGE-1, ROUGE-2 and ROUGE-L, each 0 to 1."""
    found = _rouge_scorer().score(reference, text)
    return found["rouge1"].fmeasure, found["rouge2"].fmeasure, found["rougeL"].fmeasure


@cache
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # not at the top: it imports nltk

    return RougeScorer(list(ROUGE), use_stemmer=False)


@dataclass(frozen=True)
class Metric:
    """One way to score a set of texts."""

    name: str
    parts: tuple[str, ...]
    """Official names of what is averaged over the examples."""
    of_pair: Callable[[str, str], tuple[float, ...]]
    """The parts for one text and one reference."""

    def best(self, text: str, references: Sequence[str]) -> tuple[float, ...]:
        """Return the parts for one text, each against the reference that suits it best; 0 to 1.

        Raises:
            ValueError: no reference.
        """
        if not references:
            raise ValueError("a text without a reference cannot be scored")
        pairs = [self.of_pair(text, reference) for reference in references]
        return tuple(max(values) for values in zip(*pairs, strict=True))

    def score(self, examples: Sequence[Sequence[float]]) -> float:
        """Return the score, 0 to 1, of examples whose parts are given: the geometric mean of the parts' averages."""
        return float(_geometric_mean(np.asarray(examples, np.float64).mean(axis=0)))


METRICS: Mapping[str, Metric] = {
    "f1": Metric("f1", ("f1",), lambda text, reference: (f1(text, reference),)),
    "exact_match": Metric("exact_match", ("exact_match",), lambda text, reference: (exact_match(text, reference),)),
    "rouge": Metric("rouge", tuple(f"rouge/{name}" for name in ROUGE), rouge),
}


@dataclass(frozen=True)
class OverlapScore:
    """What a set of texts is worth, in percent."""

    metric: str
    score: float
    """0 to 100: the benchmark's score."""
    standard_error: float | None
    """Of the score, over the examples; None for fewer than two."""
    parts: dict[str, float]
    """Averages over the examples by official name, 0 to 100."""
    examples: int


def score(metric: str, texts: Sequence[str], references: Sequence[Sequence[str]]) -> OverlapScore:
    """Score ``texts`` against their ``references``, several for each text.

    The standard error is the jackknife's (Efron and Stein 1981): the score is computed again without each example in
    turn. For a plain average that is the usual standard error of a mean; it also holds for ROUGE's geometric mean.

    Raises:
        KeyError: an unknown metric.
        ValueError: no text, a text without a reference, or not as many sets of references as texts.
    """
    rule = METRICS[metric]
    if not texts:
        raise ValueError("there is nothing to score")
    values_EP = np.array([rule.best(*pair) for pair in zip(texts, references, strict=True)])  # E examples, P parts
    means_P = values_EP.mean(axis=0)
    return OverlapScore(
        metric=metric,
        score=100 * rule.score(values_EP.tolist()),
        standard_error=_jackknife(100 * values_EP),
        parts={name: 100 * float(mean) for name, mean in zip(rule.parts, means_P, strict=True)},
        examples=len(texts),
    )


def _jackknife(values_EP: np.ndarray) -> float | None:
    """Standard error of the geometric mean of the parts' averages."""
    count = len(values_EP)
    if count < 2:
        return None
    without_EP = (values_EP.sum(axis=0) - values_EP).clip(min=0) / (count - 1)  # rounding may leave less than 0
    scores_E = _geometric_mean(without_EP)
    return float(np.sqrt((count - 1) / count * ((scores_E - scores_E.mean()) ** 2).sum()))


def _geometric_mean(values: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    return np.asarray(values.prod(axis=-1) ** (1 / values.shape[-1]))
