"""JavaScript of a bundle for the web whose calls have several threads.

    NAME.js           makes memory that threads share, an instance of its own, and starts the workers
    NAME.worker.js    a worker: an instance on the same memory, which waits in `tw_worker` for calls

Workers are those of Node (`worker_threads`) or of the browser. The pool is that of `runtime/threads.py`. In browsers
shared memory needs a page that is isolated (two headers of its server); in others `load` starts no worker.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.bundle.binding import Binding
from tilewright.native.wasm import PAGE, STACK

ENTRIES = ("tw_worker", "tw_pool_started")
"""Functions that a module with a thread pool exports besides its own."""
OFFER = "sched_yield"
"""The function that the pool calls to yield its core."""
_WAITING = "() => Number(Atomics.wait(cell, 0, Atomics.load(cell, 0), 0.02) === 'ok')"


def worker(binding: Binding, imports: Mapping[str, str]) -> str:
    """The text of NAME.worker.js; `imports` are JavaScript's functions by the names of the module's imports."""
    environment = ", ".join(["memory", f"{OFFER}", *(f"{name}: {text}" for name, text in imports.items())])
    return f"""\
// A thread of {binding.name}: an instance of its module that waits for work. `load` of {binding.name}.js starts it.
async function begin({{ module, memory, index }}, post) {{
  const cell = new Int32Array(memory.buffer, 0, 1);
  const {OFFER} = {_WAITING};
  const {{ exports }} = await WebAssembly.instantiate(module, {{ env: {{ {environment} }} }});
  exports.stack.value = (index + 1) * {STACK};
  post('ready');
  exports.tw_worker(index);
}}

if (typeof process === 'object' && process.versions?.node) {{
  import('node:worker_threads').then(({{ parentPort }}) => {{
    parentPort.once('message', (given) => begin(given, (said) => parentPort.postMessage(said)));
  }});
}} else {{
  self.onmessage = (event) => begin(event.data, (said) => self.postMessage(said));
}}
"""


def load(binding: Binding, imports: Mapping[str, str], heap: int, nbytes: int, update: str) -> str:
    """The JavaScript text of `load` in NAME.js, and of the functions that start workers.

    Args:
        imports: JavaScript text by the name of each function that the module imports.
        heap: the address at which the caller's memory begins.
        nbytes: of that memory.
        update: the expression of the raw weights.
    """
    n = binding.name
    environment = ", ".join(["memory", f"{OFFER}", *(f"{name}: {text}" for name, text in imports.items())])
    pages = -(-(heap + nbytes) // PAGE)
    return f"""\
const THREADS = {binding.threads};

/** A worker of browsers or of Node, once it waits for work. */
async function started(given) {{
  const url = new URL('./{n}.worker.js', import.meta.url);
  if (typeof process === 'object' && process.versions?.node) {{
    const worker = new (await import('node:worker_threads')).Worker(url);
    await new Promise((ready, failed) => worker.once('message', ready).once('error', failed).postMessage(given));
    worker.unref();
    return worker;
  }}
  const worker = new Worker(new URL('./{n}.worker.js', import.meta.url), {{ type: 'module' }});
  await new Promise((ready, failed) => {{
    worker.onmessage = ready;
    worker.onerror = (event) => failed(new Error(`{n}.worker.js: ${{event.message}}`));
    worker.postMessage(given);
  }});
  return worker;
}}

/**
 * Loads the module and its weights, and starts workers. `files` may hold their bytes and the number of threads, the
 * caller's among them: {{ module, weights, threads }}. A page that is not isolated has one thread.
 */
export async function load(files = {{}}) {{
  const most = globalThis.crossOriginIsolated === false ? 1 : globalThis.navigator?.hardwareConcurrency ?? THREADS;
  const threads = Math.max(1, Math.min(THREADS, files.threads ?? most));
  const module = await WebAssembly.compile(files.module ?? (await fetched('{n}.wasm')));
  const memory = new WebAssembly.Memory({{ initial: {pages}, maximum: {pages}, shared: true }});
  const cell = new Int32Array(memory.buffer, 0, 1);
  // The thread of a page may not wait.
  const {OFFER} = typeof document === 'undefined' ? {_WAITING} : () => 0;
  const instance = await WebAssembly.instantiate(module, {{ env: {{ {environment} }} }});
  instance.exports.fill();
  const model = new Model(instance);
  for (let index = 1; index < threads; index++) model.workers.push(await started({{ module, memory, index }}));
  instance.exports.tw_pool_started(BigInt(model.workers.length));
  model.update({update});
  return model;
}}
"""


__all__ = ["ENTRIES", "OFFER", "load", "worker"]
