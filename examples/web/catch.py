"""A game for the network of Mnih et al. (2015): a ball falls and bounces off the walls, a paddle has to be under it.

`pages/game.js` is the same game, pixel by pixel. The network sees four frames of 84x84 and chooses to go left, to stay
or to go right; it learns from positions made at random what a player does who stays under the ball.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

import tilewright as tw
from examples.mnist_like.networks import Weights
from examples.web.digits import with_weights

Array = np.ndarray[Any, Any]
SIDE, FRAMES, ACTIONS = 84, 4, 3
BALL, PADDLE = 4, 14
STEP, FALL, DRIFT = 4, 3, 3
"""Pixels a frame: of the paddle; of the ball, downwards, and at most sideways."""
FLOOR = SIDE - 8
"""The ball's lowest place, just above the paddle."""

LAYERS = """
        bytes = Cast<to = 1>(obs)
        scaled = Div(bytes, full)
        conv0 = Conv<strides = [4, 4]>(scaled, w0, b0)
        relu0 = Relu(conv0)
        conv1 = Conv<strides = [2, 2]>(relu0, w1, b1)
        relu1 = Relu(conv1)
        conv2 = Conv(relu1, w2, b2)
        relu2 = Relu(conv2)
        flat = Flatten(relu2)
        sum3 = Gemm(flat, w3, b3)
        relu3 = Relu(sum3)
        scores = Gemm(relu3, w4, b4)
"""
MODEL = f"""
    <ir_version: 9, opset_import: ["" : 20]>
    catch (uint8[1, {FRAMES}, {SIDE}, {SIDE}] obs) => (float[1, {ACTIONS}] scores)
    <float full = {{255}}> {{ {LAYERS} }}
"""
LOSS = f"""
    <ir_version: 9, opset_import: ["" : 20]>
    loss (uint8[BATCH, {FRAMES}, {SIDE}, {SIDE}] obs, float[BATCH, {ACTIONS}] right) => (float loss)
    <float full = {{255}}> {{ {LAYERS}
        likely = LogSoftmax(scores)
        chosen = Mul(right, likely)
        sums = ReduceSum<keepdims = 0>(chosen)
        many = Constant<value_float = -BATCH.0>()
        loss = Div(sums, many)
    }}
"""
SHAPES = ((32, FRAMES, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (64 * 7 * 7, 512), (512, ACTIONS))


class Game:
    """A ball that falls; where it ends it begins again at the top, at a place and with a drift that `numbers` say."""

    def __init__(self, numbers: Array) -> None:
        self.numbers, self.balls, self.caught = numbers, 0, 0
        self.paddle = (SIDE - PADDLE) // 2
        self._begin()

    def _begin(self) -> None:
        at, drift = self.numbers[self.balls % len(self.numbers)]
        self.x, self.y, self.drift = int(at) % (SIDE - BALL + 1), 0, int(drift) % (2 * DRIFT + 1) - DRIFT

    def step(self, action: int) -> None:
        """One frame: action 0 goes left, 1 stays, 2 goes right."""
        self.paddle = min(max(self.paddle + (action - 1) * STEP, 0), SIDE - PADDLE)
        if self.y >= FLOOR:
            self.caught += self.paddle - BALL < self.x < self.paddle + PADDLE
            self.balls += 1
            self._begin()
            return
        self.y, self.x = self.y + FALL, self.x + self.drift
        if not 0 <= self.x <= SIDE - BALL:
            self.x, self.drift = min(max(self.x, 0), SIDE - BALL), -self.drift

    def teacher(self) -> int:
        """The action of a player who stays under the ball."""
        off = self.x + BALL // 2 - (self.paddle + PADDLE // 2)
        return 1 + (off > STEP // 2) - (off < -STEP // 2)

    def frame(self) -> Array:
        """The picture that the agent sees: [84, 84], bytes."""
        pixels = np.zeros((SIDE, SIDE), np.uint8)
        pixels[self.y : self.y + BALL, self.x : self.x + BALL] = 255
        pixels[SIDE - 4 : SIDE - 1, self.paddle : self.paddle + PADDLE] = 200
        return pixels


def moments(count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Four frames of each of `count` games that begin anywhere [count, 4, 84, 84]; the teacher's actions [count, 3]."""
    frames, right = np.empty((count, FRAMES, SIDE, SIDE), np.uint8), np.zeros((count, ACTIONS), np.float32)
    for k in range(count):
        game = Game(rng.integers(0, 1 << 30, (1, 2)))
        game.y, game.paddle = FALL * int(rng.integers(FLOOR // FALL)), int(rng.integers(SIDE - PADDLE + 1))
        if rng.random() < 0.5:  # mostly the two are near each other: the teacher's games are so
            game.paddle = min(max(game.x - PADDLE // 2 + int(rng.integers(-8, 9)), 0), SIDE - PADDLE)
        for f in range(FRAMES):
            if f:
                game.step(int(rng.integers(ACTIONS)))
            frames[k, f] = game.frame()
        right[k, game.teacher()] = 1
    return frames, right


def first_weights(seed: int = 0) -> Weights:
    """Random weights that keep the size of what flows through them (He et al., 2015); offsets of zero."""
    rng = np.random.default_rng(seed)
    result: Weights = {}
    for k, shape in enumerate(SHAPES):
        inputs = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        result[f"w{k}"] = (rng.normal(size=shape) * np.sqrt(2 / inputs)).astype(np.float32)
        result[f"b{k}"] = np.zeros(shape[1] if len(shape) == 2 else shape[0], np.float32)
    return result


def trained(steps: int = 400, batch: int = 32) -> Weights:
    """Weights after so many compiled steps of Adam on moments of games."""
    first, rng = first_weights(), np.random.default_rng(1)
    loss = with_weights(LOSS.replace("BATCH", str(batch)), first)
    step = tw.compile_step(loss, trained=list(first), optimizer=tw.train.Adam(5e-4))
    for _ in range(steps):
        step(*moments(batch, rng))
    return {name: np.array(value) for name, value in step.state_dict().items() if name in first}


def model(weights: Weights) -> onnx.ModelProto:
    """From four frames, the newest last, to a score of each action [1, 3]."""
    return with_weights(MODEL, weights)


def share_caught(policy: Any, balls: int = 20, seed: int = 2) -> float:
    """The share of balls that a policy catches: a function from four frames to scores."""
    game = Game(np.random.default_rng(seed).integers(0, 1 << 30, (balls, 2)))
    frames = np.repeat(game.frame()[None, None], FRAMES, axis=1)
    while game.balls < balls:
        game.step(int(np.argmax(policy(frames))))
        frames = np.concatenate([frames[:, 1:], game.frame()[None, None]], axis=1)
    return game.caught / balls
