"""A script of the Keras 2 days, whole: train on every device there is, save the weights, predict on another machine.

Only the import of TensorFlow is another than it was then. Run it with: python examples/several_devices.py [FOLDER]
"""

import os
import sys

import numpy as np

from anyrig.compat import tensorflow as tf  # was: import tensorflow as tf

PER_DEVICE = 32


def build_model(side=24, classes=10):
    image = tf.keras.Input(shape=(side, side, 3))
    x = tf.keras.layers.Conv2D(16, (3, 3), activation="relu")(image)
    x = tf.keras.layers.BatchNormalization()(x)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(inputs=image, outputs=tf.keras.layers.Dense(classes, activation="softmax")(x))


def on_all_devices():
    """Return the strategy, None for one device, and the compiled model."""
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) > 1:
        strategy = tf.distribute.MirroredStrategy()
        with strategy.scope():
            return strategy, compiled(build_model())
    return None, compiled(build_model())


def compiled(model):
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def pictures(count, seed):
    """Make pictures of one colour each, which is their class, with noise."""
    rng = np.random.default_rng(seed)
    colours = np.random.default_rng(0).uniform(0, 1, (10, 1, 1, 3))
    classes = rng.integers(0, 10, count)
    return (colours[classes] + rng.normal(0, 0.1, (count, 24, 24, 3))).astype("float32"), classes


def main():
    if len(sys.argv) > 1:
        os.chdir(sys.argv[1])
    x_train, y_train = pictures(512, seed=1)
    x_test, _ = pictures(64, seed=2)

    # The machine with the devices.
    strategy, model = on_all_devices()
    batch = PER_DEVICE * (strategy.num_replicas_in_sync if strategy else 1)
    data = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(512, seed=3).batch(batch)
    model.fit(data, epochs=2, verbose=2)
    model.save_weights("model_weights.h5")
    expected = model.predict(x_test, batch_size=32, verbose=0)

    # The colleague's machine.
    _, again = on_all_devices()
    again.load_weights("model_weights.h5")
    predictions = again.predict(x_test, batch_size=32, verbose=0)
    print("the same predictions:", np.array_equal(predictions, expected))

    # The way that the same texts warn of: a checkpoint of objects.
    tf.train.Checkpoint(model=model).save("checkpoints/ckpt")
    _, third = on_all_devices()
    tf.train.Checkpoint(model=third).restore(tf.train.latest_checkpoint("checkpoints")).expect_partial()
    print("the same from a checkpoint:", np.array_equal(third.predict(x_test, verbose=0), expected))


if __name__ == "__main__":
    main()
