"""F1, exact match and ROUGE of a text against references, as the SCROLLS benchmark computes them.

A text is compared with every reference and the best value counts. Source: Shaham et al. 2022 (arXiv:2201.03533,
section 3.3) and the benchmark's official scorer (``tau/scrolls``, ``metrics/``), whose conventions are:

- ``f1`` and ``exact_match`` compare texts after SQuAD's normalisation (Rajpurkar et al. 2016, arXiv:1606.05250): lower
  case, punctuation dropped, the articles *a*, *an*, *the* dropped, one space between words. F1 is over bags of words.
- ``rouge`` takes the F-measures of ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004), without a stemmer. The best reference is
  chosen for each of the three separately, each is averaged over the examples, and the score is the geometric mean of
  the three averages.

The scorer also prints ROUGE-Lsum, which enters no score and needs a sentence splitter's downloaded data: left out.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from rouge_score.rouge_scorer import RougeScorer

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
ROUGE = ("rouge1", "rouge2", "rougeL")
_SCORER = RougeScorer(list(ROUGE), use_stemmer=False)


def normalised(text: str) -> str:
    """Return the text as SQuAD compares it; only ASCII punctuation is dropped."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def f1(text: str, reference: str) -> tuple[float]:
    """Return the harmonic mean of precision and recall over the bags of words, 0 to 1."""
    ours = normalised(text).split()
    theirs = normalised(reference).split()
    # a word counts as often as both have it
    shared = (Counter(ours) & Counter(theirs)).total()
    return (2 * shared / (len(ours) + len(theirs)) if shared else 0.0,)


def exact_match(text: str, reference: str) -> tuple[float]:
    return (float(normalised(text) == normalised(reference)),)


def rouge(text: str, reference: str) -> tuple[float, ...]:
    """Return the F-measures of ROUGE-1, ROUGE-2 and ROUGE-L, each 0 to 1."""
    scores = _SCORER.score(reference, text)
    return tuple(scores[name].fmeasure for name in ROUGE)


METRICS: Mapping[str, Callable[[str, str], tuple[float, ...]]] = {
    "f1": f1,
    "exact_match": exact_match,
    "rouge": rouge,
}
"""Return the parts of a score, which are averaged separately, for a text and a reference."""


def best(metric: str, text: str, references: Sequence[str]) -> tuple[float, ...]:
    """Return each part against the reference where it is highest."""
    if not references:
        raise ValueError("a text without a reference cannot be scored")
    pairs = [METRICS[metric](text, reference) for reference in references]
    return tuple(map(max, zip(*pairs, strict=True)))


def score(examples: Sequence[Sequence[float]]) -> float:
    """Return the geometric mean of the parts' averages over the examples, 0 to 1."""
    means_P = np.asarray(examples, np.float64).mean(axis=0)
    return float(means_P.prod() ** (1 / len(means_P)))
