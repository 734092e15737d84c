import { load } from './player/player.js';
import { FRAMES, Game, SIDE } from './game.js';

const PIXELS = SIDE * SIDE, ACTIONS = ['←', '·', '→'];
const model = await load();
const screen = document.getElementById('screen').getContext('2d');
const network = document.getElementById('network');
const image = screen.createImageData(SIDE, SIDE);
const game = new Game(() => [0, 0].map(() => Math.floor(Math.random() * 2 ** 30)));
const frames = model.view('obs'); // the network reads the game's frames where they are
for (let f = 0; f < FRAMES; ++f) game.frame(frames.subarray(f * PIXELS, (f + 1) * PIXELS));

document.getElementById('bars').innerHTML = ACTIONS.map((action) =>
  `<div class="bar"><span>${action}</span><i></i><span></span></div>`).join('');
const bars = document.querySelectorAll('.bar');
const held = new Set();
addEventListener('keydown', (event) => held.add(event.key));
addEventListener('keyup', (event) => held.delete(event.key));

/** The action of the network, and how likely it holds each. */
function asked() {
  model.call();
  const scores = Array.from(model.view('scores')), most = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - most)), sum = powers.reduce((a, b) => a + b);
  return [scores.indexOf(most), powers.map((power) => power / sum)];
}

/** One frame of the game. */
function step() {
  const [action, likely] = asked();
  bars.forEach((bar, k) => {
    bar.classList.toggle('best', k === action);
    bar.children[1].style.width = `${100 * likely[k]}%`;
  });
  game.step(network.checked ? action : 1 + held.has('ArrowRight') - held.has('ArrowLeft'));
  frames.copyWithin(0, PIXELS);
  game.frame(frames.subarray((FRAMES - 1) * PIXELS));
}

function show() {
  for (let k = 0; k < PIXELS; ++k) image.data.set([...Array(3).fill(frames[(FRAMES - 1) * PIXELS + k]), 255], 4 * k);
  screen.putImageData(image, 0, 0);
  document.getElementById('score').textContent = `${game.caught} of ${game.balls} caught`;
}

/** Plays so many balls at once; for tests and for the impatient. */
window.play = (balls) => {
  for (const end = game.balls + balls; game.balls < end; ) step();
  show();
  return [game.caught, game.balls];
};
window.choose = (given) => {
  const before = frames.slice();
  frames.set(given);
  const result = asked();
  const scores = Array.from(model.view('scores'));
  frames.set(before);
  return [result[0], scores];
};

for (let k = 0; k < 20; ++k) model.call(); // browsers compile again what is called often
const calls = 20, start = performance.now();
for (let k = 0; k < calls; ++k) model.call();
const milliseconds = (performance.now() - start) / calls;
const bytes = (await (await fetch('./player/player.wasm')).arrayBuffer()).byteLength;
document.getElementById('facts').textContent =
  `A module of ${(bytes / 1000).toFixed(1)} kB; one call takes ${milliseconds.toFixed(2)} ms.`;
window.measured = { bytes, milliseconds };
setInterval(() => {
  step();
  show();
}, 40);
