// The game of examples/web/catch.py, pixel by pixel.

export const SIDE = 84, FRAMES = 4, BALL = 4, PADDLE = 14, STEP = 4, FALL = 3, DRIFT = 3, FLOOR = SIDE - 8;

export class Game {
  /** `numbers()` gives where a ball begins and how it drifts: two integers from 0. */
  constructor(numbers) {
    this.numbers = numbers;
    this.balls = this.caught = 0;
    this.paddle = (SIDE - PADDLE) / 2;
    this.begin();
  }

  begin() {
    const [at, drift] = this.numbers(this.balls);
    this.x = at % (SIDE - BALL + 1);
    this.y = 0;
    this.drift = (drift % (2 * DRIFT + 1)) - DRIFT;
  }

  /** One frame: action 0 goes left, 1 stays, 2 goes right. */
  step(action) {
    this.paddle = Math.min(Math.max(this.paddle + (action - 1) * STEP, 0), SIDE - PADDLE);
    if (this.y >= FLOOR) {
      if (this.paddle - BALL < this.x && this.x < this.paddle + PADDLE) ++this.caught;
      ++this.balls;
      this.begin();
      return;
    }
    this.y += FALL;
    this.x += this.drift;
    if (this.x < 0 || this.x > SIDE - BALL) {
      this.x = Math.min(Math.max(this.x, 0), SIDE - BALL);
      this.drift = -this.drift;
    }
  }

  /** What is seen, into 84x84 bytes. */
  frame(pixels) {
    pixels.fill(0);
    for (let y = 0; y < BALL; ++y) pixels.fill(255, (this.y + y) * SIDE + this.x, (this.y + y) * SIDE + this.x + BALL);
    for (let y = SIDE - 4; y < SIDE - 1; ++y) pixels.fill(200, y * SIDE + this.paddle, y * SIDE + this.paddle + PADDLE);
  }
}
