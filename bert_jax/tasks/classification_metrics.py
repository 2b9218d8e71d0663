"""Scores of sequence classification and regression, in percent."""

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import scipy.stats
import sklearn.metrics


def classification_scores(
    metrics: Sequence[str],
    truth: Sequence[int],
    predicted: Sequence[int],
) -> dict[str, float]:
    """Some of accuracy, f1 (of class 1), f1_macro and matthews (scikit-learn).

    truth, predicted: class ids. f1_macro: the mean over the classes that occur. Where a
    score is not defined, because one class alone occurs, it is 0.
    """
    functions: dict[str, Callable[[], float]] = {
        "accuracy": lambda: sklearn.metrics.accuracy_score(truth, predicted),
        "f1": lambda: sklearn.metrics.f1_score(
            truth, predicted, labels=[1], average="macro", zero_division=0
        ),
        "f1_macro": lambda: sklearn.metrics.f1_score(
            truth, predicted, average="macro", zero_division=0
        ),
        "matthews": lambda: _quiet(
            lambda: sklearn.metrics.matthews_corrcoef(truth, predicted)
        ),
    }
    return {name: 100 * float(functions[name]()) for name in metrics}


def regression_scores(
    metrics: Sequence[str], truth: Sequence[float], predicted: Sequence[float]
) -> dict[str, float]:
    """Some of pearson, spearman, and their mean pearson_spearman (scipy).

    A constant has no correlation with anything: 0.
    """
    truth, predicted = np.asarray(truth, float), np.asarray(predicted, float)
    pearson = _correlation(scipy.stats.pearsonr, truth, predicted)
    spearman = _correlation(scipy.stats.spearmanr, truth, predicted)
    scores = {
        "pearson": pearson,
        "spearman": spearman,
        "pearson_spearman": (pearson + spearman) / 2,
    }
    return {name: 100 * scores[name] for name in metrics}


def _correlation(function: Callable, truth: np.ndarray, predicted: np.ndarray) -> float:
    if len(truth) < 2:
        return 0.0
    value = _quiet(lambda: float(function(truth, predicted).statistic))
    return value if math.isfinite(value) else 0.0


def _quiet(function: Callable[[], float]) -> float:
    """Calls it without the warnings that its input is (nearly) constant."""
    with warnings.catch_warnings():
        for category in (
            scipy.stats.ConstantInputWarning,
            scipy.stats.NearConstantInputWarning,
        ):
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("ignore", "A single label was found", UserWarning)
        return function()
