"""Rules of the user's own: what they pair, what they leave, and what is refused, by the number of the rule."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyrig.errors import UsageError
from anyrig.mapping.apply import arrays
from anyrig.mapping.layout import Step
from anyrig.mapping.propose import propose
from anyrig.mapping.rule import Rule
from anyrig.mapping.rules import Rules
from tests.unit.mapping_sides import layer, numbers, stored

FILE = {
    "module/first/weight": numbers((3, 2), 1),
    "module/first/bias": numbers((3,), 2),
    "module/second/weight": numbers((3, 3), 3),
    "module/second/bias": numbers((3,), 4),
    "teacher/weight": numbers((7,), 5),
}
MODEL = [
    *layer("one", {"kernel": (2, 3), "bias": (3,)}, automatic=False),
    *layer("two", {"kernel": (3, 3), "bias": (3,)}, rank=1, automatic=False),
    *layer("head", {"kernel": (3, 5)}, rank=2, automatic=False),
]
TEXT = """
version: 1
rules:
  - {from: module/first/weight, to: model/one/kernel}
  - {from: module/second/weight, to: model/two/kernel, layout: [transpose]}
  - {from: module/first/b*s, to: model/one/b*s}
  - {from: module/second/*, to: model/two/*}
  - {drop: teacher/*}
  - {keep: model/head/*}
"""


def rules(tmp_path: Path, text: str) -> Rules:
    path = tmp_path / "rules.yaml"
    path.write_text(text, encoding="utf-8")
    return Rules.load(path)


def test_what_they_say_is_done(tmp_path: Path) -> None:
    text = TEXT.replace("module/second/*, to: model/two/*", "module/second/bi*, to: model/two/bi*")
    mapping = rules(tmp_path, text).apply(stored(FILE), MODEL)
    assert mapping.complete
    found = dict(arrays(mapping))
    assert found["model/one/kernel"].tobytes() == np.ascontiguousarray(FILE["module/first/weight"].T).tobytes()
    assert found["model/two/kernel"].tobytes() == np.ascontiguousarray(FILE["module/second/weight"].T).tobytes()
    assert found["model/one/bias"].tobytes() == FILE["module/first/bias"].tobytes()
    assert found["model/two/bias"].tobytes() == FILE["module/second/bias"].tobytes()
    assert [item.name for item in mapping.dropped] == ["teacher/weight"]
    assert [want.name for want in mapping.kept] == ["model/head/kernel"]


def test_what_they_do_not_name_is_proposed(tmp_path: Path) -> None:
    """A rule for the one that nothing decides is enough."""
    same = {"a/kernel": numbers((3, 3), 1), "b/kernel": numbers((3, 3), 2), "model/two/bias": numbers((3,), 3)}
    model = [*layer("one", {"kernel": (3, 3)}), *layer("two", {"kernel": (3, 3), "bias": (3,)}, automatic=False)]
    assert not propose(stored(same), model).complete
    mapping = rules(
        tmp_path, "version: 1\nrules: [{from: a/kernel, to: model/one/kernel}, {from: b/kernel, to: model/two/kernel}]"
    ).apply(stored(same), model)
    assert mapping.complete
    assert {pair.wanted.name: pair.rule for pair in mapping.pairs}["model/two/bias"] == "name"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("rules: []", "ANY-MAP-002", "version: 1"),
        ("version: 1\nsame_code: true\nrules: []", "ANY-MAP-002", "same_code beside `rules`"),
        ("version: 1\nsame_code: 1.5", "ANY-MAP-002", "or `same_code: true` alone"),
        ("version: 1\nrules: [{form: a, to: b}]", "ANY-MAP-002", "rule 1 has 'form'; did you mean from"),
        ("version: 1\nrules: [{from: a}]", "ANY-MAP-002", "takes from and to, or drop, or keep"),
        ("version: 1\nrules: [{from: a, to: b, layout: [turn]}]", "ANY-MAP-002", "'turn'; known are transpose"),
        ("version: 1\nrules: [{drop: nothing/*}]", "ANY-MAP-003", "rule 1 of"),
        ("version: 1\nrules: [{keep: model/nothing/*}]", "ANY-MAP-003", "matches nothing"),
        ("version: 1\nrules: [{from: module/first/weight, to: model/one/kernl}]", "ANY-MAP-004", "model/one/kernel?"),
        (
            "version: 1\nrules: [{from: module/first/bias, to: model/one/bias}, "
            "{from: module/second/bias, to: model/one/bias}]",
            "ANY-MAP-005",
            "rule 2",
        ),
        ("version: 1\nrules: [{from: teacher/weight, to: model/one/bias}]", "ANY-MAP-006", "does not fit"),
        ("version: 1\nrules: [{from: *x}", "ANY-MAP-002", "is no file of rules"),
        ("version: 1\nrules: [{from: [a, 3], to: b}]", "ANY-MAP-002", "no mapping of texts"),
        ("version: 1\nrules: [{from: a, to: b, axis: 1}]", "ANY-MAP-002", "it takes from and to"),
        ("version: 1\nrules: [{from: [a, b], to: c, axis: last}]", "ANY-MAP-002", "no mapping of texts"),
        ("version: 1\nrules: [{from: [], to: c}]", "ANY-MAP-002", "it takes from and to"),
        (
            "version: 1\nrules: [{from: [module/first/bias, module/third/bias], to: model/one/bias}]",
            "ANY-MAP-003",
            "of 2 tensors to join it matches 1: module/first/bias",
        ),
        (
            "version: 1\nrules: [{from: [module/first/weight, teacher/weight], to: model/one/bias}]",
            "ANY-MAP-006",
            "cannot be joined along axis -1: module/first/weight [3, 2] F32, teacher/weight [7] F32",
        ),
        (
            "version: 1\nrules: [{from: [module/first/bias, module/second/bias], to: model/one/bias, axis: 1}]",
            "ANY-MAP-006",
            "cannot be joined along axis 1",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, code: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        rules(tmp_path, text).apply(stored(FILE), MODEL)
    assert refused.value.code == code
    assert said in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no file of rules"):
        Rules.load(tmp_path / "rules.yaml")


NAMES = st.text(st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="\\"), min_size=1, max_size=12)
STEPS = st.sampled_from(
    [Step("transpose"), Step("reshape", (2, 3)), Step("block", (0, 1, 3)), Step("rows", (0, (2, 1))),
     Step("gates", ("ifco", "icfo"))]
)  # fmt: skip
RULES = st.one_of(
    st.builds(Rule, NAMES, NAMES, st.one_of(st.none(), st.lists(STEPS, min_size=1, max_size=3).map(tuple))),
    st.builds(Rule, st.lists(NAMES, min_size=1, max_size=3).map(tuple), NAMES, st.none(), st.integers(-3, 3)),
    st.builds(Rule, NAMES, st.none()),
    st.builds(Rule, st.none(), NAMES),
)


@given(found=st.lists(RULES, max_size=6))
def test_written_and_read_again_they_are_the_same(found: list[Rule], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(Rules(tuple(found)).text(), encoding="utf-8")
    assert Rules.load(path).rules == tuple(found)


def test_stars_stand_for_the_same_in_all_that_is_joined(tmp_path: Path) -> None:
    held = {f"{part}_{layer}": numbers((2, 2), seed) for seed, (layer, part) in enumerate(product("ab", "qk"))}
    model = [*layer("a", {"qk": (4, 2)}, automatic=False), *layer("b", {"qk": (4, 2)}, rank=1, automatic=False)]
    mapping = rules(tmp_path, "version: 1\nrules: [{from: [q_*, k_*], to: model/*/qk, axis: 0}]").apply(
        stored(held), model
    )
    assert mapping.complete
    assert {name: value.tobytes() for name, value in arrays(mapping)} == {
        f"model/{name}/qk": held[f"q_{name}"].tobytes() + held[f"k_{name}"].tobytes() for name in "ab"
    }


def test_rules_of_a_mapping_give_it_again(tmp_path: Path) -> None:
    starred = {"a*b/kernel": numbers((3, 2), 1), "c/bias": numbers((3,), 2)}
    first = Rules(
        (Rule("a\\*b/kernel", "model/one/kernel", (Step("transpose"),)), Rule("c/bias", "model/one/bias"))
    ).apply(stored(starred), MODEL[:2])
    assert first.complete
    again = rules(tmp_path, Rules.of(first).text()).apply(stored(starred), MODEL[:2])
    assert [(p.stored.name, p.wanted.name, p.steps) for p in again.pairs] == [
        (p.stored.name, p.wanted.name, p.steps) for p in first.pairs
    ]
