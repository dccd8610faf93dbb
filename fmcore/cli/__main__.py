"""``python -m fmcore.cli`` is ``fmcore``."""

from fmcore.cli import main

main(prog_name="fmcore")
