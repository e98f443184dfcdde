"""Takes the write lock of a SQLite file and keeps it until killed: for everybody else, writes fail.

python3 lock.py FILE MARK: creates MARK when the lock is held. A forgotten one ends by itself.
"""

import pathlib
import sqlite3
import sys
import time

FORGOTTEN_SECONDS = 120

connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)
connection.execute("BEGIN IMMEDIATE")
pathlib.Path(sys.argv[2]).touch()
time.sleep(FORGOTTEN_SECONDS)
