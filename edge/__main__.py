"""`python -m edge` is `driftbox`."""

from edge.cli import main

if __name__ == "__main__":
    main()
