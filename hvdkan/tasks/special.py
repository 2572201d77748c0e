"""The special functions of Liu et al., *KAN: Kolmogorov-Arnold Networks* (2024), by scipy and under its names.

The paper does not tell its ranges; these stay clear of the functions' poles.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hvdkan.tasks.formulas import Formula


def _scipy(name: str) -> Callable[..., np.ndarray]:
    def of(*variables: np.ndarray) -> np.ndarray:
        from scipy import special

        return getattr(special, name)(*variables)

    return of


def _legendre(order: int) -> Formula:
    """The associated Legendre function of a real degree, with the Condon-Shortley phase."""
    function = _scipy("lpmv")
    return Formula({"degree": (0.0, 5.0), "x": (-0.9, 0.9)}, lambda degree, x: function(order, degree, x))


def _harmonic(order: int, degree: int) -> Formula:
    """The real part of the spherical harmonic Y of ``degree`` and ``order``, theta being the polar angle."""
    # Not scipy's own: it was renamed, and its angles and arguments changed places.
    legendre = _scipy("lpmv")
    ratio = math.factorial(degree - order) / math.factorial(degree + order)
    factor = math.sqrt((2 * degree + 1) / (4 * math.pi) * ratio)
    return Formula(
        {"theta": (0.0, math.pi), "phi": (0.0, 2 * math.pi)},
        lambda theta, phi: factor * legendre(order, degree, np.cos(theta)) * np.cos(order * phi),
    )


_MODULUS = (0.0, 0.9)
_BESSEL, _MODIFIED = {"order": (0.0, 3.0), "x": (1.0, 10.0)}, {"order": (0.0, 2.0), "x": (0.5, 3.0)}
_JACOBI = _scipy("ellipj")

SPECIAL = {
    # Jacobi's sn(u | m)
    "ellipj": Formula({"u": (0.0, 5.0), "m": _MODULUS}, lambda u, m: _JACOBI(u, m)[0]),
    # Incomplete elliptic integrals of the first and second kind
    "ellipkinc": Formula({"phi": (0.0, math.pi / 2), "m": _MODULUS}, _scipy("ellipkinc")),
    "ellipeinc": Formula({"phi": (0.0, math.pi / 2), "m": _MODULUS}, _scipy("ellipeinc")),
    # Bessel functions J, Y, K, I of real order
    "jv": Formula(_BESSEL, _scipy("jv")),
    "yv": Formula(_BESSEL, _scipy("yv")),
    "kv": Formula(_MODIFIED, _scipy("kv")),
    "iv": Formula(_MODIFIED, _scipy("iv")),
    **{f"lpmv_{order}": _legendre(order) for order in (0, 1, 2)},
    **{
        f"sph_harm_{order}_{degree}": _harmonic(order, degree)
        for order, degree in ((0, 1), (1, 1), (0, 2), (1, 2), (2, 2))
    },
}
