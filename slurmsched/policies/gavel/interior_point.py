"""Interior-point methods for the programs of Gavel (Narayanan et al., OSDI 2020, section 4): the optimum of a linear
program (Mehrotra 1992), and the analytic centre of a polytope.

Both take Newton steps whose cost is that of one matrix, rows @ diag(weight) @ rows.T + diag(row_weight). Gavel's has
two rows for each class of jobs and one for each GPU type, and a variable is in the rows of one class, or of two if it
is of a pair. So without pairs all classes are eliminated at once, and a system of the GPU types is left; with pairs the
matrix is dense, but small. A general sparse factorisation takes five to a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from math import inf, log
from typing import Final, Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import splu

from slurmsched.arrays import Floats, Ints

_MAX_STEPS: Final = 200
_CENTRE_TOLERANCE: Final = 1e-4
"""Largest relative violation of any optimality condition that counts as the centre."""
_STEP_FRACTION: Final = 0.9
"""Fraction of the way to the nearest bound that a step to the centre may go."""
_MIN_SLACK: Final = 1e-3
_ROUNDING: Final = 1e-9

_OPTIMUM_TOLERANCE: Final = 1e-9
"""Largest duality gap, as a fraction of the optimum, and largest relative violation of a row, of an optimum."""
_OPTIMUM_MAX_STEPS: Final = 100
_TINY: Final = 1e-300
_LONG_STEP_FRACTION: Final = 0.995
"""The same fraction on the way to an optimum."""

_MAX_REFINEMENTS: Final = 12
_REFINED: Final = 1e-10
"""The error of a refined solution, as a fraction of the largest entry of the right-hand side."""

_DAMPING: Final = 1 + 1e-12
"""The damping of steps to an optimum, whose refinements make up for it."""

Solver = Callable[[Floats], Floats]
"""Returns the solution of a system for its right-hand side."""


class NormalEquations(Protocol):
    """The matrices rows @ diag(weight) @ rows.T + diag(row_weight) of some rows."""

    def factorize(self, weight: Floats, row_weight: Floats, damping: float = 1.0) -> Solver:
        """Returns the solver for these weights, all above 0; [variables], [rows]. Raises ArithmeticError.

        `damping` is a factor of the diagonal; above 1 it keeps the matrix positive definite under rounding.
        """


@dataclass(frozen=True, eq=False, slots=True)
class SparseEquations:
    """Those of any sparse rows."""

    rows: csr_matrix

    def factorize(self, weight: Floats, row_weight: Floats, damping: float = 1.0) -> Solver:
        matrix = self.rows @ diags(weight) @ csr_matrix(self.rows.T) + diags(row_weight)
        matrix.setdiag(matrix.diagonal() * damping)
        try:
            solver: Solver = splu(matrix.tocsc()).solve
        except RuntimeError as error:
            raise ArithmeticError(str(error)) from error
        return solver


@dataclass(frozen=True, eq=False, slots=True)
class ClassEquations:
    """Those of Gavel's rows. First come `local`, L rows for each class in which only its own variables are, all first
    rows before all second ones; then `shared`, K rows in which all variables may be.

    Variables are [class or pair, type]; the arrays have the type before the class, [L, types, classes] and
    [K, types, classes].
    """

    local: Floats
    shared: Floats

    def factorize(self, weight: Floats, row_weight: Floats, damping: float = 1.0) -> Solver:
        local, shared = self.local, self.shared
        count, classes = len(local), local.shape[2]
        by_type = weight.reshape(classes, -1).T
        weighed = local * by_type
        inverse = _inverted(weighed, local, row_weight[: count * classes].reshape(count, classes), damping)
        across = np.einsum("iwc,kwc->ikc", weighed, shared)
        rest = np.einsum("kwc,mwc->km", shared * by_type, shared) + np.diag(row_weight[count * classes :])
        eliminated = np.einsum("ijc,jkc->ikc", inverse, across)
        rest -= np.einsum("ikc,imc->km", across, eliminated)
        rest[np.diag_indices(len(rest))] *= damping
        factor = _cholesky(rest)

        def solve(right: Floats) -> Floats:
            of_classes = right[: count * classes].reshape(count, classes)
            alone = np.einsum("ijc,jc->ic", inverse, of_classes)
            of_shared = cho_solve(
                factor, right[count * classes :] - np.einsum("ikc,ic->k", eliminated, of_classes), check_finite=False
            )
            own = alone - np.einsum("ikc,k->ic", eliminated, of_shared)
            return np.concatenate([own.reshape(-1), of_shared])

        return solve


@dataclass(frozen=True, eq=False, slots=True)
class PairEquations:
    """Those of Gavel's rows where variables of pairs follow those of classes.

    `first[p]` and `second[p]` are the classes of pair p, and `local_first`, `local_second` its coefficients in their
    rows, [L, types, pairs]; `shared_pairs` is [K, types, pairs].
    """

    alone: ClassEquations
    first: Ints
    second: Ints
    local_first: Floats
    local_second: Floats
    shared_pairs: Floats

    def factorize(self, weight: Floats, row_weight: Floats, damping: float = 1.0) -> Solver:
        matrix = self._matrix(weight)
        own = np.arange(len(matrix))
        matrix[own, own] = (matrix[own, own] + row_weight) * damping
        factor = _cholesky(matrix)
        return lambda right: np.asarray(cho_solve(factor, right, check_finite=False), dtype=np.float64)

    def _matrix(self, weight: Floats) -> Floats:
        local, shared = self.alone.local, self.alone.shared
        count, types, classes = local.shape
        single = weight[: classes * types].reshape(classes, types).T
        pair = np.ascontiguousarray(weight[classes * types :].reshape(-1, types).T)
        size = count * classes
        matrix = np.zeros((size + len(shared), size + len(shared)))
        first, second = self.local_first * pair, self.local_second * pair
        own = np.arange(classes)
        for i in range(count):
            for j in range(i + 1):
                block = matrix[i * classes : (i + 1) * classes, j * classes : (j + 1) * classes]
                block[self.first, self.second] = _summed(first[i], self.local_second[j])
                block[self.second, self.first] += _summed(second[i], self.local_first[j])
                diagonal = _summed(local[i] * single, local[j])
                diagonal += np.bincount(self.first, _summed(first[i], self.local_first[j]), classes)
                diagonal += np.bincount(self.second, _summed(second[i], self.local_second[j]), classes)
                block[own, own] += diagonal
                if j < i:
                    matrix[j * classes : (j + 1) * classes, i * classes : (i + 1) * classes] = block.T
            for k, of_pairs in enumerate(self.shared_pairs):
                column = _summed(local[i] * single, shared[k])
                column += np.bincount(self.first, _summed(first[i], of_pairs), classes)
                column += np.bincount(self.second, _summed(second[i], of_pairs), classes)
                matrix[i * classes : (i + 1) * classes, size + k] = column
                matrix[size + k, i * classes : (i + 1) * classes] = column
        matrix[size:, size:] = np.einsum("kwc,mwc->km", shared * single, shared)
        matrix[size:, size:] += np.einsum("kwp,mwp->km", self.shared_pairs * pair, self.shared_pairs)
        return matrix


@dataclass(frozen=True, eq=False, slots=True)
class BorderedEquations:
    """Those of rows with one more variable, the last, which is in many of them with the coefficients `column`."""

    others: NormalEquations
    column: Floats

    def factorize(self, weight: Floats, row_weight: Floats, damping: float = 1.0) -> Solver:
        solve_others = self.others.factorize(weight[:-1], row_weight, damping)
        effect = solve_others(self.column)
        scale = 1.0 / (1.0 / weight[-1] + self.column @ effect)

        def solve(right: Floats) -> Floats:
            found = solve_others(right)
            return np.asarray(found - effect * (scale * (self.column @ found)), dtype=np.float64)

        return solve


def _summed(weighed: Floats, coefficients: Floats) -> Floats:
    """Returns the sums over types of the products of two arrays, [types, any]."""
    return np.asarray(np.einsum("wp,wp->p", weighed, coefficients), dtype=np.float64)


def _inverted(weighed: Floats, local: Floats, row_weight: Floats, damping: float) -> Floats:
    """Returns the inverses of the matrices weighed @ local.T + diag(row_weight) of each class, of 1 or 2 rows,
    [rows, rows, classes].

    The determinant is a sum of squares, so that nothing cancels out where one type has nearly all the weight. Raises
    ArithmeticError.
    """
    squares = np.einsum("iwc,iwc->ic", weighed, local)
    added = row_weight + (damping - 1) * squares
    if len(local) == 1:
        return np.asarray(1.0 / (squares + added)[None], dtype=np.float64)
    both = np.einsum("wc,wc->c", weighed[0], local[1])
    determinant = added[0] * (squares[1] + added[1]) + added[1] * squares[0]
    for one, other in combinations(range(local.shape[1]), 2):
        area = weighed[0, one] * local[1, other] - weighed[1, one] * local[0, other]
        determinant += area * (local[0, one] * weighed[1, other] - local[1, one] * weighed[0, other])
    if not (determinant > 0).all():
        raise ArithmeticError("a class has no inverse")
    return np.asarray(
        np.array([[squares[1] + added[1], -both], [-both, squares[0] + added[0]]]) / determinant, dtype=np.float64
    )


def _cholesky(matrix: Floats) -> tuple[Floats, bool]:
    """Raises ArithmeticError for a matrix that is not positive definite as far as rounding lets it be known."""
    try:
        factor, lower = cho_factor(matrix)
    except (LinAlgError, ValueError) as error:
        raise ArithmeticError(str(error)) from error
    return factor, bool(lower)


@dataclass(frozen=True, eq=False, slots=True)
class Polytope:
    """The set {x > 0: rows @ x < limits}. `weights` and `row_weights` are the exponents of the distances to the bounds
    of variables and of rows in the product that the analytic centre maximises. `equations` are those of `rows`; None
    stands for `SparseEquations`."""

    rows: csr_matrix
    limits: Floats
    weights: Floats
    row_weights: Floats
    equations: NormalEquations | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Point:
    """Variables, what is left of the limits of the rows, and the multipliers of both; all above 0. Also a step."""

    x: Floats
    slack: Floats
    dual: Floats
    row_dual: Floats

    @classmethod
    def at(cls, polytope: Polytope, x: Floats) -> Point:
        """Returns the point at x with the product of each distance and its multiplier at its weight."""
        slack = np.maximum(polytope.limits - polytope.rows @ x, _MIN_SLACK)
        return cls(x, slack, polytope.weights / x, polytope.row_weights / slack)

    def reach(self, step: Point) -> tuple[float, float]:
        """Returns which part of the step leads to the nearest bound: of variables and slack, of multipliers."""
        return 1.0 / _nearest((self.x, step.x), (self.slack, step.slack)), 1.0 / _nearest(
            (self.dual, step.dual), (self.row_dual, step.row_dual)
        )

    def moved(self, step: Point, primal: float, dual: float) -> Point:
        return Point(
            self.x + primal * step.x,
            self.slack + primal * step.slack,
            self.dual + dual * step.dual,
            self.row_dual + dual * step.row_dual,
        )

    @property
    def product(self) -> float:
        """The sum over all bounds of distance times multiplier: the duality gap of a point without residuals."""
        return float(self.x @ self.dual + self.slack @ self.row_dual)


def _nearest(*moved: tuple[Floats, Floats]) -> float:
    return max(_TINY, *(float((-step / value).max()) for value, step in moved))


@dataclass(frozen=True, eq=False, slots=True)
class _Newton:
    """The Newton steps from one point. `missing` and `unbalanced` are its residuals of the rows and of the multipliers,
    `weight` and `row_weight` its distances over their multipliers, and `solve` the solver of these weights."""

    rows: csr_matrix
    across: csr_matrix
    missing: Floats
    unbalanced: Floats
    weight: Floats
    row_weight: Floats
    solve: Solver

    def step(self, short: Floats, row_short: Floats, *, refined: bool = False) -> Point:
        """Returns the step after which multipliers are right and rise by `short` where their distance stays.

        `refined`: the solver is not exact, so conjugate gradients go on from what it finds.
        """
        known = self.unbalanced + short
        right = self.rows @ (self.weight * known) - self.missing + self.row_weight * row_short
        d_row_dual = self.solve(right)
        if refined:
            d_row_dual = self._refined(right, d_row_dual)
        d_x = self.weight * (known - self.across @ d_row_dual)
        return Point(d_x, self.row_weight * (row_short - d_row_dual), short - d_x / self.weight, d_row_dual)

    def _refined(self, right: Floats, found: Floats) -> Floats:
        error, direction, before = right - self._applied(found), np.zeros_like(right), 1.0
        for step in range(_MAX_REFINEMENTS):
            if np.abs(error).max() <= _REFINED * np.abs(right).max():
                break
            solved = self.solve(error)
            now = float(error @ solved)
            direction = solved + (now / before if step else 0.0) * direction
            applied = self._applied(direction)
            curvature = float(direction @ applied)
            if not curvature > 0:
                break
            size = now / curvature
            found, error, before = found + size * direction, error - size * applied, now
        return found

    def _applied(self, vector: Floats) -> Floats:
        product: Floats = self.rows @ (self.weight * (self.across @ vector)) + self.row_weight * vector
        return product


def analytic_centre(polytope: Polytope, start: Point | Floats) -> Floats | None:
    """Returns the analytic centre by the primal-dual Newton method, or None for a polytope without an interior.

    At the centre the product of each distance and its multiplier equals its weight, and the multipliers cancel out.
    `start` is above 0, but need not be inside.
    """
    rows, across = polytope.rows, csr_matrix(polytope.rows.T)
    equations = polytope.equations or SparseEquations(rows)
    point = start if isinstance(start, Point) else Point.at(polytope, start)
    rounding = _ROUNDING * (1 + np.abs(polytope.limits))
    for _ in range(_MAX_STEPS):
        missing = polytope.limits - rows @ point.x - point.slack
        unbalanced = point.dual - across @ point.row_dual
        short = polytope.weights / point.x - point.dual
        row_short = polytope.row_weights / point.slack - point.row_dual
        off = (
            short / point.dual,
            row_short / point.row_dual,
            missing / (point.slack + rounding),
            unbalanced / point.dual,
        )
        if max(float(np.abs(part).max()) for part in off) < _CENTRE_TOLERANCE:
            return point.x
        weight, row_weight = point.x / point.dual, point.slack / point.row_dual
        try:
            solve, refined = _factorized(equations, weight, row_weight)
        except ArithmeticError:
            return None
        newton = _Newton(rows, across, missing, unbalanced, weight, row_weight, solve)
        step = newton.step(short, row_short, refined=refined)
        if not np.isfinite(step.row_dual).all():
            return None
        size = min(1.0, *(_STEP_FRACTION * part for part in point.reach(step)))
        point = point.moved(step, size, size)
    return None


def _factorized(equations: NormalEquations, weight: Floats, row_weight: Floats) -> tuple[Solver, bool]:
    """Returns a solver, and whether it is only nearly one. Raises ArithmeticError."""
    try:
        return equations.factorize(weight, row_weight), False
    except ArithmeticError:
        return equations.factorize(weight, row_weight, _DAMPING), True


@dataclass(frozen=True, eq=False, slots=True)
class Optimum:
    """An optimum `x` of a linear program, and the point of the way there whose gap to it was nearest to what was asked
    for: close to the analytic centre of all that is as good, with multipliers of the same scale."""

    x: Floats
    near: Point


def maximum(polytope: Polytope, value: Floats, start: Point, near: float) -> Optimum | None:
    """Returns the x of the polytope with the largest `value @ x`; None if it is not found to `_OPTIMUM_TOLERANCE`.

    `start` is inside, best with multipliers that are feasible too; `near` is the gap of `Optimum.near`, as a fraction
    of the optimum. The way follows the centres of what is left when at least so much is demanded, with the weights of
    the polytope (Mehrotra's predictor and corrector).
    """
    rows, across = polytope.rows, csr_matrix(polytope.rows.T)
    equations = polytope.equations or SparseEquations(rows)
    total = float(polytope.weights.sum() + polytope.row_weights.sum())
    point, nearest, chosen = start, inf, start
    for _ in range(_OPTIMUM_MAX_STEPS):
        missing = polytope.limits - rows @ point.x - point.slack
        unbalanced = point.dual - across @ point.row_dual + value
        found, bound, mean = float(value @ point.x), float(polytope.limits @ point.row_dual), point.product / total
        off = abs(log(max(point.product, _TINY) / (near * found)))
        if off < nearest:
            nearest, chosen = off, Point(point.x, point.slack, point.dual / mean, point.row_dual / mean)
        if (
            abs(bound - found) <= _OPTIMUM_TOLERANCE * found
            and float((np.abs(missing) / (1 + np.abs(polytope.limits))).max()) <= _OPTIMUM_TOLERANCE
            and float(np.abs(unbalanced).max()) <= _OPTIMUM_TOLERANCE * float(np.abs(value).max())
        ):
            return Optimum(point.x, chosen)
        weight, row_weight = point.x / point.dual, point.slack / point.row_dual
        try:
            solve = equations.factorize(weight, row_weight, _DAMPING)
        except ArithmeticError:
            return None
        newton = _Newton(rows, across, missing, unbalanced, weight, row_weight, solve)
        ahead = newton.step(-point.dual, -point.row_dual)
        primal, dual = (min(1.0, part) for part in point.reach(ahead))
        target = mean * (point.moved(ahead, primal, dual).product / point.product) ** 3
        step = newton.step(
            (target * polytope.weights - ahead.x * ahead.dual) / point.x - point.dual,
            (target * polytope.row_weights - ahead.slack * ahead.row_dual) / point.slack - point.row_dual,
            refined=True,
        )
        if not np.isfinite(step.row_dual).all():
            return None
        point = point.moved(step, *(min(1.0, _LONG_STEP_FRACTION * part) for part in point.reach(step)))
    return None
