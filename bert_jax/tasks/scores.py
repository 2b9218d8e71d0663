"""Scores of classes and numbers, from scikit-learn and scipy."""

import functools
import warnings
from collections.abc import Sequence

import numpy as np

from bert_jax.tasks.data_sets import CORRELATIONS, ERRORS


def scores(
    metrics: Sequence[str], truth: np.ndarray, predicted: np.ndarray
) -> dict[str, float]:
    """Metrics of scikit-learn and scipy in percent, errors in units of the label.

    Undefined scores are 0.

    truth, predicted: class ids for accuracy, matthews, f1 (of class 1) and f1_macro (over
    the classes that occur); 0 or 1 (rows, labels) for f1_micro, f1_macro and exact_match;
    numbers for pearson, spearman, their mean pearson_spearman, rmse (root of the mean
    squared error) and mae (mean absolute error).
    """
    # Both are imported late because they take a second.
    from scipy import stats
    from sklearn import metrics as sklearn

    f1 = functools.partial(sklearn.f1_score, average="macro", zero_division=0)
    functions = {
        "accuracy": sklearn.accuracy_score,
        "exact_match": sklearn.accuracy_score,
        "matthews": sklearn.matthews_corrcoef,
        "f1": functools.partial(f1, labels=[1]),
        "f1_micro": functools.partial(f1, average="micro"),
        "f1_macro": f1,
        "pearson": lambda *both: stats.pearsonr(*both).statistic,
        "spearman": lambda *both: stats.spearmanr(*both).statistic,
        "rmse": sklearn.root_mean_squared_error,
        "mae": sklearn.mean_absolute_error,
    }
    found: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning for an undefined score
        for name in metrics:
            parts = [name]
            if name in CORRELATIONS:
                parts = name.split("_")
            defined = len(truth) > 1 or name not in CORRELATIONS
            values = [0.0]
            if defined:
                values = [functions[part](truth, predicted) for part in parts]
            found[name] = float(np.nan_to_num(values).mean())
            if name not in ERRORS:
                found[name] *= 100  # percent
    return found
