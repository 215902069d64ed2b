"""What tests stand on, ours and the users'. Nothing else in tasuki imports it.

`FakeClock` takes the place of `tasuki.clock.SystemClock` wherever a clock is an argument, so that
hours pass in no time and nothing sleeps.
"""

from __future__ import annotations

from tasuki.testing.clock import FakeClock

__all__ = ["FakeClock"]
