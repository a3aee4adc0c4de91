"""Cases: preprocessing and augmentation inside the model."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from tests.multi.zoo import ROWS, Case, arrays, compiled, floats, integers, kind, stack

preprocessing_kind = kind("Preprocessing")


def _images() -> object:
    return np.random.default_rng(3).uniform(0, 255, (ROWS, 8, 8, 3)).astype("float32")


def _on_images(*before: keras.layers.Layer) -> keras.Model:
    middle = [layers.Rescaling(1 / 255), layers.Conv2D(3, 3), layers.GlobalAveragePooling2D(), layers.Dense(1)]
    return compiled(stack((8, 8, 3), *before, *middle))


@preprocessing_kind
def geometric_augmentation() -> Case:
    """RandomFlip, rotation, translation, zoom, shear, crop, perspective."""

    def build() -> keras.Model:
        whole = [layers.RandomFlip(), layers.RandomRotation(0.1), layers.RandomTranslation(0.1, 0.1)]
        return _on_images(*whole, layers.RandomZoom(0.2), layers.RandomShear(0.1, 0.1), layers.RandomCrop(6, 6))

    return Case(build, arrays(_images(), floats(1)))


@preprocessing_kind
def colour_augmentation() -> Case:
    """RandomBrightness, contrast, hue, saturation, erasing, blur; RandAugment."""

    def build() -> keras.Model:
        limits = (0, 255)
        single = [
            layers.RandomBrightness(0.2, limits),
            layers.RandomContrast(0.2, limits),
            layers.RandomHue(0.1, limits),
        ]
        more = [
            layers.RandomSaturation(0.2, limits),
            layers.RandomErasing(value_range=limits),
            layers.RandomGrayscale(),
        ]
        return _on_images(*single, *more)

    return Case(build, arrays(_images(), floats(1)))


@preprocessing_kind
def image_preparation() -> Case:
    """Resizing, CenterCrop, ZeroPadding2D, Cropping2D."""

    def build() -> keras.Model:
        return _on_images(
            layers.Resizing(10, 10), layers.CenterCrop(8, 8), layers.ZeroPadding2D(1), layers.Cropping2D(1)
        )

    return Case(build, arrays(_images(), floats(1)))


@preprocessing_kind
def normalization() -> Case:
    """Normalization, adapted to the data."""

    def build() -> keras.Model:
        norm = layers.Normalization()
        norm.adapt(floats(4) * 3 + 1)
        return compiled(stack((4,), norm, layers.Dense(1)))

    return Case(build, arrays(floats(4) * 3 + 1, floats(1, seed=2)))


@preprocessing_kind
def text_vectorization() -> Case:
    """TextVectorization in the model, on strings."""
    words = np.array(["sun", "rain", "a cold wind", "snow and ice", "no weather"])
    texts = np.array([f"{words[a]} {words[b]}" for a, b in integers(5, 2)])[:, None]

    def build() -> keras.Model:
        vectorize = layers.TextVectorization(output_sequence_length=6)
        vectorize.adapt(texts[:20])
        text = keras.Input((1,), dtype="string")
        hidden = layers.GlobalAveragePooling1D()(layers.Embedding(20, 3)(vectorize(text)))
        return compiled(keras.Model(text, layers.Dense(1)(hidden)))

    return Case(build, arrays(texts, floats(1)))


@preprocessing_kind
def string_lookup() -> Case:
    """StringLookup in the model, with words it does not know."""
    names = np.array(["red", "green", "blue", "unknown"])[integers(4)][:, None]

    def build() -> keras.Model:
        name = keras.Input((1,), dtype="string")
        codes = layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")(name)
        return compiled(keras.Model(name, layers.Dense(1)(codes)))

    return Case(build, arrays(names, floats(1)))


@preprocessing_kind
def categories() -> Case:
    """IntegerLookup, CategoryEncoding, Hashing, HashedCrossing, Discretization, as features of a dict."""

    def build() -> keras.Model:
        code, age = keras.Input((1,), dtype="int64", name="code"), keras.Input((1,), name="age")
        crossed = layers.HashedCrossing(5, output_mode="one_hot")((code, code))
        features = [
            layers.IntegerLookup(vocabulary=[0, 1, 2], output_mode="multi_hot")(code),
            layers.CategoryEncoding(6, output_mode="one_hot")(layers.Hashing(6)(code)),
            layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0], output_mode="one_hot")(age),
            crossed,
        ]
        return compiled(keras.Model({"code": code, "age": age}, layers.Dense(1)(layers.Concatenate()(features))))

    return Case(build, arrays({"code": integers(5, 1).astype("int64"), "age": floats(1)}, floats(1, seed=2)))
