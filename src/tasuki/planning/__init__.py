"""Pure: cut stages into jobs that fit the limits, with reasons. Clock and disk stay outside."""
