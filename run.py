"""Simulates asynchronous federated learning: flags in, a run directory out. ``python run.py --help`` explains them.

The command itself is ``jafl/cli/command_line.py``; once the package is installed, it is called ``jafl``.
"""

from jafl.cli.command_line import start

if __name__ == "__main__":
    start()
