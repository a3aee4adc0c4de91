"""The ways of saving and loading that older Keras texts teach, each with the names that they use.

Only the import of TensorFlow is another than it was then. Run it with: python examples/saving_habits.py [FOLDER]
"""

import os
import sys

import numpy as np

from anyrig.compat import tensorflow as tf  # was: import tensorflow as tf


def build_model():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input(shape=(20,)),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(0.01))
    model.compile(optimizer=optimizer, loss="binary_crossentropy", metrics=["accuracy"])
    return model


def main():
    if len(sys.argv) > 1:
        os.chdir(sys.argv[1])
    print("TensorFlow version:", tf.__version__)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 20)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("float32")

    best = tf.keras.callbacks.ModelCheckpoint(
        filepath="model_checkpoint.h5", save_weights_only=True, save_best_only=True, monitor="val_loss"
    )
    each = tf.keras.callbacks.ModelCheckpoint(
        filepath="model_checkpoint_{epoch:02d}.h5", save_weights_only=True, save_freq="epoch"
    )
    model = build_model()
    model.fit(x, y, epochs=3, validation_split=0.25, callbacks=[best, each], verbose=2)
    expected = model.predict(x, verbose=0)

    # Weights from HDF5, into a model that was built anew.
    again = build_model()
    again.load_weights("model_checkpoint_03.h5")
    print("the same from weights:", np.array_equal(again.predict(x, verbose=0), expected))

    # A folder with the whole model: layers, weights, optimizer.
    model.save("saved_model_directory")
    loaded = tf.keras.models.load_model("saved_model_directory")
    print("the same from a folder:", np.array_equal(loaded.predict(x, verbose=0), expected))
    loaded.fit(x, y, epochs=1, verbose=0)
    print("trained on, updates:", int(loaded.optimizer.iterations.numpy()))

    # And the whole model in HDF5.
    model.save("whole_model.h5")
    loaded = tf.keras.models.load_model("whole_model.h5")
    print("the same from HDF5:", np.array_equal(loaded.predict(x, verbose=0), expected))


if __name__ == "__main__":
    main()
