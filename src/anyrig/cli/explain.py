"""`anyrig explain`: why a file does not load into a model, and the rule that makes it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anyrig.cli import options, text
from anyrig.errors import EXIT_CHECK_FAILED, UsageError

if TYPE_CHECKING:
    from anyrig.diagnose.explain import Explanation, Finding
    from anyrig.formats.contents import Contents
    from anyrig.mapping.result import Mapping
    from anyrig.state.wanted import Wanted

_FIX_HINT = "give --fix another name"
_CHANGES = {"layout", "cudnn", "partitions", "other-type"}


@click.command("explain")
@click.argument("checkpoint", metavar="FILE")
@click.argument("model")
@options.rules
@click.option("--fix", type=click.Path(path_type=Path), metavar="RULES.yaml", help="Write all that is clear as rules.")
@click.option("--force", is_flag=True, help="Let --fix replace a file.")
@options.as_json
@options.debug
def command(checkpoint: str, model: str, rules: Path | None, fix: Path | None, force: bool, as_json: bool) -> int:
    """Say why a file does not load into a model, and the rule that makes it.

    FILE is anything that `anyrig inspect` knows. MODEL is another such file, or FILE.py:FUNCTION that builds the model
    (its code is run). What is found comes in order of weight, each with its evidence, the likely cause, and the rules
    that settle it; what cannot be decided is never guessed. With --rules it says what they leave open. Exits 0 when all
    is clear, and 3 when something is not.
    """
    from anyrig.diagnose.explain import explain

    if fix is not None and os.path.lexists(fix) and not force:
        raise _exists(fix)
    contents = _contents(checkpoint)
    found = explain(contents, *_wanted(model, contents, rules))
    if fix is not None:
        _write(fix, found)
    click.echo(_as_json(found) if as_json else _describe(contents, model, found, fix))
    return 0 if found.loads else EXIT_CHECK_FAILED


def _contents(path: str) -> Contents:
    from anyrig.diagnose.foreign import contents_of_other_format
    from anyrig.formats.checkpoint import contents_of
    from anyrig.locations import find_checkpoint
    from anyrig.store.read import open_checkpoint

    return contents_of_other_format(path) or contents_of(open_checkpoint(find_checkpoint(path)))


def _wanted(model: str, contents: Contents, rules: Path | None) -> tuple[list[Wanted], Mapping | None]:
    """Return what the model wants, and how opening would fill it; between two files only names are compared."""
    from anyrig.mapping.rules import Rules

    given = None if rules is None else Rules.load(rules)
    if ":" in model and not os.path.lexists(model):
        from anyrig.cli.models import builder, naming
        from anyrig.exchange.fill import mapping_into
        from anyrig.state.wanting import wanted_by

        built = builder(model, key="MODEL")()
        ours = contents.format == "checkpoint" and given is None  # loaded by the names that it has
        with naming(model):
            return wanted_by(built, weights_only=True), None if ours else mapping_into(built, contents, given)
    from anyrig.mapping.sides import wanted_side

    wanted = wanted_side(_contents(model))
    return wanted, None if given is None else given.apply(contents.tensors, wanted)


def _write(path: Path, found: Explanation) -> None:
    from anyrig.mapping.rules import Rules

    work = path.parent / f".{path.name}.writing-{secrets.token_hex(4)}"
    try:
        work.write_text(Rules.of(found.mapping).text(), encoding="utf-8")
        os.replace(work, path)
    except OSError as error:
        work.unlink(missing_ok=True)
        raise UsageError("ANY-CLI-018", f"--fix {path} cannot be written: {error.strerror}", hint=_FIX_HINT) from error


def _exists(path: Path) -> UsageError:
    return UsageError(
        "ANY-CLI-017", f"--fix {path} is there already, and was left as it is", hint=f"{_FIX_HINT}, or --force"
    )


def _describe(contents: Contents, model: str, found: Explanation, fix: Path | None) -> str:
    head = text.facts([("file", f"{contents.path} ({contents.words})"), ("model", model)])
    parts = [_verdict(found), head, *(_finding(number, each) for number, each in enumerate(found.findings, 1))]
    if not found.loads and any(finding.repair for finding in found.findings):
        parts.append("Lines with - go under `rules:` in a file with `version: 1`; give it with rules= or --rules.")
    if fix is not None:
        parts.append(f"wrote {fix}: rules for the {len(found.mapping.pairs)} that are clear")
    return "\n\n".join(parts)


def _verdict(found: Explanation) -> str:
    clear, causes = len(found.mapping.pairs), {finding.cause for finding in found.findings}
    if not found.loads:
        told = sum(finding.stops for finding in found.findings)
        return f"It does not load as it is: {clear} of {found.wanted} weights are clear, {told} to be settled."
    how = "by these renamings" if "names" in causes else "with these changes" if causes & _CHANGES else "as it is"
    return f"It loads {how}: all {clear} weights are clear."


def _finding(number: int, finding: Finding) -> str:
    from anyrig.diagnose.causes import CAUSES

    cause = CAUSES[finding.cause]
    lines = [f"{number}. {cause.title} [{finding.cause}]", *(f"     {line}" for line in finding.evidence)]
    lines.append(f"   likely: {cause.likely}")
    lines += [f"   {'do:' if not index else '   '} {line}" for index, line in enumerate(finding.repair)]
    return "\n".join(lines)


def _as_json(found: Explanation) -> str:
    import json

    from anyrig.diagnose.causes import CAUSES

    findings = [
        {
            "cause": each.cause,
            "title": CAUSES[each.cause].title,
            "stops": each.stops,
            "evidence": list(each.evidence),
            "likely": CAUSES[each.cause].likely,
            "repair": list(each.repair),
        }
        for each in found.findings
    ]
    pairs = [
        {"from": pair.stored.name, "to": pair.wanted.name, "why": pair.why, "confidence": pair.confidence}
        for pair in found.mapping.pairs
    ]
    return json.dumps({"loads": found.loads, "findings": findings, "pairs": pairs}, indent=2, ensure_ascii=False)
