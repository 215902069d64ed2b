"""`tasuki drill`: it passes on sound runs, and names what is wrong with others."""
