"""The program of a child process: trains cases on one device count and writes what the state was after each step.

It is started by `children.py` with the path of a job file. One line of JSON is written for each case as soon as it is
done, so that a crash in a later case does not take the earlier ones away.
"""

from __future__ import annotations

import gc
import json
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anyrig.errors import AnyrigError
from anyrig.topology.devices import configure
from anyrig.train.parity.cases import Opened, open_case


def main(job: Mapping[str, Any]) -> None:
    """Do the job; its results are lines of JSON in the file that it names."""
    with Path(job["results"]).open("a", encoding="utf-8") as results:
        for index, case in enumerate(job["cases"]):
            outcome = _outcome(case, job["devices"], Path(job["folder"]) / f"{job['devices']}-{index}")
            results.write(json.dumps({"name": case["name"], **outcome}) + "\n")
            results.flush()


def _outcome(case: Mapping[str, Any], devices: int, kept: Path) -> dict[str, Any]:
    try:
        return _train(case, devices, kept)
    except AnyrigError as error:
        return {"problem": str(error), "code": error.code}
    except Exception as error:  # noqa: BLE001  (the user's own code: told in the report)
        last = traceback.extract_tb(error.__traceback__)[-1]
        first_line = str(error).strip().partition("\n")[0]
        return {"problem": f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {first_line}"}


def _train(case: Mapping[str, Any], devices: int, kept: Path) -> dict[str, Any]:
    configure(devices)
    import keras

    from anyrig.train.parity.probe import looking_into
    from anyrig.train.parity.recorder import Recorder
    from anyrig.train.rig import Rig
    from anyrig.train.step.strategy import runs_whole

    keras.backend.clear_session()
    gc.collect()
    opened = open_case(case["source"])
    rig = Rig(devices, case["precision"], case["seed"], case["strategy"])
    model = rig.build(opened.build)
    model.steps_per_execution = 1  # callbacks are to see each step
    recorder = Recorder(case["steps"], keep=case.get("keep", {}))
    with looking_into(case.get("look_into", -1)) as facts:
        history = rig.fit(model, **_arguments(case, opened, recorder), verbose=0)
    recorder.note_history(history.history)
    if recorder.kept:
        np.savez(kept, **recorder.kept)  # type: ignore[arg-type]  # names of arrays
    return {
        "states": recorder.states,
        "promised": not runs_whole(model),
        "arrays": f"{kept}.npz" if recorder.kept else None,
        "facts": facts,
    }


def _arguments(case: Mapping[str, Any], opened: Opened, recorder: Any) -> dict[str, Any]:
    """Return the arguments of fit. Every epoch has a step at least, and the recorder ends it when there were enough."""
    from anyrig.train.batch import Batch

    return {
        **dict(zip(("x", "y", "sample_weight"), opened.data, strict=True)),
        "batch": Batch(global_size=case["batch_size"], virtual_replicas=case["virtual_replicas"]),
        "epochs": opened.fit.get("initial_epoch", 0) + case["steps"],
        **opened.fit,
        "callbacks": [recorder, *opened.fit.get("callbacks", ())],
    }
