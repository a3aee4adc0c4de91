"""What `anyrig explain` finds: a case for each cause of the catalogue, and the rules that it shows settle it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyrig.cli.main import run
from anyrig.diagnose.causes import CAUSES
from anyrig.diagnose.explain import explain
from anyrig.formats.contents import Contents, FileTensor
from anyrig.mapping.apply import arrays as arrays_of
from anyrig.mapping.propose import propose
from anyrig.mapping.rules import Rules
from anyrig.mapping.sides import wanted_side
from anyrig.state.wanted import Wanted
from tests.unit.mapping_sides import layer, numbers, stored, tensor

ROOT = Path(__file__).parents[2]


def named(path: str, shapes: dict[str, tuple[int, ...]], **facts: object) -> list[Wanted]:
    return layer(path, shapes, automatic=False, **facts)  # type: ignore[arg-type]


STATISTICS = ("gamma", "beta", "moving_mean", "moving_variance")
DENSE = {"kernel": (4, 3), "bias": (3,)}
BODY = {"body/kernel": numbers((4, 3), 1), "body/bias": numbers((3,), 2)}
CASES: dict[str, tuple[list[FileTensor], list[Wanted]]] = {
    "no-weights": (
        [tensor("optimizer/momentum", numbers((4, 3), 1), role="optimizer")],
        named("body", DENSE),
    ),
    "another-model": (
        stored({"conv/kernel": numbers((3, 3, 8, 9), 1), "conv/bias": numbers((9,), 2)}),
        [*named("body", DENSE), *named("top", {"kernel": (3, 2)}, rank=1)],
    ),
    "head-size": (
        stored({**BODY, "head/kernel": numbers((3, 10), 3), "head/bias": numbers((10,), 4)}),
        [*named("body", DENSE), *named("head", {"kernel": (3, 5), "bias": (5,)}, rank=1)],
    ),
    "vocabulary-size": (
        stored({**BODY, "words/embeddings": numbers((100, 8), 3)}),
        [*named("body", DENSE), *named("words", {"embeddings": (90, 8)}, kind="Embedding", rank=1)],
    ),
    "gru-reset-after": (
        stored(
            {
                "gru/kernel": numbers((5, 12), 1),
                "gru/recurrent_kernel": numbers((4, 12), 2),
                "gru/bias": numbers((12,), 3),
            }
        ),
        named("gru", {"kernel": (5, 12), "recurrent_kernel": (4, 12), "bias": (2, 12)}, kind="GRU"),
    ),
    "other-shape": (
        stored({**BODY, "top/kernel": numbers((7, 2), 3)}),
        [*named("body", DENSE), *named("top", {"kernel": (9, 2)}, rank=1)],
    ),
    "order-alone": (
        stored({"dense/kernel": numbers((3, 3), 1), "dense_1/kernel": numbers((3, 3), 2)}),
        [*layer("dense.0", {"kernel": (3, 3)}), *layer("dense.1", {"kernel": (3, 3)}, rank=1)],
    ),
    "renamed": (
        stored({**BODY, "old/kernel": numbers((9, 9, 2), 3)}),
        [*named("body", DENSE), *named("new", {"kernel": (9, 9, 2)}, rank=1)],
    ),
    "turned-or-not": (stored({"body.weight": numbers((4, 4), 1)}), named("body", {"kernel": (4, 4)})),
    "incomplete": (
        stored({"body/kernel/part_0": numbers((2, 3), 1), "body/kernel/part_2": numbers((2, 3), 2)}),
        named("body", {"kernel": (6, 3)}),
    ),
    "unknown-type": (
        [replace(item, dtype="V2") for item in stored({"body/kernel": numbers((4, 3), 1)})],
        named("body", {"kernel": (4, 3)}),
    ),
    "fused": (
        stored({f"att/{part}/kernel": numbers((8, 8), seed) for seed, part in enumerate(("query", "key", "value"))}),
        named("att/qkv", {"kernel": (8, 24)}),
    ),
    "bn-folded": (
        stored({"conv/kernel": numbers((3, 3, 2, 4), 1), "conv/bias": numbers((4,), 2)}),
        [
            *named("conv", {"kernel": (3, 3, 2, 4)}, kind="Conv2D"),
            *named("bn", dict.fromkeys(STATISTICS, (4,)), kind="BatchNormalization", rank=1),
        ],
    ),
    "cudnn": (
        stored(
            {
                "gru/kernel": numbers((5, 12), 1),
                "gru/recurrent_kernel": numbers((4, 12), 2),
                "gru/bias": numbers((24,), 3),
            }
        ),
        named("gru", {"kernel": (5, 12), "recurrent_kernel": (4, 12), "bias": (2, 12)}, kind="GRU"),
    ),
    "averages": (
        stored({**BODY, **{f"{name}/ExponentialMovingAverage": value + 1 for name, value in BODY.items()}}),
        named("body", DENSE),
    ),
    "optimizer": (
        stored({**BODY, "body/kernel/Momentum": numbers((4, 3), 3), "global_step": np.zeros((), np.int64)}),
        named("body", DENSE),
    ),
    "suffix": (stored(BODY), named("body", DENSE)),
    "missing": (stored(BODY), [*named("body", DENSE), *named("top", {"kernel": (3, 8)}, rank=1)]),
    "extra": (stored({**BODY, "aux/kernel": numbers((3, 8), 3)}), named("body", DENSE)),
    "names": (stored({f"module/{name}": value for name, value in BODY.items()}), named("body", DENSE)),
    "layout": (
        stored({"body.weight": numbers((3, 4), 1), "body.bias": numbers((3,), 2)}),
        named("body", DENSE),
    ),
    "partitions": (
        stored({"body/kernel/part_0": numbers((2, 3), 1), "body/kernel/part_1": numbers((2, 3), 2)}),
        named("body", {"kernel": (4, 3)}),
    ),
    "other-type": (stored({name: value.astype("float16") for name, value in BODY.items()}), named("body", DENSE)),
}


def contents(tensors: list[FileTensor]) -> Contents:
    return Contents(format="npz", words="arrays", path=Path("file"), tensors=tuple(tensors))


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_is_found(cause: str, tmp_path: Path) -> None:
    tensors, wanted = CASES[cause]
    file = tmp_path / ("file.h5" if cause == "suffix" else "file.npz")
    file.touch()
    found = explain(replace(contents(tensors), path=file), wanted)
    assert cause in [finding.cause for finding in found.findings]
    assert found.loads == (not CAUSES[cause].stops)
    heavier = [finding.stops for finding in found.findings]
    assert heavier == sorted(heavier, reverse=True)


@pytest.mark.parametrize("cause", ["head-size", "vocabulary-size", "other-shape", "renamed", "missing", "extra"])
def test_the_rules_that_are_shown_settle_it(cause: str, tmp_path: Path) -> None:
    tensors, wanted = CASES[cause]
    lines = [line for finding in explain(contents(tensors), wanted).findings for line in finding.repair]
    path = tmp_path / "rules.yaml"
    path.write_text("\n".join(["version: 1", "rules:", *lines]))
    assert Rules.load(path).apply(tensors, wanted).complete


def test_what_is_only_told_needs_no_rule_and_averages_load_by_the_rules_that_are_shown(tmp_path: Path) -> None:
    tensors, wanted = CASES["averages"]
    (finding,) = explain(contents(tensors), wanted).findings
    path = tmp_path / "rules.yaml"
    path.write_text("\n".join(["version: 1", "rules:", *finding.repair]))
    mapping = Rules.load(path).apply(tensors, wanted)
    assert mapping.complete
    assert {pair.stored.name for pair in mapping.pairs} == {f"{name}/ExponentialMovingAverage" for name in BODY}


@pytest.mark.parametrize(("gates", "bias"), [(3, (2, 12)), (4, (16,))])
def test_B027_cudnn_layers_of_the_same_name_are_laid_out_anew(gates: int, bias: tuple[int, ...]) -> None:
    """The kernels have the shapes that are wanted: taken as they are, they would be wrong without a word."""
    units = 4
    shapes = {"kernel": (5, gates * units), "recurrent_kernel": (units, gates * units)}
    tensors = stored(
        {f"rnn/{leaf}": numbers(shape, 1) for leaf, shape in {**shapes, "bias": (2 * gates * units,)}.items()}
    )
    mapping = propose(tensors, named("rnn", {**shapes, "bias": bias}, kind="GRU" if gates == 3 else "LSTM"))
    assert mapping.complete
    steps = {pair.wanted.leaf: [step.name for step in pair.steps] for pair in mapping.pairs}
    assert steps["kernel"] == ["cudnn_input_kernel"]
    assert steps["recurrent_kernel"] == ["cudnn_recurrent_kernel"]
    assert steps["bias"] == ["reshape" if gates == 3 else "add_halves"]


def test_B027_slots_of_a_kernel_that_is_laid_out_anew_begin_anew() -> None:
    """Nothing says that a slot is laid out as its kernel: as it is, it would be wrong without a word."""
    tensors, wanted = CASES["cudnn"]
    slot = Wanted(
        name="optimizer/momentum",
        dtype="F32",
        shape=(5, 12),
        role="optimizer",
        of="model/gru/kernel",
        slot="momentum",
    )
    mapping = propose([*tensors, *stored({"gru/kernel/Momentum": numbers((5, 12), 4)})], [*wanted, slot])
    assert mapping.missing == (slot,)


@pytest.mark.parametrize("cause", ["incomplete", "another-model", "bn-folded"])
def test_no_rule_keeps_what_is_lost_or_of_another_model(cause: str) -> None:
    tensors, wanted = CASES[cause]
    assert [line for finding in explain(contents(tensors), wanted).findings for line in finding.repair] == []


PARTS = ("value", "query", "key")  # stored in another order than the usual one
SPLIT = {f"att/{part}/kernel": numbers((8, 8), seed) for seed, part in enumerate(PARTS)}
FUSED = {"att/qkv/kernel": np.concatenate([SPLIT[f"att/{part}/kernel"] for part in ("query", "key", "value")], 1)}


@pytest.mark.parametrize(("held", "model"), [(SPLIT, FUSED), (FUSED, SPLIT)], ids=["join", "split"])
def test_fused_kernels_are_joined_and_split_by_the_rules_shown(
    held: dict[str, Any], model: dict[str, Any], tmp_path: Path
) -> None:
    wanted = [w for name, value in model.items() for w in named(name[: -len("/kernel")], {"kernel": value.shape})]
    (finding,) = explain(contents(stored(held)), wanted).findings
    assert finding.cause == "fused"
    (tmp_path / "rules.yaml").write_text("\n".join(["version: 1", "rules:", *finding.repair]), encoding="utf-8")

    rules = Rules.load(tmp_path / "rules.yaml")
    mapping = rules.apply(stored(held), wanted)
    assert mapping.complete
    assert {name: value.tobytes() for name, value in arrays_of(mapping)} == {
        f"model/{name}": value.tobytes() for name, value in model.items()
    }
    again = Rules.of(mapping).apply(stored(held), wanted)
    assert [(p.stored, p.wanted, p.steps) for p in again.pairs] == [
        (p.stored, p.wanted, p.steps) for p in mapping.pairs
    ]


def test_B106_towers_of_two_files_are_told_apart_by_their_numbers() -> None:
    names = [f"tower_{number}/conv1/{leaf}" for number in (0, 1) for leaf in ("weights", "biases")]
    tensors = stored({name: numbers((3, 3), seed) for seed, name in enumerate(names)})
    found = explain(contents(tensors), wanted_side(contents(tensors)))
    assert found.findings == ()
    assert [(pair.stored.name, pair.wanted.name) for pair in found.mapping.pairs] == [(name, name) for name in names]


def test_what_order_alone_would_decide_shows_both_ways() -> None:
    (finding,) = explain(contents(CASES["order-alone"][0]), CASES["order-alone"][1]).findings
    assert len(finding.repair) == 4
    assert finding.evidence[0] == "in the file: dense/kernel [3, 3], dense_1/kernel [3, 3]"


def test_layers_in_question_are_one_finding_each_with_rules_for_the_whole_layer(tmp_path: Path) -> None:
    shapes = {"kernel": (9, 9, 2), "bias": (2,)}
    tensors = stored({**BODY, **{f"old/{leaf}": numbers(shape, 3) for leaf, shape in shapes.items()}})
    wanted = [*named("body", DENSE), *named("new", shapes, rank=1)]
    (finding,) = explain(contents(tensors), wanted).findings
    assert finding.cause == "renamed"
    assert finding.repair == (
        "- {from: old/*, to: model/new/*}",
        "# if it is another one: - {drop: old/*}, - {keep: model/new/*}",
    )
    (tmp_path / "rules.yaml").write_text("\n".join(["version: 1", "rules:", *finding.repair]), encoding="utf-8")
    assert Rules.load(tmp_path / "rules.yaml").apply(tensors, wanted).complete
    more = explain(contents([*tensors, *stored({"old/extra": numbers((77,), 1)})]), wanted).findings
    assert "- {from: old/kernel, to: model/new/kernel}" in more[0].repair  # old/* would be more than that


def test_half_a_layer_is_not_taken_for_a_renamed_one() -> None:
    tensors = stored({**BODY, "head/kernel": numbers((16, 3), 3), "head/bias": numbers((3,), 4)})
    wanted = [*named("body", DENSE), *named("top", {"kernel": (7, 3), "bias": (3,)}, rank=1)]
    wanted += named("neck", {"kernel": (16, 7), "bias": (7,)}, rank=2)
    found = explain(contents(tensors), wanted)
    assert [finding.cause for finding in found.findings] == ["missing", "extra"]


def test_the_catalogue_has_an_entry_for_each_cause() -> None:
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    assert re.findall(r"^### `([a-z-]+)`$", page, re.MULTILINE) == list(CAUSES)
    assert CASES.keys() == CAUSES.keys()
    for cause in CAUSES.values():
        assert cause.title in page


def test_as_a_user_types_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two files, without a framework: what is clear is written as rules, what is not ends in 3."""
    for name, arrays in (
        ("sent", {f"module/{name}": value for name, value in BODY.items()}),
        ("mine", BODY),
        ("larger", {**BODY, "aux/kernel": numbers((3, 8), 3)}),
    ):
        np.savez(tmp_path / name, allow_pickle=False, **arrays)
    sent, mine, larger, fix = (str(tmp_path / name) for name in ("sent.npz", "mine.npz", "larger.npz", "fix.yaml"))
    assert run(["explain", sent, mine, "--fix", fix], debug=False) == 0
    said = capsys.readouterr().out
    assert said.startswith("It loads by these renamings: all 2 weights are clear.\n")
    assert "1. Names differ, and are clear [names]" in said
    assert {(rule.source, rule.target) for rule in Rules.load(fix).rules} == {
        ("module/body/kernel", "body/kernel"),
        ("module/body/bias", "body/bias"),
    }
    assert run(["explain", mine, mine], debug=False) == 0
    assert capsys.readouterr().out.startswith("It loads as it is: all 2 weights are clear.\n")
    assert run(["explain", larger, mine], debug=False) == 3
    said = capsys.readouterr().out
    assert "It does not load as it is: 2 of 2 weights are clear, 1 to be settled." in said
    assert "do: - {drop: aux/kernel}" in said


def test_rules_are_written_over_no_file_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "mine", allow_pickle=False, **BODY)
    mine, fix = str(tmp_path / "mine.npz"), tmp_path / "fix.yaml"
    fix.write_text("precious")
    assert run(["explain", mine, mine, "--fix", str(fix)], debug=False) == 2
    assert "ANY-CLI-017" in capsys.readouterr().err
    assert fix.read_text() == "precious"
    assert run(["explain", mine, mine, "--fix", str(fix), "--force"], debug=False) == 0
    assert len(Rules.load(fix).rules) == 2
    assert run(["explain", mine, mine, "--fix", str(tmp_path / "none" / "fix.yaml")], debug=False) == 2
    assert "ANY-CLI-018" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fix.yaml", "mine.npz"]


@pytest.mark.parametrize(
    "name", ["a*/k", "a?[0]", "a: {b}, c #d", "*", "1", "null", "'q'", "a\\*b", "- x", "[x", "é\u2028"]
)
def test_names_of_any_characters_are_in_the_rules_that_are_shown(name: str, tmp_path: Path) -> None:
    tensors = stored({**BODY, name: numbers((5, 7), 4), "ab/k": numbers((6, 7), 5), f"2{name}": numbers((2, 2), 6)})
    wanted = [*named("body", DENSE), *(replace(w, name=f"3{name}") for w in named("x", {"kernel": (9, 9)}))]
    lines = [line for finding in explain(contents(tensors), wanted).findings for line in finding.repair]
    path = tmp_path / "rules.yaml"
    path.write_text("\n".join(["version: 1", "rules:", *lines]), encoding="utf-8")
    mapping = Rules.load(path).apply(tensors, wanted)
    assert mapping.complete
    assert {item.name for item in mapping.dropped} == {name, "ab/k", f"2{name}"}
    assert [want.name for want in mapping.kept] == [f"3{name}"]
