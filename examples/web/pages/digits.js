import { load } from './digits/digits.js';
import { picture } from './pen.js';

const model = await load();
const paper = document.getElementById('paper'), pen = paper.getContext('2d');
const seen = document.getElementById('seen').getContext('2d');
let strokes = [];

document.getElementById('bars').innerHTML = Array.from({ length: 10 }, (_, digit) =>
  `<div class="bar"><span>${digit}</span><i></i><span></span></div>`).join('');
const bars = document.querySelectorAll('.bar');

/** Draws the strokes, asks the network, shows what it says. */
function show() {
  pen.clearRect(0, 0, 280, 280);
  pen.lineWidth = 18;
  pen.lineCap = pen.lineJoin = 'round';
  for (const stroke of strokes) {
    pen.beginPath();
    for (const [x, y] of [stroke[0], ...stroke]) pen.lineTo(x, y);
    pen.stroke();
  }
  const given = picture(strokes);
  for (let k = 0; k < 64; ++k) {
    seen.fillStyle = `rgb(${Array(3).fill(Math.round(255 * (1 - given[k]))).join(' ')})`;
    seen.fillRect((k % 8) * 10, (k >> 3) * 10, 10, 10);
  }
  const { likely } = model.run({ picture: given });
  const best = likely.indexOf(Math.max(...likely));
  document.getElementById('answer').textContent = strokes.length ? best : '';
  bars.forEach((bar, digit) => {
    bar.classList.toggle('best', strokes.length > 0 && digit === best);
    bar.children[1].style.width = `${strokes.length ? 100 * likely[digit] : 0}%`;
    bar.children[2].textContent = strokes.length ? `${(100 * likely[digit]).toFixed(1)} %` : '';
  });
  window.shown = { picture: Array.from(given), likely: Array.from(likely), best };
}

paper.addEventListener('pointerdown', (event) => {
  paper.setPointerCapture(event.pointerId);
  strokes.push([[event.offsetX, event.offsetY]]);
  show();
});
paper.addEventListener('pointermove', (event) => {
  if (!event.buttons || strokes.length === 0) return;
  strokes.at(-1).push([event.offsetX, event.offsetY]);
  show();
});
document.getElementById('clear').addEventListener('click', () => {
  strokes = [];
  show();
});

for (let k = 0; k < 2000; ++k) model.call(); // browsers compile again what is called often
const calls = 2000, start = performance.now();
for (let k = 0; k < calls; ++k) model.call();
const microseconds = (1000 * (performance.now() - start)) / calls;
const bytes = (await (await fetch('./digits/digits.wasm')).arrayBuffer()).byteLength;
document.getElementById('facts').textContent =
  `A module of ${(bytes / 1000).toFixed(1)} kB; one call takes ${microseconds.toFixed(2)} µs.`;
window.measured = { bytes, microseconds };
show();
