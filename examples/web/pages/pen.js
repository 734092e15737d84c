// Pictures of 8x8 as the digits of the training set are made (Alpaydin and Kaynak, 1998): the strokes fill a field of
// 32x32, each pixel of the result is the share of its 4x4 that is covered by ink.

const FIELD = 32, PEN = 2.7, ROOM = FIELD - 2 * PEN;

/** Strokes, each a list of points [x, y], as 64 numbers from 0 to 1. */
export function picture(strokes) {
  const result = new Float32Array(64);
  const points = strokes.flat();
  if (points.length === 0) return result;
  const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const scale = ROOM / Math.max(right - left, bottom - top, 1);
  const place = ([x, y]) => [
    FIELD / 2 + (x - (left + right) / 2) * scale,
    FIELD / 2 + (y - (top + bottom) / 2) * scale,
  ];
  const segments = strokes.flatMap((stroke) => {
    const placed = stroke.map(place);
    return placed.map((point, k) => [placed[Math.max(k - 1, 0)], point]);
  });
  for (let y = 0; y < FIELD; ++y)
    for (let x = 0; x < FIELD; ++x)
      if (segments.some(([a, b]) => distance(x + 0.5, y + 0.5, a, b) <= PEN)) result[(y >> 2) * 8 + (x >> 2)] += 1 / 16;
  return result;
}

/** From a point to a segment. */
function distance(x, y, [ax, ay], [bx, by]) {
  const dx = bx - ax, dy = by - ay, length = dx * dx + dy * dy;
  const along = length === 0 ? 0 : Math.min(Math.max(((x - ax) * dx + (y - ay) * dy) / length, 0), 1);
  return Math.hypot(x - ax - along * dx, y - ay - along * dy);
}
