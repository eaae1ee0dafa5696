"""`python -m onespike` is the command line."""

from onespike.cli import main

if __name__ == "__main__":
    main()
