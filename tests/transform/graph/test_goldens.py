"""Each graph pass as text: a small graph before and after. A new pass without a case fails here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from tilewright.compiler import PREPARE_PASSES, RUN_PASSES, graph_passes, pass_names
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, Value
from tilewright.ir.rewrite import substitute, variables
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.options import Options
from tilewright.transform.graph.split import split_prepare
from tilewright.transform.graph.verify import graph_stage

TARGET = Target.parse("x86-64-v3")

CONV3, CONV1 = (f"dilations = [1, 1], groups = 1, pads = [{p}, {p}, {p}, {p}], strides = [1, 1]" for p in (1, 0))
AT = 'coordinates = "half_pixel", dtype = f32'
TAPS = 'mode = "linear", rounding = "floor"'

CASES = {
    "canonicalise: identities": """
        graph @g(%x: f32[n, 4]) where n in 1.. {
          %a = reshape(%x) {shape = [$n, 4]} : f32[n, 4]
          %b = transpose(%a) {perm = [0, 1]} : f32[n, 4]
          %c = reshape(%b) {shape = [$n, 2, 2]} : f32[n, 2, 2]
          %d = reshape(%c) {shape = [$n, 1, 4]} : f32[n, 1, 4]
          %e = reshape(%d) {shape = [$n, 4]} : f32[n, 4]
          %y = relu(%e) : f32[n, 4]
          return %y
        }""",
    "canonicalise: common": """
        graph @g(%x: f32[4]) {
          %a = tanh(%x) : f32[4]
          %b = tanh(%x) : f32[4]
          %c = tanh(%x) : f32[4]
          %y = add(%a, %b) : f32[4]
          return %y, %c
        }""",
    "canonicalise: constants": """
        graph @g(%x: f32[4]) {
          %c = constant() {value = array i8[1] (3)} : i8[1]
          %f = cast(%c) {dtype = f32} : f32[1]
          %r = reshape(%f) {shape = []} : f32[]
          %n = neg(%r) : f32[]
          %y = add(%x, %n) : f32[4]
          return %y
        }""",
    "widen halves": """
        graph @g(%x: f16[1, 4, n, n], %z: bf16[64, 8]) params(%w: f16[6, 4, 3, 3], %v: bf16[8, 8]) where n in 3.. {
          %a = conv(%x, %w) {dilations = [1, 1], groups = 1, pads = [1, 1, 1, 1], strides = [1, 1]} : f16[1, 6, n, n]
          %y = relu(%a) : f16[1, 6, n, n]
          %u = matmul(%z, %v) : bf16[64, 8]
          return %y, %u
        }""",
    "divide by products": """
        graph @g(%x: f32[2, n], %z: f32[]) params(%d: f32[2, 1]) where n in 1.. {
          %y = div(%x, %d) : f32[2, n]
          %v = div(%y, %z) : f32[2, n]
          %e = div(%d, %d) : f32[2, 1]
          return %v, %e
        }""",
    "tabulate": """
        graph @g(%q: u8[2, n]) params(%s: f32[1, 1]) where n in 1.. {
          %f = cast(%q) {dtype = f32} : f32[2, n]
          %x = mul(%f, %s) : f32[2, n]
          %e = erf(%x) : f32[2, n]
          %t = tanh(%e) : f32[2, n]
          %m = mul(%x, %t) : f32[2, n]
          %y = cast(%m) {dtype = i8} : i8[2, n]
          return %y
        }""",
    "resample known": f"""
        graph @g(%x: f32[n, 3, 4]) where n in 1.. {{
          %i, %w = resize_taps() {{axis = 1, {AT}, extent = 3, {TAPS}, scale = 2.0, size = 6}} : i64[2, 6], f32[2, 6]
          %j, %v = resize_taps() {{axis = 2, {AT}, extent = 4, {TAPS}, scale = 1.25, size = 5}} : i64[2, 5], f32[2, 5]
          %k, %u = resize_taps() {{axis = 2, {AT}, extent = 5, {TAPS}, scale = 0.4, size = 2}} : i64[2, 2], f32[2, 2]
          %a = resample(%x, %i, %w) {{axis = 1}} : f32[n, 6, 4]
          %b = resample(%a, %j, %v) {{axis = 2}} : f32[n, 6, 5]
          %c = resample(%b, %k, %u) {{axis = 2}} : f32[n, 6, 2]
          return %c
        }}""",
    "sample once": """
        graph @g(%x: f32[n, 32, 9, 8], %p: f32[n, 6, 5, 2], %z: f32[n, 2, 9, 8]) where n in 1.. {
          %a = grid_sample(%x, %p) {align_corners = false, mode = "linear", padding = "zeros"} : f32[n, 32, 6, 5]
          %b = grid_sample(%z, %p) {align_corners = true, mode = "cubic", padding = "border"} : f32[n, 2, 6, 5]
          return %a, %b
        }""",
    "move quantised": """
        graph @g(%q: i8[2, n]) params(%s: f32[1]) where n in 1.. {
          %x = cast(%q) {dtype = f32} : f32[2, n]
          %w = cast(%q) {dtype = i32} : i32[2, n]
          %i = cast(%w) {dtype = f32} : f32[2, n]
          %a = mul(%i, %s) : f32[2, n]
          %m = transpose(%a) {perm = [1, 0]} : f32[n, 2]
          %d = div(%m, %s) : f32[n, 2]
          %r = round(%d) : f32[n, 2]
          %y = cast(%r) {dtype = i8} : i8[n, 2]
          return %y, %a
        }""",
    "multiply quantised": """
        graph @g(%x: u8[1, 6, n, n]) params(%w: i8[6, 2, 3, 3], %s: f32[]) where n in 3.. {
          %z = constant() {value = array u8[] (7)} : u8[]
          %a = cast(%x) {dtype = i32} : i32[1, 6, n, n]
          %b = cast(%z) {dtype = i32} : i32[]
          %c = sub(%a, %b) : i32[1, 6, n, n]
          %d = cast(%w) {dtype = i32} : i32[6, 2, 3, 3]
          %y = conv(%c, %d) {dilations = [1, 1], groups = 3, pads = [1, 1, 1, 1], strides = [1, 1]} : i32[1, 6, n, n]
          return %y
        }""",
    "simplify units": """
        graph @g(%q: f32[2, n, 8], %k: f32[2, 1, 8], %v: f32[2, 1, 4], %f: f16[3, 1], %g: f16[1, 2]) where n in 1.. {
          %c = constant() {value = array f32[] (0.125)} : f32[]
          %s = matmul(%q, %k) {transpose_b = true} : f32[2, n, 1]
          %t = mul(%s, %c) : f32[2, n, 1]
          %p = softmax(%t) {axis = -1} : f32[2, n, 1]
          %y = matmul(%p, %v) : f32[2, n, 4]
          %rounded = matmul(%f, %g) : f16[3, 2]
          return %y, %rounded
        }""",
    "separate pooling": """
        graph @g(%x: f32[1, 3, h, w]) where h in 8.., w in 8.. {
          %small = max_pool(%x) {
            ceil_mode = false, dilations = [1, 1], kernel = [2, 2], pads = [0, 0, 0, 0], strides = [2, 2]
          } : f32[1, 3, h // 2, w // 2]
          %y = max_pool(%x) {
            ceil_mode = false, dilations = [1, 1], kernel = [5, 5], pads = [2, 2, 2, 2], strides = [1, 1]
          } : f32[1, 3, h, w]
          return %small, %y
        }""",
    "store in 16 bits: bf16": """
        graph @g(%x: f32[1, 2, 5, 5, 16]:NCHW16c) params(%w: bf16[2, 2, 1, 1, 8, 16, 2]) {
          %y = relu(%x) : f32[1, 2, 5, 5, 16]:NCHW16c
          %h = cast(%y) {dtype = bf16} : bf16[1, 2, 5, 5, 16]:NCHW16c
          %a = lowered.conv_dot(%h, %w) {
            channels = 32, dilations = [1, 1], pads = [0, 0, 0, 0], strides = [1, 1]
          } : f32[1, 2, 5, 5, 16]:NCHW16c
          %z = add(%a, %y) : f32[1, 2, 5, 5, 16]:NCHW16c
          return %z
        }""",
    "canonicalise: slices": """
        graph @g(%x: f32[1, 12]) {
          %a = slice(%x) {begin = [0, 0], size = [1, 4], step = [1, 1]} : f32[1, 4]
          %b = slice(%x) {begin = [0, 4], size = [1, 4], step = [1, 1]} : f32[1, 4]
          %y = concat(%a, %b) {axis = 1} : f32[1, 8]
          return %y
        }""",
    "canonicalise: pads": """
        graph @g(%p: f32[2, 3], %q: f32[2, 4], %r: f32[2, 2]) {
          %a = pad(%p) {after = [0, 7], before = [0, 0], mode = "constant"} : f32[2, 10]
          %b = pad(%q) {after = [0, 0], before = [0, 6], mode = "constant"} : f32[2, 10]
          %c = pad(%r) {after = [0, 5], before = [0, 3], mode = "constant"} : f32[2, 10]
          %s = add(%b, %a) : f32[2, 10]
          %y = add(%s, %c) : f32[2, 10]
          %z = add(%y, %c) : f32[2, 10]
          return %y, %z
        }""",
    "index rows": """
        graph @g(%x: f32[9, 4], %r: i64[20, 1], %u: f32[20, 4], %b: f32[2, 9, 4], %s: i64[2, 5, 1]) {
          %i = broadcast(%r) {shape = [$20, $4]} : i64[20, 4]
          %y = scatter_elements(%x, %i, %u) {axis = 0, reduction = "add"} : f32[9, 4]
          %z = gather_elements(%x, %i) {axis = 0} : f32[20, 4]
          %j = broadcast(%s) {shape = [$2, $5, $4]} : i64[2, 5, 4]
          %w = gather_elements(%b, %j) {axis = 1} : f32[2, 5, 4]
          %v = scatter_elements(%b, %j, %w) {axis = 1, reduction = "none"} : f32[2, 9, 4]
          return %y, %z, %w, %v
        }""",
    "optimise bodies": """
        graph @g(%xs: f32[n, 4, 16], %h0: f32[4, 16]) params(%w: f32[16, 16]) where n in 1.. {
          %two = constant() {value = array f32[] (2.0)} : f32[]
          %h, %seen = loop(none, none, %h0, %xs, %w, %two) {body = graph @step(%i: i64[], %h: f32[4, 16], %x: f32[4, 16], %w: f32[16, 16], %two: f32[]) {
            %p = matmul(%h, %w) : f32[4, 16]
            %q = mul(%p, %two) : f32[4, 16]
            %r = add(%q, %x) : f32[4, 16]
            %z = tanh(%r) : f32[4, 16]
            %unread = relu(%r) : f32[4, 16]
            return %z, %z
          }, carried = 1, scanned = 1} : f32[4, 16], f32[n, 4, 16]
          return %h, %seen
        }""",  # noqa: E501
    "recognise recurrences": """
        graph @g(%xs: f32[n, 4, 16], %h0: f32[4, 8]) params(%w: f32[16, 8], %u: f32[8, 8], %b: f32[8]) where n in 1.. {
          %two = constant() {value = array f32[] (2.0)} : f32[]
          %h, %seen = loop(none, none, %h0, %xs, %two, %w, %u, %b) {body = graph @step(%i: i64[], %h: f32[4, 8], %x: f32[4, 16], %two: f32[]) params(%w: f32[16, 8], %u: f32[8, 8], %b: f32[8]) {
            %p = matmul(%h, %u) : f32[4, 8]
            %q = mul(%p, %two) : f32[4, 8]
            %a = matmul(%x, %w) : f32[4, 8]
            %c = add(%a, %b) : f32[4, 8]
            %r = add(%q, %c) : f32[4, 8]
            %z = tanh(%r) : f32[4, 8]
            return %z, %z
          }, carried = 1, scanned = 1} : f32[4, 8], f32[n, 4, 8]
          return %h, %seen
        }""",  # noqa: E501
    "keep reduced dimensions": """
        graph @g(%x: f32[3, 4], %y: f32[3, 4, 5]) {
          %s = reduce_sum(%x) {axes = [1], keepdims = false} : f32[3]
          %k = reshape(%s) {shape = [$3, $1]} : f32[3, 1]
          %d = sub(%x, %k) : f32[3, 4]
          %m = reduce_max(%y) {axes = [1], keepdims = false} : f32[3, 5]
          %a = reshape(%m) {shape = [$3, $1, $5]} : f32[3, 1, 5]
          %b = reshape(%m) {shape = [$15]} : f32[15]
          return %d, %a, %b
        }""",
    "recognise norms": """
        graph @g(%x: f32[n, 4, 8]) params(%scale: f32[8], %shift: f32[1, 8]) where n in 1.. {
          %eighth = constant() {value = array f32[] (0.125)} : f32[]
          %epsilon = constant() {value = array f32[] (0.00001)} : f32[]
          %s = reduce_sum(%x) {axes = [2], keepdims = true} : f32[n, 4, 1]
          %m = mul(%s, %eighth) : f32[n, 4, 1]
          %d = sub(%x, %m) : f32[n, 4, 8]
          %q = mul(%d, %d) : f32[n, 4, 8]
          %v = reduce_mean(%q) {axes = [2], keepdims = true} : f32[n, 4, 1]
          %e = add(%v, %epsilon) : f32[n, 4, 1]
          %r = rsqrt(%e) : f32[n, 4, 1]
          %u = mul(%d, %r) : f32[n, 4, 8]
          %w = mul(%u, %scale) : f32[n, 4, 8]
          %y = add(%shift, %w) : f32[n, 4, 8]
          return %y
        }""",
    "canonicalise: dead": """
        graph @g(%x: f32[4]) params(%w: f32[4]) {
          %a = tanh(%x) : f32[4]
          %b = mul(%a, %w) : f32[4]
          %y = relu(%x) : f32[4]
          return %y
        }""",
    "decode rows": """
        graph @g(%q: f32[2, 3, 1, 4], %codes: i8[n, 2, 3, 4], %scales: f32[n, 2, 3, 1]) where n in 1.. {
          %wide = cast(%codes) {dtype = f32} : f32[n, 2, 3, 4]
          %rows = mul(%wide, %scales) : f32[n, 2, 3, 4]
          %k = transpose(%rows) {perm = [1, 2, 3, 0]} : f32[2, 3, 4, n]
          %s = matmul(%q, %k) : f32[2, 3, 1, n]
          %v = transpose(%rows) {perm = [1, 2, 0, 3]} : f32[2, 3, n, 4]
          %y = matmul(%s, %v) : f32[2, 3, 1, 4]
          return %y
        }""",
    "keep maps": """
        graph @g(%x: f32[1, 3, n], %r: f32[4, 1]) params(%v: f32[4, 3, 1, 3], %w: f32[2, 4, 1, 3]) where n in 1.. {
          %a = reshape(%x) {shape = [$1, $3, $1, $n]} : f32[1, 3, 1, n]
          %b = conv(%a, %v) {dilations = [1, 1], groups = 1, pads = [0, 1, 0, 1], strides = [1, 1]} : f32[1, 4, 1, n]
          %c = reshape(%b) {shape = [$1, $4, $n]} : f32[1, 4, n]
          %d = add(%c, %r) : f32[1, 4, n]
          %e = relu(%d) : f32[1, 4, n]
          %f = reshape(%e) {shape = [$1, $4, $1, $n]} : f32[1, 4, 1, n]
          %y = conv(%f, %w) {dilations = [1, 1], groups = 1, pads = [0, 1, 0, 1], strides = [1, 1]} : f32[1, 2, 1, n]
          return %y
        }""",
    "recognise softmax": """
        graph @g(%x: f32[3, 4]) {
          %least = constant() {value = array f32[] (-inf)} : f32[]
          %m = reduce_max(%x) {axes = [1], keepdims = false} : f32[3]
          %n = max(%least, %m) : f32[3]
          %c = reshape(%n) {shape = [$3, $1]} : f32[3, 1]
          %d = sub(%x, %c) : f32[3, 4]
          %e = exp(%d) : f32[3, 4]
          %s = reduce_sum(%e) {axes = [1], keepdims = true} : f32[3, 1]
          %y = div(%e, %s) : f32[3, 4]
          return %y
        }""",
    "recognise activations": """
        graph @g(%x: f32[8]) {
          %half = constant() {value = array f32[] (0.5)} : f32[]
          %one = constant() {value = array f32[] (1.0)} : f32[]
          %root = constant() {value = array f32[] (0.70710678)} : f32[]
          %a = mul(%x, %root) : f32[8]
          %b = erf(%a) : f32[8]
          %c = add(%b, %one) : f32[8]
          %d = mul(%x, %c) : f32[8]
          %y = mul(%d, %half) : f32[8]
          return %y
        }""",
    "attend batch first": """
        graph @g(%x: f32[2, 5, 8], %w: f32[24, 8], %b: f32[24], %o: f32[8, 8]) {
          %t = transpose(%x) {perm = [1, 0, 2]} : f32[5, 2, 8]
          %p = matmul(%t, %w) {transpose_b = true} : f32[5, 2, 24]
          %a = add(%p, %b) : f32[5, 2, 24]
          %h = reshape(%a) {shape = [$5, $2, $6, $4]} : f32[5, 2, 6, 4]
          %y = lowered.attention(%h, %h, %h) {causal = false, fill = 0.0, first = [0, 2, 4], groups = 2,
            guard = false, heads = 2, order = "tttt", scale = 0.5} : f32[5, 2, 2, 4]
          %f = reshape(%y) {shape = [$10, $8]} : f32[10, 8]
          %l = matmul(%f, %o) : f32[10, 8]
          %s = reshape(%l) {shape = [$5, $2, $8]} : f32[5, 2, 8]
          %z = transpose(%s) {perm = [1, 0, 2]} : f32[2, 5, 8]
          return %z
        }""",
    "recognise attention": """
        graph @g(%q: f32[1, 8, 2, 16], %k: f32[1, 8, 2, 16], %v: f32[1, 8, 2, 16]) {
          %scale = constant() {value = array f32[] (0.25)} : f32[]
          %qt = transpose(%q) {perm = [0, 2, 1, 3]} : f32[1, 2, 8, 16]
          %kt = transpose(%k) {perm = [0, 2, 3, 1]} : f32[1, 2, 16, 8]
          %vt = transpose(%v) {perm = [0, 2, 1, 3]} : f32[1, 2, 8, 16]
          %a = matmul(%qt, %kt) : f32[1, 2, 8, 8]
          %b = mul(%a, %scale) : f32[1, 2, 8, 8]
          %s = softmax(%b) {axis = 3} : f32[1, 2, 8, 8]
          %c = matmul(%s, %vt) : f32[1, 2, 8, 16]
          %y = transpose(%c) {perm = [0, 2, 1, 3]} : f32[1, 8, 2, 16]
          return %y
        }""",
    "sum rows first": """
        graph @g(%x: f32[2, n, 8], %w: f32[8, 32], %v: f32[32, 8], %b: f32[8]) where n in 1.. {
          %a = matmul(%x, %w) : f32[2, n, 32]
          %h = relu(%a) : f32[2, n, 32]
          %c = matmul(%h, %v) : f32[2, n, 8]
          %d = add(%c, %b) : f32[2, n, 8]
          %e = add(%x, %d) : f32[2, n, 8]
          %y = reduce_mean(%e) {axes = [1], keepdims = false} : f32[2, 8]
          return %y
        }""",
    "compute read rows": """
        graph @g(%x: f32[1, n, 8]) params(%w: f32[8, 32], %v: f32[32, 8], %scale: f32[8]) where n in 1.. {
          %h = layer_norm(%x, %scale) {axis = -1, epsilon = 1e-05} : f32[1, n, 8]
          %a = matmul(%h, %w) : f32[1, n, 32]
          %b = relu(%a) : f32[1, n, 32]
          %c = matmul(%b, %v) : f32[1, n, 8]
          %d = add(%x, %c) : f32[1, n, 8]
          %y = slice(%d) {begin = [0, $(n - 1), 0], size = [1, 1, 8], step = [1, 1, 1]} : f32[1, 1, 8]
          return %y
        }""",
    "attend to sources": """
        graph @g(%q: f32[1, 1, 2, 16], %x: f32[1, n, 24], %mask: f32[1, 1, 1, n]) params(
          %wk: f32[24, 32], %bk: f32[32], %wv: f32[32, 24], %bv: f32[32]
        ) where n in 1.. {
          %k = matmul(%x, %wk) : f32[1, n, 32]
          %kb = add(%k, %bk) : f32[1, n, 32]
          %ks = reshape(%kb) {shape = [1, $n, 2, 16]} : f32[1, n, 2, 16]
          %v = matmul(%x, %wv) {transpose_b = true} : f32[1, n, 32]
          %vb = add(%v, %bv) : f32[1, n, 32]
          %vs = reshape(%vb) {shape = [1, $n, 2, 16]} : f32[1, n, 2, 16]
          %y = lowered.attention(%q, %ks, %vs, %mask) {
            causal = false, fill = 0.0, first = [0, 0, 0], groups = 2, guard = false, heads = 2, order = "ssss",
            scale = 0.25
          } : f32[1, 1, 2, 16]
          return %y
        }""",
    "fold scales": f"""
        graph @g(%x: f32[n, 3, 9, 9]) params(%w: f32[8, 3, 3, 3], %scale: f32[8, 1, 1], %shift: f32[8, 1, 1])
        where n in 1.. {{
          %a = conv(%x, %w) {{{CONV3}}} : f32[n, 8, 9, 9]
          %b = mul(%a, %scale) : f32[n, 8, 9, 9]
          %y = add(%b, %shift) : f32[n, 8, 9, 9]
          return %y
        }}""",
    "choose algorithms": f"""
        graph @g(%x: f32[n, 64, 28, 28]) params(%w: f32[64, 64, 3, 3], %v: f32[64, 64, 1, 1]) where n in 1..8 {{
          %a = conv(%x, %w) {{{CONV3}}} : f32[n, 64, 28, 28]
          %b = relu(%a) : f32[n, 64, 28, 28]
          %y = conv(%b, %v) {{{CONV1}}} : f32[n, 64, 28, 28]
          return %y
        }}""",
    "choose algorithms: int8": """
        graph @g(%x: f32[n, 64]) params(%w: f32[64, 64]) where n in 1..64 {
          %y = matmul(%x, %w) : f32[n, 64]
          %z = matmul(%y, %y) {transpose_b = true} : f32[n, n]
          return %z
        }""",
    "choose algorithms: codes": f"""
        graph @g(%x: u8[1, 32, 19, 19]) params(%w: i8[32, 32, 3, 3], %v: i8[8, 32, 1, 1]) {{
          %a = cast(%x) {{dtype = i32}} : i32[1, 32, 19, 19]
          %b = cast(%w) {{dtype = i32}} : i32[32, 32, 3, 3]
          %c = cast(%v) {{dtype = i32}} : i32[8, 32, 1, 1]
          %y = conv(%a, %b) {{{CONV3}}} : i32[1, 32, 19, 19]
          %z = conv(%a, %c) {{{CONV1}}} : i32[1, 8, 19, 19]
          return %y, %z
        }}""",
    "assign layouts: codes": f"""
        graph @g(%x: u8[1, 16, 9, 9]) params(%w: i8[16, 16, 3, 3]) {{
          %z = constant() {{value = array i32[] (7)}} : i32[]
          %a = cast(%x) {{dtype = i32}} : i32[1, 16, 9, 9]
          %b = sub(%a, %z) : i32[1, 16, 9, 9]
          %c = cast(%w) {{dtype = i32}} : i32[16, 16, 3, 3]
          %y = conv(%b, %c) {{{CONV3}}} by winograd {{panels = 1, tile = 4, width = 16}} in int8 : i32[1, 16, 9, 9]
          return %y
        }}""",
    "assign layouts": f"""
        graph @g(%x: f32[n, 3, 9, 9]) params(%w: f32[8, 3, 3, 3], %v: f32[8, 8, 1, 1]) where n in 1..8 {{
          %a = conv(%x, %w) {{{CONV3}}} : f32[n, 8, 9, 9]
          %b = relu(%a) : f32[n, 8, 9, 9]
          %c = max_pool(%b) {{ceil_mode = false, dilations = [1, 1], kernel = [3, 3], pads = [1, 1, 1, 1], \
strides = [2, 2]}} : f32[n, 8, 5, 5]
          %y = conv(%c, %v) {{{CONV1}}} : f32[n, 8, 5, 5]
          return %y
        }}""",
    "assign layouts: product": """
        graph @g(%x: f32[n, 17]) params(%w: f32[64, 17], %b: f32[64]) where n in 1..64 {
          %a = matmul(%x, %w) {transpose_b = true} : f32[n, 64]
          %y = add(%a, %b) : f32[n, 64]
          return %y
        }""",
    "assign layouts: int8": """
        graph @g(%x: f32[n, 64]) params(%w: f32[64, 64]) where n in 1..64 {
          %y = matmul(%x, %w) in int8 : f32[n, 64]
          return %y
        }""",
    "assign layouts: groups": """
        graph @g(%x: f32[n, 16, 9, 9])
        params(%w: f32[32, 1, 3, 3], %v: f32[32, 8, 3, 3], %u: f32[12, 8, 3, 3], %s: f32[16, 8, 3, 3],
               %t: f32[48, 16, 1, 1])
        where n in 1..8 {
          %a = conv(%x, %w) {dilations = [1, 1], groups = 16, pads = [1, 1, 1, 1], strides = [2, 2]} : f32[n, 32, 5, 5]
          %b = conv(%a, %v) {dilations = [1, 2], groups = 4, pads = [1, 2, 1, 2], strides = [1, 1]} : f32[n, 32, 5, 5]
          %c = conv(%a, %u) {dilations = [1, 1], groups = 4, pads = [1, 1, 1, 1], strides = [2, 1]} : f32[n, 12, 3, 5]
          %d = conv(%x, %s) {dilations = [1, 1], groups = 2, pads = [0, 0, 0, 0], strides = [1, 1]} : f32[n, 16, 7, 7]
          %e = conv(%a, %t) {dilations = [1, 1], groups = 2, pads = [0, 0, 0, 0], strides = [1, 1]} : f32[n, 48, 5, 5]
          return %b, %c, %d, %e
        }""",
    "assign layouts: volumes": """
        graph @g(%x: f32[n, 3, 4, 6, 6]) params(%w: f32[16, 3, 2, 3, 3], %v: f32[8, 16, 1, 3, 3]) where n in 1..8 {
          %a = conv(%x, %w) {
            dilations = [1, 1, 1], groups = 1, pads = [0, 1, 1, 1, 1, 1], strides = [1, 2, 1]
          } : f32[n, 16, 4, 3, 6]
          %b = relu(%a) : f32[n, 16, 4, 3, 6]
          %y = conv(%b, %v) {
            dilations = [1, 1, 2], groups = 1, pads = [0, 1, 2, 0, 1, 2], strides = [1, 1, 1]
          } : f32[n, 8, 4, 3, 6]
          return %y
        }""",
    "assign layouts: transposed": """
        graph @g(%x: f32[n, 8, 5, 4]) params(%w: f32[8, 12, 3, 2], %v: f32[12, 3, 2, 2]) where n in 1..8 {
          %a = conv_transpose(%x, %w) {
            dilations = [1, 1], groups = 1, output_padding = [1, 0], pads = [1, 0, 0, 1], strides = [2, 1]
          } : f32[n, 12, 11, 4]
          %y = conv_transpose(%a, %v) {
            dilations = [2, 3], groups = 1, output_padding = [0, 0], pads = [0, 0, 0, 0], strides = [1, 1]
          } : f32[n, 3, 13, 7]
          return %y
        }""",
    "assign layouts: gradients of weights": """
        graph @g(%x: f32[2, 5, 9, 8], %g: f32[2, 16, 5, 8], %few: f32[2, 3, 9, 8], %h: f32[2, 8, 9, 8]) {
          %a = conv_weight_gradient(%x, %g) {
            dilations = [1, 1], pads = [1, 1, 1, 1], strides = [2, 1], window = [3, 3]
          } : f32[16, 5, 3, 3]
          %b = conv_weight_gradient(%h, %few) {
            dilations = [1, 2], pads = [1, 2, 1, 2], strides = [1, 1], window = [3, 3]
          } : f32[3, 8, 3, 3]
          return %a, %b
        }""",
    "assign layouts: gradients of weights over tiles": """
        graph @g(%x: f32[2, 5, 9, 8], %g: f32[2, 16, 9, 8]) {
          %a = conv_weight_gradient(%x, %g) {
            dilations = [1, 1], pads = [1, 1, 1, 1], strides = [1, 1], window = [3, 3]
          } by winograd_sums {tile = 4} in fp32 : f32[16, 5, 3, 3]
          return %a
        }""",
    "assign layouts: recurrence": """
        graph @g(%gates: f32[20, 2, 20], %h: f32[2, 5], %c: f32[2, 5]) params(%w: f32[5, 20]) {
          %y, %last, %cell = recurrence(%gates, %w, %h, %c, none, none, none) {
            activations = [["sigmoid", []], ["tanh", []], ["tanh", []]], cell = "lstm"
          } : f32[20, 2, 5], f32[2, 5], f32[2, 5]
          return %y, %last, %cell
        }""",
    "assign layouts: Strassen": """
        graph @g(%x: f32[8, 12], %p: f32[1, 16, 4, 4]) params(%w: f32[12, 32], %v: f32[32, 16, 1, 1]) {
          %y = matmul(%x, %w) by strassen in fp32 : f32[8, 32]
          %z = conv(%p, %v) {dilations = [1, 1], groups = 1, pads = [0, 0, 0, 0], strides = [1, 1]}
            by strassen_strips {panels = 2, width = 8} in fp32 : f32[1, 32, 4, 4]
          return %y, %z
        }""",
    "assign layouts: algorithms": f"""
        graph @g(%x: f32[n, 16, 9, 9]) params(%w: f32[16, 16, 3, 3], %v: f32[8, 16, 1, 1], %u: f32[8, 16, 3, 3])
        where n in 1..8 {{
          %a = conv(%x, %w) {{{CONV3}}} by winograd {{panels = 1, tile = 4, width = 16}} in fp32 : f32[n, 16, 9, 9]
          %b = conv(%a, %v) {{{CONV1}}} by pixels in fp32 : f32[n, 8, 9, 9]
          %c = conv(%a, %u) {{{CONV3}}} by direct in fp32 : f32[n, 8, 9, 9]
          return %b, %c
        }}""",
    "assign layouts: taps": f"""
        graph @g(%x: f32[n, 16, 9, 9]) params(%w: f32[2, 16, 3, 3], %v: f32[1, 16, 3, 3]) where n in 1..8 {{
          %a = conv(%x, %w) {{{CONV3}}} by taps {{nchw = 1, whole = 1}} in fp32 : f32[n, 2, 9, 9]
          %b = conv(%x, %v) {{{CONV3}}} by taps {{nchw = 0, whole = 0}} in fp32 : f32[n, 1, 9, 9]
          return %a, %b
        }}""",
    "materialize outputs": """
        graph @g(%x: f32[2, 6]) {
          %y = relu(%x) : f32[2, 6]
          %a = reshape(%x) {shape = [3, 4]} : f32[3, 4]
          %b = reshape(%y) {shape = [3, 4]} : f32[3, 4]
          return %y, %a, %b
        }""",
    "materialize outputs: prepare": """
        graph @g_prepare() params(%w: f32[2, 6]) {
          %a = reshape(%w) {shape = [3, 4]} : f32[3, 4]
          %b = neg(%w) : f32[2, 6]
          %c = reshape(%b) {shape = [12]} : f32[12]
          return %a, %b, %c
        }""",
    "split prepare": """
        graph @g(%x: f32[n, 4]) params(%w: f32[8, 4], %b: f32[8]) where n in 1.. {
          %p = transpose(%w) {perm = [1, 0]} : f32[4, 8]
          %a = matmul(%x, %p) : f32[n, 8]
          %y = add(%a, %b) : f32[n, 8]
          return %y
        }""",
    "assign layouts: products in place": """
        graph @g(%x: f32[24, 5], %h: f32[24, 40], %g: f32[24, 40], %w: f32[40, 24]) {
          %a = matmul(%g, %h) {transpose_a = true} : f32[40, 40]
          %b = matmul(%g, %x) {transpose_a = true} : f32[40, 5]
          %c = matmul(%g, %w) : f32[24, 24]
          return %a, %b, %c
        }""",
    "place views": """
        graph @g(%x: f32[1, 4], %z: f32[1, 4]) {
          %a = tanh(%x) : f32[1, 4]
          %b = concat(%a, %z) {axis = 1} : f32[1, 8]
          %c = softmax(%b) {axis = 1} : f32[1, 8]
          %d = slice(%c) {begin = [0, 4], size = [1, 4], step = [1, 1]} : f32[1, 4]
          %y = softmax(%d) {axis = 1} : f32[1, 4]
          return %y
        }""",
    "fuse: sides": """
        graph @g(%g: f32[256, 64], %y: f32[256, 64], %w: f32[64, 64], %one: f32[]) {
          %d = matmul(%g, %w) : f32[256, 64]
          %square = mul(%y, %y) : f32[256, 64]
          %slope = sub(%one, %square) : f32[256, 64]
          %z = mul(%d, %slope) : f32[256, 64]
          return %z
        }""",
    "fuse": """
        graph @g(%x: f32[n, 16]) params(%w: f32[16, 16], %b: f32[16]) where n in 1.. {
          %a = matmul(%x, %w) : f32[n, 16]
          %c = add(%a, %b) : f32[n, 16]
          %d = relu(%c) : f32[n, 16]
          %e = softmax(%d) {axis = 1} : f32[n, 16]
          %y = mul(%e, %x) : f32[n, 16]
          return %y
        }""",
}


def groups_text(graph: Graph) -> str:
    """The groups that become kernels, each with what goes in and out."""
    lines = []
    for group in fuse(graph):
        names = [", ".join(f"%{v.name}" for v in values) for values in (group.inputs, group.outputs)]
        lines.append(f"{group.label}: {names[0]} -> {names[1]}")
    return "\n".join(lines)


def split_text(graph: Graph) -> str:
    split = split_prepare(graph)
    return f"{split.prepare}\n\n{split.run}"


def passed(title: str, graph: Graph) -> str:
    """The graph after the pass, checked as the driver checks it."""
    name, _, variant = title.partition(": ")
    passes = dict(graph_passes(TARGET, Options(variant) if variant in ("int8", "bf16") else Options()))
    done = dict(PREPARE_PASSES if variant == "prepare" else passes if name in passes else RUN_PASSES)[name](graph)
    graph_stage().each(done)
    assert done != graph, "the case shows nothing"
    return str(done)


TEXTS: dict[str, Callable[[Graph], str]] = {"split prepare": split_text, "fuse": groups_text}


@pytest.mark.parametrize("title", CASES)
def test_before_and_after(title: str, golden: Callable[..., None]) -> None:
    before = parse_graph(CASES[title])
    graph_stage().each(before)
    text = TEXTS.get(title.partition(": ")[0], partial(passed, title))
    golden(f"before\n\n{before}\n\nafter\n\n{text(before)}")


def gradient(x: str, g: str, y: str, kinds: tuple[str, str] = ("f32", "f32"), rank: int = 2) -> str:
    ones, pads = [1] * rank, [1] * (2 * rank)
    return f"""
        graph @g(%x: {kinds[0]}[{x}], %g: {kinds[1]}[{g}]) where n in 1.. {{
          %y = conv_weight_gradient(%x, %g) {{dilations = {ones}, pads = {pads}, strides = {ones},
            window = {[3] * rank}}} : {kinds[0]}[{y}]
          return %y
        }}"""


def convolved(x: str, w: str, y: str, kind: str = "f32", groups: int = 1) -> str:
    rank = x.count(",") - 1
    ones, pads = [1] * rank, [0] * (2 * rank)
    result = kind if kind.startswith("f") else "i32"
    head = f"(%x: {kind}[{x}]) params(%w: {kind}[{w}])"
    return f"""
        graph @g{head} where n in 1.. {{
          %y = conv(%x, %w) {{dilations = {ones}, groups = {groups}, pads = {pads}, strides = {ones}}} : {result}[{y}]
          return %y
        }}"""


@pytest.mark.parametrize(
    "text",
    [
        gradient("2, 5, n, 8", "2, 16, n, 8", "16, 5, 3, 3"),  # of open size
        gradient("2, 5, 9, 8, 7", "2, 16, 9, 8, 7", "16, 5, 3, 3, 3", rank=3),
        gradient("2, 5, 9, 8", "2, 16, 9, 8", "16, 5, 3, 3", ("f64", "f64")),
        gradient("0, 5, 9, 8", "0, 16, 9, 8", "16, 5, 3, 3"),  # a sum of nothing
        gradient("2, 1, 9, 8", "2, 1, 9, 8", "1, 1, 3, 3"),  # blocks of one channel
        convolved("2, 4, 9, 9", "4, 2, 3, 3", "2, 4, 7, 7", "i8", groups=2),
        convolved("2, 4, 9, 9", "4, 4, 3, 3", "2, 4, 7, 7", "i32"),  # whose products fit no pair of i16
        convolved("2, 16, 9, 9", "16, 1, 3, 3", "2, 16, 7, 7", "f64", groups=16),
        convolved("2, 4, 3, 9, 9", "4, 1, 1, 3, 3", "2, 4, 3, 7, 7", groups=4),  # depthwise volumes
    ],
)
def test_what_layouts_leave_alone(text: str) -> None:
    graph = parse_graph(text)
    result = dict(graph_passes(TARGET, Options()))["assign layouts"](graph)
    assert not any(n.op.startswith("lowered.") for n in result.nodes)


ROUNDED = {"assign layouts: int8", "choose algorithms: int8", "store in 16 bits: bf16"}
"""Cases that round on purpose; all others compute the same."""


def filled(value: Value, sizes: Mapping[str, int], rng: np.random.Generator) -> Any:
    shape = [int(str(substitute(d, {v: const(sizes[v.name]) for v in variables(d)}))) for d in value.shape]
    return rng.normal(size=shape).astype(value.dtype.numpy)


@pytest.mark.parametrize("title", sorted(t for t in CASES.keys() - ROUNDED if t.partition(": ")[0] not in TEXTS))
def test_the_results_stay(title: str) -> None:
    """For every size of the symbols, by the operators' references."""
    before = parse_graph(CASES[title])
    after = parse_graph(passed(title, before))
    symbols = {v.name: v for value in before.inputs for d in value.shape for v in variables(d)}
    for extra in (0, 1, 4):
        rng = np.random.default_rng(extra)
        sizes = {name: (v.lo or 1) + extra for name, v in symbols.items()}
        inputs, weights = ({v.name: filled(v, sizes, rng) for v in vs} for vs in (before.inputs, before.params))
        for retained, element in zip(
            *(list(run_graph(g, inputs, weights).values()) for g in (before, after)), strict=True
        ):
            scale = np.abs(retained).max(initial=1.0)
            np.testing.assert_allclose(element, retained, atol=2e-5 * scale, rtol=0)


def test_every_pass_has_a_case() -> None:
    names = pass_names(TARGET)
    wanted = {*names["graph"], *names["prepare"], *names["run"], *TEXTS}
    assert {title.partition(": ")[0] for title in CASES} == wanted
