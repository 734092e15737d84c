"""A bundle's texts in Rust: a module around the functions, and an example."""

from __future__ import annotations

from tilewright.bundle.binding import ALIGNMENT, Array, Binding
from tilewright.bundle.c import notes, numbers, offsets
from tilewright.bundle.cpp import elements
from tilewright.codegen.c.helpers import MEMORY_TYPES

_TYPES = {"float": "f32", "double": "f64", "bool": "bool"} | {
    f"{sign}int{bits}_t": f"{'u' if sign else 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


def rust_type(array: Array) -> str:
    """The Rust type of an element."""
    return _TYPES[MEMORY_TYPES[array.dtype.name]]


def module(binding: Binding, embedded: bool) -> str:
    """The text of a bundle's Rust module, NAME.rs; `embedded` says that the program's object contains the weights, so
    that the caller passes none."""
    parts = ["Constants", "Workspace", "Activations", *(["State"] if binding.state else [])]
    lines = [
        f"//! {binding.name}: a model made by Tilewright. Link the program with {binding.name}.o.",
        "//!",
        *(f"//!   {note}" for note in notes(binding)),
        "#![allow(dead_code)]",
        "",
        *(f"pub const {name}: usize = {number};" for name, number in (numbers(binding) | offsets(binding)).items()),
        "",
    ]
    for part in (*parts, *([] if embedded else ["Weights"])):
        lines += [f"#[repr(C, align({ALIGNMENT}))]", f"pub struct {part}(pub [u8; {part.upper()}_BYTES]);", ""]
    lines += [
        "/// Memory of zeros for one of the above, which are too large for a stack.",
        "pub fn zeroed<T>() -> Box<T> {",
        "    let layout = std::alloc::Layout::new::<T>();",
        "    unsafe {",
        "        let memory = std::alloc::alloc_zeroed(layout) as *mut T;",
        "        if memory.is_null() {",
        "            std::alloc::handle_alloc_error(layout)",
        "        }",
        "        Box::from_raw(memory)",
        "    }",
        "}",
        "",
        'extern "C" {',
        f"    fn {binding.name}_prepare(constants: *mut u8, weights: *const u8, workspace: *mut u8) -> i32;",
        f"    fn {binding.name}_run({', '.join(_foreign(binding))}) -> i32;",
        *([f"    static {binding.name}_weights: [u8; WEIGHTS_BYTES];"] if embedded else []),
        "}",
        "",
        *(_own_weights(binding) if embedded else []),
        "/// # Safety",
        "/// `weights` are WEIGHTS_BYTES at a multiple of ALIGNMENT, and stay where WEIGHTS_STAY is 1.",
        "pub unsafe fn prepare(constants: &mut Constants, weights: *const u8, workspace: &mut Workspace) -> i32 {",
        f"    {binding.name}_prepare(constants.0.as_mut_ptr(), weights, workspace.0.as_mut_ptr())",
        "}",
        "",
        *_run(binding),
    ]
    return "\n".join(lines) + "\n"


def _own_weights(binding: Binding) -> list[str]:
    return [
        "/// The weights that are in the object.",
        "pub fn weights() -> *const u8 {",
        f"    unsafe {{ {binding.name}_weights.as_ptr() }}",
        "}",
        "",
    ]


def _foreign(binding: Binding) -> list[str]:
    result = ["constants: *const u8", "activations: *mut u8", *(["state: *mut u8"] if binding.state else [])]
    result += [f"{s.identifier}: i64" for s in binding.sizes]
    result += [f"{a.identifier}: *const {rust_type(a)}" for a in binding.inputs]
    result += [f"{a.identifier}: *mut {rust_type(a)}" for a in binding.outputs]
    return result + (["extents: *mut i64"] if binding.extents else [])


def _run(binding: Binding) -> list[str]:
    arguments = ["constants: &Constants", "activations: &mut Activations"]
    arguments += ["state: &mut State"] if binding.state else []
    arguments += [f"{s.identifier}: i64" for s in binding.sizes]
    arguments += [f"{a.identifier}: &[{rust_type(a)}]" for a in binding.inputs]
    arguments += [f"{a.identifier}: &mut [{rust_type(a)}]" for a in binding.outputs]
    arguments += ["extents: &mut [i64; EXTENTS]"] if binding.extents else []
    passed = [
        "constants.0.as_ptr()",
        "activations.0.as_mut_ptr()",
        *(["state.0.as_mut_ptr()"] if binding.state else []),
    ]
    passed += [s.identifier for s in binding.sizes] + [f"{a.identifier}.as_ptr()" for a in binding.inputs]
    passed += [f"{a.identifier}.as_mut_ptr()" for a in binding.outputs]
    passed += ["extents.as_mut_ptr()"] if binding.extents else []
    refused = [f"{s.identifier} < 0" for s in binding.sizes]
    for a in (*binding.inputs, *binding.outputs):
        count = elements(binding, a)
        refused.append(f"{a.identifier}.len() < {count if count.isdigit() else f'({count}) as usize'}")
    return [
        "/// Computes; slices that are too short are refused.",
        "#[allow(clippy::too_many_arguments)]",
        "pub fn run(",
        *(f"    {g}," for g in arguments),
        ") -> i32 {",
        *(line for r in refused for line in (f"    if {r} {{", "        return BAD_SIZE as i32;", "    }")),
        f"    unsafe {{ {binding.name}_run({', '.join(passed)}) }}",
        "}",
    ]


def example(binding: Binding, embedded: bool) -> str:
    """The text of main.rs: a call on files of inputs, or on zeros. The weights are in the object if `embedded`, else in
    a file."""
    n = binding.name
    arrays = (*binding.inputs, *binding.outputs)
    lines = [
        f"// Runs {n} once: rustc -O main.rs -C link-arg={n}.o && ./main FOLDER DIMENSIONS",
        "// Inputs are FOLDER/NAME.bin where there are such files, else zeros; outputs are written there.",
        f"mod {n};",
        "use std::mem::size_of_val;",
        "",
        "fn bytes<T>(values: &mut [T]) -> &mut [u8] {",
        "    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr() as *mut u8, size_of_val(values)) }",
        "}",
        "",
        "fn input<T>(folder: &str, name: &str, values: &mut [T]) {",
        '    if let Ok(result) = std::fs::read(format!("{folder}/{name}.bin")) {',
        "        let count = result.len().min(size_of_val(values));",
        "        bytes(values)[..count].copy_from_slice(&result[..count]);",
        "    }",
        "}",
        "",
        "fn main() {",
        "    let arguments: Vec<String> = std::env::args().collect();",
        "    let folder = arguments.get(1).cloned().unwrap_or_default();",
    ]
    for k, s in enumerate(binding.sizes):
        most = f"{n}::{s.identifier.upper()}_MAX as i64"
        lines.append(f"    let {s.identifier} = arguments.get({k + 2}).map_or({most}, |t| t.parse().unwrap());")
    for part in ("Constants", "Workspace", "Activations", *(["State"] if binding.state else [])):
        lines.append(f"    let mut {part.lower()} = {n}::zeroed::<{n}::{part}>();")
    if embedded:
        lines.append(f"    let at = {n}::weights();")
    else:
        lines += [
            f"    let mut weights = {n}::zeroed::<{n}::Weights>();",
            f'    weights.0.copy_from_slice(&std::fs::read("{n}.weights").unwrap());',
            "    let at = weights.0.as_ptr();",
        ]
    lines.append(f"    let status = unsafe {{ {n}::prepare(&mut constants, at, &mut workspace) }};")
    lines.append(f"    assert_eq!(status, {n}::OK as i32);")
    for a in arrays:
        zero = "false" if rust_type(a) == "bool" else f"0 as {rust_type(a)}"
        lines.append(f"    let mut {a.identifier} = vec![{zero}; {n}::{a.identifier.upper()}_ELEMENTS];")
    lines += [f'    input(&folder, "{a.identifier}", &mut {a.identifier});' for a in binding.inputs]
    lines += [f"    let mut extents = [0i64; {n}::EXTENTS];"] if binding.extents else []
    inputs = ["&constants", "&mut activations", *(["&mut state"] if binding.state else [])]
    inputs += [s.identifier for s in binding.sizes] + [f"&{a.identifier}" for a in binding.inputs]
    inputs += [f"&mut {a.identifier}" for a in binding.outputs] + (["&mut extents"] if binding.extents else [])
    lines += [f"    let status = {n}::run({', '.join(inputs)});", f"    assert_eq!(status, {n}::OK as i32);"]
    for a in binding.outputs:
        lines.append(
            f'    let _ = std::fs::write(format!("{{folder}}/{a.identifier}.bin"), bytes(&mut {a.identifier}));'
        )
    lines += ['    println!("done");', "}"]
    return "\n".join(lines) + "\n"
