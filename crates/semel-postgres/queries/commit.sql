-- Returns when the application's rows and the completion are on the disk.
COMMIT
