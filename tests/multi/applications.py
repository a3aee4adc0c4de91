"""Train one small member of a family of `keras.applications` for two steps; append the hash of its state to a file.

Arguments: file, number of devices, family. The second batch is uneven: 4 rows, then 3, over two virtual replicas.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from anyrig.topology.devices import configure

ROWS, SIZE, VIRTUAL_REPLICAS, CLASSES = 7, 4, 2, 3


class Member(NamedTuple):
    """A function of `keras.applications`, with the smallest images it takes."""

    function: str
    pixels: int = 32
    arguments: dict[str, Any] = {}  # noqa: RUF012 - never changed
    cheap: bool = False  # small enough for the default tier of the tests


FAMILIES = {
    "ConvNeXt": Member("ConvNeXtTiny"),
    "DenseNet": Member("DenseNet121"),
    "EfficientNet": Member("EfficientNetB0"),
    "EfficientNetV2": Member("EfficientNetV2B0"),
    "InceptionResNetV2": Member("InceptionResNetV2", pixels=75),
    "InceptionV3": Member("InceptionV3", pixels=75),
    "MobileNet": Member("MobileNet", arguments={"alpha": 0.25}, cheap=True),
    "MobileNetV2": Member("MobileNetV2", arguments={"alpha": 0.35}),
    "MobileNetV3": Member("MobileNetV3Small", arguments={"alpha": 0.75}),
    "NASNet": Member("NASNetMobile"),
    "ResNet": Member("ResNet50"),
    "ResNetV2": Member("ResNet50V2"),
    "VGG16": Member("VGG16", cheap=True),
    "VGG19": Member("VGG19", cheap=True),
    "Xception": Member("Xception", pixels=71),
}


def train(devices: int, family: str) -> dict[str, Any]:
    """Return what the family's member ends with on so many devices."""
    configure(devices)
    import keras
    import numpy as np

    from anyrig.state.capture import capture
    from anyrig.store.digest import state_digest_of
    from anyrig.train.batch import Batch
    from anyrig.train.rig import Rig

    member = FAMILIES[family]

    def build() -> keras.Model:
        function = getattr(keras.applications, member.function)
        shape = (member.pixels, member.pixels, 3)
        model = function(weights=None, input_shape=shape, classes=CLASSES, **member.arguments)
        model.compile(keras.optimizers.SGD(1e-4, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    started = time.perf_counter()
    rig = Rig(devices)
    model = rig.build(build)
    generator = np.random.default_rng(0)
    x = generator.uniform(0, 1, (ROWS, member.pixels, member.pixels, 3)).astype("float32")
    y = generator.integers(0, CLASSES, ROWS)
    batch = Batch(global_size=SIZE, virtual_replicas=VIRTUAL_REPLICAS)
    history = rig.fit(model, x, y, batch=batch, shuffle=False, verbose=0).history
    return {
        "member": member.function,
        "parameters": model.count_params(),
        "pixels": member.pixels,
        "digest": state_digest_of(capture(model).tensors, 0),
        "loss": history["loss"][-1],
        "seconds": round(time.perf_counter() - started, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def attempt(devices: int, family: str) -> dict[str, Any]:
    """Return what `train` does, or the error."""
    try:
        return train(devices, family)
    except Exception as error:  # noqa: BLE001 - shown in the table and failed by the test
        return {"error": getattr(error, "code", type(error).__name__), "message": str(error)[:500]}


if __name__ == "__main__":
    line = json.dumps([sys.argv[3], attempt(int(sys.argv[2]), sys.argv[3])])
    with Path(sys.argv[1]).open("a", encoding="utf-8") as stream:
        stream.write(f"{line}\n")
