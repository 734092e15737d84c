"""The algorithms and precisions that an operator may have, before anything is estimated."""

from __future__ import annotations

import pytest

from tests.transform.select.graphs import OLD, ZEN4, conv, product, surroundings
from tilewright.algorithms.taps.selection import Taps
from tilewright.algorithms.winograd import gradient_offers, offers
from tilewright.algorithms.winograd.gradient_offers import conversions
from tilewright.algorithms.winograd.offers import filters, tiles, transformed, windows, with_layouts
from tilewright.algorithms.winograd.selection import Winograd, WinogradSums
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, const
from tilewright.ir.graph import Graph, TensorType, Value
from tilewright.ir.selection import Algorithm, Direct, Dots, Pixels
from tilewright.ops import parse_graph
from tilewright.plans.framework.cost import Cost
from tilewright.plans.framework.decisions import deciding
from tilewright.targets.target import Target
from tilewright.transform.algorithm import offered
from tilewright.transform.select.choose import selection
from tilewright.transform.select.convolution import convolution_algorithm, one_pixel, with_dots
from tilewright.transform.select.nchw import conversion, row_major_uses
from tilewright.transform.select.product import (
    attention_precision,
    product_precision,
)
from tilewright.transform.select.surroundings import Surroundings


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
    a = surroundings(text, **options)
    assert product_precision(a, a.graph.nodes[-1]) == expected


def test_products_of_any_values_are_rounded_where_that_is_asked_for() -> None:
    text = product().replace("[n, 64]) params(", "[n, 64], ")
    for products, expected in (("weights", "fp32"), ("all", "bf16")):
        a = surroundings(text, precision="bf16", products=products)
        assert product_precision(a, a.graph.nodes[-1]) == expected


@pytest.mark.parametrize(
    ("depth", "kind", "target", "precision", "expected"),
    [
        ("16", "f32", ZEN4, "bf16", "bf16"),
        ("15", "f32", ZEN4, "bf16", "fp32"),  # not whole pairs of products
        ("d", "f32", ZEN4, "bf16", "fp32"),  # unknown
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
    a = surroundings(text, target, precision=precision)
    assert attention_precision(a, a.graph.nodes[-1]) == expected


def by_weight(x: str, g: str, w: str, attrs: str = "") -> str:
    attributes = {"dilations": "[1, 1]", "pads": "[1, 1, 1, 1]", "strides": "[1, 1]", "window": "[3, 3]"}
    attributes |= dict(part.split(" = ") for part in attrs.split("; ") if part)
    text = ", ".join(f"{k} = {v}" for k, v in attributes.items())
    return (
        f"graph @g(%x: f32[{x}], %g: f32[{g}]) where n in 1.. "
        f"{{ %y = conv_weight_gradient(%x, %g) {{{text}}} : f32[{w}] return %y }}"
    )


def last_algorithm(a: Surroundings) -> Algorithm | None:
    """The algorithm that is chosen for the last node of a graph."""
    selected = selection(a, a.graph.nodes[-1])
    return None if selected is None else selected.algorithm


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
    a = surroundings(text)
    assert last_algorithm(a) == expected
    if expected is not None:
        exact = surroundings(text, fast="exact")
        assert last_algorithm(exact) == Direct()


@pytest.mark.parametrize(("share", "expected"), [(0.98, Direct()), (0.96, WinogradSums(4))])
def test_sums_over_tiles_must_gain_three_percent(
    monkeypatch: pytest.MonkeyPatch, share: float, expected: Direct | WinogradSums
) -> None:
    a = surroundings(by_weight("64, 128, 19, 19", "64, 128, 19, 19", "128, 128, 3, 3"))
    monkeypatch.setattr(gradient_offers, "over_pixels", lambda *_: Cost(compute=100.0))
    best = {4: Cost(compute=100.0 * share), 2: Cost(compute=100.0)}
    monkeypatch.setattr(gradient_offers, "ranked", lambda _, tile, __: [(best[tile], None)])
    assert last_algorithm(a) == expected


def test_gradients_count_the_change_of_a_layout_for_one_way() -> None:
    """A map of 17 channels, which are no lanes: pixels read them as NCHW, tiles in blocks."""
    a = surroundings(by_weight("64, 17, 19, 19", "64, 128, 19, 19", "128, 17, 3, 3"))
    node, (x, _) = a.graph.nodes[-1], a.graph.inputs
    assert conversions(a, node) == (64 * conversion(x, ZEN4), 0.0)
    a.blocked.add(x)
    assert conversions(a, node) == (0.0, 64 * conversion(x, ZEN4))
    full = surroundings(by_weight("64, 32, 19, 19", "64, 128, 19, 19", "128, 32, 3, 3"))
    assert conversions(full, full.graph.nodes[-1]) == (0.0, 0.0)


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
    a = surroundings(text)
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
    a = surroundings(text)
    assert convolution_algorithm(a, a.graph.nodes[-1]) is None


def test_weights_of_a_call_are_transformed_in_it() -> None:
    """The transform takes time, the more the larger the tile, and is shared by all images."""
    one = conv("1, 64, 28, 28", "64, 64, 3, 3", "1, 64, 28, 28", weights=False)
    a, several = surroundings(one), surroundings(one.replace("[1, 64, 28", "[8, 64, 28"))
    small, large = (filters(a, a.graph.nodes[-1], Winograd(tile, 32, 1)) for tile in (2, 4))
    assert 0 < small < large and filters(a, a.graph.nodes[-1], Direct()) == 0
    assert filters(several, several.graph.nodes[-1], Winograd(4, 32, 1)) == pytest.approx(large / 8)


def kinds(text: str, **options: str) -> set[str]:
    a = surroundings(text, **options)
    node = a.graph.nodes[-1]
    return {choice.name for _, choice in offered(a, node, one_pixel(a, node))}


@pytest.mark.parametrize("kind", ["f32", "i32"])
def test_integers_are_offered_what_computes_integers(kind: str) -> None:
    """Two filters are computed by taps, of floats alone."""
    a = surroundings(conv("1, 32, 20, 20", "2, 32, 3, 3", "1, 2, 20, 20", kind=kind))
    ways = {type(way) for _, way in offered(a, a.graph.nodes[-1], [(0.0, Direct())])}
    assert (Taps in ways) == (kind == "f32")


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
    blocked = surroundings(ordinary)
    blocked.blocked.add(blocked.graph.inputs[0])
    assert Pixels() not in [choice for _, choice in one_pixel(blocked, blocked.graph.nodes[-1])]


@pytest.mark.parametrize("target", [ZEN4, OLD])
def test_a_small_number_of_channels_are_transformed_where_filters_are_several(target: Target) -> None:
    large = surroundings(conv("1, 8, 40, 40", "154, 8, 7, 7", "1, 154, 40, 40", "pads = [3, 3, 3, 3]"), target)
    assert isinstance(convolution_algorithm(large, large.graph.nodes[-1]), Winograd)


@pytest.mark.parametrize(("cycles", "expected"), [(98.0, Direct()), (96.0, Winograd(4, 32, 1))])
def test_a_transform_must_gain_three_percent(
    monkeypatch: pytest.MonkeyPatch, cycles: float, expected: Direct | Winograd
) -> None:
    monkeypatch.setattr(offers, "windows", lambda *_: [(100.0, Direct()), (cycles, Winograd(4, 32, 1))])
    a = surroundings(USUAL)
    assert convolution_algorithm(a, a.graph.nodes[-1]) == expected


def test_channels_that_fill_no_blocks_change_their_layout_for_one_of_both() -> None:
    text = conv("1, 24, 32, 32", "64, 24, 3, 3", "1, 64, 32, 32")
    a = surroundings(text)
    node, x = a.graph.nodes[-1], a.graph.inputs[0]
    options, changed = [(1.0, Direct()), (2.0, Winograd(4, 32, 1))], conversion(x, ZEN4)
    assert [c for c, _ in with_layouts(a, node, options)] == pytest.approx([1.0, 2.0 + changed])
    a.blocked.add(x)
    assert [c for c, _ in with_layouts(a, node, options)] == pytest.approx([1.0 + changed, 2.0])
    full = surroundings(text.replace("24", "32"))
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
    return {v.name: needed for v, needed in row_major_uses(graph, blocking).items()}


T, THREE, ONE = "f32[1, 16, 8, 8]", "dilations = [1, 1], groups = 1, pads = [1, 1, 1, 1], strides = [1, 1]", (
    "dilations = [1, 1], groups = 1, pads = [0, 0, 0, 0], strides = [1, 1]"
)  # fmt: skip


def test_who_wants_ordinary_maps() -> None:
    """Outputs and operators on NCHW tensors do, at once; convolutions of larger windows want blocks, and those that
    lead to them are undecided."""
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
    result = surroundings(
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


def test_filters_created_of_weights_are_known_before_a_call() -> None:
    """The transforms of such filters are made once: what they cost counts for filters that come with each call
    alone."""
    text = """graph @g(%x: f32[1, 64, 28, 28], %d: f32[64, 64, 3, 3]) params(%w: f32[64, 64, 3, 3]) {{
      %f = neg({0}) : f32[64, 64, 3, 3]
      %y = conv(%x, %f) {{dilations = [1, 1], groups = 1, pads = [1, 1, 1, 1], strides = [1, 1]}} : f32[1, 64, 28, 28]
      return %y }}"""
    known, supplied = surroundings(text.format("%w")), surroundings(text.format("%d"))
    for a, fixed in ((known, True), (supplied, False)):
        weights = a.graph.nodes[-1].inputs[1]
        assert (weights in a.fixed) == fixed
    costs = []
    for a in (known, supplied):
        with deciding() as record:
            assert isinstance(convolution_algorithm(a, a.graph.nodes[-1]), Winograd)
        (created,) = record.decisions
        costs.append(created.estimate)
    assert costs[0] < costs[1]


def test_images_that_a_dilation_makes_are_parts_of_one() -> None:
    """Four images of 14 x 14 take four times as long as one."""
    separate = surroundings(
        conv("1, 64, 28, 28", "64, 64, 3, 3", "1, 64, 28, 28", "dilations = [2, 2]; pads = [2, 2, 2, 2]")
    )
    half = surroundings(conv("4, 64, 14, 14", "64, 64, 3, 3", "4, 64, 14, 14"))
    one, four = ({way: c for c, way in windows(a, a.graph.nodes[-1])} for a in (separate, half))
    assert one[Winograd(4, 32, 1)] == pytest.approx(4 * four[Winograd(4, 32, 1)])


def test_what_other_folders_offer_stays_beside_the_transforms() -> None:
    a = surroundings(USUAL)
    others = [(7.0, Pixels())]
    result = offers.with_transforms(a, a.graph.nodes[-1], [(0.0, Direct()), *others])
    assert result[-1:] == others and sum(isinstance(way, Direct) for _, way in result) == 1


@pytest.mark.parametrize(
    ("channels", "precision", "target", "attrs", "expected"),
    [
        (64, "bf16", "znver4", "", True),
        (64, "fp32", "znver4", "", False),
        (40, "bf16", "znver4", "", False),  # no whole blocks
        (64, "bf16", "x86-64-v3", "", False),
        (64, "bf16", "emeraldrapids", "", False),  # whose instruction takes as long as nine multiply-adds
        (64, "bf16", "znver4", 'exactness = "f32"', False),
    ],
)
def test_which_convolutions_may_multiply_bf16_in_vectors(
    channels: int, precision: str, target: str, attrs: str, expected: bool
) -> None:
    attributes = "; ".join(("pads = [0, 0, 0, 0]", *([attrs] if attrs else [])))
    text = conv(f"1, {channels}, 14, 14", f"128, {channels}, 1, 1", "1, 128, 14, 14", attributes)
    a = surroundings(text, Target.parse(target), precision=precision)
    options = with_dots(a, a.graph.nodes[-1], [(0.0, Direct())])
    assert any(isinstance(way, Dots) for _, way in options) == expected
    assert not expected or isinstance(convolution_algorithm(a, a.graph.nodes[-1]), Dots)
