"""Formulas from Feynman's Lectures on Physics, and two more, as in Udrescu and Tegmark, *AI Feynman* (2020).

Names are the equations' numbers there. Ranges are those of pykan 0.2.8, for comparison with it, but where these touch
a singularity (named beside the formula). pykan's own table is wrong for I.16.6, I.32.5 and Goldstein 12.80 and cannot
be evaluated for Jackson 2.11; what is right stands here.
"""

from __future__ import annotations

import numpy as np

from hvdkan.tasks.formulas import Formula

_PI, _TURN = np.pi, (0.0, 2 * np.pi)
_SIGNED, _POSITIVE, _SAFE = (-1.0, 1.0), (0.0, 1.0), (0.5, 2.0)

_BY_NUMBER = {
    # Normal distribution
    "I.6.20": Formula(
        {"theta": _SIGNED, "sigma": _SAFE},
        lambda theta, sigma: np.exp(-(theta**2) / (2 * sigma**2)) / np.sqrt(2 * _PI * sigma**2),
    ),
    "I.6.20b": Formula(
        {"theta": (-1.5, 1.5), "theta1": (-1.5, 1.5), "sigma": _SAFE},
        lambda theta, theta1, sigma: np.exp(-((theta - theta1) ** 2) / (2 * sigma**2)) / np.sqrt(2 * _PI * sigma**2),
    ),
    # Distance of two points
    "I.8.14": Formula(
        {"x1": _SIGNED, "x2": _SIGNED, "y1": _SIGNED, "y2": _SIGNED},
        lambda x1, x2, y1, y2: np.hypot(x2 - x1, y2 - y1),
    ),
    # Gravity
    "I.9.18": Formula(
        {
            "G": _SIGNED,
            "m1": _SIGNED,
            "m2": _SIGNED,
            "x1": (-1.0, -0.5),
            "x2": (0.5, 1.0),
            "y1": (-1.0, -0.5),
            "y2": (0.5, 1.0),
            "z1": (-1.0, -0.5),
            "z2": (0.5, 1.0),
        },
        lambda G, m1, m2, x1, x2, y1, y2, z1, z2: G * m1 * m2 / ((x2 - x1) ** 2 + (y2 - y1) ** 2 + (z2 - z1) ** 2),
    ),
    # Lorentz force
    "I.12.11": Formula(
        {"q": _SIGNED, "E": _SIGNED, "B": _SIGNED, "v": _SIGNED, "theta": _TURN},
        lambda q, E, B, v, theta: q * (E + B * v * np.sin(theta)),
    ),
    # Potential energy of gravity
    "I.13.12": Formula(
        {"G": _POSITIVE, "m1": _POSITIVE, "m2": _POSITIVE, "r1": _SAFE, "r2": _SAFE},
        lambda G, m1, m2, r1, r2: G * m1 * m2 * (1 / r2 - 1 / r1),
    ),
    # Lorentz transformation; pykan's c begins at 1, where u may be c
    "I.15.3x": Formula(
        {"x": _SIGNED, "u": _SIGNED, "t": _SIGNED, "c": (1.25, 2.0)},
        lambda x, u, t, c: (x - u * t) / np.sqrt(1 - u**2 / c**2),
    ),
    # Addition of velocities
    "I.16.6": Formula(
        {"u": (-0.8, 0.8), "v": (-0.8, 0.8), "c": (1.0, 2.0)},
        lambda u, v, c: (u + v) / (1 + u * v / c**2),
    ),
    # Centre of mass
    "I.18.4": Formula(
        {"m1": (0.5, 1.0), "r1": _SIGNED, "m2": (0.5, 1.0), "r2": _SIGNED},
        lambda m1, r1, m2, r2: (m1 * r1 + m2 * r2) / (m1 + m2),
    ),
    # Refraction
    "I.26.2": Formula(
        {"n": (0.0, 0.99), "theta2": _TURN},
        lambda n, theta2: np.arcsin(n * np.sin(theta2)),
    ),
    # Lens
    "I.27.6": Formula(
        {"d1": _SAFE, "d2": (1.0, 2.0), "n": _SAFE},
        lambda d1, d2, n: 1 / (1 / d1 + n / d2),
    ),
    # Sum of two oscillations; never below 0 but for rounding
    "I.29.16": Formula(
        {"x1": _SIGNED, "x2": _SIGNED, "theta1": _TURN, "theta2": _TURN},
        lambda x1, x2, theta1, theta2: np.sqrt(np.maximum(x1**2 + x2**2 - 2 * x1 * x2 * np.cos(theta1 - theta2), 0.0)),
    ),
    # Intensity behind a grating
    "I.30.3": Formula(
        {"I0": _POSITIVE, "n": (0.0, 4.0), "theta": (0.4 * _PI, 1.6 * _PI)},
        lambda I0, n, theta: I0 * np.sin(n * theta / 2) ** 2 / np.sin(theta / 2) ** 2,
    ),
    # Larmor's formula
    "I.32.5": Formula(
        {"q": _SIGNED, "a": _SIGNED, "epsilon": _SAFE, "c": _SAFE},
        lambda q, a, epsilon, c: q**2 * a**2 / (6 * _PI * epsilon * c**3),
    ),
    # Interference of two sources
    "I.37.4": Formula(
        {"I1": (0.1, 1.0), "I2": (0.1, 1.0), "delta": _TURN},
        lambda I1, I2, delta: I1 + I2 + 2 * np.sqrt(I1 * I2) * np.cos(delta),
    ),
    # Barometric formula
    "I.40.1": Formula(
        {"n0": _POSITIVE, "m": _SIGNED, "g": _SIGNED, "x": _SIGNED, "k": (1.0, 2.0), "T": (1.0, 2.0)},
        lambda n0, m, g, x, k, T: n0 * np.exp(-m * g * x / (k * T)),
    ),
    # Planck's law
    "I.41.16": Formula(
        {"hbar": (0.5, 1.0), "omega": (0.5, 1.0), "c": _SAFE, "k": _SAFE, "T": _SAFE},
        lambda hbar, omega, c, k, T: hbar * omega**3 / (_PI**2 * c**2 * np.expm1(hbar * omega / (k * T))),
    ),
    # Isothermal work
    "I.44.4": Formula(
        {"n": _POSITIVE, "k": _POSITIVE, "T": _POSITIVE, "V1": _SAFE, "V2": _SAFE},
        lambda n, k, T, V1, V2: n * k * T * np.log(V2 / V1),
    ),
    # Nonlinear response
    "I.50.26": Formula(
        {"x1": _POSITIVE, "alpha": _POSITIVE, "omega": _TURN, "t": _POSITIVE},
        lambda x1, alpha, omega, t: x1 * (np.cos(omega * t) + alpha * np.cos(omega * t) ** 2),
    ),
    # Field of a dipole
    "II.6.15a": Formula(
        {"epsilon": _SAFE, "p": _POSITIVE, "z": _POSITIVE, "x": _POSITIVE, "y": _POSITIVE, "r": _SAFE},
        lambda epsilon, p, z, x, y, r: 3 / (4 * _PI * epsilon) * p * z / r**5 * np.sqrt(x**2 + y**2),
    ),
    # Clausius and Mossotti
    "II.11.28": Formula(
        {"n": _POSITIVE, "alpha": (0.0, 2.0)},
        lambda n, alpha: 1 + n * alpha / (1 - n * alpha / 3),
    ),
    # Paramagnet of two levels
    "II.35.21": Formula(
        {"n": _POSITIVE, "mu": _POSITIVE, "B": _POSITIVE, "k": _SAFE, "T": _SAFE},
        lambda n, mu, B, k, T: n * mu * np.tanh(mu * B / (k * T)),
    ),
    # Ferromagnet
    "II.36.38": Formula(
        {
            "mu": _POSITIVE,
            "B": _POSITIVE,
            "k": _SAFE,
            "T": _SAFE,
            "alpha": _POSITIVE,
            "M": _POSITIVE,
            "epsilon": _SAFE,
            "c": _SAFE,
        },
        lambda mu, B, k, T, alpha, M, epsilon, c: mu * B / (k * T) + mu * alpha * M / (epsilon * c**2 * k * T),
    ),
    # Decay of the Lambda particle
    "III.17.37": Formula(
        {"beta": _POSITIVE, "alpha": _POSITIVE, "theta": _TURN},
        lambda beta, alpha, theta: beta * (1 + alpha * np.cos(theta)),
    ),
    # Anharmonic oscillator
    "goldstein_12.80": Formula(
        {"m": _SAFE, "p": _POSITIVE, "omega": _POSITIVE, "x": _POSITIVE, "alpha": _POSITIVE, "y": _SAFE},
        lambda m, p, omega, x, alpha, y: (p**2 + m**2 * omega**2 * x**2 * (1 + alpha * x / y)) / (2 * m),
    ),
    # Charge before a conducting sphere; pykan's y begins at 1, where d may be y
    "jackson_2.11": Formula(
        {"q": _POSITIVE, "epsilon": _SAFE, "y": (1.5, 2.0), "V": _POSITIVE, "d": _POSITIVE},
        lambda q, epsilon, y, V, d: (
            q / (4 * _PI * epsilon * y**2) * (4 * _PI * epsilon * V * d - q * d * y**3 / (y**2 - d**2) ** 2)
        ),
    ),
}
FEYNMAN = {f"feynman_{name}": formula for name, formula in _BY_NUMBER.items()}
