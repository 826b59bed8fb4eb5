"""`python -m advisor` is `advisor`: for a machine where the script is on no path."""

from advisor.cli import main

if __name__ == "__main__":
    main()
