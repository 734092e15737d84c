"""A bundle's texts in C: the header, an example, what CMake needs."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.bundle.binding import ALIGNMENT, Array, Binding, Size
from tilewright.bundle.glue import STATUS
from tilewright.codegen.c.header import framed, prototype
from tilewright.codegen.c.helpers import MEMORY_TYPES
from tilewright.ir.dtype import bf16, f16


def numbers(binding: Binding) -> dict[str, int]:
    """The constants that a caller must know, by the end of their names, which all languages put after the program's
    own."""
    result = {
        "ALIGNMENT": ALIGNMENT,
        "WEIGHTS_BYTES": binding.weight_bytes,
        "WEIGHTS_STAY": int(binding.keeps_weights),
        "CONSTANTS_BYTES": binding.constant_bytes,
        "WORKSPACE_BYTES": binding.workspace_bytes,
        "ACTIVATIONS_BYTES": binding.activations.nbytes,
    }
    if binding.state is not None:
        result |= {"STATE_BYTES": binding.state.nbytes, "STATE_ROWS": binding.state.capacity}
    for size in binding.sizes:
        result |= {f"{size.identifier.upper()}_MIN": size.spec.lo, f"{size.identifier.upper()}_MAX": size.spec.hi}
    for array in (*binding.inputs, *binding.outputs):
        result[f"{array.identifier.upper()}_ELEMENTS"] = array.elements
    if binding.extents:
        result["EXTENTS"] = len(binding.extents)
    return result | {name: number for name, (number, _) in STATUS.items()}


def offsets(binding: Binding) -> dict[str, int]:
    """The offset of each raw weight in the file of weights, by the upper-case name of the weight."""
    return {f"AT_{w.identifier}": w.offset for w in binding.weights}


def abouts(binding: Binding) -> list[str]:
    """A description of each raw weight in words: its type and name."""
    return [f"{w.spec.dtype}[{', '.join(map(str, w.spec.shape))}] {_one_line(w.spec.name)}" for w in binding.weights]


def arguments(binding: Binding) -> list[str]:
    """The parameters, in C, of the function `NAME_run` of a bundle."""
    result = ["const void *constants", "void *activations"]
    result += ["void *state"] if binding.state is not None else []
    result += [f"int64_t {s.identifier}" for s in binding.sizes]
    result += [f"const {c_type(a)} *{a.identifier}" for a in binding.inputs]
    result += [f"{c_type(a)} *{a.identifier}" for a in binding.outputs]
    return result + (["int64_t *extents"] if binding.extents else [])


def c_type(array: Array) -> str:
    """The C type of an element of an array."""
    return MEMORY_TYPES[array.dtype.name]


def about(array: Array, written: bool) -> str:
    """A description of an array argument, for comments; `written`: it is an output."""
    shape = f"[{_one_line(', '.join(map(str, array.shape)))}]" if array.shape else ", a single number"
    bits = f", the bits of {array.dtype}" if array.dtype in (f16, bf16) or array.dtype.bits < 8 else ""
    label = "" if array.identifier == array.name else f' ("{_one_line(array.name)}")'
    return f"{array.identifier}{label}: {array.dtype}{shape}{bits}, {'written' if written else 'read'}"


def about_size(size: Size) -> str:
    """A description of a dimension: a number or a range."""
    s = size.spec
    multiple = "" if s.multiple == 1 else f", a multiple of {s.multiple}"
    return f"{size.identifier}: {s.lo} to {s.hi}{multiple}"


def _one_line(text: str) -> str:
    """`text` with all characters replaced that would end a comment or its line."""
    return "".join(c if c.isprintable() and c not in '*\\"' else "_" for c in text)


def notes(binding: Binding) -> list[str]:
    """The notes for callers, a line each."""
    n = binding.name
    result = [
        f"{n}_prepare packs raw weights into constants; call it again for new weights. workspace is needed during it.",
        f"{n}_run computes; calls with activations of their own may run at the same time.",
    ]
    if binding.keeps_weights:
        result.append("Calls read some weights where they are: keep the weights as long as the constants.")
    if binding.state is not None:
        result.append("state begins with the number of rows that it has, an int64_t: 0 begins a sequence.")
    if binding.extents:
        result.append(
            f"extents are told: {', '.join(map(_one_line, binding.extents))}; outputs are dense at their beginning."
        )
    result += [about_size(s) for s in binding.sizes]
    result += [about(a, False) for a in binding.inputs] + [about(a, True) for a in binding.outputs]
    return result


def header(binding: Binding, cpu: str, embedded: bool) -> str:
    """The text of a bundle's C header, NAME.h, for the processor `cpu`; it declares the weights if the object has them
    (`embedded`)."""
    upper = binding.name.upper()
    defines = [f"#define {upper}_{name} {number}" for name, number in numbers(binding).items()]
    places = [
        f"#define {upper}_{name} {at} /* {what} */"
        for (name, at), what in zip(offsets(binding).items(), abouts(binding), strict=True)
    ]
    prototypes = [
        prototype("int", f"{binding.name}_prepare", ["void *constants", "const void *weights", "void *workspace"]),
        prototype("int", f"{binding.name}_run", arguments(binding)),
    ]
    if embedded:
        prototypes.insert(0, f"extern const unsigned char {binding.name}_weights[{upper}_WEIGHTS_BYTES];")
    title = f"{binding.name}: a model made by Tilewright for {cpu}."
    what = f"{title} Arguments share no memory; arrays are dense, row by row."
    dtypes = [a.dtype for a in (*binding.inputs, *binding.outputs)]
    separate = ["", "/* Where raw weights begin in the weights. */", *places, ""] if places else [""]
    return framed(binding.name, what, notes(binding), [*defines, *separate, *prototypes], dtypes)


def example(binding: Binding, embedded: bool) -> str:
    """The text of main.c: a call on files of inputs, or on zeros. The weights are in the object if `embedded`, else in
    a file."""
    n, upper = binding.name, binding.name.upper()
    usage = " ".join(["main", "FOLDER", *(s.identifier.upper() for s in binding.sizes)])
    lines = [
        f"/* Runs {n} once: `{usage}`, where each argument may be left out with those after it.",
        " * Inputs are FOLDER/NAME.bin where there are such files, else zeros; outputs are written there. */",
        "#include <stdio.h>",
        "#include <stdlib.h>",
        "#include <string.h>",
        f'#include "{n}.h"',
        "",
    ]
    if not embedded:
        lines.append(f"static _Alignas({upper}_ALIGNMENT) unsigned char weights[{upper}_WEIGHTS_BYTES + 1];")
    memory = ["constants", "workspace", "activations", *(["state"] if binding.state is not None else [])]
    lines += [f"static _Alignas({upper}_ALIGNMENT) unsigned char {m}[{upper}_{m.upper()}_BYTES];" for m in memory]
    for a in (*binding.inputs, *binding.outputs):
        lines.append(f"static {c_type(a)} {a.identifier}[{upper}_{a.identifier.upper()}_ELEMENTS + 1];")
    lines += _files(n, embedded)
    lines += ["", "int main(int argc, char **argv) {", "    const char *folder = argc > 1 ? argv[1] : NULL;"]
    for k, s in enumerate(binding.sizes):
        most = f"{upper}_{s.identifier.upper()}_MAX"
        lines.append(f"    const int64_t {s.identifier} = argc > {k + 2} ? atoll(argv[{k + 2}]) : {most};")
    if binding.extents:
        lines.append(f"    int64_t extents[{upper}_EXTENTS];")
    source = f"{n}_weights" if embedded else "weights"
    if not embedded:
        lines.append(f'    if (bytes_of("{n}.weights", weights, {upper}_WEIGHTS_BYTES) != 0) return 2;')
    lines.append(f"    if ({n}_prepare(constants, {source}, workspace) != {upper}_OK) return 3;")
    for a in binding.inputs:
        lines.append(f'    input(folder, "{a.identifier}", {a.identifier}, sizeof {a.identifier});')
    inputs = ["constants", "activations", *(["state"] if binding.state is not None else [])]
    inputs += [s.identifier for s in binding.sizes] + [a.identifier for a in (*binding.inputs, *binding.outputs)]
    inputs += ["extents"] if binding.extents else []
    lines.append(f"    const int status = {n}_run({', '.join(inputs)});")
    lines.append(f'    if (status != {upper}_OK) return fprintf(stderr, "{n}_run gave %d\\n", status), 4;')
    for a in binding.outputs:
        lines.append(
            f'    output(folder, "{a.identifier}", {a.identifier}, sizeof {a.identifier} - sizeof *{a.identifier});'
        )
    for k, extent in enumerate(binding.extents):
        lines.append(f'    printf("{_one_line(extent)} = %lld\\n", (long long)extents[{k}]);')
    lines += ['    printf("done\\n");', "    return 0;", "}"]
    return "\n".join(lines) + "\n"


def _files(name: str, embedded: bool) -> list[str]:
    """The lines of C of the example's functions that read inputs and write outputs and, unless the weights are
    `embedded`, read these. `name` is the model's name."""
    read = [
        "",
        "static int bytes_of(const char *path, void *memory, size_t count) {",
        '    FILE *file = fopen(path, "rb");',
        "    const size_t got = file == NULL ? 0 : fread(memory, 1, count, file);",
        "    if (file != NULL) fclose(file);",
        "    return file != NULL && got == count ? 0 : 1;",
        "}",
    ]
    return [
        *(read if not embedded else []),
        "",
        "static FILE *opened(const char *folder, const char *name, const char *mode) {",
        "    char path[1024];",
        '    const int length = folder == NULL ? -1 : snprintf(path, sizeof path, "%s/%s.bin", folder, name);',
        "    return length < 0 || (size_t)length >= sizeof path ? NULL : fopen(path, mode);",
        "}",
        "",
        "static void input(const char *folder, const char *name, void *memory, size_t count) {",
        '    FILE *file = opened(folder, name, "rb");',
        "    if (file == NULL || fread(memory, 1, count, file) == 0) memset(memory, 0, count);",
        "    if (file != NULL) fclose(file);",
        "}",
        "",
        "static void output(const char *folder, const char *name, const void *memory, size_t count) {",
        '    FILE *file = opened(folder, name, "wb");',
        "    if (file == NULL) return;",
        '    if (fwrite(memory, 1, count, file) != count) fprintf(stderr, "%s is not whole\\n", name);',
        "    fclose(file);",
        "}",
    ]


def cmake(binding: Binding, objects: Sequence[str], libraries: Sequence[str]) -> str:
    """The text of NAME.cmake: a CMake library that links the bundle's object files and the system's `libraries`."""
    n = binding.name
    files = ";".join(f"${{CMAKE_CURRENT_LIST_DIR}}/{o}" for o in objects)
    link = [*objects_of(files), *libraries]
    return f"""\
# include(path/to/{n}.cmake); target_link_libraries(your_program {n})
add_library({n} INTERFACE)
target_include_directories({n} INTERFACE "${{CMAKE_CURRENT_LIST_DIR}}")
target_link_libraries({n} INTERFACE {" ".join(link)})
"""


def objects_of(files: str) -> list[str]:
    """The paths of objects, joined by ";", in the form that CMake takes."""
    return [f'"{f}"' for f in files.split(";")]
