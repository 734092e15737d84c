"""Which algorithms and precisions an operator may have at all, before anything is estimated."""

from __future__ import annotations

import pytest

from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, const
from tilewright.ir.graph import Graph, TensorType, Value
from tilewright.ir.selection import Algorithm, Direct, Pixels, Taps, Winograd, WinogradSums
from tilewright.ops import parse_graph
from tilewright.plans.framework.cost import Cost
from tilewright.plans.framework.decisions import deciding
from tilewright.targets.target import Target
from tilewright.transform.graph.options import Options
from tilewright.transform.layout.assign import in_blocks
from tilewright.transform.select import by_weight as select_by_weight
from tilewright.transform.select import convolution
from tilewright.transform.select.by_weight import conversions, gradient_algorithm
from tilewright.transform.select.convolution import (
    convolution_algorithm,
    filters,
    one_pixel,
    tiles,
    transformed,
    windows,
    with_layouts,
)
from tilewright.transform.select.nchw import conversion, plain_uses
from tilewright.transform.select.product import (
    attention_precision,
    one_sequence,
    product_algorithm,
    product_precision,
    quartered,
)
from tilewright.transform.select.surroundings import Surroundings
from tilewright.transform.select.taps import choices, with_taps

ZEN4, OLD = Target.parse("znver4"), Target.parse("x86-64-v3")


def around(text: str, target: Target = ZEN4, **options: str) -> Surroundings:
    """A graph of one statement, or of several, and what is known after the last one's operands."""
    graph = parse_graph(text)
    result = Surroundings(graph, target, Options(**options), in_blocks())
    for node in graph.nodes[:-1]:
        result.visit(node)
        result.leave(node)
    return result


def product(x: str = "n, 64", w: str = "64, 32", y: str = "n, 32", kind: str = "f32", how: str = "") -> str:
    return (
        f"graph @g(%x: {kind}[{x}]) params(%w: {kind}[{w}]) where n in 1.. {{ "
        f"%y = matmul(%x, %w) {{{how or 'transpose_b = false'}}} : {kind}[{y}] return %y }}"
    )


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (product(), {"precision": "bf16"}, "bf16"),
        (product(), {"precision": "int8"}, "int8"),
        (product(), {}, "fp32"),
        (product("2, n, 64", y="2, n, 32"), {"precision": "bf16"}, "bf16"),
        (product(w="64, 1", y="n, 1"), {"precision": "bf16"}, "fp32"),  # a vector
        (product("4, n", "n, 32", "4, 32", how="transpose_a = false"), {"precision": "bf16"}, "fp32"),  # of open depth
        (product("n, 64", "32, 64", how="transpose_b = true"), {"precision": "bf16"}, "bf16"),
        (product("64, n", how="transpose_a = true"), {"precision": "bf16"}, "bf16"),
        (product("2, n, 64", "2, 64, 32", "2, n, 32"), {"precision": "bf16"}, "fp32"),  # of many matrices
        (product(kind="f64"), {"precision": "bf16"}, "fp32"),
    ],
)  # fmt: skip
def test_which_products_are_rounded(text: str, options: dict[str, str], expected: str) -> None:
    a = around(text, **options)
    assert product_precision(a, a.graph.nodes[-1]) == expected


def test_products_of_any_values_are_rounded_where_that_is_asked_for() -> None:
    text = product().replace("[n, 64]) params(", "[n, 64], ")
    for products, expected in (("weights", "fp32"), ("all", "bf16")):
        a = around(text, precision="bf16", products=products)
        assert product_precision(a, a.graph.nodes[-1]) == expected


@pytest.mark.parametrize(
    ("depth", "kind", "target", "precision", "expected"),
    [
        ("16", "f32", ZEN4, "bf16", "bf16"),
        ("15", "f32", ZEN4, "bf16", "fp32"),  # not whole pairs of products
        ("d", "f32", ZEN4, "bf16", "fp32"),  # nobody knows
        ("16", "f16", ZEN4, "bf16", "fp32"),
        ("16", "f32", ZEN4, "int8", "fp32"),
        ("16", "f32", ZEN4, "fp32", "fp32"),
        ("16", "f32", OLD, "bf16", "fp32"),  # without the instruction
    ],
)
def test_which_attention_is_rounded(depth: str, kind: str, target: Target, precision: str, expected: str) -> None:
    types = f"{kind}[1, 8, 2, {depth}]"
    text = f"""graph @g(%q: {types}, %k: {types}, %v: {types}) where d in 1.. {{
      %y = lowered.attention(%q, %k, %v) {{causal = false, fill = 0.0, first = [0, 0, 0], groups = 2, guard = false,
        heads = 2, order = "ssss", scale = 0.25}} : {types} return %y }}"""
    a = around(text, target, precision=precision)
    assert attention_precision(a, a.graph.nodes[-1]) == expected


def by_weight(x: str, g: str, w: str, attrs: str = "") -> str:
    given = {"dilations": "[1, 1]", "pads": "[1, 1, 1, 1]", "strides": "[1, 1]", "window": "[3, 3]"}
    given |= dict(part.split(" = ") for part in attrs.split("; ") if part)
    text = ", ".join(f"{k} = {v}" for k, v in given.items())
    return (
        f"graph @g(%x: f32[{x}], %g: f32[{g}]) where n in 1.. "
        f"{{ %y = conv_weight_gradient(%x, %g) {{{text}}} : f32[{w}] return %y }}"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (by_weight("64, 128, 19, 19", "64, 128, 19, 19", "128, 128, 3, 3"), WinogradSums(4)),
        (by_weight("32, 512, 2, 2", "32, 512, 2, 2", "512, 512, 3, 3"), WinogradSums(2)),
        (by_weight("n, 128, 19, 19", "n, 128, 19, 19", "128, 128, 3, 3"), None),  # chunks of how many images?
        (by_weight("64, 3, 19, 19", "64, 128, 19, 19", "128, 3, 3, 3"), None),  # a block would be zeros above all
        (by_weight("64, 64, 9, 9", "64, 64, 9, 9", "64, 64, 1, 1", "window = [1, 1]; pads = [0, 0, 0, 0]"), None),
        (by_weight("64, 128, 19, 19", "64, 128, 10, 10", "128, 128, 3, 3", "strides = [2, 2]"), None),
        (by_weight("64, 128, 19, 19", "64, 128, 17, 17", "128, 128, 3, 3", "dilations = [2, 2]"), None),
        (by_weight("64, 128, 19, 19", "64, 128, 19, 21", "128, 128, 3, 1", "window = [3, 1]"), None),
    ],
)  # fmt: skip
def test_which_gradients_are_summed_over_tiles(text: str, expected: WinogradSums | None) -> None:
    a = around(text)
    assert gradient_algorithm(a, a.graph.nodes[-1]) == expected
    if expected is not None:
        exact = around(text, fast="exact")
        assert gradient_algorithm(exact, exact.graph.nodes[-1]) == Direct()


@pytest.mark.parametrize(("share", "expected"), [(0.98, Direct()), (0.96, WinogradSums(4))])
def test_sums_over_tiles_must_gain_three_percent(
    monkeypatch: pytest.MonkeyPatch, share: float, expected: Direct | WinogradSums
) -> None:
    a = around(by_weight("64, 128, 19, 19", "64, 128, 19, 19", "128, 128, 3, 3"))
    monkeypatch.setattr(select_by_weight, "over_pixels", lambda *_: Cost(compute=100.0))
    best = {4: Cost(compute=100.0 * share), 2: Cost(compute=100.0)}
    monkeypatch.setattr(select_by_weight, "ranked", lambda _, tile, __: [(best[tile], None)])
    assert gradient_algorithm(a, a.graph.nodes[-1]) == expected


def test_gradients_count_the_change_of_a_layout_for_one_way() -> None:
    """Of 17 channels that are no lanes: pixels read them plain, tiles in blocks."""
    a = around(by_weight("64, 17, 19, 19", "64, 128, 19, 19", "128, 17, 3, 3"))
    node, (x, _) = a.graph.nodes[-1], a.graph.inputs
    assert conversions(a, node) == (64 * conversion(x, ZEN4), 0.0)
    a.blocked.add(x)
    assert conversions(a, node) == (0.0, 64 * conversion(x, ZEN4))
    full = around(by_weight("64, 32, 19, 19", "64, 128, 19, 19", "128, 32, 3, 3"))
    assert conversions(full, full.graph.nodes[-1]) == (0.0, 0.0)


NORMED = """graph @g(%x: f32[{x}]) params(%s: f32[256], %w: f32[{w}]) {{
  %r = {norm}(%x, %s) {{axis = {axis}, epsilon = 0.001}} : f32[{x}]
  %y = matmul(%r, %w) {{transpose_a = {turned}}} : f32[{y}] return %y }}"""


def normed(
    x: str = "1, 512, 256",
    w: str = "256, 512",
    y: str = "1, 512, 512",
    axis: int = -1,
    norm: str = "layer_norm",
    transposed: str = "false",
) -> str:
    return NORMED.format(x=x, w=w, y=y, axis=axis, norm=norm, turned=transposed)


@pytest.mark.parametrize(
    ("text", "fast", "expected"),
    [
        (normed(), "auto", True),
        (normed(), "f6", True),
        (normed(), "exact", False),
        (normed(), "f2", False),
        (normed(norm="rms_norm"), "auto", True),
        (normed("2, 512, 256", y="2, 512, 512"), "auto", False),  # samples would meet
        (normed("512, 256", y="512, 512"), "auto", False),  # rows of which nothing says that they are one sample's
        (normed("1, 1, 256", y="1, 1, 512"), "auto", False),  # a vector
        (normed(w="256, 511", y="1, 512, 511"), "auto", False),  # no halves
        (product("512, 256", "256, 512", "512, 512"), "auto", False),  # not normed
        (product("512, 256", "256, 512", "512, 512"), "strassen", True),
        (product("2, 512, 256", "256, 512", "2, 512, 512"), "strassen", False),
        (product("n, 256", "256, 512", "n, 512"), "strassen", False),
        (product("512, 256", "256, 512", "512, 512", "f64"), "strassen", False),
        (product("256, 512", "256, 512", "512, 512", how="transpose_a = true"), "strassen", False),
        (product("512, 256", "512, 256", "512, 512", how="transpose_b = true"), "strassen", True),
    ],
)
def test_which_products_may_be_of_quarters(text: str, fast: str, expected: bool) -> None:
    a = around(text, fast=fast)
    result = quartered(a, a.graph.nodes[-1])
    assert (result is not None) == expected
    if result is not None:
        assert (result.rows, result.columns, result.depth) == (512, 512, 256)
    if not expected:
        assert product_algorithm(a, a.graph.nodes[-1]).name == "packed"


def test_rows_of_one_sample() -> None:
    for text, expected in ((normed(), True), (normed(axis=2), True), (normed(axis=1), False)):
        a = around(text.replace("%s: f32[256]", "%s: f32[512, 256]") if not expected else text)
        assert one_sequence(a, a.graph.nodes[0].output) == expected
        assert not one_sequence(a, a.graph.inputs[0])


def conv(x: str, w: str, y: str, attrs: str = "", weights: bool = True, kind: str = "f32") -> str:
    given = {"dilations": "[1, 1]", "groups": "1", "pads": "[1, 1, 1, 1]", "strides": "[1, 1]"}
    given |= dict(part.split(" = ") for part in attrs.split("; ") if part)
    heads = f"(%x: {kind}[{x}]) params(%w: {kind}[{w}])" if weights else f"(%x: {kind}[{x}], %w: {kind}[{w}])"
    text = ", ".join(f"{k} = {v}" for k, v in given.items())
    return f"graph @g{heads} where n in 1.. {{ %y = conv(%x, %w) {{{text}}} : {kind}[{y}] return %y }}"


USUAL = conv("1, 64, 28, 28", "64, 64, 3, 3", "1, 64, 28, 28")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (USUAL, [(1, 28, 28)]),
        (conv("n, 64, 28, 28", "64, 64, 3, 3", "n, 64, 28, 28"), None),
        (conv("1, 64, 28, 28", "64, 64, 3, 3", "1, 64, 26, 26", "dilations = [2, 2]"), [(4, 13, 13)]),
        (conv("1, 64, 28, 28", "64, 64, 3, 3", "1, 64, 14, 14", "strides = [2, 2]"), [(1, 14, 14)]),
        (conv("1, 64, 28, 28", "64, 64, 3, 3", "1, 64, 14, 28", "strides = [2, 1]"), []),
        (conv("1, 64, 28, 28", "64, 64, 3, 3", "1, 64, 26, 28", "dilations = [2, 1]"), []),
        (conv("1, 64, 28, 28", "64, 64, 3, 1", "1, 64, 28, 30"), []),
        (conv("1, 64, 28, 28", "64, 64, 3, 3", "1, 64, 10, 10", "strides = [3, 3]"), []),  # windows share nothing
        (conv("1, 4, 28, 28", "64, 4, 3, 3", "1, 64, 28, 28"), [(1, 28, 28)]),
        (conv("1, 3, 28, 28", "64, 3, 3, 3", "1, 64, 28, 28"), []),  # a block of channels would be zeros above all
        (conv("1, 64, 28, 28", "64, 64, 18, 18", "1, 64, 13, 13"), []),
    ],
)
def test_which_convolutions_have_tiles(text: str, expected: list[tuple[int, int, int]] | None) -> None:
    a = around(text)
    result = transformed(a, a.graph.nodes[-1])
    if expected is None:  # some numbers of images
        assert len(result) > 1 and {(p.height, p.width) for p in result} == {(28, 28)}
        return
    assert [(p.images, p.height, p.width) for p in result] == expected
    if not expected:
        assert isinstance(convolution_algorithm(a, a.graph.nodes[-1]), Direct)


@pytest.mark.parametrize(
    "text",
    [
        conv("1, 64, 28, 28", "64, 1, 3, 3", "1, 64, 28, 28", "groups = 64"),
        conv("1, 64, 28, 28", "64, 64, 3, 3", "1, 64, 28, 28", kind="f64"),
        conv("1, 64, 28, 28", "n, 64, 3, 3", "1, n, 28, 28", weights=False),
    ],
)
def test_which_convolutions_have_one_way(text: str) -> None:
    a = around(text)
    assert convolution_algorithm(a, a.graph.nodes[-1]) is None


def test_weights_of_a_call_are_transformed_in_it() -> None:
    """Which takes time, the more the larger the tile, and is shared by all images."""
    one = conv("1, 64, 28, 28", "64, 64, 3, 3", "1, 64, 28, 28", weights=False)
    a, many = around(one), around(one.replace("[1, 64, 28", "[8, 64, 28"))
    small, large = (filters(a, a.graph.nodes[-1], Winograd(tile, 32, 1)) for tile in (2, 4))
    assert 0 < small < large and filters(a, a.graph.nodes[-1], Direct()) == 0
    assert filters(many, many.graph.nodes[-1], Winograd(4, 32, 1)) == pytest.approx(large / 8)


def kinds(text: str, **options: str) -> set[str]:
    a = around(text, **options)
    return {choice.name for _, choice in one_pixel(a, a.graph.nodes[-1])}


def test_ways_of_one_pixel() -> None:
    """Over NCHW maps where nothing wants others; by quarters where these are whole and digits may be lost."""
    ordinary = conv("1, 128, 64, 64", "128, 128, 1, 1", "1, 128, 64, 64", "pads = [0, 0, 0, 0]")
    assert kinds(ordinary) == {"direct", "pixels", "strassen_strips"} and kinds(ordinary, fast="exact") == {
        "direct",
        "pixels",
    }
    for text in (
        conv("1, 128, 64, 64", "128, 128, 1, 1", "1, 128, 66, 66"),  # with pads
        conv("1, 112, 64, 64", "128, 112, 1, 1", "1, 128, 64, 64", "pads = [0, 0, 0, 0]"),  # no halves of channels
        conv("1, 128, 64, 64", "96, 128, 1, 1", "1, 96, 64, 64", "pads = [0, 0, 0, 0]"),  # nor of filters
        conv("1, 128, n, 64", "128, 128, 1, 1", "1, 128, n, 64", "pads = [0, 0, 0, 0]"),
        conv("1, 128, 64, 64", "128, 128, 1, 1", "1, 128, 64, 64", "pads = [0, 0, 0, 0]", weights=False),
    ):
        assert "strassen_strips" not in kinds(text)
    blocked = around(ordinary)
    blocked.blocked.add(blocked.graph.inputs[0])
    assert Pixels() not in [choice for _, choice in one_pixel(blocked, blocked.graph.nodes[-1])]


@pytest.mark.parametrize("target", [ZEN4, OLD])
def test_few_channels_are_transformed_where_filters_are_many(target: Target) -> None:
    large = around(conv("1, 8, 40, 40", "154, 8, 7, 7", "1, 154, 40, 40", "pads = [3, 3, 3, 3]"), target)
    assert isinstance(convolution_algorithm(large, large.graph.nodes[-1]), Winograd)


@pytest.mark.parametrize(("cycles", "expected"), [(98.0, Direct()), (96.0, Winograd(4, 32, 1))])
def test_a_transform_must_gain_three_percent(
    monkeypatch: pytest.MonkeyPatch, cycles: float, expected: Direct | Winograd
) -> None:
    monkeypatch.setattr(convolution, "windows", lambda *_: [(100.0, Direct()), (cycles, Winograd(4, 32, 1))])
    a = around(USUAL)
    assert convolution_algorithm(a, a.graph.nodes[-1]) == expected


def test_channels_that_fill_no_blocks_change_their_layout_for_one_of_both() -> None:
    text = conv("1, 24, 32, 32", "64, 24, 3, 3", "1, 64, 32, 32")
    a = around(text)
    node, x = a.graph.nodes[-1], a.graph.inputs[0]
    options, changed = [(1.0, Direct()), (2.0, Winograd(4, 32, 1))], conversion(x, ZEN4)
    assert [c for c, _ in with_layouts(a, node, options)] == pytest.approx([1.0, 2.0 + changed])
    a.blocked.add(x)
    assert [c for c, _ in with_layouts(a, node, options)] == pytest.approx([1.0 + changed, 2.0])
    full = around(text.replace("24", "32"))
    assert with_layouts(full, full.graph.nodes[-1], options) == options


def test_tiles_by_settings() -> None:
    assert tiles(3, 1, "exact") == () and tiles(3, 1, "f2") == (2,) and tiles(3, 1, "f4") == (2, 4)
    assert tiles(3, 1, "auto") == (2, 4, 5, 6) and tiles(3, 2, "auto") == (2, 3, 4, 5) and tiles(3, 2, "f2") == (2, 3)
    assert tiles(7, 1, "f2") == (6, 10, 14, 18) and tiles(8, 1, "f2")[0] == 5 and tiles(4, 1, "f4") == (3,)


def test_changing_a_layout_takes_time_by_the_size_of_an_image() -> None:
    sizes = [
        conversion(Value("x", TensorType(f32, (Var("n"), const(64), const(k), const(k)))), ZEN4) for k in (8, 16, 64)
    ]
    assert 0 < sizes[0] < sizes[1] < sizes[2] and sizes[1] / sizes[0] >= 4


def uses(body: str, blocking: frozenset[str] = frozenset({"conv", "max_pool"})) -> dict[str, bool]:
    graph: Graph = parse_graph(
        "graph @g(%x: f32[1, 16, 8, 8]) params(%w: f32[16, 16, 3, 3], %v: f32[16, 16, 1, 1], %b: f32[1, 16, 1, 1]) "
        f"{{ {body} }}"
    )
    return {v.name: needed for v, needed in plain_uses(graph, blocking).items()}


T, THREE, ONE = "f32[1, 16, 8, 8]", "dilations = [1, 1], groups = 1, pads = [1, 1, 1, 1], strides = [1, 1]", (
    "dilations = [1, 1], groups = 1, pads = [0, 0, 0, 0], strides = [1, 1]"
)  # fmt: skip


def test_who_wants_plain_maps() -> None:
    """Outputs and operators on plain tensors do, at once; convolutions of larger windows want blocks, and of those
    that lead to them nobody knows."""
    assert uses(f"%a = relu(%x) : {T} return %a") == {"a": True}
    assert uses(f"%a = relu(%x) : {T} %y = conv(%a, %w) {{{THREE}}} : {T} return %y") == {"y": True}
    assert uses(f"%a = relu(%x) : {T} %y = conv(%a, %v) {{{ONE}}} : {T} return %y") == {"y": True, "a": False}
    assert uses(f"%a = relu(%x) : {T} %b2 = neg(%a) : {T} %y = conv(%b2, %v) {{{ONE}}} : {T} return %y, %a") == {
        "y": True, "b2": False, "a": True,
    }  # fmt: skip
    both = f"%a = relu(%x) : {T} %y = conv(%a, %w) {{{THREE}}} : {T} %s = softmax(%a) {{axis = 1}} : {T} return %y, %s"
    assert uses(both) == {"y": True, "s": True}
    added = f"%a = relu(%x) : {T} %c = add(%a, %b) : {T} %s = softmax(%c) {{axis = 1}} : {T} return %s"
    assert uses(added) == {"s": True, "c": True, "a": True}
    two = f"%a = relu(%x) : {T} %c = add(%a, %x) : {T} %s = softmax(%c) {{axis = 1}} : {T} return %s"
    assert uses(two) == {"s": True, "c": True}  # the other one may come in blocks


def test_only_weights_of_windows_grow_by_transforms() -> None:
    """Not those of products, of windows of one pixel, of groups, and of fewer channels than a block."""
    result = around(
        "graph @g(%x: f32[1, 64, 7, 7]) params(%a: f32[64, 64, 3, 3], %b: f32[64, 64, 1, 1], %c: f32[64, 1, 3, 3], "
        "%w: f32[7, 9]) { "
        "%p = conv(%x, %a) {dilations = [1, 1], groups = 1, pads = [1, 1, 1, 1], strides = [1, 1]} "
        ": f32[1, 64, 7, 7] "
        "%q = conv(%p, %b) {dilations = [1, 1], groups = 1, pads = [0, 0, 0, 0], strides = [1, 1]} "
        ": f32[1, 64, 7, 7] "
        "%r = conv(%q, %c) {dilations = [1, 1], groups = 64, pads = [1, 1, 1, 1], strides = [1, 1]} "
        ": f32[1, 64, 7, 7] "
        "%y = matmul(%r, %w) {transpose_b = false} : f32[1, 64, 7, 9] return %y }"
    )
    assert result.weight_bytes - result.other_bytes == 4 * 64 * 64 * 9


def test_filters_made_of_weights_are_known_before_a_call() -> None:
    """Their transforms are made once: what they cost counts for filters that come with each call alone."""
    text = """graph @g(%x: f32[1, 64, 28, 28], %d: f32[64, 64, 3, 3]) params(%w: f32[64, 64, 3, 3]) {{
      %f = neg({0}) : f32[64, 64, 3, 3]
      %y = conv(%x, %f) {{dilations = [1, 1], groups = 1, pads = [1, 1, 1, 1], strides = [1, 1]}} : f32[1, 64, 28, 28]
      return %y }}"""
    known, given = around(text.format("%w")), around(text.format("%d"))
    for a, fixed in ((known, True), (given, False)):
        weights = a.graph.nodes[-1].inputs[1]
        assert (weights in a.fixed) == fixed
    costs = []
    for a in (known, given):
        with deciding() as record:
            assert isinstance(convolution_algorithm(a, a.graph.nodes[-1]), Winograd)
        (made,) = record.decisions
        costs.append(made.estimate)
    assert costs[0] < costs[1]


FEW = conv("1, 64, 28, 28", "2, 64, 7, 7", "1, 2, 28, 28", "pads = [3, 3, 3, 3]")


@pytest.mark.parametrize("target", [ZEN4, OLD])
def test_few_filters_are_computed_by_their_taps(target: Target) -> None:
    a = around(FEW, target)
    assert convolution_algorithm(a, a.graph.nodes[-1]) == Taps(1, 1)
    full = around(FEW.replace("2, 64, 7, 7", "16, 64, 7, 7").replace("1, 2, 28", "1, 16, 28"), target)
    assert not isinstance(convolution_algorithm(full, full.graph.nodes[-1]), Taps)


def test_ways_of_taps_by_window_and_memory() -> None:
    """Of one line there are no columns left; more than 64 taps are not summed at once; and maps of large images do not
    take more than four times their input."""
    for text, expected in (
        (FEW, [Taps(1, 1), Taps(1, 0), Taps(0, 0)]),
        (conv("1, 64, 1, 28", "2, 64, 1, 7", "1, 2, 1, 28", "pads = [0, 3, 0, 3]"), [Taps(1, 1), Taps(1, 0)]),
        (conv("1, 64, 28, 28", "2, 64, 9, 9", "1, 2, 28, 28", "pads = [4, 4, 4, 4]"), [Taps(0, 0)]),
        (conv("1, 8, 256, 256", "2, 8, 7, 7", "1, 2, 256, 256", "pads = [3, 3, 3, 3]"), [Taps(0, 0)]),
        (conv("1, 64, 28, 28", "2, 64, 1, 1", "1, 2, 28, 28", "pads = [0, 0, 0, 0]"), []),
    ):
        assert list(choices(around(text).graph.nodes[-1], ZEN4)) == expected


def test_layouts_that_taps_change_count_for_them() -> None:
    """They read NCHW maps and make NCHW maps."""
    a = around(FEW)
    node, x = a.graph.nodes[-1], a.graph.inputs[0]
    ways: list[tuple[float, Algorithm]] = [(1e6, Winograd(4, 32, 1))]
    first, (whole, *_) = with_taps(a, node, ways)[0], with_taps(a, node, ways)[1:]
    before, after = conversion(x, ZEN4), conversion(node.output, ZEN4)
    assert first[0] == pytest.approx(1e6 + before + after)
    a.blocked.add(x)
    del a.plain_use[node.output]
    again, (other, *_) = with_taps(a, node, ways)[0], with_taps(a, node, ways)[1:]
    assert again[0] == 1e6 and other[0] == pytest.approx(whole[0] + before + after)


def test_images_that_a_dilation_makes_are_parts_of_one() -> None:
    """Four images of 14 x 14 take four times as long as one."""
    separate = around(conv("1, 64, 28, 28", "64, 64, 3, 3", "1, 64, 28, 28", "dilations = [2, 2]; pads = [2, 2, 2, 2]"))
    half = around(conv("4, 64, 14, 14", "64, 64, 3, 3", "4, 64, 14, 14"))
    one, four = ({way: c for c, way in windows(a, a.graph.nodes[-1])} for a in (separate, half))
    assert one[Winograd(4, 32, 1)] == pytest.approx(4 * four[Winograd(4, 32, 1)])
