"""A bundle's texts in C++: a typed header around the one in C, and an example."""

from __future__ import annotations

from tilewright.bundle.binding import Array, Binding
from tilewright.bundle.c import c_type, notes
from tilewright.bundle.glue import STATUS

_VIEW = """\
/// Memory of some elements: an array, a std::vector, a std::array, or an address and a number.
template <class T>
struct View {
    T *data;
    std::size_t size;
    View(T *first, std::size_t count) : data(first), size(count) {}
    template <std::size_t N>
    View(T (&array)[N]) : data(array), size(N) {}
    template <class C, class = decltype(std::declval<C &>().data())>
    View(C &container) : data(container.data()), size(container.size()) {}
};
"""


def header(binding: Binding) -> str:
    """The text of a bundle's C++ header, NAME.hpp."""
    n, upper = binding.name, binding.name.upper()
    parts = {"Constants": "CONSTANTS", "Workspace": "WORKSPACE", "Activations": "ACTIVATIONS"}
    parts |= {"State": "STATE"} if binding.state is not None else {}
    memory = [
        f"struct alignas({upper}_ALIGNMENT) {kind} {{\n    unsigned char bytes[{upper}_{part}_BYTES];\n}};"
        for kind, part in parts.items()
    ]
    names = ", ".join(f"{s.lower()} = {upper}_{s}" for s in STATUS)
    lines = [
        f"// {n}: types around {n}.h.",
        "//",
        *(f"//   {note}" for note in notes(binding)),
        "#pragma once",
        "",
        "#include <cstddef>",
        "#include <cstdint>",
        "#include <utility>",
        "",
        f'#include "{n}.h"',
        "",
        f"namespace {n} {{",
        "",
        f"enum class Status : int {{ {names} }};",
        "",
        *memory,
        "",
        _VIEW,
        "inline Status prepare(Constants &constants, const void *weights, Workspace &workspace) {",
        f"    return static_cast<Status>({n}_prepare(constants.bytes, weights, workspace.bytes));",
        "}",
        "",
        *_run(binding),
        "",
        f"}}  // namespace {n}",
    ]
    return "\n".join(lines) + "\n"


def _run(binding: Binding) -> list[str]:
    inputs = ["const Constants &constants", "Activations &activations", *(["State &state"] if binding.state else [])]
    inputs += [f"std::int64_t {s.identifier}" for s in binding.sizes]
    inputs += [f"View<const {c_type(a)}> {a.identifier}" for a in binding.inputs]
    inputs += [f"View<{c_type(a)}> {a.identifier}" for a in binding.outputs]
    inputs += ["View<std::int64_t> extents"] if binding.extents else []
    passed = ["constants.bytes", "activations.bytes", *(["state.bytes"] if binding.state else [])]
    passed += [s.identifier for s in binding.sizes] + [
        f"{a.identifier}.data" for a in (*binding.inputs, *binding.outputs)
    ]
    passed += ["extents.data"] if binding.extents else []
    checks = [f"{a.identifier}.size < static_cast<std::size_t>({elements(binding, a)})" for a in _arrays(binding)]
    checks += [f"extents.size < {binding.name.upper()}_EXTENTS"] if binding.extents else []
    negative = [f"{s.identifier} < 0" for s in binding.sizes]
    return [
        "/// Computes; views that are too short are refused.",
        "inline Status run(",
        *(f"    {g}," for g in inputs[:-1]),
        f"    {inputs[-1]}) {{",
        *(f"    if ({c}) return Status::bad_size;" for c in (*negative, *checks)),
        f"    return static_cast<Status>({binding.name}_run({', '.join(passed)}));",
        "}",
    ]


def _arrays(binding: Binding) -> tuple[Array, ...]:
    return (*binding.inputs, *binding.outputs)


def elements(binding: Binding, array: Array) -> str:
    """The number of elements of an array as an expression of a call's dimensions; where these do not determine it, its
    largest value."""
    known = {s.spec.name: s.identifier for s in binding.sizes}
    if all(isinstance(d, int) or d in known for d in array.shape) and array.is_open:
        return " * ".join(str(d) if isinstance(d, int) else known[d] for d in array.shape)
    return str(array.elements)


def example(binding: Binding, embedded: bool) -> str:
    """The text of main.cpp: a call on files of inputs, or on zeros. The weights are in the object if `embedded`, else
    in a file."""
    n, upper = binding.name, binding.name.upper()
    usage = " ".join(["main", "FOLDER", *(s.identifier.upper() for s in binding.sizes)])
    parts = ["Constants", "Workspace", "Activations", *(["State"] if binding.state else [])]
    lines = [
        f"// Runs {n} once: `{usage}`, where each argument may be left out with those after it.",
        "// Inputs are FOLDER/NAME.bin where there are such files, else zeros; outputs are written there.",
        "#include <cstdlib>",
        "#include <fstream>",
        "#include <iostream>",
        "#include <memory>",
        "#include <string>",
        "#include <vector>",
        "",
        f'#include "{n}.hpp"',
        "",
        f"struct alignas({upper}_ALIGNMENT) Weights {{\n    char bytes[{upper}_WEIGHTS_BYTES + 1];\n}};",
        "",
        "int main(int argc, char **argv) {",
        '    const std::string folder = argc > 1 ? argv[1] : "";',
        *(f"    const auto {p.lower()} = std::make_unique<{n}::{p}>();" for p in parts),
    ]
    for k, s in enumerate(binding.sizes):
        most = f"{upper}_{s.identifier.upper()}_MAX"
        lines.append(f"    const std::int64_t {s.identifier} = argc > {k + 2} ? std::atoll(argv[{k + 2}]) : {most};")
    source = f"{n}_weights"
    if not embedded:
        source = "weights->bytes"
        lines += [
            "    const auto weights = std::make_unique<Weights>();",
            f'    std::ifstream file("{n}.weights", std::ios::binary);',
            f"    if (!file.read(weights->bytes, {upper}_WEIGHTS_BYTES)) return 2;",
        ]
    lines.append(f"    if ({n}::prepare(*constants, {source}, *workspace) != {n}::Status::ok) return 3;")
    for a in _arrays(binding):
        lines.append(
            f"    auto {a.identifier} = std::make_unique<{c_type(a)}[]>({upper}_{a.identifier.upper()}_ELEMENTS);"
        )
    for a in binding.inputs:
        lines.append(
            f'    std::ifstream(folder + "/{a.identifier}.bin", std::ios::binary)'
            f".read(reinterpret_cast<char *>({a.identifier}.get()), {a.nbytes});"
        )
    lines += ["    std::vector<std::int64_t> extents(" + f"{upper}_EXTENTS);"] if binding.extents else []
    arguments = [
        "*constants",
        "*activations",
        *(["*state"] if binding.state else []),
        *(s.identifier for s in binding.sizes),
    ]
    for a in _arrays(binding):
        const = "const " if a in binding.inputs else ""
        arguments.append(
            f"{n}::View<{const}{c_type(a)}>({a.identifier}.get(), {upper}_{a.identifier.upper()}_ELEMENTS)"
        )
    arguments += ["extents"] if binding.extents else []
    lines += [
        f"    const auto status = {n}::run(",
        *(f"        {g}," for g in arguments[:-1]),
        f"        {arguments[-1]});",
    ]
    lines.append(f"    if (status != {n}::Status::ok) return 4;")
    for a in binding.outputs:
        lines.append(
            f'    std::ofstream(folder + "/{a.identifier}.bin", std::ios::binary)'
            f".write(reinterpret_cast<const char *>({a.identifier}.get()), {a.nbytes});"
        )
    lines += ['    std::cout << "done\\n";', "    return 0;", "}"]
    return "\n".join(lines) + "\n"
