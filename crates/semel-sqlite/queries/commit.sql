-- Returns when the group is on the disk.
COMMIT
