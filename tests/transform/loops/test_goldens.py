"""Each loop pass as text: a small function before and after that pass alone. A new pass without a case fails
here. `test_passes.py` has what comes of several of them together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.compiler import pass_names
from tilewright.ir.parser import parse_func
from tilewright.ir.verify import verify_func
from tilewright.targets.target import Target
from tilewright.transform.loops import passes
from tilewright.transform.loops.prefetch_share import WeightPrefetch
from tilewright.transform.loops.verify import verify_loops

TARGET = Target.parse("x86-64-v3")

CASES = {
    "reuse outputs": """
        func @softmax(x: f32[4, 16384], y: f32[4, 16384]) {
          buffer e: f32[4, 16384]
          buffer s: f32[4]
          for i in 0..4 {
            for j in 0..16384 { block e (ei = spatial(4): i, ej = spatial(16384): j) { e[ei, ej] = exp(x[ei, ej]) } }
            for k in 0..16384 {
              block s (si = spatial(4): i, sk = reduce(16384): k) { init { s[si] = 0.0 } s[si] = s[si] + e[si, sk] }
            }
            for l in 0..16384 {
              block y (yi = spatial(4): i, yj = spatial(16384): l) { y[yi, yj] = e[yi, yj] / s[yi] }
            }
          }
        }""",
    "lower blocks": """
        func @rows(a: f32[8, 16], c: f32[8]) {
          for i in 0..8 parallel {
            for k in 0..4 {
              for v in 0..6 {
                block c (ci = spatial(8): i, ck = reduce(16): k * 6 + v) if k * 6 + v < 16 {
                  init { c[ci] = 0.0 }
                  c[ci] = c[ci] + a[ci, ck]
                }
              }
            }
          }
        }""",
    "simplify": """
        func @known(a: f32[32], c: f32[32]) {
          for i in 0..4 {
            for j in 0..8 { if i * 8 + j < 32 { c[(i * 8 + j) // 8 * 8 + j] = a[i * 8 + j] } }
            for k in 0..0 { c[k] = 0.0 }
          }
        }""",
    "simplify: what a condition fixes": """
        func @fixed(a: f32[8, 8], c: f32[8, 8]) {
          for i in 0..8 {
            for j in 0..8 {
              if i == j { c[i, j] = a[i, j] } else { c[i, j] = 0.0 }
              if i == 3 { c[i, j] = c[i, j] + a[i, 7 - i] }
            }
          }
        }""",
    "simplify: names of what needs none": """
        func @named(a: f32[32], c: f32[32]) {
          for i in 0..4 {
            let zero = i - i
            let same = i + zero
            let eight = 8 + zero {
              for j in 0..8 { let place = same * eight + j c[place] = a[place] }
            }
          }
        }""",
    "compact buffers": """
        func @twice(a: f32[64], c: f32[64]) {
          buffer b: f32[64]
          buffer unused: f32[64]
          for i in 0..8 {
            for j in 0..8 { b[i * 8 + j] = a[i * 8 + j] * 2.0 }
            for k in 0..8 { c[i * 8 + k] = b[i * 8 + k] + b[i * 8 + 7 - k] }
          }
        }""",
    "compact buffers: of strips under conditions": """
        func @strips(a: f32[32], c: f32[32], d: f32[32]) {
          buffer b: f32[32]
          buffer e: f32[32]
          buffer f: f32[32]
          for s in 0..4 {
            for i in 0..8 { b[s * 8 + i] = a[s * 8 + i] }
            for t in 0..3 {
              for j in 0..3 { if t * 3 + j < 8 { e[s * 8 + t * 3 + j] = b[s * 8 + t * 3 + j] } }
              for k in 0..3 { if t * 3 + k < 8 { c[s * 8 + t * 3 + k] = e[s * 8 + t * 3 + k] } }
              for l in 0..3 { if t * 3 + l < 7 { f[s * 8 + t * 3 + l] = a[s * 8 + t * 3 + l] } }
              for m in 0..3 { if t * 3 + m < 8 { d[s * 8 + t * 3 + m] = f[s * 8 + t * 3 + m] } }
            }
          }
        }""",
    "compact buffers: under conditions on data": """
        func @chosen(a: f32[32], c: f32[32], d: f32[32]) {
          buffer b: f32[32]
          buffer e: f32[32]
          for s in 0..4 {
            for i in 0..8 { b[s * 8 + i] = a[s * 8 + i] }
            for j in 0..8 { if a[s * 8 + j] < 0.5 { c[s * 8 + j] = b[s * 8 + j] } }
            for k in 0..8 { if d[s * 8 + k] < 0.5 { e[s * 8 + k] = a[s * 8 + k] } }
            for l in 0..8 { d[s * 8 + l] = 0.0 }
            for m in 0..8 { if d[s * 8 + m] < 0.5 { c[s * 8 + m] = e[s * 8 + m] } }
          }
        }""",
    "compact buffers: spread": """
        func @planes(a: f32[16, 64, 16], c: f32[16, 64, 16]) {
          buffer b: f32[16, 64, 16] in padded
          for p in 0..16 { for i in 0..64 { for j in 0..16 { b[p, i, j] = a[p, i, j] } } }
          for i1 in 0..64 { for p1 in 0..16 { for j1 in 0..16 { c[p1, i1, j1] = b[15 - p1, i1, j1] } } }
        }""",
    "compact buffers: rows apart": """
        func @rows(a: f32[8, 16], c: f32[8, 16]) @storage_align(buffers=[b], dimensions=[0], factors=[8], offsets=[1]) {
          buffer b: f32[8, 16]
          for i in 0..8 { for j in 0..16 { b[i, j] = a[i, j] } }
          for k in 0..8 { for l in 0..16 { c[k, l] = b[7 - k, l] } }
        }""",
    "compact buffers: read before it is written": """
        func @running(a: f32[8, 4], c: f32[8, 4]) {
          buffer b: f32[8, 4]
          for i in 0..8 {
            for j in 0..4 {
              c[i, j] = b[i, j]
              b[i, j] = a[i, j]
            }
          }
        }""",
    "double buffers": """
        func @ahead(a: f32[n, 8], c: f32[n, 8]) where n in 1.. {
          for i in 0..n @double_buffer(buffers=[b]) {
            alloc b: f32[8]
            for j in 0..8 { b[j] = a[i, j] * 2.0 }
            for k in 0..8 { c[i, k] = b[k] + b[7 - k] }
          }
        }""",
    "double buffers: two of a loop": """
        func @ahead(a: f32[9, 8], c: f32[9, 8]) {
          for i in 0..9 @double_buffer(buffers=[b, d]) {
            alloc b: f32[8]
            alloc d: f32[4]
            for j in 0..8 { b[j] = a[i, j] * 2.0 }
            for l in 0..4 { d[l] = a[i, l] + 1.0 }
            for k in 0..8 { c[i, k] = b[k] + d[k // 2] }
          }
        }""",
    "move conditions": """
        func @outwards(a: f32[16, 16]) {
          for i in 0..16 { for j in 0..16 { if i * 4 < 30 and j + i < 20 { a[i, j] = 0.0 } } }
        }""",
    "move conditions: what is made for them": """
        func @wanted(a: f32[8, 16], c: f32[n]) where n in 1..8 {
          for i in 0..8 {
            alloc s: f32[1]
            alloc t: f32[1]
            s[0] = 0.0
            for k in 0..16 { s[0] = s[0] + a[i, k] }
            t[0] = s[0] * 2.0
            if i < n { c[i] = t[0] }
          }
        }""",
    "even blocks": """
        func @blocks(x: f32[n], y: f32[n]) where n in 1.. {
          for b in 0..(n + 47) // 48 parallel @even_blocks(size=48, unit=8) {
            alloc t: f32[48]
            for i in 0..48 { t[i] = x[(b * 48 + i) % n] }
            for j in 0..48 { if b * 48 + j < n { y[b * 48 + j] = t[j] } }
          }
        }""",
    "leave out unread": """
        func @blocks(x: f32[n], y: f32[n]) where n in 1.. {
          for b in 0..(n + 47) // 48 parallel {
            alloc t: f32[48]
            for j in 0..4 {
              for k in 0..3 { for v in 0..4 vectorized { t[j * 12 + k * 4 + v] = x[(j * 12 + k * 4 + v) % n] } }
            }
            for i in 0..48 { if b * 48 + i < n { y[b * 48 + i] = t[i] } }
          }
        }""",
    "leave out unread: rows of tiles": """
        func @products(x: f32[n, 8], w: f32[8, 16], y: f32[n, 16]) where n in 1.. {
          for b in 0..(n + 11) // 12 parallel {
            alloc t: f32[12, 16]
            for j in 0..3 {
              alloc sums: f32[4, 16] in local
              for r0 in 0..4 unrolled { for v0 in 0..16 vectorized { sums[r0, v0] = 0.0 } }
              for k in 0..8 {
                for r1 in 0..4 unrolled {
                  for v1 in 0..16 vectorized {
                    sums[r1, v1] = sums[r1, v1] + x[(b * 12 + j * 4 + r1) % n, k] * w[k, v1]
                  }
                }
              }
              for r2 in 0..4 unrolled { for v2 in 0..16 vectorized { t[j * 4 + r2, v2] = sums[r2, v2] } }
            }
            for i in 0..12 { if b * 12 + i < n { for v in 0..16 vectorized { y[b * 12 + i, v] = t[i, v] } } }
          }
        }""",
    "fit buffers": """
        func @planes(x: f32[n, 16], y: f32[n, 16]) where n in 1.. {
          for b in 0..(n + 47) // 48 {
            alloc t: f32[64, 48, 16]
            for p in 0..64 parallel {
              for i in 0..min(n - b * 48, 48) { for v in 0..16 vectorized { t[p, i, v] = x[b * 48 + i, v] * f32(p) } }
            }
            for j in 0..48 {
              if b * 48 + j < n { for w in 0..16 vectorized { y[b * 48 + j, w] = t[1, j, w] + t[63, j, w] } }
            }
          }
        }""",
    "forward copies": """
        func @tiles(x: f32[n, 8], y: f32[m, 8]) where n in 1.., m in 1.. {
          for t in 0..m {
            alloc strip: f32[6, 8]
            alloc sums: f32[8]
            for r in 0..3 {
              for q in 0..2 unrolled {
                for v in 0..8 vectorized {
                  strip[r * 2 + q, v] =
                    select(1 <= t * 4 + r * 2 + q and t * 4 + r * 2 + q <= n, x[t * 4 + r * 2 + q - 1, v], 0.0)
                }
              }
            }
            for u in 0..8 vectorized { sums[u] = 0.0 }
            for k in 0..6 { for w in 0..8 vectorized { sums[w] = sums[w] + strip[5 - k, w] } }
            for o in 0..8 vectorized { y[t, o] = sums[o] }
          }
        }""",
    "even tails": """
        func @rows(a: f32[n, 8], c: f32[n, 8]) where n in 1.. {
          for i in 0..(n + 3) // 4 {
            alloc t: f32[4, 8] in local
            for r in 0..4 unrolled { if i * 4 + r < n { for v in 0..8 vectorized { t[r, v] = a[i * 4 + r, v] } } }
            for q in 0..4 unrolled { if i * 4 + q < n { for w in 0..8 vectorized { c[i * 4 + q, w] = t[q, w] } } }
          }
        }""",
    "overlap tails": """
        func @line(x: f32[n], y: f32[n]) where n in 1.. {
          for t in 0..(n + 3) // 4 {
            for v in 0..4 vectorized {
              if t * 4 + v < n { y[t * 4 + v] = select(1 <= t * 4 + v, x[t * 4 + v - 1], 0.0) }
            }
          }
        }""",
    "rows by number": """
        func @few(a: f32[n, 6], b: f32[6, 8], c: f32[n, 8]) where n in 2..3 {
          for p in 0..1 parallel {
            alloc t: f32[4, 8] in local
            for q in 0..4 unrolled { if q < n { for u in 0..8 vectorized { t[q, u] = 0.0 } } }
            for k in 0..6 {
              for r in 0..4 unrolled {
                if r < n { for v in 0..8 vectorized { t[r, v] = t[r, v] + a[r, k] * b[k, v] } }
              }
            }
            for s in 0..4 unrolled { if s < n { for w in 0..8 vectorized { c[s, w] = t[s, w] } } }
          }
        }""",
    "partition loops": """
        func @tail(a: f32[n], c: f32[n]) where n in 1.. {
          for i in 0..(n + 7) // 8 {
            for v in 0..8 vectorized { if i * 8 + v < n { c[i * 8 + v] = a[i * 8 + v] } }
          }
        }""",
    "partition loops: strips and panels": """
        func @tiles(a: f32[50, 5, 7], c: f32[50, 5]) {
          for t in 0..15 parallel {
            for i in 0..12 {
              for k in 0..7 {
                for p in 0..2 unrolled {
                  if t // 3 * 12 + i < 50 and t % 3 * 2 + p < 5 {
                    c[t // 3 * 12 + i, t % 3 * 2 + p] = a[t // 3 * 12 + i, t % 3 * 2 + p, k]
                  }
                }
              }
            }
          }
        }""",
    "defer epilogues": """
        func @product(x: f32[6, 8], w: f32[8, 16], y: f32[6, 16]) {
          for t in 0..3 @defer(lanes=8) {
            alloc tile: f32[2, 16] in local
            for r0 in 0..2 unrolled { for v0 in 0..16 vectorized { tile[r0, v0] = 0.0 } }
            for k in 0..8 {
              for r1 in 0..2 unrolled {
                for v1 in 0..16 vectorized { tile[r1, v1] = tile[r1, v1] + x[t * 2 + r1, k] * w[k, v1] }
              }
            }
            for r in 0..2 unrolled { for v in 0..16 vectorized { y[t * 2 + r, v] = tanh(tile[r, v]) } }
          }
        }""",
    "simplify again": """
        func @left(a: f32[32]) {
          for i in 0..3 { for j in 0..8 { if i < 3 { a[i * 8 + j + 8 - 8] = 0.0 } else { a[j] = 1.0 } } }
        }""",
    "merge loops": """
        func @sum(x: f32[64], e: f32[64], part: f32[16]) {
          for i in 0..4 { for v in 0..16 vectorized { e[i * 16 + v] = exp(x[i * 16 + v]) } }
          for u in 0..16 vectorized { part[u] = 0.0 }
          for k in 0..4 { for w in 0..16 vectorized { part[w] = part[w] + e[k * 16 + w] } }
        }""",
    "promote partials": """
        func @rows(x: f32[2, 5, 48], y: f32[2, 5]) {
          for b in 0..2 {
            alloc p: f32[2, 5, 16] in local
            alloc q: f32[5, 16] in local
            for r in 0..5 {
              for v0 in 0..16 vectorized { p[b, r, v0] = 0.0 }
              for k0 in 0..3 { for v1 in 0..16 vectorized { p[b, r, v1] = p[b, r, v1] + x[b, r, k0 * 16 + v1] } }
              for v2 in 0..16 vectorized { q[r, v2] = 0.0 }
              for k1 in 0..3 { for v3 in 0..16 vectorized { q[k1, v3] = q[k1, v3] + x[b, r, k1 * 16 + v3] } }
            }
            for s in 0..5 { for w in 0..16 vectorized { y[b, s] = max(y[b, s], p[b, s, w] + q[s, w]) } }
          }
        }""",
    "pipeline loops": """
        func @rows(x: f32[6, 32], y: f32[6, 32]) {
          for r in 0..6 @pipeline {
            alloc m: f32[1]
            alloc part: f32[8]
            for v0 in 0..8 vectorized { part[v0] = -inf }
            for j0 in 0..4 { for w0 in 0..8 vectorized { part[w0] = max(part[w0], x[r, j0 * 8 + w0]) } }
            m[0] = -inf
            for u0 in 0..8 vectorized { m[0] = max(m[0], part[u0]) }
            for j1 in 0..4 { for w1 in 0..8 vectorized { y[r, j1 * 8 + w1] = exp(x[r, j1 * 8 + w1] - m[0]) } }
          }
        }""",
    "bound loops": """
        func @strips(a: f32[8]) {
          for t in 0..5 { for i in 0..6 unrolled { if t * 6 + i < 8 { a[t * 6 + i] = 0.0 } } }
        }""",
    "drop dead stores": """
        func @unread(a: f32[8], c: f32[8]) {
          alloc b: f32[8]
          for i in 0..8 { b[i] = a[i] * 2.0 }
          for j in 0..8 { c[j] = a[j] + 1.0 }
        }""",
    "shorter sums": """
        func @columns(a: f32[9, n], c: f32[n], d: f32[n]) where n in 1..64 {
          alloc t: f32[64] {
            for i in 0..64 vectorized { if i < n { t[i] = 0.0 } }
            for k in 0..9 { for v in 0..64 vectorized { if v < n { t[v] = t[v] + a[k, v] } } }
            for w in 0..64 vectorized { if w < n { c[w] = t[w] } }
          }
          alloc u: f32[64]
          for j in 0..64 vectorized { if j < n { u[j] = 0.0 } }
          for l in 0..3 unrolled { for x in 0..64 vectorized { if x < n { u[x] = u[x] + a[l, x] } } }
          for y in 0..64 vectorized { if y < n { d[y] = u[y] } }
        }""",
    "narrow tails: behind a test": """
        func @tested(a: f32[n], c: f32[n]) where n in 1..48 {
          if n <= 32 {
            if n >= 17 { for v in 0..32 vectorized { if v < n { c[v] = a[v] * 2.0 } } }
          } else {
            for w in 0..48 vectorized { if w < n { c[w] = a[w] + 1.0 } }
          }
        }""",
    "narrow tails": """
        func @pairs(a: f32[96], c: f32[n], d: f32[48]) where n in 1..40 {
          for v in 0..48 vectorized { if v < n { c[v] = a[v * 2] } }
          for w in 0..40 vectorized { if w >= n and n > 8 { d[w] = a[w] } }
        }""",
    "whole vectors": """
        func @pooled(a: f32[m], c: f32[n], d: f32[9, n]) where n in 1..16, m in 1..40 {
          for r in 0..9 {
            alloc t: f32[16]
            for i in 0..16 vectorized { if i < n { t[i] = -inf } }
            for k in 0..3 {
              for v in 0..16 vectorized {
                if v < n and r < n { t[v] = max(t[v], select(1 <= v + k and v + k <= m, a[v + k - 1], -inf)) }
              }
            }
            for w in 0..16 vectorized { if w < n { d[r, w] = t[w] } }
          }
        }""",
    "whole tiles": """
        func @transposed(x: f32[2, 28, 16], y: f32[2, 16, 28]) {
          for c in 0..2 {
            if c < 1 {
              alloc t: f32[16, 16] in local
              for i in 0..16 unrolled { for k in 0..16 vectorized { t[i, k] = x[c, i, k] } }
              for q in 0..16 unrolled { for p in 0..16 vectorized { y[c, q, p] = t[p, q] } }
            }
            if c < 1 {
              alloc u: f32[16, 16] in local
              for j in 0..12 unrolled { for l in 0..16 vectorized { u[j, l] = x[c, j + 16, l] } }
              for r in 0..16 unrolled { for o in 0..12 vectorized { y[c, r, o + 16] = u[o, r] } }
            }
          }
        }""",
    "unswitch loops": """
        func @padded(a: f32[h, n], c: f32[10, n]) where h in 1..20, n in 1..40 {
          for y in 0..10 parallel {
            for v in 0..n {
              for l in 0..2 unrolled { c[y, v] = select(1 <= y and y <= h and v < n - 1 + l, a[y - 1, v], 0.0) }
            }
            for w in 0..n { c[y, w] = max(c[y, w], select(y < h, a[y, w], -inf)) + select(y < h and w < 5, 1.0, 2.0) }
            for u in 0..n { c[y, u] = select(y < h, a[y, u], 0.0) + select(y < 5, 1.0, 2.0) }
          }
        }""",
    "unswitch loops: all parts that are common": """
        func @parts(a: f32[8, 64], c: f32[8, 64], d: f32[8, 64]) {
          for y in 0..8 {
            for v in 0..64 { c[y, v] = select(2 <= y and v < 9, a[y, v], 0.0) }
            for w in 0..64 { c[y, w] = c[y, w] + select(2 <= y and y < 7, a[y, w], 0.0) }
            for u in 0..64 { d[y, u] = a[y, u] }
          }
        }""",
    "expand math": """
        func @sigmoid(x: f32[8], y: f32[8]) {
          for i in 0..8 vectorized { y[i] = sigmoid(x[i]) }
        }""",
    "plan workspace": """
        func @shared(a: f32[n, 8], c: f32[n, 8]) where n in 1..1000 {
          alloc b: f32[n, 8]
          for i in 0..n parallel { for j in 0..8 { b[i, j] = a[i, j] * 2.0 } }
          for k in 0..n parallel {
            alloc row: f32[n]
            alloc own: f32[8]
            for l in 0..8 { own[l] = b[n - 1 - k, 7 - l] }
            for o in 0..n { row[o] = own[o % 8] }
            for p in 0..8 { c[k, p] = own[p] + row[n - 1] }
          }
        }""",
    "one thread": """
        func @total(a: f32[8], c: f32[8]) {
          for b in 0..2 thread(blockIdx.x) {
            alloc S: f32[4] in shared
            alloc T: f32[1] in shared
            for t in 0..4 thread(threadIdx.x) {
              for u in 0..4 thread(threadIdx.x) { S[u] = a[b * 4 + u] }
              for k in 0..1 { T[0] = S[0] + S[1] }
              c[b * 4 + t] = S[t] + T[0]
            }
            T[0] = 0.0
          }
        }""",
    "insert barriers": """
        func @steps(a: f32[4, 8], c: f32[8], d: f32[8]) {
          for t in 0..8 thread(threadIdx.x) {
            c[t] = 0.0
            for k in 0..4 {
              alloc S: f32[8] in shared
              alloc W: f32[8] in warp
              for u in 0..8 thread(threadIdx.x) { S[u] = a[k, u] }
              W[t] = S[t] * 2.0
              c[t] = c[t] + W[7 - t]
              if k < 3 { c[t] = c[t] + S[7 - t] }
            }
            d[t] = c[t]
          }
        }""",
    "insert barriers: halves by turns": """
        func @pipelined(a: f32[4, 8], c: f32[8]) {
          alloc S: f32[2, 8] in shared
          for o in 0..8 thread(threadIdx.x) { S[0, o] = a[0, o] }
          for k in 0..4 {
            if k < 3 { for t in 0..8 thread(threadIdx.x) { S[(k + 1) % 2, t] = a[k + 1, t] } }
            for u in 0..8 thread(threadIdx.x) { c[u] = c[u] + S[k % 2, 7 - u] }
          }
        }""",
    "prefetch weights": """
        func @product(x: f32[512], w: f32[4, 512, 16], y: f32[4, 16]) {
          for p in 0..4 parallel {
            alloc tile: f32[16] in local
            for v0 in 0..16 vectorized { tile[v0] = 0.0 }
            for k in 0..512 { for v1 in 0..16 vectorized { tile[v1] = tile[v1] + x[k] * w[p, k, v1] } }
            for v2 in 0..16 vectorized { y[p, v2] = tile[v2] }
          }
        }""",
}

PASSES = dict(passes(TARGET, WeightPrefetch(1 << 20, 1 << 18)))


@pytest.mark.parametrize("title", CASES)
def test_before_and_after(title: str, golden: Callable[..., None]) -> None:
    before = parse_func(CASES[title])
    verify_func(before)
    after = PASSES[title.partition(": ")[0]](before)
    verify_loops(after)
    assert after != before, "the case shows nothing"
    golden(f"before\n\n{before}\n\nafter\n\n{after}")


def test_every_pass_has_a_case() -> None:
    assert {title.partition(": ")[0] for title in CASES} == set(pass_names(TARGET)["loops"]) == set(PASSES)
