r"""Runge-Kutta methods as tables of coefficients.

One step of size :math:`h` from :math:`(t, y)` evaluates the field at :math:`s` stages and combines
them,

.. math:: k_i = f\big(t + c_i h,\; y + h \sum_{j<i} a_{ij} k_j\big), \qquad
    y' = y + h \sum_i b_i k_i, \qquad
    \mathrm{error} = h \sum_i e_i k_i,

where :math:`e = b - \hat b` compares the result with an embedded method of lower order. A method
without :math:`e` cannot judge its own step: it is used with a given number of equal steps. Within a
step :math:`y(t + \theta h) = y + h \sum_i k_i \sum_p d_{ip}\, \theta^p`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["TABLEAUS", "Tableau"]


@dataclass(frozen=True)
class Tableau:
    r"""Coefficients of one explicit Runge-Kutta method.

    Arguments:
        name: What the user calls it.
        order: Order of convergence of the accepted result.
        c: Stage times as fractions of the step.
        a: Row ``i`` holds the weights of the stages before stage ``i``.
        b: Weights of the result.
        e: Weights of the error estimate; empty for a method of fixed steps.
        d: Row ``i`` holds the coefficients of :math:`\theta, \theta^2, \dots` of the weight of
            stage ``i`` in the state a fraction :math:`\theta` of the way through the step.
    """

    name: str
    order: int
    c: tuple[float, ...]
    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    e: tuple[float, ...] = ()
    d: tuple[tuple[float, ...], ...] = ()

    # derived, once
    adaptive: bool = field(init=False)  # whether the method estimates its own error
    stages: int = field(init=False)  # of a step; each attempt evaluates one less when fsal
    fsal: bool = field(init=False)  # the last stage is the first of the next step, for free
    result_stages: int = field(init=False)  # those that the result, and so a gradient, depends on
    silent: tuple[bool, ...] = field(init=False)  # no weight in result and error: dopri5's second
    nodes: NDArray[np.float64] = field(init=False, repr=False, compare=False)  # c as an array
    dense: NDArray[np.float64] = field(init=False, repr=False, compare=False)  # d, (stages, powers)

    def __post_init__(self) -> None:
        fsal = self.a[-1] == self.b[:-1] and self.b[-1] == 0.0
        weights = zip(self.b, self.e or self.b, strict=True)
        derived = {
            "adaptive": bool(self.e),
            "stages": len(self.c),
            "fsal": fsal,
            "result_stages": len(self.c) - fsal,
            "silent": tuple(b == 0.0 and e == 0.0 for b, e in weights),
            "nodes": np.array(self.c),
            "dense": np.array(self.d),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)


DOPRI5 = Tableau(
    name="dopri5",
    order=5,
    c=(0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0),
    a=(
        (),
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    ),
    b=(35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0.0),
    e=(71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
    d=(  # L. F. Shampine, Mathematics of Computation 46 (1986), 135-150
        (1.0, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432),
        (0.0, 0.0, 0.0, 0.0),
        (0.0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799),
        (0.0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072),
        (0.0, 127303824393 / 49829197408, -318862633887 / 49829197408, 701980252875 / 199316789632),
        (0.0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844),
        (0.0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423),
    ),
)
_TSIT5_RESULT = (
    0.09646076681806523,
    0.01,
    0.4798896504144996,
    1.379008574103742,
    -3.290069515436081,
    2.324710524099774,
)
TSIT5 = Tableau(  # Ch. Tsitouras, Computers & Mathematics with Applications 62 (2011), 770-775
    name="tsit5",
    order=5,
    c=(0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0, 1.0),
    a=(
        (),
        (0.161,),
        (-0.008480655492356989, 0.335480655492357),
        (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
        (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
        (
            5.86145544294642,
            -12.92096931784711,
            8.159367898576159,
            -0.071584973281401,
            -0.028269050394068383,
        ),
        _TSIT5_RESULT,
    ),
    b=(*_TSIT5_RESULT, 0.0),
    e=(
        -0.00178001105222577714,
        -0.0008164344596567469,
        0.007880878010261995,
        -0.1447110071732629,
        0.5823571654525552,
        -0.45808210592918697,
        0.015151515151515152,
    ),
    d=(
        (1.0, -2.763706197274826, 2.9132554618219126, -1.0530884977290216),
        (0.0, 0.13169999999999998, -0.2234, 0.1017),
        (0.0, 3.9302962368947516, -5.941033872131505, 2.490627285651253),
        (0.0, -12.411077166933676, 30.33818863028232, -16.548102889244902),
        (0.0, 37.50931341651104, -88.1789048947664, 47.37952196281928),
        (0.0, -27.896526289197286, 65.09189467479366, -34.87065786149661),
        (0.0, 1.5, -4.0, 2.5),
    ),
)
BOSH3 = Tableau(
    name="bosh3",
    order=3,
    c=(0.0, 1 / 2, 3 / 4, 1.0),
    a=((), (1 / 2,), (0.0, 3 / 4), (2 / 9, 1 / 3, 4 / 9)),
    b=(2 / 9, 1 / 3, 4 / 9, 0.0),
    e=(2 / 9 - 7 / 24, 1 / 3 - 1 / 4, 4 / 9 - 1 / 3, -1 / 8),
    d=((1.0, -4 / 3, 5 / 9), (0.0, 1.0, -2 / 3), (0.0, 4 / 3, -8 / 9), (0.0, -1.0, 1.0)),
)
HEUN = Tableau(
    name="heun",
    order=2,
    c=(0.0, 1.0),
    a=((), (1.0,)),
    b=(1 / 2, 1 / 2),
    e=(-1 / 2, 1 / 2),
    d=((1.0, -1 / 2), (0.0, 1 / 2)),
)
EULER = Tableau(name="euler", order=1, c=(0.0,), a=((),), b=(1.0,), d=((1.0,),))
MIDPOINT = Tableau(
    name="midpoint",
    order=2,
    c=(0.0, 1 / 2),
    a=((), (1 / 2,)),
    b=(0.0, 1.0),
    d=((1.0, -1.0), (0.0, 1.0)),
)
RK4 = Tableau(
    name="rk4",
    order=4,
    c=(0.0, 1 / 2, 1 / 2, 1.0),
    a=((), (1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0)),
    b=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
    d=((1.0, -3 / 2, 2 / 3), (0.0, 1.0, -2 / 3), (0.0, 1.0, -2 / 3), (0.0, -1 / 2, 2 / 3)),
)
TABLEAUS = {table.name: table for table in (DOPRI5, TSIT5, BOSH3, HEUN, EULER, MIDPOINT, RK4)}
"""Methods by name."""
