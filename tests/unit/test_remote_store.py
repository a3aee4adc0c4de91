"""Runs at a URL without a network: uploads, listings, starts and retention over a store in memory that fails."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from anyrig.errors import AnyrigError, UsageError
from anyrig.store.commit import committed_steps
from anyrig.store.remote.lease import InUse
from anyrig.store.remote.listing import Listing, Shelf
from anyrig.store.remote.mirror import Mirror
from anyrig.store.remote.objects import Objects, Unreachable
from anyrig.store.remote.reading import local_copy
from anyrig.store.remote.url import RunUrl, cleaned, is_url
from anyrig.store.retain import Keep
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
from anyrig.train.keeping import let_go

URL = "faulty://bucket/cats"
CALLS = ("find", "info", "cat_file", "pipe_file", "put_file", "get_file", "rm_file")


class Faulty(MemoryFileSystem):
    """A store in memory; `before` is called with the name and path of every call, and may raise."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    before: Callable[[str, str], None] = staticmethod(lambda call, path: None)
    calls: ClassVar[list[tuple[str, str]]] = []


def _watched(call: str) -> Callable[..., Any]:
    plain = getattr(MemoryFileSystem, call)

    def watched(self: Faulty, path: str, *arguments: Any, **options: Any) -> Any:
        target = arguments[0] if call == "put_file" else path
        Faulty.calls.append((call, str(target)))
        Faulty.before(call, str(target))
        return plain(self, path, *arguments, **options)

    return watched


for name in CALLS:
    setattr(Faulty, name, _watched(name))
fsspec.register_implementation("faulty", Faulty, clobber=True)


@pytest.fixture(autouse=True)
def empty() -> None:
    Faulty.store.clear()
    Faulty.pseudo_dirs[:] = [""]
    Faulty.calls.clear()
    Faulty.before = staticmethod(lambda call, path: None)


def machine(tmp_path: Path, name: str = "spool", keep: Keep | None = None) -> Mirror:
    run = tmp_path / name
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    choose = partial(let_go, keep or Keep(last=None))
    return Mirror(Objects(URL, attempts=2, pause=lambda _: None), run, choose=choose)


def save(mirror: Mirror, step: int, value: float | None = None) -> None:
    tensors = [
        StoredTensor(name="model/w", array=np.full(1000, step if value is None else value, np.float32)),
        StoredTensor(name="optimizer/m", array=np.arange(500, dtype=np.float32)),
    ]
    write_checkpoint(mirror.checkpoints, step, tensors, progress={"v": value}, assets={"a/b.txt": b"x"}, replace=True)


def there() -> Listing:
    return Shelf(Objects(URL)).list()


def steps_there() -> list[int]:
    return [step.step for step in there().steps]


def away(call: str, path: str) -> None:
    raise ConnectionError("no route to https://me:hidden@host/?token=abc")


def test_what_is_committed_locally_is_at_the_url_and_comes_back_equal(tmp_path: Path) -> None:
    first = machine(tmp_path)
    assert first.arrive() == []
    (first.run / "recipe.yaml").write_text("a: 1")
    save(first, 1)
    first.wake()
    save(first, 2)
    assert first.settle() == []
    assert steps_there() == [1, 2]
    other = machine(tmp_path, "other")
    assert other.arrive() == [f"fetched step 2 from {URL} into {other.run}"]
    for name in ("manifest.json", "assets/a/b.txt", "model-00001-of-00001.safetensors"):
        one, two = (mirror.checkpoints / "step-000000002" / name for mirror in (first, other))
        assert one.read_bytes() == two.read_bytes()
    assert (other.run / "recipe.yaml").read_text() == "a: 1"
    assert committed_steps(other.checkpoints) == [2]
    assert not list(other.run.glob(".fetch*"))


class CutOff:
    """The network is away from the call number `after` on."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, call: str, path: str) -> None:
        self.left -= 1
        if self.left < 0:
            away(call, path)


def test_cut_off_at_every_call_the_url_has_whole_steps_only(tmp_path: Path) -> None:
    first = machine(tmp_path)
    first.arrive()
    save(first, 1)
    first.settle()
    save(first, 2)
    before = {key: file.getvalue() for key, file in Faulty.store.items()}
    record = (first.run / "remote.json").read_bytes()
    seen: list[list[int]] = []
    cut = CutOff(-1)
    while cut.left < 0:
        cut = CutOff(len(seen))
        Faulty.before = staticmethod(cut)
        with suppress(Unreachable):
            mirror = machine(tmp_path)
            mirror.arrive()
            mirror.settle()
        Faulty.before = staticmethod(lambda call, path: None)
        seen.append(steps_there())
        assert not there().rejected
        again = machine(tmp_path)
        again.arrive()
        assert again.settle() == []
        assert steps_there() == [1, 2]
        assert not there().sweep
        Faulty.store.clear()
        for key, content in before.items():
            fsspec.filesystem("faulty").pipe_file(key, content)
        (first.run / "remote.json").write_bytes(record)
    assert len(seen) > 20
    assert sorted(map(tuple, seen)) == [tuple(steps) for steps in seen]  # committed at one call, and for good
    assert {tuple(steps) for steps in seen} == {(1,), (1, 2)}


def test_data_goes_up_before_the_manifest_and_the_manifest_goes_first(tmp_path: Path) -> None:
    mirror = machine(tmp_path, keep=Keep(last=1))
    mirror.arrive()
    save(mirror, 1)
    mirror.settle()
    written = [path for call, path in Faulty.calls if call in ("put_file", "pipe_file") and "step-" in path]
    assert len(written) == 4
    assert written[-1].endswith("manifest.json")
    Faulty.calls.clear()
    save(mirror, 2)
    mirror.settle()
    removed = [path for call, path in Faulty.calls if call == "rm_file" and "step-000000001" in path]
    assert len(removed) == 4
    assert removed[0].endswith("manifest.json")
    assert steps_there() == [2]


def test_an_outage_is_told_once_and_the_rest_goes_up_later(tmp_path: Path) -> None:
    mirror = machine(tmp_path)
    mirror.arrive()
    save(mirror, 1)
    Faulty.before = staticmethod(away)
    mirror.wake()
    mirror._background.wait()
    [line] = mirror.news()
    assert "tried 2 times" in line
    assert "hidden" not in line
    assert "abc" not in line
    assert mirror.news() == ()
    save(mirror, 2)
    [line] = mirror.settle()
    assert "2 checkpoints (step 2, 1)" in line
    assert f"anyrig sync {URL}" in line
    with pytest.raises(Unreachable, match="could not"):
        machine(tmp_path, "other").arrive()  # whether a run is there is not known
    [line] = machine(tmp_path).arrive()
    assert "Going on from step 2" in line
    Faulty.before = staticmethod(lambda call, path: None)
    assert mirror.settle() == []
    assert "takes checkpoints again" in mirror.news()[0]
    assert steps_there() == [1, 2]


def test_a_step_saved_again_never_overwrites_what_is_committed(tmp_path: Path) -> None:
    mirror = machine(tmp_path)
    mirror.arrive()
    save(mirror, 1, 1.0)
    mirror.settle()
    save(mirror, 1, 2.0)
    Faulty.before = staticmethod(lambda call, path: away(call, path) if path.endswith("r1/manifest.json") else None)
    mirror.settle()
    assert [step.folder for step in there().steps] == ["checkpoints/step-000000001"]
    Faulty.before = staticmethod(lambda call, path: None)
    assert mirror.settle() == []
    [step] = there().steps
    assert step.folder == "checkpoints/step-000000001.r1"
    assert step.manifest.progress == {"v": 2.0}
    assert not there().sweep
    other = machine(tmp_path, "other")
    other.arrive()
    assert committed_steps(other.checkpoints) == [1]


def test_bytes_lost_on_the_way_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = machine(tmp_path)
    mirror.arrive()
    save(mirror, 1)
    plain = Faulty.put_file

    def short(self: Faulty, local: str, path: str, **options: Any) -> None:
        self.pipe_file(path, Path(local).read_bytes()[:-1])

    monkeypatch.setattr(Faulty, "put_file", short)
    [line] = mirror.settle()
    assert "what arrived is not what was sent" in line
    assert steps_there() == []
    monkeypatch.setattr(Faulty, "put_file", plain)
    assert mirror.settle() == []


def test_damage_at_the_url_is_never_used(tmp_path: Path) -> None:
    first = machine(tmp_path)
    first.arrive()
    save(first, 1)
    save(first, 2)
    first.settle()
    name = f"{there().steps[-1].folder}/model-00001-of-00001.safetensors"
    content = bytearray(Objects(URL).read(name))
    content[-1] ^= 1
    Objects(URL).write(name, bytes(content))
    other = machine(tmp_path, "other")
    messages = other.arrive()
    assert "step 2 cannot be used" in messages[0]
    assert "fetched step 1" in messages[1]
    Objects(URL).write(name, bytes(content[:-1]))
    assert there().rejected[0].reason.startswith("model-00001-of-00001.safetensors has")
    assert steps_there() == [1]
    Objects(URL).remove(f"{there().steps[0].folder}/optimizer-00001-of-00001.safetensors")
    with pytest.raises(AnyrigError, match="starting anew would throw the run away"):
        machine(tmp_path, "third").arrive()


@pytest.mark.parametrize("size", ["same size", "cut short", "gone"])
@pytest.mark.parametrize("spooled", [True, False])
def test_a_damaged_local_copy_is_fetched_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spooled: bool, size: str
) -> None:
    monkeypatch.setenv("ANYRIG_SPOOL", str(tmp_path / "spools"))
    mirror = machine(tmp_path)
    mirror.arrive()
    save(mirror, 1)
    mirror.settle()
    if spooled:
        shutil.copytree(mirror.run, RunUrl.of(URL).spool)
    first = local_copy(URL)
    assert ("copy" in first.parent.parent.name) is not spooled
    data = first / "model-00001-of-00001.safetensors"
    content = data.read_bytes()
    data.unlink()
    if size != "gone":
        data.write_bytes(content[:-4] + (b"\xff\xff\x7f\x7f" if size == "same size" else b""))
    again = local_copy(URL)
    assert (again / data.name).read_bytes() == content
    assert (again == first) is not spooled, "a run's own folder is left alone"
    Faulty.calls.clear()
    assert local_copy(URL) == again
    assert not any(call == "get_file" for call, _ in Faulty.calls)


def test_two_ways_on_from_one_run_are_not_mixed(tmp_path: Path) -> None:
    first = machine(tmp_path)
    first.arrive()
    save(first, 1)
    first.settle()
    save(first, 5)  # never uploaded
    second = machine(tmp_path, "second")
    second.arrive()
    save(second, 3)
    second.settle()
    with pytest.raises(InUse, match="two ways on"):
        machine(tmp_path).arrive()
    with pytest.raises(InUse, match="two ways on"):
        first.settle()
    second.arrive()
    save(second, 7)
    second.settle()
    messages = machine(tmp_path).arrive()
    assert "step 5" in messages[0]
    assert "has gone on without it" in messages[0]
    assert committed_steps(first.checkpoints) == [1, 7]


def test_a_run_removed_at_the_url_starts_anew(tmp_path: Path) -> None:
    first = machine(tmp_path)
    first.arrive()
    save(first, 1)
    first.settle()
    Faulty.store.clear()
    assert "was removed" in machine(tmp_path).arrive()[0]
    assert committed_steps(first.checkpoints) == []
    assert list(first.checkpoints.glob(".step-000000001.damaged-*"))


def test_a_lease_keeps_a_second_machine_away(tmp_path: Path) -> None:
    first, second = machine(tmp_path), machine(tmp_path, "second")
    first.arrive()
    lease = json.loads(Objects(URL).read("lease.json"))
    assert not any("secret" in key for key in lease)
    Objects(URL).write("lease.json", json.dumps({**lease, "machine": "elsewhere", "token": "other"}).encode())
    with pytest.raises(InUse, match=f"process {lease['pid']} on {lease['host']}"):
        second.arrive()
    save(first, 1)
    with pytest.raises(InUse):
        first.settle()  # somebody took it
    Objects(URL).write("lease.json", json.dumps({**lease, "machine": "elsewhere", "beat": 0}).encode())
    second.arrive()
    second.close()
    first.close()
    assert "lease.json" not in Objects(URL).all()


def test_retention_at_the_url_counts_what_is_there(tmp_path: Path) -> None:
    first = machine(tmp_path)
    first.arrive()
    for step in (1, 2, 3):
        save(first, step)
    first.settle()
    Objects(URL).write("checkpoints/step-000000001.pin", b"")
    second = machine(tmp_path, "second", Keep(last=2))
    second.arrive()
    save(second, 4)
    second.settle()
    assert steps_there() == [1, 3, 4]


def test_a_step_that_the_rules_let_go_is_not_uploaded(tmp_path: Path) -> None:
    mirror = machine(tmp_path, keep=Keep(last=1))
    mirror.arrive()
    for step in (1, 2, 3):
        save(mirror, step)
    assert mirror.settle() == []
    assert not [path for call, path in Faulty.calls if "step-000000001" in path or "step-000000002" in path]
    assert steps_there() == [3]


def test_a_broken_off_fetch_goes_on_with_what_arrived(tmp_path: Path) -> None:
    first = machine(tmp_path)
    first.arrive()
    save(first, 1)
    first.settle()
    other = machine(tmp_path, "other")
    Faulty.before = staticmethod(
        lambda call, path: away(call, path) if call == "get_file" and "optim" in path else None
    )
    with pytest.raises(Unreachable):
        other.arrive()
    assert committed_steps(other.checkpoints) == []
    Faulty.before = staticmethod(lambda call, path: None)
    Faulty.calls.clear()
    other.arrive()
    assert committed_steps(other.checkpoints) == [1]
    assert not [path for call, path in Faulty.calls if call == "get_file" and "model-" in path]


def test_a_refusal_is_not_tried_again_and_says_what_to_check(tmp_path: Path) -> None:
    def refuse(call: str, path: str) -> None:
        raise PermissionError("Access Denied for key AKIA: secret_key=hidden")

    Faulty.before = staticmethod(refuse)
    with pytest.raises(AnyrigError, match="check the credentials") as caught:
        machine(tmp_path).arrive()
    assert len(Faulty.calls) == 1
    assert "hidden" not in str(caught.value)
    Faulty.before = staticmethod(lambda *_: (_ for _ in ()).throw(PermissionError("Access Denied.")))
    with pytest.raises(AnyrigError, match=r"Access Denied\.\n"):
        machine(tmp_path).arrive()
    with pytest.raises(UsageError, match="ANY-REMOTE-001"):
        Objects("nosuch://bucket")


@pytest.mark.parametrize(
    ("given", "url", "step"),
    [
        ("s3://b/runs/cats/", "s3://b/runs/cats", None),
        ("s3://b/runs/cats/checkpoints", "s3://b/runs/cats", None),
        ("s3://b/runs/cats/checkpoints/step-000000012", "s3://b/runs/cats", 12),
        ("s3://b/runs/cats/checkpoints/step-000000012.r2", "s3://b/runs/cats", 12),
        ("s3://b/runs/step-000000012", "s3://b/runs/step-000000012", None),
    ],
)
def test_what_a_url_means(given: str, url: str, step: int | None) -> None:
    assert RunUrl.of(given) == RunUrl(url, step)


def test_urls_are_told_from_paths_and_shown_without_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert is_url("memory://a")
    assert is_url("simplecache::s3://bucket/a")
    assert not any(is_url(path) for path in ("runs/cats", "C:\\runs", "c://runs", Path("s3:/x")))
    assert cleaned("https://me:pw@host/x?sig=abc&b=1 token: xyz") == "https://***@host/x?sig=***&b=1 token: ***"
    monkeypatch.setenv("ANYRIG_SPOOL", str(tmp_path))
    one, two = RunUrl.of("ftp://me:pw@host/cats"), RunUrl.of("ftp://me:other@host/cats")
    assert one.spool == two.spool
    assert one.spool.parent == tmp_path
    assert one.spool.name.startswith("cats-")
    names = ["a/sigma=0.1", "a/sigma=0.5", "a/max_tokens=512", "a/max_tokens=1024", "a/token=1", "a/token=2"]
    assert len({RunUrl.of(f"s3://bucket/{name}").spool for name in names}) == len(names)
    signed = [RunUrl.of(f"https://host/cats?part=1&sig={sig}").spool for sig in ("a1", "b2")]
    assert signed[0] == signed[1]


def test_a_url_without_a_place_is_refused() -> None:
    for given in ("s3://", "memory:///"):
        with pytest.raises(UsageError, match="ANY-REMOTE-011"):
            RunUrl.of(given)
