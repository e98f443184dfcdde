# Starts Patroni under libfaketime, which refuses to sleep until a moment that has just passed.
import time

sleep = time.sleep


def sleep_unless_too_late(seconds):
    try:
        sleep(seconds)
    except OSError:
        pass


time.sleep = sleep_unless_too_late

from patroni.__main__ import main

main()
