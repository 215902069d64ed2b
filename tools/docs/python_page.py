"""`docs/reference/python.md`: every name of `tasuki.__all__`, with its signature and its words."""

from __future__ import annotations

import inspect
import re
from typing import Any

import tasuki

HEAD = """\
# Python

Generated from `tasuki.__all__`. Every verb is one function that returns what `--json` prints
([JSON](json.md)); an error of ours is a `tasuki.TasukiError` with `message` and `hint`.

```python
import tasuki

plan = tasuki.plan("tasuki.yaml", settings=["cluster.time_limit=8h"])
print([job["name"] for job in plan["jobs"]], plan["makespan_s"])
```
"""


def python_page() -> str:
    names = {name: getattr(tasuki, name) for name in tasuki.__all__}
    verbs = {
        n: v
        for n, v in names.items()
        if inspect.isfunction(v) and _is_of(v, "tasuki.api", "tasuki.commands")
    }
    written = {n: v for n, v in names.items() if _is_of(v, "tasuki.spec")}
    rest = {n: v for n, v in names.items() if n not in verbs and n not in written}
    parts = [HEAD]
    for title, group in (
        ("Verbs", verbs),
        ("For recipes, loops and sinks", rest),
        ("For specs in Python", written),
    ):
        parts.append(f"## {title}\n")
        if group is written:
            parts.append("Their keys are those of the [spec](spec.md); all are keyword-only.\n")
        parts += [_describe(name, group[name], is_spec=group is written) for name in sorted(group)]
    return "\n".join(parts)


def _is_of(value: Any, *packages: str) -> bool:
    return getattr(value, "__module__", "").startswith(packages)


def _describe(name: str, value: Any, *, is_spec: bool) -> str:
    words = re.sub(r"\s*\n\s*", " ", (inspect.getdoc(value) or "").partition("\n\n")[0])
    parts = [f"### {name}\n"]
    if not is_spec and (signature := _signature(name, value)):
        parts.append(f"```py\n{signature}\n```\n")  # to be read, not to be run
    parts.append(f"{words}\n")
    if inspect.isclass(value) and not is_spec and not issubclass(value, Exception):
        parts += [_method(method, inside) for method, inside in _methods(value)]
        parts.append("")
    return "\n".join(parts)


def _methods(value: type) -> list[tuple[str, Any]]:
    own = [(n, m) for n, m in vars(value).items() if inspect.isfunction(m) and n[0] != "_"]
    return [(n, m) for n, m in own if inspect.getdoc(m)]


def _method(name: str, value: Any) -> str:
    words = re.sub(r"\s*\n\s*", " ", (inspect.getdoc(value) or "").partition("\n\n")[0])
    return f"- `{_signature(name, value, is_method=True)}`: {words}"


def _signature(name: str, value: Any, *, is_method: bool = False) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    starred = _with_star(signature, is_method=is_method)
    returns = signature.return_annotation
    end = "" if returns is inspect.Signature.empty else f" -> {_plain(returns)}"
    line = f"{name}({', '.join(starred)}){end}"
    if len(line) <= 100 or is_method:
        return line
    return f"{name}(\n    " + ",\n    ".join(starred) + f",\n){end}"


def _with_star(signature: inspect.Signature, *, is_method: bool) -> list[str]:
    """Parameters as they are written, with the `*` after which they must be named."""
    kept = [p for n, p in signature.parameters.items() if not (is_method and n == "self")]
    texts = [_parameter(parameter) for parameter in kept]
    for place, parameter in enumerate(kept):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return texts
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            return [*texts[:place], "*", *texts[place:]]
    return texts


def _parameter(parameter: inspect.Parameter) -> str:
    empty = inspect.Parameter.empty
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = "" if parameter.annotation is empty else f": {_plain(parameter.annotation)}"
    default = "" if parameter.default is empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}{kind}{default}"


def _plain(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
