"""The demo's model: a small convolutional network for 8 x 8 pictures of handwritten digits.

It has what usually breaks when the devices change: BatchNormalization, Dropout and random augmentation.
"""

import keras
from keras import layers


def build_model(learning_rate: float = 0.002) -> keras.Model:
    """Return the compiled model; input (rows, 8, 8, 1) in 0..1, output 10 probabilities."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomTranslation(0.1, 0.1, fill_mode="constant"),
            layers.RandomRotation(0.03, fill_mode="constant"),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Conv2D(64, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model
