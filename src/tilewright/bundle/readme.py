"""A bundle's README: what is in it, how it is built and called."""

from __future__ import annotations

from tilewright.bundle.binding import Binding
from tilewright.bundle.c import about, about_size, arguments, notes
from tilewright.bundle.glue import STATUS

BUILDS = {
    "c": "cc -O2 main.c {objects} {libraries} -o main",
    "cpp": "c++ -std=c++17 -O2 main.cpp {objects} {libraries} -o main",
    "rust": "rustc -O main.rs {linked} -o main",
}


def readme(binding: Binding, lang: str, cpu: str, objects: list[str], libraries: list[str]) -> str:
    """The text of README.md in a bundle with an example in the language `lang` ("c", "cpp" or "rust") for the processor
    `cpu`. It tells how to link the files `objects` and the libraries `libraries`."""
    n, upper = binding.name, binding.name.upper()
    build = BUILDS[lang].format(
        objects=" ".join(objects),
        libraries=" ".join(f"-l{x}" for x in libraries),
        linked=" ".join(f"-C link-arg={x}" for x in (*objects, *(f"-l{x}" for x in libraries))),
    )
    memory = {
        "weights": (
            binding.weight_bytes,
            "raw weights; as long as calls are made" if binding.keeps_weights else "raw weights",
        ),
        "constants": (binding.constant_bytes, f"what `{n}_prepare` writes and calls read"),
        "workspace": (binding.workspace_bytes, f"during `{n}_prepare`"),
        "activations": (binding.activations.nbytes, "during a call; one for each call at a time"),
    }
    if binding.state is not None:
        memory["state"] = binding.state.nbytes, f"a sequence of at most {binding.state.capacity} rows"
    rows = [f"| {k} | {count} | `{upper}_{k.upper()}_BYTES` | {what} |" for k, (count, what) in memory.items()]
    return (
        "\n".join(
            [
                f"# {n}",
                "",
                f"A model as an object for {cpu}, made by Tilewright. It has no heap, starts no threads, and needs of",
                "the C library nothing but functions of memory and of libm.",
                "",
                "```",
                *build.splitlines(),
                "./main            # or: ./main FOLDER, with FOLDER/NAME.bin for inputs and outputs",
                "```",
                "",
                "```c",
                f"int {n}_prepare(void *constants, const void *weights, void *workspace);",
                f"int {n}_run({', '.join(arguments(binding))});",
                "```",
                "",
                *(f"* {note}" for note in notes(binding)),
                "",
                "All of this memory is yours and begins at a multiple of 64:",
                "",
                "| memory | bytes | in the header | what for |",
                "|---|---|---|---|",
                *rows,
                "",
                "| a call gives | |",
                "|---|---|",
                *(f"| {number} `{upper}_{name}` | {what} |" for name, (number, what) in STATUS.items()),
            ]
        )
        + "\n"
    )


_THREADS = (
    "",
    "A call has several threads, as many as `load({ threads })` says. In browsers they need a page whose server sends",
    "`Cross-Origin-Opener-Policy: same-origin` and `Cross-Origin-Embedder-Policy: require-corp`; others have one.",
)


def web_readme(binding: Binding, features: str) -> str:
    """The text of README.md of a module of WebAssembly, which needs the `features` of WebAssembly, a text for
    people."""
    n = binding.name
    inputs = ", ".join(a.identifier for a in binding.inputs)
    sizes = ", ".join(f"{s.identifier}: {s.spec.hi}" for s in binding.sizes)
    values = f"{{ {inputs} }}" + (f", {{ {sizes} }}" if sizes else "")
    lines = [
        f"# {n}",
        "",
        f"A model as WebAssembly ({features}), made by Tilewright. `npm install` this folder, or serve its files.",
        "",
        "```js",
        f"import {{ load }} from './{n}.js';",
        "",
        "const model = await load();",
        f"const {{ {', '.join(a.identifier for a in binding.outputs)} }} = model.run({values});  // typed arrays",
        "model.update(weights);  // new raw weights, in the order of the file",
        "```",
        *(_THREADS if binding.threads > 1 else []),
        "",
        "`node example.mjs FOLDER` reads FOLDER/NAME.bin for each input and writes the outputs there.",
        "",
        *(f"* {about_size(s)}" for s in binding.sizes),
        *(f"* {about(a, False)}" for a in binding.inputs),
        *(f"* {about(a, True)}" for a in binding.outputs),
    ]
    return "\n".join(lines) + "\n"
