"""`on:` in a spec: outcomes and commands, and what is said about the rest, with its place."""

from __future__ import annotations

import pytest

from tasuki.errors import SpecError

SMALL = "recipe: a:B\nexperiments: {e: {epochs: 1}}\n"


def test_a_command_is_a_list_of_words_or_a_text_that_is_split_as_a_shell_does(project):
    on = "{complete: [tell, 'two words'], held: \"notify-send 'two words' now\", deadline-risk: }"
    spec = project.load(f"on: {on}\n{SMALL}")
    assert spec.on == {
        "complete": ("tell", "two words"),
        "held": ("notify-send", "two words", "now"),
    }
    assert spec.warnings == ()


@pytest.mark.parametrize(
    ("written", "what", "hint"),
    [
        ("failed: x", "unknown outcome `failed` in `on`", "`held`, which is told of failures"),
        ("compleet: x", "unknown outcome `compleet`", "did you mean `complete`?"),
        ("deadline_risk: x", "unknown outcome `deadline_risk`", "did you mean `deadline-risk`?"),
        ("held: 'curl x | jq .'", "`held`: `|` means something to a shell only", "[bash, -c, "),
        ("held: 3", "`held` must be a list of texts, not `3`", "write for example"),
    ],
)
def test_what_is_no_outcome_or_no_command_is_refused_at_its_line(project, written, what, hint):
    with pytest.raises(SpecError) as error:
        project.load(f"project: p\non:\n  complete: fine\n  {written}\n{SMALL}")
    assert f"{project.folder}/tasuki.yaml:4: " in error.value.message
    assert what in error.value.message and hint in error.value.hint


def test_it_may_change_between_attempts_and_makes_no_other_run(project):
    from tasuki.spec.resolved import differences, to_plain

    one = project.load(f"on: {{held: a}}\n{SMALL}").experiments[0]
    two = project.load(f"on: {{held: b}}\n{SMALL}").experiments[0]
    assert differences(to_plain(one), to_plain(two)) == []
