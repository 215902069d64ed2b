"""Makes `docs/reference` and the site out of code and pages; `make docs`.

A small builder of our own over markdown-it-py and Pygments, which `rich` brings along: a generator
for sites would be a hundred times the code, with plugins and themes that move under us, for what is
a template, a list of pages and a check of links. Nothing is fetched; nothing here is in the wheel.
"""
