"""The policy suite: networks that reinforcement learning runs on CPUs, built as ONNX graphs with random weights.

Each function returns an ONNX model with a symbolic batch dimension. Layer sizes follow the code named in the
docstring; weights are random but seeded, so every run of the benchmarks sees the same model.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx

from benchmarks.onnx_builder import BATCH, Builder


def m64(observation: int = 17, actions: int = 6) -> onnx.ModelProto:
    """Stable-Baselines3 MlpPolicy: separate tanh towers of 64 for the policy and the value."""
    b = Builder("m64", seed=64)
    obs = b.input("obs", [BATCH, observation])
    for tower, head, width, output in (
        ("policy_net", "action_net", actions, "action"),
        ("value_net", "value_net_head", 1, "value"),
    ):
        x = b.op("Tanh", [b.linear(obs, f"mlp_extractor.{tower}.0", observation, 64, gain=1.0)])
        x = b.op("Tanh", [b.linear(x, f"mlp_extractor.{tower}.2", 64, 64)])
        b.output(b.linear(x, head, 64, width), output, [BATCH, width])
    return b.build()


def m256(observation: int = 376, actions: int = 17) -> onnx.ModelProto:
    """CleanRL SAC actor (Humanoid): two ReLU layers of 256, mean and squashed log standard deviation."""
    b = Builder("m256", seed=256)
    x = b.input("obs", [BATCH, observation])
    x = b.relu(b.linear(x, "fc1", observation, 256))
    x = b.relu(b.linear(x, "fc2", 256, 256))
    b.output(b.linear(x, "fc_mean", 256, actions), "mean", [BATCH, actions])
    log_std = b.op("Tanh", [b.linear(x, "fc_logstd", 256, actions, gain=1.0)])
    log_std = b.op("Add", [log_std, b.constant(np.float32(1))])
    log_std = b.op("Mul", [log_std, b.constant(np.float32(3.5))])  # from [-1, 1] to [-5, 2]
    log_std = b.op("Add", [log_std, b.constant(np.float32(-5))])
    b.output(log_std, "log_std", [BATCH, actions])
    return b.build()


def _nature_trunk(b: Builder, image: str, channels: int) -> str:
    """Nature CNN (Mnih et al. 2015) on 84x84: three convolutions and a layer of 512."""
    x = b.relu(b.conv(image, "cnn.0", channels, 32, 8, stride=4))
    x = b.relu(b.conv(x, "cnn.2", 32, 64, 4, stride=2))
    x = b.relu(b.conv(x, "cnn.4", 64, 64, 3))
    x = b.op("Flatten", [x], axis=1)
    return b.relu(b.linear(x, "linear.0", 64 * 7 * 7, 512))


def nat(actions: int = 6) -> onnx.ModelProto:
    """Stable-Baselines3 NatureCNN: uint8 frames divided by 255 inside the model."""
    b = Builder("nat", seed=84)
    image = b.input("obs", [BATCH, 4, 84, 84], "uint8")
    x = _nature_trunk(b, b.scaled_bytes(image), 4)
    b.output(b.linear(x, "action_net", 512, actions), "action", [BATCH, actions])
    b.output(b.linear(x, "value_net", 512, 1), "value", [BATCH, 1])
    return b.build()


def nl(actions: int = 4, hidden: int = 128) -> onnx.ModelProto:
    """CleanRL ppo_atari_lstm: the Nature trunk on one channel, an LSTM whose state `done` resets, heads."""
    b = Builder("nl", seed=85)
    image = b.input("obs", [BATCH, 1, 84, 84], "uint8")
    done = b.input("done", [BATCH])
    h = b.input("h", [1, BATCH, hidden])
    c = b.input("c", [1, BATCH, hidden])
    x = _nature_trunk(b, b.scaled_bytes(image), 1)
    keep = b.reshape(b.op("Sub", [b.constant(np.float32(1)), done]), [1, -1, 1])
    h, c = b.op("Mul", [h, keep]), b.op("Mul", [c, keep])
    _, h_next, c_next = b.lstm(b.unsqueeze(x, 0), h, c, "lstm", 512, hidden)
    x = b.squeeze(h_next, 0)
    b.output(b.linear(x, "actor", hidden, actions), "action", [BATCH, actions])
    b.output(b.linear(x, "critic", hidden, 1), "value", [BATCH, 1])
    b.output(h_next, "h_next", [1, BATCH, hidden])
    b.output(c_next, "c_next", [1, BATCH, hidden])
    return b.build()


def imp(channels: int = 3, size: int = 64, actions: int = 15) -> onnx.ModelProto:
    """CleanRL ppo_procgen: the IMPALA residual network (Espeholt et al. 2018) with stacks of 16, 32, 32."""
    b = Builder(f"imp{size}", seed=size)
    x = b.input("obs", [BATCH, channels, size, size])
    for stack, width in enumerate((16, 32, 32)):
        x = b.conv(x, f"network.{stack}.conv", channels, width, 3, pad=1)
        x = b.op("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        channels, size = width, (size + 1) // 2
        for block in range(2):
            name = f"network.{stack}.res_block{block}"
            y = b.conv(b.relu(x), f"{name}.conv0", width, width, 3, pad=1)
            y = b.conv(b.relu(y), f"{name}.conv1", width, width, 3, pad=1)
            x = b.op("Add", [y, x])
    x = b.relu(b.op("Flatten", [x], axis=1))
    x = b.relu(b.linear(x, "fc", channels * size * size, 256, gain=0.5))
    b.output(b.linear(x, "actor", 256, actions, gain=0.5), "action", [BATCH, actions])
    b.output(b.linear(x, "critic", 256, 1, gain=0.5), "value", [BATCH, 1])
    return b.build()


def _shared_mlp(b: Builder, x: str, name: str, sizes: list[int]) -> str:
    """A multi-layer perceptron over the last axis with ReLU after every layer."""
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        x = b.relu(b.dense(x, f"{name}.{i}", fan_in, fan_out))
    return x


def _units(b: Builder, x: str, name: str, sides: int, units: int, sizes: list[int]) -> tuple[str, str]:
    """Embeds `sides * units` unit feature vectors; returns the embeddings and their maximum over each side's units."""
    x = b.reshape(x, [-1, sides, units, sizes[0]])
    embedded = _shared_mlp(b, x, name, sizes)
    pooled = b.op("ReduceMax", [embedded, b.constant(np.array([2], np.int64))], keepdims=0)
    return embedded, b.reshape(pooled, [-1, sides * sizes[-1]])


def hok1(hidden: int = 512) -> onnx.ModelProto:
    """Tencent's hok_env 1v1 (Honor of Kings): entity perceptrons, LSTM of 512, five heads, target attention, value.

    The 725 features are 2 heroes of 235, 8 soldiers of 18, 4 organs of 18, 14 of the main hero, 25 global ones.
    """
    b = Builder("hok1", seed=11)
    features = b.input("obs", [BATCH, 725])
    h = b.input("h", [1, BATCH, hidden])
    c = b.input("c", [1, BATCH, hidden])
    sizes = b.constant(np.array([470, 144, 72, 14, 25], np.int64))
    heroes, soldiers, organs, main, world = b.ops("Split", [features, sizes], 5, axis=1)

    hero = _shared_mlp(b, b.reshape(heroes, [-1, 2, 235]), "hero", [235, 512, 256, 128])
    soldier, soldier_max = _units(b, soldiers, "soldier", 2, 4, [18, 64, 64, 32])
    organ, organ_max = _units(b, organs, "organ", 2, 2, [18, 64, 64, 32])
    main = _shared_mlp(b, main, "main", [14, 64, 32, 16])
    x = b.op("Concat", [b.reshape(hero, [-1, 256]), soldier_max, organ_max, main, world], axis=1)
    x = b.relu(b.linear(x, "concat", 425, 512))
    _, h_next, c_next = b.lstm(b.unsqueeze(x, 0), h, c, "lstm", 512, hidden)
    x = b.squeeze(h_next, 0)
    for i, width in enumerate((12, 16, 16, 16, 16)):
        b.output(b.linear(x, f"head.{i}", hidden, width), f"head{i}", [BATCH, width])

    # Targets: none, both heroes, the enemy's four soldiers, the enemy's first organ.
    one, first = b.constant(np.array([1], np.int64)), b.constant(np.array([0], np.int64))
    unowned = b.weight("target.none", b.normal((1, 1, 32), 1.0))
    batch = b.op("Shape", [x], start=0, end=1)
    unowned = b.op("Expand", [unowned, b.op("Concat", [batch, b.constant(np.array([1, 32], np.int64))], axis=0)])
    hero_key = b.dense(hero, "target.hero", 128, 32)
    enemies = b.op("Gather", [soldier, b.constant(np.int64(1))], axis=1)
    tower = b.op("Gather", [organ, b.constant(np.int64(1))], axis=1)
    tower = b.op("Slice", [tower, first, one, one])  # [batch, 1, 32]
    keys = b.op("Concat", [unowned, hero_key, enemies, tower], axis=1)
    query = b.unsqueeze(b.linear(x, "target.query", hidden, 32), 2)
    target = b.squeeze(b.op("MatMul", [keys, query]), 2)
    b.output(target, "target", [BATCH, 8])
    value = b.relu(b.linear(x, "value.0", hidden, 64))
    b.output(b.linear(value, "value.1", 64, 1), "value", [BATCH, 1])
    b.output(h_next, "h_next", [1, BATCH, hidden])
    b.output(c_next, "c_next", [1, BATCH, hidden])
    return b.build()


def hok3() -> onnx.ModelProto:
    """Tencent's hok_env 3v3: for each of three heroes a small image and the features of all units around it.

    The 2852 features are 6 heroes of 251, 20 soldiers of 25, 6 organs of 29, 20 monsters of 28, 44 of the main hero, 68
    global ones. The heroes share all weights, so they are a batch of three.
    """
    b = Builder("hok3", seed=33)
    image = b.reshape(b.input("image", [BATCH, 3, 6, 17, 17]), [-1, 6, 17, 17])
    vector = b.reshape(b.input("vector", [BATCH, 3, 2852]), [-1, 2852])
    x = b.relu(b.conv(image, "conv1", 6, 18, 5, pad=2))
    x = b.op("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2])
    x = b.op("Flatten", [b.relu(b.conv(x, "conv2", 18, 12, 3, pad=1))], axis=1)
    sizes = b.constant(np.array([1506, 500, 174, 560, 44, 68], np.int64))
    heroes, soldiers, organs, monsters, main, world = b.ops("Split", [vector, sizes], 6, axis=1)
    _, hero = _units(b, heroes, "hero", 2, 3, [251, 512, 512, 128, 128, 64])
    _, soldier = _units(b, soldiers, "soldier", 2, 10, [25, 64, 64, 64, 32])
    _, organ = _units(b, organs, "organ", 2, 3, [29, 64, 64, 64, 32])
    _, monster = _units(b, monsters, "monster", 1, 20, [28, 64, 64, 64, 32])
    main = _shared_mlp(b, main, "main", [44, 64, 32])
    x = b.op("Concat", [x, hero, soldier, organ, monster, main, world], axis=1)
    x = b.relu(b.linear(x, "concat", 1156, 256))
    for i, width in enumerate((13, 25, 42, 42, 39)):
        y = b.relu(b.linear(x, f"head.{i}.0", 256, 64))
        y = b.reshape(b.linear(y, f"head.{i}.1", 64, width), [-1, 3, width])
        b.output(y, f"head{i}", [BATCH, 3, width])
    return b.build()


def txl(actions: int = 4, width: int = 384, layers: int = 3, heads: int = 4, memory: int = 119) -> onnx.ModelProto:
    """CleanRL ppo_trxl: the Nature trunk, three transformer layers that attend to a memory of earlier steps, heads."""
    b = Builder("txl", seed=119)
    image = b.input("obs", [BATCH, 3, 84, 84], "uint8")
    past = b.input("memory", [BATCH, memory, layers, width])
    mask = b.input("mask", [BATCH, memory])
    steps = b.input("memory_indices", [BATCH, memory], "int64")
    x = b.relu(b.linear(_nature_trunk(b, b.scaled_bytes(image), 3), "linear_embedding", 512, width))
    positions = b.op("Gather", [b.weight("pos_embedding", b.normal((1024, width), 0.1)), steps], axis=0)
    hidden = b.op("Mul", [b.op("Sub", [mask, b.constant(np.float32(1))]), b.constant(np.float32(1e20))])
    hidden = b.reshape(hidden, [-1, 1, 1, memory])
    retained = []
    for i in range(layers):
        retained.append(b.unsqueeze(x, 1))
        name = f"layers.{i}"
        memories = b.op("Add", [b.op("Gather", [past, b.constant(np.int64(i))], axis=2), positions])
        memories = b.layer_norm(memories, f"{name}.norm_kv", width)
        query = b.dense(b.layer_norm(x, f"{name}.layer_norm_q", width), f"{name}.queries", width, width)
        y = _attend(b, query, memories, hidden, name, (width, heads, memory))
        x = b.op("Add", [b.dense(y, f"{name}.fc_out", width, width), x])
        y = b.relu(b.dense(b.layer_norm(x, f"{name}.norm_attn", width), f"{name}.fc", width, width))
        x = b.op("Add", [x, y])
    x = b.relu(b.linear(x, "hidden_post_trxl", width, width))
    b.output(b.linear(x, "actor", width, actions), "action", [BATCH, actions])
    b.output(b.linear(x, "critic", width, 1), "value", [BATCH, 1])
    b.output(b.op("Concat", retained, axis=1), "memory_next", [BATCH, layers, width])
    return b.build()


def _attend(b: Builder, query: str, memories: str, hidden: str, name: str, sizes: tuple[int, int, int]) -> str:
    """One query of each batch entry [batch, width] over its memories [batch, memory, width]."""
    width, heads, memory = sizes
    q = b.reshape(query, [-1, heads, 1, width // heads])
    k, v = (
        b.reshape(b.dense(memories, f"{name}.{part}", width, width), [-1, memory, heads, width // heads])
        for part in ("keys", "values")
    )
    scores = b.op("MatMul", [q, b.op("Transpose", [k], perm=[0, 2, 3, 1])])
    scores = b.op("Div", [scores, b.constant(np.float32(width**0.5))])
    scores = b.op("Softmax", [b.op("Add", [scores, hidden])], axis=-1)
    y = b.op("MatMul", [scores, b.op("Transpose", [v], perm=[0, 2, 1, 3])])
    return b.reshape(y, [-1, width])


def dz() -> onnx.ModelProto:
    """DouZero: an LSTM over five earlier moves, then five layers of 512; the batch is the set of legal moves."""
    b = Builder("dz", seed=5)
    moves = b.input("moves", [BATCH, 5, 162])
    features = b.input("features", [BATCH, 373])
    steps = b.op("Transpose", [moves], perm=[1, 0, 2])
    _, last, _ = b.lstm(steps, "", "", "lstm", 162, 128)
    x = b.op("Concat", [b.squeeze(last, 0), features], axis=1)
    fan_in = 128 + 373
    for i in range(1, 6):
        x = b.relu(b.linear(x, f"dense{i}", fan_in, 512))
        fan_in = 512
    b.output(b.linear(x, "dense6", 512, 1), "value", [BATCH, 1])
    return b.build()


def az(blocks: int = 6, width: int = 128) -> onnx.ModelProto:
    """AlphaZero for 19x19 Go: residual tower with batch norm as an exporter leaves it, policy and value heads."""
    b = Builder(f"az{blocks}", seed=19)
    x = b.input("board", [BATCH, 17, 19, 19])

    def conv_bn(x: str, name: str, c_in: int, c_out: int, kernel: int, gain: float = 1.0) -> str:
        y = b.conv(x, f"{name}.conv", c_in, c_out, kernel, pad=kernel // 2, bias=False)
        return b.batch_norm(y, f"{name}.bn", c_out, gain)

    x = b.relu(conv_bn(x, "stem", 17, width, 3))
    for i in range(blocks):
        y = b.relu(conv_bn(x, f"block{i}.1", width, width, 3))
        # A small gain on the branch keeps the scale of the residual stream through many blocks.
        y = conv_bn(y, f"block{i}.2", width, width, 3, gain=1.2 / blocks**0.5)
        x = b.relu(b.op("Add", [y, x]))
    p = b.op("Flatten", [b.relu(conv_bn(x, "policy", width, 2, 1))], axis=1)
    b.output(b.linear(p, "policy.fc", 2 * 361, 362), "policy", [BATCH, 362])
    v = b.op("Flatten", [b.relu(conv_bn(x, "value", width, 1, 1))], axis=1)
    v = b.relu(b.linear(v, "value.fc1", 361, 256))
    b.output(b.op("Tanh", [b.linear(v, "value.fc2", 256, 1, gain=0.3)]), "value", [BATCH, 1])
    return b.build()
