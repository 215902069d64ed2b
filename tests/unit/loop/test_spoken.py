"""Who reads a log along sees how the loss goes, and is not flooded."""

from __future__ import annotations

from tasuki.loop.spoken import Spoken


def test_the_log_has_a_loss_at_once_then_seldom_and_the_last_one():
    said: list[str] = []
    spoken = Spoken(said.append, total_steps=5000, now=0.0)
    for step in range(1, 5001):
        at = {"step": step, "epoch": step // 100}
        spoken.tell(at, {"loss": 1 / step, "own": 3}, now=step / 10)
    assert said[0] == "Step 1 of 5,000 (epoch 0): loss 1"
    assert said[-1] == "Step 5,000 of 5,000 (epoch 50): loss 0.0002"
    assert [line.split()[1] for line in said[1:8]] == [
        *("101", "201", "301", "401", "501", "601", "1,201")
    ]
    assert len(said) == 1 + 6 + 7 + 1


def test_without_a_loss_the_log_has_what_there_is_and_nothing_of_nothing():
    said: list[str] = []
    spoken = Spoken(said.append, total_steps=9, now=0.0)
    spoken.tell({"step": 1, "epoch": 0}, {}, now=1.0)
    spoken.tell({"step": 2, "epoch": 0}, {"reward": 0.25, "text": "fine"}, now=2.0)
    assert said == ["Step 2 of 9 (epoch 0): reward 0.25, text fine"]
