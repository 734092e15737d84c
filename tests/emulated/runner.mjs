// Serves calls of a module's entries on a pipe, as runner.c does: node runner.mjs MODULE, functions of libm below.
import { readFileSync, readSync, writeSync } from 'node:fs';

const INPUT = 1n, OUTPUT = 2n;
const { instance } = await WebAssembly.instantiate(readFileSync(process.argv[2]), { env: MATH });
const { memory, heap, tw_run, tw_prepare, tw_shapes, tw_control } = instance.exports;

function read(bytes) {
  for (let at = 0; at < bytes.length; ) {
    const count = readSync(0, bytes, at, bytes.length - at);
    if (count === 0) process.exit(0);
    at += count;
  }
  return bytes;
}
const numbers = (count) => new BigInt64Array(read(new Uint8Array(8 * count)).buffer);
function write(bytes) {
  for (let at = 0; at < bytes.length; ) at += writeSync(1, bytes, at, bytes.length - at);
}

for (;;) {
  const [name, limit, dims] = numbers(3);
  const sizes = numbers(Number(dims));
  const [count] = numbers(1);
  const buffers = numbers(2 * Number(count));
  let end = Math.ceil(heap.value / 64) * 64;
  const take = (bytes) => {
    const place = end;
    end += Math.ceil((bytes + 64) / 64) * 64;
    const missing = end - memory.buffer.byteLength;
    if (missing > 0) memory.grow(Math.ceil(missing / 65536));
    return place;
  };
  const control = take(128), given = take(8 * sizes.length), table = take(4 * (Number(count) + 1));
  const places = [];
  for (let k = 0; k < Number(count); ++k) {
    places.push(take(Number(buffers[2 * k])));
    if (buffers[2 * k + 1] & INPUT) {
      const data = read(new Uint8Array(Number(buffers[2 * k])));
      new Uint8Array(memory.buffer).set(data, places[k]);
    }
  }
  new BigInt64Array(memory.buffer, given, sizes.length).set(sizes);
  new Uint32Array(memory.buffer, table, places.length + 1).set([...places, control]);
  new Uint8Array(memory.buffer).fill(0, control, control + 128);
  tw_control(control, limit);
  if (name === 0n) tw_run(table, given, 0n, 1n, 0);
  if (name === 1n) tw_prepare(table, given, 0n, 1n, 0);
  if (name === 2n) tw_shapes(given, places[0]);
  for (let k = 0; k < Number(count); ++k)
    if (buffers[2 * k + 1] & OUTPUT) write(new Uint8Array(memory.buffer, places[k], Number(buffers[2 * k])));
  write(new Uint8Array(memory.buffer, control, 128));
}
