"""A bundle for the web: a WebAssembly module with JavaScript around it, in npm's layout.

    NAME.wasm  NAME.js  NAME.d.ts  package.json  NAME.weights  example.mjs  README.md  [NAME.worker.js]

The module has memory of its own; JavaScript places the parts of it after what the module needs itself, and copies
arrays in and out. Functions of libm come from `Math`; a program that needs others is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tilewright.bundle import web_threads
from tilewright.bundle.binding import Array, Binding
from tilewright.bundle.c import about, about_size
from tilewright.bundle.cpp import elements
from tilewright.bundle.glue import STATUS
from tilewright.codegen.c.helpers import MEMORY_TYPES

_ARRAYS = {"float": "Float32Array", "double": "Float64Array", "bool": "Uint8Array"} | {
    f"{sign}int{bits}_t": f"{'Big' if bits == 64 else ''}{'Ui' if sign else 'I'}nt{bits}Array"
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
_UNARY = "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp log log2 log10 log1p expm1 cbrt".split()
_SINGLE = "(x) => Math.fround(Math.{name}(x))"
MATH = (
    {name: f"Math.{name}" for name in _UNARY}
    | {f"{name}f": _SINGLE.format(name=name) for name in _UNARY}
    | {
        "fmod": "(x, y) => x % y",
        "fmodf": "(x, y) => x % y",
        "pow": "Math.pow",
        "powf": "(x, y) => Math.fround(Math.pow(x, y))",
        "atan2": "Math.atan2",
        "atan2f": "(y, x) => Math.fround(Math.atan2(y, x))",
        "hypot": "Math.hypot",
        "hypotf": "(x, y) => Math.fround(Math.hypot(x, y))",
        "exp2": "(x) => Math.pow(2, x)",
        "exp2f": "(x) => Math.fround(Math.pow(2, x))",
    }
)
"""The functions of libm that JavaScript has, with their JavaScript text."""


def array_type(array: Array) -> str:
    """The JavaScript class of typed arrays for an argument."""
    return _ARRAYS[MEMORY_TYPES[array.dtype.name]]


def support(triple: str) -> str:
    """LLVM text, for the machine `triple`, of the function that a program may call beside its own kernels: a fused
    multiply-add in double.

    The product as two doubles by Veltkamp's and Dekker's splitting, the sums by Knuth's; what is added last is rounded
    to odd, so that the result is rounded once (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums:
    proved algorithms using rounding to odd", 2008). Where the splitting overflows, or a number is none, the result is
    that of the two operations.
    """
    return f'target triple = "{triple}"\n\n{_FMA}'


_FMA = """\
define double @fma(double %a, double %b, double %c) nounwind {
  %ta = fmul double %a, 134217729.0
  %ra = fsub double %ta, %a
  %ah = fsub double %ta, %ra
  %al = fsub double %a, %ah
  %tb = fmul double %b, 134217729.0
  %rb = fsub double %tb, %b
  %bh = fsub double %tb, %rb
  %bl = fsub double %b, %bh
  %p = fmul double %a, %b
  %hh = fmul double %ah, %bh
  %e1 = fsub double %hh, %p
  %hl = fmul double %ah, %bl
  %e2 = fadd double %e1, %hl
  %lh = fmul double %al, %bh
  %e3 = fadd double %e2, %lh
  %ll = fmul double %al, %bl
  %q = fadd double %e3, %ll
  ; c + q = t + tr exactly, p + t = v + vr exactly
  %t = fadd double %c, %q
  %t1 = fsub double %t, %c
  %t2 = fsub double %t, %t1
  %t3 = fsub double %c, %t2
  %t4 = fsub double %q, %t1
  %tr = fadd double %t3, %t4
  %v = fadd double %p, %t
  %v1 = fsub double %v, %p
  %v2 = fsub double %v, %v1
  %v3 = fsub double %p, %v2
  %v4 = fsub double %t, %v1
  %vr = fadd double %v3, %v4
  ; tr + vr rounded to odd
  %s = fadd double %tr, %vr
  %s1 = fsub double %s, %tr
  %s2 = fsub double %s, %s1
  %s3 = fsub double %tr, %s2
  %s4 = fsub double %vr, %s1
  %sr = fadd double %s3, %s4
  %bits = bitcast double %s to i64
  %last = and i64 %bits, 1
  %even = icmp eq i64 %last, 0
  %inexact = fcmp one double %sr, 0.0
  %change = and i1 %even, %inexact
  %up = fcmp ogt double %sr, 0.0
  %positive = fcmp ogt double %s, 0.0
  %away = icmp eq i1 %up, %positive
  %step = select i1 %away, i64 1, i64 -1
  %odd = add i64 %bits, %step
  %chosen = select i1 %change, i64 %odd, i64 %bits
  %rest = bitcast i64 %chosen to double
  %exact = fadd double %v, %rest
  %simple = fadd double %p, %c
  %difference = fsub double %exact, %exact
  %finite = fcmp oeq double %difference, 0.0
  %result = select i1 %finite, double %exact, double %simple
  ret double %result
}
"""


_CLOSE = """\
  /** Ends the workers; calls have one thread then. */
  close() {
    this.exports.tw_pool_started(0n);
    for (const worker of this.workers.splice(0)) worker.terminate();
  }

"""


def _memory(binding: Binding, embedded: bool) -> dict[str, int]:
    """The blocks of memory that JavaScript places: the size in bytes of each, by name. If `embedded`, the module has
    the weights."""
    parts = {"weights": 0 if embedded else binding.weight_bytes, "constants": binding.constant_bytes}
    parts |= {"workspace": binding.workspace_bytes, "activations": binding.activations.nbytes}
    parts |= {} if binding.state is None else {"state": binding.state.nbytes}
    parts |= {"extents": 8 * len(binding.extents)} if binding.extents else {}
    return parts | {f"at.{a.identifier}": max(a.nbytes, 8) for a in (*binding.inputs, *binding.outputs)}


def _load(binding: Binding, needs: Sequence[str], embedded: bool, heap: int) -> str:
    """The JavaScript text of the function `load`, which passes the mathematical functions `needs` to the module. If
    `embedded`, the module has the weights, else they are fetched. `heap` is the first free address of its memory."""
    n = binding.name
    imports = {name: MATH[name] for name in needs}
    update = "undefined" if embedded else f"files.weights ?? (await fetched('{n}.weights'))"
    if binding.threads > 1:
        room = sum(-(-count // 64) * 64 for count in _memory(binding, embedded).values())
        return web_threads.load(binding, imports, heap, room, update)
    return f"""\
/** Loads the module and its weights; `files` may hold their bytes: {{ module, weights }}. */
export async function load(files = {{}}) {{
  const module = files.module ?? (await fetched('{n}.wasm'));
  const env = {{ {", ".join(f"{name}: {text}" for name, text in imports.items())} }};
  const {{ instance }} = await WebAssembly.instantiate(module, {{ env }});
  const model = new Model(instance);
  model.update({update});
  return model;
}}
"""


def javascript(binding: Binding, needs: Sequence[str], embedded: bool, heap: int) -> str:
    """The text of NAME.js: the function `load` and the class of models that it returns. `needs` are the functions of
    libm that the module imports, `embedded` says that it contains the weights, and `heap` is the address at which the
    caller's memory begins."""
    n = binding.name
    arrays = (*binding.inputs, *binding.outputs)
    sizes = [s.identifier for s in binding.sizes]
    arguments = ["this.constants", "this.activations", *(["this.state"] if binding.state else [])]
    arguments += [f"BigInt(sizes.{s})" for s in sizes] + [f"this.at.{a.identifier}" for a in arrays]
    arguments += ["this.extents"] if binding.extents else []
    places = "".join(f"    this.{what} = take({count});\n" for what, count in _memory(binding, embedded).items())
    defaults = ", ".join(f"{s.identifier}: {s.spec.hi}" for s in binding.sizes)
    outputs = ",\n".join(
        f"      {a.identifier}: this.view('{a.identifier}').slice(0, {_count(binding, a)})" for a in binding.outputs
    )
    words = f"new BigInt64Array(this.memory.buffer, this.extents, {len(binding.extents)})"
    told = f"      extents: Array.from({words}, Number),\n"
    types = ", ".join(f"{a.identifier}: [{array_type(a)}, {a.elements}]" for a in arrays)
    source = f"this.exports.{n}_weights.value" if embedded else "this.weights"
    workers, close = ("    this.workers = [];\n", _CLOSE) if binding.threads > 1 else ("", "")
    return f"""\
// {n}: a model made by Tilewright, as WebAssembly. `const model = await load(); model.run({{...}})`.
const OPEN = {{ {defaults} }};
const ARRAYS = {{ {types} }};
const STATUS = [{", ".join(f"'{what}'" for _, what in STATUS.values())}];

/** Bytes of a file beside this one, in browsers and in Node. */
async function fetched(name) {{
  const url = new URL(name, import.meta.url);
  if (url.protocol === 'file:') return (await import('node:fs/promises')).readFile(url);
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${{url}}: ${{answer.status}}`);
  return new Uint8Array(await answer.arrayBuffer());
}}

export class Model {{
  constructor(instance) {{
    this.exports = instance.exports;
    this.memory = this.exports.memory;
    this.at = {{}};
{workers}    let end = this.exports.heap.value;
    const take = (count) => {{
      const place = end;
      end += Math.ceil(count / 64) * 64;
      return place;
    }};
{places}    const missing = end - this.memory.buffer.byteLength;
    if (missing > 0) this.memory.grow(Math.ceil(missing / 65536));
  }}

  /** Takes raw weights, in the order of {n}.weights. */
  update(weights) {{
    if (weights) {{
      const wanted = {binding.weight_bytes};
      if (weights.byteLength !== wanted) throw new Error(`weights: ${{wanted}} bytes expected`);
      const bytes = ArrayBuffer.isView(weights)
        ? new Uint8Array(weights.buffer, weights.byteOffset, weights.byteLength)
        : new Uint8Array(weights);
      new Uint8Array(this.memory.buffer, {source}, wanted).set(bytes);
    }}
    this.check(this.exports.{n}_prepare(this.constants, {source}, this.workspace));
  }}

  /** The memory of an input or an output: inputs may be written there instead of being given to `run`. */
  view(name) {{
    const [type, count] = ARRAYS[name];
    return new type(this.memory.buffer, this.at[name], count);
  }}

  /** Computes; gives copies of the outputs. `sizes` are the dimensions that are open. */
  run(inputs = {{}}, sizes = {{}}) {{
    this.call(inputs, sizes);
    sizes = {{ ...OPEN, ...sizes }};
    return {{
{told if binding.extents else ""}{outputs},
    }};
  }}

  /** Computes, without copies of the outputs: `view(name)` shows them. */
  call(inputs = {{}}, sizes = {{}}) {{
    sizes = {{ ...OPEN, ...sizes }};
    for (const name in inputs) {{
      if (!(name in ARRAYS)) throw new Error(`there is no input ${{name}}`);
      const given = inputs[name];
      const place = this.view(name);
      if (given.length > place.length) throw new Error(`${{name}}: at most ${{place.length}} elements`);
      place.set(given);
    }}
    this.check(this.exports.{n}_run({", ".join(arguments)}));
  }}

{close}  check(status) {{
    if (status !== 0) throw new Error(`{n}: ${{STATUS[status] ?? status}}`);
  }}
}}

{_load(binding, needs, embedded, heap)}"""


def _count(binding: Binding, array: Array) -> str:
    """The number of elements of an output, as a JavaScript expression of a call's sizes."""
    known = {s.spec.name: f"sizes.{s.identifier}" for s in binding.sizes}
    if array.is_open and all(isinstance(d, int) or d in known for d in array.shape):
        return " * ".join(str(d) if isinstance(d, int) else known[d] for d in array.shape)
    return elements(binding, array)


def types(binding: Binding) -> str:
    """The text of NAME.d.ts, the TypeScript declarations of a bundle for the web."""
    inputs = [f"  /** {about(a, False)} */\n  {a.identifier}?: {_input_type(a)};" for a in binding.inputs]
    outputs = [f"  /** {about(a, True)} */\n  {a.identifier}: {array_type(a)};" for a in binding.outputs]
    outputs += ["  /** " + ", ".join(binding.extents) + " */\n  extents: number[];"] if binding.extents else []
    sizes = [f"  /** {about_size(s)} */\n  {s.identifier}?: number;" for s in binding.sizes]
    names = " | ".join(f"'{a.identifier}'" for a in (*binding.inputs, *binding.outputs))
    more = "; threads?: number" if binding.threads > 1 else ""
    return "\n".join(
        [
            "export interface Inputs {",
            *inputs,
            "}",
            "export interface Outputs {",
            *outputs,
            "}",
            "export interface Sizes {",
            *sizes,
            "}",
            "export class Model {",
            "  run(inputs?: Inputs, sizes?: Sizes): Outputs;",
            "  call(inputs?: Inputs, sizes?: Sizes): void;",
            f"  view(name: {names or 'never'}): ArrayBufferView;",
            "  update(weights?: ArrayBuffer | ArrayBufferView): void;",
            *(["  close(): void;"] if binding.threads > 1 else []),
            "}",
            f"export function load(files?: {{ module?: BufferSource; weights?: BufferSource{more} }}): Promise<Model>;",
            "",
        ]
    )


def _input_type(array: Array) -> str:
    big = MEMORY_TYPES[array.dtype.name].endswith("64_t")
    return f"{array_type(array)} | {'bigint' if big else 'number'}[]"


def package(binding: Binding, embedded: bool) -> str:
    """The text of package.json of a bundle for the web; if `embedded`, there is no file of weights."""
    n = binding.name
    files = [f"{n}.js", f"{n}.d.ts", f"{n}.wasm", *([] if embedded else [f"{n}.weights"])]
    files += [f"{n}.worker.js"] if binding.threads > 1 else []
    kind = {"name": n.lower(), "version": "1.0.0", "type": "module"}
    return json.dumps({**kind, "main": f"{n}.js", "types": f"{n}.d.ts", "files": files}, indent=2) + "\n"


def example(binding: Binding) -> str:
    """The text of example.mjs: a call on files of inputs, or on zeros."""
    n = binding.name
    sizes = ", ".join(
        f"{s.identifier}: Number(process.argv[{k + 3}] ?? {s.spec.hi})" for k, s in enumerate(binding.sizes)
    )
    inputs = ", ".join(f"'{a.identifier}'" for a in binding.inputs)
    outputs = ", ".join(f"'{a.identifier}'" for a in binding.outputs)
    return f"""\
// Runs {n} once: `node example.mjs FOLDER DIMENSIONS`. Inputs are FOLDER/NAME.bin where there are such files, else
// zeros; outputs are written there.
import {{ existsSync, readFileSync, writeFileSync }} from 'node:fs';
import {{ load }} from './{n}.js';

const folder = process.argv[2] ?? '.';
const model = await load();
for (const name of [{inputs}]) {{
  const path = `${{folder}}/${{name}}.bin`;
  const place = model.view(name);
  const bytes = new Uint8Array(place.buffer, place.byteOffset, place.byteLength);
  if (existsSync(path)) bytes.set(readFileSync(path));
}}
const result = model.run({{}}, {{ {sizes} }});
for (const name of [{outputs}]) writeFileSync(`${{folder}}/${{name}}.bin`, result[name]);
console.log('done');
"""


def texts(binding: Binding, needs: Sequence[str], embedded: bool, heap: int) -> dict[str, str]:
    """All text files of a bundle for the web, by name; `needs` are functions of libm that the module imports. For
    `embedded` and `heap` see `_load`."""
    n = binding.name
    result = {
        f"{n}.js": javascript(binding, needs, embedded, heap),
        f"{n}.d.ts": types(binding),
        "package.json": package(binding, embedded),
        "example.mjs": example(binding),
    }
    if binding.threads > 1:
        result[f"{n}.worker.js"] = web_threads.worker(binding, {name: MATH[name] for name in needs})
    return result
