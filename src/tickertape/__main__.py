"""Entry point of `python -m tickertape`, the same as the command `tickertape`."""

from __future__ import annotations

from tickertape.cli import main

if __name__ == "__main__":
    main()
