"""Regression data that scikit-learn brings along: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hvdkan.tasks.tables import Table


def _diabetes() -> Table:
    """442 patients, 10 measurements and the progression of the disease a year later (Efron et al., 2004)."""
    from sklearn.datasets import load_diabetes

    found = load_diabetes(scaled=False)
    return Table("diabetes", (*found.feature_names, "progression"), np.column_stack([found.data, found.target]))


def _linnerud() -> Table:
    """20 men, three exercises and their weight (Tenenhaus, 1998): less to learn from than to see that it runs."""
    from sklearn.datasets import load_linnerud

    found = load_linnerud()
    weight = found.target[:, found.target_names.index("Weight")]
    return Table("linnerud", (*found.feature_names, "Weight"), np.column_stack([found.data, weight]))


BUNDLED: dict[str, Callable[[], Table]] = {"diabetes": _diabetes, "linnerud": _linnerud}
