"""What a terminal would obey: fifty ways in which a name or a line of a log could do harm."""

from __future__ import annotations

ESC, BEL, CSI8, OSC8, ST8, DCS8 = "\x1b", "\x07", "\x9b", "\x9d", "\x9c", "\x90"

PAYLOADS = (
    f"{ESC}[31mred{ESC}[0m",
    f"{ESC}[2J",
    f"{ESC}[3J",
    f"{ESC}[H",
    f"{ESC}[1;1H",
    f"{ESC}[A{ESC}[A",
    f"{ESC}[K",
    f"{ESC}[1K",
    f"{ESC}[?25l",
    f"{ESC}[?1049h",
    f"{ESC}[?1049l",
    f"{ESC}[?1000h",
    f"{ESC}[?1006h",
    f"{ESC}[?2004h",
    f"{ESC}[6n",
    f"{ESC}[c",
    f"{ESC}[>c",
    f"{ESC}[5n",
    f"{ESC}[21t",
    f"{ESC}[8;1;1t",
    f"{ESC}[4h",
    f"{ESC}[20h",
    f"{ESC}[!p",
    f"{ESC}[5m{ESC}[8m",
    f"{ESC}[38;2;255;0;0m",
    f"{ESC}]0;owned{BEL}",
    f"{ESC}]2;owned{ESC}\\",
    f"{ESC}]52;c;b3duZWQ={BEL}",
    f"{ESC}]8;;http://example.invalid{ESC}\\click{ESC}]8;;{ESC}\\",
    f"{ESC}]4;1;?{BEL}",
    f"{ESC}]10;?{BEL}",
    f"{ESC}]104{BEL}",
    f"{ESC}]50;CursorShape=1{BEL}",
    f"{ESC}]1337;File=name=eA==:eA=={BEL}",
    f"{ESC}]9;4;3{BEL}",
    f"{ESC}Pq#0;2;0;0;0{ESC}\\",
    f"{ESC}P$q m{ESC}\\",
    f"{ESC}_Gf=100;AAAA{ESC}\\",
    f"{ESC}^private{ESC}\\",
    f"{ESC}c",
    f"{ESC}#8",
    f"{ESC}(0lqk",
    f"{ESC}7{ESC}8{ESC}D{ESC}M",
    f"{CSI8}2J{CSI8}31m",
    f"{OSC8}0;owned{ST8}",
    f"{DCS8}q{ST8}",
    f"done{BEL}{BEL}",
    "good\rbad",
    "abc\b\b\bxyz\x7f",
    "\x0e\x0f\x05\x0b\x0c\x00",
    f"{ESC}",
    f"{ESC}[",
    "\u202egnp.exe\u2066x\u2069",
    "one\u2028two\u2029three\x85four",
)


def harmful(text: str) -> list[str]:
    """Characters of a text that a terminal acts on, or that turn what follows around."""
    turning = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
    breaking = "\u2028\u2029\x85"
    return [
        repr(char)
        for char in text
        if (ord(char) < 32 and char not in "\n\t")
        or 127 <= ord(char) < 160
        or char in turning + breaking
    ]
