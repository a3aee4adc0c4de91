"""Train one small member of a family of `keras.applications` for two steps; print the hash of its state as JSON.

Arguments: number of devices, family. The second batch is uneven: 4 rows, then 3, over two virtual replicas.
"""

from __future__ import annotations

import json
import resource
import sys
import time
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


def main(devices: int, family: str) -> None:
    """Train the family's member on so many devices."""
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
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    started = time.perf_counter()
    rig = Rig(devices)
    model = rig.build(build)
    generator = np.random.default_rng(0)
    x = generator.uniform(0, 255, (ROWS, member.pixels, member.pixels, 3)).astype("float32")
    y = generator.integers(0, CLASSES, ROWS)
    batch = Batch(global_size=SIZE, virtual_replicas=VIRTUAL_REPLICAS)
    history = rig.fit(model, x, y, batch=batch, shuffle=False, verbose=0).history
    print(
        json.dumps(
            {
                "member": member.function,
                "parameters": model.count_params(),
                "pixels": member.pixels,
                "digest": state_digest_of(capture(model).tensors, 0),
                "loss": history["loss"][-1],
                "seconds": round(time.perf_counter() - started, 1),
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
