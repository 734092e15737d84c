"""Special functions against values computed with 30 digits (mpmath 1.3), against the C library, and at their edges."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.ir.dtype import f32
from tilewright.ir.expr import const
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ops.special import FORMULAS

# function: arguments, values
EXACT: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "erfcx": (
        (-3.0, -0.5, 0.0, 0.25, 1.0, 4.0, 20.0, 10000.0),
        (
            16205.988853999586,
            1.952360489182557,
            1.0,
            0.7703465477309968,
            0.427583576155807,
            0.13699945762506138,
            0.02817434874105132,
            5.641895807268084e-05,
        ),
    ),
    "erfinv": (
        (-0.999, -0.7, -0.25, 0.0, 0.0001, 0.5, 0.9, 0.999999),
        (
            -2.3267537655135246,
            -0.7328690779592167,
            -0.2253120550121781,
            0.0,
            8.862269277728948e-05,
            0.4769362762044699,
            1.1630871536766743,
            3.458910737275499,
        ),
    ),
    "ndtri": (
        (1e-12, 0.001, 0.125, 0.25, 0.5, 0.75, 0.9375, 0.9990234375),
        (
            -7.034483825301132,
            -3.0902323061678136,
            -1.150349380376008,
            -0.6744897501960817,
            0.0,
            0.6744897501960817,
            1.5341205443525463,
            3.0972690781987846,
        ),
    ),
    "digamma": (
        (-7.5, -0.25, 0.001, 0.5, 1.5, 3.0, 12.0, 100000.0),
        (
            2.08009081757942,
            2.9141391202135276,
            -1000.5755719318103,
            -1.9635100260214235,
            0.03648997397857652,
            0.9227843350984671,
            2.442661679975812,
            11.512920464961896,
        ),
    ),
    "bessel_i0": (
        (-9.0, -1.0, 0.0, 0.5, 3.0, 8.0, 8.5, 30.0),
        (
            1093.5883545113747,
            1.2660658777520084,
            1.0,
            1.0634833707413236,
            4.8807925858650245,
            427.5641157218048,
            683.1619269901156,
            781672297823.9775,
        ),
    ),
    "bessel_i0e": (
        (-9.0, -1.0, 0.0, 0.5, 3.0, 8.0, 8.5, 300.0),
        (
            0.134959524581723,
            0.46575960759364043,
            1.0,
            0.6450352704491501,
            0.2430003541618254,
            0.14343178185685032,
            0.13900184305484758,
            0.02304255841508546,
        ),
    ),
    "bessel_i1": (
        (-9.0, -1.0, 0.0, 0.5, 3.0, 8.0, 8.5, 30.0),
        (
            -1030.9147225169565,
            -0.565159103992485,
            0.0,
            0.2578943053908963,
            3.9533702174026093,
            399.8731367825601,
            641.6199025400667,
            768532038938.957,
        ),
    ),
    "bessel_i1e": (
        (-9.0, -1.0, 0.0, 0.5, 3.0, 8.0, 8.5, 300.0),
        (
            -0.1272249839358912,
            -0.20791041534970844,
            0.0,
            0.1564208031848717,
            0.19682671329730086,
            0.13414249329269817,
            0.13054935509459586,
            0.02300412204026895,
        ),
    ),
    "bessel_k0": (
        (0.01, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0, 40.0),
        (
            4.721244730161095,
            0.9244190712276659,
            0.42102443824070834,
            0.11389387274953344,
            0.06234755320036619,
            0.0036910983340425942,
            1.778006231616765e-05,
            8.392861100099567e-19,
        ),
    ),
    "bessel_k0e": (
        (0.01, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0, 400.0),
        (
            4.768694028544462,
            1.5241093857739094,
            1.144463079806895,
            0.8415682150707714,
            0.7595486903280996,
            0.547807564313519,
            0.39163193443659866,
            0.06264615129957811,
        ),
    ),
    "bessel_k1": (
        (0.01, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0, 40.0),
        (
            99.97389411829624,
            1.656441120003301,
            0.6019072301972346,
            0.13986588181652243,
            0.07389081634774707,
            0.004044613445452165,
            1.8648773453825585e-05,
            8.497131954861039e-19,
        ),
    ),
    "bessel_k1e": (
        (0.01, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0, 400.0),
        (
            100.97864845824004,
            2.731009708211786,
            1.6361534862632583,
            1.0334768470686886,
            0.900174423907878,
            0.6002738587883126,
            0.41076657059578875,
            0.06272441016827716,
        ),
    ),
    "bessel_j0": (
        (-6.0, -1.0, 0.0, 0.5, 2.5, 5.0, 7.0, 30.0),
        (
            0.15064525725099692,
            0.7651976865579666,
            1.0,
            0.9384698072408129,
            -0.048383776468198,
            -0.1775967713143383,
            0.3000792705195556,
            -0.08636798358104021,
        ),
    ),
    "bessel_j1": (
        (-6.0, -1.0, 0.0, 0.5, 2.5, 5.0, 7.0, 30.0),
        (
            0.27668385812756563,
            -0.4400505857449335,
            0.0,
            0.2422684576748739,
            0.49709410246427405,
            -0.32757913759146523,
            -0.004682823482345833,
            -0.11875106261662294,
        ),
    ),
    "bessel_y0": (
        (0.01, 0.5, 1.0, 2.5, 5.0, 7.0, 12.0, 30.0),
        (
            -3.005455637083646,
            -0.44451873350670656,
            0.08825696421567696,
            0.4980703596152319,
            -0.30851762524903376,
            -0.025949743967209265,
            -0.22523731263436145,
            -0.11729573168666403,
        ),
    ),
    "bessel_y1": (
        (0.01, 0.5, 1.0, 2.5, 5.0, 7.0, 12.0, 30.0),
        (
            -63.67859628206065,
            -1.471472392670243,
            -0.7812128213002887,
            0.1459181379667858,
            0.14786314339122683,
            -0.30266723702418485,
            -0.05709921826089652,
            0.08442557066174723,
        ),
    ),
    "spherical_bessel_j0": (
        (-4.0, -1.0, 0.0, 1e-05, 0.25, 2.0, 7.0, 30.0),
        (
            -0.18920062382698205,
            0.8414709848078965,
            1.0,
            0.9999999999833333,
            0.9896158370180917,
            0.45464871341284085,
            0.09385522838839844,
            -0.03293438746976206,
        ),
    ),
}
EXACT_OF_TWO: dict[str, tuple[tuple[tuple[float, float], ...], tuple[float, ...]]] = {
    "zeta": (
        ((2.0, 1.0), (2.0, 0.25), (3.5, 7.0), (1.5, 30.0), (20.0, 2.0), (3.0, -2.5), (2.0, -0.75), (4.0, -6.25)),
        (
            1.6449340668482264,
            17.19732915450711,
            0.003681929219641926,
            0.3682166281870004,
            9.539620338727962e-07,
            0.0541020258208637,
            18.975106932284888,
            259.7565039177402,
        ),
    ),
    "chebyshev_t": (
        ((0.3, 0.0), (0.3, 1.0), (-0.3, 5.0), (1.0, 4.0), (-1.0, 3.0), (2.0, 5.0), (-2.5, 3.0), (0.0, 6.0)),
        (1.0, 0.3, -0.99888, 1.0, -1.0, 362.0, -55.0, -1.0),
    ),
    "chebyshev_u": (
        ((0.3, 0.0), (0.3, 1.0), (-0.3, 5.0), (1.0, 4.0), (-1.0, 3.0), (2.0, 5.0), (-2.5, 3.0), (0.0, 6.0)),
        (1.0, 0.6, -1.01376, 5.0, -4.0, 780.0, -115.0, -1.0),
    ),
    "chebyshev_v": (
        ((0.3, 0.0), (0.3, 1.0), (-0.3, 5.0), (1.0, 4.0), (-1.0, 3.0), (2.0, 5.0), (-2.5, 3.0), (0.0, 6.0)),
        (1.0, -0.4, -1.06336, 1.0, -7.0, 571.0, -139.0, -1.0),
    ),
    "chebyshev_w": (
        ((0.3, 0.0), (0.3, 1.0), (-0.3, 5.0), (1.0, 4.0), (-1.0, 3.0), (2.0, 5.0), (-2.5, 3.0), (0.0, 6.0)),
        (1.0, 1.6, -0.9641599999999999, 9.0, -1.0, 989.0, -91.0, -1.0),
    ),
}

RELATIVE, ABSOLUTE = 2e-14, 2e-15


def reference(name: str, *arrays: np.ndarray) -> np.ndarray:
    (result,) = ops.get(name).reference(arrays, ops.attributes(name, {}))
    return np.asarray(result)


@pytest.mark.parametrize("name", sorted(EXACT))
def test_values_in_double_precision(name: str) -> None:
    arguments, values = EXACT[name]
    np.testing.assert_allclose(reference(name, np.array(arguments)), values, rtol=RELATIVE, atol=ABSOLUTE)


POINTS = np.array([0.0, 0.25, 0.9375, 1.0, 1.5, 4.5, 6.0, 12.0, np.nan, -0.4, -7.3], np.float32)


@pytest.mark.slow
def test_native_code_equals_the_formulas() -> None:
    """All functions in one program, of single precision: rounded from double, they differ by one ulp at most."""
    builder = GraphBuilder("special")
    x, degree = (builder.input(name, TensorType(f32, (const(len(POINTS)),))) for name in ("x", "degree"))
    two = [name for name in FORMULAS if name in EXACT_OF_TWO]
    outputs = [ops.emit1(builder, n, *((x, degree) if n in two else (x,)), name=n) for n in FORMULAS]
    model = tw.compile((builder.finish(outputs), {}))
    degrees = np.arange(len(POINTS), dtype=np.float32)[::-1].copy()
    result = model.run({"x": POINTS, "degree": degrees})
    for name in FORMULAS:
        want = reference(name, *((POINTS, degrees) if name in two else (POINTS,)))
        np.testing.assert_allclose(result[name], want, rtol=2.4e-7, atol=1e-30, err_msg=name)


@pytest.mark.parametrize("name", sorted(EXACT_OF_TWO))
def test_values_of_two_arguments(name: str) -> None:
    arguments, values = EXACT_OF_TWO[name]
    inputs = [np.array(column) for column in zip(*arguments, strict=True)]
    result = reference(name, *inputs)
    np.testing.assert_allclose(result, values, rtol=20 * RELATIVE, atol=ABSOLUTE)


@pytest.mark.parametrize("name", ["erfc", "lgamma"])
def test_functions_of_the_c_library(name: str) -> None:
    x = np.concatenate([np.linspace(-20.3, 26, 401), [1e-300, 1e-8, 1 + 1e-9, 2 - 1e-9]])
    if name == "lgamma":
        x = np.concatenate([x, [1e5, 1e100]])
    want = np.array([getattr(math, name)(v) for v in x])
    result = reference(name, x)
    relative = 1e-13 if name == "erfc" else 3e-14  # erfc's error grows with x^2, lgamma's is absolute near its zeros
    np.testing.assert_allclose(result, want, rtol=relative, atol=0.0 if name == "erfc" else 3e-14)


EDGES: dict[str, list[tuple[float, float]]] = {
    "erfc": [(math.inf, 0), (-math.inf, 2), (math.nan, math.nan), (0, 1)],
    "erfcx": [(math.inf, 0), (-math.inf, math.inf), (math.nan, math.nan)],
    "erfinv": [(1, math.inf), (-1, -math.inf), (1.5, math.nan), (math.nan, math.nan)],
    "ndtri": [(0, -math.inf), (1, math.inf), (-0.5, math.nan), (math.nan, math.nan)],
    "lgamma": [(0, math.inf), (-3, math.inf), (math.inf, math.inf), (-math.inf, math.inf), (math.nan, math.nan)],
    "digamma": [(0.0, -math.inf), (-0.0, math.inf), (-2, math.nan), (math.inf, math.inf), (-math.inf, math.nan)],
    "bessel_i0": [(math.inf, math.inf), (-math.inf, math.inf), (math.nan, math.nan)],
    "bessel_k0": [(0, math.inf), (-1, math.nan), (math.inf, 0)],
    "bessel_j0": [(math.inf, 0), (math.nan, math.nan)],
    "bessel_y1": [(0, -math.inf), (-1, math.nan)],
}


@pytest.mark.parametrize("name", sorted(EDGES))
def test_edges(name: str) -> None:
    arguments, values = zip(*EDGES[name], strict=True)
    result = reference(name, np.array(arguments, np.float64))
    np.testing.assert_allclose(result, values, rtol=2e-16)
