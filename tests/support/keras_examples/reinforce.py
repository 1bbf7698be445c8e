"""REINFORCE in a loop of one's own: a cart on a rail is pushed to the middle and kept there."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import keras_strom

keras.utils.set_random_seed(10)

random = np.random.default_rng(10 + keras_strom.rank())  # Each worker plays games of its own.
gamma, games, moves = 0.9, 16, 20


def play(policy):
    """Some games at once: what was seen, what was done, and each game's rewards."""
    place, speed = random.uniform(-1, 1, games), np.zeros(games)
    seen, done, rewards = [], [], []
    for _ in range(moves):
        state = np.stack([place, speed], axis=1).astype("float32")
        probability = policy(state).numpy()[:, 1]
        action = (random.random(games) < probability).astype("int32")
        speed = 0.8 * speed + 0.1 * (2 * action - 1)
        place = np.clip(place + speed, -2, 2)
        seen.append(state)
        done.append(action)
        rewards.append(-np.abs(place))
    return np.array(seen), np.array(done), np.array(rewards, "float32")


def returns_of(rewards):
    """Discounted, from each move on; normalised."""
    returns = np.zeros_like(rewards)
    running = np.zeros(games, "float32")
    for t in reversed(range(moves)):
        running = returns[t] = rewards[t] + gamma * running
    return (returns - returns.mean(axis=1, keepdims=True)) / (returns.std() + 1e-6)


model = keras.Sequential([keras.Input((2,)), layers.Dense(32, "tanh"), layers.Dense(2, "softmax")])
optimizer = keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)
policy = tf.function(model, reduce_retracing=True)
strategy = tf.distribute.get_strategy()


def step(states, actions, returns):
    with tf.GradientTape() as tape:
        chosen = ops.sum(model(states) * ops.one_hot(actions, 2), axis=-1)
        loss = -ops.mean(ops.log(chosen + 1e-7) * returns)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@tf.function
def train_step(states, actions, returns):
    return strategy.run(step, args=(states, actions, returns))


shared = isinstance(strategy, keras_strom.StromStrategy)
if shared:
    strategy.begin(model)
for _episode in range(100):
    seen, done, rewards = play(policy)
    train_step(
        tf.constant(seen.reshape(-1, 2)),
        tf.constant(done.reshape(-1)),
        tf.constant(returns_of(rewards).reshape(-1)),
    )
if shared:
    strategy.synchronize()

random = np.random.default_rng(1000)
loss = float(np.mean([-play(policy)[2].mean() for _ in range(10)]))
